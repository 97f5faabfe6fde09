//! A queue whose clock jumps at random: messages with delays, times of delivery, lifetimes and dedup-ids are produced,
//! leased, extended, released and settled. Time passes, the wall clock is set by seconds or by days, and the process is
//! stopped or killed and boots with the wall clock as it was, later, or in 1970.
//!
//! A model that knows only the time that has passed says which messages a consumer must get, and which it must not. A
//! jump expires nothing, releases nothing early, and keeps nothing longer. `THALWEG_SIM_SEEDS` runs more histories, and
//! `THALWEG_SIM_SEED` begins with another.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::histories::ids::{Expected, Ids};
use crate::support::{
    DAY, HOUR, Machine, SECOND, TODAY, claim_http_as, log_options, nack_in, number, text, up_to, work,
};
use thalweg_log::disk::RamDisk;
use thalweg_log::disk::sim::Random;
use thalweg_log::{Durability, Micros};
use thalweg_queue::settings::{QueueOrdering, QueueSettings};
use thalweg_queue::{Clock, Delivery, NewMessage, Queue, SettleAction};

const WINDOW: Micros = 60 * SECOND;
const VISIBILITY: Micros = 30 * SECOND;
/// The backoff before a retry, which is added to each step so that it is over.
const BACKOFF: Micros = 1000;
const DISK_BYTES: u64 = 32 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// Not before that time, because it was released.
    GivenBack(Micros),
    /// Until that time.
    Leased(Micros),
}

#[derive(Clone, Debug)]
struct Known {
    state: State,
    produced: Micros,
    ttl: Option<Micros>,
    not_before: Option<Micros>,
    deliver_at: Option<Micros>,
    /// The latest wall-clock time seen since.
    shown: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Must {
    Come,
    Stay,
    /// A crash lost some time, or the clock was set back over the time of delivery.
    Either,
}

fn if_all(conditions: [Must; 3]) -> Must {
    match conditions {
        [Must::Come, Must::Come, Must::Come] => Must::Come,
        all if all.contains(&Must::Stay) => Must::Stay,
        _ => Must::Either,
    }
}

impl Known {
    /// `latest` is the highest log time so far.
    fn must(&self, now: Micros, latest: Micros, wall: Micros) -> Must {
        let reached = |at: Micros| match () {
            () if at <= now => Must::Come,
            () if at <= latest => Must::Either,
            () => Must::Stay,
        };
        let is_free = match self.state {
            State::Waiting => Must::Come,
            State::GivenBack(at) => reached(at),
            State::Leased(until) => reached(until + BACKOFF),
        };
        let is_due = match (self.not_before, self.deliver_at) {
            (Some(at), _) => reached(at),
            // A wall clock that is off by less than a second was not set.
            (_, Some(at)) if at + SECOND <= wall => Must::Come,
            (_, Some(at)) if at < self.shown + SECOND => Must::Either,
            (_, Some(_)) => Must::Stay,
            (None, None) => Must::Come,
        };
        let lives = match self.end().map(reached) {
            None | Some(Must::Stay) => Must::Come,
            Some(Must::Come) => Must::Stay,
            Some(Must::Either) => Must::Either,
        };
        if_all([is_free, is_due, lives])
    }

    fn end(&self) -> Option<Micros> {
        let begins = self.not_before.map_or(self.produced, |at| at.max(self.produced));
        Some(begins + self.ttl?)
    }
}

struct World {
    disk: Arc<RamDisk>,
    machine: Option<Machine>,
    durable: bool,
    messages: BTreeMap<String, Known>,
    held: Vec<Delivery>,
    ids: Ids,
    random: Random,
    next: u64,
    now: Micros,
    latest: Micros,
    stored_at: Micros,
    counts: Counts,
    history: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    delivered: u64,
    jumps: u64,
    boots: u64,
    boots_in_1970: u64,
    expired: u64,
    repeated: u64,
}

impl Drop for World {
    #[expect(clippy::print_stdout, reason = "of a case that fails")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.history.iter().for_each(|line| println!("{line}"));
        }
    }
}

fn settings(durability: Durability) -> QueueSettings {
    let mut settings = QueueSettings {
        durability: Some(durability),
        ordering: QueueOrdering::None,
        ttl: Duration::ZERO,
        visibility_timeout: Duration::from_micros(VISIBILITY as u64),
        dedup_window: Duration::from_micros(WINDOW as u64),
        ..work(2)
    };
    let retry = &mut settings.retry;
    (retry.max_retries, retry.total_timeout, retry.jitter) = (1_000_000, Duration::ZERO, 0.0);
    retry.initial_backoff = Duration::from_micros(BACKOFF as u64);
    retry.max_backoff = retry.initial_backoff;
    settings
}

impl World {
    async fn new(seed: u64) -> World {
        let mut random = Random::new(seed);
        let durable = !random.one_in(4);
        let disk = Arc::new(RamDisk::new(DISK_BYTES));
        let machine = Machine::boot_on(disk.clone(), log_options(1 << 20, 1 << 19), TODAY)
            .await
            .unwrap();
        let durability = if durable { Durability::Fsync } else { Durability::Memory };
        machine.queue(settings(durability)).await;
        let now = machine.now();
        World {
            disk,
            machine: Some(machine),
            durable,
            messages: BTreeMap::new(),
            held: Vec::new(),
            ids: Ids::new(WINDOW),
            random,
            next: 0,
            now,
            latest: now,
            stored_at: now,
            counts: Counts::default(),
            history: vec![format!("{durability:?}")],
        }
    }

    fn machine(&self) -> &Machine {
        self.machine.as_ref().unwrap()
    }

    fn queue(&self) -> Arc<Queue> {
        self.machine().place.queue()
    }

    fn happened(&mut self, what: impl std::fmt::Debug) {
        self.history.push(format!("{what:?}"));
    }

    fn time_is(&mut self, now: Micros) {
        assert_eq!(
            self.machine().now(),
            now,
            "time went on by something else than what has passed"
        );
        (self.now, self.latest) = (now, self.latest.max(now));
        let wall = self.machine().wall();
        self.messages
            .values_mut()
            .for_each(|known| known.shown = known.shown.max(wall));
    }

    async fn step(&mut self) {
        match self.random.below(20) {
            0..5 => self.produce().await,
            5..8 => self.claim(1 + self.random.clone().below(3) as u32).await,
            8..11 => self.settle().await,
            11..14 => self.time_passes().await,
            14..17 => self.clock_is_set().await,
            17 if self.durable => self.starts_again().await,
            _ => self.all_come_that_must().await,
        }
    }

    async fn produce(&mut self) {
        let (queue, now, wall) = (self.queue(), self.now, self.machine().wall());
        let mut one_of =
            |all: &[Option<Micros>]| all.get(self.random.below(all.len() as u64) as usize).copied().flatten();
        let mut ttl = one_of(&[None, None, Some(20 * SECOND), Some(HOUR), Some(10 * DAY)]);
        let not_before =
            one_of(&[None, None, None, Some(5 * SECOND), Some(40 * SECOND), Some(3 * HOUR)]).map(|d| now + d);
        let deliver_at = one_of(&[None, None, Some(5 * SECOND), Some(3 * HOUR), Some(2 * DAY), Some(-HOUR)]);
        let deliver_at = deliver_at.filter(|_| not_before.is_none()).map(|delay| wall + delay);
        if deliver_at.is_some() {
            // Its lifetime begins when the clock shows that time, by the clock as it is then.
            ttl = None;
        }
        self.next += 1;
        let text = format!("message {}", self.next);
        let id = self.random.one_in(3).then(|| format!("id {}", self.random.below(4)));
        let message = NewMessage {
            ttl: ttl.map(|ttl| Duration::from_micros(ttl as u64)),
            not_before,
            deliver_at,
            dedup_id: id.as_deref().map(Into::into),
            ..NewMessage::of(text.clone())
        };
        let produced = queue.produce(message).await.unwrap();
        self.happened(("produced", &text, ttl, not_before, deliver_at, &id, produced));
        self.stored_at = now;
        let place = (produced.partition, produced.offset);
        if let Some(id) = &id {
            match self.ids.expected(id, now, self.latest) {
                Expected::First => assert!(!produced.repeated, "{id} is known longer than its window"),
                Expected::Repeated(first) => {
                    assert!(produced.repeated, "{id} is forgotten in its window");
                    assert_eq!(place, first);
                }
                Expected::Either => {}
            }
            if produced.repeated {
                self.counts.repeated += 1;
                return;
            }
            self.ids.stored(id, place, now);
        }
        let known = Known {
            state: State::Waiting,
            produced: now,
            ttl,
            not_before,
            deliver_at,
            shown: wall,
        };
        self.messages.insert(text, known);
    }

    /// At most `max` messages; each must be deliverable now.
    async fn claim(&mut self, max: u32) {
        let queue = self.queue();
        let (now, latest, wall) = (self.now, self.latest, self.machine().wall());
        for delivery in claim_http_as(&queue, "g", "c", up_to(max)).await {
            let text = text(&delivery.message);
            self.happened(("handed out", &text, delivery.delivery, delivery.deadline));
            assert_eq!(delivery.deadline, now + VISIBILITY, "{text}");
            let known = self.messages.get_mut(&text);
            let known = known.unwrap_or_else(|| panic!("{text} is settled, or was not stored"));
            assert_ne!(
                known.must(now, latest, wall),
                Must::Stay,
                "{text} is handed out: {known:?}"
            );
            known.state = State::Leased(delivery.deadline);
            self.counts.delivered += 1;
            self.held.push(delivery);
        }
    }

    async fn all_come_that_must(&mut self) {
        let (now, latest, wall) = (self.now, self.latest, self.machine().wall());
        let must = |known: &Known| known.must(now, latest, wall) == Must::Come;
        let wanted: Vec<String> = self
            .messages
            .iter()
            .filter(|(_, known)| must(known))
            .map(|(text, _)| text.clone())
            .collect();
        let before = self.held.len();
        loop {
            let had = self.held.len();
            self.claim(1000).await;
            if self.held.len() == had {
                break;
            }
        }
        let come: Vec<String> = self
            .held
            .iter()
            .skip(before)
            .map(|delivery| text(&delivery.message))
            .collect();
        for text in wanted {
            assert!(
                come.contains(&text),
                "{text} does not come: {:?}",
                self.messages.get(&text)
            );
        }
    }

    async fn settle(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let queue = self.queue();
        let at = self.random.below(self.held.len() as u64) as usize;
        let delivery = self.held.swap_remove(at);
        let text = text(&delivery.message);
        let long = *[SECOND, 10 * SECOND, 2 * HOUR]
            .get(self.random.below(3) as usize)
            .unwrap();
        let duration = Duration::from_micros(long as u64);
        let verdict = match self.random.below(4) {
            0 => nack_in(duration),
            1 => SettleAction::Extend {
                visibility: Some(duration),
            },
            _ => SettleAction::Ack,
        };
        let group = queue.group("g").unwrap();
        let receipt = queue.receipt(&delivery);
        let settled = queue
            .settle(&group, vec![(receipt, verdict.clone())], true)
            .await
            .unwrap();
        self.happened(("settled", &text, &verdict, settled.settled));
        let Some(known) = self.messages.get_mut(&text) else {
            assert_eq!(settled.settled, 0, "{text} is settled twice");
            return;
        };
        let is_its = known.state == State::Leased(delivery.deadline);
        let held = is_its && self.latest < delivery.deadline;
        assert!(
            !held || settled.settled == 1,
            "{text} is leased still: {known:?}, {settled:?}"
        );
        // An ack may come late, as long as no other consumer has the message.
        let may_hold = is_its && (self.now < delivery.deadline || verdict == SettleAction::Ack);
        assert!(may_hold || settled.settled == 0, "{text} is leased no more: {known:?}");
        if settled.settled == 0 {
            return;
        }
        self.stored_at = self.now;
        match verdict {
            SettleAction::Ack => drop(self.messages.remove(&text)),
            SettleAction::Nack { .. } => known.state = State::GivenBack(self.now + long),
            _ => {
                known.state = State::Leased(self.now + long);
                self.held.push(Delivery {
                    deadline: self.now + long,
                    ..delivery
                });
            }
        }
    }

    async fn time_passes(&mut self) {
        let long = match self.random.below(8) {
            0 => DAY,
            1 => 2 * HOUR,
            2 | 3 => 61 * SECOND,
            4 => 31 * SECOND,
            _ => (1 + self.random.below(10)) as Micros * SECOND,
        };
        self.happened(("time passes", long));
        self.pass(long).await;
    }

    /// Plus a little more, so that what has ended by then can be retried.
    async fn pass(&mut self, long: Micros) {
        for time in [long, 2 * BACKOFF] {
            self.machine().pass(time).await;
            self.time_is(self.now + time);
        }
    }

    async fn clock_is_set(&mut self) {
        let wall = self.machine().wall();
        let by = match self.random.below(8) {
            0 => 8 * DAY,
            1 => -8 * DAY,
            2 => 30 * SECOND - wall,
            3 => TODAY + self.random.below(100) as Micros * DAY - wall,
            4 => HOUR,
            5 => -HOUR,
            _ => (2 + self.random.below(60)) as Micros * SECOND * if self.random.one_in(2) { 1 } else { -1 },
        };
        self.happened(("the clock is set by", by));
        self.counts.jumps += 1;
        self.machine().set(by).await;
        if by.abs() >= SECOND {
            self.stored_at = self.now;
        }
        self.time_is(self.now);
        self.pass(SECOND).await;
    }

    async fn starts_again(&mut self) {
        let clean = self.random.one_in(2);
        let machine = self.machine.take().unwrap();
        let (before, wall) = (machine.now(), machine.wall());
        let shown = machine.place.clock.wall_at(before);
        let found = match self.random.below(4) {
            0 => {
                self.counts.boots_in_1970 += 1;
                self.random.below(100) as Micros * SECOND
            }
            1 => wall,
            _ => wall + self.random.below(7200) as Micros * SECOND,
        };
        self.happened(("starts again", clean, "after", found - wall));
        self.counts.boots += 1;
        machine.place.end(clean).await;
        let machine = Machine::boot_on(self.disk.clone(), log_options(1 << 20, 1 << 19), found)
            .await
            .unwrap();
        let now = machine.now();
        match found >= shown {
            true => assert_eq!(now, before + found - shown, "a stop takes what the wall clock says"),
            false => assert!(
                (self.stored_at..=before).contains(&now),
                "a stop takes nothing: {now}, not {before}"
            ),
        }
        self.machine = Some(machine);
        self.machine().look().await;
        self.time_is(now);
        self.pass(SECOND).await;
    }

    /// In the end every live message is delivered.
    async fn end(mut self) -> Counts {
        for long in [SECOND, 3 * HOUR] {
            self.pass(long).await;
            self.all_come_that_must().await;
        }
        let wall = self.machine().wall();
        self.machine().set(TODAY + 200 * DAY - wall).await;
        self.time_is(self.now);
        self.pass(SECOND).await;
        self.all_come_that_must().await;
        let queue = self.queue();
        let is_held = |known: &Known| matches!(known.state, State::Leased(until) if until > self.now);
        let held = self.messages.values().filter(|known| is_held(known)).count();
        assert_eq!(
            queue.depth(),
            held as u64,
            "what has expired is gone, and what lives is held"
        );
        self.counts.expired = (self.messages.len() - held) as u64;
        self.machine.take().unwrap().place.stop().await;
        self.counts
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "a case that fails is the one that was told last")]
fn a_jump_of_the_clock_expires_nothing_frees_nothing_early_and_keeps_nothing_longer() {
    let (first, count) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", 60));
    let mut sum = Counts::default();
    for seed in first..first + count {
        println!("seed {seed}");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let counts = runtime.block_on(async {
            let mut world = World::new(seed).await;
            for _ in 0..60 {
                world.step().await;
            }
            world.end().await
        });
        sum.delivered += counts.delivered;
        sum.jumps += counts.jumps;
        sum.boots += counts.boots;
        sum.boots_in_1970 += counts.boots_in_1970;
        sum.expired += counts.expired;
        sum.repeated += counts.repeated;
    }
    println!("{count} histories: {sum:?}");
    let few = [sum.delivered, sum.jumps, sum.boots, sum.expired];
    assert!(count < 60 || few.iter().all(|n| *n > 0), "{sum:?}");
}
