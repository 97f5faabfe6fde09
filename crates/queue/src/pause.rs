//! Whether the producers and the consumers of a queue are paused. Every call reads it, so it takes no lock.

use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug)]
pub(crate) struct PauseFlags {
    produce: AtomicBool,
    consume: AtomicBool,
}

impl PauseFlags {
    pub fn new(produce: bool, consume: bool) -> PauseFlags {
        PauseFlags {
            produce: AtomicBool::new(produce),
            consume: AtomicBool::new(consume),
        }
    }

    pub fn set(&self, produce: bool, consume: bool) {
        self.produce.store(produce, Ordering::Relaxed);
        self.consume.store(consume, Ordering::Relaxed);
    }

    pub fn produce(&self) -> bool {
        self.produce.load(Ordering::Relaxed)
    }

    pub fn consume(&self) -> bool {
        self.consume.load(Ordering::Relaxed)
    }
}
