//! Sketches and rollups: the cost of adding a value, a point or an encoded sketch.

use std::hint::black_box;

use thalweg_lake::rollup::Resolution;
use thalweg_lake::rollup::windows::{HistogramData, PointData, PointKind, RollupPoint, RollupWindowBuilder};
use thalweg_sketch::Sketch;

use crate::harness::Session;

const BEGIN_NANOS: i64 = 1_780_000_000_000_000_000;
const NANOS_PER_S: i64 = 1_000_000_000;
/// Points of a series, one second apart.
const POINTS_PER_SERIES: u64 = 3600;
/// Each contains the values of one window of a series with a value every 10 ms.
const SKETCHES: usize = 1000;
const VALUES_PER_SKETCH: usize = 1000;
/// The default bounds of SDKs for durations in milliseconds.
const BOUNDS: [f64; 15] = [
    0.0, 5.0, 10.0, 25.0, 50.0, 75.0, 100.0, 250.0, 500.0, 750.0, 1000.0, 2500.0, 5000.0, 7500.0, 10_000.0,
];

pub fn run(session: &Session) {
    let values = durations(1 << 16);
    let count = session.records() * 10;
    let mut sketch = Sketch::default();
    session.measure("sketch_add", || {
        sketch.clear();
        for value in values.iter().cycle().take(usize::try_from(count).unwrap()) {
            sketch.add(*value);
        }
        black_box(&sketch);
        (count, 8 * count, ())
    });
    let sketches = encoded(&values);
    let rounds = session.records() / SKETCHES as u64;
    let bytes: usize = sketches.iter().map(Vec::len).sum();
    let merges = rounds * SKETCHES as u64;
    session.measure("sketch_merge", || {
        let mut whole = Sketch::default();
        for sketch in (0..rounds).flat_map(|_| &sketches) {
            whole.merge_bytes(sketch).unwrap();
        }
        black_box(&whole);
        (merges, rounds * bytes as u64, ())
    });
    let mut one = Sketch::default();
    session.measure("sketch_quantile", || {
        for sketch in (0..rounds).flat_map(|_| &sketches) {
            one.clear();
            one.merge_bytes(sketch).unwrap();
            black_box(one.quantile(0.99));
        }
        (merges, rounds * bytes as u64, ())
    });
    rollups(session, &values);
}

fn rollups(session: &Session, values: &[f64]) {
    let points = session.records();
    let mut windows = RollupWindowBuilder::new(Resolution::TenSeconds);
    for (name, kind) in [
        ("rollup_values", PointKind::Value),
        ("rollup_counters", PointKind::Counter),
    ] {
        let mut total = 0.0;
        session.measure(name, || {
            let made = roll(&mut windows, kind, points, |number| {
                total += values[number % values.len()];
                PointData::Number(if kind == PointKind::Value {
                    values[number % values.len()]
                } else {
                    total
                })
            });
            (points, 8 * points, assert!(made >= points / 10))
        });
    }
    let mut counts = [0; BOUNDS.len() + 1];
    let mut all = 0;
    let kind = PointKind::Histogram { is_cumulative: true };
    session.measure("rollup_histograms", || {
        let mut made = 0;
        for series in 0..points.div_ceil(POINTS_PER_SERIES) {
            windows.begin(kind, i64::MIN);
            for number in 0..POINTS_PER_SERIES.min(points - series * POINTS_PER_SERIES) {
                // Only five buckets have counts.
                for count in &mut counts[3..8] {
                    *count += 10 + i64::try_from(number).unwrap() % 7;
                    all += 10 + i64::try_from(number).unwrap() % 7;
                }
                let data = PointData::Histogram(HistogramData {
                    count: all,
                    sum: Some(1.0),
                    bounds: &BOUNDS,
                    counts: &counts,
                    ..HistogramData::default()
                });
                made += u64::from(windows.push(&at(number, data)).unwrap().is_some());
            }
            made += u64::from(windows.finish().is_some());
        }
        (points, 8 * 33 * points, assert!(made >= points / 10))
    });
}

fn roll(
    windows: &mut RollupWindowBuilder,
    kind: PointKind,
    points: u64,
    mut data: impl FnMut(usize) -> PointData<'static>,
) -> u64 {
    let mut made = 0;
    for series in 0..points.div_ceil(POINTS_PER_SERIES) {
        windows.begin(kind, i64::MIN);
        for number in 0..POINTS_PER_SERIES.min(points - series * POINTS_PER_SERIES) {
            let point = at(number, data(usize::try_from(number).unwrap()));
            made += u64::from(windows.push(&point).unwrap().is_some());
        }
        made += u64::from(windows.finish().is_some());
    }
    made
}

fn at(second: u64, data: PointData<'_>) -> RollupPoint<'_> {
    RollupPoint {
        time: BEGIN_NANOS + i64::try_from(second).unwrap() * NANOS_PER_S,
        start: None,
        data,
    }
}

/// Values distributed like durations, over some 300 bins.
fn durations(count: usize) -> Vec<f64> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1_u64 << 53) as f64
    };
    let mut normal = || (0..12).map(|_| random()).sum::<f64>() - 6.0;
    (0..count).map(|_| 50.0 * normal().exp()).collect()
}

fn encoded(values: &[f64]) -> Vec<Vec<u8>> {
    let mut sketches = Vec::new();
    let mut values = values.iter().cycle();
    for _ in 0..SKETCHES {
        let (mut sketch, mut bytes) = (Sketch::default(), Vec::new());
        values
            .by_ref()
            .take(VALUES_PER_SKETCH)
            .for_each(|value| sketch.add(*value));
        sketch.encode(&mut bytes);
        sketches.push(bytes);
    }
    sketches
}
