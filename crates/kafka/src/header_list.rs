//! The headers of a record that metadata cannot hold, and how an output writes them again.
//!
//! Metadata has one non-empty text for each name. Kafka has a list: a name may be there several times, a value may be
//! empty, or null. The input puts such a list into the metadata [`HEADERS`], as JSON:
//! `[["trace","1"],["trace","2"],["gone",null],["empty",""]]`. The output writes the headers of a name as they are
//! listed, unless the flow has changed the metadata of that name: then it writes the metadata.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use rdkafka::message::OwnedHeaders;
use thalweg_record::{Message, Metadata, Text};

use crate::headers::{self, RecordHeader};
use crate::text_bytes::{self, ESCAPED};

/// Metadata with the list.
pub const HEADERS: &str = "kafka_headers";
/// Metadata that says that the key of a record is empty, but not null.
pub const EMPTY_KEY: &str = "kafka_empty_key";

/// Metadata that only one stage uses, and metadata about a record that is no header of the next one.
const INTERNAL: [&str; 5] = ["_initialMetadata", "_incomingKeys", HEADERS, ESCAPED, EMPTY_KEY];

/// Whether a header of this name could be mistaken for what the input itself sets.
pub fn is_reserved(name: &str) -> bool {
    matches!(name, HEADERS | ESCAPED | EMPTY_KEY)
}

/// Headers with texts instead of bytes.
type HeaderTexts<'a> = Vec<(Cow<'a, str>, Option<Cow<'a, str>>)>;

/// Returns the metadata of these headers. With `as_lists` each text is the JSON list of the values of its name.
pub fn entries<'r>(headers: impl Iterator<Item = RecordHeader<'r>>, as_lists: bool) -> Vec<(Text, Text)> {
    let headers: HeaderTexts<'_> = headers
        .map(|header| (header.name, header.value.map(text_bytes::text_of)))
        .collect();
    if headers.is_empty() {
        return Vec::new();
    }
    let is_escaped = |(name, value): &(Cow<'_, str>, Option<Cow<'_, str>>)| {
        matches!(name, Cow::Owned(_)) || matches!(value, Some(Cow::Owned(_)))
    };
    let mut entries = Vec::with_capacity(headers.len() + 2);
    if headers.iter().any(is_escaped) {
        entries.push((Text::new_static(ESCAPED), Text::new_static("true")));
    }
    if as_lists || !fits_metadata(&headers) {
        let list = serde_json::to_string(&headers).unwrap_or_default();
        entries.push((Text::new_static(HEADERS), list.into()));
    }
    match as_lists {
        true => entries.extend(
            by_name(&headers)
                .into_iter()
                .map(|(name, values)| (name.into(), list(&values))),
        ),
        false => entries.extend(headers.iter().map(|(name, value)| {
            let value = value.as_deref().unwrap_or_default();
            (Text::from(&**name), Text::from(value))
        })),
    }
    entries
}

/// Whether each name is there once, with a value that is not empty.
fn fits_metadata(headers: &HeaderTexts<'_>) -> bool {
    /// Up to this many names are compared one by one.
    const FEW: usize = 8;
    let has_value = |(_, value): &(_, Option<Cow<'_, str>>)| value.as_ref().is_some_and(|value| !value.is_empty());
    let is_unique = match headers.len() <= FEW {
        true => (1..headers.len()).all(|n| {
            let (before, rest) = headers.split_at(n);
            rest.first()
                .is_none_or(|(name, _)| before.iter().all(|(other, _)| other != name))
        }),
        false => headers.iter().map(|(name, _)| name).collect::<BTreeSet<_>>().len() == headers.len(),
    };
    is_unique && headers.iter().all(has_value)
}

fn by_name<'h>(headers: &'h HeaderTexts<'_>) -> BTreeMap<&'h str, Vec<Option<&'h str>>> {
    let mut names: BTreeMap<&str, Vec<Option<&str>>> = BTreeMap::new();
    for (name, value) in headers {
        names.entry(&**name).or_default().push(value.as_deref());
    }
    names
}

fn list(values: &[Option<&str>]) -> Text {
    serde_json::to_string(values).unwrap_or_default().into()
}

/// Returns the headers of the record for a message, except excluded names.
pub fn of_message(message: &Message, is_excluded: impl Fn(&str) -> bool) -> OwnedHeaders {
    let meta = &message.meta;
    let mut out = HeaderWriter {
        headers: OwnedHeaders::new(),
        is_escaped: is_escaped(meta),
    };
    let is_written = |name: &str| !INTERNAL.contains(&name) && !is_excluded(name);
    let listed = meta.get(HEADERS);
    let listed: HeaderTexts<'_> = listed
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let names = by_name(&listed);
    let kept: BTreeSet<&str> = names
        .iter()
        .filter(|(name, values)| is_written(name) && is_unchanged(meta, name, values))
        .map(|(name, _)| *name)
        .collect();
    for (name, value) in listed.iter().filter(|(name, _)| kept.contains(&**name)) {
        out.add(name, value.as_deref());
    }
    for (name, value) in meta.iter().filter(|(name, _)| is_written(name) && !kept.contains(name)) {
        out.add(name, Some(&value));
    }
    out.headers
}

/// Whether a name has the metadata that [`entries`] made of these values.
fn is_unchanged(meta: &Metadata, name: &str, values: &[Option<&str>]) -> bool {
    let last = values.last().copied().flatten().unwrap_or_default();
    match meta.get(name) {
        None => last.is_empty(),
        Some(now) => now == last || now == *list(values),
    }
}

/// Whether the texts of a message contain bytes as private characters.
pub fn is_escaped(meta: &Metadata) -> bool {
    meta.get(ESCAPED).is_some_and(|text| text == "true")
}

struct HeaderWriter {
    headers: OwnedHeaders,
    is_escaped: bool,
}

impl HeaderWriter {
    fn add(&mut self, name: &str, value: Option<&str>) {
        match self.is_escaped {
            true => {
                let value = value.map(text_bytes::bytes_of);
                headers::add(&mut self.headers, &text_bytes::bytes_of(name), value.as_deref());
            }
            false => headers::add(&mut self.headers, name.as_bytes(), value.map(str::as_bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rdkafka::message::{OwnedMessage, Timestamp};

    use super::*;
    use crate::headers::tests::{pairs as raw_pairs, raw};

    type Pairs = Vec<(Vec<u8>, Option<Vec<u8>>)>;

    fn message(headers: &Pairs, as_lists: bool) -> Message {
        let mut message = Message::raw("x");
        let record = OwnedMessage::new(
            None,
            None,
            "t".to_owned(),
            Timestamp::NotAvailable,
            0,
            0,
            Some(raw(headers)),
        );
        message.meta.set_all(entries(headers::of(&record), as_lists));
        message
    }

    fn written(message: &Message) -> Pairs {
        let headers = of_message(message, |_| false);
        raw_pairs(&headers)
    }

    fn pairs(headers: &[(&str, Option<&str>)]) -> Pairs {
        let bytes = |text: &str| text.as_bytes().to_vec();
        headers
            .iter()
            .map(|(name, value)| (bytes(name), value.map(bytes)))
            .collect()
    }

    #[test]
    fn names_that_repeat_and_values_that_are_empty_or_null_come_out_again() {
        let headers = pairs(&[
            ("b", Some("1")),
            ("a", Some("x")),
            ("b", Some("2")),
            ("e", Some("")),
            ("n", None),
        ]);
        let message = message(&headers, false);
        let said = |name: &str| message.meta.get(name).map(|text| text.into_owned());
        assert_eq!(said("b").as_deref(), Some("2"), "the last one counts");
        assert_eq!((said("e"), said("n"), said(ESCAPED)), (None, None, None));
        assert_eq!(
            said(HEADERS).as_deref(),
            Some(r#"[["b","1"],["a","x"],["b","2"],["e",""],["n",null]]"#)
        );
        assert_eq!(written(&message), headers);
    }

    #[test]
    fn what_the_flow_has_changed_is_written_as_it_is_now() {
        let headers = pairs(&[
            ("b", Some("1")),
            ("b", Some("2")),
            ("gone", Some("x")),
            ("n", None),
            ("e", Some("")),
        ]);
        let mut message = message(&headers, false);
        message.meta.set("b", "3");
        message.meta.remove("gone");
        message.meta.set("n", "now");
        message.meta.set("new", "y");
        let expected = [
            ("e", Some("")),
            ("b", Some("3")),
            ("n", Some("now")),
            ("new", Some("y")),
        ];
        assert_eq!(written(&message), pairs(&expected));
        let headers = of_message(&message, |name| name == "e");
        assert_eq!(raw_pairs(&headers).len(), 3, "an excluded name is not written");
    }

    #[test]
    fn what_fits_metadata_has_no_list() {
        let headers = pairs(&[("a", Some("1")), ("b", Some("2"))]);
        assert!(!message(&headers, false).meta.contains(HEADERS));
        let lists = message(&headers, true);
        assert_eq!(lists.meta.get("a").unwrap(), r#"["1"]"#);
        assert_eq!(written(&lists), headers);
    }

    #[test]
    fn private_characters_of_other_sources_are_written_as_they_are() {
        let mut message = Message::raw("x");
        message.meta.set("a", "\u{f7e9}");
        assert_eq!(written(&message), pairs(&[("a", Some("\u{f7e9}"))]));
    }

    #[test]
    fn a_list_that_is_no_list_is_ignored() {
        let mut message = Message::raw("x");
        message.meta.set("a", "1");
        message.meta.set(HEADERS, r#"{"a": 2}"#);
        assert_eq!(written(&message), pairs(&[("a", Some("1"))]));
    }

    proptest! {
        /// Few names, so that they recur.
        #[test]
        fn whatever_headers_are_they_are_copied(
            headers in prop::collection::vec(
                (
                    prop::sample::select(vec![&b"a"[..], b"b", b"c\xff", b"\xc3\xa4"]),
                    prop::option::of(prop::collection::vec(any::<u8>(), 0..3)),
                ),
                0..12,
            ),
            as_lists: bool,
        ) {
            let headers: Pairs = headers.into_iter().map(|(name, value)| (name.to_vec(), value)).collect();
            let message = message(&headers, as_lists);
            let mut written = written(&message);
            let mut headers = headers;
            if !message.meta.contains(HEADERS) {
                // Each name is there once, and metadata is sorted by name.
                written.sort();
                headers.sort();
            }
            prop_assert_eq!(written, headers);
        }
    }
}
