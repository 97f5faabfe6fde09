//! Random points: a window must be the same however it is made.

use proptest::prelude::*;

use super::*;

/// A point that owns its data.
#[derive(Clone, Debug)]
enum Given {
    Nothing,
    Number(f64),
    Histogram {
        bounds: Vec<f64>,
        counts: Vec<i64>,
        sum: f64,
    },
    Exponential {
        scale: i32,
        zeros: i64,
        offset: i32,
        positive: Vec<i64>,
        negative: Vec<i64>,
    },
}

impl Given {
    fn data(&self) -> PointData<'_> {
        match self {
            Given::Nothing => PointData::Nothing,
            Given::Number(value) => PointData::Number(*value),
            Given::Histogram { bounds, counts, sum } => PointData::Histogram(HistogramData {
                count: counts.iter().sum(),
                sum: Some(*sum),
                min: Some(0.25),
                max: Some(1e4),
                bounds,
                counts,
            }),
            Given::Exponential {
                scale,
                zeros,
                offset,
                positive,
                negative,
            } => PointData::Exponential(ExponentialHistogramData {
                count: zeros + positive.iter().sum::<i64>() + negative.iter().sum::<i64>(),
                sum: Some(1.0),
                min: Some(-5.0),
                max: Some(700.0),
                scale: *scale,
                zero_count: *zeros,
                positive: SketchBucketRun {
                    offset: *offset,
                    counts: positive,
                },
                negative: SketchBucketRun {
                    offset: -*offset,
                    counts: negative,
                },
                ..ExponentialHistogramData::default()
            }),
        }
    }
}

fn numbers() -> BoxedStrategy<Given> {
    prop_oneof![
        10 => (-1000.0..1000.0).prop_map(Given::Number),
        3 => (0..50_u32).prop_map(|value| Given::Number(f64::from(value))),
        1 => prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(1e300), Just(1e-300)].prop_map(Given::Number),
        1 => Just(Given::Nothing),
    ]
    .boxed()
}

fn histograms() -> BoxedStrategy<Given> {
    let bounds = prop_oneof![10 => Just(vec![-1.0, 1.0, 8.0]), 1 => Just(vec![1.0, 9.0, 10.0])];
    (bounds, proptest::collection::vec(0..40_i64, 4), 0.0..100.0)
        .prop_map(|(bounds, counts, sum)| Given::Histogram { bounds, counts, sum })
        .boxed()
}

fn exponentials() -> BoxedStrategy<Given> {
    let counts = || proptest::collection::vec(prop_oneof![Just(0), 0..20_i64], 0..5);
    let offset = prop_oneof![-5..5, -2000..2000];
    (-2..6, 0..3_i64, offset, counts(), counts())
        .prop_map(|(scale, zeros, offset, positive, negative)| Given::Exponential {
            scale,
            zeros,
            offset,
            positive,
            negative,
        })
        .boxed()
}

/// Accumulates the points, with occasional resets.
fn add_up(given: &mut [(i64, Given, bool)]) {
    let mut sums: Option<Given> = None;
    for (_, given, is_new) in given {
        let sum = sums.get_or_insert_with(|| given.clone());
        match (&mut *sum, &*given) {
            (_, Given::Nothing) => continue,
            (Given::Number(sum), Given::Number(value)) if !*is_new => *sum += value.abs(),
            (
                Given::Histogram { bounds, counts, sum },
                Given::Histogram {
                    bounds: same,
                    counts: more,
                    sum: plus,
                },
            ) if !*is_new && bounds == same => {
                counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
                *sum += plus;
            }
            (
                Given::Exponential {
                    zeros,
                    positive,
                    negative,
                    scale,
                    ..
                },
                Given::Exponential {
                    zeros: more,
                    positive: p,
                    negative: n,
                    scale: other,
                    ..
                },
            ) if !*is_new && scale == other => {
                *zeros += more;
                positive.iter_mut().zip(p).for_each(|(count, more)| *count += more);
                negative.iter_mut().zip(n).for_each(|(count, more)| *count += more);
            }
            (sum, given) => *sum = given.clone(),
        }
        *given = sum.clone();
    }
}

fn is_close(one: Option<f64>, other: Option<f64>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            one == other || one.is_nan() && other.is_nan() || (one - other).abs() <= 1e-9 * (1e5 + one.abs())
        }
        (one, other) => one.is_none() && other.is_none(),
    }
}

fn assert_same(one: &Row, other: &Row) {
    // The last digits of sums depend on the order of addition.
    for which in [0, 5] {
        assert!(is_close(one.numbers[which], other.numbers[which]), "{one:?}\n{other:?}");
    }
    let without_sums = |row: &Row| {
        let mut row = row.clone();
        (row.numbers[0], row.numbers[5]) = (None, None);
        row
    };
    assert_eq!(without_sums(one), without_sums(other));
}

/// The quantiles of a sketch are within the columns `min` and `max`.
fn assert_between_the_ends(row: &Row) {
    let [_, Some(min), Some(max), ..] = row.numbers else {
        return;
    };
    for part in [0.0, 0.01, 0.5, 0.99, 1.0] {
        if let Some(value) = row.quantile(part) {
            assert!(min <= value && value <= max, "{part}: {value}: {row:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Windows made step by step equal those made at once.
    #[test]
    fn coarse_windows_are_those_of_the_points(
        (kind, mut given) in prop_oneof![
            (Just(PointKind::Value), Just(numbers())),
            (Just(PointKind::Delta), Just(numbers())),
            (Just(PointKind::Counter), Just(numbers())),
            (Just(HISTOGRAM), Just(histograms())),
            (Just(PointKind::Histogram { is_cumulative: false }), Just(histograms())),
            (Just(EXPONENTIAL), Just(exponentials())),
            (Just(PointKind::Exponential { is_cumulative: false }), Just(exponentials())),
        ].prop_flat_map(|(kind, given)| {
            let step = prop_oneof![0..3_000_i64, 0..30_000_i64, 0..5_000_000_i64];
            (Just(kind), proptest::collection::vec((step, given, proptest::bool::weighted(0.1)), 1..80))
        }),
    ) {
        if matches!(kind, PointKind::Counter | HISTOGRAM | EXPONENTIAL) {
            add_up(&mut given);
        }
        let (mut time, mut start) = (BEGIN, BEGIN - SECOND);
        let mut points = Vec::new();
        for (step_ms, given, is_new) in &given {
            if *is_new {
                start = time;
            }
            time += step_ms * 1_000_000;
            points.push(RollupPoint { time, start: Some(start), data: given.data() });
        }
        let mut rows = windows_of(kind, &points);
        rows.iter().for_each(assert_between_the_ends);
        for resolution in &Resolution::ALL[1..] {
            rows = rolled(kind, *resolution, &rows);
            rows.iter().for_each(assert_between_the_ends);
            let direct = windows_from(kind, *resolution, i64::MIN, &points);
            prop_assert_eq!(rows.len(), direct.len());
            for (one, other) in rows.iter().zip(&direct) {
                assert_same(one, other);
            }
        }
    }
}
