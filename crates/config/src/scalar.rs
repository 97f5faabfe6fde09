//! The meaning of a YAML scalar: null, boolean, number or text.
//!
//! The rules are those of the reference system's YAML library, which follows YAML 1.2 and keeps a few forms of 1.1:
//! underscores in numbers, `0x`, `0o`, `0b`, and a leading zero for octal.

/// The meaning of a scalar; its written text is kept beside it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum ScalarValue {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str,
}

/// The meaning of a plain (unquoted, untagged) scalar.
pub(crate) fn resolve(text: &str) -> ScalarValue {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return ScalarValue::Null,
        "true" | "True" | "TRUE" => return ScalarValue::Bool(true),
        "false" | "False" | "FALSE" => return ScalarValue::Bool(false),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return ScalarValue::Float(f64::INFINITY);
        }
        "-.inf" | "-.Inf" | "-.INF" => return ScalarValue::Float(f64::NEG_INFINITY),
        ".nan" | ".NaN" | ".NAN" => return ScalarValue::Float(f64::NAN),
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return ScalarValue::Str;
    }
    let plain: String = text.chars().filter(|&c| c != '_').collect();
    if let Some(number) = integer(&plain) {
        return ScalarValue::Int(number);
    }
    if is_decimal(&plain)
        && let Ok(number) = plain.parse::<f64>()
        && number.is_finite()
    {
        return ScalarValue::Float(number);
    }
    ScalarValue::Str
}

/// The meaning of a scalar with a `!!tag` of the core schema, or why it does not fit.
pub(crate) fn tagged(tag: &str, text: &str) -> Result<ScalarValue, String> {
    let wrong = |what: &str| Err(format!("!!{tag} needs {what}, got {}", crate::names::quoted(text)));
    match (tag, resolve(text.trim())) {
        ("str", _) => Ok(ScalarValue::Str),
        ("int", number @ ScalarValue::Int(_)) => Ok(number),
        ("int", _) => wrong("a whole number"),
        ("float", ScalarValue::Int(number)) => Ok(ScalarValue::Float(number as f64)),
        ("float", number @ ScalarValue::Float(_)) => Ok(number),
        ("float", _) => wrong("a number"),
        ("bool", truth @ ScalarValue::Bool(_)) => Ok(truth),
        ("bool", _) => wrong("true or false"),
        ("null", ScalarValue::Null) => Ok(ScalarValue::Null),
        ("null", _) => wrong("no value"),
        _ => Err(format!("unknown tag !!{tag}; use !!str, !!int, !!float or !!bool")),
    }
}

fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, digits.get(2..)?),
        [b'0', b'o' | b'O', ..] => (8, digits.get(2..)?),
        [b'0', b'b' | b'B', ..] => (2, digits.get(2..)?),
        [b'0', _, ..] => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    if !digits.starts_with(|c: char| c.is_digit(radix)) {
        return None;
    }
    let magnitude = i128::from(u64::from_str_radix(digits, radix).ok()?);
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// `[-+]? (digits [. digits?] | . digits) ([eE] [-+]? digits)?`
fn is_decimal(text: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (number, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, Some(exponent)),
        None => (unsigned, None),
    };
    let exponent_fits = exponent.is_none_or(|e| digits(e.strip_prefix(['+', '-']).unwrap_or(e)));
    let number_fits = match number.split_once('.') {
        Some(("", fraction)) => digits(fraction),
        Some((whole, fraction)) => digits(whole) && (fraction.is_empty() || digits(fraction)),
        None => digits(number),
    };
    exponent_fits && number_fits
}

#[cfg(test)]
mod tests {
    use super::*;
    use ScalarValue::{Bool, Float, Int, Null, Str};

    #[test]
    fn plain_scalars() {
        let cases = [
            ("", Null),
            ("~", Null),
            ("null", Null),
            ("true", Bool(true)),
            ("FALSE", Bool(false)),
            ("yes", Str),
            ("0", Int(0)),
            ("-17", Int(-17)),
            ("+5", Int(5)),
            ("007", Int(7)),
            ("010", Int(8)),
            ("08", Float(8.0)),
            ("0x1F", Int(31)),
            ("0o17", Int(15)),
            ("0b101", Int(5)),
            ("1_000", Int(1000)),
            ("9223372036854775807", Int(i64::MAX)),
            ("-9223372036854775808", Int(i64::MIN)),
            ("9223372036854775808", Float(9_223_372_036_854_775_808.0)),
            ("1.5", Float(1.5)),
            ("1.", Float(1.0)),
            (".5", Float(0.5)),
            ("1e3", Float(1000.0)),
            ("-1.5E-3", Float(-0.0015)),
            (".inf", Float(f64::INFINITY)),
            ("1e999", Str),
            ("0x", Str),
            ("0x-5", Str),
            ("--5", Str),
            ("1.2.3", Str),
            ("1e", Str),
            (".", Str),
            ("-", Str),
            ("5s", Str),
            ("inf", Str),
            ("nan", Str),
        ];
        for (text, expected) in cases {
            assert_eq!(resolve(text), expected, "for {text:?}");
        }
        assert!(matches!(resolve(".nan"), Float(f) if f.is_nan()));
    }

    #[test]
    fn tags() {
        assert_eq!(tagged("int", "5"), Ok(Int(5)));
        assert_eq!(tagged("str", "5"), Ok(Str));
        assert_eq!(tagged("float", "5"), Ok(Float(5.0)));
        assert_eq!(tagged("bool", "true"), Ok(Bool(true)));
        assert_eq!(
            tagged("int", "x"),
            Err("!!int needs a whole number, got \"x\"".to_owned())
        );
        let unknown = "unknown tag !!set; use !!str, !!int, !!float or !!bool";
        assert_eq!(tagged("set", "x"), Err(unknown.to_owned()));
    }
}
