//! Bodies that are JSON objects.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, de};

/// The members that may have the text, in order of preference.
const TEXTS: [&str; 5] = ["message", "msg", "event", "log", "error"];

/// The parts of an object that a template uses.
pub(super) struct JsonBody<'a> {
    pub text: Cow<'a, str>,
    names: Vec<Cow<'a, str>>,
}

impl JsonBody<'_> {
    /// Writes the names as `{a,b,c}`.
    pub fn write_names(&self, out: &mut Vec<u8>) {
        out.push(b'{');
        for (at, name) in self.names.iter().enumerate() {
            if at > 0 {
                out.push(b',');
            }
            out.extend_from_slice(name.as_bytes());
        }
        out.push(b'}');
    }
}

/// `None` if the body is not a JSON object.
pub(super) fn object(body: &str) -> Option<JsonBody<'_>> {
    let mut reader = serde_json::Deserializer::from_str(body);
    let object = reader.deserialize_map(JsonBodyVisitor).ok()?;
    reader.end().ok()?;
    Some(object)
}

struct JsonBodyVisitor;

impl<'de> Visitor<'de> for JsonBodyVisitor {
    type Value = JsonBody<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<JsonBody<'de>, A::Error> {
        let mut names = Vec::new();
        let mut text: Option<(usize, Cow<'de, str>)> = None;
        while let Some(MemberName(name)) = members.next_key()? {
            match TEXTS.iter().position(|wanted| *wanted == name) {
                Some(rank) if text.as_ref().is_none_or(|(known, _)| rank <= *known) => {
                    if let MemberValue::Text(found) = members.next_value()? {
                        text = Some((rank, found));
                    }
                }
                _ => {
                    members.next_value::<IgnoredAny>()?;
                }
            }
            names.push(name);
        }
        names.sort_unstable();
        names.dedup();
        let text = text.map(|(_, text)| text).unwrap_or_default();
        Ok(JsonBody { text, names })
    }
}

/// Borrowed if it has no escapes.
#[derive(Deserialize)]
struct MemberName<'a>(#[serde(borrow)] Cow<'a, str>);

enum MemberValue<'a> {
    Text(Cow<'a, str>),
    Other,
}

impl<'de> Deserialize<'de> for MemberValue<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MemberValueVisitor)
    }
}

struct MemberValueVisitor;

impl<'de> Visitor<'de> for MemberValueVisitor {
    type Value = MemberValue<'de>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a value")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(MemberValue::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(MemberValue::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(MemberValue::Other)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(MemberValue::Other)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(MemberValue::Other)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(MemberValue::Other)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(MemberValue::Other)
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(MemberValue::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        while members.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(MemberValue::Other)
    }
}
