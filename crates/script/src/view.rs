//! How scripts see typed values, in both engines.
//!
//! A value looks like its parsed JSON text: numbers are doubles (the nearest one to the text), byte strings and times
//! are texts, records are objects. The same rules decide whether a script left a value unchanged.

use std::borrow::Cow;

use thalweg_record::{Object, Payload, Value, g_form, json};

/// The payload as scripts see it: parsed JSON text, other text as text.
pub fn payload_value(payload: &Payload) -> Cow<'_, Value> {
    match payload {
        Payload::Value(value) => Cow::Borrowed(value),
        Payload::Sample { value, time_ms } => {
            let members = [
                ("value".into(), value.clone()),
                ("timestamp_ms".into(), Value::I64(*time_ms)),
            ];
            Cow::Owned(members.into_iter().collect::<Object>().into())
        }
        Payload::Raw(bytes) => Cow::Owned(match json::parse(bytes) {
            Ok(value) => value,
            Err(_) => Value::Text(String::from_utf8_lossy(bytes).into()),
        }),
    }
}

/// Maximum length of a text that is converted at once.
const SMALL_BYTES_MAX: usize = 128;

/// Whole numbers up to this are exact in single precision.
const F32_EXACT_MAX: f32 = 16_777_216.0;

/// A number as the double that scripts see.
pub fn number_seen(value: &Value) -> Option<f64> {
    match value {
        // The shortest digits of a single-precision number denote another double than its bits do: 0.1, not
        // 0.100000001.
        Value::F32(n) if n.fract() != 0.0 || n.abs() >= F32_EXACT_MAX => n.to_string().parse().ok(),
        other => other.as_f64(),
    }
}

/// The text that scripts see for a type without a counterpart in JavaScript; `None` if they do not see a text.
pub fn text_form(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::Text(text) | Value::Xml(text) | Value::NodeId(text) => Some(Cow::Borrowed(text)),
        Value::Bytes(_) => {
            let quoted = json::to_string(value);
            Some(Cow::Owned(quoted.trim_matches('"').to_owned()))
        }
        Value::Time(time) => Some(Cow::Owned(time.to_string())),
        _ => None,
    }
}

/// The object or array that scripts see for a record type.
pub fn plain_form(value: &Value) -> Option<Value> {
    match value {
        Value::Guid(_) | Value::Structured(_) => json::parse(json::to_string(value).as_bytes()).ok(),
        _ => None,
    }
}

/// Largest integer up to which every whole double is exact.
pub(crate) const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// The integer that a double represents, if that is unambiguous.
pub(crate) fn exact_integer(number: f64) -> Option<i64> {
    let whole = number.fract() == 0.0 && number.abs() <= EXACT_MAX;
    (whole && !(number == 0.0 && number.is_sign_negative())).then_some(number as i64)
}

/// A number as metadata and `datatype: string` show it.
pub fn number_text(number: f64) -> String {
    match exact_integer(number) {
        Some(n) => n.to_string(),
        None => g_form(number),
    }
}

/// Whether a payload is so small that it is converted in advance, whether the script reads it or not.
pub(crate) fn is_small(value: &Value) -> bool {
    match value {
        Value::Array(_) | Value::Object(_) => false,
        Value::Text(text) | Value::Xml(text) | Value::NodeId(text) => text.len() <= SMALL_BYTES_MAX,
        Value::Bytes(bytes) => bytes.len() <= SMALL_BYTES_MAX,
        _ => true,
    }
}

/// From here on an integer of the input is formatted with an exponent, `2.5e+06`, and one of a script as `2500000`.
const TWO_TEXTS_MIN: u64 = 1_000_000;

/// Whether the text of a value depends on its origin, the input or a script.
pub(crate) fn has_two_texts(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().any(has_two_texts),
        Value::Object(object) => object.iter().any(|(_, member)| has_two_texts(member)),
        Value::Guid(_) | Value::Structured(_) => plain_form(value).as_ref().is_some_and(has_two_texts),
        other => number_seen(other)
            .and_then(exact_integer)
            .is_some_and(|number| number.unsigned_abs() >= TWO_TEXTS_MIN),
    }
}

/// A number in a console line.
pub(crate) fn console_number(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    number_text(number)
}

/// Whether a name needs no quotes in a console line.
pub(crate) fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    let head = chars.next().is_some_and(|c| c.is_alphabetic() || c == '_' || c == '$');
    head && chars.all(|c| c.is_alphanumeric() || c == '_' || c == '$')
}

/// A text in a console line.
pub(crate) fn quote(text: &str, out: &mut String) {
    out.push('\'');
    for c in text.chars() {
        match c {
            '\'' => out.push_str("\\'"),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c => out.push(c),
        }
    }
    out.push('\'');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_has_two_texts_where_they_differ() {
        for number in [
            0.0,
            -0.0,
            0.5,
            1e5,
            999_999.0,
            1e6,
            -1e6,
            1_234_567.0,
            1_234_567.5,
            1e-5,
            EXACT_MAX,
            1e16,
            1e300,
            f64::NAN,
        ] {
            let differ = g_form(number) != number_text(number);
            assert_eq!(has_two_texts(&Value::F64(number)), differ, "{number}");
            assert_eq!(
                has_two_texts(&vec![Value::Null, Value::F64(number)].into()),
                differ,
                "{number}"
            );
        }
        assert!(has_two_texts(&Value::I64(2_500_000)) && !has_two_texts(&Value::I64(i64::MAX)));
        assert!(!has_two_texts(&Value::text("2500000")) && !has_two_texts(&Value::Bool(true)));
    }
}
