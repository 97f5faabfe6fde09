//! Caches whole results for tags whose scripts read only the metadata that all messages of the tag share. One of the
//! scripts may also compute the payload from the payload; that part runs for each message.
//!
//! The result of each script for such metadata is memoized separately (see `MemoizingEngine` in the crate `script`).
//! This cache follows the chain of scripts once per tag, including the check of the fields and the topic. So the next
//! message of the tag costs one look-up and goes straight to its value and time.

use std::sync::Arc;

use thalweg_record::{DerivedMap, Message, MetaMap, PerMapCache};
use thalweg_script::{MemoizedOutcome, Program};

use super::PipelineStep;
use crate::results::{MetadataCache, SampleHints};

/// After this many maps without a cacheable result, the cache gives up.
const TRIES_MAX: usize = 64;

/// The result for the messages of a tag.
pub(super) struct CachedResult {
    /// The metadata after the scripts, for messages whose value fails.
    pub scripted: DerivedMap,
    pub map: Arc<MetaMap>,
    pub hints: SampleHints,
    /// Number of scripts that need not run.
    pub scripts: u64,
    /// The script that computes the payload.
    pub computes: Option<usize>,
}

#[derive(Default)]
pub(super) struct ResultCache {
    /// `None` if a script depends on more than the map.
    maps: PerMapCache<Option<CachedResult>>,
    is_worth_it: bool,
    is_off: bool,
}

impl ResultCache {
    /// The result for a message, if it is cached or follows from memoized results.
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

    /// Follows the scripts through their memoized results. `None` if one of them has not seen the map yet.
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

/// The end of a chain of scripts.
struct ScriptChainResult {
    map: Arc<MetaMap>,
    scripts: u64,
    computes: Option<usize>,
}

/// The map after all steps; `Some(None)` if one of them depends on more, or filters.
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
