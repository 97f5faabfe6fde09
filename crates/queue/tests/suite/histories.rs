//! Random histories of a queue. Messages with lifetimes, delays, times of delivery and dedup-ids are produced. A work
//! group claims and settles them; they die, are resent and purged. A stream group reads, commits and seeks beside it,
//! and retention trims old messages. Groups seek back, are paused, deleted and created again, and so is the queue;
//! clients disconnect in the middle of any of this. In between the process is killed, the power fails, the clock is
//! set, a boot finds it in 1970, and whole files are damaged.
//!
//! In all cases: acknowledged messages are delivered until they are settled; settled messages are not delivered again;
//! no message exists twice, or is stored twice under an id within its window; a lifetime, a delay and a window end when
//! that much time has passed, whatever the wall clock shows; deletions stay; nobody waits for ever. `THALWEG_SIM_SEEDS`
//! runs more histories, and `THALWEG_SIM_SEED` begins with another.

mod calls;
mod drain;
mod ends;
pub mod ids;
mod model;
mod world;

use tokio::runtime::Builder;

use crate::support::number;
use world::{Counts, Events, World};

/// Runs histories with these events.
#[expect(clippy::print_stdout, reason = "a case that fails is the one that was told last")]
fn run(events: Events, histories: u64) {
    let (first, count) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", histories));
    let mut counts = Counts::default();
    for seed in first..first + count {
        println!("seed {seed}");
        // Each has its own runtime: dropping it ends the tasks of killed processes and releases what they hold.
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        counts.add(&runtime.block_on(history(seed, events)));
    }
    println!("{count} histories: {counts:?}");
    // In a small number of histories none of these may occur.
    if count >= 40 {
        assert!(counts.delivered > 0 && counts.settled > 0, "{counts:?}");
        assert!(counts.read > 0 && counts.committed > 0, "{counts:?}");
        assert!(counts.repeated > 0 && counts.expired > 0, "{counts:?}");
        assert!(!events.clients_leave || counts.left > 0, "{counts:?}");
        assert!(!events.ends || counts.ended > count, "{counts:?}");
        assert!(
            !events.ends || (counts.jumps > 0 && counts.booted_in_1970 > 0),
            "{counts:?}"
        );
    }
}

async fn history(seed: u64, events: Events) -> Counts {
    let mut world = World::new(seed, events).await;
    for _ in 0..80 {
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
    run(events, 60);
}
