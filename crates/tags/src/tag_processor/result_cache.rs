//! Whole results that are at hand: of tags for which every script looks at nothing but the metadata that their messages share. One of
//! them may compute the payload from the payload; that much of it is run for each message.
//!
//! What each script makes of such metadata is remembered one by one (see `MemoizingEngine` of the crate `script`). Here the chain of them
//! is followed once for a tag, check of the fields and topic included, so that its next message costs one look-up and goes
//! straight to its value and time.

use std::sync::Arc;

use thalweg_record::{DerivedMap, Message, MetaMap, PerMapCache};
use thalweg_script::{MemoizedOutcome, Program};

use super::PipelineStep;
use crate::results::{MetadataCache, SampleHints};

/// After so many maps without one whose result can be kept, none are looked for any more.
const TRIES_MAX: usize = 64;

/// What the messages of a tag leave with.
pub(super) struct CachedResult {
    /// Behind the scripts, for those whose value fails.
    pub scripted: DerivedMap,
    pub map: Arc<MetaMap>,
    pub hints: SampleHints,
    /// Scripts that need not run.
    pub scripts: u64,
    /// The script that computes the payload.
    pub computes: Option<usize>,
}

#[derive(Default)]
pub(super) struct ResultCache {
    /// `None` where scripts look at more.
    maps: PerMapCache<Option<CachedResult>>,
    is_worth_it: bool,
    is_off: bool,
}

impl ResultCache {
    /// What a message leaves with, if that is known or follows from what is.
    pub fn of(
        &mut self,
        message: &Message,
        steps: &[PipelineStep],
        program: &mut dyn Program,
        results: &mut MetadataCache,
    ) -> Option<&CachedResult> {
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
        map_of_tag: &Arc<MetaMap>,
        steps: &[PipelineStep],
        program: &mut dyn Program,
        results: &mut MetadataCache,
    ) -> Option<()> {
        let whole = match follow(map_of_tag, steps, program)? {
            Some(followed) => results.of_map(&followed.map).map(|(map, hints)| CachedResult {
                scripted: DerivedMap::new(map_of_tag, followed.map),
                map,
                hints,
                scripts: followed.scripts,
                computes: followed.computes,
            }),
            None => None,
        };
        self.is_worth_it |= whole.is_some();
        if !self.is_worth_it && self.maps.len() >= TRIES_MAX {
            self.is_off = true;
            self.maps = PerMapCache::default();
            return None;
        }
        let bytes = whole.as_ref().map_or(0, |whole| {
            whole.scripted.get(map_of_tag).memory_bytes() + whole.map.memory_bytes()
        });
        self.maps.insert(map_of_tag, (), whole, bytes);
        Some(())
    }
}

/// Where a map came to.
struct ScriptChainResult {
    map: Arc<MetaMap>,
    scripts: u64,
    computes: Option<usize>,
}

/// The map behind all steps; `Some(None)` if one of them depends on more, or filters.
fn follow(map: &Arc<MetaMap>, steps: &[PipelineStep], program: &mut dyn Program) -> Option<Option<ScriptChainResult>> {
    let mut followed = ScriptChainResult {
        map: map.clone(),
        scripts: 0,
        computes: None,
    };
    for step in steps {
        let stage = match step {
            PipelineStep::Run(stage) => stage,
            PipelineStep::When { condition, then, .. } => match program.remembered(*condition, &followed.map) {
                MemoizedOutcome::Unknown => return None,
                MemoizedOutcome::Truth(true) => {
                    followed.scripts += 1;
                    then
                }
                MemoizedOutcome::Truth(false) => {
                    followed.scripts += 1;
                    continue;
                }
                _ => return Some(None),
            },
        };
        match program.remembered(stage.script, &followed.map) {
            MemoizedOutcome::Unknown => return None,
            MemoizedOutcome::Over(next) => {
                followed.scripts += 1;
                followed.map = next;
            }
            MemoizedOutcome::Half(next) if followed.computes.is_none() => {
                followed.computes = Some(stage.script);
                followed.map = next;
            }
            _ => return Some(None),
        }
    }
    Some(Some(followed))
}
