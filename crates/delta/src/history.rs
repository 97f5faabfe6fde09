//! Older versions of a table: which exist, which one was current at a time, and what each contained.
//!
//! A version can be loaded while all commits up to it exist, from a checkpoint or from the first commit on. Its data
//! files may be gone nevertheless: files that left the table are deleted some time later.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use futures::TryStreamExt as _;
use object_store::ObjectStoreExt as _;

use super::actions::{Action, CommitInfo};
use super::checkpoint::{CheckpointState, LastCheckpoint};
use super::log::{DeltaError, DeltaLog, version_of};
use super::snapshot::{Snapshot, SnapshotDetail};

/// The versions of a table that can be loaded.
#[derive(Clone, Debug)]
pub struct LoadableVersions {
    /// The oldest and the newest.
    pub all: RangeInclusive<i64>,
    /// The newest is last.
    checkpoints: Vec<LastCheckpoint>,
}

impl DeltaLog {
    /// The versions that can be loaded; `None` if there is no table.
    pub async fn versions(&self) -> Result<Option<LoadableVersions>, DeltaError> {
        let (mut checkpoints, oldest) = self.list().await?;
        checkpoints.sort_by_key(|checkpoint| checkpoint.version);
        checkpoints.dedup();
        let Some(newest) = self.load(SnapshotDetail::Counts).await? else {
            return Ok(None);
        };
        // Without its first commit, a history begins at a checkpoint.
        let first = match oldest {
            Some(0) => 0,
            _ => checkpoints
                .first()
                .map_or(newest.version, |checkpoint| checkpoint.version),
        };
        Ok(Some(LoadableVersions {
            all: first.min(newest.version)..=newest.version,
            checkpoints,
        }))
    }

    /// The numbers of all existing commits in order, including those from which no version can be loaded.
    pub async fn commit_numbers(&self) -> Result<Vec<i64>, DeltaError> {
        let mut files = self.store().list(Some(&self.path("_delta_log")?));
        let mut numbers = Vec::new();
        while let Some(file) = files.try_next().await? {
            numbers.extend(file.location.filename().and_then(version_of));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// Loads one of the existing versions.
    pub async fn load_at(
        &self,
        versions: &LoadableVersions,
        version: i64,
        detail: SnapshotDetail,
    ) -> Result<Snapshot, DeltaError> {
        let mut known = Cow::Borrowed(versions);
        loop {
            let loaded = self.load_version(&known, version, detail).await;
            if !matches!(loaded, Err(DeltaError::Incomplete { .. })) {
                return loaded;
            }
            // The oldest commits may have been deleted since they were listed.
            let Some(now) = self.versions().await? else {
                return loaded;
            };
            if now.all.start() <= known.all.start() {
                return loaded;
            }
            known = Cow::Owned(now);
        }
    }

    async fn load_version(
        &self,
        versions: &LoadableVersions,
        version: i64,
        detail: SnapshotDetail,
    ) -> Result<Snapshot, DeltaError> {
        if !versions.all.contains(&version) {
            let (first, last) = (versions.all.start(), versions.all.end());
            return Err(self.no_version(format!("has no version {version}; it has {first} to {last}")));
        }
        let before = versions
            .checkpoints
            .iter()
            .rev()
            .filter(|checkpoint| checkpoint.version <= version);
        let mut begin = None;
        for checkpoint in before {
            // An unreadable checkpoint is harmless if an older one or the first commit exists.
            if let Ok(state) = self.read_checkpoint(checkpoint).await {
                begin = Some((checkpoint.version, state));
                break;
            }
        }
        let (at, state) = match begin {
            Some(begin) => begin,
            None => {
                let mut state = CheckpointState::default();
                state.apply(self.commit_at(0).await?);
                (0, state)
            }
        };
        let mut snapshot = self.snapshot_of(at, state, detail)?;
        while snapshot.version < version {
            let next = self.next(&snapshot).await?;
            self.advance(&mut snapshot, next)?;
        }
        Ok(snapshot)
    }

    /// The actions after a version, which must not be the newest.
    pub async fn next(&self, snapshot: &Snapshot) -> Result<Vec<Action>, DeltaError> {
        self.commit_at(snapshot.version + 1).await
    }

    /// Moves a snapshot to the next version.
    pub fn advance(&self, snapshot: &mut Snapshot, next: Vec<Action>) -> Result<(), DeltaError> {
        snapshot.apply(next).map_err(|error| self.unsupported(error))
    }

    async fn commit_at(&self, version: i64) -> Result<Vec<Action>, DeltaError> {
        let actions = self.read_commit(version).await?;
        actions.ok_or_else(|| self.incomplete(format!("commit {version} is missing")))
    }

    /// The version that was current at a time.
    pub async fn version_at(&self, versions: &LoadableVersions, unix_ms: i64) -> Result<i64, DeltaError> {
        let (first, last) = (*versions.all.start(), *versions.all.end());
        // The commits of one writer are ordered by time: binary search for the first later one.
        let (mut low, mut high) = (first, last + 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.committed_at(middle).await? <= unix_ms {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        match low > first {
            true => Ok(low - 1),
            false => Err(self.no_version(format!(
                "had no version at that time: the oldest known version, {first}, is newer"
            ))),
        }
    }

    /// When a version was committed, in milliseconds since 1970: as its commit states, else by the age of the file.
    pub async fn committed_at(&self, version: i64) -> Result<i64, DeltaError> {
        // A version that exists only as a checkpoint is older than all others.
        let Some(actions) = self.read_commit(version).await? else {
            return Ok(i64::MIN);
        };
        match time_of(&actions) {
            Some(unix_ms) => Ok(unix_ms),
            None => self.stored_at(version).await,
        }
    }

    /// When a commit was stored, in milliseconds since 1970, by the clock of the store.
    pub async fn stored_at(&self, version: i64) -> Result<i64, DeltaError> {
        let found = self.store().head(&self.commit_path(version)?).await?;
        Ok(found.last_modified.timestamp_millis())
    }

    fn no_version(&self, why: String) -> DeltaError {
        DeltaError::NoVersion {
            table: self.table().to_owned(),
            why,
        }
    }
}

/// The commit info of a commit.
pub fn info_of(actions: &[Action]) -> Option<&CommitInfo> {
    actions.iter().find_map(|action| match action {
        Action::CommitInfo(info) => Some(info),
        _ => None,
    })
}

fn time_of(actions: &[Action]) -> Option<i64> {
    info_of(actions).map(|info| info.timestamp).filter(|time| *time > 0)
}
