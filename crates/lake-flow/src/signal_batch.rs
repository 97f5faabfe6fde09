//! Encodes messages of a flow as entries of the queues `lake.logs`, `lake.metrics` and `lake.traces`.
//!
//! A message is either an OTLP request, as protobuf or JSON, which becomes an entry of its own; or a JSON object with
//! column names, like rows of files, which shares an entry with others. Messages are validated here, once: whatever is
//! in an entry becomes rows.

use bytes::Bytes;
use thalweg_columns::rows::change_counts::RowChangeCounts;
use thalweg_columns::rows::chunk::MemtableChunk;
use thalweg_columns::rows::record_limits::{RecordLimits, RejectionReason};
use thalweg_columns::rows::times::ArrivalWindow;
use thalweg_lake::entry::{EntryForm, EntryHead, PayloadCompression, PayloadEncoding, RejectedRecords, put_row};
use thalweg_lake::ingest::Handoff;
use thalweg_lake::named_rows::{BadRow, BadRowReason, ColumnMapping, NamedRowBuilder, RowRules, promoted};
use thalweg_lake::tags::{MessageRefusal, RefusedMessage};
use thalweg_lake::{LakeCode, Signal};
use thalweg_otlp::json::{JsonLimits, first_signal, to_proto};
use thalweg_otlp::validate::walk;
use thalweg_record::{DropReason, Message};

/// An entry of rows is closed at this size, because readers hold a whole entry in memory.
const ENTRY_BYTES: usize = 4 << 20;
/// The log accepts 32 MiB at once, including the overhead of a record.
const ENTRY_BYTES_MAX: usize = 31 << 20;
/// Trial rows, and bytes of their messages, after which the trial memory is reused.
const TRIED_ROWS: usize = 4096;
const TRIED_BYTES: usize = 4 << 20;
/// The most that an entry header takes besides the address and the rejected records.
const HEAD_BYTES: usize = 64;
/// The tag of the first field of a request. It is also a line feed.
const FIRST_FIELD: u8 = 0x0a;

/// Limits for messages, as configured for receivers (`ingest.*`).
#[derive(Clone, Copy, Debug)]
pub struct SignalBatchLimits {
    pub walk: RecordLimits,
    pub window: ArrivalWindow,
    /// Size of a request as protobuf.
    pub decoded_bytes_max: usize,
}

/// Some messages as a record of the log.
#[derive(Clone, Debug)]
pub(crate) struct SignalEntry {
    pub bytes: Bytes,
    /// The same content for the consumer that makes rows.
    pub handoff: Handoff,
    /// Every message before this index is in this or an earlier entry, or refused.
    pub until: usize,
}

#[derive(Debug, Default)]
pub(crate) struct SignalBatch {
    /// In the order of the messages.
    pub entries: Vec<SignalEntry>,
    pub refused: Vec<RefusedMessage>,
    /// Rejected records of requests that are stored otherwise, by reason. They are only counted.
    pub rejected: Vec<(&'static str, u64)>,
}

/// Encodes entries for one table.
pub(crate) struct SignalBatchWriter {
    signal: Signal,
    limits: SignalBatchLimits,
    rows: NamedRowBuilder,
    /// Rows built to validate them, and the bytes of their messages.
    tried: MemtableChunk,
    tried_bytes: usize,
    /// Rows that share the next entry.
    together: Vec<u8>,
    count: u32,
}

/// The input that messages came from, and their arrival in nanoseconds.
struct MessageOrigin<'a> {
    source: &'a str,
    at: i64,
}

impl SignalBatchWriter {
    pub fn new(signal: Signal, limits: SignalBatchLimits) -> SignalBatchWriter {
        SignalBatchWriter {
            signal,
            limits,
            rows: rows_of(signal, &limits),
            tried: MemtableChunk::new(signal.table()),
            tried_bytes: 0,
            together: Vec::new(),
            count: 0,
        }
    }

    /// Encodes messages of an input. `arrival` is in nanoseconds.
    pub fn pack(&mut self, source: &str, messages: &[Message], arrival: i64) -> SignalBatch {
        let (mut packed, arrived) = (SignalBatch::default(), MessageOrigin { source, at: arrival });
        self.rows.arrived(arrival, self.limits.walk);
        for (index, message) in messages.iter().enumerate() {
            if let Err(refusal) = self.message(message, index, &arrived, &mut packed) {
                packed.refused.push(RefusedMessage { index, refusal });
            }
        }
        self.finish(&arrived, messages.len(), &mut packed);
        self.forget_tried();
        packed
    }

    fn forget_tried(&mut self) {
        match self.tried_bytes > 2 * TRIED_BYTES {
            // Memory for one large message is not kept for the small ones after it.
            true => {
                self.tried = MemtableChunk::new(self.signal.table());
                self.together.shrink_to(ENTRY_BYTES);
            }
            false => self.tried.clear(),
        }
        self.tried_bytes = 0;
    }

    fn message(
        &mut self,
        message: &Message,
        index: usize,
        arrived: &MessageOrigin<'_>,
        packed: &mut SignalBatch,
    ) -> Result<(), MessageRefusal> {
        let payload = message.bytes();
        if payload.len() > ENTRY_BYTES_MAX {
            return Err(too_long(&format!("the message has {} bytes", payload.len())));
        }
        let is_proto = payload.first() == Some(&FIRST_FIELD)
            && walk(self.signal, &payload, &self.limits.walk).is_ok_and(|walked| walked.records > 0);
        let is_json = !is_proto && payload.trim_ascii_start().first() == Some(&b'{');
        let signal = if is_json { first_signal(&payload) } else { None };
        match signal {
            Some(found) if found != self.signal => Err(invalid(format!(
                "the message is a request of {}, but the output is for the table {}",
                found.name(),
                self.signal.name()
            ))),
            Some(_) => {
                let mut proto = Vec::new();
                let limits = JsonLimits::new(self.limits.walk.nesting, self.limits.decoded_bytes_max);
                to_proto(self.signal, &payload, &limits, &mut proto)
                    .map_err(|error| invalid(format!("the message is not OTLP/JSON: {error}")))?;
                let request = (PayloadEncoding::Json, &*payload, Bytes::from(proto));
                self.request(request, index, arrived, packed)
            }
            None if is_json => {
                self.try_row(&payload)?;
                if self.together.len() + payload.len() > ENTRY_BYTES {
                    self.finish(arrived, index, packed);
                }
                put_row(&mut self.together, &payload);
                self.count += 1;
                Ok(())
            }
            None => {
                let request = (PayloadEncoding::Proto, &*payload, Bytes::new());
                self.request(request, index, arrived, packed)
            }
        }
    }

    /// Validates that an object can become a row.
    fn try_row(&mut self, object: &[u8]) -> Result<(), MessageRefusal> {
        self.tried_bytes += object.len();
        if self.tried.rows() >= TRIED_ROWS || self.tried_bytes >= TRIED_BYTES {
            self.forget_tried();
        }
        let depth = self.limits.walk.nesting + 1;
        let tried = self
            .rows
            .object(object, depth, &mut self.tried, &mut RowChangeCounts::default());
        tried.map_err(|BadRow { reason, why }| MessageRefusal {
            reason: drop_reason(reason),
            error: format!("the message is not a row of {}: {why}", self.signal.name()),
        })
    }

    /// Encodes a request as it came; `proto` is the protobuf form of a JSON request.
    fn request(
        &mut self,
        (encoding, came, proto): (PayloadEncoding, &[u8], Bytes),
        index: usize,
        arrived: &MessageOrigin<'_>,
        packed: &mut SignalBatch,
    ) -> Result<(), MessageRefusal> {
        let request = if encoding == PayloadEncoding::Json {
            &*proto
        } else {
            came
        };
        let walked = walk(self.signal, request, &self.limits.walk);
        let none = |why: &str| {
            let signal = self.signal.name();
            invalid(format!(
                "the message is neither a row, which is a JSON object, nor an OTLP request with {signal}: {why}"
            ))
        };
        let walked = walked.map_err(|malformed| none(&malformed.to_string()))?;
        match encoding {
            // An empty request succeeds; other bytes without a record are of unknown kind.
            PayloadEncoding::Json if walked.records == 0 => return Ok(()),
            PayloadEncoding::Proto if walked.records == 0 => return Err(none("it has no record")),
            _ => {}
        }
        let reasons = RejectionReason::ALL.into_iter().zip(walked.reasons);
        let reasons: Vec<(&str, u64)> = reasons
            .filter(|(_, count)| *count > 0)
            .map(|(reason, count)| (reason.name(), count.into()))
            .collect();
        if walked.rejected.len() == walked.records as usize {
            let reasons: Vec<&str> = reasons.into_iter().map(|(name, _)| name).collect();
            return Err(invalid(format!(
                "every record of the request is rejected: {}",
                reasons.join(", ")
            )));
        }
        let head = EntryHead {
            records: walked.records,
            rejected: RejectedRecords::Listed(&walked.rejected),
            ..self.head(EntryForm::Request(encoding), arrived)
        };
        let proto = (encoding == PayloadEncoding::Json).then_some(proto);
        let entry = entry(&head, came, proto, index + 1);
        if entry.bytes.len() > ENTRY_BYTES_MAX {
            let bytes = entry.bytes.len();
            return Err(too_long(&format!(
                "the message and its list of rejected records have {bytes} bytes"
            )));
        }
        packed.rejected.extend(reasons);
        // Rows keep the order of their messages.
        self.finish(arrived, index, packed);
        packed.entries.push(entry);
        Ok(())
    }

    fn head<'a>(&self, form: EntryForm, arrived: &MessageOrigin<'a>) -> EntryHead<'a> {
        let walk = &self.limits.walk;
        EntryHead {
            signal: self.signal,
            form,
            compression: PayloadCompression::None,
            arrival: arrived.at,
            records: self.count,
            cut_values_at: walk
                .cut_values
                .then(|| u32::try_from(walk.value_bytes).unwrap_or(u32::MAX)),
            rejected: RejectedRecords::NONE,
            peer: arrived.source,
        }
    }

    /// Closes the entry of rows; its messages are those before `until`.
    fn finish(&mut self, arrived: &MessageOrigin<'_>, until: usize, packed: &mut SignalBatch) {
        if self.count == 0 {
            return;
        }
        let head = self.head(EntryForm::Rows, arrived);
        packed.entries.push(entry(&head, &self.together, None, until));
        self.together.clear();
        self.count = 0;
    }
}

/// Makes an entry and its handoff, which contains `other` if there is another form of the payload.
fn entry(head: &EntryHead<'_>, came: &[u8], other: Option<Bytes>, until: usize) -> SignalEntry {
    let mut bytes = Vec::with_capacity(came.len() + head.peer.len() + HEAD_BYTES);
    head.encode(&mut bytes);
    let begin = bytes.len();
    bytes.extend_from_slice(came);
    let bytes = Bytes::from(bytes);
    SignalEntry {
        handoff: Handoff::of(head, other.unwrap_or_else(|| bytes.slice(begin..))),
        bytes,
        until,
    }
}

fn rows_of(signal: Signal, limits: &SignalBatchLimits) -> NamedRowBuilder {
    let spec = signal.table();
    let rules = RowRules {
        limits: limits.walk,
        window: limits.window,
        arrival: 0,
        time_format: None,
    };
    NamedRowBuilder::new(ColumnMapping::new(spec, promoted(&(spec.columns)()), Vec::new()), rules)
}

fn drop_reason(reason: BadRowReason) -> DropReason {
    match reason {
        BadRowReason::Line | BadRowReason::Record(RejectionReason::InvalidId | RejectionReason::InvalidPoint) => {
            DropReason::InvalidPayload
        }
        BadRowReason::Record(
            RejectionReason::NestingTooDeep
            | RejectionReason::TooManyAttributes
            | RejectionReason::NameTooLong
            | RejectionReason::ValueTooLong,
        ) => DropReason::TooLarge,
    }
}

fn too_long(what: &str) -> MessageRefusal {
    let code = LakeCode::MessageTooLong;
    MessageRefusal {
        reason: DropReason::TooLarge,
        error: format!("{code}: {what}, {ENTRY_BYTES_MAX} are allowed"),
    }
}

fn invalid(error: String) -> MessageRefusal {
    MessageRefusal {
        reason: DropReason::InvalidPayload,
        error,
    }
}

#[cfg(test)]
mod tests;
