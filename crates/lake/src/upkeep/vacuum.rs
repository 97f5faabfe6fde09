//! Files that no version of a table needs any more are deleted.
//!
//! A file stays while it is live, and for some time after the commit that removed it: readers may have an older version. What no
//! commit ever named, of a process that ended before its commit, goes at the same age.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, SystemTime};

use futures::TryStreamExt as _;

use crate::delta::actions::Action;
use crate::delta::{DeltaError, DeltaLog, Snapshot};

/// What is remembered of a table between two times.
#[derive(Default)]
pub(super) struct Vacuum {
    /// Commits up to this one were read.
    read: Option<i64>,
    /// Files that were removed, and when, in milliseconds since 1970.
    removed: HashMap<String, i64>,
}

impl Vacuum {
    /// Deletes what is older than `retain`, and returns how many files that were. `snapshot` is the newest version.
    pub async fn run(&mut self, log: &DeltaLog, snapshot: &Snapshot, retain: Duration) -> Result<u64, DeltaError> {
        let mut deleted = 0;
        for file in self.unneeded(log, snapshot, retain).await? {
            log.delete_file(&file.path).await?;
            deleted += 1;
        }
        Ok(deleted)
    }

    /// Files that are older than `retain` and that nobody needs. `snapshot` is the newest version.
    pub async fn unneeded(
        &mut self,
        log: &DeltaLog,
        snapshot: &Snapshot,
        retain: Duration,
    ) -> Result<Vec<Stored>, DeltaError> {
        let oldest = log.oldest_ms(retain);
        self.read_commits(log, snapshot, oldest).await?;
        self.removed.retain(|_, removed| *removed >= oldest);
        let limit = Duration::from_millis(u64::try_from(oldest).unwrap_or(0));
        let limit = SystemTime::UNIX_EPOCH + limit;
        let mut files = files(log).await?;
        files.retain(|file| {
            let path = file.path.as_str();
            let is_needed = snapshot.files.contains_key(path) || self.removed.contains_key(path);
            !is_needed && file.modified < limit
        });
        Ok(files)
    }

    /// From the newest one back to the oldest whose removals count.
    async fn read_commits(&mut self, log: &DeltaLog, snapshot: &Snapshot, oldest: i64) -> Result<(), DeltaError> {
        let mut version = snapshot.version;
        while version >= 0 && self.read.is_none_or(|read| version > read) {
            // Older ones are in a checkpoint, and gone.
            let Some(actions) = log.read_commit(version).await? else {
                break;
            };
            let mut newest = None;
            for action in actions {
                match action {
                    Action::CommitInfo(info) => newest = newest.max(Some(info.timestamp)),
                    Action::Remove(remove) => {
                        let at = remove.deletion_timestamp.unwrap_or(i64::MAX);
                        let path = object_store::path::Path::from_url_path(&remove.path);
                        let path = path.map_or(remove.path, |path| path.to_string());
                        self.removed.insert(path, at);
                    }
                    _ => {}
                }
            }
            // Commits of others may not say when they were made.
            if newest.is_some_and(|newest| newest < oldest) {
                break;
            }
            version -= 1;
        }
        self.read = Some(snapshot.version);
        Ok(())
    }
}

/// A file of rows in the folder of a table.
pub(super) struct Stored {
    /// Relative to the table.
    pub path: String,
    pub modified: SystemTime,
    pub bytes: u64,
}

async fn files(log: &DeltaLog) -> Result<Vec<Stored>, DeltaError> {
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
            found.push(Stored {
                path: relative,
                modified: object.last_modified.into(),
                bytes: object.size,
            });
        }
    }
    Ok(found)
}
