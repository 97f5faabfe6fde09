//! The strings of MQTT: UTF-8 without U+0000 [MQTT-1.5.4-1, -2]. U+FEFF is a character as any other [MQTT-1.5.4-3].

use crate::reader::{DecodeError, WireResult};

/// Checks a string. With `strict`, control characters and non-characters are refused, too.
#[inline]
pub fn checked(bytes: &[u8], strict: bool) -> WireResult<&str> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(DecodeError::malformed("a string is not UTF-8"));
    };
    match memchr::memchr(0, bytes) {
        Some(_) => Err(DecodeError::malformed("a string contains U+0000")),
        None if strict && !is_strict(text) => Err(DecodeError::malformed(
            "a string contains a control character or a non-character",
        )),
        None => Ok(text),
    }
}

fn is_strict(text: &str) -> bool {
    let is_refused = |letter: char| {
        let number = letter as u32;
        let is_control = matches!(number, 0x01..=0x1f | 0x7f..=0x9f);
        let is_noncharacter = matches!(number, 0xfdd0..=0xfdef) || number & 0xfffe == 0xfffe;
        is_control || is_noncharacter
    };
    !text.chars().any(is_refused)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReasonCode;

    #[test]
    fn strings_are_utf8_without_null() {
        for (bytes, is_right) in [
            (&b"plant/1"[..], true),
            (b"", true),
            ("\u{feff}a".as_bytes(), true),
            ("ä\u{1}\u{ffff}".as_bytes(), true),
            (b"\xc3\x28", false),
            // A surrogate.
            (b"\xed\xa0\x80", false),
            // Longer than needed.
            (b"\xc0\xaf", false),
            (b"a\0b", false),
        ] {
            let result = checked(bytes, false);
            assert_eq!(result.is_ok(), is_right, "{bytes:?}");
            if let Err(error) = result {
                assert_eq!(error.code, ReasonCode::MalformedPacket);
            }
        }
    }

    #[test]
    fn strict_strings_have_no_control_characters_and_non_characters() {
        for text in [
            "\u{1}",
            "\u{1f}",
            "\u{7f}",
            "\u{9f}",
            "\u{fdd0}",
            "\u{fffe}",
            "\u{ffff}",
            "\u{1fffe}",
            "\u{10ffff}",
        ] {
            assert!(checked(text.as_bytes(), false).is_ok(), "{text:?}");
            assert!(checked(text.as_bytes(), true).is_err(), "{text:?}");
        }
        for text in [
            "\u{20}",
            "\u{a0}",
            "\u{feff}",
            "\u{fdcf}",
            "\u{fdf0}",
            "\u{fffd}",
            "\u{10000}",
        ] {
            assert!(checked(text.as_bytes(), true).is_ok(), "{text:?}");
        }
    }
}
