use std::sync::Arc;

use thalweg_columns::tables::LOGS;
use thalweg_delta::store::flaky::{Faults, Flaky, left_after};
use thalweg_delta::store::{LakeStorage, ScratchOptions};
use thalweg_delta::{creation, new_metadata};

use super::*;

/// Wherever a call is dropped, the history is complete and has the old or the new offsets, and the next call sets them.
#[tokio::test]
async fn positions_whose_setting_is_dropped_at_any_await_are_old_or_new() {
    let scratch = tempfile::tempdir().unwrap();
    let positions = [
        ("thalweg/ab/lake.logs/0".to_owned(), 70),
        ("thalweg/ab/lake.logs/1".to_owned(), 3),
    ];
    let mut left = 0;
    for waits in 0.. {
        let store = Flaky::new(7);
        let options = ScratchOptions {
            folder: scratch.path().join("scratch"),
            spool_bytes: 1 << 20,
            free_min: 0,
            bytes_per_second: 0,
        };
        let site = LakeStorage::remote("memory://lake", Arc::new(store.clone()), "lake".into(), &options);
        site.claim().await.unwrap();
        let log = site.log("logs").unwrap();
        let metadata = new_metadata(&(LOGS.columns)(), LOGS.partitions, &CONFIGURATION, 0);
        log.commit(0, &creation(metadata)).await.unwrap();
        let before = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
        store.set(Faults::Slow);
        let mut snapshot = before.clone();
        let done = left_after(waits, set_positions(&log, &mut snapshot, &positions)).await;
        let now = log.load(SnapshotDetail::Counts).await.unwrap().unwrap();
        let is_set = |snapshot: &Snapshot| {
            positions
                .iter()
                .all(|(name, at)| snapshot.transactions.get(name) == Some(&(*at as i64)))
        };
        let when = format!("left after {waits} waits");
        assert_eq!(now.version - before.version, i64::from(is_set(&now)), "{when}");
        let mut again = before.clone();
        set_positions(&log, &mut again, &positions).await.unwrap();
        assert!(is_set(&again), "{when}");
        assert_eq!(again.version, before.version + 1, "{when}");
        if done.is_some() {
            break;
        }
        left += 1;
    }
    assert!(left > 3, "it was never left");
}
