//! Reads a message of a source: a value, and its time.

use std::borrow::Cow;

use thalweg_record::{DropReason, Payload, Value, json};

use crate::time::whole_ms;

const NO_OBJECT: &str = "the payload is not a JSON object with value and timestamp_ms";
const NO_VALUE: &str = "missing value field";
const NO_TIME: &str = "missing or invalid timestamp_ms";

/// The value and the time in milliseconds, or why there are none.
pub(super) fn sample(payload: &Payload) -> Result<(Value, i64), (DropReason, &'static str)> {
    let object = match payload {
        Payload::Sample { value, time_ms } => return checked(Some(value), Some(*time_ms)),
        Payload::Value(value) => Cow::Borrowed(value),
        Payload::Raw(bytes) => Cow::Owned(json::parse(bytes).unwrap_or(Value::Null)),
    };
    let Value::Object(object) = &*object else {
        return Err((DropReason::InvalidPayload, NO_OBJECT));
    };
    checked(object.get("value"), object.get("timestamp_ms").and_then(whole_ms))
}

fn checked(value: Option<&Value>, time_ms: Option<i64>) -> Result<(Value, i64), (DropReason, &'static str)> {
    let value = value.filter(|value| !value.is_null());
    let time_ms = time_ms.filter(|time_ms| *time_ms != 0);
    match (value, time_ms) {
        (Some(value), Some(time_ms)) => Ok((value.clone(), time_ms)),
        (None, _) => Err((DropReason::MissingField, NO_VALUE)),
        (_, None) => Err((DropReason::MissingField, NO_TIME)),
    }
}
