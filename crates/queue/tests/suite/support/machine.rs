//! A machine on which queues run by the time of their log. Its clocks advance only on request, its wall clock can be
//! set, and a boot may find it anywhere.

use std::path::Path;
use std::sync::Arc;

use thalweg_log::clock::sim::ManualClock;
use thalweg_log::clock::{LogClock, TimeSource};
use thalweg_log::disk::{Disk, FolderDisk};
use thalweg_log::{EmbeddedLog, LogError, LogOptions, Micros, repair};
use thalweg_queue::settings::QueueSettings;
use thalweg_queue::{Clock, Queue, QueueError, Queues};

use super::place::{Place, log_options, queues_options};

pub const SECOND: Micros = 1_000_000;
pub const HOUR: Micros = 3600 * SECOND;
pub const DAY: Micros = 24 * HOUR;
/// Some day in 2026.
pub const TODAY: Micros = 1_795_000_000 * SECOND;

/// A process on it.
pub struct Machine {
    pub time: Arc<ManualClock>,
    pub place: Place<LogClock>,
}

impl Machine {
    pub async fn boot(folder: &Path, wall: Micros) -> Machine {
        let disk = Arc::new(FolderDisk::open(folder).unwrap());
        Machine::boot_on(disk, log_options(4 << 20, 1 << 20), wall)
            .await
            .unwrap()
    }

    /// As a process starts: the clock is set before any decision depends on the time.
    pub async fn boot_on(disk: Arc<dyn Disk>, options: LogOptions, wall: Micros) -> Result<Machine, QueueError> {
        let time = ManualClock::at(wall);
        let clock = Arc::new(LogClock::new(time.clone()));
        let options = LogOptions {
            clock: clock.clone(),
            ..options
        };
        let log = Arc::new(EmbeddedLog::open(disk, 7, &options)?);
        let queues = async {
            clock.resume(log.as_ref()).await?;
            Queues::open(log.clone(), clock.clone(), queues_options(u64::MAX)).await
        };
        match queues.await {
            Ok(queues) => {
                let place = Place { queues, log, clock };
                Ok(Machine { time, place })
            }
            Err(error) => {
                log.close();
                Err(error)
            }
        }
    }

    /// With `log.recover: skip`, as `thalweg run` does it.
    pub async fn boot_skipping(disk: Arc<dyn Disk>, options: LogOptions, wall: Micros) -> Machine {
        let skipping = LogOptions {
            recover_skip: true,
            ..options.clone()
        };
        match Machine::boot_on(disk.clone(), skipping, wall).await {
            Err(QueueError::Log(LogError::Corrupt { .. })) => {
                repair(disk.as_ref(), true, &mut |_, _| {}).unwrap();
                Machine::boot_on(disk, options, wall).await.unwrap()
            }
            booted => booted.unwrap(),
        }
    }

    pub async fn queue(&self, settings: QueueSettings) -> Arc<Queue> {
        self.place.queues.create("q", settings).await.unwrap()
    }

    pub async fn pass(&self, time: Micros) {
        self.time.pass(time);
        self.look().await;
    }

    /// Sets the wall clock by this much; the process notices it.
    pub async fn set(&self, by: Micros) {
        self.time.set(by);
        self.look().await;
    }

    pub async fn look(&self) {
        self.place.clock.look(self.place.log.as_ref()).await.unwrap();
        for queue in self.place.queues.all() {
            queue.look_after_now().await;
        }
    }

    pub fn wall(&self) -> Micros {
        self.time.wall()
    }

    /// Log time.
    pub fn now(&self) -> Micros {
        self.place.clock.now()
    }
}
