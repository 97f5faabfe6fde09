//! Adds histogram buckets to a sketch. The true values within a bucket are unknown, so a bucket counts as up to eight
//! equal shares at points between its bounds. The points are equidistant in the logarithm, or linearly if the lower
//! bound is not above zero.
//!
//! A bucket with fewer than eight values has one point per value, so that all shares are exact: whole numbers or
//! eighths of them.

use super::Sketch;
use super::mapping::{BINS_PER_OCTAVE, VALUE_MIN, bin_at, place};

const SHARES_MAX: u32 = 8;
/// Beyond these scales a bucket is wider than the range of doubles, or narrower than one double.
const SCALE_MAX: i32 = 64;

/// Consecutive buckets of an exponential histogram: bucket `i` has the magnitudes up to `base^(i+1)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SketchBucketRun<'a> {
    /// The index of the first bucket.
    pub offset: i32,
    pub counts: &'a [i64],
}

impl Sketch {
    /// Adds a histogram, given the upper bounds of all buckets but the last. `min` and `max` close the outermost
    /// buckets. Without `min` the first bucket begins at zero if its upper bound is positive; otherwise all values of
    /// an open bucket count at its known bound. Values of a bucket without a known bound are left out.
    pub fn add_histogram(&mut self, bounds: &[f64], counts: &[i64], min: Option<f64>, max: Option<f64>) {
        let bound = |at: Option<usize>| {
            at.and_then(|at| bounds.get(at))
                .copied()
                .filter(|bound| bound.is_finite())
        };
        let (min, max) = (min.filter(|min| min.is_finite()), max.filter(|max| max.is_finite()));
        for (at, count) in counts.iter().enumerate() {
            let Ok(count @ 1..) = u64::try_from(*count) else {
                continue;
            };
            let (low, high) = (bound(at.checked_sub(1)), bound(Some(at)));
            let low_end = low.or(min.filter(|min| high.is_none_or(|high| *min <= high)));
            let high_end = high.or(max.filter(|max| low_end.is_none_or(|low| *max >= low)));
            match (low_end, high_end) {
                (Some(low), Some(high)) => self.add_bucket(low, high, count),
                (None, Some(high)) => self.add_bucket(if high > 0.0 { 0.0 } else { high }, high, count),
                (Some(low), None) => self.add_count(low, count as f64),
                (None, None) => {}
            }
        }
    }

    /// Adds an exponential histogram with the base `2^(2^-scale)`.
    pub fn add_exponential(
        &mut self,
        scale: i32,
        zeros: i64,
        positive: SketchBucketRun<'_>,
        negative: SketchBucketRun<'_>,
    ) {
        self.add_count(0.0, zeros as f64);
        let width = BINS_PER_OCTAVE * f64::from(-scale.clamp(-SCALE_MAX, SCALE_MAX)).exp2();
        for (run, is_negative) in [(positive, false), (negative, true)] {
            for (number, count) in (i64::from(run.offset)..).zip(run.counts) {
                let low = number as f64 * width;
                if let Ok(count @ 1..) = u64::try_from(*count) {
                    self.add_span(low, low + width, count, is_negative);
                }
            }
        }
    }

    fn add_bucket(&mut self, low: f64, high: f64, count: u64) {
        if low > 0.0 && high > low {
            return self.add_span(place(low), place(high.min(f64::MAX)), count, false);
        }
        let (shares, each) = shares(count);
        for share in 0..shares {
            let part = (f64::from(share) + 0.5) / f64::from(shares);
            self.add_count(low * (1.0 - part) + high * part, each);
        }
    }

    /// Adds values between two positions of the mapping.
    fn add_span(&mut self, low: f64, high: f64, count: u64, is_negative: bool) {
        let (least, greatest) = (place(VALUE_MIN), place(f64::MAX));
        if high <= least {
            return self.add_count(0.0, count as f64);
        }
        let (low, high) = (low.clamp(least, greatest), high.min(greatest));
        let (shares, each) = shares(count);
        let point = |share: u32| low + (high - low) * ((f64::from(share) + 0.5) / f64::from(shares));
        let bin = |share: u32| bin_at(point(share));
        let [first, last] = [0, shares - 1].map(|share| (point(share) / BINS_PER_OCTAVE).exp2().min(f64::MAX));
        match is_negative {
            false => self.note_ends(first, last),
            true => self.note_ends(-last, -first),
        }
        let store = match is_negative {
            false => &mut self.positive,
            true => &mut self.negative,
        };
        // A fast path for narrow buckets, which most exponential histograms have.
        if bin(0) == bin(shares - 1) {
            return store.add(bin(0), count as f64);
        }
        for share in 0..shares {
            store.add(bin(share), each);
        }
    }
}

/// The number of points of a bucket, and the count of each.
fn shares(count: u64) -> (u32, f64) {
    match u32::try_from(count) {
        Ok(count) if count < SHARES_MAX => (count, 1.0),
        _ => (SHARES_MAX, count as f64 / f64::from(SHARES_MAX)),
    }
}
