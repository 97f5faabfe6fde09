//! Histories of a queue, at random: messages are produced, claimed, settled, die, are sent again and purged; groups are set
//! back, paused, deleted and made again, and so is the queue; clients leave in the middle of any of it. Between that the
//! process is killed, the power goes, the clock jumps, and whole files are damaged.
//!
//! Whatever happens: what was acknowledged is handed out until it is settled; what was settled is not handed out again; nothing
//! is there twice; what was deleted stays so; nobody waits for ever. `THALWEG_SIM_SEEDS` runs more histories, and
//! `THALWEG_SIM_SEED` begins with another.

mod model;
mod steps;

use tokio::runtime::Builder;

use crate::support::number;
use steps::{Counts, Events, World};

/// Runs histories with these events.
#[expect(clippy::print_stdout, reason = "a case that fails is the one that was told last")]
fn run(events: Events, histories: u64) {
    let (first, count) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", histories));
    let mut counts = Counts::default();
    for seed in first..first + count {
        println!("seed {seed}");
        // Each with a runtime of its own: with it go the tasks of processes that were killed, and what they hold.
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        counts.add(&runtime.block_on(history(seed, events)));
    }
    println!("{count} histories: {counts:?}");
    assert!(counts.delivered > 0 && counts.settled > 0, "{counts:?}");
    assert!(!events.clients_leave || counts.left > 0, "{counts:?}");
    assert!(!events.ends || counts.ended > count, "{counts:?}");
}

async fn history(seed: u64, events: Events) -> Counts {
    let mut world = World::new(seed, events).await;
    for _ in 0..60 {
        world.step().await;
    }
    world.end().await
}

#[test]
fn whoever_leaves_in_the_middle_of_a_call_loses_nothing_and_holds_nobody_up() {
    let events = Events {
        clients_leave: true,
        ..Events::default()
    };
    run(events, 40);
}

#[test]
fn nothing_is_lost_and_nothing_twice_over_crashes_damage_deletions_and_jumps_of_the_clock() {
    let events = Events {
        clients_leave: true,
        ends: true,
        damage: true,
    };
    run(events, 40);
}
