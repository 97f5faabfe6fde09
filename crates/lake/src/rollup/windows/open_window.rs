//! A window to which rows are added.

use super::buckets::WindowBuckets;
use super::exponential_buckets::ExponentialBuckets;
use super::{PointKind, RollupWindow};
use thalweg_sketch::{EncodedSketch, Sketch};

#[derive(Debug, Default)]
pub(super) struct OpenWindow {
    pub start: i64,
    count: i64,
    sum: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    first: Option<f64>,
    last: Option<f64>,
    increase: Option<f64>,
    first_time: Option<i64>,
    last_time: Option<i64>,
    resets: Option<i64>,
    buckets: WindowBuckets,
    sketch: Sketch,
    /// The encoded sketch, after `close`.
    bytes: Vec<u8>,
}

/// The increase of a counter.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CounterDelta {
    pub increase: f64,
    pub is_reset: bool,
}

impl OpenWindow {
    /// Resets the window and keeps its buffers.
    pub fn begin(&mut self, start: i64) {
        let OpenWindow {
            mut buckets,
            mut sketch,
            mut bytes,
            ..
        } = std::mem::take(self);
        buckets.clear();
        sketch.clear();
        bytes.clear();
        *self = OpenWindow {
            start,
            buckets,
            sketch,
            bytes,
            ..OpenWindow::default()
        };
    }

    pub fn add_value(&mut self, time: i64, value: f64) {
        self.add_count(1);
        if value.is_nan() {
            return;
        }
        self.sum = plus(self.sum, Some(value));
        self.min = least(self.min, Some(value));
        self.max = greatest(self.max, Some(value));
        self.add_point(time, value);
        self.sketch.add(value);
    }

    /// `growth` is `None` for a value without a difference to others.
    pub fn add_counter(&mut self, time: i64, value: f64, growth: Option<CounterDelta>) {
        self.add_count(1);
        if let Some(growth) = growth {
            self.add_point(time, value);
            self.increase = plus(self.increase, Some(growth.increase));
            self.add_resets(growth.is_reset.into());
        }
    }

    /// Adds the increase of a cumulative histogram. Its minimum and maximum are not those of the window.
    pub fn add_differences(&mut self, time: i64, count: i64, sum: Option<f64>, is_reset: bool) {
        self.add_observations(time, count, sum, None, None);
        self.add_resets(is_reset.into());
    }

    pub fn add_observations(&mut self, time: i64, count: i64, sum: Option<f64>, min: Option<f64>, max: Option<f64>) {
        self.add_count(count);
        self.sum = plus(self.sum, number(sum));
        self.min = least(self.min, number(min));
        self.max = greatest(self.max, number(max));
        self.first_time = Some(self.first_time.map_or(time, |first| first.min(time)));
        self.last_time = Some(self.last_time.map_or(time, |last| last.max(time)));
    }

    pub fn add_histogram(&mut self, bounds: &[f64], counts: &[i64], min: Option<f64>, max: Option<f64>) {
        self.buckets.add_explicit(bounds, counts);
        self.sketch.add_histogram(bounds, counts, min, max);
    }

    pub fn add_exponential(&mut self, buckets: &ExponentialBuckets, min: Option<f64>, max: Option<f64>) {
        self.buckets.add_scaled(buckets);
        buckets.add_to(&mut self.sketch, (min, max));
    }

    pub fn mix_buckets(&mut self) {
        self.buckets.mix();
    }

    pub fn add_window(&mut self, kind: PointKind, window: &RollupWindow<'_>, sketch: Option<&EncodedSketch<'_>>) {
        self.add_count(window.count);
        self.sum = plus(self.sum, window.sum);
        self.min = least(self.min, window.min);
        self.max = greatest(self.max, window.max);
        self.increase = plus(self.increase, window.increase);
        self.add_ends((window.first_time, window.first), (window.last_time, window.last));
        if let Some(resets) = window.resets {
            self.add_resets(resets);
        }
        match (kind, window.explicit_bounds.zip(window.bucket_counts)) {
            (PointKind::Histogram { .. }, Some((bounds, counts))) => self.buckets.add_explicit(bounds, counts),
            (PointKind::Exponential { .. }, Some((bounds, counts))) => {
                match ExponentialBuckets::of_columns(bounds, counts) {
                    Some(scaled) => self.buckets.add_scaled(&scaled),
                    None => self.buckets.mix(),
                }
            }
            (PointKind::Histogram { .. } | PointKind::Exponential { .. }, None) => self.buckets.mix(),
            (PointKind::Value | PointKind::Delta | PointKind::Counter, _) => {}
        }
        if let Some(sketch) = sketch {
            self.sketch.merge(sketch);
        }
    }

    /// Called when no more rows follow.
    pub fn close(&mut self, kind: PointKind) {
        if kind == PointKind::Delta {
            self.increase = self.sum;
        }
        self.buckets.close();
        if !self.sketch.is_empty() {
            self.sketch.encode(&mut self.bytes);
        }
    }

    /// Valid after `close`.
    pub fn window(&self) -> RollupWindow<'_> {
        let buckets = self.buckets.columns();
        RollupWindow {
            start: self.start,
            count: self.count,
            sum: self.sum,
            min: self.min,
            max: self.max,
            first: self.first,
            last: self.last,
            increase: self.increase,
            first_time: self.first_time,
            last_time: self.last_time,
            resets: self.resets,
            explicit_bounds: buckets.map(|(bounds, _)| bounds),
            bucket_counts: buckets.map(|(_, counts)| counts),
            sketch: (!self.bytes.is_empty()).then_some(&self.bytes),
        }
    }

    fn add_count(&mut self, count: i64) {
        self.count = self.count.saturating_add(count);
    }

    fn add_resets(&mut self, resets: i64) {
        self.resets = Some(self.resets.unwrap_or(0).saturating_add(resets));
    }

    fn add_point(&mut self, time: i64, value: f64) {
        let end = (Some(time), Some(value));
        self.add_ends(end, end);
    }

    /// Adds the first and the last value of some points, each with its time.
    fn add_ends(&mut self, first: (Option<i64>, Option<f64>), last: (Option<i64>, Option<f64>)) {
        if let (Some(time), value) = first
            && self.first_time.is_none_or(|first| time < first)
        {
            (self.first_time, self.first) = (Some(time), value);
        }
        if let (Some(time), value) = last
            && self.last_time.is_none_or(|last| time >= last)
        {
            (self.last_time, self.last) = (Some(time), value);
        }
    }
}

fn number(value: Option<f64>) -> Option<f64> {
    value.filter(|value| !value.is_nan())
}

fn plus(sum: Option<f64>, more: Option<f64>) -> Option<f64> {
    match (sum, more) {
        (Some(sum), Some(more)) => Some(sum + more),
        (one, other) => one.or(other),
    }
}

fn least(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::min)
}

fn greatest(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).reduce(f64::max)
}
