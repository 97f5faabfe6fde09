//! Metadata of results: that of the message that started the expression, under the topic of the result.
//!
//! Messages of one tag share one map, and so do their results. The map also contains the series of the result, which is
//! that of its own topic and not that of the message.

use std::sync::Arc;

use thalweg_record::{MetaMap, Metadata, PerMapCache, Text, key};
use xxhash_rust::xxh3::xxh3_64;

/// Maps seen so far, for one thread.
#[derive(Default)]
pub(super) struct ResultMetadata {
    /// By the message's map and the expression.
    maps: PerMapCache<Arc<MetaMap>, usize>,
}

impl ResultMetadata {
    /// The metadata of an expression's result for a message with `meta`.
    pub fn of(&mut self, meta: &Metadata, expression: usize, topic: &Text) -> Metadata {
        let mut result = meta.with_shared(self.map(meta.shared_map(), expression, topic));
        let changes = meta.changes().filter(|(name, _)| *name != key::UMH_TOPIC);
        for (name, text) in changes {
            match text {
                Some(text) => result.set(name.clone(), text.clone()),
                None => result.remove(name),
            }
        }
        result
    }

    fn map(&mut self, map: &Arc<MetaMap>, expression: usize, topic: &Text) -> Arc<MetaMap> {
        if let Some(known) = self.maps.get(map, expression) {
            return known.clone();
        }
        let entries = map.iter().map(|(name, text)| (name.clone(), text.clone()));
        let own = (Text::new_static(key::UMH_TOPIC), topic.clone());
        let made = MetaMap::new(entries.chain([own]), Some(xxh3_64(topic.as_bytes())));
        let made = Arc::new(made);
        self.maps.insert(map, expression, made.clone(), made.memory_bytes());
        made
    }
}
