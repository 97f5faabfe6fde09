//! Whole results that are at hand: of tags for which every script looks at nothing but the metadata that their messages share.
//!
//! What each script makes of such metadata is remembered one by one (see `Remembering` of the crate `script`). Here the chain of them
//! is followed once for a tag, check of the fields and topic included, so that its next message costs one look-up and goes
//! straight to its value and time.

use std::sync::Arc;

use thalweg_record::{ByMap, Message, MetaMap};
use thalweg_script::{Program, Remembered};

use super::Step;
use crate::results::{Hints, Results};

/// After so many maps without one whose result can be kept, none are looked for any more.
const TRIES_MAX: usize = 64;

/// What the messages of a tag leave with.
pub(super) struct Whole {
    /// Behind the scripts, for those whose value fails.
    pub scripted: Arc<MetaMap>,
    pub map: Arc<MetaMap>,
    pub hints: Hints,
    /// Scripts that need not run.
    pub scripts: u64,
}

#[derive(Default)]
pub(super) struct AtHand {
    /// `None` where scripts look at more.
    maps: ByMap<Option<Whole>>,
    is_worth_it: bool,
    is_off: bool,
}

impl AtHand {
    /// What a message leaves with, if that is known or follows from what is.
    pub fn of(
        &mut self,
        message: &Message,
        steps: &[Step],
        program: &mut dyn Program,
        results: &mut Results,
    ) -> Option<&Whole> {
        if self.is_off || message.meta.is_changed() {
            return None;
        }
        let map = message.meta.shared_map();
        if self.maps.get(map, ()).is_none() {
            self.learn(map, steps, program, results)?;
        }
        self.maps.get(map, ())?.as_ref()
    }

    /// Follows the scripts through what is remembered of them. `None` if one of them has not met the map yet.
    fn learn(
        &mut self,
        map: &Arc<MetaMap>,
        steps: &[Step],
        program: &mut dyn Program,
        results: &mut Results,
    ) -> Option<()> {
        let whole = match follow(map, steps, program)? {
            Some((scripted, scripts)) => results.of_map(&scripted).map(|(map, hints)| Whole {
                scripted,
                map,
                hints,
                scripts,
            }),
            None => None,
        };
        self.is_worth_it |= whole.is_some();
        if !self.is_worth_it && self.maps.len() >= TRIES_MAX {
            self.is_off = true;
            self.maps = ByMap::default();
            return None;
        }
        let bytes = whole
            .as_ref()
            .map_or(0, |whole| whole.scripted.memory_bytes() + whole.map.memory_bytes());
        self.maps.insert(map, (), whole, bytes);
        Some(())
    }
}

/// The map behind all steps with how many scripts that took; `Some(None)` if one of them depends on more, or filters.
fn follow(map: &Arc<MetaMap>, steps: &[Step], program: &mut dyn Program) -> Option<Option<(Arc<MetaMap>, u64)>> {
    let mut map = map.clone();
    let mut scripts = 0;
    for step in steps {
        let stage = match step {
            Step::Run(stage) => stage,
            Step::When { condition, then, .. } => match program.remembered(*condition, &map) {
                Remembered::Unknown => return None,
                Remembered::Truth(true) => {
                    scripts += 1;
                    then
                }
                Remembered::Truth(false) => {
                    scripts += 1;
                    continue;
                }
                _ => return Some(None),
            },
        };
        match program.remembered(stage.script, &map) {
            Remembered::Unknown => return None,
            Remembered::Over(next) => {
                scripts += 1;
                map = next;
            }
            _ => return Some(None),
        }
    }
    Some(Some((map, scripts)))
}
