//! What of a store is in memory for as long as it is there, and grows with what clients make, over all namespaces.
//!
//! | share | of what | at its end |
//! |---|---|---|
//! | rules | rules of retention, and deletions of streams: these stay for ever, they say the version with which a stream goes on, or that it never does | a stream that has neither is not deleted and gets no rule; one that has may still be deleted again, and its rule be changed |
//! | namespaces | names, descriptions, metadata and tokens, and what a namespace without messages has | no namespace and no token is made |
//!
//! What is stored already is loaded at a start, whatever the share is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{EventsError, Result};

/// Parts of the memory of indexes, whose cache has the less of it the more these take.
const RULES_PART: usize = 4;
const NAMESPACES_PART: usize = 8;
const BYTES_MIN: usize = 4 << 20;

#[derive(Debug)]
pub(crate) struct MemoryBudget {
    bytes_max: usize,
    taken: AtomicUsize,
    /// What is said at its end.
    full: fn(usize) -> EventsError,
}

/// What one namespace has of it, until it is dropped.
#[derive(Debug)]
pub(super) struct MemoryReservation {
    share: Arc<MemoryBudget>,
    own: AtomicUsize,
}

impl MemoryBudget {
    pub fn of_rules(index_memory: usize) -> Arc<MemoryBudget> {
        let full = |bytes_max| EventsError::RulesFull { bytes_max };
        MemoryBudget::up_to(index_memory / RULES_PART, full)
    }

    pub fn of_namespaces(index_memory: usize) -> Arc<MemoryBudget> {
        let full = |bytes_max| EventsError::NamespacesFull { bytes_max };
        MemoryBudget::up_to(index_memory / NAMESPACES_PART, full)
    }

    fn up_to(bytes_max: usize, full: fn(usize) -> EventsError) -> Arc<MemoryBudget> {
        Arc::new(MemoryBudget {
            bytes_max: bytes_max.max(BYTES_MIN),
            taken: AtomicUsize::new(0),
            full,
        })
    }

    pub fn bytes(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }

    /// Whether so much more may come. Of two that ask at the same time both may be told so, which is one more than the bound.
    pub fn has(&self, bytes: usize) -> Result<()> {
        match self.bytes().saturating_add(bytes) <= self.bytes_max {
            true => Ok(()),
            false => Err((self.full)(self.bytes_max)),
        }
    }
}

impl MemoryReservation {
    pub fn of(share: Arc<MemoryBudget>) -> MemoryReservation {
        MemoryReservation {
            share,
            own: AtomicUsize::new(0),
        }
    }

    pub fn has(&self, bytes: usize) -> Result<()> {
        self.share.has(bytes)
    }

    /// The namespace takes so much now.
    pub fn set(&self, bytes: usize) {
        let before = self.own.swap(bytes, Ordering::Relaxed);
        self.share.taken.fetch_add(bytes, Ordering::Relaxed);
        self.share.taken.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.set(0);
    }
}
