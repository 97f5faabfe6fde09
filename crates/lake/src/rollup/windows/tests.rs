mod histograms;
mod random;

use super::*;
use thalweg_sketch::Sketch;

const SECOND: i64 = 1_000_000_000;
/// 2031-05-06T07:00:00Z
const BEGIN: i64 = 1_935_817_200 * SECOND;

/// An owned copy of a window.
#[derive(Clone, Debug, PartialEq)]
struct Row {
    start: i64,
    count: i64,
    numbers: [Option<f64>; 6],
    times: [Option<i64>; 2],
    resets: Option<i64>,
    buckets: Option<(Vec<f64>, Vec<i64>)>,
    sketch: Option<Vec<u8>>,
}

impl Row {
    fn of(window: &RollupWindow<'_>) -> Row {
        let RollupWindow {
            sum,
            min,
            max,
            first,
            last,
            increase,
            ..
        } = *window;
        let buckets = window.explicit_bounds.zip(window.bucket_counts);
        Row {
            start: window.start,
            count: window.count,
            numbers: [sum, min, max, first, last, increase],
            times: [window.first_time, window.last_time],
            resets: window.resets,
            buckets: buckets.map(|(bounds, counts)| (bounds.to_vec(), counts.to_vec())),
            sketch: window.sketch.map(<[u8]>::to_vec),
        }
    }

    fn window(&self) -> RollupWindow<'_> {
        let [sum, min, max, first, last, increase] = self.numbers;
        let [first_time, last_time] = self.times;
        RollupWindow {
            start: self.start,
            count: self.count,
            sum,
            min,
            max,
            first,
            last,
            increase,
            first_time,
            last_time,
            resets: self.resets,
            explicit_bounds: self.buckets.as_ref().map(|(bounds, _)| &bounds[..]),
            bucket_counts: self.buckets.as_ref().map(|(_, counts)| &counts[..]),
            sketch: self.sketch.as_deref(),
        }
    }

    fn quantile(&self, part: f64) -> Option<f64> {
        let mut sketch = Sketch::default();
        sketch.merge_bytes(self.sketch.as_deref()?).unwrap();
        sketch.quantile(part)
    }

    fn values(&self) -> Option<f64> {
        let mut sketch = Sketch::default();
        sketch.merge_bytes(self.sketch.as_deref()?).unwrap();
        Some(sketch.count())
    }
}

fn point(second: i64, data: PointData<'_>) -> RollupPoint<'_> {
    RollupPoint {
        time: BEGIN + second * SECOND,
        start: None,
        data,
    }
}

fn since(start: i64, point: RollupPoint<'_>) -> RollupPoint<'_> {
    RollupPoint {
        start: Some(BEGIN + start * SECOND),
        ..point
    }
}

fn number(second: i64, value: f64) -> RollupPoint<'static> {
    point(second, PointData::Number(value))
}

fn windows_from(kind: PointKind, resolution: Resolution, from: i64, points: &[RollupPoint<'_>]) -> Vec<Row> {
    let mut windows = RollupWindowBuilder::new(resolution);
    windows.begin(kind, from);
    let mut rows = Vec::new();
    for point in points {
        rows.extend(windows.push(point).unwrap().map(|window| Row::of(&window)));
    }
    rows.extend(windows.finish().map(|window| Row::of(&window)));
    assert_eq!(windows.finish(), None);
    rows
}

fn windows_of(kind: PointKind, points: &[RollupPoint<'_>]) -> Vec<Row> {
    windows_from(kind, Resolution::TenSeconds, i64::MIN, points)
}

fn rolled(kind: PointKind, resolution: Resolution, finer: &[Row]) -> Vec<Row> {
    let mut windows = RollupWindowBuilder::new(resolution);
    windows.begin(kind, i64::MIN);
    let mut rows = Vec::new();
    for row in finer {
        let ready = windows.push_window(&row.window()).unwrap();
        rows.extend(ready.map(|window| Row::of(&window)));
    }
    rows.extend(windows.finish().map(|window| Row::of(&window)));
    rows
}

const HISTOGRAM: PointKind = PointKind::Histogram { is_cumulative: true };
const EXPONENTIAL: PointKind = PointKind::Exponential { is_cumulative: true };

fn histogram<'a>(bounds: &'a [f64], counts: &'a [i64]) -> HistogramData<'a> {
    HistogramData {
        count: counts.iter().sum(),
        sum: Some(counts.iter().sum::<i64>() as f64 * 2.0),
        bounds,
        counts,
        ..HistogramData::default()
    }
}

#[test]
fn values_are_summed_up_and_not_a_number_only_counts() {
    let points =
        [(0, 3.0), (4, f64::NAN), (5, -1.0), (9, 7.0), (10, f64::NAN), (25, 2.0)].map(|(at, value)| number(at, value));
    let rows = windows_of(PointKind::Value, &points);
    assert_eq!(
        rows.iter().map(|row| row.start - BEGIN).collect::<Vec<_>>(),
        [0, 10 * SECOND, 20 * SECOND]
    );
    assert_eq!(rows[0].count, 4);
    assert_eq!(
        rows[0].numbers,
        [Some(9.0), Some(-1.0), Some(7.0), Some(3.0), Some(7.0), None]
    );
    assert_eq!(rows[0].times, [Some(BEGIN), Some(BEGIN + 9 * SECOND)]);
    assert_eq!((rows[0].resets, rows[0].values()), (None, Some(3.0)));
    assert!((rows[0].quantile(1.0).unwrap() - 7.0).abs() < 0.07);
    assert_eq!(
        (rows[1].count, rows[1].numbers, rows[1].times),
        (1, [None; 6], [None; 2])
    );
    assert_eq!(rows[1].sketch, None);
    let delta = windows_of(PointKind::Delta, &points);
    assert_eq!(delta[0].numbers[5], Some(9.0), "the increase is the sum");
}

#[test]
fn a_counter_grows_by_its_differences() {
    let hour = 3600;
    let points = [
        number(0, 100.0),
        number(9, 110.0),
        number(12, 115.0),
        point(13, PointData::Nothing),
        number(14, f64::INFINITY),
        number(15, 3.0),
        number(15 + hour, 5.0),
        number(16 + 2 * hour, 50.0),
    ];
    let rows = windows_of(PointKind::Counter, &points);
    let increases: Vec<_> = rows.iter().map(|row| (row.numbers[5], row.resets, row.count)).collect();
    assert_eq!(
        increases,
        [
            (Some(10.0), Some(0), 2),
            // The difference to the previous window, a reset to 3, and an infinity that only counts.
            (Some(8.0), Some(1), 3),
            (Some(2.0), Some(0), 1),
            // The previous point is more than an hour earlier.
            (Some(0.0), Some(0), 1),
        ]
    );
    assert_eq!(rows[1].numbers[..5], [None, None, None, Some(115.0), Some(3.0)]);
    assert_eq!(rows[1].sketch, None);
}

#[test]
fn the_first_point_counts_if_it_began_in_its_window() {
    let first = |start: i64| {
        let points = [since(start, number(25, 7.0)), since(start, number(26, 9.0))];
        windows_of(PointKind::Counter, &points)[0].numbers[5]
    };
    assert_eq!(first(20), Some(9.0));
    assert_eq!(first(24), Some(9.0));
    assert_eq!(first(19), Some(2.0), "it began in a window before");
    assert_eq!(first(25), Some(2.0), "when it began is not known");
}

#[test]
fn windows_before_those_that_are_asked_for_are_not_made() {
    let points = [(5, 10.0), (15, 30.0), (25, 35.0)].map(|(at, value)| number(at, value));
    let rows = windows_from(PointKind::Counter, Resolution::TenSeconds, BEGIN + 10 * SECOND, &points);
    let increases: Vec<_> = rows.iter().map(|row| row.numbers[5]).collect();
    assert_eq!(increases, [Some(20.0), Some(5.0)]);
    assert_eq!(
        windows_from(PointKind::Value, Resolution::TenSeconds, i64::MAX, &points),
        []
    );
}

#[test]
fn memory_is_used_again_and_nothing_of_a_series_comes_into_the_next() {
    let mut windows = RollupWindowBuilder::new(Resolution::TenSeconds);
    for round in 0..3 {
        windows.begin(PointKind::Counter, i64::MIN);
        assert_eq!(windows.push(&number(round, 50.0)), Ok(None));
        assert_eq!(windows.push(&number(round + 1, 60.0)), Ok(None));
        let row = Row::of(&windows.finish().unwrap());
        assert_eq!((row.count, row.numbers[5]), (2, Some(10.0)));
        windows.begin(PointKind::Value, i64::MIN);
        assert_eq!(windows.push(&number(0, 1.0)), Ok(None), "which is forgotten");
        windows.begin(PointKind::Value, i64::MIN);
        assert_eq!(windows.push(&number(0, 2.0)), Ok(None));
        let row = Row::of(&windows.finish().unwrap());
        assert_eq!((row.count, row.numbers[0], row.values()), (1, Some(2.0), Some(1.0)));
    }
}

#[test]
fn late_rows_join_what_is_left_of_their_window() {
    let revision = windows_of(PointKind::Value, &[number(3, 5.0), number(6, 1.0)]).remove(0);
    let mut windows = RollupWindowBuilder::new(Resolution::TenSeconds);
    windows.begin(PointKind::Value, i64::MIN);
    assert_eq!(windows.push_window(&revision.window()), Ok(None));
    for (at, value) in [(1, 9.0), (4, 2.0)] {
        assert_eq!(windows.push(&number(at, value)), Ok(None));
    }
    let row = Row::of(&windows.finish().unwrap());
    assert_eq!((row.count, row.values()), (4, Some(4.0)));
    assert_eq!(
        row.numbers[..5],
        [Some(17.0), Some(1.0), Some(9.0), Some(9.0), Some(1.0)]
    );
}

#[test]
fn what_does_not_fit_is_told_and_changes_nothing() {
    let mut windows = RollupWindowBuilder::new(Resolution::Minute);
    windows.begin(PointKind::Value, i64::MIN);
    assert_eq!(windows.push(&number(30, 1.0)), Ok(None));
    let late = windows.push(&number(29, 1.0)).unwrap_err();
    assert!(late.to_string().contains("in time order"), "{late}");
    let other = windows
        .push(&point(90, PointData::Histogram(HistogramData::default())))
        .unwrap_err();
    assert_eq!(
        other.to_string(),
        format!(
            "a point of time {} is not a Value as its series is; leave it out",
            BEGIN + 90 * SECOND
        )
    );
    let row = windows_of(PointKind::Value, &[number(60, 1.0)]).remove(0);
    let broken = RollupWindow {
        start: BEGIN + 60 * SECOND,
        sketch: Some(b"text"),
        ..row.window()
    };
    let broken = windows.push_window(&broken).unwrap_err();
    assert!(broken.to_string().contains("not a sketch"), "{broken}");
    assert_eq!(windows.finish().map(|window| window.count), Some(1));
    windows.begin(HISTOGRAM, i64::MIN);
    let uneven = windows
        .push(&point(0, PointData::Histogram(histogram(&[1.0], &[1]))))
        .unwrap_err();
    assert!(uneven.to_string().contains("1 buckets for 1 bounds"), "{uneven}");
}

#[test]
fn kinds_follow_from_columns() {
    for (metric, temporality, is_monotonic, expected) in [
        ("gauge", None, false, Some(PointKind::Value)),
        ("sum", Some("delta"), false, Some(PointKind::Delta)),
        ("sum", Some("cumulative"), true, Some(PointKind::Counter)),
        ("sum", Some("cumulative"), false, Some(PointKind::Value)),
        ("sum", None, true, Some(PointKind::Value)),
        ("histogram", Some("cumulative"), false, Some(HISTOGRAM)),
        (
            "exponential_histogram",
            Some("delta"),
            false,
            Some(PointKind::Exponential { is_cumulative: false }),
        ),
        ("summary", None, false, None),
    ] {
        assert_eq!(
            PointKind::of_metric(metric, temporality, is_monotonic),
            expected,
            "{metric}"
        );
    }
}
