//! Who has a connection, and who has to leave when there is no place for one more: first those that have asked for nothing
//! yet, then those that send what they ask for slowly, then those that have been idle for longest. Whoever waits for an
//! answer or listens to a stream stays.
//!
//! Looking for who leaves costs the same however many there are: a hand goes around them, and passes a bounded number of
//! places for each connection that comes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::exchange::Exchange;

/// Places that are looked at for one that leaves.
const LOOKED_AT_MAX: usize = 256;

/// A client that is in no hurry has asked for something by then.
const OPENING_MIN: Duration = Duration::from_secs(1);

/// Whoever sends a request for longer is slow.
const SENDING_MIN: Duration = Duration::from_secs(5);

/// Of all places; the rest is for requests that come to an end.
const STREAMS_PERCENT: usize = 90;

/// All places of the listeners that share them.
#[derive(Debug)]
pub struct Places {
    most: usize,
    streams_most: usize,
    /// So long a connection may be without a request and is left alone.
    opening_min: Duration,
    began: Instant,
    streams: AtomicUsize,
    ring: Mutex<Ring>,
}

#[derive(Debug, Default)]
struct Ring {
    /// In the order in which the hand meets them. Some may be empty.
    all: VecDeque<Arc<Place>>,
    taken: usize,
}

/// What is known of one connection.
#[derive(Debug)]
pub struct Place {
    /// Of HTTP/1.1, how far its request is.
    pub exchange: Arc<Exchange>,
    /// Cancelled when it has to leave.
    pub leave: CancellationToken,
    has_asked: AtomicBool,
    serving: AtomicU32,
    streaming: AtomicU32,
    /// Milliseconds from the beginning to when it last began or ended something.
    since: AtomicU32,
    /// Nobody sits here any more.
    is_left: AtomicBool,
}

/// A place for as long as somebody has it.
#[derive(Debug)]
pub struct Held {
    places: Arc<Places>,
    place: Arc<Place>,
}

/// A request that is being served, with its answer.
#[derive(Debug)]
pub struct Serving {
    places: Arc<Places>,
    place: Arc<Place>,
    is_stream: bool,
}

/// Why somebody had to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    HalfOpen,
    Slow,
    Idle,
}

impl Why {
    pub fn as_str(self) -> &'static str {
        match self {
            Why::HalfOpen => "half_open",
            Why::Slow => "slow",
            Why::Idle => "idle",
        }
    }
}

impl Places {
    pub fn new(most: usize) -> Arc<Places> {
        Places::with(most, OPENING_MIN)
    }

    /// Where whoever comes is served at once or has to leave for the next.
    pub fn passing(most: usize) -> Arc<Places> {
        Places::with(most, Duration::ZERO)
    }

    fn with(most: usize, opening_min: Duration) -> Arc<Places> {
        Arc::new(Places {
            most,
            streams_most: (most.saturating_mul(STREAMS_PERCENT) / 100).max(1),
            opening_min,
            began: Instant::now(),
            streams: AtomicUsize::new(0),
            ring: Mutex::default(),
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
    pub fn take(self: &Arc<Places>, must_replace: bool, cut: &CancellationToken) -> Option<(Held, Option<Why>)> {
        let mut ring = self.ring.lock();
        let mut left = None;
        if ring.taken >= self.most || must_replace {
            left = Some(self.send_one_away(&mut ring)?);
        }
        ring.taken += 1;
        if ring.all.len() > 2 * ring.taken + LOOKED_AT_MAX {
            ring.all.retain(|place| !place.is_left.load(Relaxed));
        }
        let place = Arc::new(Place {
            exchange: Arc::default(),
            leave: cut.child_token(),
            has_asked: AtomicBool::new(false),
            serving: AtomicU32::new(0),
            streaming: AtomicU32::new(0),
            since: AtomicU32::new(self.now()),
            is_left: AtomicBool::new(false),
        });
        ring.all.push_back(place.clone());
        let held = Held {
            places: self.clone(),
            place,
        };
        Some((held, left))
    }

    fn send_one_away(&self, ring: &mut Ring) -> Option<Why> {
        let now = self.now();
        let mut best: Option<(Why, u32, Arc<Place>)> = None;
        for _ in 0..ring.all.len().min(LOOKED_AT_MAX) {
            let Some(place) = ring.all.pop_front() else { break };
            if place.is_left.load(Relaxed) {
                continue;
            }
            if let Some((why, age)) = self.may_leave(&place, now) {
                let is_better = best
                    .as_ref()
                    .is_none_or(|(known, oldest, _)| (why, u32::MAX - age) < (*known, u32::MAX - *oldest));
                if is_better {
                    best = Some((why, age, place.clone()));
                }
            }
            ring.all.push_back(place);
        }
        let (why, _, place) = best?;
        place.is_left.store(true, Relaxed);
        place.leave.cancel();
        ring.taken -= 1;
        Some(why)
    }

    /// With how long it has been so, in milliseconds.
    fn may_leave(&self, place: &Place, now: u32) -> Option<(Why, u32)> {
        let age = now.saturating_sub(place.since.load(Relaxed));
        let is_for = |least: Duration| Duration::from_millis(age.into()) >= least;
        match (place.serving.load(Relaxed), place.has_asked.load(Relaxed)) {
            (0, false) => is_for(self.opening_min).then_some((Why::HalfOpen, age)),
            (0, true) => Some((Why::Idle, age)),
            _ if place.exchange.is_receiving() && is_for(SENDING_MIN) => Some((Why::Slow, age)),
            _ => None,
        }
    }

    fn now(&self) -> u32 {
        u32::try_from(self.began.elapsed().as_millis()).unwrap_or(u32::MAX)
    }

    #[cfg(test)]
    fn taken(&self) -> usize {
        self.ring.lock().taken
    }
}

impl Held {
    pub fn place(&self) -> &Arc<Place> {
        &self.place
    }

    pub fn server(&self) -> Server {
        Server {
            places: self.places.clone(),
            place: self.place.clone(),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut ring = self.places.ring.lock();
        if !self.place.is_left.swap(true, Relaxed) {
            ring.taken -= 1;
        }
    }
}

/// Says when requests of one connection begin.
#[derive(Clone, Debug)]
pub struct Server {
    places: Arc<Places>,
    place: Arc<Place>,
}

impl Server {
    /// Nothing was asked before.
    pub fn is_first(&self) -> bool {
        !self.place.has_asked.load(Relaxed)
    }

    pub fn begin(&self) -> Serving {
        self.place.has_asked.store(true, Relaxed);
        self.place.serving.fetch_add(1, Relaxed);
        self.place.since.store(self.places.now(), Relaxed);
        Serving {
            places: self.places.clone(),
            place: self.place.clone(),
            is_stream: false,
        }
    }
}

impl Serving {
    /// Its answer goes on for as long as the client listens. `false`: so many listen that there is no place for one more.
    pub fn becomes_stream(&mut self) -> bool {
        let more = |streams: usize| (streams < self.places.streams_most).then_some(streams + 1);
        self.is_stream = self.places.streams.fetch_update(Relaxed, Relaxed, more).is_ok();
        if self.is_stream {
            self.place.streaming.fetch_add(1, Relaxed);
        }
        self.is_stream
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if self.is_stream {
            self.places.streams.fetch_sub(1, Relaxed);
            self.place.streaming.fetch_sub(1, Relaxed);
        }
        self.place.since.store(self.places.now(), Relaxed);
        self.place.serving.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(places: &Arc<Places>) -> Option<(Held, Option<Why>)> {
        places.take(false, &CancellationToken::new())
    }

    /// As if it had been so for so long.
    fn age(held: &Held, by: Duration) {
        let since = held.place.since.load(Relaxed);
        held.place
            .since
            .store(since.saturating_sub(by.as_millis() as u32), Relaxed);
    }

    /// Places of a process that has run for long.
    fn old(most: usize) -> Arc<Places> {
        let places = Places::new(most);
        let mut places = Arc::try_unwrap(places).unwrap();
        places.began = Instant::now().checked_sub(Duration::from_secs(1000)).unwrap();
        Arc::new(places)
    }

    #[test]
    fn the_half_open_leave_first_then_the_slow_then_the_longest_idle() {
        let places = old(5);
        let held: Vec<Held> = (0..5).map(|_| at(&places).unwrap().0).collect();
        let minute = Duration::from_secs(60);
        // Two are idle, one for longer, one sends slowly, one is served, one is half open.
        for idle in &held[0..2] {
            drop(idle.server().begin());
        }
        age(&held[0], minute);
        age(&held[1], 2 * minute);
        let _slow = held[2].server().begin();
        held[2].place.exchange.came();
        age(&held[2], Duration::from_secs(6));
        let _served = held[3].server().begin();
        age(&held[3], minute);
        age(&held[4], Duration::from_secs(2));
        let (mut order, mut new) = (Vec::new(), Vec::new());
        while let Some((came, why)) = at(&places) {
            let has_left =
                |n: &usize| held[*n].place.leave.is_cancelled() && !order.iter().any(|(_, known)| known == n);
            let who = (0..5).find(has_left).expect("somebody has left");
            order.push((why.expect("all places were taken"), who));
            new.push((came.server().begin(), came));
        }
        assert_eq!(
            order,
            [(Why::HalfOpen, 4), (Why::Slow, 2), (Why::Idle, 1), (Why::Idle, 0)]
        );
        assert!(at(&places).is_none(), "all others are served");
        assert_eq!(places.taken(), 5);
    }

    #[test]
    fn whoever_has_just_come_is_left_alone_unless_places_are_for_passing() {
        let places = old(1);
        let first = at(&places).unwrap().0;
        assert!(at(&places).is_none());
        age(&first, OPENING_MIN);
        assert_eq!(at(&places).unwrap().1, Some(Why::HalfOpen));
        let passing = Places::passing(1);
        let first = at(&passing).unwrap().0;
        assert_eq!(at(&passing).unwrap().1, Some(Why::HalfOpen));
        assert!(first.place.leave.is_cancelled());
    }

    #[test]
    fn streams_leave_a_tenth_to_others() {
        let places = Places::new(10);
        let held: Vec<Held> = (0..10).map(|_| at(&places).unwrap().0).collect();
        let mut serving: Vec<Serving> = held.iter().map(|held| held.server().begin()).collect();
        let streams: Vec<bool> = serving.iter_mut().map(Serving::becomes_stream).collect();
        assert_eq!(streams.iter().filter(|is_stream| **is_stream).count(), 9);
        serving.remove(0);
        assert!(serving.last_mut().unwrap().becomes_stream(), "one has ended");
    }

    #[test]
    fn whatever_comes_and_goes_no_more_are_taken_than_there_are_and_none_is_lost() {
        let mut seed = 7_u64;
        let mut next = |below: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for most in [1, 2, 7, 300, 1000] {
            let places = old(most);
            let mut held: Vec<(Held, Vec<Serving>)> = Vec::new();
            for _ in 0..20_000 {
                held.retain(|(held, _)| !held.place.leave.is_cancelled());
                match next(6) {
                    0..=2 => {
                        let full = held.len() >= most;
                        match at(&places) {
                            Some((new, why)) => {
                                assert_eq!(why.is_some(), full);
                                held.push((new, Vec::new()));
                            }
                            None => assert!(full),
                        }
                    }
                    3 if !held.is_empty() => drop(held.swap_remove(next(held.len() as u64) as usize)),
                    4 if !held.is_empty() => {
                        let at = next(held.len() as u64) as usize;
                        let serving = held[at].0.server().begin();
                        held[at].1.push(serving);
                    }
                    _ if !held.is_empty() => {
                        let at = next(held.len() as u64) as usize;
                        held[at].1.pop();
                        age(&held[at].0, Duration::from_millis(next(3000)));
                    }
                    _ => {}
                }
                let sitting = held.iter().filter(|(held, _)| !held.place.leave.is_cancelled()).count();
                assert_eq!(places.taken(), sitting);
                assert!(sitting <= most);
            }
            assert!(places.ring.lock().all.len() <= 2 * most + LOOKED_AT_MAX + 1);
            drop(held);
            assert_eq!((places.taken(), places.streams.load(Relaxed)), (0, 0));
        }
    }
}
