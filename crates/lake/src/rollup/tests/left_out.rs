//! Resolutions that are left out of a day, because their windows have few points.

use std::collections::BTreeSet;

use super::*;

const DAY: i64 = 24 * HOUR;

fn options(max_percent: u64, min_windows: u64) -> RollupOptions {
    RollupOptions {
        max_percent,
        min_windows,
        late_every: Duration::ZERO,
        ..RollupOptions::default()
    }
}

type Windows = BTreeMap<(String, String, i64), String>;

/// The days that have windows, by resolution.
fn days(windows: &Windows) -> BTreeSet<(&str, i64)> {
    windows
        .keys()
        .map(|(resolution, _, start)| (&**resolution, start.div_euclid(DAY)))
        .collect()
}

/// Asserts that each resolution of a day has all of its windows or none. Returns how many of them were left out.
fn left_out(found: &Windows, expected: &Windows, seed: u64) -> usize {
    let (present, all) = (days(found), days(expected));
    for (key, window) in expected {
        if present.contains(&(&*key.0, key.2.div_euclid(DAY))) {
            assert_eq!(found.get(key), Some(window), "seed {seed}: {key:?}");
        }
    }
    for key in found.keys() {
        assert!(expected.contains_key(key), "seed {seed}: {key:?}");
    }
    let hours = |days: &BTreeSet<(&str, i64)>| days.iter().filter(|(resolution, _)| *resolution == "3600").count();
    assert_eq!(hours(&present), hours(&all), "seed {seed}");
    all.difference(&present).count()
}

/// Also with late rows, restarts, quiet periods and merges.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_resolution_has_all_windows_of_a_day_or_none_and_coarser_ones_have_all_points() {
    let mut counts = BTreeSet::new();
    for seed in 0..8 {
        let (max_percent, min_windows) = [(250, 1), (150, 40), (100, 200), (1, 1)][seed as usize % 4];
        let mut grown = grow(300 + seed, options(max_percent, min_windows), seed % 3 == 2).await;
        let expected = expected(&grown.sent);
        counts.insert(left_out(&grown.world.windows().await, &expected, seed));
        // What is kept from now on is made of the points.
        drop(grown.rollups);
        grown.rollups = grown.world.rollups_with(options(0, 1)).await;
        let run = move || {
            for _ in Resolution::ALL {
                grown.rollups.run(grown.clock + HOUR, &|| false).unwrap();
            }
        };
        tokio::task::spawn_blocking(run).await.unwrap();
        let found = grown.world.windows().await;
        assert_eq!(left_out(&found, &expected, seed), 0, "seed {seed}");
        assert_eq!(found.len(), expected.len(), "seed {seed}");
    }
    // All four resolutions of both days, if nothing fits.
    assert!(counts.contains(&8) && counts.len() > 2, "{counts:?}");
}
