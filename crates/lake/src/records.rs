//! Messages of a flow into entries of the queues `lake.logs`, `lake.metrics` and `lake.traces`.
//!
//! A message is a request of OTLP, as protobuf or as JSON, which becomes an entry of its own; or a JSON object, which is a row by
//! the names of columns, as those of files are, and shares an entry with others. Whether it can be is decided here, once: what is
//! in an entry becomes rows.

use bytes::Bytes;
use thalweg_record::{DropReason, Message};

use crate::by_name::{BadRow, Places, RowRules, Rows, promoted};
use crate::entry::{Compression, Encoding, EntryHead, Form, Rejected, put_row};
use crate::ingest::Handoff;
use crate::otlp::Signal;
use crate::otlp::decode::{Changed, Window};
use crate::otlp::json::{JsonLimits, first_signal, to_proto};
use crate::otlp::walk::{Reason, WalkLimits, walk};
use crate::rows::chunk::Chunk;
use crate::tables::TableSpec;
use crate::tags::{Refusal, Refused};

/// An entry of rows ends when it has so much: readers have one at a time in memory.
const ENTRY_BYTES: usize = 4 << 20;
/// The log takes 32 MiB at once, with what it says of a record.
const ENTRY_BYTES_MAX: usize = 31 << 20;
/// Rows that are made to look whether they can be, before their memory is used again, and their bytes.
const TRIED_ROWS: usize = 4096;
const TRIED_BYTES: usize = 4 << 20;
/// What a head has beside the address and the rejected records, at most.
const HEAD_BYTES: usize = 64;
/// The tag of the first field of a request, which is a line feed, too.
const FIRST_FIELD: u8 = 0x0a;

/// What messages may be, as it is set for receivers (`ingest.*`).
#[derive(Clone, Copy, Debug)]
pub struct RecordLimits {
    pub walk: WalkLimits,
    pub window: Window,
    /// Of a request as protobuf.
    pub decoded_bytes_max: usize,
}

/// Some messages as a record of the log.
#[derive(Clone, Debug)]
pub struct RecordEntry {
    pub bytes: Bytes,
    /// The same for whoever makes rows of it next.
    pub handoff: Handoff,
    /// The messages up to this one, which is not among them, are in this entry or those before, or refused.
    pub until: usize,
}

#[derive(Debug, Default)]
pub struct PackedRecords {
    /// In the order of the messages.
    pub entries: Vec<RecordEntry>,
    pub refused: Vec<Refused>,
    /// Records of requests whose others are stored, by reason; nobody is told of them but by a count.
    pub rejected: Vec<(&'static str, u64)>,
}

/// Makes entries for one table.
pub struct RecordPacker {
    signal: Signal,
    spec: &'static TableSpec,
    limits: RecordLimits,
    rows: Rows,
    /// Rows that were made to look whether they can be, and the bytes of their messages.
    tried: Chunk,
    tried_bytes: usize,
    /// Rows that share the next entry.
    together: Vec<u8>,
    count: u32,
}

/// Of which input messages came, and when, in nanoseconds.
struct Arrived<'a> {
    source: &'a str,
    at: i64,
}

impl RecordPacker {
    pub fn new(signal: Signal, spec: &'static TableSpec, limits: RecordLimits) -> RecordPacker {
        RecordPacker {
            signal,
            spec,
            limits,
            rows: rows_of(spec, &limits),
            tried: Chunk::new(spec),
            tried_bytes: 0,
            together: Vec::new(),
            count: 0,
        }
    }

    /// Entries of messages that came from an input. `arrival` is in nanoseconds.
    pub fn pack(&mut self, source: &str, messages: &[Message], arrival: i64) -> PackedRecords {
        let (mut packed, arrived) = (PackedRecords::default(), Arrived { source, at: arrival });
        self.rows.arrived(arrival, self.limits.walk);
        for (index, message) in messages.iter().enumerate() {
            if let Err(refusal) = self.message(message, index, &arrived, &mut packed) {
                packed.refused.push(Refused { index, refusal });
            }
        }
        self.finish(&arrived, messages.len(), &mut packed);
        self.forget_tried();
        packed
    }

    fn forget_tried(&mut self) {
        match self.tried_bytes > 2 * TRIED_BYTES {
            // The memory of one large message is not kept for the small ones that follow.
            true => {
                self.tried = Chunk::new(self.spec);
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
        arrived: &Arrived<'_>,
        packed: &mut PackedRecords,
    ) -> Result<(), Refusal> {
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
                "the message is a request of {}, and the output is for the table {}",
                found.name(),
                self.signal.name()
            ))),
            Some(_) => {
                let mut proto = Vec::new();
                let limits = JsonLimits::new(self.limits.walk.nesting, self.limits.decoded_bytes_max);
                to_proto(self.signal, &payload, &limits, &mut proto)
                    .map_err(|error| invalid(format!("the message is no OTLP/JSON: {error}")))?;
                let request = (Encoding::Json, &*payload, Bytes::from(proto));
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
                let request = (Encoding::Proto, &*payload, Bytes::new());
                self.request(request, index, arrived, packed)
            }
        }
    }

    /// Whether an object can become a row.
    fn try_row(&mut self, object: &[u8]) -> Result<(), Refusal> {
        self.tried_bytes += object.len();
        if self.tried.rows() >= TRIED_ROWS || self.tried_bytes >= TRIED_BYTES {
            self.forget_tried();
        }
        let depth = self.limits.walk.nesting + 1;
        let tried = self
            .rows
            .object(object, depth, &mut self.tried, &mut Changed::default());
        tried.map_err(|BadRow { reason, why }| Refusal {
            reason: match reason {
                "bad_line" | "invalid_id" | "invalid_point" => DropReason::InvalidPayload,
                _ => DropReason::TooLarge,
            },
            error: format!("the message is no row of {}: {why}", self.signal.name()),
        })
    }

    /// A request, as it came, and of JSON as protobuf.
    fn request(
        &mut self,
        (encoding, came, proto): (Encoding, &[u8], Bytes),
        index: usize,
        arrived: &Arrived<'_>,
        packed: &mut PackedRecords,
    ) -> Result<(), Refusal> {
        let request = if encoding == Encoding::Json { &*proto } else { came };
        let walked = walk(self.signal, request, &self.limits.walk);
        let none = |why: &str| {
            let signal = self.signal.name();
            invalid(format!(
                "the message is neither a row, which is a JSON object, nor a request of OTLP with {signal}: {why}"
            ))
        };
        let walked = walked.map_err(|malformed| none(&malformed.to_string()))?;
        match encoding {
            // An empty request succeeds; what begins like one and has no record may be anything.
            Encoding::Json if walked.records == 0 => return Ok(()),
            Encoding::Proto if walked.records == 0 => return Err(none("it has no record")),
            _ => {}
        }
        let reasons = Reason::ALL.into_iter().zip(walked.reasons);
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
            rejected: Rejected::Listed(&walked.rejected),
            ..self.head(Form::Request(encoding), arrived)
        };
        let proto = (encoding == Encoding::Json).then_some(proto);
        let entry = entry(&head, came, proto, index + 1);
        if entry.bytes.len() > ENTRY_BYTES_MAX {
            let bytes = entry.bytes.len();
            return Err(too_long(&format!(
                "with what is rejected of it the message has {bytes} bytes"
            )));
        }
        packed.rejected.extend(reasons);
        // Rows keep the order of their messages.
        self.finish(arrived, index, packed);
        packed.entries.push(entry);
        Ok(())
    }

    fn head<'a>(&self, form: Form, arrived: &Arrived<'a>) -> EntryHead<'a> {
        let walk = &self.limits.walk;
        EntryHead {
            signal: self.signal,
            form,
            compression: Compression::None,
            arrival: arrived.at,
            records: self.count,
            cut_values_at: walk
                .cut_values
                .then(|| u32::try_from(walk.value_bytes).unwrap_or(u32::MAX)),
            rejected: Rejected::NONE,
            peer: arrived.source,
        }
    }

    /// The rows that share an entry are those before `until`.
    fn finish(&mut self, arrived: &Arrived<'_>, until: usize, packed: &mut PackedRecords) {
        if self.count == 0 {
            return;
        }
        let head = self.head(Form::Rows, arrived);
        packed.entries.push(entry(&head, &self.together, None, until));
        self.together.clear();
        self.count = 0;
    }
}

/// What came is handed over, unless there is another form of it.
fn entry(head: &EntryHead<'_>, came: &[u8], other: Option<Bytes>, until: usize) -> RecordEntry {
    let mut bytes = Vec::with_capacity(came.len() + head.peer.len() + HEAD_BYTES);
    head.encode(&mut bytes);
    let begin = bytes.len();
    bytes.extend_from_slice(came);
    let bytes = Bytes::from(bytes);
    RecordEntry {
        handoff: Handoff::of(head, other.unwrap_or_else(|| bytes.slice(begin..))),
        bytes,
        until,
    }
}

fn rows_of(spec: &'static TableSpec, limits: &RecordLimits) -> Rows {
    let rules = RowRules {
        limits: limits.walk,
        window: limits.window,
        arrival: 0,
        time_format: None,
    };
    Rows::new(Places::new(spec, promoted(&(spec.columns)()), Vec::new()), rules)
}

fn too_long(what: &str) -> Refusal {
    Refusal {
        reason: DropReason::TooLarge,
        error: format!("message_too_long: {what}, {ENTRY_BYTES_MAX} are allowed"),
    }
}

fn invalid(error: String) -> Refusal {
    Refusal {
        reason: DropReason::InvalidPayload,
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::{decode, rows};
    use crate::tables::{LOGS, METRICS, TRACES};

    const NOW: i64 = 1_700_000_000_000_000_000;
    const OTLP: &str = r#"{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"a"}}]}]}]}"#;

    fn packer(limits: WalkLimits) -> RecordPacker {
        let limits = RecordLimits {
            walk: limits,
            window: Window::default(),
            decoded_bytes_max: 64 << 20,
        };
        RecordPacker::new(Signal::Logs, &LOGS, limits)
    }

    fn pack(messages: &[&[u8]]) -> PackedRecords {
        let messages: Vec<Message> = messages.iter().map(|payload| Message::raw(payload.to_vec())).collect();
        packer(WalkLimits::default()).pack("plant", &messages, NOW)
    }

    /// A request with one log, as protobuf.
    fn proto() -> Vec<u8> {
        let mut out = Vec::new();
        to_proto(Signal::Logs, OTLP.as_bytes(), &JsonLimits::default(), &mut out).unwrap();
        out
    }

    #[test]
    fn rows_share_an_entry_and_requests_have_their_own_in_the_order_of_messages() {
        let proto = proto();
        let (a, b, c) = (
            br#"{"message":"a"}"#,
            b" {\n\"message\":\n\"b\"}",
            br#"{"message":"c"}"#,
        );
        let packed = pack(&[a, b, OTLP.as_bytes(), b"no row", c, &proto]);
        let indexes: Vec<usize> = packed.refused.iter().map(|refused| refused.index).collect();
        assert_eq!(indexes, [3]);
        let untils: Vec<usize> = packed.entries.iter().map(|entry| entry.until).collect();
        assert_eq!(untils, [2, 3, 5, 6]);
        let heads: Vec<_> = packed
            .entries
            .iter()
            .map(|entry| decode(&entry.bytes).unwrap())
            .collect();
        let forms: Vec<Form> = heads.iter().map(|(head, _)| head.form).collect();
        let (json, protobuf) = (Form::Request(Encoding::Json), Form::Request(Encoding::Proto));
        assert_eq!(forms, [Form::Rows, json, Form::Rows, protobuf]);
        let texts: Vec<&[u8]> = rows(heads[0].1).map(Result::unwrap).collect();
        assert_eq!(texts, [&a[..], &b[..]]);
        assert_eq!(
            (heads[0].0.records, heads[0].0.peer, heads[0].0.arrival),
            (2, "plant", NOW)
        );
        for (entry, (head, request)) in packed.entries.iter().zip(&heads) {
            let request = if head.form == json { &proto } else { *request };
            assert_eq!(entry.handoff, Handoff::of(head, Bytes::copy_from_slice(request)));
        }
    }

    #[test]
    fn what_can_be_no_record_is_refused_with_the_reason() {
        let spans = r#"{"resourceSpans":[]}"#;
        let long = format!("{{\"message\":\"{}\"}}", "x".repeat(2 << 20));
        for (payload, reason, why) in [
            (
                &b"a line"[..],
                DropReason::InvalidPayload,
                "neither a row, which is a JSON object, nor a request of OTLP with logs",
            ),
            (b"", DropReason::InvalidPayload, "neither a row"),
            (b"[1]", DropReason::InvalidPayload, "neither a row"),
            (
                b"{\"trace_id\":7,\"message\":1}}",
                DropReason::InvalidPayload,
                "the message is no row of logs",
            ),
            (
                b"{\"message\":",
                DropReason::InvalidPayload,
                "the message is no row of logs",
            ),
            (
                b"{\"time\":\"soon\"}",
                DropReason::InvalidPayload,
                "\"soon\" is no time",
            ),
            (
                spans.as_bytes(),
                DropReason::InvalidPayload,
                "a request of traces, and the output is for the table logs",
            ),
            (b"{\"resourceLogs\":7}", DropReason::InvalidPayload, "no OTLP/JSON"),
            (long.as_bytes(), DropReason::TooLarge, "value_too_long"),
        ] {
            let packed = pack(&[payload]);
            let shown = String::from_utf8_lossy(&payload[..payload.len().min(40)]);
            assert!(packed.entries.is_empty(), "{shown}");
            let refusal = &packed.refused[0].refusal;
            assert_eq!(refusal.reason, reason, "{shown}: {}", refusal.error);
            assert!(refusal.error.contains(why), "{shown}: {}", refusal.error);
        }
    }

    /// Its first two bytes are a line feed and a bracket.
    #[test]
    fn a_request_that_begins_like_an_object_is_a_request() {
        let text = "x".repeat(123);
        let of = |len: usize| {
            let json = OTLP.replace("\"a\"", &format!("\"{}\"", &text[..len]));
            let mut out = Vec::new();
            to_proto(Signal::Logs, json.as_bytes(), &JsonLimits::default(), &mut out).unwrap();
            out
        };
        let request = (0..text.len())
            .map(of)
            .find(|request| request.starts_with(b"\n{"))
            .unwrap();
        let packed = pack(&[&request, b"\n{\"message\":\"a row\"}"]);
        assert_eq!(packed.refused, []);
        let forms: Vec<Form> = packed
            .entries
            .iter()
            .map(|entry| entry.handoff.is_rows)
            .map(|is_rows| match is_rows {
                true => Form::Rows,
                false => Form::Request(Encoding::Proto),
            })
            .collect();
        assert_eq!(forms, [Form::Request(Encoding::Proto), Form::Rows]);
        assert_eq!(packed.entries[0].handoff.request, request);
    }

    #[test]
    fn an_empty_request_is_taken_and_leaves_nothing() {
        let packed = pack(&[br#"{"resourceLogs":[]}"#]);
        assert!(
            packed.entries.is_empty() && packed.refused.is_empty(),
            "{:?}",
            packed.refused
        );
    }

    #[test]
    fn records_that_are_rejected_leave_the_others_of_their_request() {
        let of = |bodies: &[&str]| {
            let records = bodies
                .iter()
                .map(|body| format!(r#"{{"body":{{"stringValue":"{body}"}}}}"#));
            let records = records.collect::<Vec<String>>().join(",");
            format!(r#"{{"resourceLogs":[{{"scopeLogs":[{{"logRecords":[{records}]}}]}}]}}"#)
        };
        let limits = WalkLimits {
            value_bytes: 10,
            ..WalkLimits::default()
        };
        let pack = |text: String| packer(limits).pack("", &[Message::raw(text)], NOW);
        let some = pack(of(&["short", "longer than it may be"]));
        assert_eq!(some.rejected, [("value_too_long", 1)]);
        assert_eq!(some.entries[0].handoff.rejected, [1]);
        let none = pack(of(&["longer than it may be"]));
        assert!(none.entries.is_empty());
        assert!(
            none.refused[0].refusal.error.contains("value_too_long"),
            "{:?}",
            none.refused
        );
    }

    #[test]
    fn entries_do_not_grow_without_end() {
        let row = format!("{{\"message\":\"{}\"}}", "x".repeat(1 << 20));
        let packed = pack(&[row.as_bytes(); 10]);
        let lens: Vec<usize> = packed.entries.iter().map(|entry| entry.bytes.len()).collect();
        assert_eq!(lens.len(), 4, "{lens:?}");
        assert!(lens.iter().all(|len| *len < ENTRY_BYTES + (1 << 10)), "{lens:?}");
        assert_eq!(packed.entries.last().map(|entry| entry.until), Some(10));
    }

    #[test]
    fn points_and_spans_are_rows_too() {
        for (signal, spec, good, bad) in [
            (
                Signal::Metrics,
                &METRICS,
                r#"{"metric_name":"load","value":0.5}"#,
                r#"{"metric_name":"load","value":"much"}"#,
            ),
            (
                Signal::Traces,
                &TRACES,
                r#"{"trace_id":"5b8efff798038103d269b633813fc60c","span_id":"eee19b7ec3c1b174","name":"get"}"#,
                r#"{"name":"get"}"#,
            ),
        ] {
            let limits = RecordLimits {
                walk: WalkLimits::default(),
                window: Window::default(),
                decoded_bytes_max: 1 << 20,
            };
            let messages = [good, bad].map(|text| Message::raw(text.to_owned()));
            let packed = RecordPacker::new(signal, spec, limits).pack("", &messages, NOW);
            assert_eq!(packed.entries.len(), 1, "{:?}", packed.refused);
            assert_eq!(packed.refused[0].index, 1);
            assert_eq!(packed.refused[0].refusal.reason, DropReason::InvalidPayload);
        }
    }
}
