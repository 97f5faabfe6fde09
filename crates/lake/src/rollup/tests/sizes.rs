//! How much space the windows of an hour take beside the points that they are made of.

use parquet::file::reader::{FileReader as _, SerializedFileReader};

use super::*;

const HOUR_OF_POINTS: i64 = BEGIN + HOUR;

/// Points of an hour: the value of each series at each step.
struct Points {
    series: usize,
    every_seconds: i64,
    value: fn(&mut Dice, f64) -> f64,
}

/// A measured value with two decimals that moves a little.
pub(super) fn measured(dice: &mut Dice, before: f64) -> f64 {
    let step = (dice.below(2001) - 1000) as f64 / 1000.0 * 0.003 * before.max(1.0);
    ((before + step) * 100.0).round() / 100.0
}
const MEASURED: fn(&mut Dice, f64) -> f64 = measured;
/// A whole number that is any of a few.
const COUNTED: fn(&mut Dice, f64) -> f64 = |dice, _| dice.below(100) as f64;

/// Compressed bytes without footers, also by column, and the number of rows.
#[derive(Debug, Default)]
struct Sizes {
    rows: i64,
    bytes: i64,
    columns: BTreeMap<String, i64>,
}

impl Sizes {
    async fn of(world: &World, table: &str, resolution: Option<&str>) -> Sizes {
        let mut sizes = Sizes::default();
        for file in world.table_called(table).await.files.values() {
            if resolution.is_some_and(|wanted| file.partition[0].as_deref() != Some(wanted)) {
                continue;
            }
            let path = world.folder.path().join(table).join(&*file.path);
            let reader = SerializedFileReader::new(std::fs::File::open(path).unwrap()).unwrap();
            for group in reader.metadata().row_groups() {
                sizes.rows += group.num_rows();
                for column in group.columns() {
                    let name = column.column_path().parts()[0].clone();
                    sizes.bytes += column.compressed_size();
                    *sizes.columns.entry(name).or_default() += column.compressed_size();
                }
            }
        }
        sizes
    }

    fn column(&self, name: &str) -> i64 {
        self.columns.get(name).copied().unwrap_or_default()
    }
}

/// The points, and the windows of each resolution.
async fn sizes_of(points: &Points, options: RollupOptions) -> (Sizes, Vec<Sizes>) {
    let mut world = World::new().await;
    let mut dice = Dice(7);
    let mut values: Vec<f64> = (0..points.series).map(|_| dice.below(100_000) as f64 / 100.0).collect();
    let mut rows = Vec::new();
    for second in (0..3600).step_by(points.every_seconds as usize) {
        let time = HOUR_OF_POINTS + second * S;
        for (series, value) in values.iter_mut().enumerate() {
            *value = (points.value)(&mut dice, *value);
            let row = serde_json::json!({
                "metric_name": "load", "unit": "1", "metric_type": "gauge",
                "attr_host": format!("node {series}"), "time_unix_nano": time, "value": *value,
            });
            rows.push(row.to_string().into_bytes());
        }
        if rows.len() >= 60_000 {
            world.send_rows(&std::mem::take(&mut rows), time).await;
        }
    }
    if !rows.is_empty() {
        world.send_rows(&rows, HOUR_OF_POINTS + HOUR).await;
    }
    let mut rollups = world.rollups_with(options).await;
    let run = move || {
        for _ in Resolution::ALL {
            rollups.run(HOUR_OF_POINTS + 3 * HOUR, &|| false).unwrap();
        }
    };
    tokio::task::spawn_blocking(run).await.unwrap();
    let mut windows = Vec::new();
    for resolution in Resolution::ALL {
        windows.push(Sizes::of(&world, "metrics_rollup", Some(&resolution.seconds().to_string())).await);
    }
    (Sizes::of(&world, "metrics", None).await, windows)
}

/// The columns of a window that repeat the value of its only point.
const VALUES: [&str; 5] = ["sum", "min", "max", "first", "last"];

/// Shown with `--nocapture`.
#[allow(clippy::print_stdout, reason = "the sizes are what one wants to see")]
fn print(name: &str, points: &Sizes, windows: &[Sizes]) {
    println!("{name}: {} points, {} bytes", points.rows, points.bytes);
    for of in windows {
        let mut columns: Vec<(i64, &String)> = of.columns.iter().map(|(name, bytes)| (*bytes, name)).collect();
        columns.sort_by_key(|(bytes, _)| -bytes);
        let columns: Vec<String> = columns
            .iter()
            .take(8)
            .map(|(bytes, name)| format!("{name} {bytes}"))
            .collect();
        let times = of.bytes as f64 / points.bytes as f64;
        println!(
            "  {} windows, {} bytes ({times:.2} times the points): {}",
            of.rows,
            of.bytes,
            columns.join(", ")
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_many_measured_points_take_less_space_than_these() {
    let points = Points {
        series: 50,
        every_seconds: 1,
        value: MEASURED,
    };
    let (points, windows) = sizes_of(&points, RollupOptions::default()).await;
    print("measured", &points, &windows);
    assert_eq!((points.rows, windows[0].rows), (50 * 3600, 50 * 360));
    let all: i64 = windows.iter().map(|of| of.bytes).sum();
    assert!(all < points.bytes, "{all} bytes of windows, {} of points", points.bytes);
    for pair in windows.windows(2) {
        assert!(pair[1].bytes < pair[0].bytes, "{pair:?}");
    }
}

/// Where each window has one point, five columns have its value, and its sketch has it once more. Every column of a
/// Parquet file is decoded without the others, so five columns of values take five times what one takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_of_one_point_take_five_columns_of_values_and_a_little_more() {
    let all_kept = RollupOptions {
        max_percent: 0,
        ..RollupOptions::default()
    };
    for (name, value) in [("measured", MEASURED), ("counted", COUNTED)] {
        for (every_seconds, levels_of_one) in [(10, 1), (60, 2)] {
            let points = Points {
                series: 400,
                every_seconds,
                value,
            };
            let (points, windows) = sizes_of(&points, all_kept.clone()).await;
            print(&format!("{name}, every {every_seconds} s"), &points, &windows);
            for of in &windows[..levels_of_one] {
                assert_eq!(of.rows, points.rows);
                let (sums, sketches) = (of.column("sum"), of.column("sketch"));
                assert!(
                    sketches < sums * 8 / 5,
                    "{name}: {sketches} bytes of sketches, {sums} of sums"
                );
                for column in VALUES {
                    let difference = (of.column(column) - sums).abs();
                    assert!(
                        difference * 50 < sums,
                        "{name}: {column} {}, sums {sums}",
                        of.column(column)
                    );
                }
                let others = of.bytes - 5 * sums - sketches;
                assert!(others * 10 < of.bytes, "{name}: {others} bytes of {}", of.bytes);
                assert!(of.bytes < 6 * points.bytes, "{name}: {} of {}", of.bytes, points.bytes);
            }
        }
    }
}

/// However far apart the points are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_take_less_space_than_their_points() {
    for every_seconds in [2, 5, 12, 30] {
        let points = Points {
            series: 20 * every_seconds as usize,
            every_seconds,
            value: MEASURED,
        };
        let options = RollupOptions {
            min_windows: 100,
            min_span: Duration::ZERO,
            ..RollupOptions::default()
        };
        let (points, windows) = sizes_of(&points, options).await;
        print(&format!("every {every_seconds} s"), &points, &windows);
        let present: Vec<bool> = windows.iter().map(|of| of.rows > 0).collect();
        let all: i64 = windows.iter().map(|of| of.bytes).sum();
        assert!(
            all < points.bytes,
            "every {every_seconds} s: {all} bytes of windows, {} of points",
            points.bytes
        );
        assert!(
            present.is_sorted() && present[3..] == [true; 2],
            "every {every_seconds} s: {present:?}"
        );
        assert!(!present[0], "every {every_seconds} s");
    }
}
