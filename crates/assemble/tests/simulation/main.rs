//! The whole path in one thread, from one seed: a flow sends readings to a queue and to the event store, another one takes
//! them from the queue to the lake, a third one to a slow consumer. Meanwhile the process is stopped, killed and loses
//! power, disks fail and are full, the wall clock is set, and the machine sleeps for hours. At the end everything that was
//! acknowledged is at every end.
//!
//! `THALWEG_SIM_SEEDS` is the number of seeds, `THALWEG_SIM_SEED` the first one.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod ends;
mod ledger;
mod machine;
mod process;
mod reads;
mod world;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use world::{Outcome, World};

/// Seeds that are run twice, to see that nothing but the seed decides.
const TWICE: u64 = 20;
/// A run of so many seeds uses all cores.
const MANY: u64 = 1000;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Each thread has other keys for its hash maps, so a seed that is run twice shows whether their order decides anything.
fn run(seed: u64) -> Outcome {
    let thread = std::thread::Builder::new()
        .name(format!("seed {seed}"))
        .stack_size(8 << 20);
    let thread = thread.spawn(move || World::run(seed)).unwrap();
    let outcome = thread.join();
    let outcome = outcome.unwrap_or_else(|_| panic!("seed {seed} fails: THALWEG_SIM_SEED={seed} THALWEG_SIM_SEEDS=1"));
    world::check_lake(seed, &outcome);
    outcome
}

#[test]
fn what_is_acknowledged_is_at_every_end_of_the_path_whatever_happens_to_the_machine() {
    let (first, seeds) = (number("THALWEG_SIM_SEED", 0), number("THALWEG_SIM_SEEDS", 120));
    let (next, totals) = (AtomicU64::new(first), Mutex::new(BTreeMap::<&str, u64>::new()));
    let lane = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + seeds {
                return;
            }
            let outcome = run(seed);
            if seed < first + TWICE {
                let again = run(seed);
                assert!(
                    again.trace == outcome.trace,
                    "seed {seed} does not repeat:\n{}",
                    world::first_difference(&outcome.log, &again.log)
                );
            }
            for (what, count) in outcome.counts {
                *totals.lock().entry(what).or_default() += count;
            }
        }
    };
    // A usual run leaves the other cores to other tests.
    let lanes = match seeds >= MANY {
        true => std::thread::available_parallelism().map_or(1, usize::from),
        false => 1,
    };
    std::thread::scope(|scope| (0..lanes).for_each(|_| drop(scope.spawn(lane))));
    let totals = totals.into_inner();
    println!("{seeds} seeds from {first}: {totals:?}");
    assert!(seeds < 100 || totals["acknowledged"] > 100 * seeds);
}
