//! Which messages are hidden: rules of retention, and deletions of streams. They are documents, and all in memory.
//!
//! Whoever looks has a copy of all rules as they were at one moment. There may be as many deletions as there ever were streams,
//! so copies share what they have in common ([`SharedMap`]).

use serde::{Deserialize, Serialize};

use super::shared_map::SharedMap;
use crate::error::{EventsError, Result};
use crate::names;
use crate::store::{Retention, RetentionTarget};

/// How the names of documents begin that are the engine's own.
pub(super) const OWN: &str = "~";
pub(super) const OF_STREAM: &str = "~stream/";
pub(super) const OF_CATEGORY: &str = "~category/";
pub(super) const DELETED: &str = "~deleted/";

/// Of a stream that was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamDeletion {
    /// Messages at lower positions are hidden.
    pub before: u64,
    /// Nothing is stored in it any more.
    pub tombstone: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct VisibilityRules {
    streams: SharedMap<Retention>,
    categories: SharedMap<Retention>,
    deleted: SharedMap<StreamDeletion>,
    /// By category, how many of its streams have a rule or are deleted; counted twice if they are both.
    concerned: SharedMap<u64>,
    /// Memory of all names, and of those that are deleted.
    bytes: usize,
    deleted_bytes: usize,
}

/// Of a name in one of the maps beside its text: its place in a leaf that may be half empty, its counters, its part of the nodes.
const NAME_BYTES: usize = 144;

/// What a rule or deletion takes, about: it is in one map, and its category may be in another.
pub(super) fn weight(name: &str) -> usize {
    2 * NAME_BYTES + name.len() + names::category(name).len()
}

impl VisibilityRules {
    /// Memory, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn has_rule_of(&self, of: RetentionTarget<'_>) -> bool {
        match of {
            RetentionTarget::Stream(stream) => self.streams.contains(stream),
            RetentionTarget::Category(category) => self.categories.contains(category),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.categories.is_empty() && self.deleted.is_empty()
    }

    pub fn is_tombstoned(&self, stream: &str) -> bool {
        self.deleted.get(stream).is_some_and(|deleted| deleted.tombstone)
    }

    pub fn is_deleted(&self, stream: &str) -> bool {
        self.deleted.contains(stream)
    }

    /// Messages of a stream at lower positions were deleted.
    pub fn deleted_before(&self, stream: &str) -> u64 {
        self.deleted.get(stream).map_or(0, |deleted| deleted.before)
    }

    pub fn of(&self, of: RetentionTarget<'_>) -> Option<Retention> {
        match of {
            RetentionTarget::Stream(stream) => self.streams.get(stream).copied(),
            RetentionTarget::Category(category) => self.categories.get(category).copied(),
        }
    }

    /// Whether the same rule hides messages of a stream. A deletion is not one: it only ever hides more.
    pub fn rule_alike(&self, other: &VisibilityRules, stream: &str) -> bool {
        self.for_stream(stream) == other.for_stream(stream)
    }

    /// Streams that go on behind a deletion, and the version that they had then.
    pub fn deleted_versions(&self) -> impl Iterator<Item = (&str, u64)> {
        let going_on = self.deleted.iter().filter(|(_, deleted)| !deleted.tombstone);
        going_on.filter_map(|(stream, deleted)| Some((stream, deleted.before.checked_sub(1)?)))
    }

    /// That of the stream, else that of its category.
    pub fn for_stream(&self, stream: &str) -> Option<Retention> {
        let own = self.streams.get(stream);
        own.or_else(|| self.categories.get(names::category(stream))).copied()
    }

    pub fn concerns(&self, stream: &str) -> bool {
        self.deleted.contains(stream) || self.for_stream(stream).is_some()
    }

    /// Whether one of them is of the category, or of a stream of it. Asked by each look of a subscription.
    pub fn concern_some_of(&self, category: &str) -> bool {
        self.categories.contains(category) || self.concerned.contains(category)
    }

    /// Streams that are named, in their order.
    pub fn named(&self) -> Vec<&str> {
        let mut named: Vec<&str> = self.streams.names().chain(self.deleted.names()).collect();
        named.sort_unstable();
        named.dedup();
        named
    }

    pub fn has_rule(&self, category: &str) -> bool {
        self.categories.contains(category)
    }

    pub fn categories(&self) -> impl Iterator<Item = &str> {
        self.categories.names()
    }

    /// Whether time alone hides messages.
    pub fn has_ages(&self) -> bool {
        let mut rules = self.streams.iter().chain(self.categories.iter());
        rules.any(|(_, rule)| rule.max_age.is_some())
    }

    pub fn delete(&mut self, stream: &str, deleted: StreamDeletion) {
        let change = i64::from(self.deleted.insert(stream, deleted));
        self.weigh_deleted(stream, change);
        self.concern(stream, change);
    }

    /// Everything was removed.
    pub fn forget_deleted(&mut self) {
        let deleted = std::mem::take(&mut self.deleted);
        deleted.names().for_each(|stream| self.concern(stream, -1));
        self.bytes -= std::mem::take(&mut self.deleted_bytes);
    }

    /// As a document of this name says it; one that is none of these says nothing.
    pub fn apply(&mut self, name: &str, content: Option<&[u8]>) -> Result<()> {
        if let Some(stream) = name.strip_prefix(OF_STREAM) {
            let change = put(&mut self.streams, stream, content)?;
            self.weigh(stream, change);
            self.concern(stream, change);
        } else if let Some(category) = name.strip_prefix(OF_CATEGORY) {
            let change = put(&mut self.categories, category, content)?;
            self.weigh(category, change);
        } else if let Some(stream) = name.strip_prefix(DELETED) {
            let change = put(&mut self.deleted, stream, content)?;
            self.weigh_deleted(stream, change);
            self.concern(stream, change);
        }
        Ok(())
    }

    fn weigh(&mut self, name: &str, change: i64) {
        let change = change * weight(name) as i64;
        self.bytes = self.bytes.saturating_add_signed(change as isize);
    }

    fn weigh_deleted(&mut self, name: &str, change: i64) {
        self.weigh(name, change);
        let change = change * weight(name) as i64;
        self.deleted_bytes = self.deleted_bytes.saturating_add_signed(change as isize);
    }

    fn concern(&mut self, stream: &str, change: i64) {
        if change == 0 {
            return;
        }
        let category = names::category(stream);
        let count = self
            .concerned
            .get(category)
            .copied()
            .unwrap_or(0)
            .saturating_add_signed(change);
        match count {
            0 => self.concerned.remove(category),
            _ => self.concerned.insert(category, count),
        };
    }
}

/// Returns how many names more there are now.
fn put<T: Clone + for<'a> Deserialize<'a>>(map: &mut SharedMap<T>, name: &str, content: Option<&[u8]>) -> Result<i64> {
    Ok(match content {
        Some(content) => {
            let value = serde_json::from_slice(content).map_err(|error| {
                EventsError::Damaged(format!(
                    "the rule of {name} is in no form that this version knows: {error}"
                ))
            })?;
            i64::from(map.insert(name, value))
        }
        None => -i64::from(map.remove(name)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_category_is_concerned_as_long_as_one_of_its_streams_is() {
        let mut rules = VisibilityRules::default();
        let deleted = StreamDeletion {
            before: 3,
            tombstone: false,
        };
        let content = serde_json::to_vec(&deleted).unwrap();
        let rule = serde_json::to_vec(&Retention::default()).unwrap();
        rules.delete("a-1", deleted);
        rules.delete("a-1", deleted);
        rules.apply("~deleted/a-2", Some(&content)).unwrap();
        rules.apply("~stream/b-1", Some(&rule)).unwrap();
        rules.apply("~stream/b-1", Some(&rule)).unwrap();
        let concerned = |rules: &VisibilityRules| ["a", "b", "c"].map(|category| rules.concern_some_of(category));
        assert_eq!(concerned(&rules), [true, true, false]);
        rules.apply("~stream/b-1", None).unwrap();
        rules.apply("~stream/b-1", None).unwrap();
        rules.apply("~category/c", Some(&rule)).unwrap();
        assert_eq!(concerned(&rules), [true, false, true]);
        rules.forget_deleted();
        assert_eq!(concerned(&rules), [false, false, true]);
        assert!(!rules.concerns("a-1") && rules.concerns("c-9") && rules.named().is_empty());
    }
}
