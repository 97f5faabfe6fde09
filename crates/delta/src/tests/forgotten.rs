//! Old commits are deleted while the history is read: readers still get the newest or the requested version, never an
//! older one in its place. A lost commit does not count as the end of a history.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use object_store::path::Path as StorePath;
use object_store::{ObjectStoreExt as _, PutPayload};
use thalweg_kit::clock::wall_micros;

use super::*;
use crate::store::flaky::{Faults, Flaky, left_after};

const MONTH_US: i64 = 30 * 24 * 3600 * 1_000_000;

/// No operation here waits more often.
const LEAVES_MAX: usize = 60;

/// Interrupts a future after `waits` waits, runs `other`, and resumes. Returns whether it waited that often.
async fn interrupted<F: Future>(waits: usize, future: F, other: impl Future<Output = ()>) -> (F::Output, bool) {
    let mut future = pin!(future);
    match left_after(waits, future.as_mut()).await {
        Some(output) => (output, false),
        None => {
            other.await;
            (future.await, true)
        }
    }
}

/// A table in memory with a store that makes each caller wait, so that the steps wait equally often on any machine.
struct OldTable {
    _scratch: tempfile::TempDir,
    store: Flaky,
    log: DeltaLog,
    /// How far the log's clock is ahead of the clock that stamps the files.
    ahead_us: Arc<AtomicI64>,
}

impl OldTable {
    /// Nine versions of the current time; an early one has a checkpoint if `has_checkpoint`.
    async fn new(has_checkpoint: bool) -> OldTable {
        let scratch = tempfile::tempdir().unwrap();
        let store = Flaky::new(1);
        let ahead_us = Arc::new(AtomicI64::new(0));
        let now = ahead_us.clone();
        let clock = move || wall_micros() + now.load(Ordering::SeqCst);
        let log = log_on(&store, scratch.path()).with_clock(Arc::new(clock));
        let week = [("delta.logRetentionDuration", "interval 7 days")];
        let metadata = new_metadata(&schema(), &["date"], &week, 7);
        log.commit(0, &creation(metadata)).await.unwrap();
        for version in 1..=8 {
            log.commit(version, &[add(&format!("f{version}"), 1)]).await.unwrap();
        }
        if has_checkpoint {
            log.checkpoint(1).await.unwrap();
        }
        store.set(Faults::Slow);
        OldTable {
            _scratch: scratch,
            store,
            log,
            ahead_us,
        }
    }

    /// Advances the clock by a month, which deletes the commits before version 7.
    async fn forget(&self) {
        self.ahead_us.store(MONTH_US, Ordering::SeqCst);
        self.log.checkpoint(7).await.unwrap();
    }

    fn commit(version: i64) -> StorePath {
        format!("lake/t/_delta_log/{version:020}.json").into()
    }

    async fn has_commit(&self, version: i64) -> bool {
        self.store.truth().head(&Self::commit(version)).await.is_ok()
    }
}

#[tokio::test]
async fn whoever_loads_a_table_while_commits_are_forgotten_gets_its_newest_version() {
    for has_checkpoint in [true, false] {
        for waits in 0..LEAVES_MAX {
            let table = OldTable::new(has_checkpoint).await;
            let (loaded, was_interrupted) =
                interrupted(waits, table.log.load(SnapshotDetail::Counts), table.forget()).await;
            let loaded = loaded.unwrap().unwrap();
            assert_eq!((loaded.version, loaded.rows), (8, 8), "interrupted after {waits} waits");
            assert_eq!(was_interrupted, !table.has_commit(6).await);
            assert!(was_interrupted || waits > 4, "there was nothing to interrupt");
        }
    }
}

#[tokio::test]
async fn a_version_that_is_still_there_is_loaded_while_older_ones_are_forgotten() {
    for waits in 0.. {
        let table = OldTable::new(true).await;
        let log = &table.log;
        let versions = log.versions().await.unwrap().unwrap();
        let (loaded, was_interrupted) =
            interrupted(waits, log.load_at(&versions, 8, SnapshotDetail::Counts), table.forget()).await;
        let loaded = loaded.unwrap();
        assert_eq!((loaded.version, loaded.rows), (8, 8), "interrupted after {waits} waits");
        if !was_interrupted {
            assert!(waits > 4, "there was nothing to interrupt");
            break;
        }
        let gone = log.load_at(&versions, 5, SnapshotDetail::Counts).await.unwrap_err();
        assert!(matches!(gone, DeltaError::NoVersion { .. }), "{gone}");
    }
}

#[tokio::test]
async fn a_commit_that_is_lost_between_others_is_no_end_of_the_history() {
    let OldTable { store, log, .. } = &OldTable::new(true).await;
    let mut newest = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    log.nothing_beyond(&mut newest).await.unwrap();
    let (truth, lost) = (store.truth(), OldTable::commit(5));
    let bytes = truth.get(&lost).await.unwrap().bytes().await.unwrap();
    truth.delete(&lost).await.unwrap();
    let mut taken_back = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
    let error = log.nothing_beyond(&mut taken_back).await.unwrap_err().to_string();
    assert!(
        error.contains("commit 5 is missing") && error.contains("restore the missing file"),
        "{error}"
    );
    truth.put(&lost, PutPayload::from_bytes(bytes)).await.unwrap();
    log.nothing_beyond(&mut taken_back).await.unwrap();
    assert_eq!((taken_back.version, taken_back.rows), (8, 8));
}

/// As on a machine that was suspended for days, or in a table that keeps its commits for minutes.
#[tokio::test]
async fn whoever_has_a_version_whose_next_commits_were_forgotten_meanwhile_goes_to_the_newest() {
    for kept in 0..=8 {
        let table = OldTable::new(false).await;
        let log = &table.log;
        let versions = log.versions().await.unwrap().unwrap();
        let mut snapshot = log.load_at(&versions, kept, SnapshotDetail::Counts).await.unwrap();
        table.forget().await;
        assert_eq!(log.refresh(&mut snapshot).await.unwrap(), kept < 8);
        assert_eq!((snapshot.version, snapshot.rows), (8, 8), "from version {kept}");
        assert!(!log.refresh(&mut snapshot).await.unwrap());
    }
}
