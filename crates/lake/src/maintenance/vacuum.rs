//! Deletes files that no version of a table needs any more.
//!
//! A file stays while it is live, and for the retention time after the commit that removed it, because readers may use
//! an older version. Files that no commit refers to, left by a process that ended before its commit, are deleted at the
//! same age.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use futures::TryStreamExt as _;

use thalweg_delta::actions::Action;
use thalweg_delta::{DeltaError, DeltaLog, Snapshot, info_of};

/// The state of a table between two runs.
#[derive(Default)]
pub(super) struct Vacuum {
    /// Commits up to this one were read.
    read: Option<i64>,
    /// Removed files, and when they were removed, in milliseconds since 1970.
    removed: HashMap<String, i64>,
}

impl Vacuum {
    /// Deletes unneeded files older than `retain`, and returns their number. `snapshot` is the newest version.
    pub async fn run(&mut self, log: &DeltaLog, snapshot: &Snapshot, retain: Duration) -> Result<u64, DeltaError> {
        let mut deleted = 0;
        for file in self.unneeded(log, snapshot, retain).await? {
            log.delete_file(&file.path).await?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// The unneeded files older than `retain`. `snapshot` is the newest version, or was recently.
    pub async fn unneeded(
        &mut self,
        log: &DeltaLog,
        snapshot: &Snapshot,
        retain: Duration,
    ) -> Result<Vec<StoredDataFile>, DeltaError> {
        let oldest = log.oldest_ms(retain);
        let mut files = files(log).await?;
        // The order matters: a file that leaves `held` in between is in the version that is read next.
        let held = log.held();
        let mut newest = snapshot.clone();
        log.refresh(&mut newest).await?;
        self.read_commits(log, &newest, oldest).await?;
        self.removed.retain(|_, removed| *removed >= oldest);
        let limit = Duration::from_millis(u64::try_from(oldest).unwrap_or(0));
        let limit = SystemTime::UNIX_EPOCH + limit;
        files.retain(|file| {
            let path = file.path.as_str();
            let is_needed = newest.files.contains_key(path) || self.removed.contains_key(path) || held.contains(path);
            !is_needed && file.modified < limit
        });
        Ok(files)
    }

    /// Reads from the newest commit back to the oldest whose removals count.
    async fn read_commits(&mut self, log: &DeltaLog, snapshot: &Snapshot, oldest: i64) -> Result<(), DeltaError> {
        let mut version = snapshot.version;
        while version >= 0 && self.read.is_none_or(|read| version > read) {
            // Older commits were deleted after a checkpoint.
            let Some(actions) = log.read_commit(version).await? else {
                break;
            };
            let own = info_of(&actions).filter(|info| info.is_own());
            let newest = own.map(|info| info.timestamp);
            let has_removed = actions.iter().any(|action| matches!(action, Action::Remove(_)));
            // The clocks of other writers may be behind.
            let stored = match newest.is_none() && has_removed {
                true => Some(log.stored_at(version).await?),
                false => None,
            };
            for action in actions {
                let Action::Remove(remove) = action else { continue };
                let at = remove.deletion_timestamp.max(stored).unwrap_or(i64::MAX);
                let path = object_store::path::Path::from_url_path(&remove.path);
                let path = path.map_or(remove.path, |path| path.to_string());
                self.removed.insert(path, at);
            }
            // The time stamps of other writers' commits are not reliable.
            if newest.is_some_and(|newest| newest < oldest) {
                break;
            }
            version -= 1;
        }
        self.read = Some(snapshot.version);
        Ok(())
    }
}

/// A Parquet file in the folder of a table.
pub(super) struct StoredDataFile {
    /// Relative to the table.
    pub path: String,
    pub modified: SystemTime,
    pub bytes: u64,
}

async fn files(log: &DeltaLog) -> Result<Vec<StoredDataFile>, DeltaError> {
    let prefix = log.path("")?;
    let mut found = Vec::new();
    let mut listed = log.store().list(Some(&prefix));
    let mut seen = HashSet::new();
    while let Some(object) = listed.try_next().await? {
        let Some(parts) = object.location.prefix_match(&prefix) else {
            continue;
        };
        let parts: Vec<String> = parts.map(|part| part.as_ref().to_owned()).collect();
        let relative = parts.join("/");
        let is_of_rows = relative.ends_with(".parquet") && !relative.starts_with('_');
        if is_of_rows && seen.insert(relative.clone()) {
            found.push(StoredDataFile {
                path: relative,
                modified: object.last_modified.into(),
                bytes: object.size,
            });
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_columns::tables::LOGS;
    use thalweg_delta::actions::{Add, CommitInfo, Remove};
    use thalweg_delta::schema::TableSchema;
    use thalweg_delta::store::SyncedStore;
    use thalweg_delta::{SnapshotDetail, creation, new_metadata};
    use thalweg_kit::clock::{self, unix_ms};

    const DAY: i64 = 86_400_000;

    fn info(engine: &str, timestamp: i64) -> Action {
        Action::CommitInfo(CommitInfo {
            timestamp,
            operation: "OPTIMIZE".to_owned(),
            operation_parameters: Default::default(),
            engine_info: Some(engine.to_owned()),
            is_blind_append: None,
        })
    }

    fn add(name: &str) -> Action {
        Action::Add(Add {
            path: name.to_owned(),
            partition_values: [("date".to_owned(), Some("2031-05-06".to_owned()))].into(),
            size: 1,
            modification_time: 1,
            data_change: true,
            stats: None,
            tags: None,
            deletion_vector: None,
        })
    }

    fn remove(name: &str, at: i64) -> Action {
        Action::Remove(Remove {
            path: name.to_owned(),
            data_change: false,
            deletion_timestamp: Some(at),
        })
    }

    /// For example while a machine is suspended, or a store accepts no commits.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_file_that_waits_for_its_commit_stays_however_old_it_becomes() {
        let folder = tempfile::tempdir().unwrap();
        let log = DeltaLog::new(&folder.path().join("logs"), SyncedStore::new()).unwrap();
        let columns: TableSchema = (LOGS.columns)();
        log.commit(0, &creation(new_metadata(&columns, &["date"], &[], 0)))
            .await
            .unwrap();
        let snapshot = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
        let name = "date=2031-05-06/a.parquet";
        let Action::Add(file) = add(name) else { unreachable!() };
        let held = log.hold([&file].into_iter());
        log.put_file(name, bytes::Bytes::from_static(b"x")).await.unwrap();
        let old = std::fs::File::options()
            .write(true)
            .open(log.table().join(name))
            .unwrap();
        old.set_modified(clock::wall() - Duration::from_hours(48)).unwrap();
        let mut vacuum = Vacuum::default();
        assert_eq!(vacuum.run(&log, &snapshot, Duration::from_hours(1)).await.unwrap(), 0);
        // It was committed after the version with which the vacuum begins.
        log.commit(1, &[Action::Add(file.clone())]).await.unwrap();
        drop(held);
        assert_eq!(vacuum.run(&log, &snapshot, Duration::from_hours(1)).await.unwrap(), 0);
        log.commit(2, &[info("thalweg/1", 1), remove(name, 1)]).await.unwrap();
        assert_eq!(
            vacuum.run(&log, &snapshot, Duration::from_hours(1)).await.unwrap(),
            1,
            "nobody holds it any more"
        );
    }

    /// Readers may use an older version for the promised time, whatever the clocks of other writers show.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn another_writer_whose_clock_is_behind_hurries_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let log = DeltaLog::new(&folder.path().join("logs"), SyncedStore::new()).unwrap();
        let columns: TableSchema = (LOGS.columns)();
        let (now, behind) = (unix_ms(), unix_ms() - 3 * DAY);
        let names = [
            "date=2031-05-06/a.parquet",
            "date=2031-05-06/b.parquet",
            "date=2031-05-06/c.parquet",
        ];
        log.commit(0, &creation(new_metadata(&columns, &["date"], &[], 0)))
            .await
            .unwrap();
        log.commit(1, &[&[info("thalweg/1", now - 9 * DAY)], &names.map(add)[..]].concat())
            .await
            .unwrap();
        for name in names {
            log.put_file(name, bytes::Bytes::from_static(b"x")).await.unwrap();
            let file = std::fs::File::options()
                .write(true)
                .open(log.table().join(name))
                .unwrap();
            file.set_modified(clock::wall() - Duration::from_hours(9 * 24)).unwrap();
        }
        // Our commit removes one file an hour ago, and another program the next one now.
        log.commit(
            2,
            &[info("thalweg/1", now - DAY / 24), remove(names[0], now - DAY / 24)],
        )
        .await
        .unwrap();
        log.commit(3, &[info("Apache-Spark/4.0", behind), remove(names[1], behind)])
            .await
            .unwrap();
        let snapshot = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
        let unneeded = async |retain: Duration| {
            let found = Vacuum::default().unneeded(&log, &snapshot, retain).await.unwrap();
            let mut found: Vec<String> = found.into_iter().map(|file| file.path).collect();
            found.sort();
            found
        };
        assert_eq!(unneeded(Duration::from_hours(24)).await, [""; 0]);
        assert_eq!(unneeded(Duration::from_mins(30)).await, [names[0]]);
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(unneeded(Duration::from_millis(10)).await, names[..2]);
    }
}
