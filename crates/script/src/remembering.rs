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

impl Program for Remembering {
    fn run(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<Returned, Failure> {
        match self.known(script, message) {
            Remembered::Nothing => return Ok(Returned::Nothing),
            Remembered::Over(map) => return Ok(Returned::Over(map)),
            Remembered::Depends | Remembered::Half(_) | Remembered::Truth(_) => {
                return self.engine.run(script, message, origin);
            }
            Remembered::Unknown => {}
        }
        let traced = self.engine.trace(script, message, origin);
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

    fn test(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<bool, Failure> {
        match self.known(script, message) {
            Remembered::Truth(truth) => return Ok(truth),
            Remembered::Unknown => {}
            _ => return self.engine.test(script, message, origin),
        }
        let traced = self.engine.trace_test(script, message, origin);
        let outcome = match &traced {
            Ok((truth, false)) => Remembered::Truth(*truth),
            Ok((_, true)) | Err(_) => Remembered::Depends,
        };
        self.remember(script, message, outcome);
        Ok(traced?.0)
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
