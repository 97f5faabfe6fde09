//! Packs messages of a flow into log entries.
//!
//! It alone decides whether a message can become a row: every message in an entry becomes one. Shared metadata is
//! checked and written once per entry, however many messages share it.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use thalweg_columns::rows::record_limits::RejectionReason;
use thalweg_record::codec::MessageEncoder;
use thalweg_record::{DropReason, Message, Payload};

use super::limits::{MessageRefusal, TagRowLimits};
use super::sample::TagValueCells;
use super::series::bytes_of;
use crate::codes::LakeCode;
use crate::entry::MessagesHead;
use crate::ingest::MessagesHandoff;

/// The size at which an entry ends: readers have one entry at a time in memory.
const ENTRY_BYTES: usize = 4 << 20;
/// The same, as if each message had all of its metadata separately: rows may need that, and the codec limits back
/// references to this size.
const SPREAD_BYTES: usize = 24 << 20;
/// The log accepts 32 MiB per append, including the record header.
const ENTRY_BYTES_MAX: usize = 31 << 20;
/// A larger message gets a separate entry.
const LARGE_BYTES: usize = 1 << 20;
/// Smaller values are within every limit in any text form.
const SMALL_VALUE_BYTES: usize = 64 << 10;

/// A message that cannot become a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedMessage {
    /// Its index among the messages.
    pub index: usize,
    pub refusal: MessageRefusal,
}

/// Some messages as a log record.
#[derive(Clone, Debug)]
pub struct TagEntry {
    pub bytes: Bytes,
    /// The messages that are in this entry, or refused.
    pub part: Range<usize>,
    /// The size of metadata maps that only one message has.
    pub own_maps_bytes: usize,
}

#[derive(Debug, Default)]
pub struct TagBatch {
    /// In the order of the messages.
    pub entries: Vec<TagEntry>,
    pub refused: Vec<RefusedMessage>,
}

impl TagBatch {
    /// The handoff for one of its entries.
    pub fn handed(
        &self,
        entry: &TagEntry,
        all: &Arc<Vec<Message>>,
        source: &Arc<str>,
        arrival: i64,
    ) -> MessagesHandoff {
        let place = |index: usize| self.refused.partition_point(|refused| refused.index < index);
        let of_entry = self.refused.get(place(entry.part.start)..place(entry.part.end));
        MessagesHandoff {
            all: all.clone(),
            refused: of_entry
                .unwrap_or_default()
                .iter()
                .map(|refused| refused.index)
                .collect(),
            part: entry.part.clone(),
            own_maps_bytes: entry.own_maps_bytes,
            source: source.clone(),
            arrival,
        }
    }
}

/// Packs entries and reuses its memory.
#[derive(Default)]
pub struct TagBatchWriter {
    encoder: MessageEncoder,
    /// The size of the current entry's messages, as if nothing was shared.
    spread: usize,
    /// For the messages since the last entry.
    own_maps_bytes: usize,
    limits: TagRowLimits,
}

impl TagBatchWriter {
    pub fn new(limits: TagRowLimits) -> TagBatchWriter {
        TagBatchWriter {
            limits,
            ..TagBatchWriter::default()
        }
    }

    /// Packs messages that came from an input, unless they name their own. `arrival` is in nanoseconds.
    pub fn pack(&mut self, source: &Arc<str>, messages: &[Message], arrival: i64) -> TagBatch {
        let mut packed = TagBatch::default();
        self.own_maps_bytes = 0;
        for (index, message) in messages.iter().enumerate() {
            let before = self.own_maps_bytes;
            let outcome = self.check(message).and_then(|bytes| {
                if bytes > LARGE_BYTES {
                    // Its map counts for the next entry.
                    let with_it = std::mem::replace(&mut self.own_maps_bytes, before);
                    self.finish(source, arrival, index, &mut packed);
                    self.own_maps_bytes += with_it - before;
                }
                self.push(message, bytes)
            });
            if let Err(refusal) = outcome {
                packed.refused.push(RefusedMessage { index, refusal });
            }
            if self.encoder.bytes() >= ENTRY_BYTES || self.spread >= SPREAD_BYTES {
                self.finish(source, arrival, index + 1, &mut packed);
            }
        }
        self.finish(source, arrival, messages.len(), &mut packed);
        packed
    }

    /// Adds a message of approximately `bytes`. A large one must be the first of an entry.
    fn push(&mut self, message: &Message, bytes: usize) -> Result<(), MessageRefusal> {
        self.encoder.push(message).map_err(|error| MessageRefusal {
            reason: DropReason::Limit,
            error: error.to_string(),
        })?;
        self.spread += bytes;
        let written = self.encoder.bytes();
        if bytes > LARGE_BYTES && written > ENTRY_BYTES_MAX {
            self.encoder.clear();
            self.spread = 0;
            let code = LakeCode::MessageTooLong;
            return Err(MessageRefusal::too_large(format!(
                "{code}: the message has {written} bytes, {ENTRY_BYTES_MAX} are allowed"
            )));
        }
        Ok(())
    }

    /// The approximate size of the message, if it can become a row.
    #[inline]
    fn check(&mut self, message: &Message) -> Result<usize, MessageRefusal> {
        let value_bytes = match &message.payload {
            Payload::Raw(bytes) => bytes.len(),
            Payload::Value(value) | Payload::Sample { value, .. } => value.heap_bytes(),
        };
        if value_bytes > SMALL_VALUE_BYTES {
            self.check_value(&message.payload)?;
        }
        // In the form for a row.
        let meta = message.meta.settled();
        let shared = meta.shared_map();
        // No other message shares the map, so it counts as memory of this one.
        if Arc::strong_count(shared) == 1 {
            self.own_maps_bytes += bytes_of(shared);
        }
        let limits = &self.limits;
        let is_within = shared.is_within(limits.attribute_name_bytes_max, limits.attribute_value_bytes_max)
            && shared.len() + meta.changes().len() <= limits.attributes_max
            && meta
                .changes()
                .all(|(name, text)| limits.allow(name, text.map_or("", |text| text)));
        if !is_within {
            limits.check(&meta)?;
        }
        Ok(value_bytes + shared.text_bytes() + meta.heap_bytes())
    }

    #[cold]
    fn check_value(&self, payload: &Payload) -> Result<(), MessageRefusal> {
        let code = RejectionReason::ValueTooLong.name();
        let (bytes, max) = (TagValueCells::of(payload).heap_bytes(), self.limits.value_bytes_max);
        match bytes > max {
            true => Err(MessageRefusal::too_large(format!(
                "{code}: the value has {bytes} bytes, {max} are allowed"
            ))),
            false => Ok(()),
        }
    }

    fn finish(&mut self, source: &Arc<str>, arrival: i64, until: usize, packed: &mut TagBatch) {
        if self.encoder.count() == 0 {
            return;
        }
        let head = MessagesHead {
            arrival,
            records: u32::try_from(self.encoder.count()).unwrap_or(u32::MAX),
            source,
        };
        let mut bytes = Vec::with_capacity(self.encoder.bytes() + source.len() + 64);
        head.encode(&mut bytes);
        self.encoder.finish_into(&mut bytes);
        self.spread = 0;
        let from = packed.entries.last().map_or(0, |last| last.part.end);
        packed.entries.push(TagEntry {
            bytes: bytes.into(),
            part: from..until,
            own_maps_bytes: std::mem::take(&mut self.own_maps_bytes),
        });
    }
}
