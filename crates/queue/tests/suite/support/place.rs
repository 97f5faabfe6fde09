//! Queues on a log, with a clock that can be advanced, and their end and restart.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use thalweg_log::disk::{Disk, FolderDisk};
use thalweg_log::{Durability, EmbeddedLog, Log, LogError, LogOptions, Micros, repair};
use thalweg_queue::settings::QueueSettings;
use thalweg_queue::{Clock, Queue, QueueError, Queues, QueuesOptions};

/// Runs on its own, and can be advanced.
#[derive(Default)]
pub struct TestClock {
    ahead: AtomicI64,
}

impl TestClock {
    /// This much time passes.
    pub fn later(&self, time: Duration) {
        self.ahead.fetch_add(time.as_micros() as i64, Ordering::SeqCst);
    }
}

impl Clock for TestClock {
    fn now(&self) -> Micros {
        let since = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap();
        since.as_micros() as Micros + self.ahead.load(Ordering::SeqCst)
    }

    /// As far behind as a slow kernel's tick.
    fn roughly_now(&self) -> Micros {
        self.now() - 10_000
    }
}

/// A process with an open log and its queues.
pub struct Place<C = TestClock> {
    pub queues: Queues,
    pub log: Arc<EmbeddedLog>,
    pub clock: Arc<C>,
}

/// A new queue "q" in a folder that is removed with the first value.
pub async fn begin(settings: QueueSettings) -> (tempfile::TempDir, Place, Arc<Queue>) {
    let folder = tempfile::tempdir().unwrap();
    let place = open(folder.path()).await;
    let queue = place.queues.create("q", settings).await.unwrap();
    (folder, place, queue)
}

/// With the current time, and ample memory.
pub async fn open(folder: &Path) -> Place {
    open_later(folder, Duration::ZERO).await
}

/// With a clock that is ahead by this much.
pub async fn open_later(folder: &Path, ahead: Duration) -> Place {
    open_folder(folder, ahead, u64::MAX).await
}

/// With this much memory for queues in memory.
pub async fn open_small(folder: &Path, memory_bytes: u64) -> Place {
    open_folder(folder, Duration::ZERO, memory_bytes).await
}

async fn open_folder(folder: &Path, ahead: Duration, memory_bytes: u64) -> Place {
    let disk = Arc::new(FolderDisk::open(folder).unwrap());
    open_on(disk, &log_options(4 << 20, 1 << 20), ahead, memory_bytes).await
}

/// On any disk.
pub async fn open_on(disk: Arc<dyn Disk>, options: &LogOptions, ahead: Duration, memory_bytes: u64) -> Place {
    let log = Arc::new(EmbeddedLog::open(disk, 7, options).unwrap());
    let clock = Arc::new(TestClock::default());
    clock.later(ahead);
    let queues = queues_in(log.clone(), clock.clone(), memory_bytes).await;
    Place { queues, log, clock }
}

/// A start with `log.recover: skip`, as `thalweg run` does it.
pub async fn start_skipping(disk: Arc<dyn Disk>) -> Place {
    let options = log_options(1 << 20, 1 << 19);
    let skipping = LogOptions {
        recover_skip: true,
        ..options.clone()
    };
    let clock = Arc::new(TestClock::default());
    let log = Arc::new(EmbeddedLog::open(disk.clone(), 7, &skipping).unwrap());
    match Queues::open(log.clone(), clock.clone(), queues_options(u64::MAX)).await {
        Ok(queues) => Place { queues, log, clock },
        Err(QueueError::Log(LogError::Corrupt { .. })) => {
            log.close();
            drop(log);
            repair(disk.as_ref(), true, &mut |_, _| {}).unwrap();
            open_on(disk, &options, Duration::ZERO, u64::MAX).await
        }
        Err(error) => panic!("{error}"),
    }
}

/// Files of these sizes and one spare file, however little space the disk has.
pub fn log_options(file_bytes: u64, first_file_bytes: u64) -> LogOptions {
    LogOptions {
        file_bytes,
        first_file_bytes,
        min_free_bytes: Some(0),
        spare: 1,
        ..LogOptions::default()
    }
}

/// Queues that acknowledge a message only when it is on the disk.
pub async fn queues_in(log: Arc<dyn Log>, clock: Arc<dyn Clock>, memory_bytes: u64) -> Queues {
    Queues::open(log, clock, queues_options(memory_bytes)).await.unwrap()
}

/// The options of those queues.
pub fn queues_options(memory_bytes: u64) -> QueuesOptions {
    QueuesOptions {
        durability: Durability::Fsync,
        auto_create: false,
        memory_bytes,
        dedup_bytes: u64::MAX,
        state_bytes: u64::MAX,
    }
}

/// The place and its queue "q" after `kill -9` and a new start.
pub async fn reopened(place: Place, folder: &Path) -> (Place, Arc<Queue>) {
    place.kill();
    let place = open(folder).await;
    let queue = place.queue();
    (place, queue)
}

/// The place and its queue "q" after a clean end and a new start.
pub async fn restarted(place: Place, folder: &Path) -> (Place, Arc<Queue>) {
    place.stop().await;
    let place = open(folder).await;
    let queue = place.queue();
    (place, queue)
}

impl<C> Place<C> {
    /// The queue of [`begin`].
    pub fn queue(&self) -> Arc<Queue> {
        self.queues.get("q").unwrap()
    }

    /// As by `kill -9`: nothing is stored or announced.
    pub fn kill(self) {
        self.log.close();
    }

    /// The queues store their state first.
    pub async fn stop(self) {
        self.queues.close().await;
        self.log.close();
    }

    /// Killed or, if `clean`, stopped.
    pub async fn end(self, clean: bool) {
        match clean {
            true => self.stop().await,
            false => self.kill(),
        }
    }
}

impl Place {
    /// This much time passes for the queues.
    pub fn later(&self, time: Duration) {
        self.clock.later(time);
    }

    /// As the queues see it.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }
}
