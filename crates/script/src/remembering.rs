//! What scripts make of metadata that all messages of a tag share, remembered.
//!
//! A call is watched the first time that a script meets a shared map: which names it looks up, whether it looks at the payload,
//! whether it reaches outside. If all that it saw is in the shared map, every message over that map gets the same, without a call:
//! the map that came of it, or nothing. What a call sees decides what it sees next, so a call that would see the same would go the
//! same way; the script need not be understood for that. Results are maps again, so the stage behind remembers by them.
//!
//! Of a script that falls into two halves, one of metadata and one of the payload, the first is remembered alone.
//!
//! Whether the script may be watched at all, or knows the time and chance, is a look at its words ([`crate::scan`]). A
//! script that never turns out to be repeatable is not watched any more.

use std::sync::Arc;

use thalweg_record::{Bounds, ByMap, MadeOf, Message, MetaMap, Metadata, Text, Value, key};

use crate::{Engine, Failure, MetaReply, PayloadReply, Program, Remembered, Reply, Returned, Stats};

/// After so many maps without one that was worth it a script is not watched any more.
const TRIES_MAX: usize = 64;

/// An engine, and what its scripts made of maps.
pub struct Remembering {
    engine: Engine,
    /// By script; `None`: nothing is remembered of it.
    scripts: Vec<Option<Known>>,
    remembered: u64,
}

struct Known {
    maps: ByMap<Kept>,
    is_worth_it: bool,
}

/// A [`Remembered`] beside the map of which it is.
#[derive(Debug)]
enum Kept {
    Depends,
    Nothing,
    Over(MadeOf),
    Half(MadeOf),
    Truth(bool),
}

impl Kept {
    fn new(map: &Arc<MetaMap>, outcome: Remembered) -> Kept {
        match outcome {
            Remembered::Unknown | Remembered::Depends => Kept::Depends,
            Remembered::Nothing => Kept::Nothing,
            Remembered::Over(made) => Kept::Over(MadeOf::new(map, made)),
            Remembered::Half(made) => Kept::Half(MadeOf::new(map, made)),
            Remembered::Truth(truth) => Kept::Truth(truth),
        }
    }

    fn remembered(&self, map: &Arc<MetaMap>) -> Remembered {
        match self {
            Kept::Depends => Remembered::Depends,
            Kept::Nothing => Remembered::Nothing,
            Kept::Over(made) => Remembered::Over(made.get(map).clone()),
            Kept::Half(made) => Remembered::Half(made.get(map).clone()),
            Kept::Truth(truth) => Remembered::Truth(*truth),
        }
    }
}

impl Remembering {
    pub fn new(engine: Engine) -> Remembering {
        Remembering::within(engine, Bounds::default())
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// With those bounds for each script.
    fn within(engine: Engine, bounds: Bounds) -> Remembering {
        let known = || Known {
            maps: ByMap::within(bounds),
            is_worth_it: false,
        };
        let scripts = (0..engine.count()).map(|script| engine.is_repeatable(script).then(known));
        Remembering {
            scripts: scripts.collect(),
            engine,
            remembered: 0,
        }
    }

    /// What is at hand for a message.
    fn known(&mut self, script: usize, message: &Message) -> Remembered {
        if message.meta.is_changed() {
            return Remembered::Depends;
        }
        let known = self.remembered(script, message.meta.shared_map());
        let is_whole = !matches!(known, Remembered::Unknown | Remembered::Depends | Remembered::Half(_));
        self.remembered += u64::from(is_whole);
        known
    }

    fn remember(&mut self, script: usize, message: &Message, outcome: Remembered) {
        let Some(place) = self.scripts.get_mut(script) else {
            return;
        };
        let Some(known) = place else { return };
        known.is_worth_it |= !matches!(outcome, Remembered::Depends);
        if !known.is_worth_it && known.maps.len() >= TRIES_MAX {
            *place = None;
            return;
        }
        let bytes = match &outcome {
            Remembered::Over(map) | Remembered::Half(map) => map.memory_bytes(),
            _ => 0,
        };
        let map = message.meta.shared_map();
        known.maps.insert(map, (), Kept::new(map, outcome), bytes);
    }
}

/// The two halves of a call: what needs no QuickJS, and the rest. Together they are [`Program::run`] and [`Program::test`].
impl Remembering {
    /// By native code, or what is remembered. `None` if QuickJS has to run the call.
    pub(crate) fn run_native(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Option<Result<Returned, Failure>> {
        match self.known(script, message) {
            Remembered::Nothing => Some(Ok(Returned::Nothing)),
            Remembered::Over(map) => Some(Ok(Returned::Over(map))),
            Remembered::Depends | Remembered::Half(_) | Remembered::Truth(_) => {
                let (returned, _) = self.engine.run_native(script, message, origin)?;
                Some(Ok(returned))
            }
            Remembered::Unknown => {
                let traced = Ok(self.engine.run_native(script, message, origin)?);
                Some(self.learn(script, message, traced))
            }
        }
    }

    /// A call that [`Remembering::run_native`] has left.
    pub(crate) fn run_quickjs(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Result<Returned, Failure> {
        if !self.is_unknown(script, message) {
            return self.engine.run_quickjs(script, message, origin);
        }
        let traced = self.engine.trace(script, message, origin);
        self.learn(script, message, traced)
    }

    /// The same of a condition.
    pub(crate) fn test_native(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Option<Result<bool, Failure>> {
        match self.known(script, message) {
            Remembered::Truth(truth) => Some(Ok(truth)),
            Remembered::Unknown => {
                let traced = Ok(self.engine.test_native(script, message, origin)?);
                Some(self.learn_truth(script, message, traced))
            }
            _ => {
                let (truth, _) = self.engine.test_native(script, message, origin)?;
                Some(Ok(truth))
            }
        }
    }

    /// A condition that [`Remembering::test_native`] has left.
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

    /// Whether the script has not met the metadata of a message yet.
    fn is_unknown(&self, script: usize, message: &Message) -> bool {
        let of_tag = || self.remembered(script, message.meta.shared_map());
        !message.meta.is_changed() && matches!(of_tag(), Remembered::Unknown)
    }

    /// Remembers what came of a call that was watched.
    fn learn(
        &mut self,
        script: usize,
        message: &Message,
        traced: Result<(Returned, bool), Failure>,
    ) -> Result<Returned, Failure> {
        let map = message.meta.shared_map();
        let outcome = match &traced {
            Ok((returned, false)) => outcome_of(map, returned),
            Ok((_, true)) => self
                .engine
                .half(script, map)
                .map_or(Remembered::Depends, Remembered::Half),
            // A failure is told each time.
            Err(_) => Remembered::Depends,
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
            Ok((truth, false)) => Remembered::Truth(*truth),
            Ok((_, true)) | Err(_) => Remembered::Depends,
        };
        self.remember(script, message, outcome);
        Ok(traced?.0)
    }
}

impl Program for Remembering {
    fn run(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<Returned, Failure> {
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

    fn remembered(&self, script: usize, map: &Arc<MetaMap>) -> Remembered {
        match self.scripts.get(script) {
            Some(Some(known)) => match known.maps.get(map, ()) {
                Some(kept) => kept.remembered(map),
                None => Remembered::Unknown,
            },
            _ => Remembered::Depends,
        }
    }

    fn stats(&self) -> Stats {
        Stats {
            remembered: self.remembered,
            ..self.engine.stats()
        }
    }
}

/// What a result is to the next message over the same map.
fn outcome_of(map: &Arc<MetaMap>, returned: &Returned) -> Remembered {
    match returned {
        Returned::Nothing => Remembered::Nothing,
        Returned::One(Reply {
            payload: PayloadReply::Same,
            meta: MetaReply::Changes(changes),
        }) => over(map, changes).map_or(Remembered::Depends, Remembered::Over),
        Returned::One(Reply {
            payload: PayloadReply::Same,
            meta: MetaReply::Over(map),
        }) => Remembered::Over(map.clone()),
        _ => Remembered::Depends,
    }
}

/// The map with changes in it; `None` if these are of what a message has for itself.
fn over(map: &Arc<MetaMap>, changes: &[(Text, Text)]) -> Option<Arc<MetaMap>> {
    if changes.iter().any(|(name, _)| key::STAMPS.contains(&name.as_str())) {
        return None;
    }
    if changes.is_empty() {
        return Some(map.clone());
    }
    // Of names that are there twice the last one counts, and empty texts vanish.
    let entries = map.iter().map(|(name, text)| (name.clone(), text.clone()));
    let entries = entries.chain(changes.iter().cloned());
    Some(Arc::new(MetaMap::new(entries, map.series())))
}

impl std::fmt::Debug for Remembering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remembering")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
