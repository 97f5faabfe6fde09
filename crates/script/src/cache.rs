//! `cache.*`: values that scripts keep between messages, by key, shared by all threads of a processor.
//!
//! The cache is bounded in entries and in bytes. Bytes count keys and values only, because the entry limit already
//! bounds the table's overhead; otherwise the default limit of entries would never be reached.

use hashbrown::HashMap;
use parking_lot::RwLock;
use smallvec::SmallVec;
use thalweg_record::{Text, Value};

/// A value could not be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheFull {
    #[error("the cache holds {entries} entries, which is its limit; delete keys, or raise scripting.cache_entries")]
    Entries { entries: usize },
    #[error(
        "the cache would hold {bytes} bytes, more than {bytes_max}; delete keys, keep less, or raise scripting.memory"
    )]
    Bytes { bytes: usize, bytes_max: usize },
}

/// Values are data (no functions), copied in and out. The byte limit belongs to the engines, which pass it with each
/// change.
#[derive(Debug)]
pub struct Cache {
    held: RwLock<CacheEntries>,
    entries_max: usize,
}

#[derive(Clone, Debug, Default)]
struct CacheEntries {
    entries: HashMap<Text, Value>,
    /// Bytes of keys and values.
    bytes: usize,
}

impl Cache {
    pub fn new(entries_max: usize) -> Cache {
        Cache {
            held: RwLock::default(),
            entries_max,
        }
    }

    pub fn get(&self, key: &str) -> Option<Value> {
        self.held.read().entries.get(key).cloned()
    }

    pub fn exists(&self, key: &str) -> bool {
        self.held.read().entries.contains_key(key)
    }

    /// Sets a key. An existing value can always be replaced by one that is not larger.
    pub fn set(&self, key: &str, value: Value, bytes_max: usize) -> Result<(), CacheFull> {
        let changes = [(key.into(), Some(value))];
        let sizes = sizes_of(&changes);
        let mut held = self.held.write();
        held.fit(&changes, &sizes, self.entries_max, bytes_max)?;
        let [(key, value)] = changes;
        let gone = held.change(key, value);
        drop(held);
        drop(gone);
        Ok(())
    }

    /// Applies all changes of a call, or none if one of them does not fit in its turn. `None` deletes.
    pub(crate) fn apply(&self, changes: Vec<(Text, Option<Value>)>, bytes_max: usize) -> Result<(), CacheFull> {
        if changes.is_empty() {
            return Ok(());
        }
        // Large values are measured and freed outside of the lock.
        let sizes = sizes_of(&changes);
        let mut held = self.held.write();
        held.fit(&changes, &sizes, self.entries_max, bytes_max)?;
        let gone: SmallVec<[Option<Value>; 4]> = changes
            .into_iter()
            .map(|(key, value)| held.change(key, value))
            .collect();
        drop(held);
        drop(gone);
        Ok(())
    }

    /// Whether [`Cache::apply`] would succeed.
    pub(crate) fn fits(&self, changes: &[(Text, Option<Value>)], bytes_max: usize) -> Result<(), CacheFull> {
        match changes.is_empty() {
            true => Ok(()),
            false => {
                let sizes = sizes_of(changes);
                self.held.read().fit(changes, &sizes, self.entries_max, bytes_max)
            }
        }
    }

    pub fn delete(&self, key: &str) {
        let gone = self.held.write().change(key.into(), None);
        drop(gone);
    }

    #[cfg(test)]
    pub(crate) fn sorted(&self) -> Vec<(Text, Value)> {
        let held = self.held.read();
        let mut entries: Vec<_> = held.entries.clone().into_iter().collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries
    }

    #[cfg(test)]
    pub(crate) fn become_like(&self, other: &Cache) {
        *self.held.write() = other.held.read().clone();
    }

    pub fn len(&self) -> usize {
        self.held.read().entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn size_of_entry(key: &str, value: &Value) -> usize {
    key.len() + value.heap_bytes()
}

/// The bytes of each entry that the changes set.
fn sizes_of(changes: &[(Text, Option<Value>)]) -> SmallVec<[Option<usize>; 4]> {
    let sizes = changes
        .iter()
        .map(|(key, value)| value.as_ref().map(|value| size_of_entry(key, value)));
    sizes.collect()
}

impl CacheEntries {
    /// Whether the changes fit when applied in order. A call makes few, so the last one of a key is found by a scan.
    fn fit(
        &self,
        changes: &[(Text, Option<Value>)],
        sizes: &[Option<usize>],
        entries_max: usize,
        bytes_max: usize,
    ) -> Result<(), CacheFull> {
        let (mut entries, mut bytes) = (self.entries.len(), self.bytes);
        for (i, ((key, _), size)) in changes.iter().zip(sizes).enumerate() {
            let earlier = changes.iter().zip(sizes).take(i).rev().find(|((k, _), _)| k == key);
            let old = match earlier {
                Some((_, size)) => *size,
                None => self.entries.get(key).map(|value| size_of_entry(key, value)),
            };
            if let (Some(_), None) = (size, old)
                && entries >= entries_max
            {
                return Err(CacheFull::Entries { entries });
            }
            entries = entries + usize::from(size.is_some()) - usize::from(old.is_some());
            bytes = (bytes + size.unwrap_or(0)).saturating_sub(old.unwrap_or(0));
            // A change that shrinks an entry is always allowed.
            if bytes > bytes_max && size > &old {
                return Err(CacheFull::Bytes { bytes, bytes_max });
            }
        }
        Ok(())
    }

    /// Applies a change, and returns the previous value.
    fn change(&mut self, key: Text, value: Option<Value>) -> Option<Value> {
        let key_bytes = key.len();
        let (added, old) = match value {
            Some(value) => (size_of_entry(&key, &value), self.entries.insert(key, value)),
            None => (0, self.entries.remove(&key)),
        };
        let removed = old.as_ref().map_or(0, |old| key_bytes + old.heap_bytes());
        self.bytes = (self.bytes + added).saturating_sub(removed);
        old
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 1 << 20;

    /// A value that takes this many bytes under a key of one letter.
    fn text(bytes: usize) -> Value {
        Value::text("x".repeat(bytes - 17))
    }

    #[test]
    fn a_full_cache_refuses_new_keys_only() {
        let cache = Cache::new(1);
        cache.set("a", Value::I64(1), ROOM).unwrap();
        assert_eq!(
            cache.set("b", Value::Null, ROOM),
            Err(CacheFull::Entries { entries: 1 })
        );
        cache.set("a", Value::I64(2), ROOM).unwrap();
        assert_eq!(cache.get("a"), Some(Value::I64(2)));
        cache.delete("a");
        cache.set("b", Value::Null, ROOM).unwrap();
        assert!(cache.exists("b") && !cache.exists("a"));
    }

    #[test]
    fn keys_and_values_have_a_bound_in_bytes() {
        let cache = Cache::new(1000);
        let full = |bytes| Err(CacheFull::Bytes { bytes, bytes_max: 1000 });
        cache.set("a", text(600), 1000).unwrap();
        assert_eq!(cache.set("b", text(401), 1000), full(1001));
        cache.set("b", text(300), 1000).unwrap();
        assert_eq!(cache.set("b", text(401), 1000), full(1001), "what grows is refused");
        cache.set("b", text(400), 1000).unwrap();
        cache.set("b", text(200), 1000).unwrap();
        assert_eq!(
            cache.set(&"k".repeat(201), Value::Null, 1000),
            full(1001),
            "a key counts"
        );
        // Above the limit, entries may shrink.
        assert!(cache.set("c", text(50), 500).is_err());
        cache.set("a", text(500), 500).unwrap();
        cache.delete("a");
        cache.set("b", text(1001), 1000).unwrap_err();
        cache.delete("b");
        for i in 0..1000 {
            cache.set("a", text(17 + i % 900), 1000).unwrap();
        }
        cache.delete("a");
        assert_eq!(cache.held.read().bytes, 0, "nothing is counted that is not there");
    }

    #[test]
    fn the_changes_of_a_call_fit_in_their_turn_or_none_is_made() {
        let text = |bytes| Some(text(bytes));
        let changes = |of: &[(&str, Option<Value>)]| -> Vec<(Text, Option<Value>)> {
            of.iter().map(|(key, value)| ((*key).into(), value.clone())).collect()
        };
        let cache = Cache::new(2);
        cache
            .apply(changes(&[("a", text(500)), ("a", None), ("b", text(900))]), 1000)
            .unwrap();
        // A value deleted first makes room for the new one; deleted last, it does not.
        let in_time = changes(&[("b", None), ("c", text(900)), ("c", text(100)), ("d", text(800))]);
        let too_late = changes(&[("c", text(900)), ("b", None)]);
        assert!(cache.fits(&too_late, 1000).is_err() && cache.apply(too_late, 1000).is_err());
        assert_eq!(cache.len(), 1);
        assert!(cache.fits(&in_time, 1000).is_ok() && cache.apply(in_time, 1000).is_ok());
        assert_eq!((cache.len(), cache.held.read().bytes), (2, 900));
        let third = changes(&[("c", None), ("e", text(50)), ("f", text(50))]);
        assert_eq!(cache.apply(third, 1000), Err(CacheFull::Entries { entries: 2 }));
    }
}
