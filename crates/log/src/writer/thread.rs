//! The thread that commits. It gathers no longer than it pays: what came while the last block was being synced is the
//! next group, and only if that group is smaller than the last one it waits for the rest, at most for `linger`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use super::core::{Core, Submission};
use crate::error::{LogError, Result};
use crate::ids::Micros;
use crate::partition::Partition;

/// After so long without work the writer notes what it has synced.
const IDLE: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// The longest wait for a group to become as large as the last one; zero: never.
    pub linger: Duration,
    /// The age at which what was only written is synced.
    pub interval: Duration,
    /// Bytes that may wait; more have to wait outside.
    pub waiting_bytes_max: usize,
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    room: Notify,
    pace: Pace,
}

#[derive(Default)]
struct Inbox {
    waiting: VecDeque<Submission>,
    bytes: usize,
    partitions: Vec<Arc<Partition>>,
    closing: bool,
    poison: Option<Arc<str>>,
    /// The writer sleeps until so many submissions are there.
    wake_at: usize,
}

impl Writer {
    pub fn start(core: Core, pace: Pace) -> std::io::Result<Writer> {
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            room: Notify::new(),
            pace,
        });
        let own = shared.clone();
        let thread = std::thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || own.run(core))?;
        Ok(Writer {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Hands a submission over, waiting while too much waits already. It is answered through its own channel.
    pub async fn submit(&self, submission: Submission) -> Result<()> {
        let mut submission = Some(submission);
        loop {
            let room = self.shared.room.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            if self.shared.try_push(&mut submission)? {
                return Ok(());
            }
            room.await;
        }
    }

    /// Makes a partition known, before its first submission.
    pub fn add_partition(&self, partition: Arc<Partition>) {
        self.shared.inbox.lock().partitions.push(partition);
    }

    /// Commits what was submitted, syncs it and ends. Later submissions are refused.
    pub fn close(&self) {
        self.shared.inbox.lock().closing = true;
        self.shared.arrived.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Whether the submission was taken; `false` if there is no room for it now.
    fn try_push(&self, submission: &mut Option<Submission>) -> Result<bool> {
        let mut inbox = self.inbox.lock();
        if let Some(cause) = &inbox.poison {
            return Err(LogError::Poisoned { cause: cause.clone() });
        }
        if inbox.closing {
            return Err(LogError::Closed);
        }
        let bytes = submission.as_ref().map_or(0, |submission| submission.bytes);
        if !inbox.waiting.is_empty() && inbox.bytes + bytes > self.pace.waiting_bytes_max {
            return Ok(false);
        }
        inbox.bytes += bytes;
        inbox.waiting.extend(submission.take());
        // The writer is called once, when there is enough for it.
        if inbox.waiting.len() == inbox.wake_at {
            drop(inbox);
            self.arrived.notify_one();
        }
        Ok(true)
    }

    fn run(&self, mut core: Core) {
        let (mut waiting, mut previous, mut marked) = (VecDeque::new(), 1, true);
        loop {
            let closing = self.take(&mut core, &mut waiting, previous, &mut marked);
            while !waiting.is_empty() {
                previous = core.commit(&mut waiting, now()).max(1);
                marked = false;
            }
            self.sync_if_due(&mut core);
            if let Some(cause) = core.poison() {
                self.inbox.lock().poison = Some(cause.clone());
                // Those who wait outside learn it now.
                self.room.notify_waiters();
            }
            if closing {
                // Those who were too late for the last group.
                let mut inbox = self.inbox.lock();
                for submission in inbox.waiting.drain(..) {
                    let _ = submission.done.send(Err(LogError::Closed));
                }
                drop(inbox);
                if core.sync().is_ok() && core.has_news() {
                    let _ = core.mark(now()).and_then(|()| core.sync());
                }
                return;
            }
        }
    }

    /// Waits for submissions and takes them all. Returns whether they are the last.
    fn take(&self, core: &mut Core, waiting: &mut VecDeque<Submission>, previous: usize, marked: &mut bool) -> bool {
        let mut inbox = self.inbox.lock();
        while inbox.waiting.is_empty() && !inbox.closing {
            inbox.wake_at = 1;
            let timed_out = self.arrived.wait_for(&mut inbox, self.patience(core)).timed_out();
            if timed_out && inbox.waiting.is_empty() {
                drop(inbox);
                self.sync_if_due(core);
                if !*marked && core.has_news() {
                    // Failing, it poisons the log, which the next submission is told.
                    let _ = core.mark(now());
                    *marked = true;
                }
                inbox = self.inbox.lock();
            }
        }
        if inbox.waiting.len() < previous && !self.pace.linger.is_zero() && !inbox.closing {
            let until = Instant::now() + self.pace.linger;
            inbox.wake_at = previous;
            while inbox.waiting.len() < previous && !self.arrived.wait_until(&mut inbox, until).timed_out() {}
        }
        inbox.wake_at = 0;
        waiting.append(&mut inbox.waiting);
        inbox.bytes = 0;
        for partition in inbox.partitions.drain(..) {
            core.add_partition(partition);
        }
        let closing = inbox.closing;
        drop(inbox);
        self.room.notify_waiters();
        closing
    }

    fn patience(&self, core: &Core) -> Duration {
        let Some(since) = core.unsynced_since() else {
            return IDLE;
        };
        let age = Duration::from_micros((now() - since).max(0) as u64);
        self.pace.interval.saturating_sub(age).min(IDLE)
    }

    fn sync_if_due(&self, core: &mut Core) {
        let old = |since: Micros| now() - since >= self.pace.interval.as_micros() as Micros;
        if core.unsynced_since().is_some_and(old) {
            // Failing, it poisons the log, which the next submission is told.
            let _ = core.sync();
        }
    }
}

pub(crate) fn now() -> Micros {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as Micros
}
