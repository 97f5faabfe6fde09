//! An LRU cache of the indexes of closed files, limited by their size in bytes.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::index::FileIndex;

pub(crate) struct IndexCache {
    bytes_max: usize,
    kept: Mutex<LruIndexes>,
}

#[derive(Default)]
struct LruIndexes {
    /// Least recently used first.
    indexes: VecDeque<Arc<FileIndex>>,
    bytes: usize,
}

/// The link from a file to its cached index. It is empty after the index was evicted.
#[derive(Clone)]
pub(crate) struct IndexHandle {
    slot: Arc<Mutex<Weak<FileIndex>>>,
}

impl IndexHandle {
    pub fn new() -> IndexHandle {
        IndexHandle {
            slot: Arc::new(Mutex::new(Weak::new())),
        }
    }
}

impl IndexCache {
    pub fn new(bytes_max: usize) -> Arc<IndexCache> {
        Arc::new(IndexCache {
            bytes_max,
            kept: Mutex::default(),
        })
    }

    pub fn get(&self, indexed: &IndexHandle) -> Option<Arc<FileIndex>> {
        let index = indexed.slot.lock().upgrade()?;
        let mut kept = self.kept.lock();
        // Consecutive readers of one file ask for the same index, so the search starts at the end.
        let at = kept.indexes.iter().rposition(|one| Arc::ptr_eq(one, &index));
        if let Some(at) = at.filter(|at| at + 1 < kept.indexes.len())
            && let Some(found) = kept.indexes.remove(at)
        {
            kept.indexes.push_back(found);
        }
        Some(index)
    }

    pub fn put(&self, indexed: &IndexHandle, index: &Arc<FileIndex>) {
        *indexed.slot.lock() = Arc::downgrade(index);
        let mut kept = self.kept.lock();
        kept.bytes += index.bytes();
        kept.indexes.push_back(index.clone());
        // The newest index stays, however large it is.
        while kept.bytes > self.bytes_max && kept.indexes.len() > 1 {
            if let Some(oldest) = kept.indexes.pop_front() {
                kept.bytes -= oldest.bytes();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::frame::{FrameFlags, FrameHeader, FrameKind};
    use crate::ids::PartitionId;
    use crate::index::FrameEntry;

    fn index(frames: u64) -> Arc<FileIndex> {
        let mut index = FileIndex::default();
        for base in 0..frames {
            index.push(FrameEntry {
                header: FrameHeader {
                    kind: FrameKind::Data,
                    flags: FrameFlags::NONE,
                    body_len: 0,
                    body_crc: 0,
                    partition: PartitionId::new(1, 1),
                    base,
                    records: 1,
                    last_delta: 0,
                    base_time: 0,
                    max_time: 0,
                },
                body_at: 0,
            });
        }
        Arc::new(index)
    }

    #[test]
    fn what_was_asked_for_last_is_kept() {
        let cache = IndexCache::new(2 * index(10).bytes());
        let places = [IndexHandle::new(), IndexHandle::new(), IndexHandle::new()];
        cache.put(&places[0], &index(10));
        cache.put(&places[1], &index(10));
        assert!(cache.get(&places[0]).is_some());
        cache.put(&places[2], &index(10));
        let kept: Vec<bool> = places.iter().map(|place| cache.get(place).is_some()).collect();
        assert_eq!(kept, [true, false, true]);
    }

    #[test]
    fn an_index_that_is_larger_than_the_cache_is_kept_until_the_next() {
        let cache = IndexCache::new(1);
        let (first, second) = (IndexHandle::new(), IndexHandle::new());
        cache.put(&first, &index(5));
        assert!(cache.get(&first).is_some());
        cache.put(&second, &index(5));
        assert!(cache.get(&first).is_none() && cache.get(&second).is_some());
    }
}
