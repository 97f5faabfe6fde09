//! The time of a log: it goes on as time passes, whatever becomes of the wall clock.
//!
//! Leases, delays and lifetimes are counted in *log time*: microseconds that were those of the wall clock when the log was made,
//! and follow a monotonic clock since. Records carry log time. A step of the wall clock changes nothing but the difference
//! between the two, which is looked at every second and stored in the log ([`ClockJumps`]), so that a time that is shown or named by a
//! person can be told from one that was counted. A start goes on behind the newest block, later by what the wall clock says that
//! the stop took; a clock that says less took no time.

mod jumps;
pub mod sim;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::{Mutex, RwLock};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::contract::{Log, ReadOptions};
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::format::frame::FrameKind;
use crate::format::record::{RecordRef, records};
use crate::ids::{Micros, PartitionId};
use crate::records::{Records, WriteBatch};

pub use jumps::{ClockJump, ClockJumps};

/// Where the jumps are stored. Made with the first of them.
pub(crate) const CLOCK: PartitionId = PartitionId::new(0, 3);

/// A wall clock that is off by less did not jump.
const JUMP_LEAST: Micros = 1_000_000;
/// Two readings of the monotonic clock that are further apart say nothing of the wall clock between them.
const READ_WITHIN: Micros = 50_000;
const READINGS: usize = 10;

/// What queues, subscriptions and retention ask for the time.
pub trait Clock: Send + Sync + 'static {
    /// Log time: never less than before, and not the wall clock's.
    fn now(&self) -> Micros;

    /// The same, some milliseconds behind at most, for what is decided in seconds.
    fn roughly_now(&self) -> Micros {
        self.now()
    }

    /// How far the wall clock is and was from log time.
    fn jumps(&self) -> Arc<ClockJumps> {
        ClockJumps::none()
    }

    /// Looks at the wall clock at once, and not within a second: before something is let go for what it was stamped with.
    fn notice(&self) {}

    /// What the wall clock shows, whether or not it was just set: what is stored for people is stamped with it.
    fn wall(&self) -> Micros {
        self.wall_at(self.now())
    }

    /// What the wall clock showed at a log time.
    fn wall_at(&self, time: Micros) -> Micros {
        self.jumps().wall_at(time)
    }

    /// When the wall clock will show a time, or last came to show it.
    fn at_wall(&self, wall: Micros) -> Micros {
        self.jumps().at_wall(wall)
    }

    /// What was stamped by the wall clock earlier than this is older than `age`. What was stamped later may be, if the clock was set.
    fn oldest_wall(&self, age: Micros) -> Micros {
        self.notice();
        let now = self.now();
        self.jumps().least_wall_since(now.saturating_sub(age), now)
    }
}

/// Any function that tells the time, and goes by no wall clock.
impl<F: Fn() -> Micros + Send + Sync + 'static> Clock for F {
    fn now(&self) -> Micros {
        self()
    }
}

/// What a machine has to tell the time by.
pub trait TimeSource: Send + Sync + 'static {
    /// Microseconds since 1970, UTC, as somebody or something has set them.
    fn wall(&self) -> Micros;

    /// Microseconds since some moment, never set, also while the machine is suspended.
    fn elapsed(&self) -> Micros;

    /// The same, some milliseconds behind at most.
    fn roughly_elapsed(&self) -> Micros {
        self.elapsed()
    }
}

/// This machine's clocks.
#[derive(Debug, Default)]
pub struct MachineTime {
    /// How long the machine was suspended, as of the last look at the wall clock.
    suspended: AtomicI64,
}

impl TimeSource for MachineTime {
    fn wall(&self) -> Micros {
        let suspended = elapsed_of(BOOT) - elapsed_of(ClockId::Monotonic);
        self.suspended.store(suspended, Ordering::Relaxed);
        wall_now()
    }

    fn elapsed(&self) -> Micros {
        elapsed_of(BOOT)
    }

    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn roughly_elapsed(&self) -> Micros {
        // The time of the last tick of the kernel, at a fifth of the cost: the processor's counter is not read.
        elapsed_of(ClockId::MonotonicCoarse) + self.suspended.load(Ordering::Relaxed)
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT: ClockId = ClockId::Boottime;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT: ClockId = ClockId::Monotonic;

fn elapsed_of(clock: ClockId) -> Micros {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(clock);
    tv_sec * 1_000_000 + tv_nsec / 1000
}

/// What the machine's wall clock shows.
pub fn wall_now() -> Micros {
    match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => since.as_micros() as Micros,
        Err(before) => -(before.duration().as_micros() as Micros),
    }
}

/// The wall clock, taken for log time: for what lives no longer than one look at it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        wall_now()
    }
}

/// The time of one log. Until [`resume`](LogClock::resume) it goes on from the newest block that was found, and of a new log from
/// the wall clock.
pub struct LogClock {
    source: Arc<dyn TimeSource>,
    /// Log time less what has elapsed.
    base: AtomicI64,
    starting: Mutex<ClockOrigin>,
    jumps: RwLock<Arc<ClockJumps>>,
    /// The newest jumps could not be stored yet.
    unstored: AtomicBool,
    /// Whoever stores the jumps.
    changing: tokio::sync::Mutex<()>,
}

/// By what a clock goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockOrigin {
    /// The wall clock: no log has been opened, or a new one.
    Wall,
    /// The newest block of the logs that have been opened.
    Found,
    /// The jumps of the log are known.
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

    /// Goes on where the log stopped. To be called before anything is decided by the time. Returns the jump that happened while
    /// nobody looked, if the wall clock has come to show less than before: more than before is the time that the stop took.
    pub async fn resume(&self, log: &dyn Log) -> Result<Option<ClockJump>> {
        let changing = self.changing.lock().await;
        let stored = stored(log)?;
        if matches!(stored, StoredJumps::Lost) {
            tracing::warn!("the jumps of the clock are lost: the time that the stop took is not counted");
        }
        self.go_on(stored, log.last_commit_time());
        let jump = self.take_in();
        drop(changing);
        // A full disk keeps no start away: the jump counts, and is stored at a later look.
        if let Err(error) = self.look(log).await {
            tracing::warn!(%error, "that the clock was set cannot be stored yet; it is tried again");
        }
        Ok(jump)
    }

    /// A log was opened whose newest block was written then; none if nothing was. What a start writes before the jumps are known
    /// must not be stamped by the wall clock: a later start would go on from there, with all that the two differ by.
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
        // What was lost is stored anew at once, so that the next stop counts again.
        self.unstored
            .store(matches!(stored, StoredJumps::Lost), Ordering::Relaxed);
        let jumps = match stored {
            StoredJumps::Never => ClockJumps::none(),
            StoredJumps::Jumps(jumps) => Arc::new(jumps),
            // How the two differed is not known, so nothing may be counted by the difference.
            StoredJumps::Lost => Arc::new(ClockJumps::starting_with(wall.saturating_sub(last_commit))),
        };
        let last_jump = jumps.newest().map_or(Micros::MIN, |jump| jump.at);
        let time = last_jump.max(last_commit).max(wall.saturating_sub(jumps.offset()));
        self.base.store(time - elapsed, Ordering::Relaxed);
        *self.jumps.write() = jumps;
    }

    /// Compares the wall clock with what has elapsed; a jump counts when it returns and is stored. To be called every second.
    pub async fn look(&self, log: &dyn Log) -> Result<Option<ClockJump>> {
        let _changing = self.changing.lock().await;
        let jump = self.take_in();
        if self.unstored.load(Ordering::Relaxed) {
            self.store(log).await?;
            self.unstored.store(false, Ordering::Relaxed);
        }
        Ok(jump)
    }

    /// What the wall clock is ahead of log time, in microseconds, as it was last looked at.
    pub fn offset(&self) -> Micros {
        self.jumps().offset()
    }

    /// A jump, if there was one. It counts from now on, whatever becomes of its record: time goes on if a disk is full.
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

    /// Wall clock and elapsed time of one moment.
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
        record.push(&RecordRef::of(self.now(), &self.jumps().encode()))?;
        let appended = log
            .append(WriteBatch::default().and_of(FrameKind::State, CLOCK, record), None)
            .await?;
        // Each record has all that counts.
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
    /// It has, and nobody knows how.
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
            // Somebody has already been told, and has said that it may be given up.
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
                let jumps = record.ok().and_then(|record| ClockJumps::decode(record.value));
                newest = jumps.map_or(StoredJumps::Lost, StoredJumps::Jumps);
            }
            from = frame.header.next();
        }
    }
    Ok(newest)
}
