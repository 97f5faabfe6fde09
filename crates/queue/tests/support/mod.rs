//! Queues on a log in a folder, with a clock that can be set ahead.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use thalweg_log::disk::Folder;
use thalweg_log::{Durability, EmbeddedLog, LogOptions, Micros};
use thalweg_queue::{Clock, Queues, QueuesOptions};

/// Goes on by itself, and further when it is told to.
#[derive(Default)]
pub struct TestClock {
    pub ahead: AtomicI64,
}

impl Clock for TestClock {
    fn now(&self) -> Micros {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        since.as_micros() as Micros + self.ahead.load(Ordering::SeqCst)
    }
}

pub struct Place {
    pub queues: Queues,
    pub log: Arc<EmbeddedLog>,
    pub clock: Arc<TestClock>,
}

pub async fn open(folder: &Path) -> Place {
    open_later(folder, Duration::ZERO).await
}

/// With a clock that is so much ahead.
pub async fn open_later(folder: &Path, ahead: Duration) -> Place {
    open_as(folder, ahead, u64::MAX).await
}

/// With so much memory for queues in memory.
pub async fn open_small(folder: &Path, memory_bytes: u64) -> Place {
    open_as(folder, Duration::ZERO, memory_bytes).await
}

async fn open_as(folder: &Path, ahead: Duration, memory_bytes: u64) -> Place {
    let options = LogOptions {
        file_bytes: 4 << 20,
        first_file_bytes: 1 << 20,
        min_free_bytes: Some(0),
        spare: 1,
        ..LogOptions::default()
    };
    let log = Arc::new(EmbeddedLog::open(Arc::new(Folder::open(folder).unwrap()), 7, &options).unwrap());
    let clock = Arc::new(TestClock::default());
    clock.ahead.store(ahead.as_micros() as i64, Ordering::SeqCst);
    let options = QueuesOptions {
        durability: Durability::Fsync,
        auto_create: false,
        memory_bytes,
    };
    let queues = Queues::open(log.clone(), clock.clone(), options).await.unwrap();
    Place { queues, log, clock }
}

impl Place {
    /// As by `kill -9`: nothing is said to anybody.
    pub fn kill(self) {
        self.log.close();
    }

    pub async fn stop(self) {
        self.queues.close().await;
        self.log.close();
    }

    pub fn later(&self, time: Duration) {
        self.clock.ahead.fetch_add(time.as_micros() as i64, Ordering::SeqCst);
    }
}
