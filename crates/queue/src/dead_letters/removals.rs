//! Dead letters that were removed from the middle of their partition, because they were resent or discarded. Each
//! removal is a record in the state of that partition, and a checkpoint has a record of all of them.
//!
//! A checkpoint without a removal must not follow it in the log, or a restart would restore the dead letters. So no
//! checkpoint is written while a removal is being stored ([`LetterRemovalGuard`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::{Mutex, MutexGuard};
use thalweg_log::Offset;
use tokio::sync::OwnedMutexGuard;

use crate::group_partition::DROPPED;
use crate::names::NameKind;
use crate::offset_ranges::OffsetRanges;
use crate::queue::Queue;

pub(crate) struct LetterRemovals {
    /// The queue contains the dead letters of another queue.
    has_letters: bool,
    removed: Mutex<OffsetRanges>,
    /// Records of removals since the last checkpoint.
    unsaved: AtomicU32,
    /// Removals that are being stored.
    under_way: AtomicU32,
    /// Held while dead letters of this queue, which another queue contains, are resent or discarded.
    taking: Arc<tokio::sync::Mutex<()>>,
}

impl LetterRemovals {
    /// For the queue of this name.
    pub fn of(name: &str) -> LetterRemovals {
        LetterRemovals {
            has_letters: NameKind::of(name) == NameKind::DeadLetter,
            removed: Mutex::default(),
            unsaved: AtomicU32::new(0),
            under_way: AtomicU32::new(0),
            taking: Arc::default(),
        }
    }

    /// Whether the queue contains the dead letters of another queue.
    pub fn has_letters(&self) -> bool {
        self.has_letters
    }

    /// The removed dead letters; `None` for a queue that contains none. Taken after the lock of the admission.
    pub fn lock(&self) -> Option<MutexGuard<'_, OffsetRanges>> {
        self.has_letters.then(|| self.removed.lock())
    }

    pub fn contains(&self, offset: Offset) -> bool {
        self.lock().is_some_and(|removed| removed.contains(offset))
    }

    pub fn copy(&self) -> OffsetRanges {
        self.removed.lock().clone()
    }

    /// Adds the removals that a start has found, encoded; `None` for invalid bytes.
    pub fn restore(&self, bytes: &[u8]) -> Option<()> {
        self.removed.lock().decode_into(bytes)
    }

    /// Adds removals before the queue is in service.
    pub(super) fn add_all(&self, letters: &OffsetRanges) {
        self.removed.lock().add_all(letters);
    }

    /// Marks dead letters from `first` on as removed. Returns how many were not before.
    pub(super) fn insert(&self, letters: &OffsetRanges, first: Offset) -> u64 {
        let mut removed = self.removed.lock();
        let there = letters.iter().filter(|letter| *letter >= first);
        there.filter(|letter| removed.insert(*letter)).count() as u64
    }

    /// The first dead letter from `first` on that is not removed.
    pub(super) fn end_from(&self, first: Offset) -> Offset {
        self.removed.lock().end_from(first)
    }

    /// Records of removals since the last checkpoint.
    pub fn unsaved(&self) -> u32 {
        self.unsaved.load(Ordering::Relaxed)
    }

    /// Counts records that no checkpoint contains.
    pub fn add_unsaved(&self, records: u32) {
        self.unsaved.fetch_add(records, Ordering::Relaxed);
    }

    /// A checkpoint is about to contain all removals. Returns how many records it replaces.
    pub fn take_unsaved(&self) -> u32 {
        self.unsaved.swap(0, Ordering::Relaxed)
    }

    /// Whether a removal is being stored.
    pub fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// While the guard lives, no other call resends or discards dead letters of this queue.
    pub(super) async fn take_alone(&self) -> OwnedMutexGuard<()> {
        self.taking.clone().lock_owned().await
    }
}

/// While this guard lives, the removal of dead letters is being stored.
pub(super) struct LetterRemovalGuard(Arc<Queue>);

impl LetterRemovalGuard {
    pub fn begin(queue: &Arc<Queue>) -> LetterRemovalGuard {
        let _no_checkpoint = queue.letters.removed.lock();
        queue.letters.under_way.fetch_add(1, Ordering::Relaxed);
        LetterRemovalGuard(queue.clone())
    }
}

impl Drop for LetterRemovalGuard {
    fn drop(&mut self) {
        self.0.letters.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Encodes that dead letters are resent or discarded. A checkpoint has a record of all of them, even if there are none,
/// so that a start need not read what came before.
pub(crate) fn dropped_record(ranges: &OffsetRanges) -> Vec<u8> {
    // Belongs to no group.
    let mut value = vec![0, DROPPED];
    ranges.encode(&mut value);
    value
}
