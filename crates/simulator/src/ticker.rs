//! The thread that changes the nodes. It alone tracks the monitored items: the node manager sends it events, and at
//! each change of a group it pushes the new value to every item of that group, subscription by subscription, under the
//! session's lock and never for long. It also maintains the statistics of `/sim/stats`.

mod filter;
mod item;
mod ledger;
mod report;
mod sessions;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use opcua::types::{DateTime, MonitoringMode};
use opcua_server::{MonitoredItemHandle, SubscriptionCache};
use tokio::sync::oneshot;

use crate::SimulatorStats;
use crate::space::{CHANGING, GROUPS, Group, PlcAddressSpace};
use ledger::{Change, Ledger, Totals};
use sessions::{SessionIndex, SubscriptionRef};
use thalweg_kit::threads::JoinHandle;
use thalweg_kit::{clock, threads};

pub(crate) use filter::Filter;
pub(crate) use ledger::NewItem;

/// Items that receive a value while the session's lock is held once, which takes some milliseconds. A subscription up
/// to this size gets a change as a whole; in parts, the library would make a message of each part.
const ITEMS_PER_LOCK: usize = 20_000;
/// How often the ticker checks whether the library has created announced items.
const ADMIT_INTERVAL: Duration = Duration::from_millis(2);
/// How often it checks whether a late client has caught up, so that held changes can be released.
const RELEASE_INTERVAL: Duration = Duration::from_millis(20);
/// How often it checks whether held changes may start.
const LET_GO_INTERVAL: Duration = Duration::from_millis(20);
/// An announced item that does not appear within this time was refused by another part of the server.
const ADMIT_PATIENCE: Duration = Duration::from_secs(30);

/// Events from the rest of the simulator.
pub(crate) enum TickerEvent {
    /// A session was activated; `alive` returns whether it still is.
    Session {
        id: u32,
        alive: Box<dyn Fn() -> bool + Send>,
    },
    Created {
        session: u32,
        items: Vec<NewItem>,
    },
    Modified(Vec<MonitoredItemHandle>),
    Mode(MonitoringMode, Vec<MonitoredItemHandle>),
    Deleted(Vec<MonitoredItemHandle>),
    Report(oneshot::Sender<SimulatorStats>),
    Stop,
}

/// Sends events to the ticker.
#[derive(Clone)]
pub(crate) struct TickerSender(Sender<TickerEvent>);

impl TickerSender {
    pub(crate) fn new() -> (TickerSender, Receiver<TickerEvent>) {
        let (sender, receiver) = channel();
        (TickerSender(sender), receiver)
    }

    /// Nobody needs an event after the ticker has stopped.
    pub(crate) fn send(&self, event: TickerEvent) {
        let _ = self.0.send(event);
    }
}

/// A subscription that contains our items.
struct TrackedSubscription {
    session: u32,
    ledger: Ledger,
    waiting_since: Option<Instant>,
}

pub(crate) struct Ticker {
    space: Arc<PlcAddressSpace>,
    seed: u64,
    homes: SessionIndex,
    subscriptions: HashMap<u32, TrackedSubscription>,
    totals: [Totals; GROUPS],
    late_changes: [u64; CHANGING.len()],
}

impl Ticker {
    pub(crate) fn spawn(
        space: Arc<PlcAddressSpace>,
        seed: u64,
        cache: Arc<SubscriptionCache>,
        events: Receiver<TickerEvent>,
    ) -> std::io::Result<JoinHandle<()>> {
        let ticker = Ticker {
            space,
            seed,
            homes: SessionIndex::new(cache),
            subscriptions: HashMap::new(),
            totals: Default::default(),
            late_changes: [0; CHANGING.len()],
        };
        threads::spawn("sim-ticker", move || ticker.run(&events))
    }

    fn run(mut self, events: &Receiver<TickerEvent>) {
        loop {
            let wait = self.next_wake().saturating_duration_since(clock::now());
            let first = match events.recv_timeout(wait) {
                Ok(event) => Some(event),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            for event in first.into_iter().chain(std::iter::from_fn(|| events.try_recv().ok())) {
                if matches!(event, TickerEvent::Stop) {
                    return;
                }
                self.apply(event);
            }
            self.admit();
            for group in CHANGING {
                self.change_if_due(group);
            }
            self.release();
        }
    }

    fn next_wake(&self) -> Instant {
        let (start, is_held) = (self.space.start(), self.space.is_held());
        let clocks = CHANGING
            .iter()
            .filter(|_| !is_held)
            .filter_map(|group| self.space.clock(*group));
        let next_change = clocks.map(|clock| clock.instant(start, clock.changes() + 1)).min();
        let any = |doing: fn(&Ledger) -> bool| self.subscriptions.values().any(|watched| doing(&watched.ledger));
        let now = clock::now();
        let next_admit = any(Ledger::is_waiting).then(|| now + ADMIT_INTERVAL);
        let next_release = any(Ledger::is_holding).then(|| now + RELEASE_INTERVAL);
        let next_look = is_held.then(|| now + LET_GO_INTERVAL);
        let wakes = next_change
            .into_iter()
            .chain(next_admit)
            .chain(next_release)
            .chain(next_look);
        wakes.min().unwrap_or(now)
    }

    fn apply(&mut self, event: TickerEvent) {
        match event {
            TickerEvent::Session { id, alive } => self.homes.add(id, alive),
            TickerEvent::Created { session, items } => self.announce(session, items),
            TickerEvent::Modified(handles) => self.revise(&handles),
            TickerEvent::Mode(mode, handles) => {
                self.each_addressed(&handles, |watched, home, ids, _, totals| {
                    home.with(|queues| watched.ledger.set_mode(ids, mode, queues, totals));
                });
            }
            TickerEvent::Deleted(handles) => {
                self.each_addressed(&handles, |watched, home, ids, _, totals| {
                    home.with(|queues| watched.ledger.remove(ids, queues, totals));
                });
                self.subscriptions.retain(|_, watched| !watched.ledger.is_empty());
            }
            TickerEvent::Report(reply) => {
                let _ = reply.send(self.report());
            }
            TickerEvent::Stop => {}
        }
    }

    fn announce(&mut self, session: u32, items: Vec<NewItem>) {
        let now = clock::now();
        for item in items {
            let watched = self
                .subscriptions
                .entry(item.subscription)
                .or_insert_with(|| TrackedSubscription {
                    session,
                    ledger: Ledger::default(),
                    waiting_since: None,
                });
            watched.waiting_since.get_or_insert(now);
            watched.ledger.add(item);
        }
    }

    fn admit(&mut self) {
        let now = clock::now();
        let (space, totals) = (&self.space, &mut self.totals);
        for (id, watched) in self
            .subscriptions
            .iter_mut()
            .filter(|(_, watched)| watched.ledger.is_waiting())
        {
            let Some(home) = self.homes.find(*id, &mut watched.session) else {
                continue;
            };
            home.with(|queues| watched.ledger.admit(space, queues, DateTime::now(), totals));
            if !watched.ledger.is_waiting() {
                watched.waiting_since = None;
            } else if watched.waiting_since.is_some_and(|since| now - since > ADMIT_PATIENCE) {
                watched.ledger.forget_waiting();
                watched.waiting_since = None;
            }
        }
    }

    /// Serves at most one change, so that events are handled between changes even when the machine is too slow.
    fn change_if_due(&mut self, group: Group) {
        if self.space.is_held() {
            return;
        }
        let Some(clock) = self.space.clock(group) else { return };
        let due = clock.due(self.space.start(), clock::now());
        let number = clock.changes() + 1;
        if number > due {
            return;
        }
        if number < due {
            self.late_changes[group as usize] += 1;
        }
        // From here on, Read and new items return the new value.
        clock.set_changes(number);
        let Some(change) = Change::new(&self.space, group, number, DateTime::now()) else {
            return;
        };
        let totals = &mut self.totals;
        let homes = &self.homes;
        self.subscriptions.retain(|id, watched| {
            let Some(home) = homes.find(*id, &mut watched.session) else {
                std::mem::take(&mut watched.ledger).close(totals);
                return false;
            };
            let count = watched.ledger.len(group);
            for from in (0..count).step_by(ITEMS_PER_LOCK) {
                let positions = from..count.min(from + ITEMS_PER_LOCK);
                home.with(|queues| watched.ledger.push(change, positions, queues, totals));
            }
            true
        });
    }

    fn release(&mut self) {
        let (space, totals, now) = (&self.space, &mut self.totals, DateTime::now());
        for (id, watched) in &mut self.subscriptions {
            if !watched.ledger.is_holding() {
                continue;
            }
            if let Some(home) = self.homes.find(*id, &mut watched.session) {
                home.with(|queues| watched.ledger.release(space, queues, now, totals));
            }
        }
    }

    fn revise(&mut self, handles: &[MonitoredItemHandle]) {
        // A modified item exists, so it can be admitted first.
        self.admit();
        self.each_addressed(handles, |watched, home, ids, space, totals| {
            home.with(|queues| {
                let queues = &*queues;
                watched.ledger.revise(space, queues, totals, |id| {
                    if ids.contains(&id) {
                        queues.get(&id).map(sessions::revision)
                    } else {
                        None
                    }
                });
            });
        });
    }

    /// Groups the handles by subscription and calls `act` for each subscription that still exists.
    fn each_addressed(
        &mut self,
        handles: &[MonitoredItemHandle],
        mut act: impl FnMut(
            &mut TrackedSubscription,
            &SubscriptionRef,
            &HashSet<u32>,
            &PlcAddressSpace,
            &mut [Totals; GROUPS],
        ),
    ) {
        let mut by_subscription: HashMap<u32, HashSet<u32>> = HashMap::new();
        for handle in handles {
            by_subscription
                .entry(handle.subscription_id)
                .or_default()
                .insert(handle.monitored_item_id);
        }
        for (id, ids) in by_subscription {
            let Some(watched) = self.subscriptions.get_mut(&id) else {
                continue;
            };
            match self.homes.find(id, &mut watched.session) {
                Some(home) => act(watched, &home, &ids, &self.space, &mut self.totals),
                None => {
                    if let Some(watched) = self.subscriptions.remove(&id) {
                        watched.ledger.close(&mut self.totals);
                    }
                }
            }
        }
    }
}
