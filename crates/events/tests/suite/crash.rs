//! Writers, a reader, flushes, merges and scavenging run concurrently on simulated disks until the process is killed or
//! the power is cut, life after life. The stored data is compared with the replies: nothing acknowledged is lost,
//! nothing that was read disappears, streams and the global order have no gaps or duplicates, a batch is there as a
//! whole or not at all, and each append found its stream at the expected version.

mod ledger;
mod work;
mod world;

use thalweg_log::Durability;
use thalweg_log::disk::sim::Random;

use self::ledger::Ledger;
use self::world::{End, World};

const MODES: [Durability; 3] = [Durability::Fsync, Durability::Os, Durability::Interval];

async fn lives(seed: u64) {
    let mut random = Random::new(seed);
    // Two thirds of the seeds test `fsync`, the most important durability.
    let durability = match random.below(6) {
        n @ 0..2 => MODES[1 + n as usize],
        _ => Durability::Fsync,
    };
    let world = World::new(seed, durability);
    let mut ledger = Ledger::default();
    for life in 0..3 + random.below(3) {
        let what = format!("seed {seed}, life {life}, {durability:?}");
        if random.one_in(4) {
            world.lose_indexes();
        }
        let running = world.open().await;
        ledger.hold_against(&*running.namespace, &running.store, &what).await;
        ledger.ask_again(&*running.namespace, &what).await;
        let (told, end) = work::until_the_end(&running, &world, &mut random, life).await;
        running.closed().await;
        ledger.learn(told);
        if end == End::Power && durability != Durability::Fsync {
            ledger.forget_what_may_be_lost();
        }
    }
    let running = world.open().await;
    let what = format!("seed {seed} at its end, {durability:?}");
    ledger.hold_against(&*running.namespace, &running.store, &what).await;
    running.closed().await;
}

/// `THALWEG_SIM_SEEDS` sets the number of seeds, `THALWEG_SIM_SEED` the first one.
#[test]
fn what_was_told_to_writers_and_readers_holds_after_every_crash() {
    let number = |name: &str, default: u64| {
        let text = std::env::var(name).ok();
        text.and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (first, count) = (number("THALWEG_SIM_SEED", 1), number("THALWEG_SIM_SEEDS", 4));
    for seed in first..first + count {
        // The thread name appears in a panic message.
        let lives = std::thread::Builder::new().name(format!("seed {seed}")).spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            let runtime = runtime.worker_threads(3).enable_all().build().unwrap();
            runtime.block_on(lives(seed));
            runtime.shutdown_timeout(std::time::Duration::from_secs(5));
        });
        assert!(lives.unwrap().join().is_ok(), "seed {seed}");
    }
}
