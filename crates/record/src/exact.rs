//! Numbers for comparisons: integers exactly, whatever their size, all others as doubles.
//!
//! A 64-bit integer above 2^53 changes by steps that a double cannot represent, so comparisons and differences of
//! values use this type.

use crate::Value;

/// A number of its own kind.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    Signed(i64),
    /// Greater than any signed one.
    Unsigned(u64),
    Float(f64),
}

impl From<f64> for Number {
    fn from(number: f64) -> Number {
        Number::Float(number)
    }
}

impl From<i64> for Number {
    fn from(number: i64) -> Number {
        Number::Signed(number)
    }
}

impl Number {
    /// `None` if the value is not a number.
    pub fn of(value: &Value) -> Option<Number> {
        match (value.as_i64(), value) {
            (Some(number), _) => Some(Number::Signed(number)),
            (None, Value::U64(number)) => Some(Number::Unsigned(*number)),
            (None, other) => other.as_f64().map(Number::Float),
        }
    }

    fn integer(self) -> Option<i128> {
        match self {
            Number::Signed(number) => Some(number.into()),
            Number::Unsigned(number) => Some(number.into()),
            Number::Float(_) => None,
        }
    }

    fn integers(self, other: Number) -> Option<(i128, i128)> {
        self.integer().zip(other.integer())
    }

    /// The nearest double.
    pub fn as_f64(self) -> f64 {
        match self {
            Number::Signed(number) => number as f64,
            Number::Unsigned(number) => number as f64,
            Number::Float(number) => number,
        }
    }

    /// Whether both are integers, so that their distance is exact.
    pub fn are_integers(self, other: Number) -> bool {
        self.integers(other).is_some()
    }

    pub fn equals(self, other: Number) -> bool {
        match self.integers(other) {
            Some((a, b)) => a == b,
            None => self.as_f64() == other.as_f64(),
        }
    }

    /// The difference; only the result is rounded.
    pub fn minus(self, other: Number) -> f64 {
        match self.integers(other) {
            Some((a, b)) => (a - b) as f64,
            None => self.as_f64() - other.as_f64(),
        }
    }

    /// Whether the distance to another number is greater than a threshold, which is not negative.
    pub fn is_beyond(self, threshold: f64, other: Number) -> bool {
        if let Some((a, b)) = self.integers(other) {
            // A whole distance exceeds the threshold exactly if it exceeds its whole part.
            return (a - b).unsigned_abs() > threshold.floor() as u128;
        }
        let (a, b) = (self.as_f64(), other.as_f64());
        // NaN compares as unequal to everything, itself included: a change to or from it counts, a repeat does not.
        (a - b).abs() > threshold || a.is_nan() != b.is_nan()
    }

    /// Whether the distance to another number is at least a threshold, which is not negative.
    pub fn is_as_far_as(self, threshold: f64, other: Number) -> bool {
        match self.integers(other) {
            Some((a, b)) => (a - b).unsigned_abs() >= threshold.ceil() as u128,
            None => (self.as_f64() - other.as_f64()).abs() >= threshold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(value: Value) -> Number {
        Number::of(&value).unwrap()
    }

    #[test]
    fn integers_are_told_apart_where_doubles_are_not() {
        for (a, b) in [
            (Value::U64(u64::MAX - 1), Value::U64(u64::MAX)),
            (Value::I64(i64::MIN), Value::I64(i64::MIN + 1)),
            (Value::I64((1 << 53) + 1), Value::I64(1 << 53)),
            (Value::I64(i64::MAX), Value::U64(i64::MAX as u64 + 1)),
        ] {
            let (a, b) = (number(a), number(b));
            assert!(a.as_f64() == b.as_f64() && !a.equals(b) && a.equals(a), "{a:?} {b:?}");
            assert_eq!(a.minus(b).abs(), 1.0);
            assert!(a.is_beyond(0.5, b) && !a.is_beyond(1.0, b));
            assert!(a.is_as_far_as(1.0, b) && a.is_as_far_as(0.3, b) && !a.is_as_far_as(1.2, b));
        }
        // The distance between both ends exceeds any 64-bit number.
        assert!(number(Value::U64(u64::MAX)).is_beyond(1e19, number(Value::I64(i64::MIN))));
        assert!(
            number(Value::U64(7)).equals(number(Value::I8(7))),
            "whatever their types"
        );
    }

    #[test]
    fn all_others_are_compared_as_doubles() {
        let half = number(Value::F64(0.5));
        assert!(half.equals(number(Value::F32(0.5))) && !half.are_integers(number(Value::I64(1))));
        assert!(number(Value::I64(1)).is_as_far_as(0.5, half) && !number(Value::I64(1)).is_beyond(0.5, half));
        assert!(Number::of(&Value::text("1")).is_none() && Number::of(&Value::Bool(true)).is_none());
    }
}
