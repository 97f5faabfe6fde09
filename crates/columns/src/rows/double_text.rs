//! Doubles as text.

use std::fmt::Write as _;

/// Writes the shortest digits that parse to the same value, as JavaScript does: with an exponent from 1e21 on and below
/// 1e-6.
#[inline]
pub fn write_double(value: f64, out: &mut String) {
    let size = value.abs();
    if (1e-4..1e15).contains(&size) {
        // In this range the formats differ only in a trailing `.0`.
        let mut digits = zmij::Buffer::new();
        let digits = digits.format_finite(value);
        out.push_str(digits.strip_suffix(".0").unwrap_or(digits));
        return;
    }
    // Writing to a string cannot fail.
    let _ = match value {
        value if value.is_nan() => write!(out, "NaN"),
        value if value.is_infinite() => write!(out, "{}Infinity", if value < 0.0 { "-" } else { "" }),
        value if size >= 1e21 => write!(out, "{}", format!("{value:e}").replace('e', "e+")),
        value if size < 1e-6 && size > 0.0 => write!(out, "{value:e}"),
        value => write!(out, "{value}"),
    };
}
