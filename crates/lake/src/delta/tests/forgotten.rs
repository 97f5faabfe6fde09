//! Commits that are too old are deleted while somebody reads the history: whoever reads gets the newest version all the same, or the
//! one that was asked for, and never an older one that looks like it. A commit that is lost is no end of a history.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use super::*;
use crate::store::flaky::left_after;

/// More often than this nobody waits here.
const LEAVES_MAX: usize = 40;

/// Waits so often, does something else, and goes on. Returns whether there was so much to wait for.
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

/// Nine versions that are a month old, of which one of the first may have a checkpoint.
async fn old_table(folder: &std::path::Path, has_checkpoint: bool) -> DeltaLog {
    let log = DeltaLog::new(&folder.join("t"), SyncedStore::new()).unwrap();
    let week = [("delta.logRetentionDuration", "interval 7 days")];
    let metadata = new_metadata(&schema(), &["date"], &week, 7);
    log.commit(0, &creation(metadata)).await.unwrap();
    for version in 1..=8 {
        log.commit(version, &[add(&format!("f{version}"), 1)]).await.unwrap();
    }
    if has_checkpoint {
        log.checkpoint(1).await.unwrap();
    }
    let old = std::time::SystemTime::now() - Duration::from_hours(30 * 24);
    for version in 0..=8 {
        let file = std::fs::File::options().write(true).open(commit_file(&log, version));
        file.unwrap().set_modified(old).unwrap();
    }
    log
}

#[tokio::test]
async fn whoever_loads_a_table_while_commits_are_forgotten_gets_its_newest_version() {
    for (has_checkpoint, waits) in [true, false]
        .into_iter()
        .flat_map(|has| (0..LEAVES_MAX).map(move |waits| (has, waits)))
    {
        let folder = tempfile::tempdir().unwrap();
        let log = old_table(folder.path(), has_checkpoint).await;
        let forget = async { log.checkpoint(7).await.unwrap() };
        let (loaded, was_interrupted) = interrupted(waits, log.load(Detail::Counts), forget).await;
        let loaded = loaded.unwrap().unwrap();
        assert_eq!((loaded.version, loaded.rows), (8, 8), "interrupted after {waits} waits");
        assert_eq!(was_interrupted, !commit_file(&log, 6).exists());
        assert!(was_interrupted || waits > 1, "there was nothing to interrupt");
    }
}

#[tokio::test]
async fn a_version_that_is_still_there_is_loaded_while_older_ones_are_forgotten() {
    for waits in 0.. {
        let folder = tempfile::tempdir().unwrap();
        let log = old_table(folder.path(), true).await;
        let versions = log.versions().await.unwrap().unwrap();
        let forget = async { log.checkpoint(7).await.unwrap() };
        let (loaded, was_interrupted) = interrupted(waits, log.load_at(&versions, 8, Detail::Counts), forget).await;
        let loaded = loaded.unwrap();
        assert_eq!((loaded.version, loaded.rows), (8, 8), "interrupted after {waits} waits");
        if !was_interrupted {
            assert!(waits > 4, "there was nothing to interrupt");
            break;
        }
        let gone = log.load_at(&versions, 5, Detail::Counts).await.unwrap_err();
        assert!(matches!(gone, DeltaError::NoVersion { .. }), "{gone}");
    }
}

#[tokio::test]
async fn a_commit_that_is_lost_between_others_is_no_end_of_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let log = old_table(folder.path(), true).await;
    let mut newest = log.load(Detail::Counts).await.unwrap().unwrap();
    log.nothing_beyond(&mut newest).await.unwrap();
    let lost = commit_file(&log, 5);
    let bytes = std::fs::read(&lost).unwrap();
    std::fs::remove_file(&lost).unwrap();
    let mut taken_back = log.load(Detail::Counts).await.unwrap().unwrap();
    let error = log.nothing_beyond(&mut taken_back).await.unwrap_err().to_string();
    assert!(
        error.contains("commit 5 is missing") && error.contains("bring the missing file back"),
        "{error}"
    );
    std::fs::write(&lost, bytes).unwrap();
    log.nothing_beyond(&mut taken_back).await.unwrap();
    assert_eq!((taken_back.version, taken_back.rows), (8, 8));
}

/// As of a machine that was suspended for days, or in a table that keeps its commits for minutes.
#[tokio::test]
async fn whoever_has_a_version_whose_next_commits_were_forgotten_meanwhile_goes_to_the_newest() {
    for kept in 0..=8 {
        let folder = tempfile::tempdir().unwrap();
        let ahead = Arc::new(AtomicI64::new(0));
        let now = ahead.clone();
        let clock = move || thalweg_log::clock::wall_now() + now.load(Ordering::SeqCst);
        let log = old_table(folder.path(), false).await.with_clock(Arc::new(clock));
        let versions = log.versions().await.unwrap().unwrap();
        let mut snapshot = log.load_at(&versions, kept, Detail::Counts).await.unwrap();
        ahead.store(61_000_000, Ordering::SeqCst);
        log.checkpoint(7).await.unwrap();
        assert_eq!(log.refresh(&mut snapshot).await.unwrap(), kept < 8);
        assert_eq!((snapshot.version, snapshot.rows), (8, 8), "from version {kept}");
        assert!(!log.refresh(&mut snapshot).await.unwrap());
    }
}
