//! `cache.*`: values that scripts keep between messages, by key, shared by all threads of a processor.

use hashbrown::HashMap;
use parking_lot::RwLock;
use thalweg_record::{Text, Value};

/// A key could not be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cache holds {entries} entries, which is its limit; delete keys, or raise scripting.cache_entries")]
pub struct CacheFull {
    pub entries: usize,
}

/// Bounded in entries. Values are data (no functions), copied in and out.
#[derive(Debug)]
pub struct Cache {
    entries: RwLock<HashMap<Text, Value>>,
    entries_max: usize,
}

impl Cache {
    pub fn new(entries_max: usize) -> Cache {
        Cache {
            entries: RwLock::default(),
            entries_max,
        }
    }

    pub fn get(&self, key: &str) -> Option<Value> {
        self.entries.read().get(key).cloned()
    }

    pub fn exists(&self, key: &str) -> bool {
        self.entries.read().contains_key(key)
    }

    /// Sets a key; an existing one can always be replaced.
    pub fn set(&self, key: &str, value: Value) -> Result<(), CacheFull> {
        let mut entries = self.entries.write();
        if let Some(old) = entries.get_mut(key) {
            *old = value;
            return Ok(());
        }
        if entries.len() >= self.entries_max {
            return Err(CacheFull { entries: entries.len() });
        }
        entries.insert(key.into(), value);
        Ok(())
    }

    /// Makes all changes of a call, or none if their keys do not fit. `None` deletes.
    pub(crate) fn apply(&self, changes: Vec<(Text, Option<Value>)>) -> Result<(), CacheFull> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut entries = self.entries.write();
        fit(&entries, &changes, self.entries_max)?;

        for (key, value) in changes {
            match value {
                Some(value) => entries.insert(key, value),
                None => entries.remove(&key),
            };
        }
        Ok(())
    }

    /// Whether [`Cache::apply`] would make them.
    pub(crate) fn fits(&self, changes: &[(Text, Option<Value>)]) -> Result<(), CacheFull> {
        match changes.is_empty() {
            true => Ok(()),
            false => fit(&self.entries.read(), changes, self.entries_max),
        }
    }

    pub fn delete(&self, key: &str) {
        self.entries.write().remove(key);
    }

    #[cfg(test)]
    pub(crate) fn sorted(&self) -> Vec<(Text, Value)> {
        let mut entries: Vec<_> = self
            .entries
            .read()
            .iter()
            .map(|(key, value)| (key.clone(), value.clone()))
            .collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries
    }

    #[cfg(test)]
    pub(crate) fn become_like(&self, other: &Cache) {
        *self.entries.write() = other.entries.read().clone();
    }

    pub fn len(&self) -> usize {
        self.entries.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

fn fit(entries: &HashMap<Text, Value>, changes: &[(Text, Option<Value>)], entries_max: usize) -> Result<(), CacheFull> {
    let fresh = changes
        .iter()
        .filter(|(key, value)| value.is_some() && !entries.contains_key(key));
    match entries.len() + fresh.count() > entries_max {
        true => Err(CacheFull { entries: entries.len() }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_cache_refuses_new_keys_only() {
        let cache = Cache::new(1);
        cache.set("a", Value::I64(1)).unwrap();
        assert_eq!(cache.set("b", Value::Null), Err(CacheFull { entries: 1 }));
        cache.set("a", Value::I64(2)).unwrap();
        assert_eq!(cache.get("a"), Some(Value::I64(2)));
        cache.delete("a");
        cache.set("b", Value::Null).unwrap();
        assert!(cache.exists("b") && !cache.exists("a"));
    }
}
