//! The last points of series whose windows are differences, so that the next pass need not read the hour before it.

use std::collections::HashMap;

use super::points::{Data, Exponential, Histogram, Kind, LOOKBACK_NANOS, Point};
use crate::sketch::Run as Buckets;

/// What each entry takes beside its buckets.
const ENTRY_BYTES: usize = size_of::<(i64, Last)>() + 16;

/// See the module.
#[derive(Debug)]
pub(super) struct LastPoints {
    points: HashMap<i64, Last>,
    /// Points from here on were seen, without a gap, up to `until`.
    since: i64,
    until: i64,
    bytes: usize,
    bytes_max: usize,
}

#[derive(Debug)]
struct Last {
    time: i64,
    start: Option<i64>,
    data: Owned,
}

#[derive(Debug)]
enum Owned {
    Number(f64),
    Buckets(Box<OwnedBuckets>),
}

#[derive(Debug)]
struct OwnedBuckets {
    count: i64,
    sum: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    /// Of an exponential one: scale, number and threshold of zeros, where both sides begin.
    scale: Option<(i32, i64, f64, [i32; 2])>,
    bounds: Vec<f64>,
    counts: [Vec<i64>; 2],
}

impl LastPoints {
    pub fn new(bytes_max: usize) -> LastPoints {
        LastPoints {
            points: HashMap::new(),
            since: i64::MAX,
            until: i64::MIN,
            bytes: 0,
            bytes_max,
        }
    }

    /// Whether windows from here on need no point of before. `first` is the time of the table's first row.
    pub fn reach(&self, from: i64, first: i64) -> bool {
        self.until == from && self.since <= from.saturating_sub(LOOKBACK_NANOS).max(first)
    }

    pub fn get(&self, series: i64) -> Option<Point<'_>> {
        self.points.get(&series).map(Last::point)
    }

    /// The last one before the end of a pass; older than what is known, it changes nothing.
    pub fn put(&mut self, series: i64, kind: Kind, point: &Point<'_>) {
        let is_compared = match kind {
            Kind::Counter => true,
            Kind::Histogram { is_cumulative } | Kind::Exponential { is_cumulative } => is_cumulative,
            Kind::Value | Kind::Delta => false,
        };
        let is_older = |last: &Last| last.time > point.time;
        if !is_compared || self.points.get(&series).is_some_and(is_older) {
            return;
        }
        let Some(last) = Last::of(point) else { return };
        self.bytes += last.bytes();
        if let Some(before) = self.points.insert(series, last) {
            self.bytes -= before.bytes();
        }
    }

    /// All points from `since` to `until` were seen. What is too old to be compared with is forgotten; so is everything that is too
    /// much.
    pub fn seen(&mut self, since: i64, until: i64) {
        self.since = if self.until == since {
            self.since.min(since)
        } else {
            since
        };
        self.until = until;
        let oldest = until.saturating_sub(LOOKBACK_NANOS);
        self.points.retain(|_, last| last.time >= oldest);
        self.bytes = self.points.values().map(Last::bytes).sum();
        if self.bytes > self.bytes_max {
            self.forget();
        }
    }

    pub fn forget(&mut self) {
        self.take();
    }

    /// What is known, which is forgotten here.
    pub fn take(&mut self) -> LastPoints {
        let empty = LastPoints::new(self.bytes_max);
        std::mem::replace(self, empty)
    }
}

impl Last {
    fn of(point: &Point<'_>) -> Option<Last> {
        let data = match point.data {
            Data::Nothing => return None,
            Data::Number(value) => Owned::Number(value),
            Data::Histogram(given) => Owned::Buckets(Box::new(OwnedBuckets {
                count: given.count,
                sum: given.sum,
                min: given.min,
                max: given.max,
                scale: None,
                bounds: given.bounds.to_vec(),
                counts: [given.counts.to_vec(), Vec::new()],
            })),
            Data::Exponential(given) => Owned::Buckets(Box::new(OwnedBuckets {
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
        Some(Last {
            time: point.time,
            start: point.start,
            data,
        })
    }

    fn point(&self) -> Point<'_> {
        let data = match &self.data {
            Owned::Number(value) => Data::Number(*value),
            Owned::Buckets(kept) => kept.data(),
        };
        Point {
            time: self.time,
            start: self.start,
            data,
        }
    }

    fn bytes(&self) -> usize {
        let of_buckets = match &self.data {
            Owned::Number(_) => 0,
            Owned::Buckets(kept) => {
                let numbers = kept.bounds.len() + kept.counts.iter().map(Vec::len).sum::<usize>();
                size_of::<OwnedBuckets>() + numbers * size_of::<i64>()
            }
        };
        ENTRY_BYTES + of_buckets
    }
}

impl OwnedBuckets {
    fn data(&self) -> Data<'_> {
        let OwnedBuckets {
            count, sum, min, max, ..
        } = *self;
        let [positive, negative] = &self.counts;
        let Some((scale, zero_count, zero_threshold, offsets)) = self.scale else {
            return Data::Histogram(Histogram {
                count,
                sum,
                min,
                max,
                bounds: &self.bounds,
                counts: positive,
            });
        };
        let [above, below] = offsets;
        let side = |offset, counts| Buckets { offset, counts };
        Data::Exponential(Exponential {
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
