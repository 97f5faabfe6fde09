//! Memoization of script results that depend only on the metadata shared by all messages of a tag.
//!
//! The first call of a script on a shared map is traced: which names it looks up, whether it reads the payload, whether
//! it has effects outside. If everything it read is in the shared map, every message with that map gets the same result
//! without a call: the resulting map, or no message. What a call reads determines what it reads next, so another call
//! that would read the same values takes the same path; the script itself need not be analysed for that. Results are
//! maps again, so the next stage memoizes by them. Of a script that splits into a metadata half and a payload half,
//! only the first is memoized.
//!
//! Whether a script may be traced at all, or uses clock or randomness, is decided by its words ([`crate::scan`]). A
//! script that never turns out to be repeatable is not traced any more.

use std::sync::Arc;

use thalweg_record::{CacheLimits, DerivedMap, Message, MetaMap, Metadata, PerMapCache, Text, Value, key};

use crate::{Engine, Failure, MemoizedOutcome, MetaReply, PayloadReply, Program, ProgramStats, Reply, ScriptOutput};

/// After this many maps without a useful result a script is not traced any more.
const TRIES_MAX: usize = 64;

/// An engine, and the memoized results of its scripts by map.
pub struct MemoizingEngine {
    engine: Engine,
    /// By script; `None`: not memoized.
    scripts: Vec<Option<ScriptMemo>>,
    remembered: u64,
}

struct ScriptMemo {
    maps: PerMapCache<MemoEntry>,
    is_worth_it: bool,
}

/// A [`MemoizedOutcome`], stored with the map that it was computed from.
#[derive(Debug)]
enum MemoEntry {
    Depends,
    Nothing,
    Over(DerivedMap),
    Half(DerivedMap),
    Truth(bool),
}

impl MemoEntry {
    fn new(map: &Arc<MetaMap>, outcome: MemoizedOutcome) -> MemoEntry {
        match outcome {
            MemoizedOutcome::Unknown | MemoizedOutcome::Depends => MemoEntry::Depends,
            MemoizedOutcome::Nothing => MemoEntry::Nothing,
            MemoizedOutcome::Over(made) => MemoEntry::Over(DerivedMap::new(map, made)),
            MemoizedOutcome::Half(made) => MemoEntry::Half(DerivedMap::new(map, made)),
            MemoizedOutcome::Truth(truth) => MemoEntry::Truth(truth),
        }
    }

    fn remembered(&self, map: &Arc<MetaMap>) -> MemoizedOutcome {
        match self {
            MemoEntry::Depends => MemoizedOutcome::Depends,
            MemoEntry::Nothing => MemoizedOutcome::Nothing,
            MemoEntry::Over(made) => MemoizedOutcome::Over(made.get(map).clone()),
            MemoEntry::Half(made) => MemoizedOutcome::Half(made.get(map).clone()),
            MemoEntry::Truth(truth) => MemoizedOutcome::Truth(*truth),
        }
    }
}

impl MemoizingEngine {
    pub fn new(engine: Engine) -> MemoizingEngine {
        MemoizingEngine::within(engine, CacheLimits::default())
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// With these limits for each script.
    fn within(engine: Engine, bounds: CacheLimits) -> MemoizingEngine {
        let known = || ScriptMemo {
            maps: PerMapCache::within(bounds),
            is_worth_it: false,
        };
        let scripts = (0..engine.count()).map(|script| engine.is_repeatable(script).then(known));
        MemoizingEngine {
            scripts: scripts.collect(),
            engine,
            remembered: 0,
        }
    }

    /// The memoized outcome for a message.
    fn known(&mut self, script: usize, message: &Message) -> MemoizedOutcome {
        if message.meta.is_changed() {
            return MemoizedOutcome::Depends;
        }
        let known = self.remembered(script, message.meta.shared_map());
        let is_whole = !matches!(
            known,
            MemoizedOutcome::Unknown | MemoizedOutcome::Depends | MemoizedOutcome::Half(_)
        );
        self.remembered += u64::from(is_whole);
        known
    }

    fn remember(&mut self, script: usize, message: &Message, outcome: MemoizedOutcome) {
        let Some(place) = self.scripts.get_mut(script) else {
            return;
        };
        let Some(known) = place else { return };
        known.is_worth_it |= !matches!(outcome, MemoizedOutcome::Depends);
        if !known.is_worth_it && known.maps.len() >= TRIES_MAX {
            *place = None;
            return;
        }
        let bytes = match &outcome {
            MemoizedOutcome::Over(map) | MemoizedOutcome::Half(map) => map.memory_bytes(),
            _ => 0,
        };
        let map = message.meta.shared_map();
        known.maps.insert(map, (), MemoEntry::new(map, outcome), bytes);
    }
}

/// A call in two steps: the part without QuickJS, and the rest. Together they are [`Program::run`] and
/// [`Program::test`].
impl MemoizingEngine {
    /// Uses native code or a memoized result. `None` if QuickJS has to run the call.
    pub(crate) fn run_native(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Option<Result<ScriptOutput, Failure>> {
        match self.known(script, message) {
            MemoizedOutcome::Nothing => Some(Ok(ScriptOutput::Nothing)),
            MemoizedOutcome::Over(map) => Some(Ok(ScriptOutput::Over(map))),
            MemoizedOutcome::Depends | MemoizedOutcome::Half(_) | MemoizedOutcome::Truth(_) => {
                let (returned, _) = self.engine.run_native(script, message, origin)?;
                Some(Ok(returned))
            }
            MemoizedOutcome::Unknown => {
                let traced = Ok(self.engine.run_native(script, message, origin)?);
                Some(self.learn(script, message, traced))
            }
        }
    }

    /// Runs a call for which [`MemoizingEngine::run_native`] returned `None`.
    pub(crate) fn run_quickjs(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Result<ScriptOutput, Failure> {
        if !self.is_unknown(script, message) {
            return self.engine.run_quickjs(script, message, origin);
        }
        let traced = self.engine.trace(script, message, origin);
        self.learn(script, message, traced)
    }

    /// Like `run_native`, for a condition.
    pub(crate) fn test_native(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Option<Result<bool, Failure>> {
        match self.known(script, message) {
            MemoizedOutcome::Truth(truth) => Some(Ok(truth)),
            MemoizedOutcome::Unknown => {
                let traced = Ok(self.engine.test_native(script, message, origin)?);
                Some(self.learn_truth(script, message, traced))
            }
            _ => {
                let (truth, _) = self.engine.test_native(script, message, origin)?;
                Some(Ok(truth))
            }
        }
    }

    /// Runs a condition for which [`MemoizingEngine::test_native`] returned `None`.
    pub(crate) fn test_quickjs(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Result<bool, Failure> {
        if !self.is_unknown(script, message) {
            return self.engine.test_quickjs(script, message, origin);
        }
        let traced = self.engine.trace_test(script, message, origin);
        self.learn_truth(script, message, traced)
    }

    /// Whether the script has not seen the metadata of this message yet.
    fn is_unknown(&self, script: usize, message: &Message) -> bool {
        let of_tag = || self.remembered(script, message.meta.shared_map());
        !message.meta.is_changed() && matches!(of_tag(), MemoizedOutcome::Unknown)
    }

    /// Memoizes the result of a traced call.
    fn learn(
        &mut self,
        script: usize,
        message: &Message,
        traced: Result<(ScriptOutput, bool), Failure>,
    ) -> Result<ScriptOutput, Failure> {
        let map = message.meta.shared_map();
        let outcome = match &traced {
            Ok((returned, false)) => outcome_of(map, returned),
            Ok((_, true)) => self
                .engine
                .half(script, map)
                .map_or(MemoizedOutcome::Depends, MemoizedOutcome::Half),
            // A failure is reported each time.
            Err(_) => MemoizedOutcome::Depends,
        };
        self.remember(script, message, outcome);
        Ok(traced?.0)
    }

    fn learn_truth(
        &mut self,
        script: usize,
        message: &Message,
        traced: Result<(bool, bool), Failure>,
    ) -> Result<bool, Failure> {
        let outcome = match &traced {
            Ok((truth, false)) => MemoizedOutcome::Truth(*truth),
            Ok((_, true)) | Err(_) => MemoizedOutcome::Depends,
        };
        self.remember(script, message, outcome);
        Ok(traced?.0)
    }
}

impl Program for MemoizingEngine {
    fn run(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<ScriptOutput, Failure> {
        match self.run_native(script, message, origin) {
            Some(result) => result,
            None => self.run_quickjs(script, message, origin),
        }
    }

    fn test(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<bool, Failure> {
        match self.test_native(script, message, origin) {
            Some(result) => result,
            None => self.test_quickjs(script, message, origin),
        }
    }

    fn payload(&mut self, script: usize, value: &Value) -> Option<PayloadReply> {
        self.engine.payload(script, value)
    }

    fn remembered(&self, script: usize, map: &Arc<MetaMap>) -> MemoizedOutcome {
        match self.scripts.get(script) {
            Some(Some(known)) => match known.maps.get(map, ()) {
                Some(kept) => kept.remembered(map),
                None => MemoizedOutcome::Unknown,
            },
            _ => MemoizedOutcome::Depends,
        }
    }

    fn stats(&self) -> ProgramStats {
        ProgramStats {
            remembered: self.remembered,
            ..self.engine.stats()
        }
    }
}

/// What a result means for the next message with the same map.
fn outcome_of(map: &Arc<MetaMap>, returned: &ScriptOutput) -> MemoizedOutcome {
    match returned {
        ScriptOutput::Nothing => MemoizedOutcome::Nothing,
        ScriptOutput::One(Reply {
            payload: PayloadReply::Same,
            meta: MetaReply::Changes(changes),
        }) => over(map, changes).map_or(MemoizedOutcome::Depends, MemoizedOutcome::Over),
        ScriptOutput::One(Reply {
            payload: PayloadReply::Same,
            meta: MetaReply::Over(map),
        }) => MemoizedOutcome::Over(map.clone()),
        _ => MemoizedOutcome::Depends,
    }
}

/// The map with the changes applied; `None` if they concern keys that belong to a single message.
fn over(map: &Arc<MetaMap>, changes: &[(Text, Text)]) -> Option<Arc<MetaMap>> {
    if changes.iter().any(|(name, _)| key::STAMPS.contains(&name.as_str())) {
        return None;
    }
    if changes.is_empty() {
        return Some(map.clone());
    }
    // Of duplicate names the last one wins, and empty texts are dropped.
    let entries = map.iter().map(|(name, text)| (name.clone(), text.clone()));
    let entries = entries.chain(changes.iter().cloned());
    Some(Arc::new(MetaMap::new(entries, map.series())))
}

impl std::fmt::Debug for MemoizingEngine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoizingEngine")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
