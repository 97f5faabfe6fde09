//! The entries of the lake queues in the log: one per request, with its bytes as received after a header that
//! describes them; or one for many messages of a flow.
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version, 1 |
//! | 1 | signal: 1 logs, 2 metrics, 3 traces, 4 tags |
//! | 1 | encoding: 1 protobuf, 2 JSON, 3 messages ([`thalweg_record::codec`]), 4 rows |
//! | 1 | compression: 0 none, 1 gzip, 2 zstd |
//! | 8 | arrival in nanoseconds since 1970, little-endian |
//! | varint | records in the request, including rejected ones |
//! | varint | length at which values are cut, plus one; 0: no limit |
//! | varint, varints | number of rejected records, and for each the number of records since the previous one |
//! | varint, bytes | length of the peer's address, and the address; for messages, of the input that they came from |
//! | the rest | the request, or the messages |
//!
//! Rows are JSON objects by column name, each after its length in four bytes, little-endian. A replay depends on the
//! entry alone, so the entry has all that was decided on arrival.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;

use thalweg_kit::varint;

use crate::ingest::Handoff;
use crate::signal::Signal;

const VERSION: u8 = 1;
const TAGS: u8 = 4;
const MESSAGES: u8 = 3;
const ROWS: u8 = 4;

/// The encoding of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadEncoding {
    Proto,
    Json,
}

/// The content of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryForm {
    Request(PayloadEncoding),
    /// See [`rows`].
    Rows,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadCompression {
    None,
    Gzip,
    Zstd,
}

/// The limits of decompression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflateLimits {
    pub bytes: usize,
    /// Decompressed bytes per compressed byte, once there is more than 1 MiB.
    pub ratio: usize,
    /// The zstd window.
    pub window: usize,
}

impl Default for InflateLimits {
    fn default() -> InflateLimits {
        InflateLimits {
            bytes: 64 << 20,
            ratio: 1000,
            window: 8 << 20,
        }
    }
}

/// The decompressed size up to which the ratio is not checked.
const RATIO_FREE: u64 = 1 << 20;
/// The largest zstd window is 2 GiB.
const ZSTD_WINDOW_LOG_MAX: u32 = 31;

impl InflateLimits {
    /// Whether so many bytes are too many for so many compressed ones.
    pub fn exceeds_ratio(&self, compressed: u64, decompressed: u64) -> bool {
        decompressed > compressed.saturating_mul(self.ratio as u64).max(RATIO_FREE)
    }

    /// The window as the library of zstd wants it: its binary logarithm, rounded down.
    pub fn zstd_window_log(&self) -> u32 {
        let log = usize::BITS - 1 - self.window.max(1 << 10).leading_zeros();
        log.min(ZSTD_WINDOW_LOG_MAX)
    }

    /// Whether a zstd decoder failed because of its window, which its library reports only as text.
    pub fn is_zstd_window(error: &str) -> bool {
        error.contains("Frame requires too much memory")
    }
}

/// The description of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryHead<'a> {
    pub signal: Signal,
    pub form: EntryForm,
    pub compression: PayloadCompression,
    /// Nanoseconds since 1970.
    pub arrival: i64,
    /// Including rejected ones.
    pub records: u32,
    /// The length at which values are cut.
    pub cut_values_at: Option<u32>,
    pub rejected: RejectedRecords<'a>,
    /// The address of the sender.
    pub peer: &'a str,
}

/// Indexes of the rejected records in their request, ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectedRecords<'a> {
    Listed(&'a [u32]),
    /// In the encoding of an entry.
    Encoded(&'a [u8]),
}

impl<'a> RejectedRecords<'a> {
    pub const NONE: RejectedRecords<'static> = RejectedRecords::Listed(&[]);

    pub fn iter(self) -> impl Iterator<Item = u32> + 'a {
        let (mut listed, mut encoded) = match self {
            RejectedRecords::Listed(places) => (places.iter(), &[][..]),
            RejectedRecords::Encoded(bytes) => ([].iter(), bytes),
        };
        let mut next = 0_u32;
        std::iter::from_fn(move || {
            if let Some(place) = listed.next() {
                return Some(*place);
            }
            let skipped = take_varint(&mut encoded)?;
            let place = next.saturating_add(u32::try_from(skipped).unwrap_or(u32::MAX));
            next = place.saturating_add(1);
            Some(place)
        })
    }
}

/// Why bytes are not a valid entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryError {
    Short,
    /// It was written by a newer version of the program.
    Version(u8),
    Unknown {
        what: &'static str,
        value: u8,
    },
    Peer,
    /// An incomplete row.
    Row,
}

impl fmt::Display for EntryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryError::Short => f.write_str("it ends within its header"),
            EntryError::Version(version) => {
                write!(
                    f,
                    "it has version {version} and this program reads {VERSION}; use the newer program"
                )
            }
            EntryError::Unknown { what, value } => write!(f, "it has the unknown {what} {value}"),
            EntryError::Peer => f.write_str("the address of its sender is not UTF-8"),
            EntryError::Row => f.write_str("it ends within a row"),
        }
    }
}

impl std::error::Error for EntryError {}

impl EntryHead<'_> {
    /// Appends the header to a new entry; the request must follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let encoding = match self.form {
            EntryForm::Request(PayloadEncoding::Proto) => 1,
            EntryForm::Request(PayloadEncoding::Json) => 2,
            EntryForm::Rows => ROWS,
        };
        let compression = match self.compression {
            PayloadCompression::None => 0,
            PayloadCompression::Gzip => 1,
            PayloadCompression::Zstd => 2,
        };
        let signal = match self.signal {
            Signal::Logs => 1,
            Signal::Metrics => 2,
            Signal::Traces => 3,
        };
        let head = RawEntryHead {
            codes: [signal, encoding, compression],
            arrival: self.arrival,
            records: self.records,
            cut_values_at: self.cut_values_at,
            rejected: self.rejected,
            peer: self.peer,
        };
        head.encode(out);
    }
}

/// The description of messages of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessagesHead<'a> {
    /// Nanoseconds since 1970.
    pub arrival: i64,
    pub records: u32,
    /// The input of messages that do not name their own: its label, else its path.
    pub source: &'a str,
}

impl MessagesHead<'_> {
    /// Appends the header to a new entry; the messages must follow.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let head = RawEntryHead {
            codes: [TAGS, MESSAGES, 0],
            arrival: self.arrival,
            records: self.records,
            cut_values_at: None,
            rejected: RejectedRecords::NONE,
            peer: self.source,
        };
        head.encode(out);
    }
}

/// Decodes the header of an entry of messages, and returns the encoded messages.
pub fn decode_messages(entry: &[u8]) -> Result<(MessagesHead<'_>, &[u8]), EntryError> {
    let (head, messages) = RawEntryHead::decode(entry)?;
    let [signal, encoding, compression] = head.codes;
    for (what, value, expected) in [
        ("signal", signal, TAGS),
        ("encoding", encoding, MESSAGES),
        ("compression", compression, 0),
    ] {
        if value != expected {
            return Err(EntryError::Unknown { what, value });
        }
    }
    let head = MessagesHead {
        arrival: head.arrival,
        records: head.records,
        source: head.peer,
    };
    Ok((head, messages))
}

/// Decodes the header of an entry, and returns its request.
pub fn decode(entry: &[u8]) -> Result<(EntryHead<'_>, &[u8]), EntryError> {
    let (head, request) = RawEntryHead::decode(entry)?;
    let [signal, encoding, compression] = head.codes;
    let unknown = |what, value| EntryError::Unknown { what, value };
    let signal = match signal {
        1 => Signal::Logs,
        2 => Signal::Metrics,
        3 => Signal::Traces,
        value => return Err(unknown("signal", value)),
    };
    let form = match encoding {
        1 => EntryForm::Request(PayloadEncoding::Proto),
        2 => EntryForm::Request(PayloadEncoding::Json),
        ROWS => EntryForm::Rows,
        value => return Err(unknown("encoding", value)),
    };
    let compression = match compression {
        0 => PayloadCompression::None,
        1 => PayloadCompression::Gzip,
        2 => PayloadCompression::Zstd,
        value => return Err(unknown("compression", value)),
    };
    let head = EntryHead {
        signal,
        form,
        compression,
        arrival: head.arrival,
        records: head.records,
        cut_values_at: head.cut_values_at,
        rejected: head.rejected,
        peer: head.peer,
    };
    Ok((head, request))
}

/// Appends a row to the rows of an entry.
pub fn put_row(out: &mut Vec<u8>, row: &[u8]) {
    out.extend_from_slice(&(row.len() as u32).to_le_bytes());
    out.extend_from_slice(row);
}

/// The rows of an entry. A truncated row ends the iteration.
pub fn rows(mut request: &[u8]) -> impl Iterator<Item = Result<&[u8], EntryError>> {
    std::iter::from_fn(move || {
        if request.is_empty() {
            return None;
        }
        let split = request.split_first_chunk::<4>().and_then(|(len, rest)| {
            let len = usize::try_from(u32::from_le_bytes(*len)).ok()?;
            rest.split_at_checked(len)
        });
        let Some((row, rest)) = split else {
            request = &[];
            return Some(Err(EntryError::Row));
        };
        request = rest;
        Some(Ok(row))
    })
}

/// The common header of all entries.
struct RawEntryHead<'a> {
    /// Signal, encoding, compression.
    codes: [u8; 3],
    arrival: i64,
    records: u32,
    cut_values_at: Option<u32>,
    rejected: RejectedRecords<'a>,
    peer: &'a str,
}

impl<'a> RawEntryHead<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        out.extend_from_slice(&self.codes);
        out.extend_from_slice(&self.arrival.to_le_bytes());
        varint::put(out, self.records.into());
        varint::put(out, self.cut_values_at.map_or(0, |at| u64::from(at) + 1));
        varint::put(out, self.rejected.iter().count() as u64);
        let mut next = 0;
        for place in self.rejected.iter() {
            varint::put(out, u64::from(place - next));
            next = place + 1;
        }
        varint::put(out, self.peer.len() as u64);
        out.extend_from_slice(self.peer.as_bytes());
    }

    /// Returns the rest, too.
    fn decode(entry: &'a [u8]) -> Result<(RawEntryHead<'a>, &'a [u8]), EntryError> {
        let (fixed, mut rest) = entry.split_first_chunk::<4>().ok_or(EntryError::Short)?;
        let [version, codes @ ..] = *fixed;
        if version != VERSION {
            return Err(EntryError::Version(version));
        }
        let arrival;
        (arrival, rest) = rest.split_first_chunk::<8>().ok_or(EntryError::Short)?;
        let mut number = |limit: u64| {
            let number = take_varint(&mut rest).filter(|number| *number <= limit);
            number.ok_or(EntryError::Short)
        };
        let records = number(u32::MAX.into())? as u32;
        let cut_values_at = number(u64::from(u32::MAX) + 1)?.checked_sub(1).map(|at| at as u32);
        let rejected = number(records.into())?;
        let begin = rest;
        let mut next = 0_u64;
        for _ in 0..rejected {
            let place = take_varint(&mut rest).and_then(|after| next.checked_add(after));
            let place = place.filter(|place| *place < u64::from(u32::MAX));
            next = place.ok_or(EntryError::Short)? + 1;
        }
        let (rejected, _) = begin.split_at(begin.len() - rest.len());
        let peer = take_varint(&mut rest).and_then(|len| usize::try_from(len).ok());
        let (peer, rest) = peer
            .and_then(|len| rest.split_at_checked(len))
            .ok_or(EntryError::Short)?;
        let head = RawEntryHead {
            codes,
            arrival: i64::from_le_bytes(*arrival),
            records,
            cut_values_at,
            rejected: RejectedRecords::Encoded(rejected),
            peer: std::str::from_utf8(peer).map_err(|_| EntryError::Peer)?,
        };
        Ok((head, rest))
    }
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let (number, len) = varint::read(bytes).ok()?;
    *bytes = bytes.get(len..)?;
    Some(number)
}

/// The position of an entry in the log, for which clients can wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryPosition {
    pub queue: String,
    pub partition: u32,
    pub offset: u64,
}

impl fmt::Display for EntryPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.queue, self.partition, self.offset)
    }
}

impl FromStr for EntryPosition {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<EntryPosition, &'static str> {
        let parts = || {
            // Queue names may contain colons.
            let (rest, offset) = text.rsplit_once(':')?;
            let (queue, partition) = rest.rsplit_once(':')?;
            Some(EntryPosition {
                queue: Some(queue).filter(|queue| !queue.is_empty())?.to_owned(),
                partition: number(partition)?,
                offset: number(offset)?,
            })
        };
        parts().ok_or("expected QUEUE:PARTITION:OFFSET, as in the header Thalweg-Position of a response")
    }
}

/// Accepts digits only, without a sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_plain.then(|| text.parse().ok()).flatten()
}

/// Why an entry was not stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendRefused {
    /// The log is read-only after a fault.
    Poisoned(String),
    DiskFull(String),
    Stopping,
    /// Too many entries wait to be stored.
    Pressure,
    Other(String),
}

/// A boxed future that is `Send`.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Appends entries. When the future ends, they are as durable as the log promises.
pub trait EntrySink: Send + Sync {
    /// `handoff` is the decoded request for the partition consumer.
    fn append(
        &self,
        signal: Signal,
        entry: Vec<u8>,
        handoff: Handoff,
    ) -> BoxFuture<'static, Result<EntryPosition, AppendRefused>>;
}

#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    let Ok((head, request)) = decode(data) else { return };
    assert!(head.rejected.iter().count() <= head.records as usize);
    let mut again = Vec::new();
    head.encode(&mut again);
    again.extend_from_slice(request);
    let whole = rows(request)
        .filter_map(Result::ok)
        .map(|row| row.len() + 4)
        .sum::<usize>();
    assert!(whole <= request.len());
    let (decoded, rest) = decode(&again).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(
        (decoded.arrival, decoded.records, rest),
        (head.arrival, head.records, request)
    );
    assert!(decoded.rejected.iter().eq(head.rejected.iter()));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head<'a>(rejected: &'a [u32], peer: &'a str) -> EntryHead<'a> {
        EntryHead {
            signal: Signal::Metrics,
            form: EntryForm::Request(PayloadEncoding::Json),
            compression: PayloadCompression::Zstd,
            arrival: 1_700_000_000_123_456_789,
            records: 300,
            cut_values_at: Some(0),
            rejected: RejectedRecords::Listed(rejected),
            peer,
        }
    }

    #[test]
    fn version_one_lies_in_these_bytes() {
        let mut entry = Vec::new();
        head(&[0, 2, 130], "[::1]:9").encode(&mut entry);
        entry.extend_from_slice(b"{}");
        let expected = [
            &[1, 2, 2, 2][..],
            &1_700_000_000_123_456_789_i64.to_le_bytes(),
            &[0xac, 0x02, 1, 3, 0, 1, 127, 7],
            b"[::1]:9{}",
        ];
        assert_eq!(entry, expected.concat());
        for cut in 0..entry.len() - 2 {
            assert!(decode(&entry[..cut]).is_err(), "{cut}");
        }
        entry[0] = 2;
        assert_eq!(decode(&entry), Err(EntryError::Version(2)));
    }

    #[test]
    fn an_entry_of_messages_is_no_request_and_a_request_is_no_messages() {
        let head = MessagesHead {
            arrival: 1_700_000_000_123_456_789,
            records: 300,
            source: "plant",
        };
        let mut entry = Vec::new();
        head.encode(&mut entry);
        entry.extend_from_slice(b"..");
        let expected = [
            &[1, 4, 3, 0][..],
            &1_700_000_000_123_456_789_i64.to_le_bytes(),
            &[0xac, 0x02, 0, 0, 5],
            b"plant..",
        ];
        assert_eq!(entry, expected.concat());
        assert_eq!(decode_messages(&entry), Ok((head, &b".."[..])));
        let unknown = |what, value| Err(EntryError::Unknown { what, value });
        assert_eq!(decode(&entry).map(drop), unknown("signal", 4));
        entry[1] = 1;
        assert_eq!(decode(&entry).map(drop), unknown("encoding", 3));
        assert_eq!(decode_messages(&entry).map(drop), unknown("signal", 1));
    }

    #[test]
    fn positions_are_read_as_they_are_written_and_nothing_else_is() {
        let position = EntryPosition {
            queue: "lake.logs".to_owned(),
            partition: 3,
            offset: u64::MAX,
        };
        assert_eq!(position.to_string().parse(), Ok(position));
        for text in [
            "",
            "lake.logs",
            "lake.logs:0",
            ":0:1",
            "lake.logs:0:",
            "lake.logs:+0:1",
            "lake.logs:0:-1",
            "a:0:1 ",
        ] {
            assert!(text.parse::<EntryPosition>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn an_entry_is_read_as_it_was_written(
            mut rejected in proptest::collection::vec(0_u32..100_000, 0..40),
            peer in "\\PC{0,20}",
            request in proptest::collection::vec(any::<u8>(), 0..40),
        ) {
            rejected.sort_unstable();
            rejected.dedup();
            let head = EntryHead { records: 100_000, ..head(&rejected, &peer) };
            let mut entry = Vec::new();
            head.encode(&mut entry);
            entry.extend_from_slice(&request);
            let (read, rest) = decode(&entry).unwrap();
            prop_assert_eq!(rest, &request[..]);
            prop_assert!(read.rejected.iter().eq(rejected.iter().copied()));
            prop_assert_eq!(EntryHead { rejected: RejectedRecords::NONE, ..read }, EntryHead { rejected: RejectedRecords::NONE, ..head });
        }

        #[test]
        fn rows_are_read_as_they_were_put(
            texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 0..8),
            cut in 1_usize..8,
        ) {
            let mut request = Vec::new();
            texts.iter().for_each(|text| put_row(&mut request, text));
            let read: Result<Vec<&[u8]>, EntryError> = rows(&request).collect();
            prop_assert_eq!(read.unwrap(), texts.iter().map(Vec::as_slice).collect::<Vec<_>>());
            if let Some(last) = texts.last() {
                request.truncate(request.len() - cut.min(last.len() + 3));
                prop_assert_eq!(rows(&request).last(), Some(Err(EntryError::Row)));
            }
        }

        #[test]
        fn whatever_the_bytes_are_nothing_breaks(data in proptest::collection::vec(any::<u8>(), 0..60)) {
            fuzz(&data);
            fuzz(&[&[1, 1, 1, 0][..], &data].concat());
        }
    }
}
