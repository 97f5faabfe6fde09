//! The thread that commits. It gathers no longer than it pays: what came while the last block was being synced is the
//! next group, and only if that group is smaller than the last one it waits for the rest, at most for `linger`.

use std::collections::VecDeque;
use std::future::Future;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
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

/// After so long without work the writer notes what it has synced.
const IDLE: Duration = Duration::from_secs(1);
/// Who waits for a barrier looks this often whether it still has to.
const BARRIER_LOOK: Duration = Duration::from_millis(1);

/// What was journaled goes with the next block, and if there is none for so long, in one of its own.
const JOURNAL_MAX_AGE: Duration = Duration::from_millis(10);

/// After the last group did not come back within the linger it is not expected to for so many groups.
const DOUBTS: u32 = 16;

/// The kernel may wake the writer so much later than it asked for: by default as late as the whole linger.
const TIMER_SLACK: NonZeroU64 = NonZeroU64::new(2_000).expect("it is not zero");

#[derive(Clone, Debug)]
pub(crate) struct WriterOptions {
    /// Says when a block was written.
    pub clock: Arc<LogClock>,
    /// The longest wait for a group to become as large as the last one; zero: never.
    pub linger: Duration,
    /// Bytes that may wait; more have to wait outside.
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
    /// Taken by those who make partitions, before the inbox; never with the inbox held.
    slots: Arc<Mutex<SlotAllocator>>,
    /// The log is poisoned, or closed.
    over: Notify,
    measures: Arc<LogMetrics>,
}

/// How many submissions the next group is likely to have.
#[derive(Default)]
struct GroupSizeEstimate {
    /// Those of the last group who were waiting.
    answered: usize,
    /// Those who came while it was synced.
    came: usize,
    /// So many groups more are not waited for beyond the size of the last one.
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
        let thread = std::thread::Builder::new()
            .name("log-writer".to_owned())
            .spawn(move || own.run(core))?;
        Ok(LogWriter {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Hands a submission over, waiting for its turn while too much waits already. It is answered through its own channel.
    pub async fn submit(&self, submission: Submission) -> Result<()> {
        // There is room nearly always, and to be told of it costs a lock.
        let Some(waiting) = self.shared.push(submission)? else {
            return Ok(());
        };
        let began = Instant::now();
        while !waiting.is_over()? {
            waiting.called().await;
        }
        self.shared.measures.admission_us.observe_time(began.elapsed());
        Ok(())
    }

    /// Has what was written so far synced soon. Nobody waits for it.
    pub fn ask_for_sync(&self) {
        // Poisoned or closed: there is nobody to sync.
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

    /// Submissions that found room at once.
    pub fn admitted(&self) -> u64 {
        self.shared.inbox.lock().admitted
    }

    /// Returns as soon as nothing is taken any more, with the reason; `None` when the log was closed without one.
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

    /// Something was journaled for a partition, the first since its last block.
    pub fn journaled(&self, partition: &Arc<Partition>) {
        let mut inbox = self.shared.inbox.lock();
        inbox.dirty.push(partition.clone());
        // The writer may be in its long sleep.
        if inbox.dirty_since.is_none() {
            inbox.dirty_since = Some(Instant::now());
            drop(inbox);
            self.shared.arrived.notify_one();
        }
    }

    /// Why nothing is taken any more.
    pub fn poison(&self) -> Option<Arc<str>> {
        self.shared.inbox.lock().poison.clone()
    }

    /// Nothing may be taken any more: somebody beside the writer has failed to store something.
    pub fn fail(&self, cause: &Arc<str>) {
        self.shared.poison(cause);
        self.shared.arrived.notify_one();
    }

    /// Returns true when everything that was submitted and journaled before survives a power cut, or, while the disk is full,
    /// what was journaled of partitions; false if `give_up` said so before. Blocks.
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
                Err(TryRecvError::Empty) => std::thread::sleep(BARRIER_LOOK),
            }
        }
    }

    /// Makes a partition known, before its first submission.
    pub fn add_partition(&self, partition: Arc<Partition>) {
        self.shared.inbox.lock().partitions.push(partition);
    }

    /// Partitions are gone: their slots are free for others as soon as nothing of them can come any more.
    pub fn remove_partitions(&self, gone: &[Arc<Partition>]) {
        let gone = gone.iter().map(|partition| (partition.slot, partition.id));
        self.shared.inbox.lock().removed.extend(gone);
    }

    /// What is submitted from now on finds a partition in another mode.
    pub fn set_durability(&self, partition: Arc<Partition>, durability: Durability) {
        self.shared.inbox.lock().promises.push((partition, durability));
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

impl GroupSizeEstimate {
    /// The last group comes back, and joins those who came meanwhile: without them two groups that have formed by chance
    /// would take turns for ever, with two syncs for what one could do.
    fn submissions(&self) -> usize {
        if self.doubts > 0 {
            return self.answered;
        }
        self.answered + self.came
    }

    /// After the linger so many were there. Who does not wait for an answer before he goes on does not come back because
    /// of it.
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
        // The writer is called once, when there is enough for it.
        if inbox.waiting.len() == inbox.wake_at {
            drop(inbox);
            self.arrived.notify_one();
        }
        Ok(None)
    }

    /// Those who stand in line, and whoever watches, learn at once that nothing is taken any more.
    fn poison(&self, cause: &Arc<str>) {
        let mut inbox = self.inbox.lock();
        inbox.poison.get_or_insert_with(|| cause.clone());
        inbox.line.call_all();
        drop(inbox);
        self.over.notify_waiters();
    }

    fn run(&self, mut core: WriterCore) {
        // Refused, the groups are a little smaller.
        let _ = rustix::thread::set_current_timer_slack(Some(TIMER_SLACK));
        let (mut waiting, mut expected, mut marked) = (VecDeque::new(), GroupSizeEstimate::default(), true);
        loop {
            let closing = self.take(&mut core, &mut waiting, &mut expected, &mut marked);
            while !waiting.is_empty() {
                expected.came = 0;
                let count = || expected.came = self.inbox.lock().waiting.len();
                let began = Instant::now();
                expected.answered = core.commit_with(&mut waiting, self.pace.clock.now(), count);
                self.measures.commit_us.observe_time(began.elapsed());
                marked = false;
            }
            core.sync_if_due();
            let held = core.take_held();
            if !held.is_empty() {
                // Tried again with the next block, or after a rest.
                self.inbox.lock().dirty.extend(held);
            }
            self.tell_poison(&core);
            if closing {
                // Those who were too late for the last group.
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

    /// Waits for submissions and takes them all. Returns whether they are the last.
    fn take(
        &self,
        core: &mut WriterCore,
        waiting: &mut VecDeque<Submission>,
        expected: &mut GroupSizeEstimate,
        marked: &mut bool,
    ) -> bool {
        let mut inbox = self.inbox.lock();
        // Those who were answered come back now. To be woken by the first of them, only to wait for the others, would be
        // one switch of threads more for each block.
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
            let idle = idle_since.get_or_insert_with(Instant::now).elapsed();
            let patience = patience(core, idle, journal_age);
            let timed_out = self.arrived.wait_for(&mut inbox, patience).timed_out();
            if timed_out && inbox.waiting.is_empty() {
                let rested = inbox.dirty_since.is_none() && idle + patience >= IDLE;
                if rested && !inbox.dirty.is_empty() {
                    // The disk was full; it may have room again.
                    break;
                }
                drop(inbox);
                core.sync_if_due();
                if rested && !*marked && core.has_news() {
                    core.rest(self.pace.clock.now());
                    *marked = true;
                }
                // Failing, both poison the log.
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
        // Before what was submitted: who submits after he has journaled may count on that.
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
            // Whoever gets one of them comes with a later block, behind what was taken now.
            self.slots.lock().free(removed.into_iter().map(|(slot, _)| slot));
        }
        closing
    }

    /// Waits until so many submissions are there, at most for the linger.
    fn gather(&self, inbox: &mut MutexGuard<'_, Inbox>, size: usize) {
        if inbox.waiting.len() >= size {
            return;
        }
        let until = Instant::now() + self.pace.linger;
        inbox.wake_at = size;
        while inbox.waiting.len() < size && !inbox.closing {
            if self.arrived.wait_until(inbox, until).timed_out() {
                break;
            }
        }
    }
}

/// How long to sleep, idle for some time already, if nobody calls.
fn patience(core: &WriterCore, idle: Duration, journal_age: Option<Duration>) -> Duration {
    let rest = IDLE.checked_sub(idle).filter(|rest| !rest.is_zero()).unwrap_or(IDLE);
    let journal = journal_age.map(|age| JOURNAL_MAX_AGE.saturating_sub(age));
    journal.into_iter().chain(core.due_in()).fold(rest, Duration::min)
}

/// What was journaled for a partition, for which nobody waits.
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
