//! Simulates the life of a lake. Writers append to a log in several durability modes, and the rows become files and
//! commits. Files are merged, expire and are deleted; another program writes the same tables; clients query and
//! disconnect midway. In between the process is killed, the power fails, syncs fail, the clock is set, and files that
//! may be damaged are damaged.
//!
//! The invariants: an acknowledged row is read exactly once until its retention ends, which no setting of the clock
//! brings nearer. A row that one query has read is read by every later query. A row that has left does not come back. A
//! version is read as it was. No start needs manual work. `THALWEG_SIM_SEEDS` runs more seeds, and `THALWEG_SIM_SEED`
//! sets the first.
#![allow(clippy::unwrap_used)]

#[path = "lives/clock.rs"]
mod clock;
#[path = "lives/guest.rs"]
mod guest;
#[path = "lives/ledger.rs"]
mod ledger;
#[path = "lives/process.rs"]
mod process;
#[path = "lives/steps.rs"]
mod steps;
#[path = "lives/world.rs"]
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Builder;
use world::{Counts, World};

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Concurrent worlds. They mostly wait.
const AT_A_TIME: usize = 4;

#[expect(clippy::print_stdout, reason = "a case that fails has to be told")]
fn lives(seed: u64) -> Counts {
    let lives = move || {
        // Each has its own runtime: dropping it ends the tasks of killed processes and releases what they use.
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let counts = runtime.block_on(World::new(seed).lives());
        runtime.shutdown_timeout(Duration::from_secs(5));
        counts
    };
    let lives = std::thread::Builder::new().name(format!("seed {seed}")).spawn(lives);
    lives.unwrap().join().unwrap_or_else(|panic| {
        println!("seed {seed} fails");
        std::panic::resume_unwind(panic)
    })
}

#[expect(clippy::print_stdout, reason = "what was done is told")]
#[test]
fn what_was_acknowledged_is_read_once_through_crashes_damage_other_writers_and_clocks_that_jump() {
    let (first, count) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", 8));
    let next = AtomicU64::new(first);
    let rounds = || {
        let mut counts = Counts::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= first + count {
                return counts;
            }
            counts.add(&lives(seed));
        }
    };
    let mut counts = Counts::default();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(rounds)).collect();
        for thread in threads {
            counts.add(&thread.join().unwrap());
        }
    });
    println!("{count} rounds: {counts:?}");
    assert!(
        counts.acknowledged > 0 && counts.queries > 0 && counts.ends >= 2 * count,
        "{counts:?}"
    );
}
