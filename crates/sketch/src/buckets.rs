//! Adds histogram buckets to a sketch. The true values within a bucket are unknown, so a bucket counts as up to eight
//! equal shares at points between its bounds. The points are equidistant in the logarithm, or linearly if the lower
//! bound is not above zero.
//!
//! A bucket with fewer than eight values has one point per value, so that all shares are exact: whole numbers or
//! eighths of them.

use super::Sketch;
use super::bin::SignedBin;
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
    /// buckets, and no point is beyond them. Without `min` the first bucket begins at zero if its upper bound is
    /// positive; otherwise all values of an open bucket count at its known bound. Values of a bucket without a known
    /// bound are left out.
    pub fn add_histogram(&mut self, bounds: &[f64], counts: &[i64], min: Option<f64>, max: Option<f64>) {
        let bound = |at: Option<usize>| {
            at.and_then(|at| bounds.get(at))
                .copied()
                .filter(|bound| bound.is_finite())
        };
        let (min, max) = (min.filter(|min| min.is_finite()), max.filter(|max| max.is_finite()));
        let limits = ValueLimits::of(min, max);
        let mut side = HistogramSide::of(limits, false);
        for (at, count) in counts.iter().enumerate() {
            let Ok(count @ 1..) = u64::try_from(*count) else {
                continue;
            };
            let (low, high) = (bound(at.checked_sub(1)), bound(Some(at)));
            let low_end = low.or(min.filter(|min| high.is_none_or(|high| *min <= high)));
            let high_end = high.or(max.filter(|max| low_end.is_none_or(|low| *max >= low)));
            match (low_end, high_end) {
                (Some(low), Some(high)) => self.add_bucket(low, high, count, &mut side),
                (None, Some(high)) => self.add_bucket(if high > 0.0 { 0.0 } else { high }, high, count, &mut side),
                (Some(low), None) => self.add_count(limits.clamp(low), count as f64),
                (None, None) => {}
            }
        }
    }

    /// Adds an exponential histogram with the base `2^(2^-scale)`. No point is beyond `min` and `max`.
    pub fn add_exponential(
        &mut self,
        scale: i32,
        zeros: i64,
        positive: SketchBucketRun<'_>,
        negative: SketchBucketRun<'_>,
        (min, max): (Option<f64>, Option<f64>),
    ) {
        let limits = ValueLimits::of(min, max);
        self.add_count(limits.clamp(0.0), zeros as f64);
        let width = BINS_PER_OCTAVE * f64::from(-scale.clamp(-SCALE_MAX, SCALE_MAX)).exp2();
        for (run, is_negative) in [(positive, false), (negative, true)] {
            let side = HistogramSide::of(limits, is_negative);
            for (number, count) in (i64::from(run.offset)..).zip(run.counts) {
                let low = number as f64 * width;
                if let Ok(count @ 1..) = u64::try_from(*count) {
                    self.add_span(low, low + width, count, &side);
                }
            }
        }
    }

    fn add_bucket(&mut self, low: f64, high: f64, count: u64, side: &mut HistogramSide) {
        let (low, high) = (side.limits.clamp(low), side.limits.clamp(high));
        if low > 0.0 && high > low {
            let (low, high) = (side.place_of(low), side.place_of(high));
            return self.add_span(low, high, count, side);
        }
        let (shares, each) = shares(count);
        for share in 0..shares {
            let part = (f64::from(share) + 0.5) / f64::from(shares);
            self.add_count(side.limits.clamp(low * (1.0 - part) + high * part), each);
        }
    }

    /// Adds values between two positions of the mapping.
    fn add_span(&mut self, low: f64, high: f64, count: u64, side: &HistogramSide) {
        if high <= place(VALUE_MIN) || side.greatest <= VALUE_MIN {
            return self.add_count(side.value(0.0), count as f64);
        }
        let (low, high) = (low.clamp(side.first, side.last), high.clamp(side.first, side.last));
        let (shares, each) = shares(count);
        let step = (high - low) / f64::from(shares);
        let point = |share: u32| low + step * (f64::from(share) + 0.5);
        let (near, far) = (point(0), point(shares - 1));
        let (first, last) = (bin_at(near), bin_at(far));
        let store = match side.is_negative {
            false => &mut self.positive,
            true => &mut self.negative,
        };
        // A fast path for narrow buckets, which most exponential histograms have.
        if first == last {
            store.add(first, count as f64);
        } else {
            let bins: [i32; SHARES_MAX as usize] = std::array::from_fn(|share| bin_at(point(share as u32)));
            store.add_each(bins.get(..shares as usize).unwrap_or_default(), each);
        }
        let value = |place: f64| side.value((place / BINS_PER_OCTAVE).exp2().min(f64::MAX));
        let (first, last) = (
            SignedBin::of(first, side.is_negative),
            SignedBin::of(last, side.is_negative),
        );
        match side.is_negative {
            false => self.note_ends_of(first, || value(near), last, || value(far)),
            true => self.note_ends_of(last, || value(far), first, || value(near)),
        }
    }
}

/// The ends of the values of a histogram, as far as they are known.
#[derive(Clone, Copy, Debug)]
struct ValueLimits {
    least: f64,
    greatest: f64,
}

impl ValueLimits {
    /// Ends that are crossed or not finite are ignored.
    fn of(min: Option<f64>, max: Option<f64>) -> ValueLimits {
        let least = min.filter(|min| min.is_finite()).unwrap_or(f64::NEG_INFINITY);
        let greatest = max.filter(|max| max.is_finite()).unwrap_or(f64::INFINITY);
        match least <= greatest {
            true => ValueLimits { least, greatest },
            false => ValueLimits {
                least: f64::NEG_INFINITY,
                greatest: f64::INFINITY,
            },
        }
    }

    fn clamp(self, value: f64) -> f64 {
        value.clamp(self.least, self.greatest)
    }
}

/// The buckets of one sign, with the limits of their magnitudes.
struct HistogramSide {
    limits: ValueLimits,
    is_negative: bool,
    least: f64,
    greatest: f64,
    /// The positions of the least and the greatest magnitude that has a bin.
    first: f64,
    last: f64,
    /// The last bound and its position. Most buckets begin where the one before ends.
    bound: (f64, f64),
}

impl HistogramSide {
    fn of(limits: ValueLimits, is_negative: bool) -> HistogramSide {
        let (least, greatest) = match is_negative {
            false => (limits.least, limits.greatest),
            true => (-limits.greatest, -limits.least),
        };
        let position = |magnitude: f64, none: f64| match magnitude.is_finite() {
            true => place(magnitude.max(VALUE_MIN)),
            false => place(none),
        };
        HistogramSide {
            limits,
            is_negative,
            least,
            greatest,
            first: position(least, VALUE_MIN),
            last: position(greatest, f64::MAX),
            bound: (1.0, 0.0),
        }
    }

    /// The value of a magnitude, or the end that is beyond.
    fn value(&self, magnitude: f64) -> f64 {
        let magnitude = magnitude.clamp(self.least, self.greatest);
        if self.is_negative { -magnitude } else { magnitude }
    }

    fn place_of(&mut self, bound: f64) -> f64 {
        if self.bound.0 != bound {
            self.bound = (bound, place(bound));
        }
        self.bound.1
    }
}

/// The number of points of a bucket, and the count of each.
fn shares(count: u64) -> (u32, f64) {
    match u32::try_from(count) {
        Ok(count) if count < SHARES_MAX => (count, 1.0),
        _ => (SHARES_MAX, count as f64 / f64::from(SHARES_MAX)),
    }
}
