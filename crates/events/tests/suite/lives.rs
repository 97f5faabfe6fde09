//! Random lives of an event store: messages are appended, read, hidden by rules, deleted and erased; streams,
//! subscriptions and whole namespaces are deleted and recreated; consumers settle their messages. At any moment clients
//! go away, the process is stopped or killed, the power is cut, the clock jumps, indexes are lost, and files are
//! damaged.
//!
//! Invariants: acknowledged messages are visible until something hides them; deleted or scavenged ones are never shown
//! or delivered again, and are in no file once erased; settled messages are not delivered again, nor are those leased
//! to another consumer; no position is assigned twice; a check of the log names every loss. `THALWEG_SIM_SEEDS` sets
//! the number of lives, `THALWEG_SIM_SEED` the first seed.

mod damage;
pub mod machine;
mod model;
mod steps;

use steps::{Counts, World};

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// How a history ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// A consumer takes everything that is left.
    Drained,
    /// A file is damaged, and its content is given up.
    Damaged,
}

async fn history(seed: u64, ending: Ending) -> Counts {
    let mut world = World::new(seed).await;
    for _ in 0..80 {
        world.step().await;
    }
    match ending {
        Ending::Drained => world.drain().await,
        Ending::Damaged => world.damage().await,
    }
}

#[expect(clippy::print_stdout, reason = "a case that fails is the one that was told last")]
fn run(ending: Ending, histories: u64) {
    let (first, count) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", histories));
    let mut counts = Counts::default();
    for seed in first..first + count {
        println!("seed {seed}");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        counts.add(&runtime.block_on(history(seed, ending)));
        runtime.shutdown_timeout(std::time::Duration::from_secs(5));
    }
    println!("{count} histories: {counts:?}");
    assert!(
        counts.appended > 0 && counts.settled > 0 && counts.left > 0 && counts.processes > count,
        "{counts:?}"
    );
    assert!(count < 20 || counts.erased > 0 && counts.deleted > 0, "{counts:?}");
    assert!(ending == Ending::Drained || count < 20 || counts.lost > 0, "{counts:?}");
}

#[test]
fn nothing_is_lost_nothing_comes_twice_and_what_is_deleted_stays_so_whatever_happens() {
    run(Ending::Drained, 25);
}

#[test]
fn what_damage_takes_is_what_the_check_names_and_nothing_else() {
    run(Ending::Damaged, 25);
}
