//! JSON that every parser accepts: numbers within the range of a double, strings without unpaired surrogates, and
//! bounded nesting. The check builds no value, so a payload of many megabytes costs no memory.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

/// Returns why a text is not portable.
pub fn check(json: &str) -> Result<(), serde_json::Error> {
    serde_json::from_str::<PortableJson>(json).map(drop)
}

/// A value that is parsed and discarded. The parser stops at 128 levels, and at invalid numbers and strings.
struct PortableJson;

impl<'de> Deserialize<'de> for PortableJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<PortableJson, D::Error> {
        deserializer.deserialize_any(PortableJsonVisitor)
    }
}

struct PortableJsonVisitor;

impl<'de> Visitor<'de> for PortableJsonVisitor {
    type Value = PortableJson;

    fn expecting(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }

    fn visit_unit<E: Error>(self) -> Result<PortableJson, E> {
        Ok(PortableJson)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<PortableJson, A::Error> {
        while list.next_element::<PortableJson>()?.is_some() {}
        Ok(PortableJson)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<PortableJson, A::Error> {
        while members.next_entry::<PortableJson, PortableJson>()?.is_some() {}
        Ok(PortableJson)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Accepts exactly what a parser that builds the value accepts.
        #[test]
        fn it_takes_what_a_common_reader_takes(json in r#"[\[\]{}",:0-9e.\-u\\dtrfalsn ]{0,40}"#) {
            prop_assert_eq!(check(&json).is_ok(), serde_json::from_str::<serde_json::Value>(&json).is_ok());
        }

        #[test]
        fn whole_values_are_taken(number in any::<f64>(), text: String, levels in 1..120_usize) {
            let mut value = serde_json::json!({"a": number, "b": text});
            for _ in 0..levels {
                value = serde_json::json!([value]);
            }
            prop_assert!(check(&value.to_string()).is_ok());
        }
    }
}
