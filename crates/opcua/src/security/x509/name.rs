//! Names of subjects and issuers in a form for comparison: the same text is the same name in any string type, case and
//! spacing (RFC 5280, 7.1). Compared byte by byte, the list of an issuer that encodes its name differently would be
//! ignored, and would revoke nothing.

use x509_cert::der::{Encode as _, Tag, Tagged as _};
use x509_cert::name::Name;

/// Equal for names with the same meaning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::security) struct ComparedName(Vec<Vec<(String, NameValue)>>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum NameValue {
    Text(String),
    /// A value that is not text.
    Bytes(Vec<u8>),
}

impl ComparedName {
    pub fn of(name: &Name) -> ComparedName {
        let parts = name.0.iter().map(|part| {
            let mut attributes: Vec<(String, NameValue)> = part
                .0
                .iter()
                .map(|attribute| {
                    let value = &attribute.value;
                    let text = text(value.tag(), value.value()).map(|text| NameValue::Text(folded(&text)));
                    let value = text.unwrap_or_else(|| NameValue::Bytes(value.to_der().unwrap_or_default()));
                    (attribute.oid.to_string(), value)
                })
                .collect();
            attributes.sort_unstable();
            attributes
        });
        ComparedName(parts.collect())
    }
}

fn text(tag: Tag, bytes: &[u8]) -> Option<String> {
    match tag {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String | Tag::VisibleString => {
            std::str::from_utf8(bytes).ok().map(str::to_owned)
        }
        // Read as Latin 1, which it contains in practice.
        Tag::TeletexString => Some(bytes.iter().map(|byte| char::from(*byte)).collect()),
        Tag::BmpString => {
            let units = bytes.as_chunks::<2>();
            let text = char::decode_utf16(units.0.iter().map(|unit| u16::from_be_bytes(*unit)));
            text.collect::<Result<String, _>>().ok().filter(|_| units.1.is_empty())
        }
        _ => None,
    }
}

/// Lower-cases the text and reduces white space to single spaces.
fn folded(text: &str) -> String {
    let words: Vec<&str> = text.split_ascii_whitespace().collect();
    words.join(" ").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use x509_cert::attr::AttributeTypeAndValue;
    use x509_cert::der::asn1::{Any, SetOfVec};
    use x509_cert::name::{RdnSequence, RelativeDistinguishedName};
    use x509_cert::spki::ObjectIdentifier;

    use super::*;

    fn name(tag: Tag, bytes: &[u8]) -> ComparedName {
        let attribute = AttributeTypeAndValue {
            oid: ObjectIdentifier::new_unwrap("2.5.4.3"),
            value: Any::new(tag, bytes).unwrap(),
        };
        let part = RelativeDistinguishedName::from(SetOfVec::try_from(vec![attribute]).unwrap());
        ComparedName::of(&RdnSequence(vec![part]))
    }

    #[test]
    fn the_same_text_is_the_same_name_however_it_is_written() {
        let plain = name(Tag::Utf8String, b"plant ca");
        for (tag, bytes) in [
            (Tag::PrintableString, &b"Plant CA"[..]),
            (Tag::Ia5String, b" plant  ca "),
            (Tag::TeletexString, b"PLANT CA"),
            (Tag::BmpString, b"\0p\0l\0a\0n\0t\0 \0C\0A"),
        ] {
            assert_eq!(name(tag, bytes), plain, "{tag}");
        }
        for (tag, bytes) in [
            (Tag::Utf8String, &b"plantca"[..]),
            (Tag::Utf8String, b"plant cb"),
            (Tag::OctetString, b"plant ca"),
            (Tag::BmpString, b"\0p\0l\0a\0n\0t\0 \0C\0A\0"),
        ] {
            assert_ne!(name(tag, bytes), plain, "{tag}");
        }
    }
}
