//! Admission: the depth, byte and memory limits for producers, checked under one lock before anything is stored.
//!
//! A producer counts its messages in before it stores them, so the limits hold for any number of concurrent producers.
//! An admitted message is in every group's backlog at once. When a group settles messages, the freed room goes to
//! waiting producers first (`admission/backpressure.rs`). A new group is registered while no message is between
//! admission and storage ([`AdmissionGate::still`]), so its backlog is exact.

mod backpressure;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_log::wait_queue::WaitQueue;

use crate::budget;
use crate::depth::Depth;
use crate::group::Group;
use crate::settings::{QueueSettings, RetentionMode};
pub(crate) use backpressure::AdmissionGate;

/// Counts of stored and in-progress messages, and the limits that apply to them.
pub(crate) struct Admission {
    /// Bytes of messages that are stored or being stored.
    bytes: u64,
    /// The part of `bytes` that is being stored.
    storing_bytes: u64,
    storing: u64,
    /// Messages that are retained or being stored.
    retained: u64,
    /// Since the process started.
    enqueued: u64,
    /// Bytes freed since the process started.
    trimmed_bytes: u64,
    /// Includes messages being stored. Groups compute their backlogs from it. Changed only here.
    total: Arc<AtomicU64>,
    /// The queue's settings.
    settings: Arc<QueueSettings>,
    groups: Arc<Vec<Arc<Group>>>,
    depth: Depth,
    /// Waiting producers. Between two changes, either the first of them does not fit or the queue is quiesced.
    line: WaitQueue<AdmissionRequest>,
    /// Number of quiesce guards. While it is above zero, no producer may begin to store.
    held_still: u32,
    /// The queue was removed; no producer is admitted any more.
    is_closed: bool,
    /// Set for a queue in memory.
    memory: Option<budget::Allowance>,
}

/// The messages that a producer wants to store together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmissionRequest {
    pub count: u64,
    pub bytes: u64,
}

/// The bytes at one moment, from which a recount of them begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountedBytes {
    bytes: u64,
    trimmed: u64,
}

/// A limit's settings key and its value.
pub(crate) type AdmissionLimit = (&'static str, u64);

/// Key of the only limit that settling relieves; the other limits require bytes to be freed.
pub(crate) const MAX_DEPTH: &str = "max_depth";
const MAX_BYTES: &str = "max_bytes";
const QUEUES_MEMORY: &str = "queues.memory";

/// Approximate memory overhead per message, beside its bytes.
const MESSAGE_BYTES: u64 = 64;

impl Admission {
    fn new(settings: Arc<QueueSettings>, memory: Option<budget::Allowance>) -> Admission {
        Admission {
            bytes: 0,
            storing_bytes: 0,
            storing: 0,
            retained: 0,
            enqueued: 0,
            trimmed_bytes: 0,
            total: Arc::default(),
            settings,
            groups: Arc::default(),
            depth: Depth::default(),
            line: WaitQueue::default(),
            held_still: 0,
            is_closed: false,
            memory,
        }
    }

    /// Messages that are retained or being stored.
    pub fn retained(&self) -> u64 {
        self.retained
    }

    /// Bytes of messages that are stored or being stored.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of stored messages.
    pub fn stored_bytes(&self) -> u64 {
        self.bytes.saturating_sub(self.storing_bytes)
    }

    /// Messages since the process started.
    pub fn enqueued(&self) -> u64 {
        self.enqueued
    }

    pub fn settings(&self) -> &QueueSettings {
        &self.settings
    }

    pub fn groups(&self) -> &[Arc<Group>] {
        &self.groups
    }

    pub fn set_settings(&mut self, settings: Arc<QueueSettings>) {
        self.settings = settings;
    }

    /// Counts messages and bytes that a start has found.
    pub fn found(&mut self, count: u64, bytes: u64) {
        self.retained += count;
        self.bytes += bytes;
    }

    pub fn retained_less(&mut self, count: u64) {
        self.retained = self.retained.saturating_sub(count);
    }

    /// Counts messages and their bytes out.
    pub fn gone(&mut self, count: u64, bytes: u64) {
        self.retained_less(count);
        self.bytes_left(self.bytes.saturating_sub(bytes));
    }

    /// Counts out trimmed messages, which are the oldest retained ones.
    pub fn trimmed(&mut self, count: u64, bytes: u64) {
        self.trimmed_bytes += bytes;
        self.gone(count, bytes);
    }

    pub fn counted_bytes(&self) -> CountedBytes {
        CountedBytes {
            bytes: self.bytes,
            trimmed: self.trimmed_bytes,
        }
    }

    /// Corrects the bytes counted at an earlier moment: of the messages stored by then, `stored` bytes are left now.
    pub fn recount(&mut self, then: CountedBytes, stored: u64) {
        let stored = stored + (self.trimmed_bytes - then.trimmed);
        self.bytes_left((self.bytes + stored).saturating_sub(then.bytes));
    }

    fn bytes_left(&mut self, bytes: u64) {
        self.bytes = bytes;
        if let Some(memory) = &mut self.memory {
            memory.shrinks(bytes + self.retained * MESSAGE_BYTES);
        }
    }

    /// The largest backlog of any work group. Without work groups: what the slowest declared stream group has not
    /// committed. Without those: the number of retained messages.
    pub fn depth(&self) -> u64 {
        Depth::of(&self.groups).unwrap_or(self.retained)
    }

    /// Replaces the groups that are counted.
    pub fn set_groups(&mut self, groups: Arc<Vec<Arc<Group>>>) {
        self.groups = groups;
        self.depth = Depth::default();
    }

    /// Messages that some group has yet to read, or that are retained anyway.
    fn kept(&self) -> u64 {
        let by_policy = self.settings.retention.mode == RetentionMode::Policy;
        let unread = self.groups.iter().map(|group| group.backlog()).max();
        match unread {
            Some(unread) if !by_policy => unread,
            _ => self.retained,
        }
    }

    /// Recomputes the depth after a group sought back, or began or ceased to count.
    fn count_anew(&mut self) {
        self.depth = Depth::default();
    }

    /// The limit that this request would exceed now.
    pub fn limit(&mut self, wanted: AdmissionRequest) -> Option<AdmissionLimit> {
        let AdmissionRequest { count, bytes } = wanted;
        let (depth, most) = (self.settings.max_depth, self.settings.max_bytes);
        let total = self.total.load(Ordering::Relaxed);
        if depth > 0 && self.depth.is_beyond(depth, count, (&self.groups, total, self.retained)) {
            return Some((MAX_DEPTH, depth));
        }
        if most > 0 && self.bytes + bytes > most {
            return Some((MAX_BYTES, most));
        }
        let memory = self.memory.as_mut()?;
        let needed = self.bytes + bytes + (self.retained + count) * MESSAGE_BYTES;
        (!memory.reaches(needed)).then(|| (QUEUES_MEMORY, memory.limit()))
    }

    /// The limit that this request would exceed even in an empty queue.
    fn never(&self, wanted: AdmissionRequest) -> Option<AdmissionLimit> {
        let AdmissionRequest { count, bytes } = wanted;
        let memory = self.memory.as_ref().map_or(0, budget::Allowance::limit);
        [
            (MAX_DEPTH, count, self.settings.max_depth),
            (MAX_BYTES, bytes, self.settings.max_bytes),
            (QUEUES_MEMORY, bytes + count * MESSAGE_BYTES, memory),
        ]
        .into_iter()
        .find(|(_, wanted, limit)| *limit > 0 && wanted > limit)
        .map(|(key, _, limit)| (key, limit))
    }

    /// Counts the request in, if it fits now and no producer waits.
    pub fn admit(&mut self, wanted: AdmissionRequest) -> bool {
        self.let_in();
        let may = self.line.is_empty() && self.lets_in() && self.limit(wanted).is_none();
        if may {
            self.add(wanted);
        }
        may
    }

    fn lets_in(&self) -> bool {
        self.held_still == 0 && !self.is_closed
    }

    /// Counts in the producers at the front of the queue, as long as they fit.
    fn let_in(&mut self) {
        while self.lets_in()
            && let Some(first) = self.line.first().copied()
            && self.limit(first).is_none()
        {
            self.line.serve();
            self.add(first);
        }
    }

    fn add(&mut self, wanted: AdmissionRequest) {
        let AdmissionRequest { count, bytes } = wanted;
        self.bytes += bytes;
        self.storing_bytes += bytes;
        self.storing += count;
        self.retained += count;
        // The caller has the lock, so this need not be one atomic step.
        self.total
            .store(self.total.load(Ordering::Relaxed) + count, Ordering::Release);
    }

    /// Whether the queue retains more than the limits of mode `policy` allow.
    pub fn is_over_policy(&self) -> bool {
        let limits = &self.settings.retention;
        let over = |number: u64, limit: u64| limit > 0 && number > limit;
        limits.mode == RetentionMode::Policy
            && (over(self.retained, limits.max_messages) || over(self.bytes, limits.max_bytes))
    }

    /// The admitted messages are stored.
    pub fn done(&mut self, wanted: AdmissionRequest) {
        let AdmissionRequest { count, bytes } = wanted;
        self.enqueued += count;
        self.storing_bytes -= bytes;
        self.storing -= count;
    }

    /// The admitted messages were not stored.
    fn undo(&mut self, wanted: AdmissionRequest) {
        let AdmissionRequest { count, bytes } = wanted;
        self.storing_bytes -= bytes;
        self.storing -= count;
        self.gone(count, bytes);
        self.total
            .store(self.total.load(Ordering::Relaxed) - count, Ordering::Release);
    }
}
