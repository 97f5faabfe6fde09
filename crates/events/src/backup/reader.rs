//! Reads a backup frame by frame and verifies checksum, order and content.

use std::io::Read;

use bytes::Bytes;
use serde::de::DeserializeOwned;
use thalweg_log::Offset;
use thalweg_log::format::FieldReader;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::records;
use xxhash_rust::xxh3::Xxh3;

use super::{
    BEGIN, BODY_MAX, BackupCounts, BackupError, BackupHeader, BackupPart, BackupRecords, BackupResult, BackupTrailer,
    END, FAILED, FORMAT, Failure, MAGIC, NAMESPACE, NAMESPACE_END, NamespaceHeader, RECORDS, RECORDS_MAX,
};
use crate::embedded::PartitionRecord;

/// Reads a backup part by part and verifies every checksum and the order. Each returned part is undamaged; only
/// [`BackupPart::End`] confirms that nothing is missing.
pub struct BackupReader<R> {
    source: R,
    /// The number of bytes read.
    at: u64,
    crc: u32,
    sum: Xxh3,
    place: BackupReaderState,
    all: BackupCounts,
}

/// What may come next.
#[derive(Debug)]
enum BackupReaderState {
    Start,
    /// Between two namespaces, with the number of namespaces that remain.
    Between {
        left: u64,
    },
    Within {
        left: u64,
        next: Offset,
        end: Offset,
        own: BackupCounts,
    },
    Ended,
}

impl<R: Read> BackupReader<R> {
    /// Reads and verifies the start of the backup.
    pub fn new(source: R) -> BackupResult<BackupReader<R>> {
        let mut reader = BackupReader {
            source,
            at: 0,
            crc: 0,
            sum: Xxh3::new(),
            place: BackupReaderState::Start,
            all: BackupCounts::default(),
        };
        let mut head = Vec::with_capacity(16);
        reader.read(16, &mut head).map_err(|error| match error {
            // A short input is not a backup, unless it can be the start of one.
            BackupError::CutOff { .. } if head.is_empty() || !(head.starts_with(MAGIC) || MAGIC.starts_with(&head)) => {
                BackupError::NotABackup
            }
            error => error,
        })?;
        let mut take = FieldReader(&head);
        let (magic, format, crc) = (take.bytes::<8>(), take.u32(), take.u32());
        if magic.as_ref() != Some(MAGIC) {
            return Err(BackupError::NotABackup);
        }
        let format = format.filter(|format| Some(crc32c::crc32c(&format.to_le_bytes())) == crc);
        match format {
            Some(1..=FORMAT) => {}
            Some(newer) => return Err(BackupError::Newer(newer)),
            None => return Err(damaged(8, "the checksum of its format is wrong")),
        }
        reader.crc = crc32c::crc32c(&head);
        Ok(reader)
    }

    /// The number of bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.at
    }

    /// The next part; `None` after the end.
    pub fn next_part(&mut self) -> BackupResult<Option<BackupPart>> {
        if matches!(self.place, BackupReaderState::Ended) {
            return Ok(None);
        }
        let (at, before) = (self.at, self.sum.digest());
        let (kind, body) = self.frame()?;
        let part = match kind {
            BEGIN => self.begin(at, &body)?,
            NAMESPACE => self.head(at, &body)?,
            RECORDS => self.records(at, body.into())?,
            NAMESPACE_END => self.namespace_end(at, &body)?,
            END => self.end(at, before, &body)?,
            FAILED => {
                let Failure { why, damaged } = json(at, &body)?;
                return Err(BackupError::Failed { why, damaged });
            }
            other => return Err(damaged(at, format!("a frame has the unknown kind {other}"))),
        };
        Ok(Some(part))
    }

    /// Appends the next `bytes` bytes.
    fn read(&mut self, bytes: usize, out: &mut Vec<u8>) -> BackupResult<()> {
        let before = out.len();
        // A wrong length allocates no more memory than there are bytes.
        let read = (&mut self.source).take(bytes as u64).read_to_end(out)?;
        self.at += read as u64;
        self.sum.update(out.get(before..).unwrap_or_default());
        match read == bytes {
            true => Ok(()),
            false => Err(BackupError::CutOff { at: self.at }),
        }
    }

    /// The next frame, with a verified checksum.
    fn frame(&mut self) -> BackupResult<(u8, Vec<u8>)> {
        let start = self.at;
        let mut bytes = Vec::new();
        self.read(5, &mut bytes)?;
        let mut take = FieldReader(&bytes);
        let (kind, len) = (take.u8().unwrap_or_default(), take.u32().unwrap_or_default() as usize);
        if len > BODY_MAX {
            return Err(damaged(start, format!("a frame cannot have {len} bytes")));
        }
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        bytes.clear();
        self.read(len, &mut bytes)?;
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        let mut crc = Vec::with_capacity(4);
        self.read(4, &mut crc)?;
        match FieldReader(&crc).u32() == Some(self.crc) {
            true => Ok((kind, bytes)),
            false => Err(damaged(start, "the checksum of the frame that begins there is wrong")),
        }
    }

    fn begin(&mut self, at: u64, body: &[u8]) -> BackupResult<BackupPart> {
        let begin: BackupHeader = json(at, body)?;
        if !matches!(self.place, BackupReaderState::Start) {
            return Err(disordered(at));
        }
        self.place = BackupReaderState::Between { left: begin.namespaces };
        Ok(BackupPart::Begin(begin))
    }

    fn head(&mut self, at: u64, body: &[u8]) -> BackupResult<BackupPart> {
        let head: NamespaceHeader = json(at, body)?;
        let BackupReaderState::Between { left } = self.place else {
            return Err(disordered(at));
        };
        let left = left.checked_sub(1).ok_or_else(|| disordered(at))?;
        if head.first > head.next || head.next >> 62 != 0 {
            let (first, next) = (head.first, head.next);
            return Err(damaged(
                at,
                format!("a namespace cannot have the offsets {first} to {next}"),
            ));
        }
        self.place = BackupReaderState::Within {
            left,
            next: head.first,
            end: head.next,
            own: BackupCounts {
                namespaces: 1,
                ..BackupCounts::default()
            },
        };
        Ok(BackupPart::Namespace(Box::new(head)))
    }

    fn records(&mut self, at: u64, body: Bytes) -> BackupResult<BackupPart> {
        let BackupReaderState::Within { next, end, own, .. } = &mut self.place else {
            return Err(disordered(at));
        };
        let (piece, counts) = BackupRecords::read(&body).map_err(|what| damaged(at, what))?;
        if piece.base < *next || piece.next > *end {
            return Err(damaged(at, "its records have offsets outside their namespace"));
        }
        *next = piece.next;
        (own.records, own.messages) = (own.records + counts.records, own.messages + counts.messages);
        Ok(BackupPart::Records(piece))
    }

    fn namespace_end(&mut self, at: u64, body: &[u8]) -> BackupResult<BackupPart> {
        let said: BackupCounts = json(at, body)?;
        let BackupReaderState::Within { left, own, .. } = self.place else {
            return Err(disordered(at));
        };
        if said != own {
            return Err(damaged(at, "a namespace does not have what its end frame says"));
        }
        self.all = self.all.and(own);
        self.place = BackupReaderState::Between { left };
        Ok(BackupPart::NamespaceEnd(own))
    }

    /// `sum` is the checksum of everything before it.
    fn end(&mut self, at: u64, sum: u64, body: &[u8]) -> BackupResult<BackupPart> {
        let end: BackupTrailer = json(at, body)?;
        if !matches!(self.place, BackupReaderState::Between { left: 0 }) {
            return Err(disordered(at));
        }
        let found = BackupTrailer {
            all: self.all,
            bytes: at,
            sum,
        };
        if end != found {
            return Err(damaged(at, "the content is not what the end frame says"));
        }
        let mut rest = Vec::new();
        match self.read(1, &mut rest) {
            Err(BackupError::CutOff { .. }) => {}
            Err(error) => return Err(error),
            Ok(()) => return Err(damaged(self.at - 1, "something follows the end")),
        }
        self.place = BackupReaderState::Ended;
        Ok(BackupPart::End(self.all))
    }
}

impl BackupRecords {
    /// Decodes records and counts them, or returns what is wrong with them.
    fn read(bytes: &Bytes) -> std::result::Result<(BackupRecords, BackupCounts), String> {
        let mut take = FieldReader(bytes);
        let (kind, base) = (take.u8(), take.u64());
        let kind = match kind {
            Some(kind) if kind == FrameKind::Data as u8 => FrameKind::Data,
            Some(kind) if kind == FrameKind::State as u8 => FrameKind::State,
            _ => return Err("its records are of a kind that no namespace has".to_owned()),
        };
        let base = base
            .filter(|base| base >> 62 == 0)
            .ok_or("its records have no offset")?;
        let body = bytes.slice_ref(take.0);
        let (mut counts, mut next) = (BackupCounts::default(), 0);
        for record in records(&body) {
            let record = record.map_err(|_| "it has something that is not a record")?;
            let delta = record.delta.filter(|delta| u64::from(*delta) >= next);
            let delta = delta.ok_or("the offsets of its records do not increase")?;
            next = u64::from(delta) + 1;
            let lies = PartitionRecord::decode(record.value, record.time)
                .ok_or("it has a record that cannot belong to a namespace")?;
            counts.records += 1;
            counts.messages += u64::from(matches!(lies, PartitionRecord::Event(_)));
        }
        if counts.records == 0 || counts.records > RECORDS_MAX as u64 {
            return Err(format!("it has {} records", counts.records));
        }
        let next = base + next;
        Ok((BackupRecords { kind, base, next, body }, counts))
    }
}

fn json<T: DeserializeOwned>(at: u64, body: &[u8]) -> BackupResult<T> {
    serde_json::from_slice(body).map_err(|error| damaged(at, format!("a frame has an unknown form: {error}")))
}

fn damaged(at: u64, what: impl Into<String>) -> BackupError {
    BackupError::Damaged { at, what: what.into() }
}

fn disordered(at: u64) -> BackupError {
    damaged(at, "a frame is out of order")
}
