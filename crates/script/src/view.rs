//! How typed values look to scripts, whatever engine runs them.
//!
//! A value looks like what parsing its JSON text would give: numbers are doubles (the nearest one to the text), byte
//! strings and times are texts, records are objects. The same rules recognise what a script left as it was.

use std::borrow::Cow;

use thalweg_record::{Object, Payload, Value, g_form, json};

/// What scripts see as the payload: JSON text parsed, other text as text.
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

/// Whole numbers up to this have all their digits in single precision.
const F32_EXACT_MAX: f32 = 16_777_216.0;

/// The double that a number is to scripts.
pub fn number_seen(value: &Value) -> Option<f64> {
    match value {
        // The shortest digits of a single-precision number name another double than its bits do: 0.1, not 0.100000001.
        Value::F32(n) if n.fract() != 0.0 || n.abs() >= F32_EXACT_MAX => n.to_string().parse().ok(),
        other => other.as_f64(),
    }
}

/// The text that a value of a type without a counterpart in JavaScript is to scripts; `None` if it is not text there.
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

/// The object or array that a record type is to scripts.
pub fn plain_form(value: &Value) -> Option<Value> {
    match value {
        Value::Guid(_) | Value::Structured(_) => json::parse(json::to_string(value).as_bytes()).ok(),
        _ => None,
    }
}

/// Largest integer up to which every whole double is exact.
pub(crate) const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

/// The integer that a double stands for, if it does without doubt.
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

/// A number in a line of the console.
pub(crate) fn console_number(number: f64) -> String {
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    number_text(number)
}

/// Whether a name needs no quotes in a line of the console.
pub(crate) fn is_identifier(name: &str) -> bool {
    let mut chars = name.chars();
    let head = chars.next().is_some_and(|c| c.is_alphabetic() || c == '_' || c == '$');
    head && chars.all(|c| c.is_alphanumeric() || c == '_' || c == '$')
}

/// A text in a line of the console.
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
