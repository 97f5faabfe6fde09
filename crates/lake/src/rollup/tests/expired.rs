//! Late rows of windows whose points have expired.

use super::*;
use crate::commit::FileReplacement;

fn sent(second: i64, value: f64) -> Sent {
    let (time, counts) = (BEGIN + second * S, [0; 4]);
    Sent {
        series: 0,
        time,
        value,
        counts,
    }
}

/// Removes files as the retention does.
fn removed(paths: Vec<Arc<str>>) -> FileReplacement {
    FileReplacement {
        operation: "DELETE",
        kind: "expire",
        removed: paths,
        added: Vec::new(),
        changes_data: true,
    }
}

/// Makes all windows.
pub(super) async fn made(mut rollups: RollupBuilder) -> RollupBuilder {
    let run = move || {
        for _ in Resolution::ALL {
            rollups.run(BEGIN + 12 * HOUR, &|| false).unwrap();
        }
        rollups
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// Points of an hour, and their windows.
async fn an_hour() -> (World, RollupBuilder) {
    let mut world = World::new().await;
    let points: Vec<Sent> = (0..360).map(|number| sent(number * 10, number as f64)).collect();
    world.send(&points, BEGIN + HOUR).await;
    let rollups = made(world.rollups(1 << 20).await).await;
    (world, rollups)
}

/// One late row in a window, and one that has a window of its own.
async fn late(world: &mut World) {
    let seconds = [1795, 3605];
    world
        .send(&seconds.map(|second| sent(second, 5000.0)), BEGIN + 2 * HOUR)
        .await;
}

fn beginning((_, _, start): &(String, String, i64)) -> i64 {
    (start - BEGIN) / S
}

/// Removes all points.
pub(super) async fn expire_points(world: &mut World) {
    let files = world.table_called("metrics").await.files.into_keys().collect();
    let done = world.writer.replace(removed(files));
    assert!(tokio::task::spawn_blocking(move || done.recv()).await.unwrap().unwrap());
    world.rows = 0;
}

/// Removes the windows of 10 s.
async fn expire_finest(world: &World, mut rollups: RollupBuilder) -> RollupBuilder {
    let files = world.table().await.files;
    let files = files.values().filter(|file| file.partition[0].as_deref() == Some("10"));
    let expired = removed(files.map(|file| file.path.clone()).collect());
    let replaced = move || {
        assert_eq!(rollups.replace(&expired), Some(true));
        rollups
    };
    tokio::task::spawn_blocking(replaced).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_rows_do_not_replace_windows_whose_points_have_expired() {
    let (mut world, rollups) = an_hour().await;
    let before = world.windows().await;
    expire_points(&mut world).await;
    late(&mut world).await;
    made(rollups).await;
    let after = world.windows().await;
    for (key, window) in &before {
        assert_eq!(after.get(key), Some(window), "{key:?}");
    }
    let new = after.keys().filter(|key| !before.contains_key(*key));
    assert_eq!(
        new.map(beginning).collect::<Vec<_>>(),
        [3600; 5],
        "the row after the hour"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_rows_do_not_replace_windows_whose_points_and_finer_windows_have_expired() {
    let (mut world, rollups) = an_hour().await;
    let before = world.windows().await;
    expire_points(&mut world).await;
    let rollups = expire_finest(&world, rollups).await;
    late(&mut world).await;
    made(rollups).await;
    let after = world.windows().await;
    for (key, window) in before.iter().filter(|(key, _)| key.0 != "10") {
        assert_eq!(after.get(key), Some(window), "{key:?}");
    }
    let new = after.keys().filter(|key| !before.contains_key(*key));
    assert_eq!(new.map(beginning).collect::<Vec<_>>(), [3600; 4]);
    assert!(!after.keys().any(|key| key.0 == "10"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_rows_are_in_windows_whose_finer_windows_have_expired_if_the_points_are_there() {
    let (mut world, rollups) = an_hour().await;
    let rollups = expire_finest(&world, rollups).await;
    late(&mut world).await;
    made(rollups).await;
    let mut all: Vec<Sent> = (0..360).map(|number| sent(number * 10, number as f64)).collect();
    all.extend([1795, 3605].map(|second| sent(second, 5000.0)));
    let mut expected = expected(&all);
    expected.retain(|key, _| key.0 != "10");
    assert_eq!(world.windows().await, expected);
}
