//! Converts numbers of any form to integers exactly: never through a double, which has 53 bits.

use thalweg_record::{Value, parse_decimal};

/// More digits exceed every integer that can be written.
const DIGITS_MAX: usize = 38;

/// A number in its original precision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum ExactNumber<'a> {
    Integer(i128),
    Float(f64),
    /// Sign, digits, fraction and exponent.
    Decimal(&'a str),
}

impl<'a> ExactNumber<'a> {
    /// Accepts numbers, and texts that are entirely a decimal number.
    pub fn of(value: &'a Value) -> Option<ExactNumber<'a>> {
        Some(match value {
            Value::U64(n) => ExactNumber::Integer(i128::from(*n)),
            Value::F32(n) => ExactNumber::Float(f64::from(*n)),
            Value::F64(n) => ExactNumber::Float(*n),
            Value::Decimal(text) => ExactNumber::Decimal(text),
            Value::Text(text) => {
                parse_decimal(text)?;
                ExactNumber::Decimal(text)
            }
            other => ExactNumber::Integer(i128::from(other.as_i64()?)),
        })
    }

    /// Truncates towards zero; values far beyond 64 bits saturate at the 128-bit bounds. `None` if it is not a number.
    pub fn truncated(self) -> Option<i128> {
        match self {
            ExactNumber::Integer(n) => Some(n),
            ExactNumber::Float(n) if n.is_nan() => None,
            // The cast truncates and saturates as required.
            ExactNumber::Float(n) => Some(n as i128),
            ExactNumber::Decimal(text) => Some(truncated(text)),
        }
    }

    /// `None` if it is not a number.
    pub fn is_zero(self) -> Option<bool> {
        match self {
            ExactNumber::Integer(n) => Some(n == 0),
            ExactNumber::Float(n) => (!n.is_nan()).then_some(n == 0.0),
            ExactNumber::Decimal(text) => {
                let digits = text.split(['e', 'E']).next().unwrap_or_default();
                Some(!digits.bytes().any(|b| matches!(b, b'1'..=b'9')))
            }
        }
    }
}

/// The whole part of a decimal number.
fn truncated(text: &str) -> i128 {
    let (negative, text) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let (mantissa, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = [whole, fraction].concat();
    let significant = digits.trim_start_matches('0');
    if significant.is_empty() {
        return 0;
    }
    // The number of significant digits before the point, including zeros after them if there are fewer.
    let zeros = (digits.len() - significant.len()) as i128;
    let before_point = whole.len() as i128 + power_of_ten(exponent) - zeros;
    let end = if negative { i128::MIN } else { i128::MAX };
    let Ok(before_point) = usize::try_from(before_point) else {
        return 0;
    };
    if before_point > DIGITS_MAX {
        return end;
    }
    let kept = significant.get(..before_point).unwrap_or(significant);
    let magnitude: i128 = format!("{kept:0<before_point$}").parse().unwrap_or(0);
    if negative { -magnitude } else { magnitude }
}

/// An exponent with too many digits saturates.
fn power_of_ten(exponent: &str) -> i128 {
    let end = if exponent.starts_with('-') { i64::MIN } else { i64::MAX };
    i128::from(exponent.parse::<i64>().unwrap_or(end))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(text: &str) -> i128 {
        ExactNumber::of(&Value::text(text)).unwrap().truncated().unwrap()
    }

    #[test]
    fn fractions_and_exponents_are_worked_out_digit_by_digit() {
        for (text, number) in [
            ("0", 0),
            ("-0", 0),
            ("+7", 7),
            ("007", 7),
            ("1.9", 1),
            ("-1.9", -1),
            (".5", 0),
            ("5.", 5),
            ("1e3", 1000),
            ("1.2345e2", 123),
            ("-1.2345e2", -123),
            ("12345e-2", 123),
            ("0.00123e5", 123),
            ("9223372036854775807.999", i128::from(i64::MAX)),
            ("1844674407370955161.5e1", i128::from(u64::MAX)),
            ("1e-99999999999999999999", 0),
            ("0e99999999999999999999", 0),
            ("1e99999999999999999999", i128::MAX),
            ("-1e39", i128::MIN),
        ] {
            assert_eq!(whole(text), number, "{text}");
        }
    }

    #[test]
    fn only_numbers_and_decimal_texts_are_numbers() {
        for value in [
            Value::Null,
            Value::Bool(true),
            Value::text(""),
            Value::text(" 1"),
            Value::text("NaN"),
            Value::text("0x10"),
            Value::from(vec![Value::I64(1)]),
        ] {
            assert_eq!(ExactNumber::of(&value), None, "{value:?}");
        }
        assert_eq!(ExactNumber::of(&Value::F64(f64::NAN)).unwrap().truncated(), None);
    }

    proptest! {
        /// The plain model: shift the digits of an integer, and divide by the shift.
        #[test]
        fn a_decimal_is_cut_off_where_division_cuts(n: i64, shift in 0u32..25) {
            let (n, power) = (i128::from(n), 10i128.pow(shift));
            prop_assert_eq!(whole(&format!("{n}e-{shift}")), n / power);
            let digits = format!("{:0>1$}", n.unsigned_abs(), shift as usize + 1);
            let (whole_part, fraction) = digits.split_at(digits.len() - shift as usize);
            let sign = if n < 0 { "-" } else { "" };
            prop_assert_eq!(whole(&format!("{sign}{whole_part}.{fraction}")), n / power);
            if let Some(product) = n.checked_mul(power).filter(|n| n.unsigned_abs() < 10u128.pow(38)) {
                prop_assert_eq!(whole(&format!("{n}e{shift}")), product);
            }
        }

        #[test]
        fn every_integer_stays_what_it_is(n: u64, m: i64) {
            prop_assert_eq!(ExactNumber::of(&Value::U64(n)).unwrap().truncated(), Some(i128::from(n)));
            prop_assert_eq!(whole(&n.to_string()), i128::from(n));
            prop_assert_eq!(ExactNumber::of(&Value::I64(m)).unwrap().truncated(), Some(i128::from(m)));
            prop_assert_eq!(whole(&m.to_string()), i128::from(m));
        }

        #[test]
        fn no_decimal_text_panics(text in "[-+]?[0-9]{0,60}\\.?[0-9]{0,60}([eE][-+]?[0-9]{1,30})?") {
            let value = Value::text(text.as_str());
            if let Some(number) = ExactNumber::of(&value) {
                let _ = (number.truncated(), number.is_zero());
            }
        }
    }
}
