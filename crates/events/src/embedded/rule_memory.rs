//! What rules of retention and deletions of streams may take in memory, over all namespaces of a store. A deletion stays for ever:
//! it says the version with which its stream goes on, or that it never does. So there is a bound, at which a stream that has neither
//! is not deleted and gets no rule any more; one that has may still be deleted again, and its rule be changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{EventsError, Result};

/// A part of the memory of indexes.
const PART: usize = 4;
const BYTES_MIN: usize = 4 << 20;

#[derive(Debug)]
pub(crate) struct RuleMemory {
    bytes_max: usize,
    taken: AtomicUsize,
}

/// What one namespace has of it, until it is dropped.
#[derive(Debug)]
pub(super) struct RuleRoom {
    memory: Arc<RuleMemory>,
    own: AtomicUsize,
}

impl RuleMemory {
    pub fn of(index_memory: usize) -> Arc<RuleMemory> {
        RuleMemory::up_to((index_memory / PART).max(BYTES_MIN))
    }

    pub fn up_to(bytes_max: usize) -> Arc<RuleMemory> {
        Arc::new(RuleMemory {
            bytes_max,
            taken: AtomicUsize::new(0),
        })
    }

    pub fn bytes(&self) -> usize {
        self.taken.load(Ordering::Relaxed)
    }
}

impl RuleRoom {
    pub fn of(memory: Arc<RuleMemory>) -> RuleRoom {
        RuleRoom {
            memory,
            own: AtomicUsize::new(0),
        }
    }

    /// Whether so much more may come. Of two that ask at the same time both may be told so, which is one more than the bound.
    pub fn has(&self, bytes: usize) -> Result<()> {
        let most = self.memory.bytes_max;
        match self.memory.bytes().saturating_add(bytes) <= most {
            true => Ok(()),
            false => Err(EventsError::RulesFull { bytes_max: most }),
        }
    }

    /// The rules of the namespace take so much now.
    pub fn set(&self, bytes: usize) {
        let before = self.own.swap(bytes, Ordering::Relaxed);
        self.memory.taken.fetch_add(bytes, Ordering::Relaxed);
        self.memory.taken.fetch_sub(before, Ordering::Relaxed);
    }
}

impl Drop for RuleRoom {
    fn drop(&mut self) {
        self.set(0);
    }
}
