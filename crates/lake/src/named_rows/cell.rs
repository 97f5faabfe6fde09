//! A value in a file, and its conversions to column types.

use std::borrow::Cow;
use std::fmt::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::time;
use thalweg_columns::rows::double_text::write_double;

/// A value. A text stays a text whatever it contains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum CellValue<'a> {
    Null,
    Bool(bool),
    /// Digits as in the file.
    Number(&'a str),
    Text(&'a str),
    Bytes(&'a [u8]),
    /// A time in nanoseconds since 1970.
    Time(i128),
    /// A list or an object, as JSON.
    Json(&'a str),
}

/// How much of a value an error shows.
const SHOWN_CHARACTERS: usize = 60;

impl CellValue<'_> {
    /// Writes the value as an attribute text.
    pub fn write(&self, out: &mut String) {
        match *self {
            CellValue::Null => {}
            CellValue::Bool(value) => out.push_str(if value { "true" } else { "false" }),
            CellValue::Number(digits) => write_number(digits, out),
            CellValue::Text(text) => out.push_str(text),
            CellValue::Bytes(bytes) => BASE64_STANDARD.encode_string(bytes, out),
            CellValue::Time(nanos) => out.push_str(&time::text_of(nanos)),
            CellValue::Json(json) => compact(json, out),
        }
    }

    /// The `body_kind` of a log body that is no text.
    pub fn kind(&self) -> Option<&'static str> {
        match self {
            CellValue::Null | CellValue::Text(_) | CellValue::Time(_) => None,
            CellValue::Bool(_) => Some("bool"),
            CellValue::Number(digits) if is_integer(digits) => Some("int"),
            CellValue::Number(_) => Some("double"),
            CellValue::Bytes(_) => Some("bytes"),
            CellValue::Json(json) if json.starts_with('[') => Some("array"),
            CellValue::Json(_) => Some("map"),
        }
    }

    pub fn long(&self) -> Option<i64> {
        match *self {
            CellValue::Bool(value) => Some(value.into()),
            CellValue::Number(digits) | CellValue::Text(digits) => {
                let digits = digits.trim();
                digits.parse().ok().or_else(|| {
                    let number = digits.parse::<f64>().ok()?;
                    let is_whole = number.fract() == 0.0 && number.abs() < WHOLE_MAX;
                    is_whole.then_some(number as i64)
                })
            }
            CellValue::Time(nanos) => i64::try_from(nanos).ok(),
            _ => None,
        }
    }

    /// A time in nanoseconds. A text may be a time, too.
    pub fn nanos(&self) -> Option<i64> {
        match *self {
            CellValue::Text(text) if self.long().is_none() => i64::try_from(time::of_text(text)?).ok(),
            _ => self.long(),
        }
    }

    pub fn double(&self) -> Option<f64> {
        match *self {
            CellValue::Bool(value) => Some(f64::from(u8::from(value))),
            CellValue::Number(digits) | CellValue::Text(digits) => digits.trim().parse().ok(),
            _ => None,
        }
    }

    pub fn boolean(&self) -> Option<bool> {
        match *self {
            CellValue::Bool(value) => Some(value),
            CellValue::Number(text) | CellValue::Text(text) => match text.trim() {
                "1" => Some(true),
                "0" => Some(false),
                word if word.eq_ignore_ascii_case("true") => Some(true),
                word if word.eq_ignore_ascii_case("false") => Some(false),
                _ => None,
            },
            _ => None,
        }
    }

    /// The value for an error message.
    pub fn shown(&self) -> String {
        let mut text = String::new();
        self.write(&mut text);
        match text.char_indices().nth(SHOWN_CHARACTERS) {
            Some((end, _)) => format!("{:?}…", text.get(..end).unwrap_or_default()),
            None => format!("{text:?}"),
        }
    }
}

/// Doubles represent all whole numbers up to here exactly.
const WHOLE_MAX: f64 = 9_007_199_254_740_992.0;

fn is_integer(digits: &str) -> bool {
    digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

/// Whole numbers keep their digits, others get the shortest representation.
fn write_number(digits: &str, out: &mut String) {
    match digits.parse::<f64>() {
        Ok(number) if !is_integer(digits) => write_double(number, out),
        _ => out.push_str(digits),
    }
}

/// JSON without insignificant white space.
pub(super) fn compact(json: &str, out: &mut String) {
    let mut rest = json;
    loop {
        let Some(at) = rest.find(['"', ' ', '\n', '\r', '\t']) else {
            return out.push_str(rest);
        };
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let len = match from.starts_with('"') {
            true => {
                let len = text_len(from);
                out.push_str(from.get(..len).unwrap_or(from));
                len
            }
            false => 1,
        };
        rest = from.get(len..).unwrap_or_default();
    }
}

/// The length of a quoted text.
fn text_len(from: &str) -> usize {
    let mut is_escaped = false;
    for (at, byte) in from.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    from.len()
}

/// Replaces invalid UTF-8 by U+FFFD, and returns whether there was any.
pub(crate) fn text(bytes: &[u8]) -> (Cow<'_, str>, bool) {
    match std::str::from_utf8(bytes) {
        Ok(text) => (Cow::Borrowed(text), false),
        Err(_) => (Cow::Owned(String::from_utf8_lossy(bytes).into_owned()), true),
    }
}

/// Writes bytes as hexadecimal digits.
pub(super) fn write_hex(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02x}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_what_they_say() {
        let text = |cell: CellValue<'_>| {
            let mut out = String::new();
            cell.write(&mut out);
            out
        };
        for (cell, expected) in [
            (CellValue::Number("1.50"), "1.5"),
            (CellValue::Number("1e3"), "1000"),
            (CellValue::Number("12345678901234567890123"), "12345678901234567890123"),
            (CellValue::Text("1.50"), "1.50"),
            (CellValue::Bool(true), "true"),
            (CellValue::Bytes(&[1, 2, 255]), "AQL/"),
            (CellValue::Time(1_704_164_645_000_000_000), "2024-01-02T03:04:05Z"),
            (
                CellValue::Json("{ \"a b\" :\t[1, \"x\\\" y\"]\n}"),
                "{\"a b\":[1,\"x\\\" y\"]}",
            ),
            (CellValue::Json("[\"open"), "[\"open"),
        ] {
            assert_eq!(text(cell), expected);
        }
        assert_eq!(
            (CellValue::Number("7.0").long(), CellValue::Number("7.5").long()),
            (Some(7), None)
        );
        assert_eq!(CellValue::Number("18446744073709551615").long(), None);
        assert_eq!(CellValue::Text(" 9223372036854775807 ").long(), Some(i64::MAX));
        assert_eq!(
            CellValue::Text("2024-01-02T03:04:05Z").nanos(),
            Some(1_704_164_645_000_000_000)
        );
        assert_eq!(
            (CellValue::Text("1e3").double(), CellValue::Json("{}").double()),
            (Some(1000.0), None)
        );
        assert_eq!(
            (CellValue::Text("TRUE").boolean(), CellValue::Number("2").boolean()),
            (Some(true), None)
        );
        let kinds = [
            CellValue::Number("1"),
            CellValue::Number("1.0"),
            CellValue::Json("[]"),
            CellValue::Json("{}"),
            CellValue::Text(""),
        ];
        assert_eq!(
            kinds.map(|cell| cell.kind()),
            [Some("int"), Some("double"), Some("array"), Some("map"), None]
        );
        assert!(CellValue::Text(&"x".repeat(99)).shown().ends_with("x\"…"));
    }
}
