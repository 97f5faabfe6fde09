//! Recognises the messages by which an input says that a tag is bad or uncertain and has no value. Their value is null,
//! which must not become a measurement on the way.

use thalweg_record::{Message, Payload, Value};

/// Whether a message has a status that is not Good, and no value.
pub(crate) fn lacks_value(message: &Message) -> bool {
    let (Payload::Value(value) | Payload::Sample { value, .. }) = &message.payload else {
        return false;
    };
    // The two highest bits of a status code are its severity; they are zero for every kind of Good.
    let is_good = |status: u32| status >> 30 == 0;
    matches!(value, Value::Null) && message.meta.stamps().is_some_and(|stamps| !is_good(stamps.status))
}
