//! Bytes as text, and back without a loss. Keys, header names and header values are bytes, and metadata is text.
//!
//! Valid UTF-8 is the text itself. Each byte that is no part of valid UTF-8 becomes one character of the private range
//! U+F780 to U+F7FF, which is U+F700 plus the byte. Characters of this range that were in the bytes already are treated
//! as wrong bytes too, so that [`bytes_of`] is exact. A message with such characters has the metadata [`ESCAPED`], so
//! that an output leaves the same characters of other sources alone. Base64 beside a text with U+FFFD was rejected: an
//! expression that makes a key of another one would lose the bytes.

use std::borrow::Cow;

/// Metadata that says that keys or headers of the message contain bytes as private characters.
pub const ESCAPED: &str = "kafka_escaped_bytes";

const BASE: u32 = 0xf700;
/// All characters of the range begin with this byte, and few others do.
const FIRST_BYTE: u8 = 0xef;

/// Returns the text of these bytes; it is borrowed if nothing had to be replaced.
pub fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if !bytes.contains(&FIRST_BYTE) || !text.contains(is_private) => Cow::Borrowed(text),
        _ => Cow::Owned(escape(bytes)),
    }
}

/// Returns the bytes of a text that [`text_of`] made, or that contains such texts.
pub fn bytes_of(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for c in text.chars() {
        match u8::try_from(u32::from(c).wrapping_sub(BASE)) {
            Ok(byte) if is_private(c) => bytes.push(byte),
            _ => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    bytes
}

fn escape(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match is_private(c) {
                true => push_escaped(&mut text, c.encode_utf8(&mut [0; 4]).as_bytes()),
                false => text.push(c),
            }
        }
        push_escaped(&mut text, chunk.invalid());
    }
    text
}

fn push_escaped(text: &mut String, bytes: &[u8]) {
    let escaped = |byte: &u8| char::from_u32(BASE + u32::from(*byte)).unwrap_or(char::REPLACEMENT_CHARACTER);
    text.extend(bytes.iter().map(escaped));
}

fn is_private(c: char) -> bool {
    matches!(c, '\u{f780}'..='\u{f7ff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_what_is_no_text_is_replaced() {
        assert!(matches!(
            text_of("Grüße \u{ffef}".as_bytes()),
            Cow::Borrowed("Grüße \u{ffef}")
        ));
        assert_eq!(text_of(b"caf\xe9\0"), "caf\u{f7e9}\0");
        assert_eq!(bytes_of("caf\u{f7e9}\0"), b"caf\xe9\0");
        // A private character that was there comes back, too.
        let there = "\u{f7e9}".as_bytes();
        assert_eq!(text_of(there), "\u{f7ef}\u{f79f}\u{f7a9}");
        assert_eq!(bytes_of(&text_of(there)), there);
    }

    fn any_bytes() -> impl Strategy<Value = Vec<u8>> {
        let part = prop_oneof![
            prop::collection::vec(any::<u8>(), 0..6),
            "\\PC{0,4}".prop_map(String::into_bytes),
            "[\u{f77f}-\u{f801}]{0,3}".prop_map(String::into_bytes),
        ];
        prop::collection::vec(part, 0..6).prop_map(|parts| parts.concat())
    }

    proptest! {
        #[test]
        fn bytes_come_back_as_they_were(bytes in any_bytes()) {
            prop_assert_eq!(bytes_of(&text_of(&bytes)), bytes);
        }

        #[test]
        fn parts_may_be_joined_as_texts(a in any_bytes(), b in any_bytes()) {
            let joined = format!("{}-{}", text_of(&a), text_of(&b));
            prop_assert_eq!(bytes_of(&joined), [&a[..], b"-", &b].concat());
        }
    }
}
