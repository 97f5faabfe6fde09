//! The time of a log. It advances steadily, whatever happens to the wall clock.
//!
//! Leases, delays and lifetimes are measured in *log time*: microseconds that started at the wall clock when the log
//! was created and have followed a monotonic clock since. Records carry log time. A step of the wall clock changes only
//! the difference between the two. The difference is checked every second and stored in the log ([`ClockJumps`]), so
//! that a time shown to or named by a person can be converted. After a restart, log time continues from the newest
//! block plus the downtime that the wall clock shows. If the wall clock shows an earlier time, the downtime counts as
//! zero.

pub mod sim;
mod stored_jumps;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::contract::{Log, ReadOptions};
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::format::frame::FrameKind;
use crate::format::record::{RecordRef, records};
use crate::ids::{Micros, PartitionId};
use crate::records::{Records, WriteBatch};

pub use thalweg_kit::clock::{Clock, ClockJump, ClockJumps, MachineTime, SystemClock, TimeSource};

/// The partition that stores the jumps. It is created with the first jump.
pub(crate) const CLOCK: PartitionId = PartitionId::new(0, 3);

/// A smaller deviation of the wall clock is not a jump.
const JUMP_LEAST: Micros = 1_000_000;
/// If two readings of the monotonic clock are further apart than this, the wall clock reading between them is too
/// inexact.
const READ_WITHIN: Micros = 50_000;
const READINGS: usize = 10;

/// The clock of one log. Until [`resume`](LogClock::resume) it continues from the newest block that was found, or from
/// the wall clock if the log is new.
pub struct LogClock {
    source: Arc<dyn TimeSource>,
    /// Log time minus elapsed time.
    base: AtomicI64,
    starting: Mutex<ClockOrigin>,
    jumps: RwLock<Arc<ClockJumps>>,
    /// The newest jumps have not been stored yet.
    unstored: AtomicBool,
    /// Serialises those who store jumps.
    changing: tokio::sync::Mutex<()>,
}

/// What the clock is based on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockOrigin {
    /// The wall clock: no log has been opened, or only a new one.
    Wall,
    /// The newest block of the logs that have been opened.
    Found,
    /// The stored jumps of the log.
    Resumed,
}

impl std::fmt::Debug for LogClock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogClock")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}

impl Default for LogClock {
    fn default() -> LogClock {
        LogClock::new(Arc::new(MachineTime::default()))
    }
}

impl Clock for LogClock {
    fn now(&self) -> Micros {
        self.source.elapsed() + self.base.load(Ordering::Relaxed)
    }

    fn roughly_now(&self) -> Micros {
        self.source.roughly_elapsed() + self.base.load(Ordering::Relaxed)
    }

    fn wall(&self) -> Micros {
        self.source.wall()
    }

    fn jumps(&self) -> Arc<ClockJumps> {
        self.jumps.read().clone()
    }

    fn notice(&self) {
        self.take_in();
    }
}

impl LogClock {
    pub fn new(source: Arc<dyn TimeSource>) -> LogClock {
        let clock = LogClock {
            source,
            base: AtomicI64::new(0),
            starting: Mutex::new(ClockOrigin::Wall),
            jumps: RwLock::new(ClockJumps::none()),
            unstored: AtomicBool::new(false),
            changing: tokio::sync::Mutex::default(),
        };
        let (wall, elapsed) = clock.read();
        clock.base.store(wall - elapsed, Ordering::Relaxed);
        clock
    }

    /// Continues log time from where the log stopped. Call it before any decision that depends on the time. Returns the
    /// jump that happened during the downtime if the wall clock now shows less than before. If it shows more, the
    /// difference counts as downtime.
    pub async fn resume(&self, log: &dyn Log) -> Result<Option<ClockJump>> {
        let changing = self.changing.lock().await;
        let stored = stored(log)?;
        if matches!(stored, StoredJumps::Lost) {
            tracing::warn!("the stored clock jumps are lost: the downtime is not counted");
        }
        self.go_on(stored, log.last_commit_time());
        let jump = self.take_in();
        drop(changing);
        // A full disk does not prevent a start: the jump takes effect now and is stored by a later call.
        if let Err(error) = self.look(log).await {
            tracing::warn!(%error, "a clock jump cannot be stored yet and will be retried");
        }
        Ok(jump)
    }

    /// Called when a log was opened, with the time of its newest block, or `None` if it has none. What a start writes
    /// before the jumps are known must not have a wall-clock time, because a later start would continue from there and
    /// include the whole difference between the two clocks.
    pub(crate) fn found(&self, last_commit: Option<Micros>) {
        let Some(last_commit) = last_commit else { return };
        let mut starting = self.starting.lock();
        let base = last_commit.saturating_sub(self.source.elapsed());
        match *starting {
            ClockOrigin::Wall => self.base.store(base, Ordering::Relaxed),
            ClockOrigin::Found => drop(self.base.fetch_max(base, Ordering::Relaxed)),
            ClockOrigin::Resumed => return,
        }
        *starting = ClockOrigin::Found;
    }

    fn go_on(&self, stored: StoredJumps, last_commit: Micros) {
        let mut starting = self.starting.lock();
        *starting = ClockOrigin::Resumed;
        let (wall, elapsed) = self.read();
        // Lost jumps are stored again at once, so that the next downtime counts again.
        self.unstored
            .store(matches!(stored, StoredJumps::Lost), Ordering::Relaxed);
        let jumps = match stored {
            StoredJumps::Never => ClockJumps::none(),
            StoredJumps::Jumps(jumps) => Arc::new(jumps),
            // The earlier difference is unknown, so no time may be derived from it.
            StoredJumps::Lost => Arc::new(ClockJumps::starting_with(wall.saturating_sub(last_commit))),
        };
        let last_jump = jumps.newest().map_or(Micros::MIN, |jump| jump.at);
        let time = last_jump.max(last_commit).max(wall.saturating_sub(jumps.offset()));
        self.base.store(time - elapsed, Ordering::Relaxed);
        *self.jumps.write() = jumps;
    }

    /// Compares the wall clock with the elapsed time. When this returns, a jump has taken effect and is stored. Call it
    /// every second.
    pub async fn look(&self, log: &dyn Log) -> Result<Option<ClockJump>> {
        let _changing = self.changing.lock().await;
        let jump = self.take_in();
        if self.unstored.load(Ordering::Relaxed) {
            self.store(log).await?;
            self.unstored.store(false, Ordering::Relaxed);
        }
        Ok(jump)
    }

    /// Wall clock minus log time in microseconds, as of the last comparison.
    pub fn offset(&self) -> Micros {
        self.jumps().offset()
    }

    /// Detects a jump. It takes effect at once, whether or not it can be stored, because time must advance even if a
    /// disk is full.
    fn take_in(&self) -> Option<ClockJump> {
        let mut jumps = self.jumps.write();
        let (wall, elapsed) = self.read();
        let at = elapsed + self.base.load(Ordering::Relaxed);
        let (before, offset) = (jumps.offset(), wall.saturating_sub(at));
        if before.abs_diff(offset) < JUMP_LEAST.unsigned_abs() {
            return None;
        }
        let jump = ClockJump { at, before, offset };
        *jumps = Arc::new(jumps.and(jump));
        self.unstored.store(true, Ordering::Relaxed);
        Some(jump)
    }

    /// The wall clock and the elapsed time at the same moment.
    fn read(&self) -> (Micros, Micros) {
        let reading = || {
            let (before, wall, after) = (self.source.elapsed(), self.source.wall(), self.source.elapsed());
            (after - before, wall, before + (after - before) / 2)
        };
        let mut best = reading();
        for _ in 0..READINGS {
            if best.0 <= READ_WITHIN {
                break;
            }
            best = reading().min(best);
        }
        (best.1, best.2)
    }

    async fn store(&self, log: &dyn Log) -> Result<()> {
        let strictest = [
            Durability::Fsync,
            Durability::Interval,
            Durability::Os,
            Durability::Memory,
        ];
        let durability = strictest
            .into_iter()
            .find(|wanted| log.caps().durabilities.contains(wanted));
        match log.bounds(CLOCK) {
            Err(LogError::NoPartition(_)) => log.create(CLOCK, durability.unwrap_or(Durability::Fsync)).await?,
            known => drop(known?),
        }
        let mut record = Records::new();
        record.push(&RecordRef::of(self.now(), &stored_jumps::encode(&self.jumps())))?;
        let appended = log
            .append(WriteBatch::default().and_of(FrameKind::State, CLOCK, record))
            .await?;
        // Each record has all jumps that matter.
        match appended.offsets.first() {
            Some(offset) => log.trim(CLOCK, *offset),
            None => Ok(()),
        }
    }
}

enum StoredJumps {
    /// The clock of this log has not jumped.
    Never,
    Jumps(ClockJumps),
    /// The clock has jumped, but the record is lost.
    Lost,
}

fn stored(log: &dyn Log) -> Result<StoredJumps> {
    let bounds = match log.bounds(CLOCK) {
        Err(LogError::NoPartition(_)) => return Ok(StoredJumps::Never),
        bounds => bounds?,
    };
    let (mut from, mut newest) = (bounds.first, StoredJumps::Lost);
    while from < bounds.next {
        let want = ReadOptions {
            bytes: 1 << 20,
            synced: false,
        };
        let frames = match log.read(CLOCK, from, want) {
            // The gap was reported before, and an operator has accepted the loss.
            Err(LogError::Gap { to, .. }) => {
                (from, newest) = (to, StoredJumps::Lost);
                continue;
            }
            frames => frames?,
        };
        if frames.is_empty() {
            break;
        }
        for frame in &frames {
            for record in records(&frame.body) {
                let jumps = record.ok().and_then(|record| stored_jumps::decode(record.value));
                newest = jumps.map_or(StoredJumps::Lost, StoredJumps::Jumps);
            }
            from = frame.header.next();
        }
    }
    Ok(newest)
}
