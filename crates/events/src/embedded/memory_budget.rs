//! Budgets for permanent memory that grows with what clients create, across all namespaces.
//!
//! - Rules: retention rules and deletions of streams. Deletions are kept forever, because they have the version at
//!   which a stream continues, or a tombstone. When the budget is exhausted, streams without an entry can be neither
//!   deleted nor get a rule; existing entries can be changed, and their streams deleted again.
//! - Namespaces: names, descriptions, metadata and tokens, and the overhead of an empty namespace. When the budget is
//!   exhausted, no namespace or token can be created.
//!
//! A start loads everything that is stored, whatever the budget is.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{EventsError, Result};

/// Fractions of the index memory. The use of these budgets reduces the index cache.
const RULES_PART: usize = 4;
const NAMESPACES_PART: usize = 8;
const BYTES_MIN: usize = 4 << 20;

#[derive(Debug)]
pub(crate) struct MemoryBudget {
    bytes_max: usize,
    taken: AtomicUsize,
    /// The error when it is exhausted.
    full: fn(usize) -> EventsError,
}

/// The share of one namespace, which is released on drop.
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

    /// Fails unless this much more fits. Of two concurrent calls both may succeed, so the limit can be exceeded by one.
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

    /// Sets the current use of the namespace.
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
