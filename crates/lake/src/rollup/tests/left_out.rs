//! Resolutions that are left out of a day, because its windows would take more space than its points.

use std::collections::BTreeSet;

use super::expired::{expire_points, made};
use super::*;

const DAY: i64 = 24 * HOUR;

fn options(max_percent: u64, min_windows: u64) -> RollupOptions {
    RollupOptions {
        max_percent,
        min_windows,
        min_span: Duration::ZERO,
        late_every: Duration::ZERO,
        ..RollupOptions::default()
    }
}

type Windows = BTreeMap<(String, String, i64), String>;

/// The days that have windows, by resolution.
fn days(windows: &Windows) -> BTreeSet<(&str, i64)> {
    let keys = windows.keys();
    keys.map(|(resolution, _, start)| (&**resolution, start.div_euclid(DAY)))
        .collect()
}

/// Asserts that each resolution of a day has all of its windows or none, and that a query sees each window once. Returns how many
/// resolutions of days were left out.
async fn left_out(world: &World, expected: &Windows, of: &str) -> usize {
    let found = world.windows().await;
    let (present, all) = (days(&found), days(expected));
    for (key, window) in expected {
        if present.contains(&(&*key.0, key.2.div_euclid(DAY))) {
            assert_eq!(found.get(key), Some(window), "{of}: {key:?}");
        }
    }
    for key in found.keys() {
        assert!(expected.contains_key(key), "{of}: {key:?}");
    }
    let hours = |days: &BTreeSet<(&str, i64)>| days.iter().filter(|(resolution, _)| *resolution == "3600").count();
    assert_eq!(hours(&present), hours(&all), "{of}");
    // Rows of other files are not looked for in these.
    let table = world.table().await;
    let alone = table.files.values().filter(|file| !file.revises);
    let rows: u64 = alone.filter_map(|file| file.stats.rows).sum();
    assert!(
        rows <= found.len() as u64,
        "{of}: {rows} rows of {} windows",
        found.len()
    );
    all.difference(&present).count()
}

/// Runs what is due, with late rows and what these change.
async fn run(mut rollups: RollupBuilder, now: i64) -> RollupBuilder {
    let run = move || {
        for _ in Resolution::ALL {
            rollups.run(now, &|| false).unwrap();
        }
        rollups
    };
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// Also with late rows, restarts while they wait, quiet periods and merges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resolution_has_all_windows_of_a_day_or_none_and_coarser_ones_have_all_points() {
    let mut counts = BTreeSet::new();
    for seed in 0..seeds(5) {
        let of = format!("seed {seed}");
        let (max_percent, min_windows) = [(250, 1), (150, 40), (100, 200), (1, 1)][seed as usize % 4];
        let mut options = options(max_percent, min_windows);
        if seed > 3 {
            options.late_every = Duration::from_secs(3600);
        }
        let grown = grow(300 + seed, options.clone(), seed % 3 == 2).await;
        drop(grown.rollups);
        options.late_every = Duration::ZERO;
        let (world, now) = (grown.world, grown.clock + HOUR);
        drop(run(world.rollups_with(options.clone()).await, now).await);
        let expected = expected(&grown.sent);
        counts.insert(left_out(&world, &expected, &of).await);
        // What is kept from now on is made of the points.
        options.max_percent = 0;
        run(world.rollups_with(options).await, now).await;
        assert_eq!(left_out(&world, &expected, &of).await, 0, "{of}");
        assert_eq!(world.windows().await.len(), expected.len(), "{of}");
    }
    // All four resolutions of both days, if nothing fits.
    assert!(counts.contains(&8) && counts.len() > 2, "{counts:?}");
}

fn every(seconds: i64, begin: i64, count: i64) -> Vec<Sent> {
    let point = |number| Sent {
        series: 0,
        time: begin + number * seconds * S,
        value: number as f64,
        counts: [0; 4],
    };
    (0..count).map(point).collect()
}

/// As an import, or a gateway that was offline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn points_of_a_day_that_comes_later_than_the_days_after_it_are_in_its_windows() {
    let mut world = World::new().await;
    let mut sent = every(20, BEGIN, 100);
    world.send(&sent, BEGIN + HOUR).await;
    let rollups = run(world.rollups_with(options(1, 1)).await, BEGIN + 12 * HOUR).await;
    let earlier = every(20, BEGIN - 5 * DAY, 200);
    world.send(&earlier, BEGIN + HOUR).await;
    sent.extend(earlier);
    drop(run(rollups, BEGIN + 12 * HOUR).await);
    assert!(left_out(&world, &expected(&sent), "the earlier day").await > 3);
    // Those are found by the windows of an hour alone.
    let late = every(7, BEGIN - 5 * DAY + 3, 3);
    world.send(&late, BEGIN + HOUR).await;
    sent.extend(late);
    run(world.rollups_with(options(1, 1)).await, BEGIN + 12 * HOUR).await;
    assert!(left_out(&world, &expected(&sent), "late points of it").await > 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_that_outlive_their_points_are_kept_and_a_late_point_removes_none() {
    let mut world = World::new().await;
    let sent = every(20, BEGIN, 100);
    world.send(&sent, BEGIN + HOUR).await;
    let retained = RollupOptions {
        source_days: 30,
        days: [0, 60, 0, 31, 90],
        ..options(1, 1)
    };
    drop(run(world.rollups_with(retained).await, BEGIN + 12 * HOUR).await);
    assert_eq!(left_out(&world, &expected(&sent), "all").await, 0);
    let before = world.windows().await;
    expire_points(&mut world).await;
    // Points are kept for ever from now on.
    for begin in [BEGIN + HOUR - 100 * S, BEGIN + 2 * HOUR] {
        world.send(&every(10, begin, 3), BEGIN + 3 * HOUR).await;
        made(world.rollups_with(options(1, 1)).await).await;
        let after = world.windows().await;
        let is_other = |(resolution, _, start): &&(String, String, i64)| resolution != "3600" || *start != BEGIN;
        for key in before.keys().filter(is_other) {
            assert_eq!(after.get(key), before.get(key), "{key:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_which_the_points_are_to_expire_first_are_left_out() {
    let mut world = World::new().await;
    let sent = every(20, BEGIN, 100);
    world.send(&sent, BEGIN + HOUR).await;
    let retained = RollupOptions {
        source_days: 30,
        days: [7, 30, 31, 0, 0],
        ..options(1, 1)
    };
    run(world.rollups_with(retained).await, BEGIN + 12 * HOUR).await;
    let found = world.windows().await;
    let resolutions: BTreeSet<&str> = days(&found).into_iter().map(|(resolution, _)| resolution).collect();
    assert_eq!(resolutions.into_iter().collect::<Vec<_>>(), ["1200", "300", "3600"]);
}

/// When it was stopped, late points of other days were waiting.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_points_that_wait_at_a_restart_are_in_windows_although_others_are_made_again() {
    let mut world = World::new().await;
    let mut sent = every(20, BEGIN - 3 * DAY, 100);
    sent.extend(every(20, BEGIN, 100));
    world.send(&sent, BEGIN + HOUR).await;
    drop(run(world.rollups_with(options(1, 1)).await, BEGIN + 12 * HOUR).await);
    assert!(left_out(&world, &expected(&sent), "before").await > 3);
    for begin in [BEGIN + 7 * S, BEGIN - 3 * DAY + 7 * S, BEGIN - 9 * DAY] {
        let late = every(20, begin, 10);
        world.send(&late, BEGIN + HOUR).await;
        sent.extend(late);
    }
    let kept = RollupOptions {
        days: [9, 30, 9, 9, 9],
        source_days: 20,
        ..options(1, 1)
    };
    run(world.rollups_with(kept).await, BEGIN + 12 * HOUR).await;
    left_out(&world, &expected(&sent), "after").await;
    let found = world.windows().await;
    let minutes = days(&found)
        .into_iter()
        .filter(|(resolution, _)| *resolution == "60")
        .count();
    assert_eq!(minutes, 3);
}

/// The day of the restart has some windows that were left out, and more points.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_day_that_goes_on_after_a_restart_gets_the_windows_that_are_kept_from_then_on() {
    let mut world = World::new().await;
    let mut sent = every(20, BEGIN, 100);
    world.send(&sent, BEGIN + HOUR).await;
    let now = BEGIN + 2001 * S;
    drop(run(world.rollups_with(options(1, 1)).await, now).await);
    let more = every(20, BEGIN + 2000 * S, 100);
    world.send(&more, BEGIN + HOUR).await;
    sent.extend(more);
    run(world.rollups_with(options(0, 1)).await, BEGIN + 12 * HOUR).await;
    assert_eq!(left_out(&world, &expected(&sent), "after").await, 0);
}

/// The windows of 40 series after 100 minutes, whose files of a minute are merged now and then, as in a process that runs.
async fn lived(every_seconds: usize) -> Windows {
    let mut world = World::new().await;
    let options = RollupOptions {
        min_windows: 1000,
        ..RollupOptions::default()
    };
    let mut rollups = world.rollups_with(options.clone()).await;
    let mut dice = Dice(7);
    let mut values: Vec<f64> = (0..SERIES).map(|_| dice.below(100_000) as f64 / 100.0).collect();
    for minute in 0..100 {
        let mut rows = Vec::new();
        for second in (0..60).step_by(every_seconds) {
            for (series, value) in values.iter_mut().enumerate() {
                *value = super::sizes::measured(&mut dice, *value);
                let row = serde_json::json!({
                    "metric_name": "load", "unit": "1", "metric_type": "gauge", "attr_host": format!("node {series}"),
                    "time_unix_nano": BEGIN + (minute * 60 + second as i64) * S, "value": *value,
                });
                rows.push(row.to_string().into_bytes());
            }
        }
        let arrival = BEGIN + (minute + 1) * 60 * S;
        world.send_rows(&rows, arrival).await;
        let mut running = rollups;
        let run = move || {
            running.run(arrival, &|| false).unwrap();
            running
        };
        rollups = tokio::task::spawn_blocking(run).await.unwrap();
        if minute % 32 == 31 {
            drop(rollups);
            compact(&world).await;
            rollups = world.rollups_with(options.clone()).await;
        }
    }
    world.windows().await
}

const SERIES: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_a_sample_a_second_are_kept_while_a_day_goes_on_and_those_of_few_are_not() {
    let resolutions = |found: &Windows| -> Vec<String> {
        let all: BTreeSet<String> = days(found).into_iter().map(|(of, _)| of.to_owned()).collect();
        all.into_iter().collect()
    };
    let found = lived(1).await;
    assert_eq!(resolutions(&found), ["10", "1200", "300", "3600", "60"]);
    // Those of the last half minute wait for late points.
    assert_eq!(found.keys().filter(|key| key.0 == "10").count(), SERIES * (100 * 6 - 4));
    let found = resolutions(&lived(12).await);
    assert!(
        !found.contains(&"10".to_owned()) && found.contains(&"300".to_owned()),
        "{found:?}"
    );
}
