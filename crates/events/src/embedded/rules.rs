//! The rules that hide messages: retention rules and deletions of streams. They are stored as documents and are all in
//! memory.
//!
//! A reader uses a snapshot of all rules. There can be as many deletions as there ever were streams, so snapshots share
//! their common parts ([`SharedMap`]).

use serde::{Deserialize, Serialize};

use super::shared_map::SharedMap;
use crate::error::{EventsError, Result};
use crate::names;
use crate::store::{Retention, RetentionTarget};

/// The prefix of the engine's own documents.
pub(super) const OWN: &str = "~";
pub(super) const OF_STREAM: &str = "~stream/";
pub(super) const OF_CATEGORY: &str = "~category/";
pub(super) const DELETED: &str = "~deleted/";

/// The deletion of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct StreamDeletion {
    /// Messages at lower positions are hidden.
    pub before: u64,
    /// Nothing can be stored in the stream any more.
    pub tombstone: bool,
}

#[derive(Clone, Debug, Default)]
pub(super) struct VisibilityRules {
    streams: SharedMap<Retention>,
    categories: SharedMap<Retention>,
    deleted: SharedMap<StreamDeletion>,
    /// For each category, the number of its streams with a rule or a deletion; streams with both count twice.
    concerned: SharedMap<u64>,
    /// Memory of all names, and of those in `deleted`.
    bytes: usize,
    deleted_bytes: usize,
}

/// Overhead of a name in one of the maps: its place in a leaf that may be half empty, its counters, its part of the
/// nodes.
const NAME_BYTES: usize = 144;

/// Approximate memory of a rule or deletion: one map entry, and possibly one for its category.
pub(super) fn weight(name: &str) -> usize {
    2 * NAME_BYTES + name.len() + names::category(name).len()
}

impl VisibilityRules {
    /// Approximate memory.
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

    /// Messages of the stream at lower positions were deleted.
    pub fn deleted_before(&self, stream: &str) -> u64 {
        self.deleted.get(stream).map_or(0, |deleted| deleted.before)
    }

    pub fn of(&self, of: RetentionTarget<'_>) -> Option<Retention> {
        match of {
            RetentionTarget::Stream(stream) => self.streams.get(stream).copied(),
            RetentionTarget::Category(category) => self.categories.get(category).copied(),
        }
    }

    /// Whether the same rule hides messages of a stream. Deletions are not compared, because they only ever hide more.
    pub fn rule_alike(&self, other: &VisibilityRules, stream: &str) -> bool {
        self.for_stream(stream) == other.for_stream(stream)
    }

    /// Streams that continue after a deletion, with their version at that time.
    pub fn deleted_versions(&self) -> impl Iterator<Item = (&str, u64)> {
        let going_on = self.deleted.iter().filter(|(_, deleted)| !deleted.tombstone);
        going_on.filter_map(|(stream, deleted)| Some((stream, deleted.before.checked_sub(1)?)))
    }

    /// The rule of the stream, else that of its category.
    pub fn for_stream(&self, stream: &str) -> Option<Retention> {
        let own = self.streams.get(stream);
        own.or_else(|| self.categories.get(names::category(stream))).copied()
    }

    pub fn concerns(&self, stream: &str) -> bool {
        self.deleted.contains(stream) || self.for_stream(stream).is_some()
    }

    /// Whether any rule or deletion affects the category or one of its streams. Subscriptions ask this on every read.
    pub fn concern_some_of(&self, category: &str) -> bool {
        self.categories.contains(category) || self.concerned.contains(category)
    }

    /// Streams with a rule or a deletion, sorted.
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

    /// Whether messages become hidden by age.
    pub fn has_ages(&self) -> bool {
        let mut rules = self.streams.iter().chain(self.categories.iter());
        rules.any(|(_, rule)| rule.max_age.is_some())
    }

    pub fn delete(&mut self, stream: &str, deleted: StreamDeletion) {
        let change = i64::from(self.deleted.insert(stream, deleted));
        self.weigh_deleted(stream, change);
        self.concern(stream, change);
    }

    /// Forgets all deletions after a clearing.
    pub fn forget_deleted(&mut self) {
        let deleted = std::mem::take(&mut self.deleted);
        deleted.names().for_each(|stream| self.concern(stream, -1));
        self.bytes -= std::mem::take(&mut self.deleted_bytes);
    }

    /// Applies a document with this name. Other names are ignored.
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

/// Returns the change in the number of names.
fn put<T: Clone + for<'a> Deserialize<'a>>(map: &mut SharedMap<T>, name: &str, content: Option<&[u8]>) -> Result<i64> {
    Ok(match content {
        Some(content) => {
            let value = serde_json::from_slice(content).map_err(|error| {
                EventsError::Damaged(format!(
                    "the rule of {name} has a form that this version does not know: {error}"
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
