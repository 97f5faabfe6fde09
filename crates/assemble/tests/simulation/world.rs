//! One seed: the lives of a process on one machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tempfile::TempDir;
use thalweg_delta::store::cut_disk::{CutDisk, DiskFaults};
use thalweg_delta::store::{LakeStorage, SyncedStore};
use thalweg_log::disk::sim::{Faults, Random, SimDisk};
use thalweg_query::{Engine, QueryMetrics, QueryOptions, print};

use crate::ends::Ends;
use crate::ledger::{DeadReadings, Ledger};
use crate::machine;
use crate::process::{Disks, FanOutOrder, Process};
use crate::reads::InlineReads;

/// 2026-03-01, in microseconds.
const START: i64 = 1_772_323_200_000_000;
const SECOND: i64 = 1_000_000;
const DISK_BYTES: u64 = 64 << 20;
/// Time for the end of the path to catch up, when nothing fails any more.
const CATCH_UP: Duration = Duration::from_hours(2);

/// What a seed has come to.
pub struct Outcome {
    /// Digest and number of what happened.
    pub trace: (u64, u64),
    pub log: Vec<String>,
    pub counts: BTreeMap<&'static str, u64>,
    folder: TempDir,
    ledger: Ledger,
    dead: DeadReadings,
}

pub struct World {
    random: Random,
    disks: Disks,
    ledger: Ledger,
    ends: Ends,
    counts: BTreeMap<&'static str, u64>,
}

/// How a life ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Stop,
    Kill,
    PowerCut,
}

impl World {
    pub fn run(seed: u64) -> Outcome {
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        let folder = folder.unwrap();
        let ledger = Ledger::default();
        let lake = CutDisk::new(seed, Arc::new(machine::file_time)).with_reads(Arc::new(InlineReads::default()));
        let world = World {
            random: Random::new(seed + 1_000_000),
            disks: Disks {
                log: SimDisk::new(seed, DISK_BYTES),
                indexes: SimDisk::new(seed + 2_000_000, DISK_BYTES),
                lake,
                folder: folder.path().to_owned(),
            },
            ledger: ledger.clone(),
            ends: Ends {
                ledger: ledger.clone(),
                random: Arc::new(Mutex::new(Random::new(seed + 3_000_000))),
                next: Arc::new(Mutex::new(0)),
                sends: true,
                is_slow: true,
                order: match seed % 3 {
                    0 => FanOutOrder::AtOnce,
                    1 => FanOutOrder::QueueLast,
                    _ => FanOutOrder::EventsLast,
                },
            },
            counts: BTreeMap::new(),
        };
        let told = scopeguard::guard(ledger.clone(), |ledger| {
            ledger.log().iter().for_each(|line| eprintln!("{line}"));
        });
        let (counts, dead) = machine::run(seed + 4_000_000, START, world.lives());
        scopeguard::ScopeGuard::into_inner(told);
        Outcome {
            trace: ledger.trace(),
            log: ledger.log(),
            counts,
            folder,
            ledger,
            dead,
        }
    }

    async fn lives(mut self) -> (BTreeMap<&'static str, u64>, DeadReadings) {
        for _ in 0..1 + self.random.below(3) {
            self.life().await;
        }
        let dead = self.last_life().await;
        let (sent, acknowledged) = self.ledger.counts();
        self.count("sent", sent);
        self.count("acknowledged", acknowledged);
        self.count("dead letters", (dead.archive.len() + dead.slow.len()) as u64);
        (self.counts, dead)
    }

    fn count(&mut self, what: &'static str, n: u64) {
        *self.counts.entry(what).or_default() += n;
    }

    async fn life(&mut self) {
        self.heal();
        let process = Process::start(&self.disks, &self.ends).await;
        self.ledger.note(|| "a process has started".to_owned());
        for _ in 0..1 + self.random.below(8) {
            let pause = Duration::from_millis(self.random.below(2500));
            tokio::time::sleep(pause).await;
            if process.is_poisoned() {
                self.count("poisoned", 1);
                break;
            }
            self.happens(&process).await;
        }
        let end = match self.random.below(3) {
            0 => End::Stop,
            1 => End::Kill,
            _ => End::PowerCut,
        };
        self.ledger.note(|| format!("{end:?}"));
        match end {
            End::Stop => {
                self.count("stops", 1);
                process.stop(Duration::from_secs(10)).await;
            }
            End::Kill => {
                self.count("kills", 1);
                self.disks.log.kill();
                self.disks.indexes.kill();
                self.disks.lake.kill();
                process.stop(Duration::from_millis(1)).await;
            }
            End::PowerCut => {
                self.count("power cuts", 1);
                let life = self.disks.log.life();
                self.disks.log.cut_power_in(self.random.below(30));
                for _ in 0..100 {
                    if self.disks.log.life() != life {
                        break;
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                if self.disks.log.life() == life {
                    self.disks.log.power_cut();
                }
                self.disks.indexes.power_cut();
                self.disks.lake.power_cut();
                process.stop(Duration::from_millis(1)).await;
            }
        }
        self.ledger.life_ends();
        self.disks.lake = self.disks.lake.next_life();
        machine::pass(Duration::from_millis(self.random.below(20_000)));
    }

    /// Something that a process must survive.
    async fn happens(&mut self, process: &Process) {
        let what = match self.random.below(8) {
            0 => {
                let by = self.random.below(7200) as i64 - 3600;
                machine::set_wall(by * SECOND);
                // A disk that fails now may keep it from being stored; it is tried again.
                let _ = process.notice_clock().await;
                "the wall clock is set"
            }
            1 => {
                machine::pass(Duration::from_secs(self.random.below(7200)));
                "the machine has slept"
            }
            2 => {
                self.disks.indexes.set_faults(Faults {
                    failing_syncs: 9,
                    failing_writes: 40,
                    failing_names: 9,
                    failing_reads: 0,
                });
                "the disk of the indexes fails"
            }
            3 => {
                self.disks.lake.set_faults(DiskFaults {
                    failing_steps: 4,
                    failing_sync: self.random.one_in(3),
                });
                "the disk of the lake fails"
            }
            4 => {
                self.disks.log.set_capacity(1 << 20);
                "the disk of the log is full"
            }
            5 if self.random.one_in(4) => {
                self.disks.log.set_faults(Faults {
                    failing_syncs: 3,
                    failing_writes: 0,
                    failing_names: 0,
                    failing_reads: 0,
                });
                "the disk of the log does not sync"
            }
            _ => {
                self.heal();
                "the disks are well"
            }
        };
        self.count(what, 1);
        self.ledger.note(|| what.to_owned());
    }

    fn heal(&self) {
        self.disks.indexes.set_faults(Faults::default());
        self.disks.log.set_faults(Faults::default());
        self.disks.log.set_capacity(DISK_BYTES);
        self.disks.lake.set_faults(DiskFaults::default());
    }

    /// Nothing fails any more, and the path comes to its end.
    async fn last_life(&mut self) -> DeadReadings {
        self.heal();
        self.ends.sends = false;
        self.ends.is_slow = self.random.one_in(2);
        let process = Process::start(&self.disks, &self.ends).await;
        self.ledger.note(|| "the last process has started".to_owned());
        let caught_up = async {
            loop {
                // What is read below has only what was there before: the source must be done by then.
                let is_answered = self.ledger.unacknowledged() == 0;
                let dead = process.dead_readings().await;
                if is_answered && self.ledger.unconsumed(&dead.slow).is_empty() && process.unarchived() == 0 {
                    return dead;
                }
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let Ok(dead) = tokio::time::timeout(CATCH_UP, caught_up).await else {
            let unconsumed = self.ledger.unconsumed(&process.dead_readings().await.slow);
            panic!(
                "{} readings are not acknowledged, the slow consumer lacks {unconsumed:?}, the archive {}",
                self.ledger.unacknowledged(),
                process.unarchived()
            );
        };
        let events = process.events().await;
        self.ledger.check("the event store", &events, &BTreeSet::new());
        process.stop(Duration::from_secs(60)).await;
        dead
    }
}

/// Checks the rows of the lake with a query, when its process has ended.
pub fn check_lake(seed: u64, outcome: &Outcome) {
    if outcome.ledger.counts().1 == 0 {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let folder = outcome.folder.path();
    let text = runtime.block_on(async {
        let site = LakeStorage::folder(&thalweg_lake::folder(folder), SyncedStore::new());
        let engine = Engine::open_at(site, folder, QueryOptions::default(), QueryMetrics::unregistered()).unwrap();
        let mut text = Vec::new();
        let answer = engine.execute("SELECT body FROM logs").await;
        let answer = answer.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        print::csv(answer, &mut text).await.unwrap();
        String::from_utf8(text).unwrap()
    });
    let mut found = BTreeMap::new();
    for line in text.lines().skip(1) {
        *found.entry(line.parse().unwrap()).or_default() += 1;
    }
    let dead = &outcome.dead.archive;
    outcome.ledger.check(&format!("seed {seed}: the lake"), &found, dead);
}

/// Where two runs of a seed part.
pub fn first_difference(one: &[String], other: &[String]) -> String {
    let at = one.iter().zip(other).position(|(one, other)| one != other);
    let at = at.unwrap_or(one.len().min(other.len()));
    let line = |log: &[String]| log.get(at).map_or("nothing".to_owned(), Clone::clone);
    format!("step {at}: {}\n     or: {}", line(one), line(other))
}
