//! Cost of a claim and a settle in the state machine: nanoseconds and allocations per message, medians of several runs.
//!
//! Depth is the number of messages after the cursor; in flight is the number of leased ones. Every batch advances the
//! time and takes the journal, as the caller does.

#![allow(clippy::print_stdout)]

use std::hint::black_box;
use std::time::Instant;

use thalweg_queue::machine::{Backoff, DeliveryPolicy, LaneOrdering, MessageMeta, PassOutcome, WorkMachine};
use thalweg_telemetry::alloc;

const BATCH: u64 = 100;
const RUNS: usize = 7;
const START: i64 = 1_700_000_000_000_000;

#[global_allocator]
static ALLOCATOR: thalweg_telemetry::alloc::CountingAllocator<tikv_jemallocator::Jemalloc> =
    thalweg_telemetry::alloc::CountingAllocator(tikv_jemallocator::Jemalloc);

/// One way of using the machine.
struct Load {
    name: &'static str,
    /// Leased and not settled at any time.
    in_flight: u64,
    /// Messages passed in one run.
    messages: u64,
    lane: fn(u64) -> Option<u64>,
    /// In random order instead of the oldest first.
    shuffled: bool,
    /// Every message fails once and is claimed from the ready list.
    retried: bool,
}

fn no_lane(_: u64) -> Option<u64> {
    None
}

/// A hash as callers provide it.
fn hash(key: u64) -> u64 {
    let z = (key ^ (key >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

fn main() {
    let plain = Load {
        name: "",
        in_flight: 1000,
        messages: 2_000_000,
        lane: no_lane,
        shuffled: false,
        retried: false,
    };
    println!(
        "{:<52} {:>9} {:>9} {:>14}",
        "", "claim ns", "settle ns", "allocations/op"
    );
    for (name, in_flight, messages) in [
        ("no lanes, depth 10", 10, 10),
        ("no lanes, depth 10,000", 1000, 10_000),
        ("no lanes, depth 10,000,000", 1000, 10_000_000),
        ("no lanes, 100 in flight", 100, 2_000_000),
        ("no lanes, 10,000 in flight", 10_000, 2_000_000),
        ("no lanes, 100,000 in flight", 100_000, 2_000_000),
        ("no lanes, 1,000,000 in flight", 1_000_000, 4_000_000),
    ] {
        report(&Load {
            name,
            in_flight,
            messages,
            ..plain
        });
    }
    report(&Load {
        name: "no lanes, 10,000 in flight, acks in any order",
        in_flight: 10_000,
        shuffled: true,
        ..plain
    });
    report(&Load {
        name: "a new lane per message",
        lane: |offset| Some(hash(offset)),
        ..plain
    });
    report(&Load {
        name: "a new lane per message, 100,000 in flight",
        in_flight: 100_000,
        lane: |offset| Some(hash(offset)),
        ..plain
    });
    report(&Load {
        name: "2,000 lanes in turn",
        lane: |offset| Some(hash(offset % 2000)),
        ..plain
    });
    report(&Load {
        name: "no lanes, each fails once",
        retried: true,
        ..plain
    });
}

fn report(load: &Load) {
    let mut claims = Vec::new();
    let mut settles = Vec::new();
    let mut allocations = f64::INFINITY;
    for _ in 0..RUNS {
        let (claim, settle, allocated) = run(load);
        claims.push(claim);
        settles.push(settle);
        allocations = allocations.min(allocated);
    }
    claims.sort_by(f64::total_cmp);
    settles.sort_by(f64::total_cmp);
    println!(
        "{:<52} {:>9.1} {:>9.1} {:>14.4}",
        load.name,
        claims[RUNS / 2],
        settles[RUNS / 2],
        allocations
    );
}

/// Nanoseconds per claim and per settle, and allocations per message in the second half of the run.
fn run(load: &Load) -> (f64, f64, f64) {
    let backoff = Backoff {
        initial: 0,
        max: 0,
        multiplier: 1.0,
        jitter: 0.0,
        seed: 0,
    };
    let policy = DeliveryPolicy {
        ordering: LaneOrdering::Partition,
        max_pending: 4_000_000,
        backoff,
        ..DeliveryPolicy::default()
    };
    let mut machine = WorkMachine::new(policy, 0);
    let mut leased: std::collections::VecDeque<(u64, u32)> =
        std::collections::VecDeque::with_capacity(2 * load.in_flight as usize + 2 * BATCH as usize);
    let mut journal = Vec::with_capacity(1 << 20);
    let mut state = Measured {
        now: START,
        ..Measured::default()
    };
    // Full first, so that slabs and rings have their sizes.
    let fill = load.in_flight.max(BATCH.min(load.messages));
    let warm = fill + load.messages / 2;
    let batch = BATCH.min(load.in_flight);
    let repeats = if load.messages < 100_000 {
        200_000 / load.messages
    } else {
        1
    };
    let end = fill + load.messages * repeats;
    let mut next = 0;
    let mut before = 0;
    while next < end {
        let measured = next >= fill;
        if next <= warm {
            before = alloc::allocated().0;
        }
        state.claim(&mut machine, load, &mut next, batch, &mut leased, measured);
        if leased.len() as u64 >= load.in_flight {
            state.settle(&mut machine, load, batch, &mut leased, measured);
        }
        machine.advance(state.now);
        journal.clear();
        machine.take_journal(&mut journal);
        black_box(&journal);
    }
    let allocated = alloc::allocated().0 - before;
    let passed = end.saturating_sub(warm).max(1);
    (
        state.claim_ns / state.claimed,
        state.settle_ns / state.settled,
        allocated as f64 / passed as f64,
    )
}

#[derive(Default)]
struct Measured {
    now: i64,
    claim_ns: f64,
    claimed: f64,
    settle_ns: f64,
    settled: f64,
    random: u64,
}

impl Measured {
    fn claim(
        &mut self,
        machine: &mut WorkMachine,
        load: &Load,
        next: &mut u64,
        batch: u64,
        leased: &mut std::collections::VecDeque<(u64, u32)>,
        measured: bool,
    ) {
        self.now += 50;
        let start = Instant::now();
        for _ in 0..batch {
            let lease = match machine.next_ready(1, 30_000_000, self.now) {
                Some(lease) => lease,
                None => {
                    let lane = (load.lane)(*next);
                    let message = MessageMeta {
                        offset: *next,
                        lane,
                        expires_at: Some(self.now + 604_800_000_000),
                        not_before: None,
                        skip: false,
                        hint: 0,
                    };
                    *next += 1;
                    match machine.pass(&message, 1, 30_000_000, self.now) {
                        PassOutcome::Leased(lease) => lease,
                        PassOutcome::Taken => continue,
                        PassOutcome::Full(full) => panic!("full: {full:?}"),
                    }
                }
            };
            leased.push_back((lease.offset, lease.delivery));
        }
        if measured {
            self.claim_ns += start.elapsed().as_nanos() as f64;
            self.claimed += batch as f64;
        }
    }

    fn settle(
        &mut self,
        machine: &mut WorkMachine,
        load: &Load,
        batch: u64,
        leased: &mut std::collections::VecDeque<(u64, u32)>,
        measured: bool,
    ) {
        if load.shuffled {
            for at in 0..(batch as usize).min(leased.len()) {
                self.random = self
                    .random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let other = (self.random >> 33) as usize % leased.len();
                leased.swap(at, other);
            }
        }
        let start = Instant::now();
        let mut settled = 0;
        while settled < batch
            && let Some((offset, delivery)) = leased.pop_front()
        {
            settled += 1;
            let ok = match load.retried && delivery == 1 {
                true => machine.nack(offset, delivery, None, self.now).is_ok(),
                false => machine.ack(offset, delivery, self.now).is_ok(),
            };
            assert!(ok);
        }
        if measured {
            self.settle_ns += start.elapsed().as_nanos() as f64;
            self.settled += settled as f64;
        }
    }
}
