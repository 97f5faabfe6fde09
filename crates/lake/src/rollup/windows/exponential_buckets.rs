//! Buckets of exponential histograms: bucket `i` has the values above `base^i` up to `base^(i+1)`, where `base` is
//! `2^(2^-scale)`. At the next coarser scale, two of them form one.
//!
//! A table stores them as explicit buckets. Their bounds are powers of the base, from which the scale can be recovered:
//! each side of zero has none, or at least two.

use super::ExponentialHistogramData;
use thalweg_sketch::{Sketch, SketchBucketRun};

/// The limit on each side of zero, in a window: twice the default of SDKs.
pub const BUCKETS_MAX: usize = 320;
/// No SDK makes finer ones, and their bounds would be too close to distinguish.
const SCALE_MAX: i32 = 20;
/// At coarser scales the bounds exceed all doubles.
const SCALE_MIN: i32 = -10;
/// The exponents of normal doubles; smaller ones count as zero.
const EXPONENT_MIN: f64 = -1022.0;
const EXPONENT_MAX: f64 = 1024.0;

#[derive(Debug, Default, PartialEq)]
pub(super) struct ExponentialBuckets {
    scale: i32,
    zeros: i64,
    zero_threshold: f64,
    positive: ExponentialBucketSide,
    negative: ExponentialBucketSide,
}

/// Counts whose first and last are above zero.
#[derive(Debug, Default, PartialEq)]
struct ExponentialBucketSide {
    /// The index of the first bucket.
    first: i64,
    counts: Vec<i64>,
}

impl ExponentialBuckets {
    pub fn clear(&mut self) {
        (self.scale, self.zeros, self.zero_threshold) = (0, 0, 0.0);
        self.positive.clear();
        self.negative.clear();
    }

    pub fn set(&mut self, given: &ExponentialHistogramData<'_>) {
        (self.scale, self.zeros) = (given.scale, given.zero_count.max(0));
        self.zero_threshold = given.zero_threshold;
        self.positive.set(given.positive);
        self.negative.set(given.negative);
        self.coarsen(SCALE_MAX);
        if self.scale >= SCALE_MIN {
            let per_octave = f64::from(self.scale).exp2();
            let last = (EXPONENT_MAX * per_octave) as i64 - 1;
            for side in [&mut self.positive, &mut self.negative] {
                // Rounded down: buckets that end there or below have only subnormal doubles.
                let tiny = side.take_below((EXPONENT_MIN * per_octave).floor() as i64);
                self.zeros = self.zeros.saturating_add(tiny);
                side.clamp_to(last);
            }
        }
    }

    /// Copies into the existing buffers.
    pub fn copy(&mut self, other: &ExponentialBuckets) {
        (self.scale, self.zeros, self.zero_threshold) = (other.scale, other.zeros, other.zero_threshold);
        self.positive.copy(&other.positive);
        self.negative.copy(&other.negative);
    }

    fn has_buckets(&self) -> bool {
        !(self.positive.counts.is_empty() && self.negative.counts.is_empty())
    }

    /// Whether a table can store them.
    pub fn has_columns(&self) -> bool {
        self.scale >= SCALE_MIN || !self.has_buckets()
    }

    /// Adds them to a sketch. `ends` are the least and the greatest value, if they are known.
    pub fn add_to(&self, sketch: &mut Sketch, ends: (Option<f64>, Option<f64>)) {
        let run = |side: &ExponentialBucketSide| i32::try_from(side.first).ok();
        let of = |side| {
            run(side).map_or_else(SketchBucketRun::default, |offset| SketchBucketRun {
                offset,
                counts: &side.counts,
            })
        };
        sketch.add_exponential(self.scale, self.zeros, of(&self.positive), of(&self.negative), ends);
    }

    fn coarsen(&mut self, scale: i32) {
        if let Ok(steps @ 1..) = u32::try_from(i64::from(self.scale) - i64::from(scale)) {
            self.positive.coarsen(steps);
            self.negative.coarsen(steps);
            self.scale = scale;
        }
    }

    /// Subtracts earlier buckets, which are brought to the same scale first. Returns false if a count has decreased.
    pub fn subtract(&mut self, before: &mut ExponentialBuckets) -> bool {
        let scale = self.scale.min(before.scale);
        self.coarsen(scale);
        before.coarsen(scale);
        if self.zero_threshold > before.zero_threshold {
            // The earlier buckets must use the same zero threshold.
            before.widen_zero(self.zero_threshold);
            self.widen_zero(self.zero_threshold);
        }
        let fell = self.zeros < before.zeros;
        self.zeros = self.zeros.saturating_sub(before.zeros);
        !fell && self.positive.subtract(&before.positive) && self.negative.subtract(&before.negative)
    }

    fn widen_zero(&mut self, threshold: f64) {
        let end = (threshold.log2() * f64::from(self.scale).exp2()).floor();
        for side in [&mut self.positive, &mut self.negative] {
            self.zeros = self.zeros.saturating_add(side.take_below(end as i64));
        }
    }

    /// Adds at the coarser scale, or at an even coarser one if there would be more than [`BUCKETS_MAX`]. The sum of
    /// several is therefore independent of their order.
    pub fn add(&mut self, more: &ExponentialBuckets) {
        self.zeros = self.zeros.saturating_add(more.zeros);
        if !more.has_buckets() {
            return;
        }
        if !self.has_buckets() {
            self.scale = more.scale;
        }
        let mut scale = self.scale.min(more.scale);
        let fits = |scale: i32| {
            let steps = |from: i32| u32::try_from(from - scale).unwrap_or(0);
            let (own, others) = (steps(self.scale), steps(more.scale));
            let sides = [(&self.positive, &more.positive), (&self.negative, &more.negative)];
            sides
                .iter()
                .all(|(one, other)| one.len_with(own, other, others) <= BUCKETS_MAX as i64)
        };
        while scale > SCALE_MIN && !fits(scale) {
            scale -= 1;
        }
        self.coarsen(scale);
        let steps = u32::try_from(more.scale - scale).unwrap_or(0);
        self.positive.add(&more.positive, steps);
        self.negative.add(&more.negative, steps);
    }

    /// Writes the bounds in ascending order, and one more count. The outermost bucket on a side of zero that has bounds
    /// is empty. The bucket between both sides, or at the end of the only one, has the zeros.
    pub fn put_columns(&self, bounds: &mut Vec<f64>, counts: &mut Vec<i64>) {
        bounds.clear();
        counts.clear();
        let width = f64::from(-self.scale).exp2();
        let bound = |side: &ExponentialBucketSide, at: usize| {
            let number = side.first.saturating_add(i64::try_from(at).unwrap_or(i64::MAX));
            (number as f64 * width).exp2().min(f64::MAX)
        };
        let (negative, positive) = (&self.negative, &self.positive);
        if !negative.counts.is_empty() {
            bounds.extend((0..=negative.counts.len()).rev().map(|at| -bound(negative, at)));
            counts.push(0);
            counts.extend(negative.counts.iter().rev());
        }
        counts.push(self.zeros);
        if !positive.counts.is_empty() {
            bounds.extend((0..=positive.counts.len()).map(|at| bound(positive, at)));
            counts.extend(&positive.counts);
            counts.push(0);
        }
    }

    /// Parses what [`ExponentialBuckets::put_columns`] has written; `None` for other buckets.
    pub fn of_columns(bounds: &[f64], counts: &[i64]) -> Option<ExponentialBuckets> {
        let (below, above) = bounds.split_at(bounds.partition_point(|bound| *bound < 0.0));
        let mut scaled = ExponentialBuckets {
            zeros: *counts.get(below.len())?,
            ..ExponentialBuckets::default()
        };
        if counts.len() != bounds.len() + 1 {
            return None;
        }
        if !below.is_empty() {
            let (outer, counts) = counts.get(..below.len())?.split_first()?;
            let mut magnitudes = below.iter().rev().map(|bound| -bound);
            let first = (magnitudes.next()?, magnitudes.next()?);
            let first = scaled.set_scale(first.0, first.1)?;
            scaled.negative.first = first;
            scaled.negative.counts = counts.iter().rev().copied().collect();
            (*outer == 0).then_some(())?;
        }
        if let [one, other, ..] = above {
            let (outer, counts) = counts.get(below.len() + 1..)?.split_last()?;
            scaled.positive.first = scaled.set_scale(*one, *other)?;
            scaled.positive.counts = counts.to_vec();
            (*outer == 0).then_some(())?;
        } else if !above.is_empty() {
            return None;
        }
        Some(scaled)
    }

    /// Sets the scale from two adjacent bounds, and returns the index of the first.
    fn set_scale(&mut self, bound: f64, next: f64) -> Option<i64> {
        let scale = -(next.log2() - bound.log2()).log2().round();
        if !(f64::from(SCALE_MIN)..=f64::from(SCALE_MAX)).contains(&scale) {
            return None;
        }
        self.scale = scale as i32;
        Some((bound.log2() * scale.exp2()).round() as i64)
    }
}

impl ExponentialBucketSide {
    fn clear(&mut self) {
        self.first = 0;
        self.counts.clear();
    }

    fn copy(&mut self, other: &ExponentialBucketSide) {
        self.first = other.first;
        self.counts.clear();
        self.counts.extend_from_slice(&other.counts);
    }

    fn set(&mut self, run: SketchBucketRun<'_>) {
        self.first = i64::from(run.offset);
        self.counts.clear();
        self.counts.extend(run.counts.iter().map(|count| (*count).max(0)));
        self.trim();
    }

    fn trim(&mut self) {
        let end = self
            .counts
            .iter()
            .rposition(|count| *count != 0)
            .map_or(0, |last| last + 1);
        self.counts.truncate(end);
        let zeros = self.counts.iter().take_while(|count| **count == 0).count();
        self.counts.drain(..zeros);
        self.first = match self.counts.is_empty() {
            true => 0,
            false => self.first.saturating_add(i64::try_from(zeros).unwrap_or(0)),
        };
    }

    /// The range of the buckets after `steps` to coarser scales.
    fn range(&self, steps: u32) -> Option<(i64, i64)> {
        let len = i64::try_from(self.counts.len()).unwrap_or(i64::MAX);
        let last = self.first.saturating_add(len - 1);
        let steps = steps.min(i64::BITS - 1);
        (len > 0).then_some((self.first >> steps, (last >> steps) + 1))
    }

    /// The number of buckets in the union of both ranges.
    fn len_with(&self, own: u32, other: &ExponentialBucketSide, others: u32) -> i64 {
        match (self.range(own), other.range(others)) {
            (Some((begin, end)), Some((other_begin, other_end))) => {
                end.max(other_end).saturating_sub(begin.min(other_begin))
            }
            (one, other) => one.or(other).map_or(0, |(begin, end)| end.saturating_sub(begin)),
        }
    }

    fn coarsen(&mut self, steps: u32) {
        let Some((first, end)) = self.range(steps) else { return };
        let fine = self.first;
        let shift = steps.min(i64::BITS - 1);
        // Buckets only move towards lower positions.
        for at in 0..self.counts.len() {
            let number = fine.saturating_add(i64::try_from(at).unwrap_or(0)) >> shift;
            let to = usize::try_from(number - first).unwrap_or(0);
            if to != at
                && let Ok([to, from]) = self.counts.get_disjoint_mut([to, at])
            {
                *to = to.saturating_add(std::mem::take(from));
            }
        }
        self.counts.truncate(usize::try_from(end - first).unwrap_or(0));
        self.first = first;
    }

    fn add(&mut self, more: &ExponentialBucketSide, steps: u32) {
        let Some((begin, end)) = more.range(steps) else { return };
        let (begin, end) = match self.range(0) {
            Some((own_begin, own_end)) => {
                let before = usize::try_from(own_begin - begin).unwrap_or(0);
                self.counts.splice(0..0, std::iter::repeat_n(0, before));
                (begin.min(own_begin), end.max(own_end))
            }
            None => (begin, end),
        };
        self.first = begin;
        self.counts.resize(usize::try_from(end - begin).unwrap_or(0), 0);
        let shift = steps.min(i64::BITS - 1);
        for (number, count) in (more.first..).zip(&more.counts) {
            let at = usize::try_from((number >> shift) - begin).ok();
            if let Some(sum) = at.and_then(|at| self.counts.get_mut(at)) {
                *sum = sum.saturating_add(*count);
            }
        }
    }

    /// Returns false if a count has decreased; the counts are then incomplete.
    fn subtract(&mut self, before: &ExponentialBucketSide) -> bool {
        for (number, count) in (before.first..).zip(&before.counts) {
            let at = usize::try_from(number - self.first).ok();
            match at.and_then(|at| self.counts.get_mut(at)) {
                Some(now) if *now >= *count => *now -= count,
                _ if *count == 0 => {}
                _ => return false,
            }
        }
        self.trim();
        true
    }

    /// Removes the counts of buckets below `end` and returns their sum.
    fn take_below(&mut self, end: i64) -> i64 {
        let below = usize::try_from(end.saturating_sub(self.first))
            .unwrap_or(0)
            .min(self.counts.len());
        let taken = self
            .counts
            .iter()
            .take(below)
            .fold(0, |sum: i64, count| sum.saturating_add(*count));
        self.counts.iter_mut().take(below).for_each(|count| *count = 0);
        self.trim();
        taken
    }

    /// Adds the counts of buckets after `last` to it.
    fn clamp_to(&mut self, last: i64) {
        let kept = usize::try_from((last + 1).saturating_sub(self.first)).unwrap_or(0);
        if kept >= self.counts.len() {
            return;
        }
        let taken = self
            .counts
            .drain(kept..)
            .fold(0, |sum: i64, count| sum.saturating_add(count));
        match self.counts.last_mut() {
            Some(count) => *count = count.saturating_add(taken),
            None => {
                self.first = last;
                self.counts.push(taken);
            }
        }
    }
}
