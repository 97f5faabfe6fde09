//! Compares a subscription with a model that remembers everything, with crashes between an operation and its storage.

use std::collections::HashMap;

use proptest::prelude::*;

use super::DeliveryStrategy;
use super::*;

const TIMEOUT: Micros = 1000;

fn settings(strategy: DeliveryStrategy) -> SubscriptionSettings {
    SubscriptionSettings {
        source: SubscriptionSource::All,
        from: 1,
        strategy,
        ack_timeout: TIMEOUT,
        max_attempts: 3,
        max_in_flight: 4,
        types: vec!["Created".into()],
        correlation: Some("cart".into()),
    }
}

fn fetch(max: usize) -> LeaseRequest {
    LeaseRequest {
        consumer: "c".into(),
        max,
        bytes_max: 1 << 20,
        at_least_one: true,
    }
}

/// Offers messages 1, 2, … of streams with these keys.
fn offer(all: &mut Subscription, keys: &[u64]) {
    let candidates: Vec<Candidate> = keys
        .iter()
        .zip(1..)
        .map(|(key, global)| Candidate {
            global,
            key: *key,
            bytes: 10,
        })
        .collect();
    all.offer(&candidates, keys.len() as u64 + 1);
}

fn globals(handed: &[LeasedMessage]) -> Vec<u64> {
    handed.iter().map(|handed| handed.lease.global).collect()
}

#[test]
fn of_one_cardinal_id_one_message_is_out_at_a_time_and_others_pass() {
    let mut all = Subscription::new(settings(DeliveryStrategy::ByStream), 7);
    offer(&mut all, &[1, 1, 2, 1]);
    let first = all.fetch(&fetch(10), 0);
    assert_eq!(globals(&first), [1, 3]);
    assert_eq!(globals(&all.fetch(&fetch(10), 0)), [0_u64; 0]);
    all.ack(&[first[0].lease]);
    assert_eq!(globals(&all.fetch(&fetch(10), 0)), [2]);
    assert_eq!(all.position(), 1, "2 is out");
}

#[test]
fn a_message_that_waits_for_its_retry_holds_back_its_stream_only() {
    let mut all = Subscription::new(settings(DeliveryStrategy::ByStream), 7);
    offer(&mut all, &[1, 1, 2]);
    let first = all.fetch(&fetch(1), 0);
    let retry = Nack::Retry {
        delay: 500,
        reason: String::new(),
    };
    all.nack(&[first[0].lease], &retry, 0);
    assert_eq!(globals(&all.fetch(&fetch(10), 499)), [3]);
    assert_eq!(all.due(499), Some(500));
    let again = all.fetch(&fetch(10), 500);
    assert_eq!((globals(&again), again[0].attempt), (vec![1], 2));
}

#[test]
fn without_order_everything_is_handed_out_up_to_what_may_be_in_flight() {
    let mut all = Subscription::new(settings(DeliveryStrategy::RoundRobin), 7);
    offer(&mut all, &[1, 1, 1, 1, 1]);
    assert_eq!(globals(&all.fetch(&fetch(10), 0)), [1, 2, 3, 4]);
    assert!(all.is_busy(0) && !all.is_busy(TIMEOUT));
}

#[test]
fn a_lease_holds_past_its_time_until_the_message_is_handed_out_again() {
    let mut all = Subscription::new(settings(DeliveryStrategy::ByStream), 7);
    offer(&mut all, &[1]);
    let first = all.fetch(&fetch(1), 0)[0].lease;
    assert!(all.holds(first));
    let second = all.fetch(&fetch(1), TIMEOUT)[0].lease;
    assert_eq!(all.ack(&[first]).stale, [first]);
    assert_eq!(all.ack(&[second]).settled, 1);
    assert_eq!(all.ack(&[second]).stale, [second]);
    assert_eq!(all.position(), 1);
}

#[test]
fn after_the_last_attempt_a_message_is_parked_and_its_stream_goes_on() {
    let mut all = Subscription::new(settings(DeliveryStrategy::ByStream), 7);
    offer(&mut all, &[1, 1]);
    for attempt in 1..=3 {
        let handed = all.fetch(&fetch(10), attempt * TIMEOUT);
        assert_eq!((globals(&handed), i64::from(handed[0].attempt)), (vec![1], attempt));
    }
    assert_eq!(globals(&all.fetch(&fetch(10), 4 * TIMEOUT)), [2]);
    let parked = &all.parked()[&1];
    assert_eq!(
        (&*parked.reason, parked.attempts),
        ("not acknowledged in 3 attempts", 3)
    );
    // A replayed message is delivered again, but not while another of its stream is leased.
    assert_eq!(all.replay(&[], 10), 1);
    assert_eq!(globals(&all.fetch(&fetch(10), 4 * TIMEOUT)), [0_u64; 0]);
    let again = all.fetch(&fetch(10), 5 * TIMEOUT);
    assert_eq!((globals(&again), again[0].attempt), (vec![1], 1));
}

#[test]
fn with_too_many_parked_nothing_is_handed_out_until_some_are_replayed_or_discarded() {
    let mut all = Subscription::new(
        SubscriptionSettings {
            max_in_flight: 1000,
            ..settings(DeliveryStrategy::RoundRobin)
        },
        7,
    );
    let park = Nack::Park { reason: "bad".into() };
    let mut at = 1;
    while !all.is_full() {
        let candidates: Vec<Candidate> = (at..at + 1000)
            .map(|global| Candidate {
                global,
                key: global,
                bytes: 1,
            })
            .collect();
        at += 1000;
        all.offer(&candidates, at);
        let leases: Vec<Lease> = all.fetch(&fetch(1000), 0).iter().map(|handed| handed.lease).collect();
        assert_eq!(all.nack(&leases, &park, 0).settled, 1000);
    }
    all.offer(
        &[Candidate {
            global: at,
            key: at,
            bytes: 1,
        }],
        at + 1,
    );
    assert_eq!(all.fetch(&fetch(10), 0), []);
    assert!(all.encode().len() < 400 << 10, "{} bytes", all.encode().len());
    assert_eq!(all.discard(&[1], 1), 1);
    assert_eq!(globals(&all.fetch(&fetch(10), 0)), [at]);
}

#[test]
fn a_reset_reads_again_from_there_and_no_lease_holds() {
    let mut all = Subscription::new(settings(DeliveryStrategy::RoundRobin), 7);
    offer(&mut all, &[1, 2, 3, 4]);
    let handed = all.fetch(&fetch(4), 0);
    let park = Nack::Park { reason: "bad".into() };
    all.nack(&[handed[0].lease, handed[2].lease], &park, 0);
    all.reset(3);
    assert_eq!((all.next(), all.position()), (3, 2));
    assert_eq!(all.parked().keys().copied().collect::<Vec<_>>(), [1]);
    assert_eq!(all.ack(&[handed[3].lease]).settled, 0);
}

#[test]
fn bytes_bound_what_is_handed_out_at_once_but_for_the_first() {
    let mut all = Subscription::new(settings(DeliveryStrategy::RoundRobin), 7);
    offer(&mut all, &[1, 2, 3]);
    let small = |bytes_max| LeaseRequest { bytes_max, ..fetch(10) };
    assert_eq!(globals(&all.fetch(&small(0), 0)), [1]);
    assert_eq!(globals(&all.fetch(&small(20), 0)), [2, 3]);
}

#[test]
fn other_types_are_chosen_among_what_nobody_has_had() {
    let mut all = Subscription::new(settings(DeliveryStrategy::RoundRobin), 7);
    offer(&mut all, &[1, 2, 3]);
    all.fetch(&fetch(1), 0);
    all.update(SettingsChange {
        types: Some(Vec::new()),
        ..SettingsChange::default()
    });
    assert_eq!((all.next(), all.info(0).waiting, all.info(0).in_flight), (2, 0, 1));
}

#[test]
fn a_lease_is_read_as_it_is_written() {
    let lease = Lease {
        global: 47,
        number: 1_768_473_000_250_001,
    };
    assert_eq!(lease.to_string().parse(), Ok(lease));
    for bad in [
        "",
        "1",
        "1.",
        ".1",
        "+1.2",
        "1.2.3",
        "1.-2",
        "99999999999999999999999.1",
    ] {
        assert_eq!(bad.parse::<Lease>(), Err(()), "{bad}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Append(u64),
    /// Maximum number of messages, and the page size of the reads.
    Fetch(usize, usize),
    Ack(Vec<usize>),
    Nack(usize, Nack),
    Wait(Micros),
    Replay(usize),
    Discard,
}

fn op() -> impl Strategy_<Value = Op> {
    let nack = prop_oneof![
        3 => (0..3_i64).prop_map(|delay| Nack::Retry { delay: delay * 700, reason: "no".into() }),
        1 => Just(Nack::Park { reason: "bad".into() }),
        1 => Just(Nack::Skip),
        1 => Just(Nack::Back),
    ];
    prop_oneof![
        6 => (0..3_u64).prop_map(Op::Append),
        6 => (1..6_usize, 1..4_usize).prop_map(|(max, page)| Op::Fetch(max, page)),
        4 => proptest::collection::vec(0..20_usize, 1..4).prop_map(Op::Ack),
        3 => (0..20_usize, nack).prop_map(|(which, nack)| Op::Nack(which, nack)),
        2 => (0..1500_i64).prop_map(Op::Wait),
        1 => (1..3_usize).prop_map(Op::Replay),
        1 => Just(Op::Discard),
    ]
}

use proptest::strategy::Strategy as Strategy_;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Open(u32),
    Parked(u32),
    Settled,
}

/// Everything that has happened.
#[derive(Clone, Debug, Default)]
struct Model {
    keys: Vec<u64>,
    fates: HashMap<u64, Fate>,
    /// Leases with their deadlines; the newest one of a message is valid.
    leases: Vec<(Lease, Micros)>,
    now: Micros,
}

impl Model {
    fn key(&self, global: u64) -> u64 {
        self.keys[global as usize - 1]
    }

    fn fate(&self, global: u64) -> Fate {
        self.fates.get(&global).copied().unwrap_or(Fate::Open(0))
    }

    fn holds(&self, lease: Lease) -> bool {
        let newest = self.leases.iter().rev().find(|(other, _)| other.global == lease.global);
        let is_newest = lease.number > 0 && newest.is_some_and(|(newest, _)| *newest == lease);
        is_newest && matches!(self.fate(lease.global), Fate::Open(n) if n > 0)
    }

    fn live(&self) -> Vec<Lease> {
        let live = self
            .leases
            .iter()
            .filter(|(lease, end)| *end > self.now && self.holds(*lease));
        live.map(|(lease, _)| *lease).collect()
    }

    /// Checks delivered messages against the model.
    fn handed(&mut self, all: &Subscription, handed: &[LeasedMessage]) {
        for (global, parked) in all.parked() {
            match self.fate(*global) {
                Fate::Parked(attempts) => assert_eq!(attempts, parked.attempts),
                Fate::Open(attempts) => {
                    assert_eq!((attempts, parked.attempts), (3, 3), "{global} had attempts left");
                    assert!(!self.live().iter().any(|lease| lease.global == *global));
                    self.fates.insert(*global, Fate::Parked(3));
                }
                Fate::Settled => panic!("{global} was settled and is parked"),
            }
        }
        for handed in handed {
            let global = handed.lease.global;
            let Fate::Open(attempts) = self.fate(global) else {
                panic!("{global} was not open");
            };
            assert_eq!(handed.attempt, attempts + 1);
            assert!(handed.attempt <= 3);
            assert!(
                self.leases.iter().all(|(lease, _)| *lease != handed.lease),
                "a lease is given twice"
            );
            let live = self.live();
            assert!(live.len() < 4, "too many in flight");
            assert!(live.iter().all(|lease| lease.global != global));
            if all.settings().strategy == DeliveryStrategy::ByStream {
                let key = self.key(global);
                assert!(
                    live.iter().all(|lease| self.key(lease.global) != key),
                    "two of one stream"
                );
                let earlier = (1..global).filter(|other| self.key(*other) == key);
                for other in earlier {
                    assert!(
                        !matches!(self.fate(other), Fate::Open(_)),
                        "{global} came before {other}"
                    );
                }
            }
            self.fates.insert(global, Fate::Open(attempts + 1));
            self.leases.push((handed.lease, self.now + TIMEOUT));
        }
    }

    fn apply(&mut self, all: &mut Subscription, op: &Op) {
        match op {
            Op::Append(key) => self.keys.push(*key),
            Op::Wait(time) => self.now += time,
            Op::Fetch(max, page) => {
                let handed = self.fetch(all, *max, *page);
                self.handed(all, &handed);
            }
            Op::Ack(which) => {
                for which in which {
                    let Some((lease, _)) = self.leases.get(*which).copied() else {
                        continue;
                    };
                    let holds = self.holds(lease);
                    assert_eq!(all.holds(lease), holds);
                    assert_eq!(all.ack(&[lease]).settled, usize::from(holds));
                    if holds {
                        self.fates.insert(lease.global, Fate::Settled);
                    }
                }
            }
            Op::Nack(which, nack) => {
                let Some((lease, _)) = self.leases.get(*which).copied() else {
                    return;
                };
                let holds = self.holds(lease);
                assert_eq!(all.nack(&[lease], nack, self.now).settled, usize::from(holds));
                let Fate::Open(attempts) = self.fate(lease.global) else {
                    return;
                };
                if !holds {
                    return;
                }
                let fate = match nack {
                    Nack::Skip => Fate::Settled,
                    Nack::Back => Fate::Open(attempts - 1),
                    Nack::Park { .. } => Fate::Parked(attempts),
                    Nack::Retry { .. } if attempts == 3 => Fate::Parked(3),
                    Nack::Retry { .. } => Fate::Open(attempts),
                };
                self.fates.insert(lease.global, fate);
                // No lease is valid until the next delivery.
                let gone = Lease { number: 0, ..lease };
                self.leases.push((gone, 0));
            }
            Op::Replay(max) => {
                let chosen: Vec<u64> = all.parked().keys().copied().take(*max).collect();
                assert_eq!(all.replay(&[], *max), chosen.len());
                for global in chosen {
                    self.fates.insert(global, Fate::Open(0));
                }
            }
            Op::Discard => {
                let chosen: Vec<u64> = all.parked().keys().copied().take(1).collect();
                assert_eq!(all.discard(&chosen, 1), chosen.len());
                for global in chosen {
                    self.fates.insert(global, Fate::Settled);
                }
            }
        }
    }

    fn fetch(&self, all: &mut Subscription, max: usize, page: usize) -> Vec<LeasedMessage> {
        let mut out = all.fetch(&fetch(max), self.now);
        while out.len() < max && all.next() <= self.keys.len() as u64 && all.room() > 0 {
            let candidates: Vec<Candidate> = (all.next()..=self.keys.len() as u64)
                .take(page)
                .map(|global| Candidate {
                    global,
                    key: self.key(global),
                    bytes: 1,
                })
                .collect();
            let next = candidates.last().unwrap().global + 1;
            all.offer(&candidates, next);
            out.extend(all.fetch(&fetch(max - out.len()), self.now));
        }
        out
    }
}

proptest! {
    #[test]
    fn nothing_is_lost_or_comes_out_of_turn_whatever_happens(
        in_order in any::<bool>(),
        ops in proptest::collection::vec((op(), proptest::bool::weighted(0.1)), 1..120),
    ) {
        let strategy = if in_order { DeliveryStrategy::ByStream } else { DeliveryStrategy::RoundRobin };
        let mut all = Subscription::new(settings(strategy), 7);
        let mut model = Model::default();
        let mut stored = all.encode();
        for (op, crash) in ops {
            let before = model.clone();
            model.apply(&mut all, &op);
            if crash {
                // The operation was not stored. Messages and time are independent of the subscription.
                model = Model { keys: model.keys, now: model.now, ..before };
                all = Subscription::decode(&stored).unwrap();
            }
            stored = all.encode();
            let again = Subscription::decode(&stored).unwrap();
            prop_assert_eq!(again.encode(), &stored[..]);
            let settled = (1..).take_while(|global| {
                *global <= model.keys.len() as u64 && !matches!(model.fate(*global), Fate::Open(_))
            });
            prop_assert!(all.position() <= settled.last().unwrap_or(0), "the position is ahead");
        }
        // Finally every message is settled or parked.
        loop {
            model.now += 10 * TIMEOUT;
            let handed = model.fetch(&mut all, 100, 100);
            model.handed(&all, &handed);
            if handed.is_empty() {
                break;
            }
            let leases: Vec<Lease> = handed.iter().map(|handed| handed.lease).collect();
            prop_assert_eq!(all.ack(&leases).settled, leases.len());
            for lease in leases {
                model.fates.insert(lease.global, Fate::Settled);
            }
        }
        for global in 1..=model.keys.len() as u64 {
            prop_assert!(!matches!(model.fate(global), Fate::Open(_)), "{} is lost", global);
        }
        prop_assert_eq!(all.position(), model.keys.len() as u64);
    }

    #[test]
    fn no_bytes_break_the_decoder(mut bytes in any::<Vec<u8>>(), flip in any::<(u16, u8)>()) {
        if let Some(first) = bytes.first_mut() {
            *first = 1;
        }
        let _ = Subscription::decode(&bytes);
        let mut all = Subscription::new(settings(DeliveryStrategy::ByStream), 7);
        offer(&mut all, &[1, 2, 3, 4]);
        let handed = all.fetch(&fetch(3), 0);
        all.nack(&[handed[0].lease], &Nack::Park { reason: "bad".into() }, 0);
        all.nack(&[handed[1].lease], &Nack::Retry { delay: 5, reason: String::new() }, 0);
        let mut stored = all.encode();
        for cut in 0..stored.len() {
            prop_assert_eq!(Subscription::decode(&stored[..cut]), None);
        }
        let at = usize::from(flip.0) % stored.len();
        stored[at] ^= flip.1;
        if let Some(mut read) = Subscription::decode(&stored) {
            read.fetch(&fetch(10), 10);
            let _ = Subscription::decode(&read.encode());
        }
    }
}
