//! A bounded cache by key: what was made for a tag, a topic or a set of headers serves the next message that has the
//! same.
//!
//! It is bounded in entries and in bytes, and what fits stays. Beyond a bound, entries go one by one until the new one
//! fits: of four that lie next to each other at a random position, the first that no look-up has found; if all were
//! found, all four count as not found from now on, and the first of them goes. So what is in use outlives what came
//! once, and of keys that come in turns and do not all fit many are found each time, whereas LRU order would evict each
//! of them just before it comes again. Nothing is ever cleared as a whole, after which everything would be made anew at
//! once.
//!
//! A look-up writes nothing but the mark that its entry was found, and that only once. Entries lie in the order in
//! which they came, so keys that recur in this order are read from adjacent memory.

use std::hash::{BuildHasher as _, Hash};
use std::sync::atomic::{AtomicBool, Ordering};

use hashbrown::{DefaultHashBuilder, Equivalent, HashTable};

/// The entries among which an eviction chooses. With fewer, entries in use are evicted for new ones; with more, the
/// cache takes longer to follow when other keys come into use.
const CANDIDATES: usize = 4;

/// Limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheLimits {
    pub entries_max: usize,
    /// Approximate bytes of keys and values; what is also used elsewhere counts in full.
    pub bytes_max: usize,
}

impl Default for CacheLimits {
    /// The expected maximum of tags per thread, with 2 KiB for each: metadata of some twenty keys, before and after.
    fn default() -> CacheLimits {
        CacheLimits {
            entries_max: 1 << 17,
            bytes_max: 256 << 20,
        }
    }
}

impl CacheLimits {
    /// For keys and values whose size is bounded anyway.
    pub const fn entries(entries_max: usize) -> CacheLimits {
        CacheLimits {
            entries_max,
            bytes_max: usize::MAX,
        }
    }

    /// For entries whose number their memory limits.
    pub const fn bytes(bytes_max: usize) -> CacheLimits {
        CacheLimits {
            entries_max: usize::MAX,
            bytes_max,
        }
    }
}

/// Values by key, within bounds. An entry may go with any insertion, so it must be possible to make its value again, or
/// to do without it.
///
/// Look-ups accept any form of the key that hashes as the key does and equals it, such as `str` for a text.
#[derive(Debug)]
pub struct Remembered<K, V> {
    /// In the order in which they came, except that the last one takes the position of one that goes.
    entries: Vec<RememberedEntry<K, V>>,
    /// The positions of the entries, by the hashes of their keys.
    positions: HashTable<u32>,
    hasher: DefaultHashBuilder,
    limits: CacheLimits,
    bytes: usize,
    /// The state of the generator of random positions. It always begins with the same, so that a repeated run evicts
    /// the same entries.
    dice: u64,
}

#[derive(Debug)]
struct RememberedEntry<K, V> {
    key: K,
    value: V,
    bytes: usize,
    /// Whether a look-up has found it since it came, or since it was spared by an eviction.
    is_found: AtomicBool,
}

impl<K, V> Remembered<K, V> {
    /// The size of an entry in both tables, without the memory that key and value refer to.
    const ENTRY_BYTES: usize = size_of::<RememberedEntry<K, V>>() + 2 * (size_of::<u32>() + 1);

    pub fn within(limits: CacheLimits) -> Remembered<K, V> {
        let entries_max = limits.entries_max.min(u32::MAX as usize);
        Remembered {
            entries: Vec::new(),
            positions: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            limits: CacheLimits { entries_max, ..limits },
            bytes: 0,
            dice: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The bytes of all entries, as they were stated at their insertion, with the size of the entries themselves.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn clear(&mut self) {
        self.entries.clear();
        self.positions.clear();
        self.bytes = 0;
    }

    /// The position of the next entry to go; `None` if there are no entries.
    fn choose(&mut self) -> Option<usize> {
        // Knuth's generator MMIX. Its upper half is used, because its lower bits have short periods.
        self.dice = self
            .dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let len = self.entries.len();
        let start = (((self.dice >> 32) * len as u64) >> 32) as usize;
        let mut candidates = (start..len).chain(0..start).take(CANDIDATES);
        let is_free = |position: &usize| {
            let entry = self.entries.get(*position);
            entry.is_some_and(|entry| !entry.is_found.load(Ordering::Relaxed))
        };
        if let Some(free) = candidates.clone().find(is_free) {
            return Some(free);
        }
        for position in candidates.clone() {
            if let Some(entry) = self.entries.get_mut(position) {
                *entry.is_found.get_mut() = false;
            }
        }
        candidates.next()
    }
}

impl<K: Eq + Hash, V> Remembered<K, V> {
    #[inline]
    pub fn get<Q>(&self, key: &Q) -> Option<&V>
    where
        Q: Equivalent<K> + Hash + ?Sized,
    {
        let entry = self.entries.get(self.position(key)?)?;
        if !entry.is_found.load(Ordering::Relaxed) {
            entry.is_found.store(true, Ordering::Relaxed);
        }
        Some(&entry.value)
    }

    pub fn get_mut<Q>(&mut self, key: &Q) -> Option<&mut V>
    where
        Q: Equivalent<K> + Hash + ?Sized,
    {
        let position = self.position(key)?;
        let entry = self.entries.get_mut(position)?;
        *entry.is_found.get_mut() = true;
        Some(&mut entry.value)
    }

    /// The value of a key. If there is none, `make` returns one, with its key and the bytes as in
    /// [`Remembered::insert`].
    pub fn get_or_insert_with<Q>(&mut self, key: &Q, make: impl FnOnce() -> (K, V, usize)) -> V
    where
        Q: Equivalent<K> + Hash + ?Sized,
        V: Clone,
    {
        if let Some(value) = self.get(key) {
            return value.clone();
        }
        let (key, value, bytes) = make();
        self.insert(key, value.clone(), bytes);
        value
    }

    /// Stores a value, replacing an earlier one. `bytes`: the memory that key and value refer to, without their own
    /// size. A value that exceeds the limits alone is not stored, and the earlier one is gone, too.
    pub fn insert(&mut self, key: K, value: V, bytes: usize) {
        let before = self.take(&key);
        let bytes = bytes.saturating_add(Self::ENTRY_BYTES);
        if self.make_room(bytes) {
            let was_found = before.is_some_and(|before| before.is_found.into_inner());
            self.put(RememberedEntry {
                key,
                value,
                bytes,
                is_found: AtomicBool::new(was_found),
            });
        }
    }

    /// The value of a key, to whose memory `bytes` are added. `None` if there is no value, or none any more because it
    /// would exceed the limits alone.
    pub fn grow<Q>(&mut self, key: &Q, bytes: usize) -> Option<&mut V>
    where
        Q: Equivalent<K> + Hash + ?Sized,
    {
        // It is taken out, so that it does not make room for itself.
        let mut entry = self.take(key)?;
        entry.bytes = entry.bytes.saturating_add(bytes);
        if !self.make_room(entry.bytes) {
            return None;
        }
        self.put(entry)
    }

    pub fn remove<Q>(&mut self, key: &Q) -> Option<V>
    where
        Q: Equivalent<K> + Hash + ?Sized,
    {
        self.take(key).map(|entry| entry.value)
    }

    /// Removes the entries for which `keep` returns `false`, in time proportional to all.
    pub fn retain(&mut self, mut keep: impl FnMut(&K, &mut V) -> bool) {
        let before = self.entries.len();
        self.entries.retain_mut(|entry| keep(&entry.key, &mut entry.value));
        if self.entries.len() == before {
            return;
        }
        self.bytes = self.entries.iter().map(|entry| entry.bytes).sum();
        self.positions.clear();
        for (position, entry) in self.entries.iter().enumerate() {
            let hash = self.hasher.hash_one(&entry.key);
            let hash_of = |position: &u32| hash_at(&self.entries, &self.hasher, *position);
            self.positions.insert_unique(hash, position as u32, hash_of);
        }
    }

    #[inline]
    fn position<Q>(&self, key: &Q) -> Option<usize>
    where
        Q: Equivalent<K> + Hash + ?Sized,
    {
        if self.entries.is_empty() {
            return None;
        }
        let is_it = |position: &u32| {
            let entry = self.entries.get(*position as usize);
            entry.is_some_and(|entry| key.equivalent(&entry.key))
        };
        let position = self.positions.find(self.hasher.hash_one(key), is_it)?;
        Some(*position as usize)
    }

    /// Lets entries go until one with these bytes fits. `false` if it exceeds the limits alone.
    fn make_room(&mut self, bytes: usize) -> bool {
        let CacheLimits { entries_max, bytes_max } = self.limits;
        if entries_max == 0 || bytes > bytes_max {
            return false;
        }
        while self.entries.len() >= entries_max || self.bytes > bytes_max - bytes {
            let Some(position) = self.choose() else { break };
            self.take_at(position);
        }
        true
    }

    /// Adds an entry with a new key, for which there is room. Returns its value.
    fn put(&mut self, entry: RememberedEntry<K, V>) -> Option<&mut V> {
        let hash = self.hasher.hash_one(&entry.key);
        // `within` limits their number.
        let position = self.entries.len() as u32;
        self.bytes += entry.bytes;
        self.entries.push(entry);
        let hash_of = |position: &u32| hash_at(&self.entries, &self.hasher, *position);
        self.positions.insert_unique(hash, position, hash_of);
        self.entries.last_mut().map(|entry| &mut entry.value)
    }

    fn take<Q>(&mut self, key: &Q) -> Option<RememberedEntry<K, V>>
    where
        Q: Equivalent<K> + Hash + ?Sized,
    {
        let position = self.position(key)?;
        self.take_at(position)
    }

    fn take_at(&mut self, position: usize) -> Option<RememberedEntry<K, V>> {
        let hash = self.hasher.hash_one(&self.entries.get(position)?.key);
        if let Ok(own) = self.positions.find_entry(hash, |at| *at as usize == position) {
            own.remove();
        }
        let entry = self.entries.swap_remove(position);
        self.bytes -= entry.bytes;
        // The last entry is at this position now, unless it was the one that went.
        let last = self.entries.len();
        if let Some(moved) = self.entries.get(position) {
            let hash = self.hasher.hash_one(&moved.key);
            if let Some(at) = self.positions.find_mut(hash, |at| *at as usize == last) {
                *at = position as u32;
            }
        }
        Some(entry)
    }
}

/// The hash of the key at a position.
fn hash_at<K: Hash, V>(entries: &[RememberedEntry<K, V>], hasher: &DefaultHashBuilder, position: u32) -> u64 {
    entries
        .get(position as usize)
        .map_or(0, |entry| hasher.hash_one(&entry.key))
}

#[cfg(test)]
mod tests;
