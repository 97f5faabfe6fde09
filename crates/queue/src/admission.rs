//! What producers may add: the limits of depth and bytes, checked under one lock before anything is stored.
//!
//! A producer counts its messages in and then stores them, so the limits hold however many produce at the same time. What
//! is counted is in every group's backlog at once; what a group settles makes room again, for those who stand in line first
//! (`room.rs`). A group that is made takes its place while nothing is between being counted and being stored
//! ([`Queue::still`]): its backlog is then exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_log::wait_queue::WaitQueue;

use crate::budget;
use crate::depth::Depth;
use crate::group::Group;
use crate::settings::{QueueSettings, RetentionMode};

/// What is stored and what is on its way, with what decides about more.
pub(crate) struct Admission {
    /// Bytes of messages that are stored or being stored.
    pub bytes: u64,
    /// Of those, what is being stored.
    pub storing_bytes: u64,
    pub storing: u64,
    /// Messages that are retained or being stored.
    pub retained: u64,
    /// Since the start of the process.
    pub enqueued: u64,
    /// Bytes that were let go, since the start of the process.
    pub trimmed_bytes: u64,
    /// With what is being stored. Groups count their backlogs from it; changed only here.
    pub total: Arc<AtomicU64>,
    /// Those of the queue.
    pub settings: Arc<QueueSettings>,
    pub groups: Arc<Vec<Arc<Group>>>,
    depth: Depth,
    /// Producers that wait. Between two changes the first of them does not fit, or the queue is held still.
    pub line: WaitQueue<AdmissionRequest>,
    /// Nobody may begin to store as long as somebody holds the queue still.
    pub held_still: u32,
    /// The queue is gone: nobody comes in any more.
    pub is_closed: bool,
    /// Of a queue in memory.
    memory: Option<budget::Allowance>,
}

/// What a producer wants to store together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdmissionRequest {
    pub count: u64,
    pub bytes: u64,
}

/// The key of a limit, and the limit.
pub(crate) type AdmissionLimit = (&'static str, u64);

/// The key of the limit that settling lifts, where the others ask for bytes to be freed.
pub(crate) const MAX_DEPTH: &str = "max_depth";
const MAX_BYTES: &str = "max_bytes";
const QUEUES_MEMORY: &str = "queues.memory";

/// What a message takes in memory besides its bytes, about.
const MESSAGE_BYTES: u64 = 64;

impl Admission {
    pub fn new(settings: Arc<QueueSettings>, memory: Option<budget::Allowance>) -> Admission {
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

    pub fn retained_less(&mut self, count: u64) {
        self.retained = self.retained.saturating_sub(count);
    }

    /// Messages and their bytes are gone.
    pub fn gone(&mut self, count: u64, bytes: u64) {
        self.retained_less(count);
        self.bytes_left(self.bytes.saturating_sub(bytes));
    }

    /// The same of the oldest that are kept.
    pub fn trimmed(&mut self, count: u64, bytes: u64) {
        self.trimmed_bytes += bytes;
        self.gone(count, bytes);
    }

    pub fn bytes_left(&mut self, bytes: u64) {
        self.bytes = bytes;
        if let Some(memory) = &mut self.memory {
            memory.shrinks(bytes + self.retained * MESSAGE_BYTES);
        }
    }

    /// The largest backlog among work groups; without any, what the slowest declared stream group has not committed;
    /// without that too, what is retained.
    pub fn depth(&self) -> u64 {
        Depth::of(&self.groups).unwrap_or(self.retained)
    }

    /// Other groups are counted from now on.
    pub fn set_groups(&mut self, groups: Arc<Vec<Arc<Group>>>) {
        self.groups = groups;
        self.depth = Depth::default();
    }

    /// A group went back, or counts now, or does not any more.
    pub fn count_anew(&mut self) {
        self.depth = Depth::default();
    }

    /// The limit that so much more would break.
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

    /// The limit that so much would break even if the queue were empty.
    pub fn never(&self, wanted: AdmissionRequest) -> Option<AdmissionLimit> {
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

    /// Counts so much more, if it may come in now and nobody waits.
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

    /// Counts in those at the front of the line for whom there is room.
    pub fn let_in(&mut self) {
        while self.lets_in()
            && let Some(first) = self.line.first().copied()
            && self.limit(first).is_none()
        {
            self.line.serve();
            self.add(first);
        }
    }

    pub fn add(&mut self, wanted: AdmissionRequest) {
        let AdmissionRequest { count, bytes } = wanted;
        self.bytes += bytes;
        self.storing_bytes += bytes;
        self.storing += count;
        self.retained += count;
        // Under a lock, so it needs not be one step.
        self.total
            .store(self.total.load(Ordering::Relaxed) + count, Ordering::Release);
    }

    /// Whether more is kept than mode `policy` allows.
    pub fn is_over_policy(&self) -> bool {
        let limits = &self.settings.retention;
        let over = |number: u64, limit: u64| limit > 0 && number > limit;
        limits.mode == RetentionMode::Policy
            && (over(self.retained, limits.max_messages) || over(self.bytes, limits.max_bytes))
    }

    /// What was added is stored.
    pub fn done(&mut self, wanted: AdmissionRequest) {
        let AdmissionRequest { count, bytes } = wanted;
        self.enqueued += count;
        self.storing_bytes -= bytes;
        self.storing -= count;
    }

    /// What was added is not stored.
    pub fn undo(&mut self, wanted: AdmissionRequest) {
        let AdmissionRequest { count, bytes } = wanted;
        self.storing_bytes -= bytes;
        self.storing -= count;
        self.gone(count, bytes);
        self.total
            .store(self.total.load(Ordering::Relaxed) - count, Ordering::Release);
    }
}
