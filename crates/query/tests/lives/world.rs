//! The state of one simulated lake.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use thalweg_delta::store::cut_disk::CutDisk;
use thalweg_lake::inspect::{Lake, VerifyOptions, verify};
use thalweg_lake::maintenance::MaintenanceTask;
use thalweg_log::clock::{Clock as _, LogClock};
use thalweg_log::disk::sim::{Random, SimDisk};
use thalweg_log::{Durability, LogOptions, Micros, PartitionId};

use crate::clock::{Hands, file_clock};
use crate::ledger::{Extent, Ledger, Survives};
use crate::process::{FOR_EVER, LOG_PARTITIONS, Namespaces, Process};

const MIB: u64 = 1 << 20;
pub const DAY: Micros = 86_400_000_000;
const MODES: [Durability; 4] = [
    Durability::Fsync,
    Durability::Fsync,
    Durability::Os,
    Durability::Interval,
];

#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub acknowledged: u64,
    pub queries: u64,
    /// Queries whose client left.
    pub left: u64,
    pub failed: u64,
    pub expired: u64,
    pub by_others: u64,
    pub damaged: u64,
    pub deleted: u64,
    pub versions: u64,
    pub ends: u64,
    pub power_cuts: u64,
}

impl Counts {
    pub fn add(&mut self, other: &Counts) {
        self.acknowledged += other.acknowledged;
        self.queries += other.queries;
        self.left += other.left;
        self.failed += other.failed;
        self.expired += other.expired;
        self.by_others += other.by_others;
        self.damaged += other.damaged;
        self.deleted += other.deleted;
        self.versions += other.versions;
        self.ends += other.ends;
        self.power_cuts += other.power_cuts;
    }
}

/// A queried table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    Logs,
    Events,
}

pub const TABLES: [Table; 2] = [Table::Logs, Table::Events];

impl Table {
    pub fn name(self) -> &'static str {
        match self {
            Table::Logs => "logs",
            Table::Events => "events",
        }
    }

    /// The column with the names of rows.
    pub fn column(self) -> &'static str {
        match self {
            Table::Logs => "body",
            Table::Events => "event_id",
        }
    }
}

/// The rows of a version while it was the newest.
pub struct Version {
    pub names: Vec<String>,
    pub newest_at: Micros,
}

/// A file that can be restored.
pub struct Damage {
    pub path: PathBuf,
    pub content: Vec<u8>,
}

pub struct World {
    pub seed: u64,
    pub folder: TempDir,
    pub hands: Arc<Hands>,
    pub log_disk: SimDisk,
    pub disk: CutDisk,
    pub namespaces: Arc<Namespaces>,
    pub modes: BTreeMap<PartitionId, Durability>,
    /// By [`Table`].
    pub ledgers: [Ledger; 2],
    pub versions: BTreeMap<i64, Version>,
    pub damage: Vec<Damage>,
    /// The tables accept nothing until the next start.
    pub is_stalled: bool,
    /// The latest log time, and how much of it passed without waiting.
    pub latest: Micros,
    pub passed: Micros,
    pub next_row: u64,
    pub random: Random,
    pub counts: Counts,
    /// The steps so far, to explain a failure.
    pub history: Vec<String>,
}

impl Drop for World {
    #[expect(clippy::print_stdout, reason = "of a case that fails")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.history.iter().for_each(|line| println!("{line}"));
            // Keep the folder for inspection.
            self.folder.disable_cleanup(true);
            println!("the lake is left in {}", self.folder.path().display());
        }
    }
}

/// A process, and the clock of its log.
pub struct Running {
    pub process: Process,
    pub clock: Arc<LogClock>,
}

impl World {
    pub fn new(seed: u64) -> World {
        let hands = Arc::new(Hands::default());
        World {
            seed,
            folder: tempfile::tempdir().unwrap(),
            log_disk: SimDisk::new(seed, 256 * MIB),
            disk: CutDisk::new(seed, file_clock(&hands)),
            hands,
            namespaces: Arc::default(),
            modes: BTreeMap::new(),
            ledgers: Default::default(),
            versions: BTreeMap::new(),
            damage: Vec::new(),
            is_stalled: false,
            latest: 0,
            passed: 0,
            next_row: 0,
            random: Random::new(seed),
            counts: Counts::default(),
            history: Vec::new(),
        }
    }

    pub async fn lives(mut self) -> Counts {
        for _ in 0..3 + self.random.below(3) {
            let mut running = self.start().await;
            self.hold_all(&running, Extent::Final).await;
            for _ in 0..8 + self.random.below(24) {
                if running.process.disk.is_dead() {
                    break;
                }
                self.step(&mut running).await;
            }
            self.end(running).await;
            self.between().await;
        }
        let running = self.start().await;
        self.heal();
        self.hold_all(&running, Extent::Final).await;
        for task in [
            MaintenanceTask::Compact,
            MaintenanceTask::Retain,
            MaintenanceTask::Vacuum,
            MaintenanceTask::Compact,
        ] {
            let errors = running.process.by_hand(task, None).await;
            assert!(errors.is_empty(), "seed {}: {task:?}: {errors:?}", self.seed);
        }
        self.hold_all(&running, Extent::Acknowledged).await;
        self.verify(&running).await;
        running.process.end(true).await;
        let running = self.start().await;
        self.hold_all(&running, Extent::Final).await;
        running.process.end(true).await;
        self.counts.expired = self.ledgers.iter().map(|ledger| ledger.expired).sum();
        self.counts
    }

    pub fn happened(&mut self, what: impl std::fmt::Debug) {
        self.history.push(format!("{what:?}"));
    }

    async fn start(&mut self) -> Running {
        self.disk = self.disk.next_life();
        let clock = Arc::new(LogClock::new(self.hands.clone()));
        let options = LogOptions {
            folder: "simulated".to_owned(),
            file_bytes: MIB / 2,
            first_file_bytes: MIB / 4,
            min_free_bytes: Some(0),
            linger: Duration::ZERO,
            scrub: Duration::ZERO,
            clock: clock.clone(),
            ..LogOptions::default()
        };
        let log_disk = Arc::new(self.log_disk.clone());
        let namespaces = self.namespaces.clone();
        let process = Process::start(log_disk, options, self.disk.clone(), self.folder.path(), namespaces).await;
        self.is_stalled = false;
        for id in LOG_PARTITIONS {
            let mode = self.mode();
            self.modes.insert(id, mode);
            process.log.set_durability(id, mode).await.unwrap();
        }
        let what = format!("start, modes {:?}", self.modes);
        self.happened(what);
        let running = Running { process, clock };
        self.now(&running);
        running
    }

    /// Two of three seeds use the strongest durability.
    pub fn mode(&mut self) -> Durability {
        let n = self.random.below(4) as usize;
        if self.seed.is_multiple_of(3) {
            MODES[n]
        } else {
            Durability::Fsync
        }
    }

    pub fn now(&mut self, running: &Running) -> Micros {
        self.latest = self.latest.max(running.clock.now());
        self.latest
    }

    pub fn new_rows(&mut self) -> Vec<String> {
        let count = 1 + self.random.below(3);
        let names = (self.next_row..self.next_row + count).map(|n| format!("row {n}"));
        self.next_row += count;
        names.collect()
    }

    pub fn check(&mut self, running: &Running, table: Table, found: &[String], extent: Extent) {
        let (now, what) = (self.now(running), self.what());
        self.ledgers[table as usize].check(found, extent, now, &what);
    }

    pub fn what(&self) -> String {
        format!(
            "seed {}, {} ends, step {}",
            self.seed,
            self.counts.ends,
            self.history.len()
        )
    }

    /// All acknowledged rows are found once later rows of each partition are.
    pub async fn hold_all(&mut self, running: &Running, extent: Extent) {
        if !self.damage.is_empty() || self.is_stalled || running.process.disk.is_dead() {
            return;
        }
        let now = self.now(running);
        let events = self
            .namespaces
            .there()
            .into_iter()
            .map(|namespace| (Table::Events, namespace.id));
        let all: Vec<_> = LOG_PARTITIONS
            .map(|id| (Table::Logs, id))
            .into_iter()
            .chain(events)
            .collect();
        for (table, id) in all {
            let rows = self.new_rows();
            self.ledgers[table as usize].attempted(&rows, Survives::Seen, now);
            let unit = self.unit(table, id, &rows);
            running.process.log.append(unit).await.unwrap();
            self.ledgers[table as usize].acknowledged(&rows);
        }
        self.happened(("hold all", extent));
        let until = Instant::now() + FOR_EVER;
        for table in TABLES {
            let sql = format!("select {} from {}", table.column(), table.name());
            let found = loop {
                let found = running.process.ask(&sql).await;
                let found = found.unwrap_or_else(|error| panic!("{}: {error}", self.what()));
                let now = self.now(running);
                let is_all = !self.ledgers[table as usize].lacks(&found, now) && !self.namespaces.has_deleted();
                if is_all || Instant::now() > until {
                    break found;
                }
                running.process.commit_now();
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            let trouble = running.process.trouble();
            assert!(
                Instant::now() <= until || trouble.is_empty(),
                "{}: {trouble:?}",
                self.what()
            );
            self.check(running, table, &found, extent);
        }
    }

    async fn end(&mut self, running: Running) {
        self.counts.ends += 1;
        // A process notices a clock that was set while it runs; one that is set while no process runs is believed.
        let _ = running.clock.look(running.process.log.as_ref()).await;
        let how = self.random.below(6);
        self.happened(("end", how));
        let Running { process, clock } = running;
        let mut running = Running { process, clock };
        let is_cut;
        match how {
            0 if !self.is_stalled => {
                running.process.end(true).await;
                return;
            }
            // In the middle of something.
            1 | 2 => {
                self.disk.kill_in(self.random.below(40));
                is_cut = how == 2;
                self.until_dead(&mut running).await;
            }
            3 => {
                self.log_disk.cut_power_in(self.random.below(40));
                is_cut = true;
                self.until_dead(&mut running).await;
            }
            n => is_cut = n == 4,
        }
        match is_cut {
            true => {
                self.disk.power_cut();
                self.log_disk.power_cut();
                self.counts.power_cuts += 1;
                self.ledgers.iter_mut().for_each(Ledger::power_cut);
                self.versions.clear();
            }
            false => {
                self.disk.kill();
                self.log_disk.kill();
            }
        }
        running.process.end(false).await;
    }

    /// Goes on until one of the disks dies.
    async fn until_dead(&mut self, running: &mut Running) {
        let life = self.log_disk.life();
        for _ in 0..12 {
            if running.process.disk.is_dead() || self.log_disk.life() != life {
                return;
            }
            match self.random.below(4) {
                0 | 1 => self.append(running).await,
                2 => self.guest(running).await,
                _ => tokio::time::sleep(Duration::from_millis(self.random.below(20))).await,
            }
        }
    }

    /// Between two processes: files are restored, the clock is set, another writer leaves half a commit.
    async fn between(&mut self) {
        if self.random.one_in(2) {
            self.heal();
        }
        match self.random.below(5) {
            0 => {
                let by = [-2 * DAY, 2 * DAY, -60 * DAY][self.random.below(3) as usize];
                self.hands.set(by);
                // A clock that is set while no process runs is believed.
                self.passed += by.max(0);
            }
            1 => self.pass(3 * DAY),
            _ => {}
        }
        let commits = self.table_folder().join("_delta_log");
        if self.random.one_in(4) && commits.exists() {
            let names = std::fs::read_dir(&commits).unwrap().flatten();
            let versions =
                names.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json")?.parse::<i64>().ok());
            if let Some(newest) = versions.max() {
                self.happened(("half a commit", newest + 1));
                let path = commits.join(format!("{:020}.json", newest + 1));
                self.disk.put(&path, Some(b"{\"commitInfo\":{\"timesta".to_vec()));
            }
        }
    }

    async fn verify(&mut self, running: &Running) {
        let lake = Lake::open(&running.process.site).await.unwrap();
        for table in TABLES {
            let options = VerifyOptions { deep: true };
            let verified = verify(&lake, table.name(), options, &mut |_, _| {}).await;
            match verified {
                Ok(verified) => assert!(verified.findings.is_empty(), "{}: {:?}", self.what(), verified.findings),
                // Nothing was ever stored in it.
                Err(error) => assert!(error.to_string().contains("no table"), "{error}"),
            }
        }
    }
}
