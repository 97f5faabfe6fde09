//! Strict JSON: parses a text from outside into members and values, or reports the position and the broken rule.
//!
//! An unknown or repeated member is an error that names the nearest known one. Values stay as they were written until
//! they are read, so a payload keeps its numbers to the last digit.

use std::fmt;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::{MapAccess, Visitor};
use serde_json::value::RawValue;
use thalweg_config::{nearest, parse_duration};

use crate::problem::{Problem, Result};

/// How many characters of an invalid text an error quotes.
const QUOTED_CHARS_MAX: usize = 60;

/// The members of one object that are not read yet.
pub struct JsonObject<'a> {
    /// Where the object is: `nack[3].`, or empty for the body itself.
    place: String,
    members: Vec<(String, &'a RawValue)>,
    known: &'static [&'static str],
}

impl<'a> JsonObject<'a> {
    /// Parses the body of a request, an object with these members; an empty body is an empty object.
    pub fn of_body(body: &'a [u8], known: &'static [&'static str]) -> Result<JsonObject<'a>> {
        if body.trim_ascii().is_empty() {
            return JsonObject::of("{}", String::new(), known);
        }
        let text = std::str::from_utf8(body)
            .map_err(|error| Problem::invalid(format!("the body is not UTF-8 at byte {}", error.valid_up_to())))?;
        JsonObject::of(text, String::new(), known)
    }

    pub fn of(text: &'a str, place: String, known: &'static [&'static str]) -> Result<JsonObject<'a>> {
        let pairs: JsonPairs<'a> = serde_json::from_str(text)
            .map_err(|error| Problem::invalid(format!("{place}expected a JSON object: {error}")))?;
        for (n, (name, _)) in pairs.0.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                let near = nearest(name, known);
                return Err(Problem::invalid(format!("{place}{}: unknown field{near}", cut(name))));
            }
            if pairs.0.iter().take(n).any(|(other, _)| other == name) {
                return Err(Problem::invalid(format!("{place}{name}: given twice")));
            }
        }
        Ok(JsonObject {
            place,
            members: pairs.0,
            known,
        })
    }

    /// The value as it was written; `null` counts as missing.
    pub fn raw(&self, name: &str) -> Option<&'a RawValue> {
        debug_assert!(self.known.contains(&name));
        let found = self.members.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| *value).filter(|value| value.get() != "null")
    }

    /// Whether it is given, even as `null`.
    pub fn is_there(&self, name: &str) -> bool {
        self.members.iter().any(|(known, _)| known == name)
    }

    pub fn raw_or_null(&self, name: &str) -> &'a str {
        self.raw(name).map_or("null", RawValue::get)
    }

    pub fn wrong(&self, name: &str, expected: &str) -> Problem {
        let got = self.raw(name).map_or("nothing", RawValue::get);
        let place = &self.place;
        Problem::invalid(format!("{place}{name}: expected {expected}, got {}", cut(got)))
    }

    fn read<T: Deserialize<'a>>(&self, name: &str, expected: &str) -> Result<Option<T>> {
        let Some(raw) = self.raw(name) else {
            return Ok(None);
        };
        serde_json::from_str(raw.get())
            .map(Some)
            .map_err(|_| self.wrong(name, expected))
    }

    pub fn text(&self, name: &str) -> Result<Option<String>> {
        self.read(name, "a text")
    }

    pub fn required_text(&self, name: &str) -> Result<String> {
        self.text(name)?.ok_or_else(|| self.wrong(name, "a text"))
    }

    /// Bytes in base64.
    pub fn bytes(&self, name: &str) -> Result<Option<Bytes>> {
        let Some(text) = self.text(name)? else {
            return Ok(None);
        };
        let bytes = BASE64.decode(text.as_bytes());
        let bytes = bytes.map_err(|_| self.wrong(name, "base64 with padding"))?;
        Ok(Some(Bytes::from(bytes)))
    }

    /// A whole number in a range.
    pub fn number(&self, name: &str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
        let expected = format!("a whole number from {} to {}", range.start(), range.end());
        match self.read::<u64>(name, &expected)? {
            Some(number) if !range.contains(&number) => Err(self.wrong(name, &expected)),
            number => Ok(number),
        }
    }

    /// A text such as `30s`, or milliseconds as a number or a text.
    pub fn duration(&self, name: &str, range: std::ops::RangeInclusive<Duration>) -> Result<Option<Duration>> {
        let Some(raw) = self.raw(name) else {
            return Ok(None);
        };
        let text: String = serde_json::from_str(raw.get()).unwrap_or_else(|_| raw.get().to_owned());
        match duration(&text) {
            Some(duration) if range.contains(&duration) => Ok(Some(duration)),
            Some(_) => Err(self.wrong(name, &format!("from {:?} to {:?}", range.start(), range.end()))),
            None => Err(self.wrong(name, "a duration such as 30s, or milliseconds")),
        }
    }

    /// The entries of a list; empty if it is not given.
    pub fn list<T: Deserialize<'a>>(&self, name: &str, expected: &str) -> Result<Vec<T>> {
        Ok(self.read(name, expected)?.unwrap_or_default())
    }

    /// Names with texts.
    pub fn texts(&self, name: &str) -> Result<Vec<(String, String)>> {
        let expected = "an object of texts";
        let Some(pairs) = self.read::<JsonPairs<'a>>(name, expected)? else {
            return Ok(Vec::new());
        };
        let text = |(key, raw): (String, &RawValue)| match serde_json::from_str(raw.get()) {
            Ok(value) => Ok((key, value)),
            Err(_) => {
                let place = format!("{}{name}.{}", self.place, cut(&key));
                Err(Problem::invalid(format!(
                    "{place}: expected a text, got {}",
                    cut(raw.get())
                )))
            }
        };
        pairs.0.into_iter().map(text).collect()
    }

    pub fn place(&self) -> &str {
        &self.place
    }
}

/// `30s`, or a number of milliseconds.
pub fn duration(text: &str) -> Option<Duration> {
    let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    match digits {
        true => text.parse().ok().map(Duration::from_millis),
        false => parse_duration(text).ok(),
    }
}

/// The beginning of a text from outside.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// All members of an object in order, including repeated ones.
struct JsonPairs<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonPairs<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> std::result::Result<JsonPairs<'a>, D::Error> {
        struct JsonPairsVisitor;
        impl<'de> Visitor<'de> for JsonPairsVisitor {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> std::result::Result<Self::Value, M::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(pairs)
            }
        }
        from.deserialize_map(JsonPairsVisitor).map(JsonPairs)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KNOWN: &[&str] = &["consumer", "max", "wait"];

    #[test]
    fn an_unknown_member_is_told_with_the_nearest_one() {
        let error = JsonObject::of_body(br#"{"consumr": "a"}"#, KNOWN).err().unwrap();
        assert_eq!(error.detail, "consumr: unknown field, did you mean \"consumer\"?");
        let error = JsonObject::of_body(br#"{"max": 1, "max": 2}"#, KNOWN).err().unwrap();
        assert_eq!(error.detail, "max: given twice");
    }

    #[test]
    fn nothing_and_null_are_not_given() {
        for body in ["", " \n", "{}", r#"{"max": null}"#] {
            let members = JsonObject::of_body(body.as_bytes(), KNOWN).unwrap();
            assert_eq!(members.number("max", 1..=9).unwrap(), None, "{body}");
        }
    }

    #[test]
    fn a_wrong_value_is_told_with_its_place_and_form() {
        let text = r#"{"max": 10, "wait": "soon"}"#;
        let members = JsonObject::of(text, "line 3: ".to_owned(), KNOWN).unwrap();
        let error = members.number("max", 1..=9).unwrap_err();
        assert_eq!(error.detail, "line 3: max: expected a whole number from 1 to 9, got 10");
        let error = members.duration("wait", Duration::ZERO..=Duration::MAX).unwrap_err();
        assert!(error.detail.contains("a duration such as 30s"), "{}", error.detail);
    }

    #[test]
    fn durations_are_texts_with_a_unit_or_milliseconds() {
        for text in [r#"{"wait": "2s"}"#, r#"{"wait": 2000}"#, r#"{"wait": "2000"}"#] {
            let members = JsonObject::of_body(text.as_bytes(), KNOWN).unwrap();
            let wait = members.duration("wait", Duration::ZERO..=Duration::MAX).unwrap();
            assert_eq!(wait, Some(Duration::from_secs(2)), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_text_breaks_the_reader(text in "\\PC{0,60}", body in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = JsonObject::of_body(&body, KNOWN);
            if let Ok(members) = JsonObject::of_body(text.as_bytes(), KNOWN) {
                let _ = members.duration("wait", Duration::ZERO..=Duration::MAX);
            }
            let _ = duration(&text);
        }
    }
}
