//! The commit thread. It waits only as long as it pays off: submissions that arrived during the last sync form the next
//! group, and only if that group is smaller than the last one does it wait for more, at most for `linger`.

use std::collections::VecDeque;
use std::future::Future;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use thalweg_kit::threads;
use thalweg_kit::threads::{Condvar, JoinHandle};
use tokio::sync::oneshot::error::TryRecvError;
use tokio::sync::{Notify, oneshot};

use super::core::{Submission, SubmissionParts, WriterCore};
use super::group::SubmissionPart;
use super::inbox::{Inbox, QueuedSubmission};
use super::slots::SlotAllocator;
use crate::clock::{Clock as _, LogClock};
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::measure::LogMetrics;
use crate::partition::Partition;

/// After this idle time the writer records the synced sequence.
const IDLE: Duration = Duration::from_secs(1);
/// The polling interval of a barrier.
const BARRIER_LOOK: Duration = Duration::from_millis(1);

/// The maximum age of journaled records. They are written with the next block, or in one of their own if none comes in
/// this time.
const JOURNAL_MAX_AGE: Duration = Duration::from_millis(10);

/// If the last group did not return within the linger, that many groups are not expected to return.
const DOUBTS: u32 = 16;

/// The timer slack of the writer thread. The kernel's default is as long as the whole linger.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::new(2_000).expect("it is not zero");

#[derive(Clone, Debug)]
pub(crate) struct WriterOptions {
    /// Provides the commit time of blocks.
    pub clock: Arc<LogClock>,
    /// The longest wait for a group to become as large as the last one. Zero: never wait.
    pub linger: Duration,
    /// Maximum number of waiting bytes. Further submissions wait outside.
    pub waiting_bytes_max: usize,
}

pub(crate) struct LogWriter {
    shared: Arc<LogWriterShared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct LogWriterShared {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    pace: WriterOptions,
    /// Lock order: before the inbox. Never locked while the inbox is.
    slots: Arc<Mutex<SlotAllocator>>,
    /// Notified when the log is poisoned or closed.
    over: Notify,
    measures: Arc<LogMetrics>,
}

/// Estimates the number of submissions in the next group.
#[derive(Default)]
struct GroupSizeEstimate {
    /// The number of waiters in the last group.
    answered: usize,
    /// The number of submissions that arrived during the last sync.
    came: usize,
    /// The number of further groups that are not expected to exceed the last one.
    doubts: u32,
}

impl LogWriter {
    pub fn start(
        core: WriterCore,
        pace: WriterOptions,
        slots: Arc<Mutex<SlotAllocator>>,
    ) -> std::io::Result<LogWriter> {
        let shared = Arc::new(LogWriterShared {
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            pace,
            slots,
            over: Notify::new(),
            measures: core.measures.clone(),
        });
        let own = shared.clone();
        let thread = threads::spawn("log-writer", move || own.run(core))?;
        Ok(LogWriter {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Hands over a submission and waits while too much is queued. The reply comes through the submission's own
    /// channel.
    pub async fn submit(&self, submission: Submission) -> Result<()> {
        // There is almost always room, and registering as a waiter costs a lock.
        let Some(waiting) = self.shared.push(submission)? else {
            return Ok(());
        };
        let began = thalweg_kit::clock::now();
        while !waiting.is_over()? {
            waiting.called().await;
        }
        self.shared.measures.admission_us.observe_time(began.elapsed());
        Ok(())
    }

    /// Triggers a sync of everything written so far, without waiting for it.
    pub fn ask_for_sync(&self) {
        // If the log is poisoned or closed, nothing can be synced.
        let _ = self.shared.push(Submission {
            parts: SubmissionParts::new(),
            durability: Durability::Fsync,
            bytes: 0,
            done: None,
            for_files: false,
            frees: false,
        });
    }

    pub fn measures(&self) -> Arc<LogMetrics> {
        self.shared.measures.clone()
    }

    /// The number of submissions that did not have to wait.
    pub fn admitted(&self) -> u64 {
        self.shared.inbox.lock().admitted
    }

    /// Resolves when the log refuses writes, with the reason, or with `None` if it was closed normally.
    pub fn over(&self) -> impl Future<Output = Option<Arc<str>>> + Send + 'static {
        let shared = self.shared.clone();
        async move {
            loop {
                let over = shared.over.notified();
                tokio::pin!(over);
                over.as_mut().enable();
                {
                    let inbox = shared.inbox.lock();
                    if inbox.poison.is_some() || inbox.closed {
                        return inbox.poison.clone();
                    }
                }
                over.await;
            }
        }
    }

    /// Signals the first journaled records of a partition since its last block.
    pub fn journaled(&self, partition: &Arc<Partition>) {
        let mut inbox = self.shared.inbox.lock();
        inbox.dirty.push(partition.clone());
        // The writer may be in its long sleep.
        if inbox.dirty_since.is_none() {
            inbox.dirty_since = Some(thalweg_kit::clock::now());
            drop(inbox);
            self.shared.arrived.notify_one();
        }
    }

    /// Why the log refuses writes.
    pub fn poison(&self) -> Option<Arc<str>> {
        self.shared.inbox.lock().poison.clone()
    }

    /// Poisons the log after a failure outside of the writer.
    pub fn fail(&self, cause: &Arc<str>) {
        self.shared.poison(cause);
        self.shared.arrived.notify_one();
    }

    /// Returns true when everything submitted and journaled before survives a power cut; on a full disk only the
    /// journaled changes of partitions must. Returns false if `give_up` returns true first. Blocks.
    pub fn barrier(&self, give_up: &dyn Fn() -> bool) -> Result<bool> {
        let (done, mut answer) = oneshot::channel();
        // It has no bytes, so it does not wait for room.
        self.shared.push(Submission {
            parts: SubmissionParts::new(),
            durability: Durability::Fsync,
            bytes: 0,
            done: Some(done),
            for_files: true,
            frees: false,
        })?;
        loop {
            match answer.try_recv() {
                Ok(done) => return done.map(|_| true),
                Err(TryRecvError::Closed) => return Err(LogError::Closed),
                Err(TryRecvError::Empty) if give_up() => return Ok(false),
                Err(TryRecvError::Empty) => threads::sleep(BARRIER_LOOK),
            }
        }
    }

    /// Registers a partition. Call it before the partition's first submission.
    pub fn add_partition(&self, partition: Arc<Partition>) {
        self.shared.inbox.lock().partitions.push(partition);
    }

    /// Unregisters partitions. Their slots are reused when no reference to them can follow.
    pub fn remove_partitions(&self, gone: &[Arc<Partition>]) {
        let gone = gone.iter().map(|partition| (partition.slot, partition.id));
        self.shared.inbox.lock().removed.extend(gone);
    }

    /// Changes the durability of a partition for later submissions.
    pub fn set_durability(&self, partition: Arc<Partition>, durability: Durability) {
        self.shared.inbox.lock().promises.push((partition, durability));
    }

    /// Commits and syncs everything submitted, then stops. Later submissions are refused.
    pub fn close(&self) {
        self.shared.inbox.lock().closing = true;
        self.shared.arrived.notify_one();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl GroupSizeEstimate {
    /// The submitters of the last group are expected to return and to join those who arrived meanwhile. Otherwise two
    /// groups that formed by chance would alternate forever, with two syncs where one suffices.
    fn submissions(&self) -> usize {
        if self.doubts > 0 {
            return self.answered;
        }
        self.answered + self.came
    }

    /// Updates the estimate with the number of submissions after the linger. Submitters that do not wait for a reply do
    /// not return because of it.
    fn learn(&mut self, there: usize) {
        let back = there.saturating_sub(self.came);
        self.doubts = match self.doubts {
            0 if self.came > 0 && back < self.answered / 2 => DOUBTS,
            doubts => doubts.saturating_sub(1),
        };
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.close();
    }
}

impl LogWriterShared {
    fn push(&self, submission: Submission) -> Result<Option<QueuedSubmission<'_>>> {
        let mut inbox = self.inbox.lock();
        if let Some(refused) = inbox.refuses() {
            return Err(refused);
        }
        let most = self.pace.waiting_bytes_max;
        if let Some(place) = inbox.push(submission, most) {
            return Ok(Some(QueuedSubmission::new(&self.inbox, place, most)));
        }
        // The writer is woken once, when enough submissions are waiting.
        if inbox.waiting.len() == inbox.wake_at {
            drop(inbox);
            self.arrived.notify_one();
        }
        Ok(None)
    }

    /// Wakes queued submitters and observers when the log is poisoned.
    fn poison(&self, cause: &Arc<str>) {
        let mut inbox = self.inbox.lock();
        inbox.poison.get_or_insert_with(|| cause.clone());
        inbox.line.call_all();
        drop(inbox);
        self.over.notify_waiters();
    }

    fn run(&self, mut core: WriterCore) {
        // If the call fails, groups are slightly smaller.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK));
        let (mut waiting, mut expected, mut marked) = (VecDeque::new(), GroupSizeEstimate::default(), true);
        loop {
            let closing = self.take(&mut core, &mut waiting, &mut expected, &mut marked);
            while !waiting.is_empty() {
                expected.came = 0;
                let count = || expected.came = self.inbox.lock().waiting.len();
                let began = thalweg_kit::clock::now();
                expected.answered = core.commit_with(&mut waiting, self.pace.clock.now(), count);
                self.measures.commit_us.observe_time(began.elapsed());
                marked = false;
            }
            core.sync_if_due();
            let held = core.take_held();
            if !held.is_empty() {
                // They are retried with the next block or after a pause.
                self.inbox.lock().dirty.extend(held);
            }
            self.tell_poison(&core);
            if closing {
                // Submissions that came too late for the last group.
                let mut inbox = self.inbox.lock();
                for done in inbox.waiting.drain(..).filter_map(|submission| submission.done) {
                    let _ = done.send(Err(LogError::Closed));
                }
                drop(inbox);
                core.close(self.pace.clock.now());
                self.tell_poison(&core);
                self.inbox.lock().closed = true;
                self.over.notify_waiters();
                return;
            }
        }
    }

    fn tell_poison(&self, core: &WriterCore) {
        if let Some(cause) = core.poison() {
            self.poison(cause);
        }
    }

    /// Waits for submissions and takes all of them. Returns whether they are the last.
    fn take(
        &self,
        core: &mut WriterCore,
        waiting: &mut VecDeque<Submission>,
        expected: &mut GroupSizeEstimate,
        marked: &mut bool,
    ) -> bool {
        let mut inbox = self.inbox.lock();
        // The waiters of the last group submit again about now. Waking up for the first of them only to wait for the
        // others would cost one more context switch per block.
        let mut gathers = expected.answered > 1 && !self.pace.linger.is_zero();
        if gathers {
            self.gather(&mut inbox, expected.submissions());
            expected.learn(inbox.waiting.len());
            gathers = inbox.waiting.is_empty();
        }
        let mut idle_since = None;
        while inbox.waiting.is_empty() && !inbox.closing {
            inbox.wake_at = 1;
            let journal_age = inbox.dirty_since.map(|since| since.elapsed());
            if journal_age.is_some_and(|age| age >= JOURNAL_MAX_AGE) {
                break;
            }
            let idle = idle_since.get_or_insert_with(thalweg_kit::clock::now).elapsed();
            let patience = patience(core, idle, journal_age);
            let timed_out = self.arrived.wait_for(&mut inbox, patience).timed_out();
            if timed_out && inbox.waiting.is_empty() {
                let rested = inbox.dirty_since.is_none() && idle + patience >= IDLE;
                if rested && !inbox.dirty.is_empty() {
                    // The disk was full and may have room again.
                    break;
                }
                drop(inbox);
                core.sync_if_due();
                if rested && !*marked && core.has_news() {
                    core.rest(self.pace.clock.now());
                    *marked = true;
                }
                // A failure of either poisons the log.
                self.tell_poison(core);
                inbox = self.inbox.lock();
            }
        }
        if gathers && !inbox.waiting.is_empty() {
            // The first of them took longer than the linger.
            self.gather(&mut inbox, expected.answered);
        }
        inbox.wake_at = 0;
        for partition in inbox.partitions.drain(..) {
            core.add_partition(partition);
        }
        // Journaled records precede the submissions: callers that journal and then submit rely on that order.
        inbox.dirty_since = None;
        let journals = std::mem::take(&mut inbox.dirty);
        waiting.extend(journals.iter().flat_map(submissions_of));
        if waiting.is_empty() {
            std::mem::swap(waiting, &mut inbox.waiting);
        } else {
            waiting.append(&mut inbox.waiting);
        }
        inbox.bytes = 0;
        if let Some(cause) = &inbox.poison {
            core.set_poison(cause);
        }
        let closing = inbox.closing;
        match closing {
            true => inbox.line.call_all(),
            false => inbox.serve(self.pace.waiting_bytes_max),
        }
        let promises = std::mem::take(&mut inbox.promises);
        let removed = std::mem::take(&mut inbox.removed);
        drop(inbox);
        for (partition, durability) in promises {
            core.set_durability(&partition, durability);
        }
        if !removed.is_empty() {
            removed.iter().for_each(|(slot, id)| core.remove_partition(*slot, *id));
            // A partition that gets one of these slots is registered with a later block, after what was taken now.
            self.slots.lock().free(removed.into_iter().map(|(slot, _)| slot));
        }
        closing
    }

    /// Waits until `size` submissions are waiting, at most for the linger.
    fn gather(&self, inbox: &mut MutexGuard<'_, Inbox>, size: usize) {
        if inbox.waiting.len() >= size {
            return;
        }
        let until = thalweg_kit::clock::now() + self.pace.linger;
        inbox.wake_at = size;
        while inbox.waiting.len() < size && !inbox.closing {
            if self.arrived.wait_until(inbox, until).timed_out() {
                break;
            }
        }
    }
}

/// How long to sleep without a notification, after being idle for some time.
fn patience(core: &WriterCore, idle: Duration, journal_age: Option<Duration>) -> Duration {
    let rest = IDLE.checked_sub(idle).filter(|rest| !rest.is_zero()).unwrap_or(IDLE);
    let journal = journal_age.map(|age| JOURNAL_MAX_AGE.saturating_sub(age));
    journal.into_iter().chain(core.due_in()).fold(rest, Duration::min)
}

/// The journaled records of a partition as submissions without a waiter.
fn submissions_of(partition: &Arc<Partition>) -> impl Iterator<Item = Submission> {
    let parts = partition.take_journal().into_iter();
    parts.map(|(kind, records)| Submission {
        bytes: records.bytes(),
        parts: [SubmissionPart::of(partition, kind, records)].into(),
        durability: partition.durability(),
        done: None,
        for_files: false,
        frees: false,
    })
}
