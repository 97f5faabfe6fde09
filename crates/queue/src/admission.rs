//! What producers may add: the limits of depth and bytes, checked under one lock before anything is stored.
//!
//! A producer counts its messages in and then stores them, so the limits hold however many produce at the same time. What
//! is counted is in every group's backlog at once; what a group settles makes room again. A group that is made takes
//! its place while nothing is between being counted and being stored ([`Queue::still`]): its backlog is then exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use tokio::sync::Notify;

use crate::budget;
use crate::error::{QueueError, Result};
use crate::group::Group;
use crate::produce::Detached;
use crate::queue::Queue;
use crate::settings::{Overflow, QueueSettings, RetentionMode};

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
    /// With what is being stored. Groups count their backlogs from it; changed only here.
    pub total: Arc<AtomicU64>,
    /// Those of the queue.
    pub settings: Arc<QueueSettings>,
    pub groups: Arc<Vec<Arc<Group>>>,
    /// Nobody may begin to store as long as somebody holds the queue still.
    held_still: u32,
    /// Of a queue in memory.
    memory: Option<budget::Allowance>,
}

/// The key of the limit that settling lifts, where the others ask for bytes to be freed.
pub(crate) const MAX_DEPTH: &str = "max_depth";

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
            total: Arc::default(),
            settings,
            groups: Arc::default(),
            held_still: 0,
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

    pub fn bytes_left(&mut self, bytes: u64) {
        self.bytes = bytes;
        if let Some(memory) = &mut self.memory {
            memory.shrinks(bytes + self.retained * MESSAGE_BYTES);
        }
    }

    /// The largest backlog among work groups; without any, what the slowest declared stream group has not committed;
    /// without that too, what is retained.
    pub fn depth(&self) -> u64 {
        let work = self.groups.iter().filter(|group| group.is_work());
        let streams = self
            .groups
            .iter()
            .filter(|group| !group.is_work() && group.is_declared());
        let largest = work.map(|group| group.backlog()).max();
        let largest = largest.or_else(|| streams.map(|group| group.backlog()).max());
        largest.unwrap_or(self.retained)
    }

    /// The limit that so much more would break: its key and its value.
    pub fn limit(&mut self, count: u64, bytes: u64) -> Option<(&'static str, u64)> {
        let (depth, most) = (self.settings.max_depth, self.settings.max_bytes);
        if depth > 0 && self.depth() + count > depth {
            return Some((MAX_DEPTH, depth));
        }
        if most > 0 && self.bytes + bytes > most {
            return Some(("max_bytes", most));
        }
        let memory = self.memory.as_mut()?;
        let needed = self.bytes + bytes + (self.retained + count) * MESSAGE_BYTES;
        (!memory.reaches(needed)).then(|| ("queues.memory", memory.limit()))
    }

    /// Counts so much more, if it may come in now.
    pub fn admit(&mut self, count: u64, bytes: u64) -> bool {
        let may = self.held_still == 0 && self.limit(count, bytes).is_none();
        if may {
            self.add(count, bytes);
        }
        may
    }

    fn add(&mut self, count: u64, bytes: u64) {
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
    pub fn done(&mut self, count: u64, bytes: u64) {
        self.enqueued += count;
        self.storing_bytes -= bytes;
        self.storing -= count;
    }

    /// What was added is not stored.
    fn undo(&mut self, count: u64, bytes: u64) {
        self.storing_bytes -= bytes;
        self.storing -= count;
        self.gone(count, bytes);
        self.total
            .store(self.total.load(Ordering::Relaxed) - count, Ordering::Release);
    }
}

/// Where producers wait for room, and those who want the queue still.
#[derive(Debug, Default)]
pub(crate) struct Room {
    waiting: AtomicUsize,
    notify: Notify,
}

impl Room {
    /// Has all who wait look again. Free if there is nobody.
    pub fn call(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.notify.notify_waiters();
        }
    }
}

/// One who waits; to be made before looking, so that no call is missed. What makes room is not done under the lock under
/// which it is looked for, hence the strict order of these few accesses.
struct Waiting<'a>(&'a Room);

impl<'a> Waiting<'a> {
    fn new(room: &'a Room) -> Waiting<'a> {
        room.waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(room)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

/// As long as it lives nothing is on its way into the queue and nothing sets out.
pub(crate) struct Still<'a>(&'a Queue);

impl Drop for Still<'_> {
    fn drop(&mut self) {
        self.0.admission.lock().held_still -= 1;
        self.0.room.call();
    }
}

impl Queue {
    /// Waits until what is on its way is stored, and keeps others from setting out.
    pub(crate) async fn still(&self) -> Still<'_> {
        self.admission.lock().held_still += 1;
        let still = Still(self);
        let waiting = Waiting::new(&self.room);
        loop {
            let stored = self.room.notify.notified();
            tokio::pin!(stored);
            stored.as_mut().enable();
            if self.admission.lock().storing == 0 {
                drop(waiting);
                return still;
            }
            stored.await;
        }
    }

    /// How many of so many messages fit in, as far as their number is limited.
    pub(crate) fn room_for(&self, count: usize) -> usize {
        let admission = self.admission.lock();
        let most = admission.settings.max_depth;
        let room = usize::try_from(most.saturating_sub(admission.depth())).unwrap_or(usize::MAX);
        if most == 0 { count } else { room.min(count) }
    }

    /// Counts what is to be stored, if nobody has to wait for that and nothing has to go.
    pub(crate) fn admit_now(&self, count: u64, bytes: u64) -> bool {
        self.admission.lock().admit(count, bytes)
    }

    /// Waits for room, or makes it, as the queue is set to, and counts what is to be stored.
    pub(crate) async fn admit(self: &Arc<Queue>, count: u64, bytes: u64) -> Result<()> {
        let (overflow, timeout) = {
            let settings = self.settings_now();
            (settings.overflow, settings.block_timeout)
        };
        let until = tokio::time::Instant::now() + timeout;
        let _waiting = Waiting::new(&self.room);
        let (mut late, mut shed) = (false, false);
        loop {
            let room = self.room.notify.notified();
            tokio::pin!(room);
            room.as_mut().enable();
            let full = match self.look_for_room(count, bytes) {
                Ok(()) => return Ok(()),
                Err(Refused::Still) => {
                    room.await;
                    continue;
                }
                Err(Refused::Full(full)) => full,
            };
            // What has expired must not be in anybody's way.
            if !std::mem::replace(&mut shed, true) {
                let queue = self.clone();
                let shed = Detached::new(async move { queue.shed().await });
                tokio::select! {
                    less = shed => if less { continue },
                    () = &mut room => continue,
                }
            }
            match overflow {
                Overflow::DropOldest if self.clone().room_made(count, bytes).await => {}
                Overflow::Block if !late => tokio::select! {
                    () = &mut room => {}
                    () = tokio::time::sleep_until(until) => late = true,
                },
                _ => return Err(self.full(full)),
            }
        }
    }

    /// What has begun to leave for the dead letters gets there, whoever waits for it.
    fn room_made(self: Arc<Queue>, count: u64, bytes: u64) -> Detached<bool> {
        Detached::new(async move { self.make_room(count, bytes).await })
    }

    fn look_for_room(&self, count: u64, bytes: u64) -> std::result::Result<(), Refused> {
        let mut admission = self.admission.lock();
        if admission.held_still > 0 {
            return Err(Refused::Still);
        }
        if let Some(full) = admission.limit(count, bytes) {
            return Err(Refused::Full(full));
        }
        admission.add(count, bytes);
        Ok(())
    }

    fn full(&self, (key, limit): (&'static str, u64)) -> QueueError {
        self.counters.refused_full.fetch_add(1, Ordering::Relaxed);
        QueueError::QueueFull {
            queue: self.name().clone(),
            key,
            limit,
        }
    }

    /// Counts what is stored whatever the limits say: dead letters.
    pub(crate) async fn admit_always(&self, count: u64, bytes: u64) {
        let _waiting = Waiting::new(&self.room);
        loop {
            let moving = self.room.notify.notified();
            tokio::pin!(moving);
            moving.as_mut().enable();
            {
                let mut admission = self.admission.lock();
                if admission.held_still == 0 {
                    // Others find less room then.
                    let _ = admission.limit(count, bytes);
                    return admission.add(count, bytes);
                }
            }
            moving.await;
        }
    }

    /// What was counted is stored, or is not.
    pub(crate) fn stored(&self, count: u64, bytes: u64, ok: bool) {
        let (still, over) = {
            let mut admission = self.admission.lock();
            match ok {
                true => admission.done(count, bytes),
                false => admission.undo(count, bytes),
            }
            (
                admission.held_still > 0 && admission.storing == 0,
                admission.is_over_policy(),
            )
        };
        if over {
            self.trim_soon();
        }
        if !ok || still {
            self.room.call();
        }
    }
}

enum Refused {
    /// The key of the limit, and the limit.
    Full((&'static str, u64)),
    /// Somebody holds the queue still for a moment.
    Still,
}
