//! Windows of one series at one resolution, made from its points or from its windows of a finer resolution. No I/O: the
//! caller reads rows sorted by series and time, and writes the returned windows.
//!
//! ```
//! use thalweg_lake::rollup::Resolution;
//! use thalweg_lake::rollup::windows::{PointData, PointKind, RollupPoint, RollupWindowBuilder};
//!
//! let mut windows = RollupWindowBuilder::new(Resolution::TenSeconds);
//! let second = |second: i64| second * 1_000_000_000;
//! // For each series: windows that begin before 10 s are not made; their points only serve for differences.
//! windows.begin(PointKind::Counter, second(10));
//! let mut rows = Vec::new();
//! for (time, total) in [(8, 100.0), (12, 130.0), (18, 140.0), (21, 5.0)] {
//!     let point = RollupPoint { time: second(time), start: None, data: PointData::Number(total) };
//!     if let Some(window) = windows.push(&point)? {
//!         rows.push((window.start, window.increase, window.resets));
//!     }
//! }
//! rows.extend(windows.finish().map(|window| (window.start, window.increase, window.resets)));
//! assert_eq!(rows, [(second(10), Some(40.0), Some(0)), (second(20), Some(5.0), Some(1))]);
//! # Ok::<(), thalweg_lake::rollup::windows::RollupPushError>(())
//! ```
//!
//! # The columns of a window
//!
//! | kind | `count` | `sum`, `min`, `max` | `first`, `last` | `increase` | `resets` | buckets | sketch |
//! |---|---|---|---|---|---|---|---|
//! | values | points | of values | of values | none | none | none | of values |
//! | delta sums | points | of values | of values | the sum | none | none | of values |
//! | counters | points | none | of values | differences | yes | none | none |
//! | delta histograms | observations | of points | none | none | none | sums | of buckets |
//! | cumulative histograms | differences | differences; none | none | none | yes | differences | of differences |
//!
//! - NaN only counts. So does an infinite counter value, which has no difference to any other.
//! - A point without a recorded value changes nothing, and the points around it count as adjacent.
//! - A difference is that to the previous point of the series, across windows, at most [`LOOKBACK_NANOS`] earlier. A
//!   smaller value, count or bucket is a reset: the point itself is added. A point without a predecessor adds 0, or
//!   itself if its start is within its window of the finest resolution and before its own time: a start at its own time
//!   means that the value before it is unknown.
//! - Buckets with the same bounds are added. If bounds differ, the window has a sketch only. A cumulative point with
//!   other bounds than its predecessor adds count and sum, but nothing to the sketch, unless it started after its
//!   predecessor: then it is a reset.
//! - Exponential buckets are added at the coarser scale. At most [`BUCKETS_MAX`] are kept on each side of zero, if
//!   necessary at an even coarser scale. They become explicit ones: bounds are the powers of the base around the
//!   buckets, and the bucket between the negative and the positive ones has the zeros.
//! - The points that buckets have in a sketch are within the least and the greatest value that a histogram names, so
//!   that no quantile is beyond them.
//! - `first` and `last` are by time, among equal times in push order; `first_time` and `last_time` are theirs, or those
//!   of a histogram's points.
//!
//! Each of these rules gives the same window at any resolution, whether it is made from points or from finer windows;
//! only the rounding of sums differs. Points may be pushed after a window of the same time, which they join.

mod buckets;
mod exponential_buckets;
mod open_window;
mod point_deltas;
#[cfg(test)]
mod tests;

use super::Resolution;
pub use exponential_buckets::BUCKETS_MAX;
use open_window::OpenWindow;
use point_deltas::{CounterTracker, ExponentialHistogramTracker, HistogramTracker};
use thalweg_sketch::{SketchBucketRun, SketchError};

/// How far back the previous point for a difference may be.
pub const LOOKBACK_NANOS: i64 = Resolution::Hour.nanos();

/// The kind of a series' points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PointKind {
    /// Gauges, sums that may decrease, tag samples.
    Value,
    /// Sums since the previous point.
    Delta,
    /// Sums since a start, which only increase.
    Counter,
    Histogram {
        is_cumulative: bool,
    },
    Exponential {
        is_cumulative: bool,
    },
}

impl PointKind {
    /// The kind according to columns of the table `metrics`; `None` for summaries, whose quantiles cannot be added.
    pub fn of_metric(metric_type: &str, temporality: Option<&str>, is_monotonic: bool) -> Option<PointKind> {
        let is_cumulative = temporality == Some("cumulative");
        match metric_type {
            "gauge" => Some(PointKind::Value),
            "sum" if temporality == Some("delta") => Some(PointKind::Delta),
            "sum" if is_cumulative && is_monotonic => Some(PointKind::Counter),
            "sum" => Some(PointKind::Value),
            "histogram" => Some(PointKind::Histogram { is_cumulative }),
            "exponential_histogram" => Some(PointKind::Exponential { is_cumulative }),
            _ => None,
        }
    }

    /// Whether each point is compared with the previous one.
    pub fn has_differences(self) -> bool {
        match self {
            PointKind::Counter => true,
            PointKind::Histogram { is_cumulative } | PointKind::Exponential { is_cumulative } => is_cumulative,
            PointKind::Value | PointKind::Delta => false,
        }
    }
}

/// A row of `metrics` or `tags`. Times are nanoseconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct RollupPoint<'a> {
    pub time: i64,
    /// When its accumulation started, if it is known.
    pub start: Option<i64>,
    pub data: PointData<'a>,
}

#[derive(Clone, Copy, Debug)]
pub enum PointData<'a> {
    /// No value was recorded.
    Nothing,
    Number(f64),
    Histogram(HistogramData<'a>),
    Exponential(ExponentialHistogramData<'a>),
}

#[derive(Clone, Copy, Debug, Default)]
pub struct HistogramData<'a> {
    pub count: i64,
    pub sum: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub bounds: &'a [f64],
    /// One more than bounds; empty if only `count` is known.
    pub counts: &'a [i64],
}

#[derive(Clone, Copy, Debug, Default)]
pub struct ExponentialHistogramData<'a> {
    pub count: i64,
    pub sum: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub scale: i32,
    pub zero_count: i64,
    pub zero_threshold: f64,
    pub positive: SketchBucketRun<'a>,
    pub negative: SketchBucketRun<'a>,
}

/// A row of a rollup without the identity of its series.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RollupWindow<'a> {
    /// When it begins, in nanoseconds since 1970.
    pub start: i64,
    pub count: i64,
    pub sum: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub first: Option<f64>,
    pub last: Option<f64>,
    pub increase: Option<f64>,
    pub first_time: Option<i64>,
    pub last_time: Option<i64>,
    pub resets: Option<i64>,
    /// Present together with `bucket_counts`, which has one element more.
    pub explicit_bounds: Option<&'a [f64]>,
    pub bucket_counts: Option<&'a [i64]>,
    /// Never empty.
    pub sketch: Option<&'a [u8]>,
}

/// Why a point or a window is rejected. The builder is unchanged, and others can be pushed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RollupPushError {
    #[error("a row of time {time} follows one of time {last}; push the rows of a series in time order")]
    OutOfOrder { time: i64, last: i64 },
    #[error("a point of time {time} is not a {kind:?} as its series is; leave it out")]
    OtherKind { time: i64, kind: PointKind },
    #[error("a histogram of time {time} has {counts} buckets for {bounds} bounds, not one more; leave it out")]
    Buckets { time: i64, bounds: usize, counts: usize },
    #[error("the window of time {start} holds {error}; make it again from finer ones")]
    Sketch { start: i64, error: SketchError },
}

/// Makes windows of one series after the other, and reuses its memory.
#[derive(Debug)]
pub struct RollupWindowBuilder {
    resolution: Resolution,
    kind: PointKind,
    /// Windows that begin earlier are not made.
    from: i64,
    /// The time of the last pushed row.
    last_time: i64,
    /// The current window, if `is_open`.
    open: OpenWindow,
    is_open: bool,
    /// The last completed window, for the caller to read.
    closed: OpenWindow,
    counter: CounterTracker,
    histograms: HistogramTracker,
    exponentials: ExponentialHistogramTracker,
}

impl RollupWindowBuilder {
    pub fn new(resolution: Resolution) -> RollupWindowBuilder {
        RollupWindowBuilder {
            resolution,
            kind: PointKind::Value,
            from: i64::MIN,
            last_time: i64::MIN,
            open: OpenWindow::default(),
            is_open: false,
            closed: OpenWindow::default(),
            counter: CounterTracker::default(),
            histograms: HistogramTracker::default(),
            exponentials: ExponentialHistogramTracker::default(),
        }
    }

    /// Begins another series. Only windows that begin at `from` or later are made. Points up to [`LOOKBACK_NANOS`]
    /// before it should also be pushed, as predecessors for differences. An unfinished window is discarded.
    pub fn begin(&mut self, kind: PointKind, from: i64) {
        (self.kind, self.from, self.last_time) = (kind, from, i64::MIN);
        self.is_open = false;
        self.counter.forget();
        self.histograms.forget();
        self.exponentials.forget();
    }

    /// Adds a point. If it is the first one after a window, returns that window.
    pub fn push(&mut self, point: &RollupPoint<'_>) -> Result<Option<RollupWindow<'_>>, RollupPushError> {
        let time = point.time;
        self.check_order(time)?;
        match (self.kind, point.data) {
            (_, PointData::Nothing) => {
                self.last_time = time;
                return Ok(None);
            }
            (PointKind::Value | PointKind::Delta | PointKind::Counter, PointData::Number(_)) => {}
            (PointKind::Histogram { .. }, PointData::Histogram(histogram)) => check_buckets(time, &histogram)?,
            (PointKind::Exponential { .. }, PointData::Exponential(_)) => {}
            (kind, _) => return Err(RollupPushError::OtherKind { time, kind }),
        }
        self.last_time = time;
        let is_ready = self.turn_to(time);
        self.add(point);
        Ok(is_ready.then(|| self.closed.window()))
    }

    /// Adds a window of this or a finer resolution. If it is the first one after a window, returns that window.
    pub fn push_window(&mut self, window: &RollupWindow<'_>) -> Result<Option<RollupWindow<'_>>, RollupPushError> {
        self.check_order(window.start)?;
        let sketch = window.sketch.map(thalweg_sketch::EncodedSketch::read).transpose();
        let sketch = sketch.map_err(|error| RollupPushError::Sketch {
            start: window.start,
            error,
        })?;
        self.last_time = window.start;
        let is_ready = self.turn_to(window.start);
        if self.is_open {
            self.open.add_window(self.kind, window, sketch.as_ref());
        }
        Ok(is_ready.then(|| self.closed.window()))
    }

    /// Returns the last window of the series.
    pub fn finish(&mut self) -> Option<RollupWindow<'_>> {
        self.close().then(|| self.closed.window())
    }

    fn check_order(&self, time: i64) -> Result<(), RollupPushError> {
        match time < self.last_time {
            true => Err(RollupPushError::OutOfOrder {
                time,
                last: self.last_time,
            }),
            false => Ok(()),
        }
    }

    /// Opens the window of a time if it is requested. Returns whether another one was completed.
    fn turn_to(&mut self, time: i64) -> bool {
        let since = time.saturating_sub(self.open.start);
        if self.is_open && since < self.resolution.nanos() {
            return false;
        }
        let is_ready = self.close();
        let start = self.resolution.window_of(time);
        if start >= self.from {
            self.open.begin(start);
            self.is_open = true;
        }
        is_ready
    }

    fn close(&mut self) -> bool {
        if !std::mem::take(&mut self.is_open) {
            return false;
        }
        std::mem::swap(&mut self.open, &mut self.closed);
        self.closed.close(self.kind);
        true
    }

    /// Adds a point of the right kind. A point before all windows is only kept as a predecessor.
    fn add(&mut self, point: &RollupPoint<'_>) {
        let open = self.is_open.then_some(&mut self.open);
        match (self.kind, point.data) {
            (PointKind::Counter, PointData::Number(value)) => {
                let added = self.counter.take(point, value);
                if let Some(open) = open {
                    open.add_counter(point.time, value, added);
                }
            }
            (_, PointData::Number(value)) => {
                if let Some(open) = open {
                    open.add_value(point.time, value);
                }
            }
            (PointKind::Histogram { is_cumulative: true }, PointData::Histogram(histogram)) => {
                let added = self.histograms.take(point, &histogram);
                if let Some(open) = open {
                    open.add_differences(point.time, added.count, added.sum, added.is_reset);
                    match added.counts {
                        Some(counts) => {
                            open.add_histogram(added.bounds, counts, histogram.min, histogram.max);
                        }
                        None => open.mix_buckets(),
                    }
                }
            }
            (_, PointData::Histogram(histogram)) => {
                if let Some(open) = open {
                    open.add_observations(point.time, histogram.count, histogram.sum, histogram.min, histogram.max);
                    let (bounds, counts) = point_deltas::buckets_of(&histogram);
                    open.add_histogram(bounds, counts, histogram.min, histogram.max);
                }
            }
            (PointKind::Exponential { is_cumulative: true }, PointData::Exponential(exponential)) => {
                let added = self.exponentials.take(point, &exponential);
                if let Some(open) = open {
                    open.add_differences(point.time, added.count, added.sum, added.is_reset);
                    open.add_exponential(added.buckets, exponential.min, exponential.max);
                }
            }
            (_, PointData::Exponential(exponential)) => {
                if let Some(open) = open {
                    let ExponentialHistogramData {
                        count, sum, min, max, ..
                    } = exponential;
                    open.add_observations(point.time, count, sum, min, max);
                    open.add_exponential(self.exponentials.buckets_of(&exponential), min, max);
                }
            }
            (_, PointData::Nothing) => {}
        }
    }
}

fn check_buckets(time: i64, histogram: &HistogramData<'_>) -> Result<(), RollupPushError> {
    let (bounds, counts) = (histogram.bounds.len(), histogram.counts.len());
    match counts == 0 || counts == bounds + 1 {
        true => Ok(()),
        false => Err(RollupPushError::Buckets { time, bounds, counts }),
    }
}
