//! The epoch in which a process creates leases. Its number was never used before, so no receipt names two leases.
//!
//! It is stored in the catalogue before the first lease uses it. A start only tries to store it, because a disk without
//! any space must not prevent the deletions that free space.

use std::sync::atomic::{AtomicBool, Ordering};

/// One per process, for all of its queues.
#[derive(Debug)]
pub(crate) struct Epoch {
    number: u32,
    is_stored: AtomicBool,
}

impl Epoch {
    pub fn new(number: u32) -> Epoch {
        Epoch {
            number,
            is_stored: AtomicBool::new(false),
        }
    }

    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether leases may be created.
    pub fn is_stored(&self) -> bool {
        self.is_stored.load(Ordering::Relaxed)
    }

    pub fn stored(&self) {
        self.is_stored.store(true, Ordering::Relaxed);
    }
}
