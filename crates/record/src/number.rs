//! Numbers as text: the shortest digits that read back equal, in the forms that consumers expect.

use std::fmt::Write as _;

/// A float as a plain decimal without exponent: `0.1`, `1000000`, `NaN`, `+Inf`, `-Inf`.
pub fn write_f64(value: f64, out: &mut String) {
    if value.is_finite() {
        let _ = write!(out, "{value}");
    } else {
        out.push_str(non_finite(value));
    }
}

/// Like [`write_f64`], with the shortest digits for single precision: `0.1`, not `0.10000000149011612`.
pub fn write_f32(value: f32, out: &mut String) {
    if value.is_finite() {
        let _ = write!(out, "{value}");
    } else {
        out.push_str(non_finite(f64::from(value)));
    }
}

fn non_finite(value: f64) -> &'static str {
    if value.is_nan() {
        "NaN"
    } else if value > 0.0 {
        "+Inf"
    } else {
        "-Inf"
    }
}

/// A float in G-form: shortest digits, exponent form (sign, at least two digits) when the decimal exponent is below -4
/// or at least 6. `0.5`, `123456`, `2.5e+06`, `1e-05`, `-0`, `NaN`, `+Inf`.
pub fn g_form(value: f64) -> String {
    if !value.is_finite() {
        return non_finite(value).to_owned();
    }
    if value == 0.0 {
        return if value.is_sign_negative() { "-0" } else { "0" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let Ok(exponent) = exponent.parse::<i32>() else {
        return scientific;
    };
    if (-4..6).contains(&exponent) {
        return value.to_string();
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

/// The nearest double of a text that is entirely a decimal number (sign, digits, fraction, exponent).
///
/// `NaN`, `Inf`, `0x1p4`, `1_000` and surrounding spaces are not decimal numbers. A number beyond the range of doubles
/// gives an infinity, which callers that need a finite value must refuse.
pub fn parse_decimal(text: &str) -> Option<f64> {
    is_decimal(text.as_bytes()).then(|| text.parse().ok()).flatten()
}

fn is_decimal(text: &[u8]) -> bool {
    fn digits(text: &[u8]) -> usize {
        text.iter().take_while(|b| b.is_ascii_digit()).count()
    }
    let rest = match text {
        [b'+' | b'-', rest @ ..] => rest,
        rest => rest,
    };
    let whole = digits(rest);
    let mut rest = rest.get(whole..).unwrap_or_default();
    let mut fraction = 0;
    if let [b'.', after @ ..] = rest {
        fraction = digits(after);
        rest = after.get(fraction..).unwrap_or_default();
    }
    if whole + fraction == 0 {
        return false;
    }
    if let [b'e' | b'E', after @ ..] = rest {
        let after = match after {
            [b'+' | b'-', after @ ..] => after,
            after => after,
        };
        let exponent = digits(after);
        return exponent > 0 && exponent == after.len();
    }
    rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn g_form_switches_to_an_exponent_at_the_documented_bounds() {
        for (value, text) in [
            (0.5, "0.5"),
            (123_456.0, "123456"),
            (999_999.0, "999999"),
            (1e6, "1e+06"),
            (2_500_000.0, "2.5e+06"),
            (0.0001, "0.0001"),
            (1e-5, "1e-05"),
            (1e100, "1e+100"),
            (-1234567.5, "-1.2345675e+06"),
            (f64::NAN, "NaN"),
            (f64::INFINITY, "+Inf"),
            (-0.0, "-0"),
        ] {
            assert_eq!(g_form(value), text);
        }
    }

    #[test]
    fn only_whole_decimal_texts_are_numbers() {
        for text in ["1", "-1.5", "+2", ".5", "5.", "1e5", "1E-5", "007"] {
            assert!(parse_decimal(text).is_some(), "{text}");
        }
        for text in [
            "", ".", "-", "NaN", "Inf", "0x1p4", "1_000", " 1", "1 ", "1e", "1e+", "--1", "1.2.3",
        ] {
            assert!(parse_decimal(text).is_none(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn every_form_reads_back_equal(bits: u64) {
            let value = f64::from_bits(bits);
            prop_assume!(value.is_finite());
            prop_assert_eq!(g_form(value).parse::<f64>().unwrap().to_bits(), value.to_bits());
            let mut plain = String::new();
            write_f64(value, &mut plain);
            prop_assert_eq!(plain.parse::<f64>().unwrap().to_bits(), value.to_bits());
        }
    }
}
