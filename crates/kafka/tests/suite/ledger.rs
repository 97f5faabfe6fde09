//! Random sequences of changes to a topic and to the input that reads it, against Apache Kafka, with a ledger of all
//! records: each record that can be read to the end is read at least once, whatever happened in between.
//!
//! `THALWEG_SIM_SEEDS=200 cargo test --release -p thalweg-kafka ledger` runs more of them.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::apache::ApacheKafka;
use crate::log::{listen, warnings};
use crate::proxy::Proxy;
use crate::world::{Running, World, until};

const SEEDS: u64 = 4;
/// Sequences that run concurrently: each mostly waits.
const AT_ONCE: u64 = 8;
const STEPS: u64 = 8;
/// Longer than anything takes: a group waits 45 s for a member that is stopped while it joins.
const PATIENCE: Duration = Duration::from_secs(150);

#[derive(Clone, Copy, Debug)]
enum Step {
    /// This many records, to all partitions in turn.
    Produce(usize),
    /// All existing records must be read before the next step.
    Settle,
    Recreate {
        partitions: i32,
    },
    /// The topic is missing for a while.
    Delete {
        missing: Duration,
    },
    Grow,
    RestartInput,
    Cut,
}

/// A random number generator (SplitMix64): the same seed gives the same sequence.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn step(&mut self) -> Step {
        match self.below(12) {
            0..4 => Step::Produce(1 + self.below(300) as usize),
            4..6 => Step::Settle,
            6..8 => Step::Recreate {
                partitions: 1 + self.below(3) as i32,
            },
            8 => Step::Delete {
                missing: Duration::from_millis(self.below(4000)),
            },
            9 => Step::Grow,
            10 => Step::RestartInput,
            _ => Step::Cut,
        }
    }
}

struct Ledger<'k> {
    kafka: &'static ApacheKafka,
    world: &'k World,
    proxy: Proxy,
    topic: String,
    from_oldest: bool,
    flow: String,
    partitions: i32,
    /// Records of the current topic.
    there: BTreeSet<String>,
    written: usize,
    running: Option<Running>,
    /// The steps so far, for the failure message.
    steps: Vec<Step>,
}

impl<'k> Ledger<'k> {
    fn open(world: &'k World, seed: u64, from_oldest: bool) -> Ledger<'k> {
        let kafka = ApacheKafka::shared();
        let (topic, proxy) = (format!("ledger-{seed}"), Proxy::plain(&kafka.address));
        kafka.create(&topic, 1);
        let flow = format!(
            "input: {{kafka: {{addresses: [{}], topics: [{topic}], consumer_group: {topic}, commit_period: 50ms, \
             start_from_oldest: {from_oldest}}}}}\noutput: {{kept: {{}}}}",
            proxy.address
        );
        let running = Some(world.start(&flow));
        let ledger = Ledger {
            kafka,
            world,
            proxy,
            topic,
            from_oldest,
            flow,
            partitions: 1,
            there: BTreeSet::new(),
            written: 0,
            running,
            steps: Vec::new(),
        };
        if !from_oldest {
            // Records before its start are not read by design.
            until("the group begins", || ledger.kafka.committed(&ledger.topic) == [0]);
        }
        ledger
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Produce(count) => self.produce(count),
            Step::Settle => self.settle(),
            Step::Recreate { partitions } => self.recreate(partitions, Duration::ZERO),
            Step::Delete { missing } => self.recreate(1, missing),
            Step::Grow => {
                self.partitions += 1;
                self.kafka.grow(&self.topic, self.partitions);
            }
            Step::RestartInput => self.restart(),
            Step::Cut => self.proxy.cut(),
        }
    }

    fn restart(&mut self) {
        // Brokers forget the commits of a group in a topic that is deleted. A group that starts at the newest records
        // then starts over: if the input had not seen the new topic yet, or had not joined yet, it skips all of it.
        if !self.from_oldest {
            self.settle();
        }
        self.stop();
        let running = self.world.start(&self.flow);
        if !self.from_oldest {
            let begun = Instant::now();
            while !running.trouble().is_empty() {
                assert!(begun.elapsed() < PATIENCE, "{}: {}", self.topic, running.trouble());
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        self.running = Some(running);
    }

    fn produce(&mut self, count: usize) {
        let from = self.written;
        self.written += count;
        let record = |n: usize| json!({"value": n.to_string(), "partition": n as i32 % self.partitions});
        let records: Vec<Value> = (from..self.written).map(record).collect();
        // A broker may not know newly added partitions yet. Records that are written twice are read twice.
        until("all are written", || {
            self.kafka.try_to_produce(&self.topic, &records).is_ok()
        });
        self.there.extend((from..self.written).map(|n| n.to_string()));
    }

    fn recreate(&mut self, partitions: i32, missing: Duration) {
        self.kafka.delete(&self.topic);
        // Unread records are gone.
        self.there.clear();
        std::thread::sleep(missing);
        self.kafka.create(&self.topic, partitions);
        self.partitions = partitions;
    }

    fn settle(&self) {
        let missing = || {
            let read: BTreeSet<String> = self.world.kept.texts().into_iter().collect();
            self.there.difference(&read).count()
        };
        let begun = Instant::now();
        while missing() > 0 {
            assert!(
                begun.elapsed() < PATIENCE,
                "{} (from the oldest: {}) after {:?}: {} of {} records are not read, committed is {:?}; {:?}; told: {:#?}",
                self.topic,
                self.from_oldest,
                self.steps,
                missing(),
                self.there.len(),
                self.kafka.committed(&self.topic),
                self.running.as_ref().map(Running::trouble),
                warnings(&[&self.topic]),
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            self.world.stop(running);
        }
    }
}

fn run(seed: u64) {
    listen();
    let mut random = Random(seed);
    let world = World::new();
    let from_oldest = random.below(2) == 0;
    let mut ledger = Ledger::open(&world, seed, from_oldest);
    for _ in 0..STEPS {
        let step = random.step();
        ledger.steps.push(step);
        ledger.take(step);
    }
    ledger.produce(10);
    ledger.settle();
    ledger.stop();
    // A later member finds no skipped records.
    ledger.produce(10);
    ledger.running = Some(world.start(&ledger.flow));
    ledger.settle();
    ledger.stop();
    ledger.kafka.delete(&ledger.topic);
}

#[test]
fn whatever_happens_to_a_topic_each_record_of_it_is_read() {
    let seeds = std::env::var("THALWEG_SIM_SEEDS").ok();
    let seeds = seeds.map_or(SEEDS, |seeds| seeds.parse().expect("THALWEG_SIM_SEEDS is a number"));
    let first = std::env::var("THALWEG_SIM_FIRST")
        .ok()
        .and_then(|first| first.parse().ok());
    let first = first.unwrap_or(0);
    std::thread::scope(|scope| {
        for lane in 0..AT_ONCE {
            scope.spawn(move || {
                (first..first + seeds)
                    .filter(|seed| seed % AT_ONCE == lane)
                    .for_each(run)
            });
        }
    });
}
