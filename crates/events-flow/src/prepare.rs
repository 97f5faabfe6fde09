//! Turns a message of a flow into a message of a stream: names, id and expected version from the configuration, the
//! payload as its data. What the store would refuse is found here, so that it does not block other messages.

use serde_json::Value;
use thalweg_events::json::{self, Json, JsonKind};
use thalweg_events::{ExpectedVersion, MessageId, Uuid};
use thalweg_flow::Rejection;
use thalweg_mapping::Interpolation;
use thalweg_record::{DropReason, Message};

pub const STREAM_BYTES_MAX: usize = 1024;
pub const TYPE_BYTES_MAX: usize = 255;

/// The configured fields of a message, which may depend on its content.
pub struct EventFields {
    pub stream: Interpolation,
    pub kind: Interpolation,
    pub metadata: Option<Metadata>,
    pub id: Option<Interpolation>,
    pub expected: Option<Interpolation>,
}

pub enum Metadata {
    /// A text that is a JSON object.
    Text(Interpolation),
    /// Members whose values are strings.
    Members(Vec<(String, Interpolation)>),
}

/// A message that the store can accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreparedEvent {
    /// The index in the write.
    pub index: usize,
    pub stream: String,
    pub kind: String,
    /// JSON without insignificant white space, like the metadata.
    pub data: String,
    pub metadata: Option<String>,
    pub id: Option<MessageId>,
    pub expected: ExpectedVersion,
}

impl PreparedEvent {
    pub fn bytes(&self) -> usize {
        let metadata = self.metadata.as_ref().map_or(0, String::len);
        self.kind.len() + self.data.len() + metadata
    }
}

impl EventFields {
    pub fn prepare(&self, batch: &[Message], index: usize, bytes_max: usize) -> Result<PreparedEvent, Rejection> {
        let refused = |error| Rejection::permanent(index, DropReason::OutputRejected, error);
        let prepared = self.read(batch, index).map_err(refused)?;
        let bytes = prepared.bytes();
        if bytes > bytes_max {
            let error = format!("message size {bytes} exceeds the limit of {bytes_max} bytes");
            return Err(Rejection::permanent(index, DropReason::TooLarge, error));
        }
        Ok(prepared)
    }

    fn read(&self, batch: &[Message], index: usize) -> Result<PreparedEvent, String> {
        let message = batch.get(index).ok_or("no such message")?;
        // Checked first: a payload that is not JSON gets exactly that error.
        let data = object("payload", &message.bytes())?;
        let render = |what: &str, field: &Interpolation| -> Result<String, String> {
            let text = field.render(batch, index);
            let text = text.map_err(|error| format!("no {what} for the message: {error}"))?;
            Ok(text.as_str().to_owned())
        };
        let stream = named("stream", render("stream", &self.stream)?, STREAM_BYTES_MAX)?;
        let kind = named("type", render("type", &self.kind)?, TYPE_BYTES_MAX)?;
        let metadata = match &self.metadata {
            None => None,
            Some(Metadata::Text(text)) => Some(object("metadata", render("metadata", text)?.as_bytes())?),
            Some(Metadata::Members(members)) => {
                let mut all = serde_json::Map::new();
                for (name, value) in members {
                    all.insert(name.clone(), Value::String(render(&format!("metadata {name}"), value)?));
                }
                Some(Value::Object(all).to_string())
            }
        };
        let id = self.id.as_ref().map(|id| render("id", id)).transpose()?;
        let expected = self.expected.as_ref();
        let expected = expected
            .map(|field| render("expected_version", field))
            .transpose()?
            .map(|text| expected_of(&text));
        Ok(PreparedEvent {
            index,
            stream,
            kind,
            data,
            metadata,
            id: id.filter(|id| !id.is_empty()).map(|id| uuid(&id)).transpose()?,
            expected: expected.transpose()?.unwrap_or_default(),
        })
    }
}

/// Checks a name against the store's rules.
pub fn named(what: &str, text: String, bytes_max: usize) -> Result<String, String> {
    if text.is_empty() {
        return Err(format!("the {what} is empty"));
    }
    if text.len() > bytes_max {
        let bytes = text.len();
        return Err(format!("the {what} has {bytes} bytes, and the limit is {bytes_max}"));
    }
    match text.contains('\0') {
        true => Err(format!("the {what} must not contain U+0000")),
        false => Ok(text),
    }
}

fn object(what: &str, text: &[u8]) -> Result<String, String> {
    let mut out = String::with_capacity(text.len());
    json::compact(text, &mut out).map_err(|error| format!("the {what} is not JSON: {error}"))?;
    match Json::new(&out).kind() {
        JsonKind::Object => Ok(out),
        _ => Err(format!("the {what} is JSON, but not an object")),
    }
}

fn uuid(text: &str) -> Result<MessageId, String> {
    let uuid = Uuid::parse(text).ok_or_else(|| format!("the id {text:?} is not a UUID"))?;
    Ok(MessageId::Uuid(uuid))
}

/// An empty text expects nothing.
pub fn expected_of(text: &str) -> Result<ExpectedVersion, String> {
    match text {
        "" | "any" => Ok(ExpectedVersion::Any),
        "exists" => Ok(ExpectedVersion::Exists),
        "noStream" => Ok(ExpectedVersion::NoStream),
        number => number.parse().map(ExpectedVersion::Version).map_err(|_| {
            format!("the expected version must be a number >= -1, any, exists or noStream, not {number:?}")
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> EventFields {
        let of = |text: &str| Interpolation::compile(text).unwrap();
        EventFields {
            stream: of("order-${! json(\"id\") }"),
            kind: of("${! meta(\"type\") }"),
            metadata: Some(Metadata::Members(vec![("from".to_owned(), of("line \"1\""))])),
            id: Some(of("${! json(\"uuid\") | \"\" }")),
            expected: None,
        }
    }

    fn message(text: &str) -> Message {
        let mut message = Message::raw(text.to_owned());
        message.meta.set("type", "Created");
        message
    }

    #[test]
    fn a_payload_keeps_its_digits_and_loses_its_white_space() {
        let batch = [message("{\"id\": 7, \"n\": 12345678901234567890.10}")];
        let prepared = fields().prepare(&batch, 0, 1000).unwrap();
        assert_eq!(prepared.stream, "order-7");
        assert_eq!(prepared.kind, "Created");
        assert_eq!(prepared.data, r#"{"id":7,"n":12345678901234567890.10}"#);
        assert_eq!(prepared.metadata.as_deref(), Some(r#"{"from":"line \"1\""}"#));
        assert_eq!((prepared.id, prepared.expected), (None, ExpectedVersion::Any));
    }

    #[test]
    fn what_the_store_would_not_take_is_refused_with_the_reason() {
        let long = format!("{{\"id\": \"{}\"}}", "x".repeat(2000));
        for (text, reason) in [
            ("7", "the payload is JSON, but not an object"),
            ("{\"id\": 1} x", "the payload is not JSON: "),
            (r#"{"id": 1, "uuid": "nonsense"}"#, "the id \"nonsense\" is not a UUID"),
            (long.as_str(), "the stream has 2006 bytes, and the limit is 1024"),
            (
                r#"{"id": 1, "more": "012345678901234567890123456789"}"#,
                "message size 76 exceeds the limit of 60 bytes",
            ),
        ] {
            let rejection = fields().prepare(&[message(text)], 0, 60).unwrap_err();
            assert!(rejection.permanent.is_some());
            assert!(rejection.error.starts_with(reason), "{text}: {}", rejection.error);
        }
    }

    #[test]
    fn an_expected_version_is_a_number_or_one_of_three_words() {
        for (text, expected) in [
            ("-1", Some(ExpectedVersion::Version(-1))),
            ("12", Some(ExpectedVersion::Version(12))),
            ("", Some(ExpectedVersion::Any)),
            ("any", Some(ExpectedVersion::Any)),
            ("exists", Some(ExpectedVersion::Exists)),
            ("noStream", Some(ExpectedVersion::NoStream)),
            ("nostream", None),
            ("1.5", None),
        ] {
            assert_eq!(expected_of(text).ok(), expected, "{text}");
        }
    }
}
