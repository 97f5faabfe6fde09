//! Caches the last points of series with differences, so that the next pass need not read the hour before it.

use std::collections::HashMap;

use super::windows::{ExponentialHistogramData, HistogramData, LOOKBACK_NANOS, PointData, PointKind, RollupPoint};
use thalweg_sketch::SketchBucketRun;

/// The size of an entry without its buckets.
const ENTRY_BYTES: usize = size_of::<(i64, LastPoint)>() + 16;

/// See the module.
#[derive(Debug)]
pub(super) struct LastPointCache {
    points: HashMap<i64, LastPoint>,
    /// All points from here up to `until` were seen.
    since: i64,
    until: i64,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct LastPoint {
    time: i64,
    start: Option<i64>,
    data: LastPointData,
}

#[derive(Debug)]
enum LastPointData {
    Number(f64),
    Buckets(Box<LastPointBuckets>),
}

#[derive(Debug)]
struct LastPointBuckets {
    count: i64,
    sum: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    /// For an exponential histogram: scale, zero count, zero threshold, and the offsets of both sides.
    scale: Option<(i32, i64, f64, [i32; 2])>,
    bounds: Vec<f64>,
    counts: [Vec<i64>; 2],
}

impl LastPointCache {
    pub fn new(bytes_max: usize) -> LastPointCache {
        LastPointCache {
            points: HashMap::new(),
            since: i64::MAX,
            until: i64::MIN,
            bytes: 0,
            bytes_max,
        }
    }

    /// Whether windows from here on need no earlier points. `first` is the time of the table's first row.
    pub fn reach(&self, from: i64, first: i64) -> bool {
        self.until == from && self.since <= from.saturating_sub(LOOKBACK_NANOS).max(first)
    }

    pub fn get(&self, series: i64) -> Option<RollupPoint<'_>> {
        self.points.get(&series).map(LastPoint::point)
    }

    /// Stores the last point before the end of a pass; ignores one that is older than the stored one.
    pub fn put(&mut self, series: i64, kind: PointKind, point: &RollupPoint<'_>) {
        let is_older = |last: &LastPoint| last.time > point.time;
        if !kind.has_differences() || self.points.get(&series).is_some_and(is_older) {
            return;
        }
        let Some(last) = LastPoint::of(point) else { return };
        self.bytes += last.bytes();
        if let Some(before) = self.points.insert(series, last) {
            self.bytes -= before.bytes();
        }
    }

    /// Records that all points from `since` to `until` were seen. Drops points that are too old for differences, or all
    /// points if they exceed the memory limit.
    pub fn seen(&mut self, since: i64, until: i64) {
        self.since = if self.until == since {
            self.since.min(since)
        } else {
            since
        };
        self.until = until;
        let oldest = until.saturating_sub(LOOKBACK_NANOS);
        self.points.retain(|_, last| last.time >= oldest);
        self.bytes = self.points.values().map(LastPoint::bytes).sum();
        if self.bytes > self.bytes_max {
            self.forget();
        }
    }

    pub fn forget(&mut self) {
        self.take();
    }

    /// Moves the content out and leaves an empty cache.
    pub fn take(&mut self) -> LastPointCache {
        let empty = LastPointCache::new(self.bytes_max);
        std::mem::replace(self, empty)
    }
}

impl LastPoint {
    fn of(point: &RollupPoint<'_>) -> Option<LastPoint> {
        let data = match point.data {
            PointData::Nothing => return None,
            PointData::Number(value) => LastPointData::Number(value),
            PointData::Histogram(given) => LastPointData::Buckets(Box::new(LastPointBuckets {
                count: given.count,
                sum: given.sum,
                min: given.min,
                max: given.max,
                scale: None,
                bounds: given.bounds.to_vec(),
                counts: [given.counts.to_vec(), Vec::new()],
            })),
            PointData::Exponential(given) => LastPointData::Buckets(Box::new(LastPointBuckets {
                count: given.count,
                sum: given.sum,
                min: given.min,
                max: given.max,
                scale: Some((
                    given.scale,
                    given.zero_count,
                    given.zero_threshold,
                    [given.positive.offset, given.negative.offset],
                )),
                bounds: Vec::new(),
                counts: [given.positive.counts.to_vec(), given.negative.counts.to_vec()],
            })),
        };
        Some(LastPoint {
            time: point.time,
            start: point.start,
            data,
        })
    }

    fn point(&self) -> RollupPoint<'_> {
        let data = match &self.data {
            LastPointData::Number(value) => PointData::Number(*value),
            LastPointData::Buckets(kept) => kept.data(),
        };
        RollupPoint {
            time: self.time,
            start: self.start,
            data,
        }
    }

    fn bytes(&self) -> usize {
        let of_buckets = match &self.data {
            LastPointData::Number(_) => 0,
            LastPointData::Buckets(kept) => {
                let numbers = kept.bounds.len() + kept.counts.iter().map(Vec::len).sum::<usize>();
                size_of::<LastPointBuckets>() + numbers * size_of::<i64>()
            }
        };
        ENTRY_BYTES + of_buckets
    }
}

impl LastPointBuckets {
    fn data(&self) -> PointData<'_> {
        let LastPointBuckets {
            count, sum, min, max, ..
        } = *self;
        let [positive, negative] = &self.counts;
        let Some((scale, zero_count, zero_threshold, offsets)) = self.scale else {
            return PointData::Histogram(HistogramData {
                count,
                sum,
                min,
                max,
                bounds: &self.bounds,
                counts: positive,
            });
        };
        let [above, below] = offsets;
        let side = |offset, counts| SketchBucketRun { offset, counts };
        PointData::Exponential(ExponentialHistogramData {
            count,
            sum,
            min,
            max,
            scale,
            zero_count,
            zero_threshold,
            positive: side(above, positive),
            negative: side(below, negative),
        })
    }
}
