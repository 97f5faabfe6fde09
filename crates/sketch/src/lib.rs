//! Sketches from which quantiles of any number of values follow with a relative error of at most 1 %.
//!
//! A sketch is a DDSketch with the logarithmic mapping: counts in bins whose bounds are a factor of [`GAMMA`] apart.
//! Sketches of parts merge into the sketch of the whole. Equal contents have equal bytes in whatever order they were
//! added, because counts are only added, and sums are exact for multiples of 1/8 below 2^50; counts of values and
//! buckets are such multiples. Each sign keeps at most [`BINS_MAX`] bins; smaller values, 17 decades below the largest,
//! count in the lowest bin.
//!
//! A sketch also knows its least and its greatest value where they lie within what the outermost bins stand for, so that no
//! quantile lies outside of the values. They are fields of their own, which other implementations skip. If the values are
//! of one bin, they are exact, so the quantile of one value is that value. Otherwise they are up to 0.4 % within the ends:
//! numbers with few digits take a quarter of the space in compressed files.
//!
//! Values that are not finite have no bin and are left out: an infinity in the outermost bin would collapse all other
//! values into one bin, and readers could not distinguish it from the largest double. Magnitudes below 2.3e-308 count
//! as zero.
//!
//! Bins are numbered as in the paper and in the public implementations for Python and JavaScript: bin 0 ends at 1. In
//! those for Go and Java bin 0 begins at 1, and the bytes do not show which is meant: they read values that are 2 %
//! higher.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod bin;
mod buckets;
mod mapping;
mod store;
#[cfg(test)]
mod tests;
mod wire;

pub use buckets::SketchBucketRun;
pub use mapping::GAMMA;
pub use store::BINS_MAX;
pub use wire::EncodedSketch;

use bin::{SignedBin, outermost};
use mapping::{VALUE_MIN, bin_at, place, value_of};
use store::SketchBinStore;
use thalweg_kit::wire::WireError;

/// A sketch that can be reused: a cleared one keeps its memory, so refilling it allocates nothing.
#[derive(Clone, Debug)]
pub struct Sketch {
    positive: SketchBinStore,
    /// The magnitudes of negative values.
    negative: SketchBinStore,
    zeros: f64,
    /// The least value, or less: of a sketch without this field, the value that its lowest bin stands for.
    least: f64,
    /// The greatest value, or more.
    greatest: f64,
}

impl Default for Sketch {
    fn default() -> Sketch {
        Sketch {
            positive: SketchBinStore::default(),
            negative: SketchBinStore::default(),
            zeros: 0.0,
            least: f64::INFINITY,
            greatest: f64::NEG_INFINITY,
        }
    }
}

/// Sketches with the same counts are equal.
impl PartialEq for Sketch {
    fn eq(&self, other: &Sketch) -> bool {
        self.positive == other.positive && self.negative == other.negative && self.zeros == other.zeros
    }
}

/// Why bytes cannot be merged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SketchError {
    #[error("not a sketch: {0}")]
    Malformed(#[from] WireError),
    #[error("not a sketch: it has no bin mapping")]
    NoMapping,
    #[error(
        "a sketch with bins of another kind (gamma {gamma}, offset {offset}, interpolation {interpolation}); only those of \
         relative accuracy 0.01 with the logarithmic mapping can be merged (gamma {GAMMA}, 0, 0)"
    )]
    OtherMapping {
        gamma: f64,
        offset: f64,
        interpolation: u64,
    },
}

impl Sketch {
    /// Counts a value; ignores one that is not finite.
    #[inline]
    pub fn add(&mut self, value: f64) {
        self.add_count(value, 1.0);
    }

    /// Adds `count`, which may be fractional, for a value. Counts that are not positive and values that are not finite
    /// change nothing.
    #[inline]
    pub fn add_count(&mut self, value: f64, count: f64) {
        let magnitude = value.abs();
        if !(magnitude <= f64::MAX && count > 0.0) {
            return;
        }
        self.note_ends(value, value);
        if magnitude <= VALUE_MIN {
            self.zeros += count;
            return;
        }
        let store = if value > 0.0 {
            &mut self.positive
        } else {
            &mut self.negative
        };
        store.add(bin_at(place(magnitude)), count);
    }

    /// Adds the counts of another sketch.
    pub fn merge(&mut self, other: &EncodedSketch<'_>) {
        other.add_to(&mut self.positive, &mut self.negative);
        self.zeros += other.zeros;
        if let Some((lowest, highest)) = other.outermost {
            self.note_ends_of(
                lowest,
                || other.least_of(lowest),
                highest,
                || other.greatest_of(highest),
            );
        }
    }

    /// Notes that values between these were counted.
    #[inline]
    fn note_ends(&mut self, least: f64, greatest: f64) {
        self.least = lesser(self.least, least);
        self.greatest = -lesser(-self.greatest, -greatest);
    }

    /// The same for values that are in these bins and between them, after they were counted. An end is computed only if
    /// no other bin is further out: otherwise it cannot be the end of all values.
    #[inline]
    fn note_ends_of(
        &mut self,
        low: SignedBin,
        least: impl FnOnce() -> f64,
        high: SignedBin,
        greatest: impl FnOnce() -> f64,
    ) {
        let Some((lowest, highest)) = self.outermost() else {
            return;
        };
        if low <= lowest {
            self.least = lesser(self.least, least());
        }
        if high >= highest {
            self.greatest = -lesser(-self.greatest, -greatest());
        }
    }

    /// The lowest and the highest bin with a count; `None` if the sketch is empty.
    fn outermost(&self) -> Option<(SignedBin, SignedBin)> {
        outermost(self.negative.range(), self.zeros, self.positive.range())
    }

    /// The end of the values, if the lowest bin stands for a lesser one, and if the highest bin stands for a greater
    /// one. Of values in several bins these are numbers a little within the ends, which have few digits.
    fn clamps(&self) -> (Option<f64>, Option<f64>) {
        let Some((lowest, highest)) = self.outermost() else {
            return (None, None);
        };
        let is_one = lowest == highest;
        let end = |exact: f64, short: fn(SignedBin, f64) -> f64, bin: SignedBin| match is_one {
            true => exact,
            false => short(bin, exact),
        };
        let least = (lowest.value() < self.least).then(|| end(self.least, SignedBin::shortened_up, lowest));
        let greatest = highest.value() > self.greatest;
        (
            least,
            greatest.then(|| end(self.greatest, SignedBin::shortened_down, highest)),
        )
    }

    /// Adds the counts of an encoded sketch. Adds nothing if the bytes are not a sketch.
    pub fn merge_bytes(&mut self, sketch: &[u8]) -> Result<(), SketchError> {
        self.merge(&EncodedSketch::read(sketch)?);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.zeros == 0.0 && self.positive.is_empty() && self.negative.is_empty()
    }

    /// The sum of all counts.
    pub fn count(&self) -> f64 {
        self.negative.count() + self.zeros + self.positive.count()
    }

    /// The quantile `part`, from 0 to 1; `None` if the sketch is empty or `part` is out of range.
    ///
    /// Of `n` values it is the one with the rank `part * (n - 1)`, rounded down. It is not below the least or above the
    /// greatest value.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        let of_bin = self.quantile_of_bins(part)?;
        let (least, greatest) = self.clamps();
        let above = least.map_or(of_bin, |least| of_bin.max(least));
        Some(greatest.map_or(above, |greatest| above.min(greatest)))
    }

    fn quantile_of_bins(&self, part: f64) -> Option<f64> {
        if self.is_empty() || !(0.0..=1.0).contains(&part) {
            return None;
        }
        let negatives = self.negative.count();
        let rank = part * (negatives + self.zeros + self.positive.count() - 1.0).max(0.0);
        // Above 2^53 subtracting 1 changes nothing, which puts the last rank beyond all values.
        if rank < negatives || self.zeros == 0.0 && self.positive.is_empty() {
            let from_zero = negatives - rank;
            let index = self.negative.first_where(|sum| sum >= from_zero);
            return index.map(|index| -value_of(index));
        }
        let rank = rank - negatives;
        if rank < self.zeros || self.positive.is_empty() {
            return Some(0.0);
        }
        let rank = rank - self.zeros;
        self.positive.first_where(|sum| sum > rank).map(value_of)
    }

    /// Removes all counts and keeps the allocated memory.
    pub fn clear(&mut self) {
        self.positive.clear();
        self.negative.clear();
        self.zeros = 0.0;
        (self.least, self.greatest) = (f64::INFINITY, f64::NEG_INFINITY);
    }

    /// Allocated memory, without the size of the type.
    pub fn allocated_bytes(&self) -> usize {
        self.positive.allocated_bytes() + self.negative.allocated_bytes()
    }
}

/// The lesser of two numbers, neither of which is NaN: one instruction, unlike `f64::min`.
#[inline]
fn lesser(one: f64, other: f64) -> f64 {
    if other < one { other } else { one }
}

/// Checks that a sketch survives encoding and decoding.
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let mut sketch = Sketch::default();
    if sketch.merge_bytes(data).is_err() {
        assert!(sketch.is_empty(), "what cannot be read adds nothing");
        return;
    }
    let mut bytes = Vec::new();
    sketch.encode(&mut bytes);
    let mut again = Sketch::default();
    let read = again.merge_bytes(&bytes);
    assert!(read.is_ok() && again == sketch, "{read:?}: {sketch:?} {again:?}");
    let quantiles = [0.0, 0.5, 1.0].map(|part| sketch.quantile(part));
    assert!(
        quantiles.is_sorted() && quantiles.iter().all(|value| value.is_some() != sketch.is_empty()),
        "{quantiles:?}: {sketch:?}"
    );
}
