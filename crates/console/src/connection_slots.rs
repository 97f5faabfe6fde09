//! Who has a connection, and who has to leave when there is no place for one more: first those that have asked for nothing
//! yet, then those that send what they ask for slowly, then those that have been idle for longest. Whoever waits for an
//! answer or listens to a stream stays.
//!
//! | what it does | its list | may leave |
//! |---|---|---|
//! | has asked for nothing | half open | after a second |
//! | each request on it still misses a part | slow | after five seconds |
//! | has asked, and nothing is served | idle | at once |
//! | a whole request is served | none | never |
//!
//! A place is put at the end of its list when what it does changes, so the first of a list has done so for longest: whoever
//! leaves is found at once, however many there are. What changes costs the same.

mod linked_lists;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::http1_exchange::Http1Exchange;
use linked_lists::LinkedLists;

/// A client that is in no hurry has asked for something by then.
const OPENING_MIN: Duration = Duration::from_secs(1);

/// Whoever sends a request for longer is slow.
const SENDING_MIN: Duration = Duration::from_secs(5);

/// Of all places; the rest is for requests that come to an end.
const STREAMS_PERCENT: usize = 90;

/// All places of the listeners that share them.
#[derive(Debug)]
pub struct ConnectionSlots {
    most: usize,
    streams_most: usize,
    /// So long a connection may be without a request and is left alone.
    opening_min: Duration,
    began: Instant,
    streams: AtomicUsize,
    table: Mutex<SlotTable>,
    /// As if so many milliseconds more had passed.
    #[cfg(test)]
    ahead: std::sync::atomic::AtomicU32,
}

#[derive(Debug, Default)]
struct SlotTable {
    seats: Vec<SlotState>,
    /// Numbers of seats that nobody has.
    free: Vec<u32>,
    taken: usize,
    /// Numbers of seats, by why they may leave.
    lists: LinkedLists<3>,
}

/// What is known of who sits there, as the lists need it.
#[derive(Debug, Default)]
struct SlotState {
    place: Option<Arc<ConnectionSlot>>,
    has_asked: bool,
    serving: u32,
    /// Of these, those of which a part is missing.
    receiving: u32,
    /// Milliseconds from the beginning to when it was put into its list.
    since: u32,
}

/// What is known of one connection.
#[derive(Debug)]
pub struct ConnectionSlot {
    /// Of HTTP/1.1, how far its request is.
    pub exchange: Arc<Http1Exchange>,
    /// Cancelled when it has to leave.
    pub leave: CancellationToken,
    number: u32,
    has_asked: AtomicBool,
    /// Nobody sits here any more. Changed while the table is held.
    is_left: AtomicBool,
}

/// A place for as long as somebody has it.
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
    /// Of a request that came without its end.
    missing: Option<Arc<AtomicBool>>,
}

/// The rest of a request. Dropped when it has come, or is wanted no more.
#[derive(Debug)]
pub struct PendingBody {
    places: Arc<ConnectionSlots>,
    place: Arc<ConnectionSlot>,
    missing: Arc<AtomicBool>,
}

/// Why somebody had to leave.
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

    /// Where whoever comes is served at once or has to leave for the next.
    pub fn passing(most: usize) -> Arc<ConnectionSlots> {
        ConnectionSlots::with(most, Duration::ZERO)
    }

    fn with(most: usize, opening_min: Duration) -> Arc<ConnectionSlots> {
        Arc::new(ConnectionSlots {
            most,
            streams_most: (most.saturating_mul(STREAMS_PERCENT) / 100).max(1),
            opening_min,
            began: Instant::now(),
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

    /// A place, and who had to leave for it, if somebody had to. `None`: all are asking for something or listen.
    /// `cut` ends all.
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

    /// What a connection does has changed.
    fn change(&self, place: &ConnectionSlot, change: impl FnOnce(&mut SlotState)) {
        let mut table = self.table.lock();
        // Under the lock, so that lists are in the order of time.
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

    /// Whoever has left already is no longer there.
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
        // To begin one more request, and send nothing of it either, is no reason to wait for longer.
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

/// Says when requests of one connection begin.
#[derive(Clone, Debug)]
pub struct RequestTracker {
    places: Arc<ConnectionSlots>,
    place: Arc<ConnectionSlot>,
}

impl RequestTracker {
    /// Nothing was asked before.
    pub fn is_first(&self) -> bool {
        !self.place.has_asked.load(Relaxed)
    }

    /// A request whose head is there. `is_whole`: it has no more than that.
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

    /// Its answer begins, so nothing of it is waited for any more.
    pub fn answers(&self) {
        if self.is_missing_no_more() {
            self.places.change(&self.place, |seat| seat.receiving -= 1);
        }
    }

    /// Its answer goes on for as long as the client listens. `false`: so many listen that there is no place for one more.
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
