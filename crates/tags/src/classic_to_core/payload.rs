//! The classic payload: a time, tags in nested objects, and metadata beside them.
//!
//! Each leaf becomes one tag, named by its keys joined with dots. The cost of a payload is bounded by depth, number of
//! tags, and total length of their names, because a long key is part of the name of every tag below it.

use thalweg_record::{DropReason, Object, Payload, Text, Value, json};
use thalweg_script::payload_value;

use crate::datatype::{decimal, metadata_text};
use crate::time::whole_ms;

/// Maximum number of keys that lead to a leaf.
const DEPTH_MAX: usize = 10;
const TAGS_MAX: usize = 1000;
/// Of all tags of a message together.
const NAMES_BYTES_MAX: usize = 1 << 20;

const TIMESTAMP_MS: &str = "timestamp_ms";
const META: [&str; 2] = ["meta", "metadata"];

#[derive(Debug, PartialEq)]
pub(super) struct ClassicPayload {
    pub time_ms: i64,
    /// Names and values in the order of the payload.
    pub tags: Vec<(Text, Value)>,
    /// Entries of `meta` and `metadata`, as texts.
    pub meta: Vec<(Text, Text)>,
    /// Whether one of the two is a value that is not an object. It has no entries, and it is no tag: its name is taken.
    pub unused_meta: bool,
}

/// Why a payload is not a classic one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum PayloadError {
    #[error("the payload is not a JSON object: {0}; it needs the form {{\"timestamp_ms\": 0, \"tag\": 1}}")]
    NoObject(String),
    #[error("the payload has no timestamp_ms; add the time of its values in milliseconds since 1970")]
    NoTime,
    #[error("timestamp_ms is {0}, which is not a whole number of milliseconds since 1970")]
    BadTime(String),
    #[error("the payload is nested more than {DEPTH_MAX} objects deep; make it flatter")]
    TooDeep,
    #[error("the payload has more than {TAGS_MAX} tags; send them in several messages")]
    TooManyTags,
    #[error("the names of the payload's tags have more than {NAMES_BYTES_MAX} bytes; send them in several messages")]
    NamesTooLong,
}

impl PayloadError {
    pub fn reason(&self) -> DropReason {
        match self {
            PayloadError::NoTime => DropReason::MissingField,
            PayloadError::NoObject(_) | PayloadError::BadTime(_) => DropReason::InvalidPayload,
            PayloadError::TooDeep | PayloadError::TooManyTags | PayloadError::NamesTooLong => DropReason::Limit,
        }
    }
}

impl ClassicPayload {
    pub fn read(payload: &Payload) -> Result<ClassicPayload, PayloadError> {
        let value = match payload {
            Payload::Raw(bytes) => json::parse(bytes).map_err(|error| match error.is_too_deep() {
                true => PayloadError::TooDeep,
                false => PayloadError::NoObject(error.to_string()),
            })?,
            typed => payload_value(typed).into_owned(),
        };
        let Value::Object(object) = &value else {
            return Err(PayloadError::NoObject(format!("it is of type {}", value.type_name())));
        };
        let time = object.get(TIMESTAMP_MS).ok_or(PayloadError::NoTime)?;
        let mut meta = Vec::new();
        let mut unused_meta = false;
        let mut leaves = LeafCollector::default();
        for (key, value) in object.iter() {
            match value {
                _ if key == TIMESTAMP_MS => {}
                Value::Object(entries) if META.contains(&key.as_str()) => {
                    meta.extend(entries.iter().map(|(key, value)| (key.clone(), metadata_text(value))));
                }
                other if META.contains(&key.as_str()) => unused_meta |= !other.is_null(),
                value => leaves.member(key, value, 1)?,
            }
        }
        Ok(ClassicPayload {
            time_ms: milliseconds(time)?,
            tags: leaves.tags,
            meta,
            unused_meta,
        })
    }
}

/// A whole number, also one that is written as text: `1717083000000`, `1.717083e12`, `"1717083000000"`.
fn milliseconds(time: &Value) -> Result<i64, PayloadError> {
    let of_text = || decimal(time.as_str()?).as_ref().and_then(whole_ms);
    whole_ms(time).or_else(of_text).ok_or_else(|| {
        let mut text = json::to_string(time);
        text.truncate(text.floor_char_boundary(100));
        PayloadError::BadTime(text)
    })
}

#[derive(Default)]
struct LeafCollector {
    tags: Vec<(Text, Value)>,
    /// The keys that lead to the current position, joined with dots.
    name: String,
    names_bytes: usize,
}

impl LeafCollector {
    /// A member of an object at this depth.
    fn member(&mut self, key: &str, value: &Value, depth: usize) -> Result<(), PayloadError> {
        let before = self.name.len();
        if depth > 1 {
            self.name.push('.');
        }
        self.name.push_str(key);
        match value {
            Value::Object(inner) => self.members(inner, depth + 1)?,
            Value::Array(_) => self.leaf(Value::text(metadata_text(value)))?,
            value => self.leaf(value.clone())?,
        }
        self.name.truncate(before);
        Ok(())
    }

    fn members(&mut self, object: &Object, depth: usize) -> Result<(), PayloadError> {
        if depth > DEPTH_MAX {
            return Err(PayloadError::TooDeep);
        }
        object
            .iter()
            .try_for_each(|(key, value)| self.member(key, value, depth))
    }

    fn leaf(&mut self, value: Value) -> Result<(), PayloadError> {
        if self.tags.len() >= TAGS_MAX {
            return Err(PayloadError::TooManyTags);
        }
        self.names_bytes += self.name.len();
        if self.names_bytes > NAMES_BYTES_MAX {
            return Err(PayloadError::NamesTooLong);
        }
        self.tags.push((self.name.as_str().into(), value));
        Ok(())
    }
}
