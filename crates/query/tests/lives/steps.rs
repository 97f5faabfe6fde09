//! The steps of a life.

use std::future::poll_fn;
use std::path::PathBuf;
use std::task::Poll;
use std::time::Duration;

use futures::future::join_all;
use serde_json::json;
use thalweg_delta::SnapshotDetail;
use thalweg_delta::store::cut_disk::DiskFaults;
use thalweg_lake::Signal;
use thalweg_lake::entry::{EntryForm, EntryHead, PayloadCompression, PayloadEncoding, RejectedRecords};
use thalweg_lake::maintenance::MaintenanceTask;
use thalweg_log::clock::TimeSource as _;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, Micros, PartitionId, Records, WriteBatch};

use crate::guest::{Guest, Outcome};
use crate::ledger::{Extent, Survives};
use crate::process::{FOR_EVER, LOG_PARTITIONS, VACUUM_RETAIN};
use crate::world::{DAY, Damage, Running, TABLES, Table, Version, World};

/// The setting of new tables.
const COMMITS_KEPT: Micros = 7 * DAY;
const NAMESPACES_MAX: usize = 3;

impl World {
    pub async fn step(&mut self, running: &mut Running) {
        match self.random.below(40) {
            0..14 => self.append(running).await,
            14..20 => self.query(running).await,
            20 => self.make_namespace(running).await,
            21 => self.delete_namespace(),
            22..25 => self.guest(running).await,
            25..28 => self.by_hand(running).await,
            28..30 => self.time_goes_by(running).await,
            30 => self.query_fails(running).await,
            31 => self.damage_file(running).await,
            32 => self.damage_hints(),
            33..36 => self.look_at_versions(running).await,
            36 => self.hold_all(running, Extent::Acknowledged).await,
            37 => self.steps_fail(),
            38 => running.process.commit_now(),
            _ => tokio::time::sleep(Duration::from_millis(self.random.below(30))).await,
        }
        for id in self.namespaces.take_let_go() {
            // A killed process leaves the partition behind.
            let _ = running.process.log.remove(id).await;
            self.counts.deleted += 1;
        }
    }

    /// Several concurrent writers, of whom some leave, and sometimes a concurrent query.
    pub async fn append(&mut self, running: &mut Running) {
        let now = self.now(running);
        let mut batches = Vec::new();
        for _ in 0..1 + self.random.below(4) {
            let (table, id) = self.somewhere();
            let rows = self.new_rows();
            let survives = match self.modes.get(&id) {
                Some(Durability::Fsync) => Survives::Acknowledged,
                _ => Survives::Seen,
            };
            self.ledgers[table as usize].attempted(&rows, survives, now);
            let polls = if self.random.one_in(8) {
                1 + self.random.below(3)
            } else {
                u64::MAX
            };
            batches.push((table, rows.clone(), self.unit(table, id, &rows), polls));
        }
        let asks = self.random.one_in(3) && self.damage.is_empty();
        let stored = batches.into_iter().map(|(table, rows, unit, polls)| {
            let append = running.process.log.append(unit);
            async move {
                let answer = left_after(polls, append).await;
                (table, rows, answer.is_some_and(|answer| answer.is_ok()))
            }
        });
        let asked = async {
            match asks {
                true => Some(running.process.ask("select body from logs").await),
                false => None,
            }
        };
        let (stored, asked) = tokio::join!(join_all(stored), asked);
        for (table, rows, is_stored) in stored {
            self.happened(("append", table, &rows, is_stored));
            if is_stored {
                self.ledgers[table as usize].acknowledged(&rows);
                self.counts.acknowledged += rows.len() as u64;
            }
        }
        if let Some(found) = asked {
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", self.what()));
            self.check(running, Table::Logs, &found, Extent::Seen);
        }
    }

    fn somewhere(&mut self) -> (Table, PartitionId) {
        let there = self.namespaces.there();
        match self.random.below(3) {
            2 if !there.is_empty() => (Table::Events, there[self.random.below(there.len() as u64) as usize].id),
            n => (Table::Logs, LOG_PARTITIONS[n as usize % 2]),
        }
    }

    pub fn unit(&mut self, table: Table, id: PartitionId, rows: &[String]) -> WriteBatch {
        let wall = self.hands.wall();
        let mut records = Records::new();
        match table {
            Table::Logs => records
                .push(&RecordRef::of(wall, &self.request(rows, wall * 1000)))
                .unwrap(),
            Table::Events => {
                for row in rows {
                    records.push(&RecordRef::of(wall, row.as_bytes())).unwrap();
                }
            }
        }
        WriteBatch::of(id, records)
    }

    fn request(&mut self, rows: &[String], arrival: i64) -> Vec<u8> {
        let name = format!("attribute.{}", self.random.below(12));
        let record = |row: &String| {
            json!({"timeUnixNano": arrival.to_string(), "body": {"stringValue": row},
                   "attributes": [{"key": name, "value": {"stringValue": "x"}}]})
        };
        let records: Vec<_> = rows.iter().map(record).collect();
        let head = EntryHead {
            signal: Signal::Logs,
            form: EntryForm::Request(PayloadEncoding::Json),
            compression: PayloadCompression::None,
            arrival,
            records: u32::try_from(rows.len()).unwrap(),
            cut_values_at: None,
            rejected: RejectedRecords::NONE,
            peer: "",
        };
        let mut entry = Vec::new();
        head.encode(&mut entry);
        entry.extend(
            json!({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]})
                .to_string()
                .bytes(),
        );
        entry
    }

    /// The client may leave before it knows the columns.
    async fn query(&mut self, running: &mut Running) {
        let table = TABLES[self.random.below(2) as usize];
        let sql = format!("select {} from {}", table.column(), table.name());
        let polls = if self.random.one_in(2) {
            self.random.below(40)
        } else {
            u64::MAX
        };
        self.counts.queries += 1;
        let found = left_after(polls, running.process.ask(&sql)).await;
        match found {
            None => self.counts.left += 1,
            Some(Ok(found)) => self.check(running, table, &found, Extent::Seen),
            // The query hit the damaged file.
            Some(Err(_)) if !self.damage.is_empty() => self.counts.failed += 1,
            Some(Err(error)) => panic!("{}: {error}", self.what()),
        }
    }

    async fn make_namespace(&mut self, running: &mut Running) {
        if self.namespaces.there().len() >= NAMESPACES_MAX {
            return;
        }
        let namespace = self.namespaces.add();
        let mode = self.mode();
        if running.process.log.create(namespace.id, mode).await.is_ok() {
            self.modes.insert(namespace.id, mode);
            self.happened(("namespace", namespace.number, mode));
            self.namespaces.is_made(namespace);
        }
    }

    fn delete_namespace(&mut self) {
        if let Some(namespace) = self.namespaces.there().first() {
            self.happened(("namespace deleted", namespace.number));
            self.namespaces.delete(namespace.number);
        }
    }

    pub async fn guest(&mut self, running: &mut Running) {
        let table = self.table_folder();
        let guest = Guest::of(&table, &running.process.store, self.hands.wall());
        let what = self.random.below(5);
        let outcome = match what {
            0 | 1 => {
                let (rows, now) = (self.new_rows(), self.now(running));
                let ledger = &mut self.ledgers[Table::Logs as usize];
                ledger.attempted(&rows, Survives::Committed, now);
                let outcome = guest.append(&rows, &mut self.random).await;
                let ledger = &mut self.ledgers[Table::Logs as usize];
                match outcome {
                    Outcome::Done => ledger.acknowledged(&rows),
                    Outcome::Refused => ledger.refused(&rows),
                    Outcome::Unknown => {}
                }
                outcome
            }
            2 | 3 => guest.rewrite(&mut self.random).await,
            _ => {
                let name = format!("guest_{}", self.next_row);
                self.next_row += 1;
                guest.add_column(&name).await
            }
        };
        self.counts.by_others += u64::from(outcome == Outcome::Done);
        self.happened(("guest", what, outcome));
    }

    pub fn table_folder(&self) -> PathBuf {
        thalweg_lake::folder(self.folder.path()).join("logs")
    }

    async fn by_hand(&mut self, running: &mut Running) {
        let task = [
            MaintenanceTask::Compact,
            MaintenanceTask::Retain,
            MaintenanceTask::Vacuum,
        ][self.random.below(3) as usize];
        if self.is_stalled {
            return;
        }
        let errors = running.process.by_hand(task, None).await;
        self.happened((task, &errors));
        let changed = |error: &String| error.contains("has changed");
        let is_known = !self.damage.is_empty() || running.process.disk.is_dead() || self.is_stalled;
        assert!(
            is_known || errors.iter().all(changed),
            "{}: {task:?}: {errors:?}",
            self.what()
        );
    }

    /// Time passes, also by days, or the clock is set.
    async fn time_goes_by(&mut self, running: &mut Running) {
        // The process checks the clock each second.
        let _ = running.clock.look(running.process.log.as_ref()).await;
        let jumps = [8 * DAY, -3 * DAY, 40 * DAY, -45 * DAY, 3_600_000_000];
        let (passes, by) = match self.random.below(3) {
            0 => (true, [DAY / 24, 4 * DAY, 12 * DAY][self.random.below(3) as usize]),
            _ => (false, jumps[self.random.below(5) as usize]),
        };
        self.happened(("time", passes, by / (DAY / 24)));
        match passes {
            true => self.pass(by),
            false => self.hands.set(by),
        }
        // The jump is seen within a second, if the process lives that long.
        if passes || !self.random.one_in(4) {
            let _ = running.clock.look(running.process.log.as_ref()).await;
        }
        self.now(running);
    }

    pub fn pass(&mut self, time: Micros) {
        self.hands.pass(time);
        self.passed += time;
    }

    /// The next version cannot be read for a moment: a query then fails, and the one after it succeeds.
    async fn query_fails(&mut self, running: &mut Running) {
        let commits = self.table_folder().join("_delta_log");
        let newest = std::fs::read_dir(&commits).into_iter().flatten().flatten();
        let newest = newest.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_suffix(".json")?.parse::<i64>().ok()
        });
        let Some(newest) = newest.max() else { return };
        let next = commits.join(format!("{:020}.json", newest + 1));
        if std::os::unix::fs::symlink(&next, &next).is_err() {
            return;
        }
        running.process.commit_now();
        let asked = running.process.ask("select body from logs").await;
        std::fs::remove_file(&next).unwrap();
        self.happened(("query fails", asked.is_err()));
        self.counts.failed += u64::from(asked.is_err());
        self.query(running).await;
    }

    /// Rows of the file cannot be read until it is restored; all others can.
    async fn damage_file(&mut self, running: &mut Running) {
        let log = running.process.site.log("logs").unwrap();
        let Ok(Some(table)) = log.load(SnapshotDetail::Counts).await else {
            return;
        };
        let files: Vec<_> = table.files.keys().cloned().collect();
        if files.is_empty() || !self.damage.is_empty() {
            return;
        }
        let path = self
            .table_folder()
            .join(&*files[self.random.below(files.len() as u64) as usize]);
        let Ok(content) = std::fs::read(&path) else { return };
        let damaged = match self.random.below(3) {
            0 => None,
            1 => Some(content[..content.len() / 2].to_vec()),
            _ => Some(vec![0; content.len()]),
        };
        self.happened(("damage", &path, damaged.is_some()));
        let content = self.disk.damage(&path, damaged);
        self.damage.push(Damage { path, content });
        self.counts.damaged += 1;
    }

    pub fn heal(&mut self) {
        for Damage { path, content } in std::mem::take(&mut self.damage) {
            self.history.push(format!("healed {path:?}"));
            self.disk.put(&path, Some(content));
        }
    }

    /// Damages files that only speed things up, or that nobody owns.
    fn damage_hints(&mut self) {
        let commits = self.table_folder().join("_delta_log");
        let hint = commits.join("_last_checkpoint");
        if !commits.exists() {
            return;
        }
        self.counts.damaged += 1;
        let what = self.random.below(4);
        self.happened(("hint", what));
        match what {
            0 if hint.exists() => self.disk.put(&hint, None),
            1 => self.disk.put(&hint, Some(b"{\"version\":".to_vec())),
            2 => self.disk.put(&hint, Some(br#"{"version":77,"size":1}"#.to_vec())),
            _ => self
                .disk
                .put(&commits.join("00000000000000000007.json#123"), Some(b"{".to_vec())),
        }
    }

    fn steps_fail(&mut self) {
        let faults = match self.random.below(6) {
            0 => DiskFaults {
                failing_sync: true,
                ..DiskFaults::default()
            },
            1 | 2 => DiskFaults {
                failing_steps: 3,
                ..DiskFaults::default()
            },
            _ => DiskFaults::default(),
        };
        self.happened(faults);
        // After a failed sync nothing is written before the next start.
        self.is_stalled |= faults.failing_sync || faults.failing_steps > 0;
        self.disk.set_faults(faults);
    }

    /// The newest version equals what queries see, and an older one has not changed.
    async fn look_at_versions(&mut self, running: &mut Running) {
        if !self.damage.is_empty() {
            return;
        }
        let now = self.now(running);
        let log = running.process.site.log("logs").unwrap();
        let Ok(Some(newest)) = log.load(SnapshotDetail::Counts).await else {
            return;
        };
        let of = |version: i64| format!("select body from at_version('logs', {version}) order by body");
        let found = match running.process.ask(&of(newest.version)).await {
            Ok(found) => found,
            // It is not the newest any more, and was for long.
            Err(error) if error.contains("has no version") && self.passed >= COMMITS_KEPT => return,
            Err(error) => panic!("{}: {error}", self.what()),
        };
        self.counts.versions += 1;
        self.check(running, Table::Logs, &found, Extent::Committed);
        let known = self.versions.entry(newest.version);
        let known = known.or_insert(Version {
            names: found.clone(),
            newest_at: now,
        });
        assert_eq!(known.names, found, "version {}", newest.version);
        let nth = self.random.below(self.versions.len() as u64) as usize;
        let (older, known) = self.versions.iter().nth(nth).unwrap();
        match running.process.ask(&of(*older)).await {
            Ok(names) => assert_eq!(names, known.names, "{}: version {older}", self.what()),
            // Commits expire by their own age, also those that were the newest for long.
            Err(error) if error.contains("has no version") => {
                assert!(self.passed >= COMMITS_KEPT, "{}: {error}", self.what());
            }
            Err(error) => {
                let age = self.latest - known.newest_at;
                let retain = i64::try_from(VACUUM_RETAIN.as_micros()).unwrap();
                assert!(
                    age > retain,
                    "{}: version {older} of {age} µs ago: {error}",
                    self.what()
                );
            }
        }
    }
}

/// Returns `None` if the future is still pending after `polls` polls.
async fn left_after<T>(mut polls: u64, future: impl Future<Output = T>) -> Option<T> {
    let mut future = Box::pin(future);
    let answer = poll_fn(|context| {
        if polls == 0 {
            return Poll::Ready(None);
        }
        polls -= 1;
        match future.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if polls == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    let answer = tokio::time::timeout(FOR_EVER, answer).await;
    answer.expect("somebody waits for ever")
}
