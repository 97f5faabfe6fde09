//! Values in JSON texts. A text is checked as a whole, once, and only a text that is JSON has values; a value is the part of
//! the text that it stands in, so nothing is copied and numbers keep their digits.
//!
//! All loops run over bytes, so nesting takes no stack, however deep it is; a text is read once to check it and once for each
//! step of a path, of which there are at most [`STEPS_MAX`].

use std::borrow::Cow;

use thalweg_kit::json_tokens::{JsonKind, is_whole};

/// Limit for the steps of a path, each of which reads the text once.
pub const STEPS_MAX: usize = 64;

/// A double holds each integer up to this one.
const EXACT_MAX: f64 = (1_u64 << 53) as f64;

/// One step of a path.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PathStep<'a> {
    /// The member of an object. In an array, a text that spells a number is that position.
    Key(&'a str),
    /// The position in an array, from 0; negative ones count from the end.
    Position(i64),
}

/// A value within a text that is JSON, without spaces around it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JsonValue<'a>(&'a str);

impl<'a> JsonValue<'a> {
    /// The value of a text. `None`: it is no JSON.
    pub fn of(text: &'a str) -> Option<JsonValue<'a>> {
        is_whole(text).then(|| JsonValue::of_checked(text))
    }

    /// The value of a text that [`JsonValue::of`] has checked.
    pub fn of_checked(text: &'a str) -> JsonValue<'a> {
        JsonValue(text.trim_matches(|letter: char| is_space(letter as u32)))
    }

    /// The value at the end of a path.
    pub fn at(self, path: &[PathStep<'_>]) -> Option<JsonValue<'a>> {
        path.iter().try_fold(self, |value, step| value.step(*step))
    }

    fn step(self, step: PathStep<'_>) -> Option<JsonValue<'a>> {
        match (self.kind(), step) {
            // Of members with one name the last counts, as everywhere.
            (JsonKind::Object, PathStep::Key(name)) => {
                let named = self.members().filter(|(key, _)| key.is_string(name));
                named.map(|(_, value)| value).last()
            }
            (JsonKind::Array, PathStep::Position(position)) => self.element(position),
            (JsonKind::Array, PathStep::Key(name)) => self.element(name.parse().ok()?),
            _ => None,
        }
    }

    fn element(self, position: i64) -> Option<JsonValue<'a>> {
        let position = match usize::try_from(position) {
            Ok(position) => position,
            Err(_) => {
                let back = usize::try_from(position.unsigned_abs()).ok()?;
                self.elements().count().checked_sub(back)?
            }
        };
        self.elements().nth(position)
    }

    /// The value as JSON.
    pub fn json(self) -> &'a str {
        self.0
    }

    pub fn kind(self) -> JsonKind {
        JsonKind::of(self.0)
    }

    /// The letters of a string.
    pub fn string(self) -> Option<Cow<'a, str>> {
        let inner = self.0.strip_prefix('"')?.strip_suffix('"')?;
        match inner.contains('\\') {
            false => Some(Cow::Borrowed(inner)),
            // A half of a surrogate pair is no letter.
            true => serde_json::from_str(self.0).ok().map(Cow::Owned),
        }
    }

    fn is_string(self, text: &str) -> bool {
        self.string().is_some_and(|string| string == text)
    }

    /// A string without its quotes, other values as JSON. `None`: it is null.
    pub fn text(self) -> Option<Cow<'a, str>> {
        match self.kind() {
            JsonKind::Null => None,
            JsonKind::String => self.string(),
            _ => Some(Cow::Borrowed(self.0)),
        }
    }

    /// A whole number, also one written as `2.0` or `2e3`.
    pub fn integer(self) -> Option<i64> {
        if self.kind() != JsonKind::Number {
            return None;
        }
        let of_double = |value: f64| match value.fract() == 0.0 && value.abs() <= EXACT_MAX {
            true => Some(value as i64),
            false => None,
        };
        match self.0.contains(['.', 'e', 'E']) {
            false => self.0.parse().ok(),
            true => self.0.parse().ok().and_then(of_double),
        }
    }

    /// The double next to a number. `None`: none is near, as for `1e999`.
    pub fn double(self) -> Option<f64> {
        if self.kind() != JsonKind::Number {
            return None;
        }
        self.0.parse().ok().filter(|value: &f64| value.is_finite())
    }

    pub fn boolean(self) -> Option<bool> {
        match self.0 {
            "true" => Some(true),
            "false" => Some(false),
            _ => None,
        }
    }

    /// The number of elements or members.
    pub fn length(self) -> Option<usize> {
        match self.kind() {
            JsonKind::Array => Some(self.elements().count()),
            JsonKind::Object => Some(self.members().count()),
            _ => None,
        }
    }

    /// Whether an object has a member of this name, an array this text among its elements, or a string is this text.
    pub fn has(self, text: &str) -> bool {
        match self.kind() {
            JsonKind::Object => self.members().any(|(key, _)| key.is_string(text)),
            JsonKind::Array => self.elements().any(|element| element.is_string(text)),
            _ => self.is_string(text),
        }
    }

    /// The elements of an array; none of other values.
    pub fn elements(self) -> impl Iterator<Item = JsonValue<'a>> {
        let mut parts = self.parts(JsonKind::Array);
        std::iter::from_fn(move || parts.next())
    }

    /// The members of an object with their names; none of other values.
    pub fn members(self) -> impl Iterator<Item = (JsonValue<'a>, JsonValue<'a>)> {
        let mut parts = self.parts(JsonKind::Object);
        std::iter::from_fn(move || Some((parts.next()?, parts.next()?)))
    }

    fn parts(self, kind: JsonKind) -> JsonParts<'a> {
        let rest = match self.kind() == kind {
            true => self.0.get(1..).unwrap_or_default(),
            false => "",
        };
        JsonParts { rest }
    }
}

fn is_space(letter: u32) -> bool {
    matches!(letter, 0x20 | 0x09 | 0x0a | 0x0d)
}

/// The values of an array or an object, one after the other; the text is JSON.
struct JsonParts<'a> {
    rest: &'a str,
}

impl<'a> JsonParts<'a> {
    fn next(&mut self) -> Option<JsonValue<'a>> {
        let is_between = |letter: char| is_space(letter as u32) || matches!(letter, ',' | ':');
        let from = self.rest.trim_start_matches(is_between);
        let (value, rest) = from.split_at_checked(value_end(from.as_bytes()))?;
        self.rest = rest;
        match value.is_empty() {
            true => None,
            false => Some(JsonValue(value)),
        }
    }
}

/// The end of the value that JSON begins with; 0 behind the last value.
fn value_end(bytes: &[u8]) -> usize {
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at += string_end(bytes.get(at + 1..).unwrap_or_default()),
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return at,
            b'}' | b']' => depth -= 1,
            b',' | b' ' | b'\t' | b'\n' | b'\r' if depth == 0 => return at,
            // Of a number or a word.
            _ if depth == 0 => {
                at += 1;
                continue;
            }
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
    at
}

/// The bytes of a string behind its first quote, with the second.
fn string_end(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the parser of serde_json, which builds trees: all paths of texts made at random.
    #[test]
    fn values_are_where_a_parser_finds_them() {
        let mut seed = 7_u64;
        let mut below = move |limit: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % limit
        };
        for _ in 0..3_000 {
            let tree = made(&mut below, 4);
            let text = match below(2) {
                0 => tree.to_string(),
                _ => serde_json::to_string_pretty(&tree).unwrap(),
            };
            compare(JsonValue::of(&text).unwrap(), &tree);
            // A part of it is JSON only if the parser says so.
            let cut = (0..=text.len())
                .rev()
                .find(|at| text.is_char_boundary(*at) && below(9) == 0);
            let part = &text[..cut.unwrap_or(0)];
            let is_json = serde_json::from_str::<serde_json::Value>(part).is_ok();
            assert_eq!(JsonValue::of(part).is_some(), is_json, "{part}");
        }
    }

    fn made(below: &mut impl FnMut(u64) -> u64, depth: u64) -> serde_json::Value {
        const TEXTS: [&str; 7] = ["", "a", "b\"c", "\\", "ä\n", "]}", ",:"];
        let text = |below: &mut dyn FnMut(u64) -> u64| TEXTS[below(TEXTS.len() as u64) as usize];
        match below(if depth == 0 { 5 } else { 8 }) {
            0 => serde_json::Value::Null,
            1 => (below(2) == 0).into(),
            2 => (below(1_000) as i64 - 500).into(),
            3 => (below(1_000) as f64 / 8.0).into(),
            4 => text(below).into(),
            5 | 6 => {
                let members = below(4);
                let member = |_| (text(below).to_owned(), made(below, depth - 1));
                serde_json::Value::Object((0..members).map(member).collect())
            }
            _ => {
                let elements = below(4);
                (0..elements).map(|_| made(below, depth - 1)).collect()
            }
        }
    }

    fn compare(found: JsonValue<'_>, tree: &serde_json::Value) {
        assert_eq!(serde_json::from_str::<serde_json::Value>(found.json()).unwrap(), *tree);
        assert_eq!(found.string().as_deref(), tree.as_str());
        assert_eq!((found.boolean(), found.double()), (tree.as_bool(), tree.as_f64()));
        match tree {
            serde_json::Value::Object(members) => {
                assert_eq!(found.length(), Some(members.len()));
                for (name, value) in members {
                    assert!(found.has(name));
                    compare(found.at(&[PathStep::Key(name)]).unwrap(), value);
                }
                assert_eq!(found.at(&[PathStep::Key("none")]), None);
            }
            serde_json::Value::Array(elements) => {
                assert_eq!(found.length(), Some(elements.len()));
                for (at, value) in elements.iter().enumerate() {
                    let (at, length) = (at as i64, elements.len() as i64);
                    compare(found.at(&[PathStep::Position(at)]).unwrap(), value);
                    compare(found.at(&[PathStep::Position(at - length)]).unwrap(), value);
                    compare(found.at(&[PathStep::Key(&at.to_string())]).unwrap(), value);
                }
                let length = elements.len() as i64;
                assert_eq!(found.at(&[PathStep::Position(length)]), None);
                assert_eq!(found.at(&[PathStep::Position(-length - 1)]), None);
            }
            _ => assert_eq!(found.length(), None),
        }
    }

    #[test]
    fn numbers_are_exact_or_none() {
        for (text, integer, double) in [
            ("9223372036854775807", Some(i64::MAX), Some(i64::MAX as f64)),
            ("-9223372036854775808", Some(i64::MIN), Some(i64::MIN as f64)),
            ("9223372036854775808", None, Some(9_223_372_036_854_775_808.0)),
            ("2.0", Some(2), Some(2.0)),
            ("2e3", Some(2000), Some(2000.0)),
            ("1e16", None, Some(1e16)),
            ("2.5", None, Some(2.5)),
            ("-0", Some(0), Some(-0.0)),
            ("1e999", None, None),
            ("\"7\"", None, None),
            ("true", None, None),
        ] {
            let value = JsonValue::of(text).unwrap();
            assert_eq!((value.integer(), value.double()), (integer, double), "{text}");
        }
        let long = format!("[{}]", "9".repeat(1_000_000));
        assert_eq!(
            JsonValue::of(&long)
                .unwrap()
                .at(&[PathStep::Position(0)])
                .unwrap()
                .double(),
            None
        );
    }

    #[test]
    fn of_equal_names_the_last_counts_and_escapes_are_read() {
        let value = JsonValue::of(r#"{"a":{"b":1},"\u0061":{"c":"x\ty"},"d":"\ud83d\ude00","e":"\ud83d"}"#).unwrap();
        assert_eq!(value.at(&[PathStep::Key("a"), PathStep::Key("b")]), None);
        let text = |path: &[PathStep<'_>]| value.at(path).and_then(JsonValue::text).map(Cow::into_owned);
        assert_eq!(text(&[PathStep::Key("a"), PathStep::Key("c")]).unwrap(), "x\ty");
        assert_eq!(text(&[PathStep::Key("d")]).unwrap(), "😀");
        assert_eq!(text(&[PathStep::Key("e")]), None, "half of a pair");
    }
}
