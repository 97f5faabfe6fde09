use super::*;
use crate::rollup::windows::exponential_buckets::ExponentialBuckets;

fn exponential(scale: i32, zero_count: i64, offset: i32, counts: &[i64]) -> ExponentialHistogramData<'_> {
    ExponentialHistogramData {
        count: zero_count + counts.iter().sum::<i64>(),
        scale,
        zero_count,
        positive: SketchBucketRun { offset, counts },
        ..ExponentialHistogramData::default()
    }
}

#[test]
fn a_cumulative_histogram_grows_by_its_differences() {
    let bounds = [1.0, 4.0];
    let counts = [[5, 5, 5], [5, 7, 5], [6, 7, 6], [1, 0, 0]];
    let points: Vec<_> = (0..)
        .zip(&counts)
        .map(|(at, counts)| point(at * 3, PointData::Histogram(histogram(&bounds, counts))))
        .collect();
    let rows = windows_of(HISTOGRAM, &points);
    assert_eq!(rows.len(), 1);
    assert_eq!((rows[0].count, rows[0].resets), (5, Some(1)));
    assert_eq!(rows[0].numbers[0], Some(10.0));
    assert_eq!(rows[0].buckets, Some((bounds.to_vec(), vec![2, 2, 1])));
    assert_eq!(rows[0].values(), Some(5.0));
    assert_eq!(rows[0].times, [Some(BEGIN), Some(BEGIN + 9 * SECOND)]);
    // The same count, but a bucket has decreased.
    let points = [[2, 0, 0], [0, 2, 0]];
    let points = [0, 1].map(|at| point(at as i64, PointData::Histogram(histogram(&bounds, &points[at]))));
    let rows = windows_of(HISTOGRAM, &points);
    assert_eq!((rows[0].count, rows[0].resets), (2, Some(1)));
    // Without buckets, one bucket has everything.
    let bare = |count| HistogramData {
        count,
        min: Some(3.0),
        max: Some(3.0),
        ..HistogramData::default()
    };
    let rows = windows_of(
        HISTOGRAM,
        &[
            point(0, PointData::Histogram(bare(4))),
            point(1, PointData::Histogram(bare(6))),
        ],
    );
    assert_eq!((rows[0].count, rows[0].values()), (2, Some(2.0)));
    assert_eq!(rows[0].buckets, Some((vec![], vec![2])));
    assert_eq!(
        rows[0].numbers, [None; 6],
        "the least and the greatest are those of all time"
    );
}

#[test]
fn other_bounds_leave_the_sketch_alone() {
    let (one, other) = ([1.0, 4.0], [1.0, 5.0]);
    let delta = PointKind::Histogram { is_cumulative: false };
    let counts = [1, 2, 3];
    let points = [
        point(0, PointData::Histogram(histogram(&one, &counts))),
        point(
            1,
            PointData::Histogram(HistogramData {
                min: Some(0.5),
                max: Some(9.0),
                ..histogram(&other, &counts)
            }),
        ),
        point(11, PointData::Histogram(histogram(&other, &counts))),
    ];
    let rows = windows_of(delta, &points);
    assert_eq!(
        (rows[0].count, rows[0].buckets.clone(), rows[0].values()),
        (12, None, Some(12.0))
    );
    assert_eq!(rows[0].numbers[..3], [Some(24.0), Some(0.5), Some(9.0)]);
    assert_eq!(rows[1].buckets, Some((other.to_vec(), counts.to_vec())));
    let minute = rolled(delta, Resolution::Minute, &rows);
    assert_eq!(
        (minute[0].count, minute[0].buckets.clone(), minute[0].values()),
        (18, None, Some(18.0))
    );
    // It is unknown which buckets have increased, unless the point starts anew.
    let grown = [2, 3, 4];
    let bounds_change = |start: i64| {
        let points = [
            since(-100, point(0, PointData::Histogram(histogram(&one, &counts)))),
            since(start, point(1, PointData::Histogram(histogram(&other, &grown)))),
        ];
        windows_of(HISTOGRAM, &points).remove(0)
    };
    let grown = bounds_change(-100);
    assert_eq!(
        (grown.count, grown.resets, grown.buckets, grown.sketch),
        (3, Some(0), None, None)
    );
    let reset = bounds_change(1);
    assert_eq!((reset.count, reset.resets, reset.values()), (9, Some(1), Some(9.0)));
}

#[test]
fn exponential_buckets_meet_at_the_coarser_scale() {
    let points = [
        point(0, PointData::Exponential(exponential(1, 1, 0, &[1, 1, 1]))),
        // At scale 0 these were buckets 0 and 1 with 2 and 1.
        point(3, PointData::Exponential(exponential(0, 3, 0, &[2, 4]))),
        point(12, PointData::Exponential(exponential(0, 3, -1, &[5, 2, 4]))),
    ];
    let rows = windows_of(EXPONENTIAL, &points);
    assert_eq!((rows[0].count, rows[0].resets), (5, Some(0)));
    assert_eq!(rows[0].buckets, Some((vec![2.0, 4.0], vec![2, 3, 0])));
    assert_eq!(rows[1].buckets, Some((vec![0.5, 1.0], vec![0, 5, 0])));
    let minute = rolled(EXPONENTIAL, Resolution::Minute, &rows);
    assert_eq!(minute[0].buckets, Some((vec![0.5, 1.0, 2.0, 4.0], vec![2, 5, 0, 3, 0])));
    assert_eq!(minute[0].values(), Some(10.0));
    // A bucket has decreased although the total has increased.
    let points = [
        point(0, PointData::Exponential(exponential(0, 0, 0, &[3]))),
        point(1, PointData::Exponential(exponential(0, 0, 0, &[2, 2]))),
    ];
    let rows = windows_of(EXPONENTIAL, &points);
    assert_eq!((rows[0].count, rows[0].resets), (4, Some(1)));
    // The wider zero threshold includes values that were counted in buckets before.
    let wide = ExponentialHistogramData {
        zero_threshold: 2.0,
        ..exponential(0, 4, 1, &[2])
    };
    let points = [
        point(0, PointData::Exponential(exponential(0, 0, 0, &[3, 1]))),
        point(1, PointData::Exponential(wide)),
    ];
    let rows = windows_of(EXPONENTIAL, &points);
    assert_eq!((rows[0].count, rows[0].resets), (2, Some(0)));
    assert_eq!(rows[0].buckets, Some((vec![2.0, 4.0], vec![1, 1, 0])));
}

#[test]
fn buckets_on_both_sides_of_zero_come_back_from_a_table() {
    let kind = PointKind::Exponential { is_cumulative: false };
    for scale in [-10, -3, 0, 5, 20] {
        for (positive, negative) in [(Some(0), None), (None, Some(0)), (Some(0), Some(-1)), (None, None)] {
            let run = |offset: Option<i32>| {
                offset.map_or(SketchBucketRun::default(), |offset| SketchBucketRun {
                    offset,
                    counts: &[1, 0, 2][..if scale == -10 { 1 } else { 3 }],
                })
            };
            let given = ExponentialHistogramData {
                positive: run(positive),
                negative: run(negative),
                ..exponential(scale, 6, 0, &[])
            };
            let rows = windows_of(
                kind,
                &[
                    point(0, PointData::Exponential(given)),
                    point(10, PointData::Exponential(given)),
                ],
            );
            let (bounds, counts) = rows[0].buckets.clone().unwrap();
            assert_eq!(counts.len(), bounds.len() + 1);
            assert!(bounds.is_sorted_by(|one, other| one < other), "{bounds:?}");
            let mut expected = ExponentialBuckets::default();
            expected.set(&given);
            if positive.is_some() || negative.is_some() {
                assert_eq!(
                    ExponentialBuckets::of_columns(&bounds, &counts),
                    Some(expected),
                    "{given:?}"
                );
            }
            let doubled: Vec<i64> = counts.iter().map(|count| 2 * count).collect();
            assert_eq!(
                rolled(kind, Resolution::Hour, &rows)[0].buckets,
                Some((bounds, doubled)),
                "{given:?}"
            );
        }
    }
}

#[test]
fn far_and_odd_buckets_are_bounded() {
    let kind = PointKind::Exponential { is_cumulative: false };
    let rows = |given: &[ExponentialHistogramData<'_>]| {
        let points: Vec<_> = given
            .iter()
            .map(|given| point(0, PointData::Exponential(*given)))
            .collect();
        windows_of(kind, &points).remove(0)
    };
    let far = rows(&[
        exponential(20, 0, -1_000_000_000, &[1, 2]),
        exponential(20, 0, 1_000_000_000, &[4]),
    ]);
    let (bounds, counts) = far.buckets.unwrap();
    assert!(
        bounds.len() <= BUCKETS_MAX + 1 && bounds.len() > BUCKETS_MAX / 2,
        "{}",
        bounds.len()
    );
    assert_eq!((counts[1], counts.iter().sum::<i64>()), (3, 7));
    for offset in [i32::MIN, -2_000_000_000, 2_000_000_000, i32::MAX] {
        for scale in [i32::MIN, -11, -10, 0, 20, i32::MAX] {
            let row = rows(&[exponential(scale, 0, offset, &[1, 1]), exponential(scale, 0, 0, &[1])]);
            assert_eq!((row.count, row.values()), (3, Some(3.0)), "{scale} {offset}");
            match row.buckets {
                Some((bounds, counts)) => {
                    assert_eq!(counts.iter().sum::<i64>(), 3, "{scale} {offset} {bounds:?} {counts:?}");
                    assert!(bounds.iter().all(|bound| bound.is_finite()));
                }
                None => assert!(scale < -10, "{scale} {offset}"),
            }
        }
    }
}
