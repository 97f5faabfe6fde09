//! Message ids: UUIDs, stored as sixteen bytes, or, from an import, any text.

use std::fmt;

use thalweg_log::Offset;

/// An id as stored and compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum MessageId {
    Uuid(Uuid),
    /// From an import, and not a UUID.
    Text(Box<str>),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(pub [u8; 16]);

/// Number of offset bits in an id from the server: the total, and those after the two variant bits.
const OFFSET_BITS: u32 = 48;
const BELOW_BITS: u32 = 36;
const CHANCE_BITS: u32 = 26;

/// Positions of the hyphens in the 36-character form.
const HYPHENS: [usize; 4] = [8, 13, 18, 23];

impl MessageId {
    /// A UUID in any of its forms becomes `Uuid`; any other text is kept.
    pub fn of(text: &str) -> MessageId {
        match Uuid::parse(text) {
            Some(uuid) => MessageId::Uuid(uuid),
            None => MessageId::Text(text.into()),
        }
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MessageId::Uuid(uuid) => uuid.fmt(f),
            MessageId::Text(text) => f.write_str(text),
        }
    }
}

impl Uuid {
    /// Parses 36 characters, 32 hexadecimal digits, the first form in braces, or the first form after `urn:uuid:`, in
    /// either case.
    pub fn parse(text: &str) -> Option<Uuid> {
        let bytes = text.as_bytes();
        let digits = match bytes.len() {
            32 => bytes,
            36 => bytes,
            38 => bytes.strip_prefix(b"{")?.strip_suffix(b"}")?,
            45 if bytes.get(..9)?.eq_ignore_ascii_case(b"urn:uuid:") => bytes.get(9..)?,
            _ => return None,
        };
        let hyphenated = digits.len() == 36;
        let mut out = [0; 16];
        let mut nibbles = 0;
        for (at, byte) in digits.iter().enumerate() {
            if hyphenated && HYPHENS.contains(&at) {
                if *byte != b'-' {
                    return None;
                }
                continue;
            }
            let digit = char::from(*byte).to_digit(16)? as u8;
            let place = out.get_mut(nibbles / 2)?;
            *place = *place << 4 | digit;
            nibbles += 1;
        }
        (nibbles == 32).then_some(Uuid(out))
    }

    /// Version 7: the time in milliseconds, then random bits, so that later ids sort after earlier ones.
    pub fn new_at(unix_ms: u64, chance: [u8; 10]) -> Uuid {
        let mut out = [0; 16];
        let (time, rest) = out.split_at_mut(6);
        time.copy_from_slice(&unix_ms.to_be_bytes()[2..]);
        rest.copy_from_slice(&chance);
        out[6] = 0x70 | out[6] & 0x0f;
        out[8] = 0x80 | out[8] & 0x3f;
        Uuid(out)
    }

    /// Version 7: the time in milliseconds, then the log offset of the message, then random bits. Later ids sort after
    /// earlier ones, no id is made twice, and a message can be found by its id without an index. `None` if the offset
    /// does not fit.
    pub fn made(unix_ms: u64, offset: Offset, chance: u32) -> Option<Uuid> {
        if offset >> OFFSET_BITS != 0 {
            return None;
        }
        let chance = u128::from(chance) & ((1 << CHANCE_BITS) - 1);
        let high = u128::from(offset >> BELOW_BITS);
        let low = u128::from(offset) & ((1 << BELOW_BITS) - 1);
        let time = u128::from(unix_ms) & ((1 << 48) - 1);
        let bits = time << 80 | 7 << 76 | high << 64 | 0b10 << 62 | low << CHANCE_BITS | chance;
        Some(Uuid(bits.to_be_bytes()))
    }

    /// The offset, if a server may have made the id.
    pub fn made_for(&self) -> Option<Offset> {
        let bits = u128::from_be_bytes(self.0);
        let is_version_7 = bits >> 76 & 0xf == 7 && bits >> 62 & 3 == 0b10;
        let high = (bits >> 64) as u64 & 0xfff;
        let low = (bits >> CHANCE_BITS) as u64 & ((1 << BELOW_BITS) - 1);
        is_version_7.then_some(high << BELOW_BITS | low)
    }

    /// Lower case with hyphens.
    pub fn text(&self) -> [u8; 36] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut out = [b'-'; 36];
        let mut at = 0;
        for byte in self.0 {
            if HYPHENS.contains(&at) {
                at += 1;
            }
            out[at] = DIGITS[usize::from(byte >> 4)];
            out[at + 1] = DIGITS[usize::from(byte & 15)];
            at += 2;
        }
        out
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.text();
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819";

    #[test]
    fn every_form_of_a_uuid_is_the_same_id() {
        let plain = TEXT.replace('-', "");
        for form in [
            TEXT.to_owned(),
            TEXT.to_uppercase(),
            plain.clone(),
            format!("{{{TEXT}}}"),
            format!("urn:uuid:{TEXT}"),
            format!("URN:UUID:{TEXT}"),
        ] {
            assert_eq!(MessageId::of(&form).to_string(), TEXT, "{form}");
        }
    }

    #[test]
    fn what_is_no_uuid_is_a_text() {
        for text in [
            "",
            "a",
            "0190b5c2_7a00_7c1f_a2b3_c4d5e6f70819",
            "0190b5c27-a00-7c1f-a2b3-c4d5e6f70819",
            "{0190b5c2-7a00-7c1f-a2b3-c4d5e6f70819",
            "{0190b5c27a007c1fa2b3c4d5e6f70819}",
            "0190b5c2-7a00-7c1f-a2b3-c4d5e6f7081g",
            "+190b5c27a007c1fa2b3c4d5e6f70819",
            "0190b5c2-7a00-7c1f-a2b3-c4d5e6f708é",
        ] {
            assert_eq!(Uuid::parse(text), None, "{text}");
            assert_eq!(MessageId::of(text).to_string(), text);
        }
    }

    #[test]
    fn ids_made_later_sort_after_and_say_version_7() {
        let early = Uuid::made(1_700_000_000_000, 9, u32::MAX).unwrap();
        let later = Uuid::made(1_700_000_000_000, 10, 0).unwrap();
        let late = Uuid::made(1_700_000_000_001, 0, 0).unwrap();
        assert!(early < later && later < late);
        let text = early.to_string();
        assert_eq!((text.get(14..15), text.get(19..20)), (Some("7"), Some("8")), "{text}");
        assert_eq!(Uuid::parse(&text), Some(early));
    }

    #[test]
    fn an_id_says_where_its_message_is() {
        for offset in [0, 1, 12_345_678_901, (1 << 36) - 1, 1 << 36, (1 << 48) - 1] {
            let id = Uuid::made(1_700_000_000_000, offset, 0x1234_5678).unwrap();
            assert_eq!(id.made_for(), Some(offset), "{id}");
        }
        assert_eq!(Uuid::made(0, 1 << 48, 0), None);
        assert_eq!(Uuid([0xff; 16]).made_for(), None);
        let random = Uuid::parse("6f1b0f9e-6d0c-4c39-a9a3-0a8f0a1c3a11").unwrap();
        assert_eq!(random.made_for(), None);
    }
}
