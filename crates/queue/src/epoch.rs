//! The epoch in which a process makes leases: no earlier one had its number, so no receipt names two leases.
//!
//! It is kept in the catalogue before the first lease is made in it. A start only tries: a disk so full that not even that
//! can be stored must not keep away the deletions that make room.

use std::sync::atomic::{AtomicBool, Ordering};

/// Of a process, for all of its queues.
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

    /// Whether leases may be made.
    pub fn is_stored(&self) -> bool {
        self.is_stored.load(Ordering::Relaxed)
    }

    pub fn stored(&self) {
        self.is_stored.store(true, Ordering::Relaxed);
    }
}
