//! Connection slots, and which connection is closed when all are taken: first those without any request, then those
//! that send a request slowly, then those that have been idle for longest. A connection that waits for an answer or
//! receives a stream stays.
//!
//! | activity | list | may be closed |
//! |---|---|---|
//! | has sent no request | half open | after a second |
//! | each of its requests is incomplete | slow | after five seconds |
//! | has sent requests, none is being served | idle | at once |
//! | a whole request is being served | none | never |
//!
//! A slot is moved to the end of its list when its activity changes, so the first of a list has been there for longest.
//! Finding the connection to close and changing a list are O(1).

mod linked_lists;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::http1_exchange::Http1Exchange;
use linked_lists::LinkedLists;
use thalweg_kit::clock;

/// By then, even an unhurried client has sent a request.
const OPENING_MIN: Duration = Duration::from_secs(1);

/// A client that sends a request for longer than this is slow.
const SENDING_MIN: Duration = Duration::from_secs(5);

/// Of all slots; the rest is for requests that end.
const STREAMS_PERCENT: usize = 90;

/// All slots of the listeners that share them.
#[derive(Debug)]
pub struct ConnectionSlots {
    most: usize,
    streams_most: usize,
    /// How long a connection without a request may not be closed.
    opening_min: Duration,
    began: Instant,
    streams: AtomicUsize,
    table: Mutex<SlotTable>,
    /// Shifts the clock by this many milliseconds.
    #[cfg(test)]
    ahead: std::sync::atomic::AtomicU32,
}

#[derive(Debug, Default)]
struct SlotTable {
    seats: Vec<SlotState>,
    /// Numbers of free slots.
    free: Vec<u32>,
    taken: usize,
    /// Numbers of slots, by eviction reason.
    lists: LinkedLists<3>,
}

/// The state of a slot that determines its list.
#[derive(Debug, Default)]
struct SlotState {
    place: Option<Arc<ConnectionSlot>>,
    has_asked: bool,
    serving: u32,
    /// Of these, the incomplete ones.
    receiving: u32,
    /// Milliseconds from the start to when it was put into its list.
    since: u32,
}

/// The state of one connection.
#[derive(Debug)]
pub struct ConnectionSlot {
    /// For HTTP/1.1, the progress of its request.
    pub exchange: Arc<Http1Exchange>,
    /// Cancelled when the connection must be closed.
    pub leave: CancellationToken,
    number: u32,
    has_asked: AtomicBool,
    /// The slot was released. Changed under the table lock.
    is_left: AtomicBool,
}

/// Occupies a slot while it lives.
#[derive(Debug)]
pub struct ConnectionPermit {
    places: Arc<ConnectionSlots>,
    place: Arc<ConnectionSlot>,
}

/// A request that is being served, with its answer.
#[derive(Debug)]
pub struct ActiveRequest {
    places: Arc<ConnectionSlots>,
    place: Arc<ConnectionSlot>,
    is_stream: bool,
    /// Set for a request that arrived incomplete.
    missing: Option<Arc<AtomicBool>>,
}

/// The rest of a request. Dropped when it has arrived, or is not needed any more.
#[derive(Debug)]
pub struct PendingBody {
    places: Arc<ConnectionSlots>,
    place: Arc<ConnectionSlot>,
    missing: Arc<AtomicBool>,
}

/// Why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EvictionReason {
    HalfOpen,
    Slow,
    Idle,
}

impl EvictionReason {
    pub fn as_str(self) -> &'static str {
        match self {
            EvictionReason::HalfOpen => "half_open",
            EvictionReason::Slow => "slow",
            EvictionReason::Idle => "idle",
        }
    }
}

impl SlotState {
    /// The list that it belongs to.
    fn list(&self) -> Option<EvictionReason> {
        match (self.serving, self.has_asked) {
            (0, false) => Some(EvictionReason::HalfOpen),
            (0, true) => Some(EvictionReason::Idle),
            (serving, _) if serving == self.receiving => Some(EvictionReason::Slow),
            _ => None,
        }
    }
}

impl ConnectionSlots {
    pub fn new(most: usize) -> Arc<ConnectionSlots> {
        ConnectionSlots::with(most, OPENING_MIN)
    }

    /// For listeners whose connections are served at once or closed for the next one.
    pub fn passing(most: usize) -> Arc<ConnectionSlots> {
        ConnectionSlots::with(most, Duration::ZERO)
    }

    fn with(most: usize, opening_min: Duration) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots {
            most,
            streams_most: (most.saturating_mul(STREAMS_PERCENT) / 100).max(1),
            opening_min,
            began: clock::now(),
            streams: AtomicUsize::new(0),
            table: Mutex::default(),
            #[cfg(test)]
            ahead: Default::default(),
        })
    }

    pub fn most(&self) -> usize {
        self.most
    }

    pub fn streams_most(&self) -> usize {
        self.streams_most
    }

    /// Takes a slot, and returns which kind of connection was closed for it, if any. `None`: every connection has a
    /// request or a stream. `cut` ends all.
    pub fn take(
        self: &Arc<ConnectionSlots>,
        must_replace: bool,
        cut: &CancellationToken,
    ) -> Option<(ConnectionPermit, Option<EvictionReason>)> {
        let mut table = self.table.lock();
        let now = self.now();
        let mut left = None;
        if table.taken >= self.most || must_replace {
            left = Some(self.send_one_away(&mut table, now)?);
        }
        let number = table.free.pop().unwrap_or(table.seats.len() as u32);
        let place = Arc::new(ConnectionSlot {
            exchange: Arc::default(),
            leave: cut.child_token(),
            number,
            has_asked: AtomicBool::new(false),
            is_left: AtomicBool::new(false),
        });
        table.sit(place.clone(), now);
        let held = ConnectionPermit {
            places: self.clone(),
            place,
        };
        Some((held, left))
    }

    fn send_one_away(&self, table: &mut SlotTable, now: u32) -> Option<EvictionReason> {
        let longest = [
            (EvictionReason::HalfOpen, self.opening_min),
            (EvictionReason::Slow, SENDING_MIN),
            (EvictionReason::Idle, Duration::ZERO),
        ];
        let may_leave = |(why, least): &(EvictionReason, Duration)| {
            let seat = table.seats.get(table.lists.first(*why as usize)? as usize)?;
            let age = Duration::from_millis(now.saturating_sub(seat.since).into());
            Some((*why, seat.place.clone()?)).filter(|_| age >= *least)
        };
        let (why, place) = longest.iter().find_map(may_leave)?;
        table.leave(&place);
        place.leave.cancel();
        Some(why)
    }

    /// Records a change of a connection's activity.
    fn change(&self, place: &ConnectionSlot, change: impl FnOnce(&mut SlotState)) {
        let mut table = self.table.lock();
        // Under the lock, so that lists are in time order.
        let now = self.now();
        if !place.is_left.load(Relaxed) {
            table.change(place.number, now, change);
        }
    }

    fn now(&self) -> u32 {
        let now = u32::try_from(self.began.elapsed().as_millis()).unwrap_or(u32::MAX);
        #[cfg(test)]
        let now = now.saturating_add(self.ahead.load(Relaxed));
        now
    }

    #[cfg(test)]
    fn taken(&self) -> usize {
        self.table.lock().taken
    }
}

impl SlotTable {
    fn sit(&mut self, place: Arc<ConnectionSlot>, now: u32) {
        let number = place.number;
        let seat = SlotState {
            place: Some(place),
            since: now,
            ..SlotState::default()
        };
        match self.seats.get_mut(number as usize) {
            Some(free) => *free = seat,
            None => self.seats.push(seat),
        }
        self.lists.push(EvictionReason::HalfOpen as usize, number);
        self.taken += 1;
    }

    /// Does nothing if the connection has left already.
    fn leave(&mut self, place: &ConnectionSlot) {
        if place.is_left.swap(true, Relaxed) {
            return;
        }
        self.lists.remove(place.number);
        if let Some(seat) = self.seats.get_mut(place.number as usize) {
            *seat = SlotState::default();
        }
        self.free.push(place.number);
        self.taken -= 1;
    }

    fn change(&mut self, number: u32, now: u32, change: impl FnOnce(&mut SlotState)) {
        let Some(seat) = self.seats.get_mut(number as usize) else {
            return;
        };
        let before = seat.list();
        change(seat);
        let list = seat.list();
        // Another incomplete request must not extend the time.
        if list == before {
            return;
        }
        seat.since = now;
        self.lists.remove(number);
        if let Some(why) = list {
            self.lists.push(why as usize, number);
        }
    }
}

impl ConnectionPermit {
    pub fn place(&self) -> &Arc<ConnectionSlot> {
        &self.place
    }

    pub fn server(&self) -> RequestTracker {
        RequestTracker {
            places: self.places.clone(),
            place: self.place.clone(),
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.places.table.lock().leave(&self.place);
    }
}

/// Tracks the beginning of requests on one connection.
#[derive(Clone, Debug)]
pub struct RequestTracker {
    places: Arc<ConnectionSlots>,
    place: Arc<ConnectionSlot>,
}

impl RequestTracker {
    /// Whether there was no request before.
    pub fn is_first(&self) -> bool {
        !self.place.has_asked.load(Relaxed)
    }

    /// Begins a request whose head has arrived. `is_whole`: it has no body.
    pub fn begin(&self, is_whole: bool) -> (ActiveRequest, Option<PendingBody>) {
        self.place.has_asked.store(true, Relaxed);
        self.places.change(&self.place, |seat| {
            seat.has_asked = true;
            seat.serving += 1;
            seat.receiving += u32::from(!is_whole);
        });
        let missing = (!is_whole).then(|| Arc::new(AtomicBool::new(true)));
        let receiving = missing.clone().map(|missing| PendingBody {
            places: self.places.clone(),
            place: self.place.clone(),
            missing,
        });
        let serving = ActiveRequest {
            places: self.places.clone(),
            place: self.place.clone(),
            is_stream: false,
            missing,
        };
        (serving, receiving)
    }
}

impl Drop for PendingBody {
    fn drop(&mut self) {
        if self.missing.swap(false, Relaxed) {
            self.places.change(&self.place, |seat| seat.receiving -= 1);
        }
    }
}

impl ActiveRequest {
    fn is_missing_no_more(&self) -> bool {
        self.missing
            .as_ref()
            .is_some_and(|missing| missing.swap(false, Relaxed))
    }

    /// Its answer begins, so the rest of the request is not needed any more.
    pub fn answers(&self) {
        if self.is_missing_no_more() {
            self.places.change(&self.place, |seat| seat.receiving -= 1);
        }
    }

    /// Its answer lasts as long as the client listens. `false` if the limit of streams is reached.
    pub fn becomes_stream(&mut self) -> bool {
        let more = |streams: usize| (streams < self.places.streams_most).then_some(streams + 1);
        self.is_stream = self.places.streams.fetch_update(Relaxed, Relaxed, more).is_ok();
        self.is_stream
    }
}

impl Drop for ActiveRequest {
    fn drop(&mut self) {
        if self.is_stream {
            self.places.streams.fetch_sub(1, Relaxed);
        }
        let missing = u32::from(self.is_missing_no_more());
        self.places.change(&self.place, |seat| {
            seat.serving -= 1;
            seat.receiving -= missing;
        });
    }
}

#[cfg(test)]
mod tests;
