//! Shares metadata maps made by a script between the messages of a tag.
//!
//! A script that reads the payload runs for each message, but what it writes to the metadata is mostly the same for all
//! messages of a tag. In that case the messages share one map, as they did before the script. Later stages recognise it
//! by its address, and nothing is allocated.

use std::sync::Arc;

use thalweg_record::{DerivedMap, Message, MetaMap, PerMapCache, Text, key};

use super::heap::Js;

/// Misses per tag before the miss rate is checked.
const MISSES_MIN: u64 = 1000;

type MetaChanges = [(Text, Option<Js>)];

struct MetaMapEntry {
    changes: Box<MetaChanges>,
    after: DerivedMap,
}

#[derive(Default)]
pub(super) struct MetaMapCache {
    /// By the message's original map.
    maps: PerMapCache<MetaMapEntry>,
    hits: u64,
    misses: u64,
    is_off: bool,
}

impl MetaMapCache {
    /// The resulting map, for a script whose first half runs once per map.
    pub fn of(&self, map: &Arc<MetaMap>) -> Option<Arc<MetaMap>> {
        self.maps.get(map, ()).map(|made| made.after.get(map).clone())
    }

    /// The resulting map of a message with these changes, if the same changes were applied to its map before.
    pub fn get(&mut self, message: &Message, changes: &MetaChanges) -> Option<Arc<MetaMap>> {
        if self.is_off || message.meta.is_changed() {
            return None;
        }
        let map = message.meta.shared_map();
        let made = self.maps.get(map, ())?;
        if !is_same(&made.changes, changes) {
            self.misses += 1;
            if self.misses >= MISSES_MIN && self.misses > self.hits {
                self.is_off = true;
                self.maps = PerMapCache::default();
            }
            return None;
        }
        self.hits += 1;
        Some(made.after.get(map).clone())
    }

    /// Stores changes with the texts that they produced.
    pub fn add(&mut self, message: &Message, changes: &MetaChanges, texts: &[(Text, Text)]) {
        let is_plain = |change: &(Text, Option<Js>)| !matches!(change.1, Some(Js::Object(_) | Js::Empty));
        let is_of_message = |name: &Text| key::STAMPS.contains(&name.as_str());
        let fits = changes.iter().all(is_plain) && !changes.iter().any(|(name, _)| is_of_message(name));
        if self.is_off || message.meta.is_changed() || !fits {
            return;
        }
        let before = message.meta.shared_map();
        let after = match texts {
            [] => before.clone(),
            texts => {
                let entries = before.iter().map(|(name, text)| (name.clone(), text.clone()));
                // Of duplicate names the last one wins, and empty texts are dropped.
                Arc::new(MetaMap::new(entries.chain(texts.iter().cloned()), before.series()))
            }
        };
        // The texts of the changes are shared with the resulting map.
        let bytes = size_of_val(changes) + after.memory_bytes();
        let made = MetaMapEntry {
            changes: changes.into(),
            after: DerivedMap::new(before, after),
        };
        self.maps.insert(before, (), made, bytes);
    }
}

fn is_same(a: &MetaChanges, b: &MetaChanges) -> bool {
    let value = |a: &Option<Js>, b: &Option<Js>| match (a, b) {
        (Some(Js::Text(a)), Some(Js::Text(b))) => a == b,
        (Some(Js::Number(a)), Some(Js::Number(b))) => a.to_bits() == b.to_bits(),
        (Some(Js::Bool(a)), Some(Js::Bool(b))) => a == b,
        (Some(Js::Undefined), Some(Js::Undefined)) | (Some(Js::Null), Some(Js::Null)) | (None, None) => true,
        _ => false,
    };
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0 == b.0 && value(&a.1, &b.1))
}
