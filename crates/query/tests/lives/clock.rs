//! The clocks of a machine: time passes normally or by days at once, and the wall clock can be set.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use thalweg_delta::store::cut_disk::FileClock;
use thalweg_log::Micros;
use thalweg_log::clock::{MachineTime, TimeSource};

#[derive(Debug, Default)]
pub struct Hands {
    machine: MachineTime,
    passed: AtomicI64,
    set: AtomicI64,
}

impl Hands {
    /// Lets time pass.
    pub fn pass(&self, time: Micros) {
        self.passed.fetch_add(time, Ordering::SeqCst);
    }

    /// Sets the wall clock forward or back.
    pub fn set(&self, by: Micros) {
        self.set.fetch_add(by, Ordering::SeqCst);
    }

    /// The time for file timestamps.
    pub fn file_time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_micros(self.wall().unsigned_abs())
    }
}

/// For the files of a disk.
pub fn file_clock(hands: &Arc<Hands>) -> FileClock {
    let hands = hands.clone();
    Arc::new(move || hands.file_time())
}

impl TimeSource for Hands {
    fn wall(&self) -> Micros {
        self.machine.wall() + self.passed.load(Ordering::SeqCst) + self.set.load(Ordering::SeqCst)
    }

    fn elapsed(&self) -> Micros {
        self.machine.elapsed() + self.passed.load(Ordering::SeqCst)
    }
}
