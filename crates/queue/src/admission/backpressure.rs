//! Producers wait for room in a FIFO queue.
//!
//! A producer that finds no room, or other waiting producers, joins the wait queue. Whoever frees room admits the
//! producers at its front as far as they fit and wakes them, so a later arrival cannot take that room. A request that
//! can never fit is refused at once, because it would block all others. A large request may block the others until its
//! `block_timeout`. Dead letters do not wait here: only time limits them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};
use thalweg_kit::clock;
use thalweg_log::wait_queue::WaitTicket;
use tokio::sync::Notify;

use super::{Admission, AdmissionLimit, AdmissionRequest};
use crate::budget;
use crate::error::{QueueError, Result};
use crate::produce::DetachedFuture;
use crate::queue::Queue;
use crate::settings::{Overflow, QueueSettings};

/// The admission of one queue: its counts under their lock, and signals that can be read without it.
pub(crate) struct AdmissionGate {
    admission: Mutex<Admission>,
    /// Length of the wait queue. It is set before the first producer checks for room, and room is freed before it is
    /// read. Both use sequentially consistent ordering, so one side always sees the other.
    waiting: AtomicUsize,
    /// Notified when nothing is being stored any more, or when the queue is no longer quiesced.
    moved: Notify,
    /// Held while messages are dropped to make room.
    making_room: tokio::sync::Mutex<()>,
}

/// While this guard lives, no message is being stored and no store begins.
pub(crate) struct QuiesceGuard<'a>(&'a AdmissionGate);

impl Drop for QuiesceGuard<'_> {
    fn drop(&mut self) {
        let mut admission = self.0.lock();
        admission.held_still -= 1;
        self.0.let_in(&mut admission);
        // Some producers must not wait any longer, but did not know whether there is room.
        admission.line.call_all();
        drop(admission);
        self.0.moved.notify_waiters();
    }
}

/// What a waiting producer finds.
enum AdmissionOutcome {
    /// It is admitted.
    In,
    /// The queue is quiesced for a moment.
    Still,
    Full {
        limit: AdmissionLimit,
        /// This producer does not fit; otherwise the first in the wait queue does not.
        own: bool,
        is_first: bool,
    },
}

/// Why a request will never be admitted.
enum AdmissionRefusal {
    Closed,
    NeverFits(AdmissionLimit),
}

impl AdmissionGate {
    pub fn new(settings: Arc<QueueSettings>, memory: Option<budget::Allowance>) -> AdmissionGate {
        AdmissionGate {
            admission: Mutex::new(Admission::new(settings, memory)),
            waiting: AtomicUsize::new(0),
            moved: Notify::new(),
            making_room: tokio::sync::Mutex::default(),
        }
    }

    pub fn lock(&self) -> MutexGuard<'_, Admission> {
        self.admission.lock()
    }

    /// Waits until every store in progress has ended, and prevents new ones from beginning.
    pub async fn still(&self) -> QuiesceGuard<'_> {
        self.lock().held_still += 1;
        let still = QuiesceGuard(self);
        loop {
            let stored = self.moved.notified();
            tokio::pin!(stored);
            stored.as_mut().enable();
            if self.lock().storing == 0 {
                return still;
            }
            stored.await;
        }
    }

    /// While the guard lives, no other caller drops messages to make room.
    pub async fn make_room_alone(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.making_room.lock().await
    }

    /// All messages counted in, from which groups compute their backlogs.
    pub fn total(&self) -> Arc<AtomicU64> {
        self.lock().total.clone()
    }

    /// How many of `count` messages fit under the depth limit.
    pub fn room_for(&self, count: usize) -> usize {
        let admission = self.lock();
        let most = admission.settings.max_depth;
        let room = usize::try_from(most.saturating_sub(admission.depth())).unwrap_or(usize::MAX);
        if most == 0 { count } else { room.min(count) }
    }

    /// Messages were settled or space was freed: admits waiting producers. Costs no lock if none waits.
    pub fn has_room(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.let_in(&mut self.lock());
        }
    }

    /// The conditions for waiting producers have changed: all of them check again.
    pub fn has_changed(&self) {
        let mut admission = self.lock();
        admission.count_anew();
        self.let_in(&mut admission);
        admission.line.call_all();
    }

    /// A group sought back, so the depth is computed again.
    pub fn count_anew(&self) {
        self.lock().count_anew();
    }

    /// The queue was removed: waiting producers return an error.
    pub fn close(&self) {
        let mut admission = self.lock();
        admission.is_closed = true;
        admission.line.call_all();
    }

    fn let_in(&self, admission: &mut Admission) {
        admission.let_in();
        self.waiting.store(admission.line.len(), Ordering::SeqCst);
    }

    /// Admits the request if no producer waits and nothing has to be evicted.
    pub fn admit_now(&self, wanted: AdmissionRequest) -> bool {
        self.lock().admit(wanted)
    }

    /// Joins the wait queue, unless the request is admitted at once.
    fn join_line(&self, wanted: AdmissionRequest) -> std::result::Result<Option<WaitTicket>, AdmissionRefusal> {
        let mut admission = self.lock();
        if let Some(never) = admission.never(wanted) {
            return Err(AdmissionRefusal::NeverFits(never));
        }
        if admission.admit(wanted) {
            return Ok(None);
        }
        let place = admission.line.join(wanted);
        self.waiting.store(admission.line.len(), Ordering::SeqCst);
        Ok(Some(place))
    }

    /// What the producer at this place in the wait queue finds.
    fn look(
        &self,
        place: &WaitTicket,
        wanted: AdmissionRequest,
    ) -> std::result::Result<AdmissionOutcome, AdmissionRefusal> {
        let mut admission = self.lock();
        loop {
            self.let_in(&mut admission);
            if !admission.line.holds(place) {
                return Ok(AdmissionOutcome::In);
            }
            if admission.is_closed {
                return Err(AdmissionRefusal::Closed);
            }
            if let Some(never) = admission.never(wanted) {
                return Err(AdmissionRefusal::NeverFits(never));
            }
            let is_first = admission.line.is_first(place);
            let own = admission.limit(wanted);
            let first = admission.line.first().copied();
            let limit = own.or_else(|| first.and_then(|first| admission.limit(first)));
            if let Some(limit) = limit {
                return Ok(AdmissionOutcome::Full {
                    limit,
                    own: own.is_some(),
                    is_first,
                });
            }
            if admission.held_still > 0 {
                return Ok(AdmissionOutcome::Still);
            }
            // Room was freed just now without taking the lock; the first producer gets it.
        }
    }

    /// Gives up a place in the wait queue. False if the request was admitted meanwhile.
    fn leave_line(&self, place: &WaitTicket) -> bool {
        let mut admission = self.lock();
        let has_left = admission.line.leave(place).is_some();
        if has_left {
            self.let_in(&mut admission);
        }
        has_left
    }

    /// Counts messages that are stored regardless of the limits: dead letters.
    pub async fn admit_always(&self, wanted: AdmissionRequest) {
        loop {
            let moved = self.moved.notified();
            tokio::pin!(moved);
            moved.as_mut().enable();
            {
                let mut admission = self.lock();
                if admission.held_still == 0 {
                    // Other producers have less room from now on.
                    let _ = admission.limit(wanted);
                    return admission.add(wanted);
                }
            }
            moved.await;
        }
    }

    /// The admitted messages were stored, or were not. Returns whether the queue retains more than the limits of mode
    /// `policy` allow.
    fn stored(&self, wanted: AdmissionRequest, ok: bool) -> bool {
        let (still, over) = {
            let mut admission = self.lock();
            match ok {
                true => admission.done(wanted),
                false => {
                    admission.undo(wanted);
                    self.let_in(&mut admission);
                }
            }
            (
                admission.held_still > 0 && admission.storing == 0,
                admission.is_over_policy(),
            )
        };
        if still {
            self.moved.notify_waiters();
        }
        over
    }
}

/// A producer in the wait queue. When it is dropped, it leaves the queue, or is counted out again if it was admitted
/// meanwhile.
struct WaitingProducer<'a> {
    queue: &'a Queue,
    place: WaitTicket,
    wanted: AdmissionRequest,
    is_over: bool,
}

impl WaitingProducer<'_> {
    fn look(&mut self) -> Result<AdmissionOutcome> {
        let outcome = self.queue.admission.look(&self.place, self.wanted);
        self.is_over = matches!(outcome, Ok(AdmissionOutcome::In));
        outcome.map_err(|refusal| self.queue.never_admits(self.wanted, refusal))
    }

    async fn called(&self) {
        self.place.called().await;
    }
}

impl Drop for WaitingProducer<'_> {
    fn drop(&mut self) {
        if !self.is_over && !self.queue.admission.leave_line(&self.place) {
            self.queue.stored(self.wanted, false);
        }
    }
}

impl Queue {
    /// The largest backlog, which the depth limit applies to.
    pub fn depth(&self) -> u64 {
        self.admission.lock().depth()
    }

    pub fn bytes(&self) -> u64 {
        self.admission.lock().bytes()
    }

    /// Messages that some group has yet to read, or that are retained anyway.
    pub(crate) fn kept(&self) -> u64 {
        self.admission.lock().kept()
    }

    /// The most messages and bytes that may be stored together. A larger request never fits.
    pub fn most_together(&self) -> (usize, usize) {
        let settings = self.settings_now();
        let of = |limit: u64| match limit {
            0 => usize::MAX,
            limit => usize::try_from(limit).unwrap_or(usize::MAX),
        };
        (of(settings.max_depth), of(settings.max_bytes))
    }

    /// Admits the request: waits for room or makes it, as the queue's `overflow` says.
    pub(crate) async fn admit(self: &Arc<Queue>, wanted: AdmissionRequest) -> Result<()> {
        let (overflow, timeout) = {
            let settings = self.settings_now();
            (settings.overflow, settings.block_timeout)
        };
        let waits = overflow == Overflow::Block && !timeout.is_zero();
        let until = clock::tokio_now() + timeout;
        let Some(mut waiting) = self.join_line(wanted)? else {
            return Ok(());
        };
        let (mut late, mut has_removed) = (false, false);
        loop {
            let (limit, own, is_first) = match waiting.look()? {
                AdmissionOutcome::In => return Ok(()),
                AdmissionOutcome::Still => {
                    waiting.called().await;
                    continue;
                }
                AdmissionOutcome::Full { limit, own, is_first } => (limit, own, is_first),
            };
            // Expired messages must not block any producer.
            if !std::mem::replace(&mut has_removed, true) {
                let queue = self.clone();
                let removal = DetachedFuture::new(async move { queue.remove_expired().await });
                tokio::select! {
                    less = removal => if less { continue },
                    () = waiting.called() => continue,
                }
            }
            match overflow {
                Overflow::Block if waits && !late => tokio::select! {
                    () = waiting.called() => {}
                    () = tokio::time::sleep_until(until) => late = true,
                },
                Overflow::DropOldest if is_first => {
                    if !self.clone().room_made(wanted).await {
                        return Err(self.full(limit));
                    }
                }
                // Without a timeout, the producers before this one are refused in a moment, or make room.
                _ if !own && !late => waiting.called().await,
                Overflow::DropOldest => waiting.called().await,
                _ => return Err(self.full(limit)),
            }
        }
    }

    /// Joins the wait queue, unless the request is admitted at once.
    fn join_line(&self, wanted: AdmissionRequest) -> Result<Option<WaitingProducer<'_>>> {
        let joined = self.admission.join_line(wanted);
        let place = joined.map_err(|refusal| self.never_admits(wanted, refusal))?;
        Ok(place.map(|place| WaitingProducer {
            queue: self,
            place,
            wanted,
            is_over: false,
        }))
    }

    /// Detached, so that messages on their way to the dead letters arrive even if the caller stops waiting.
    fn room_made(self: Arc<Queue>, wanted: AdmissionRequest) -> DetachedFuture<bool> {
        DetachedFuture::new(async move { self.make_room(wanted).await })
    }

    fn full(&self, (key, limit): AdmissionLimit) -> QueueError {
        self.counters().refused_full.fetch_add(1, Ordering::Relaxed);
        QueueError::QueueFull {
            queue: self.name().clone(),
            key,
            limit,
        }
    }

    fn never_admits(&self, wanted: AdmissionRequest, refusal: AdmissionRefusal) -> QueueError {
        let (key, limit) = match refusal {
            AdmissionRefusal::Closed => return self.identity.not_found(),
            AdmissionRefusal::NeverFits(limit) => limit,
        };
        self.counters().refused_too_large.fetch_add(1, Ordering::Relaxed);
        QueueError::NeverFits {
            queue: self.name().clone(),
            count: wanted.count,
            bytes: wanted.bytes,
            key,
            limit,
        }
    }

    /// The admitted messages were stored, or were not.
    pub(crate) fn stored(&self, wanted: AdmissionRequest, ok: bool) {
        if self.admission.stored(wanted, ok) {
            self.maintenance.trim_soon();
        }
    }
}
