//! Bins of both signs in the order of their values.

use super::mapping::{INDEX_MIN, shortened_down, shortened_up, value_of};

/// A bin of either sign, or that of zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SignedBin(i32);

/// What the index of a bin differs by from its distance to the bin of zeros.
const SHIFT: i32 = 1 - INDEX_MIN;

impl SignedBin {
    const ZERO: SignedBin = SignedBin(0);

    /// The bin of these magnitudes.
    #[inline]
    pub fn of(index: i32, is_negative: bool) -> SignedBin {
        match is_negative {
            true => SignedBin(-(index + SHIFT)),
            false => SignedBin(index + SHIFT),
        }
    }

    /// The value that represents the bin.
    pub fn value(self) -> f64 {
        self.map(0.0, value_of, |index| -value_of(index))
    }

    /// A short number that is not below a value of the bin.
    pub fn shortened_up(self, value: f64) -> f64 {
        let negative = |index| -shortened_down(-value, index);
        self.map(value, |index| shortened_up(value, index), negative)
    }

    /// A short number that is not above a value of the bin.
    pub fn shortened_down(self, value: f64) -> f64 {
        let negative = |index| -shortened_up(-value, index);
        self.map(value, |index| shortened_down(value, index), negative)
    }

    fn map(self, zero: f64, positive: impl FnOnce(i32) -> f64, negative: impl FnOnce(i32) -> f64) -> f64 {
        match self.0 {
            0 => zero,
            1.. => positive(self.0 - SHIFT),
            ..0 => negative(-self.0 - SHIFT),
        }
    }
}

/// The lowest and the highest bin, given the range of the bins of each sign and the count of zeros.
#[inline]
pub(super) fn outermost(
    negative: Option<(i32, i32)>,
    zeros: f64,
    positive: Option<(i32, i32)>,
) -> Option<(SignedBin, SignedBin)> {
    let below = negative.map(|(low, high)| (SignedBin::of(high, true), SignedBin::of(low, true)));
    let zero = (zeros > 0.0).then_some((SignedBin::ZERO, SignedBin::ZERO));
    let above = positive.map(|(low, high)| (SignedBin::of(low, false), SignedBin::of(high, false)));
    let (lowest, _) = below.or(zero).or(above)?;
    let (_, highest) = above.or(zero).or(below)?;
    Some((lowest, highest))
}

#[cfg(test)]
mod tests {
    use super::super::mapping::INDEX_MAX;
    use super::*;

    #[test]
    fn bins_are_in_the_order_of_their_values() {
        let negative = [INDEX_MAX, 2, -3, INDEX_MIN].map(|index| SignedBin::of(index, true));
        let positive = [INDEX_MIN, -3, 2, INDEX_MAX].map(|index| SignedBin::of(index, false));
        let bins = [&negative[..], &[SignedBin::ZERO], &positive].concat();
        assert!(bins.is_sorted_by(|one, other| one < other), "{bins:?}");
        assert!(bins.iter().map(|bin| bin.value()).is_sorted(), "{bins:?}");
        assert_eq!(
            (bins[4].value(), bins[7].value(), bins[1].value()),
            (0.0, value_of(2), -value_of(2))
        );
        let range = Some((-3, 2));
        for (negative, zeros, positive, expected) in [
            (None, 0.0, None, None),
            (range, 0.0, None, Some((1, 2))),
            (range, 1.0, None, Some((1, 4))),
            (range, 1.0, range, Some((1, 7))),
            (range, 0.0, range, Some((1, 7))),
            (None, 1.0, None, Some((4, 4))),
            (None, 1.0, range, Some((4, 7))),
            (None, 0.0, range, Some((6, 7))),
        ] {
            let expected = expected.map(|(low, high): (usize, usize)| (bins[low], bins[high]));
            assert_eq!(
                outermost(negative, zeros, positive),
                expected,
                "{negative:?} {zeros} {positive:?}"
            );
        }
    }
}
