//! The increases of cumulative points: their differences to the previous point.

use super::exponential_buckets::ExponentialBuckets;
use super::open_window::CounterDelta;
use super::{ExponentialHistogramData, HistogramData, LOOKBACK_NANOS, RollupPoint};
use crate::rollup::Resolution;

/// The previous point.
#[derive(Clone, Copy, Debug)]
struct PreviousPoint<T> {
    time: i64,
    value: T,
}

impl<T> PreviousPoint<T> {
    /// Puts a point in the place of the previous one, which it returns unless that is too far back.
    fn replace(before: &mut Option<PreviousPoint<T>>, point: &RollupPoint<'_>, value: T) -> Option<PreviousPoint<T>> {
        let time = point.time;
        let before = before.replace(PreviousPoint { time, value });
        before.filter(|before| time.saturating_sub(before.time) <= LOOKBACK_NANOS)
    }
}

/// Whether the point's whole accumulation is within its window. A start at its own time means that the start is
/// unknown.
fn began_in_window(point: &RollupPoint<'_>) -> bool {
    let window = Resolution::TenSeconds.window_of(point.time);
    point.start.is_some_and(|start| window <= start && start < point.time)
}

#[derive(Debug, Default)]
pub(super) struct CounterTracker {
    before: Option<PreviousPoint<f64>>,
}

impl CounterTracker {
    pub fn forget(&mut self) {
        self.before = None;
    }

    /// `None` for a value without a difference to others, which is ignored as a predecessor.
    pub fn take(&mut self, point: &RollupPoint<'_>, value: f64) -> Option<CounterDelta> {
        if !value.is_finite() {
            return None;
        }
        let growth = match PreviousPoint::replace(&mut self.before, point, value) {
            Some(before) if value < before.value => (value, true),
            Some(before) => (value - before.value, false),
            None if began_in_window(point) => (value, false),
            None => (0.0, false),
        };
        let (increase, is_reset) = growth;
        Some(CounterDelta { increase, is_reset })
    }
}

/// The totals of a histogram point.
#[derive(Clone, Copy, Debug)]
struct HistogramTotals {
    count: i64,
    sum: Option<f64>,
}

impl HistogramTotals {
    fn minus(self, before: HistogramTotals) -> HistogramTotals {
        HistogramTotals {
            count: self.count.saturating_sub(before.count),
            sum: self.sum.zip(before.sum).map(|(sum, before)| sum - before),
        }
    }

    fn nothing(self) -> HistogramTotals {
        HistogramTotals {
            count: 0,
            sum: self.sum.map(|_| 0.0),
        }
    }
}

/// The increase of a histogram.
pub(super) struct HistogramDelta<'a> {
    pub count: i64,
    pub sum: Option<f64>,
    pub is_reset: bool,
    pub bounds: &'a [f64],
    /// `None` if it is unknown which buckets have increased.
    pub counts: Option<&'a [i64]>,
}

#[derive(Debug, Default)]
pub(super) struct HistogramTracker {
    before: Option<PreviousPoint<HistogramTotals>>,
    bounds: Vec<f64>,
    counts: Vec<i64>,
    differences: Vec<i64>,
}

/// Without buckets, one bucket has the whole count.
pub(super) fn buckets_of<'a>(histogram: &'a HistogramData<'_>) -> (&'a [f64], &'a [i64]) {
    match histogram.counts {
        [] => (&[], std::slice::from_ref(&histogram.count)),
        counts => (histogram.bounds, counts),
    }
}

impl HistogramTracker {
    pub fn forget(&mut self) {
        self.before = None;
    }

    pub fn take(&mut self, point: &RollupPoint<'_>, histogram: &HistogramData<'_>) -> HistogramDelta<'_> {
        let (bounds, counts) = buckets_of(histogram);
        let totals = HistogramTotals {
            count: histogram.count,
            sum: histogram.sum,
        };
        let before = PreviousPoint::replace(&mut self.before, point, totals);
        let has_same_bounds = self.bounds == bounds;
        let is_reset = before.is_some_and(|before| {
            let fell = |(count, before): (&i64, &i64)| count < before;
            totals.count < before.value.count
                || has_same_bounds && counts.iter().zip(&self.counts).any(fell)
                || !has_same_bounds && point.start.is_some_and(|start| start > before.time)
        });
        self.differences.clear();
        let (added, is_known) = match before {
            Some(before) if !is_reset => {
                let differences = counts.iter().zip(&self.counts);
                self.differences
                    .extend(differences.map(|(now, before)| now.saturating_sub(*before)));
                (totals.minus(before.value), has_same_bounds)
            }
            None if !began_in_window(point) => {
                self.differences.resize(counts.len(), 0);
                (totals.nothing(), true)
            }
            _ => {
                self.differences.extend_from_slice(counts);
                (totals, true)
            }
        };
        if !has_same_bounds {
            self.bounds.clear();
            self.bounds.extend_from_slice(bounds);
        }
        self.counts.clear();
        self.counts.extend_from_slice(counts);
        HistogramDelta {
            count: added.count,
            sum: added.sum,
            is_reset,
            bounds: &self.bounds,
            counts: is_known.then_some(&self.differences),
        }
    }
}

/// The increase of an exponential histogram.
pub(super) struct ExponentialHistogramDelta<'a> {
    pub count: i64,
    pub sum: Option<f64>,
    pub is_reset: bool,
    pub buckets: &'a ExponentialBuckets,
}

#[derive(Debug, Default)]
pub(super) struct ExponentialHistogramTracker {
    before: Option<PreviousPoint<HistogramTotals>>,
    buckets: ExponentialBuckets,
    now: ExponentialBuckets,
    differences: ExponentialBuckets,
}

impl ExponentialHistogramTracker {
    pub fn forget(&mut self) {
        self.before = None;
    }

    /// The buckets of a delta point.
    pub fn buckets_of(&mut self, exponential: &ExponentialHistogramData<'_>) -> &ExponentialBuckets {
        self.now.set(exponential);
        &self.now
    }

    pub fn take(
        &mut self,
        point: &RollupPoint<'_>,
        exponential: &ExponentialHistogramData<'_>,
    ) -> ExponentialHistogramDelta<'_> {
        let totals = HistogramTotals {
            count: exponential.count,
            sum: exponential.sum,
        };
        self.now.set(exponential);
        let before = PreviousPoint::replace(&mut self.before, point, totals);
        self.differences.copy(&self.now);
        let (added, is_reset) = match before {
            Some(before) => {
                let fell = totals.count < before.value.count || !self.differences.subtract(&mut self.buckets);
                if fell {
                    self.differences.copy(&self.now);
                    (totals, true)
                } else {
                    (totals.minus(before.value), false)
                }
            }
            None if began_in_window(point) => (totals, false),
            None => {
                self.differences.clear();
                (totals.nothing(), false)
            }
        };
        std::mem::swap(&mut self.buckets, &mut self.now);
        ExponentialHistogramDelta {
            count: added.count,
            sum: added.sum,
            is_reset,
            buckets: &self.differences,
        }
    }
}
