//! The last step: required fields, metadata with the topic, value, time.

use thalweg_flow::StageContext;
use thalweg_record::{DropReason, Message, Metadata, Payload, json};
use thalweg_script::payload_value;

use crate::computed::is_computed;
use crate::datatype::{Provenance, convert};
use crate::results::{DropCause, MetadataCache, SampleHints, missing_fields};
use crate::time::{TimestampSource, now_ms, sample_time, time_of_value};

/// Error texts show at most this much of a message's payload and metadata.
const SHOWN_BYTES_MAX: usize = 4096;

pub(super) struct Finisher {
    results: MetadataCache,
    timestamp_source: TimestampSource,
    /// The time of the current batch, once it was needed: its messages arrived together.
    now: Option<i64>,
}

impl Finisher {
    pub fn new(timestamp_source: TimestampSource) -> Finisher {
        Finisher {
            results: MetadataCache::default(),
            timestamp_source,
            now: None,
        }
    }

    /// Begins a batch.
    pub fn begin(&mut self) {
        self.now = None;
    }

    pub fn results(&mut self) -> &mut MetadataCache {
        &mut self.results
    }

    pub fn finish(
        &mut self,
        message: &Message,
        provenance: Provenance,
        context: &StageContext,
    ) -> Result<Message, DropCause> {
        let (meta, hints) = self.results.metadata(message).map_err(|refused| match refused {
            (DropReason::MissingField, _) => (DropReason::MissingField, missing_text(message)),
            other => other,
        })?;
        Ok(Message {
            payload: self.sample(&message.payload, &meta, hints, provenance, context)?,
            meta,
            failure: message.failure.clone(),
            source: message.source,
        })
    }

    /// The value and time of a message with this resulting metadata.
    pub fn sample(
        &mut self,
        payload: &Payload,
        meta: &Metadata,
        hints: SampleHints,
        provenance: Provenance,
        context: &StageContext,
    ) -> Result<Payload, DropCause> {
        let value = payload_value(payload);
        let value = convert(&value, hints.datatype, provenance).map_err(|why| (DropReason::InvalidValue, why))?;
        let time = match hints.timed {
            false => time_of_value(meta, self.timestamp_source),
            true => sample_time(meta, self.timestamp_source, |warning| {
                context.component.warn_limited("timestamp", 1, || warning);
            }),
        };
        let time_ms = time.unwrap_or_else(|| *self.now.get_or_insert_with(now_ms));
        Ok(Payload::Sample { value, time_ms })
    }
}

/// The error text: which fields are missing, the message, and how to add them.
fn missing_text(message: &Message) -> String {
    let mut payload = String::new();
    message.payload.write_text(&mut payload);
    let mut metadata = String::from("{");
    for (key, value) in message.meta.iter().filter(|(key, _)| !is_computed(key)) {
        metadata.push_str(if metadata.len() > 1 { ",\n  " } else { "\n  " });
        json::write_string(key, &mut metadata);
        metadata.push_str(": ");
        json::write_string(&value, &mut metadata);
    }
    metadata.push_str(if metadata.len() > 1 { "\n}" } else { "}" });
    format!(
        "Message validation failed\n{}\nMissing fields: {}\n\nCurrent message:\n┌ Payload: {}\n└ Metadata: {}\n\n\
         To fix: set msg.meta.location_path, msg.meta.data_contract and msg.meta.tag_name in a script",
        "━".repeat(40),
        missing_fields(&message.meta).join(", "),
        cut(&payload),
        cut(&metadata),
    )
}

fn cut(text: &str) -> String {
    if text.len() <= SHOWN_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(SHOWN_BYTES_MAX);
    format!("{}… ({} bytes)", text.get(..end).unwrap_or_default(), text.len())
}
