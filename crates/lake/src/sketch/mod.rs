//! Sketches: from them come quantiles of any number of values, with a relative error of at most one in a hundred.
//!
//! A sketch is a DDSketch with the logarithmic mapping: counts in bins whose ends are a factor of [`GAMMA`] apart. Sketches of
//! parts merge into the sketch of the whole, and equal contents have equal bytes in whatever order they came: counts are added
//! only, and they are exact while they are multiples of one eighth below 2^50, as all are that come from values and buckets. Of
//! each sign at most [`BINS_MAX`] bins are kept; values beyond, 17 decades below the largest, count in the lowest of them.
//!
//! What is not finite has no bin and is left out: an infinity in the outermost bin would push all other values into one, and
//! readers could not tell it from the largest double. What is closer to zero than 2.3e-308 counts as zero.
//!
//! Bins are numbered as in the paper and in the public implementations for Python and JavaScript, bin 0 ending at 1. Those for Go
//! and Java let it begin there, which the bytes do not tell: they read values that are 2 % higher.

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

use crate::otlp::wire::WireError;
use mapping::{VALUE_MIN, bin_at, place, value_of};
use store::SketchBinStore;

/// Counts of values, and room for more: one that is cleared and filled again allocates nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sketch {
    positive: SketchBinStore,
    /// Of the values without their sign.
    negative: SketchBinStore,
    zeros: f64,
}

/// Why bytes cannot be merged.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SketchError {
    #[error("not a sketch: {0}")]
    Malformed(#[from] WireError),
    #[error("not a sketch: it does not say how its bins are made")]
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
    /// Counts a value, unless it is not finite.
    #[inline]
    pub fn add(&mut self, value: f64) {
        self.add_count(value, 1.0);
    }

    /// Counts a value several times, or in part. Counts that are not above zero, and values that are not finite, change nothing.
    #[inline]
    pub fn add_count(&mut self, value: f64, count: f64) {
        let magnitude = value.abs();
        if !(magnitude <= f64::MAX && count > 0.0) {
            return;
        }
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

    /// Adds what another sketch has counted.
    pub fn merge(&mut self, other: &EncodedSketch<'_>) {
        other.add_to(&mut self.positive, &mut self.negative);
        self.zeros += other.zeros;
    }

    /// Adds what an encoded sketch has counted; nothing of it if it is none.
    pub fn merge_bytes(&mut self, sketch: &[u8]) -> Result<(), SketchError> {
        self.merge(&EncodedSketch::read(sketch)?);
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.zeros == 0.0 && self.positive.is_empty() && self.negative.is_empty()
    }

    /// Of all values.
    pub fn count(&self) -> f64 {
        self.negative.count() + self.zeros + self.positive.count()
    }

    /// The value that this part of all others, from 0 to 1, is below; `None` without values, and for a part that is not one.
    ///
    /// Of `n` values it is that with the rank `part * (n - 1)`, rounded down.
    pub fn quantile(&self, part: f64) -> Option<f64> {
        if self.is_empty() || !(0.0..=1.0).contains(&part) {
            return None;
        }
        let negatives = self.negative.count();
        let rank = part * (negatives + self.zeros + self.positive.count() - 1.0).max(0.0);
        // Counts too large for a difference of one leave the last rank beyond all values.
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

    /// Forgets what was counted, and keeps the room for it.
    pub fn clear(&mut self) {
        self.positive.clear();
        self.negative.clear();
        self.zeros = 0.0;
    }

    /// Beside the size of the type.
    pub fn allocated_bytes(&self) -> usize {
        self.positive.allocated_bytes() + self.negative.allocated_bytes()
    }
}

/// What comes back after it was written is the same sketch.
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
