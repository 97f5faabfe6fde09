//! The mapping of values to bins: bin `i` has the values above `GAMMA^(i-1)` up to `GAMMA^i`, as in the paper (Masson,
//! Rim, Lee: "DDSketch", VLDB 2019) and in the public implementations for Python and JavaScript.

use std::f64::consts::LN_2;

/// The ratio of the bounds of a bin, for a relative accuracy of 0.01.
pub const GAMMA: f64 = 1.01 / 0.99;
/// Bins per power of two: `ln 2 / ln GAMMA`, rounded as the public implementation rounds it.
pub(super) const BINS_PER_OCTAVE: f64 = 34.656_203_751_888_17;
/// Magnitudes up to this count as zero: doubles below have no full precision.
pub(super) const VALUE_MIN: f64 = f64::MIN_POSITIVE * GAMMA;
/// The bins of the values from [`VALUE_MIN`] to the largest double.
pub(super) const INDEX_MIN: i32 = -35_417;
pub(super) const INDEX_MAX: i32 = 35_488;

/// The position of a positive value, in bins from 1. The result is bit-identical to the public implementation, which
/// divides by `ln 2` before it multiplies.
#[inline]
pub fn place(value: f64) -> f64 {
    value.ln() / LN_2 * BINS_PER_OCTAVE
}

/// A double that has no digits after the point. What is added to it is rounded to a whole number, which is in its lowest
/// bits.
const WHOLE: f64 = 1.5 * (1_u64 << 52) as f64;

/// The bin of a position of a double, rounded up. `ceil` and casts are slower where the target CPU has no guaranteed
/// instruction for several at once.
#[inline]
pub(super) fn bin_at(place: f64) -> i32 {
    let whole = place + WHOLE;
    whole.to_bits() as i32 + i32::from(whole - WHOLE < place)
}

/// The value that represents a bin; no value of the bin is further away than 1 %.
pub(super) fn value_of(index: i32) -> f64 {
    // Computed from the lower bound, which is a finite double even for the last bin.
    let low = (f64::from(index - 1) / BINS_PER_OCTAVE).exp2();
    (low * (2.0 * GAMMA / (1.0 + GAMMA))).min(f64::MAX)
}

/// The greatest value of a bin.
pub(super) fn bound_of(index: i32) -> f64 {
    (f64::from(index) / BINS_PER_OCTAVE).exp2().min(f64::MAX)
}

/// The bits of a mantissa that a shortened value does not keep. It keeps 8, so it is less than 0.4 % away: a bin and the
/// half of it that an end lies in remain.
const CUT_BITS: u64 = (1 << 44) - 1;

/// The least short number that is not below a value of the bin, or the bound of the bin if that is less.
pub(super) fn shortened_up(value: f64, index: i32) -> f64 {
    let short = f64::from_bits((value.to_bits() + CUT_BITS) & !CUT_BITS);
    // Whatever the rounding of the bound is, the value itself is not left out.
    value.max(short.min(bound_of(index)))
}

/// The greatest short number that is not above a value of the bin, or the bound of the bin if that is more.
pub(super) fn shortened_down(value: f64, index: i32) -> f64 {
    let short = f64::from_bits(value.to_bits() & !CUT_BITS);
    value.min(short.max(bound_of(index - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_end_at_the_powers_of_gamma() {
        assert_eq!(bin_at(place(1.0)), 0);
        assert_eq!(bin_at(place(1.0 + f64::EPSILON)), 1);
        assert_eq!((bin_at(place(GAMMA * 0.999)), bin_at(place(GAMMA * 1.001))), (1, 2));
        assert_eq!(bin_at(place(VALUE_MIN)), INDEX_MIN);
        assert_eq!(bin_at(place(f64::MAX)), INDEX_MAX);
        for (place, expected) in [(-1.5, -1), (-1.0, -1), (-0.5, 0), (0.0, 0), (0.5, 1), (1.0, 1)] {
            assert_eq!(bin_at(place), expected, "{place}");
        }
    }

    #[test]
    fn what_is_shortened_stays_near_and_in_its_bin() {
        for value in [1.0, 1.0001, 3.456_789, 99.99, 1e-9, 7e300, VALUE_MIN * 1.01] {
            let index = bin_at(place(value));
            let (up, down) = (shortened_up(value, index), shortened_down(value, index));
            assert!(down <= value && value <= up, "{value}: {down} {up}");
            assert!((up - down) / value < 0.008, "{value}: {down} {up}");
            assert!(
                up <= value.max(bound_of(index)) && down >= value.min(bound_of(index - 1)),
                "{value}"
            );
            // So that the sketch of parts is that of the whole.
            assert_eq!(
                (shortened_up(up, index), shortened_down(down, index)),
                (up, down),
                "{value}"
            );
        }
        assert!(shortened_up(f64::MAX, INDEX_MAX) == f64::MAX);
        assert_eq!((shortened_up(1.0, 0), shortened_down(1.0, 0)), (1.0, 1.0));
    }

    #[test]
    fn every_bin_is_near_what_it_stands_for() {
        for index in INDEX_MIN..=INDEX_MAX {
            let value = value_of(index);
            assert!(value.is_finite() && value >= VALUE_MIN * 0.98, "{index}: {value}");
            let low = (f64::from(index - 1) / BINS_PER_OCTAVE).exp2();
            let high = (f64::from(index) / BINS_PER_OCTAVE).exp2().min(f64::MAX);
            assert!((value - low) / low <= 0.010_000_001, "{index}");
            assert!((high - value) / high <= 0.010_000_001, "{index}");
        }
        assert_eq!(BINS_PER_OCTAVE, LN_2 * (1.0 / (2.0 * 0.01_f64 / 0.99).ln_1p()));
    }
}
