//! Produces the bytes of a backup from the log of each namespace up to its cut, without records that no reader can see.

use std::collections::{BTreeSet, HashSet};

use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::{RecordRef, records};
use thalweg_log::{Frame, LogError, Offset, ReadOptions};

use super::{BackupGuard, NamespaceCut};
use crate::backup::{BackupCounts, BackupWriter, NamespaceHeader, RECORDS_MAX};
use crate::embedded::index::{IndexReadError, ListId};
use crate::embedded::namespace::or_gone;
use crate::embedded::record::PartitionRecord;
use crate::error::{EventsError, Result};

/// Approximate size of a read, and of a returned piece.
const READ: usize = 1 << 20;
const GIVEN: usize = 256 << 10;
/// A frame ends at this size. Frames become frames of the restored log, and a message is read together with its frame.
const FRAME_BYTES: usize = 16 << 10;
/// How many rows of other messages are skipped before the next message is searched for.
const PASSED_MAX: usize = 256;

/// Produces a backup piece by piece.
pub(super) struct Producer {
    writer: BackupWriter,
    cuts: std::vec::IntoIter<NamespaceCut>,
    reading: Option<NamespaceReader>,
    out: Vec<u8>,
    ended: bool,
    failed: Option<EventsError>,
    _kept: BackupGuard,
}

/// A namespace and how far it has been read.
struct NamespaceReader {
    cut: NamespaceCut,
    at: Offset,
    gathered: BackupFrameBuilder,
}

/// Records for one frame.
#[derive(Default)]
struct BackupFrameBuilder {
    /// The kind and the first offset; `None` if there are no records.
    head: Option<(FrameKind, Offset)>,
    body: Vec<u8>,
    counts: BackupCounts,
}

impl Producer {
    /// `out` has what was written so far.
    pub fn new(cuts: Vec<NamespaceCut>, writer: BackupWriter, out: Vec<u8>, kept: BackupGuard) -> Producer {
        Producer {
            writer,
            cuts: cuts.into_iter(),
            reading: None,
            out,
            ended: false,
            failed: None,
            _kept: kept,
        }
    }

    /// The next piece, which may be empty; `None` after the end. An error is first written into the backup. Blocks.
    pub fn piece(&mut self) -> Result<Option<Vec<u8>>> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.ended {
            return Ok(None);
        }
        let mut read = 0;
        while self.out.len() < GIVEN && read < 8 * READ && !self.ended {
            match self.step() {
                Ok(bytes) => read += bytes,
                Err(error) => {
                    tracing::error!(%error, "a backup cannot be completed");
                    self.ended = true;
                    self.writer.failed(&error, &mut self.out)?;
                    self.failed = Some(error);
                }
            }
        }
        Ok(Some(std::mem::take(&mut self.out)))
    }

    /// Returns the number of bytes read.
    fn step(&mut self) -> Result<usize> {
        let Some(mut reading) = self.reading.take() else {
            match self.cuts.next() {
                Some(cut) => {
                    let head = NamespaceHeader {
                        named: cut.named.clone(),
                        first: cut.first,
                        next: cut.next,
                    };
                    self.writer.namespace(&head, &mut self.out)?;
                    self.reading = Some(NamespaceReader::new(cut));
                }
                None => {
                    self.writer.end(&mut self.out)?;
                    self.ended = true;
                }
            }
            return Ok(0);
        };
        if reading.at < reading.cut.next {
            let bytes = reading.read(&mut self.writer, &mut self.out)?;
            self.reading = Some(reading);
            return Ok(bytes);
        }
        reading.gathered.end(&mut self.writer, &mut self.out);
        self.writer.namespace_end(&mut self.out)?;
        Ok(0)
    }
}

impl NamespaceReader {
    fn new(cut: NamespaceCut) -> NamespaceReader {
        NamespaceReader {
            at: cut.first,
            cut,
            gathered: BackupFrameBuilder::default(),
        }
    }

    /// Reads some frames of the log. Returns their size.
    fn read(&mut self, writer: &mut BackupWriter, out: &mut Vec<u8>) -> Result<usize> {
        let namespace = &self.cut.namespace;
        let want = ReadOptions {
            bytes: READ,
            synced: false,
        };
        let frames = match namespace.place.log.read(namespace.partition, self.at, want) {
            // Removed, or given up by a recovery that skipped damage.
            Err(LogError::Gap { to, .. }) => {
                self.at = to.max(self.at + 1);
                return Ok(0);
            }
            frames => frames.map_err(|error| or_gone(error, &namespace.about().name))?,
        };
        let Some(last) = frames.last().map(|frame| frame.header.next()) else {
            let (name, at) = (&namespace.about().name, self.at);
            return Err(EventsError::Damaged(format!(
                "the log no longer has offset {at} of namespace '{name}'"
            )));
        };
        let scavenged = self.scavenged(&frames)?;
        for frame in &frames {
            self.each(frame, &mut |reading, offset, record, lies| {
                if reading.is_needed(offset, &lies, &scavenged)? {
                    let is_message = matches!(lies, PartitionRecord::Event(_));
                    reading
                        .gathered
                        .take(frame.header.kind, offset, record, is_message, writer, out);
                }
                Ok(())
            })?;
        }
        self.at = last.max(self.at + 1);
        Ok(frames.iter().map(|frame| frame.body.len()).sum())
    }

    /// Visits the records of a frame that belong to the backup and have not been read yet.
    fn each(
        &mut self,
        frame: &Frame,
        show: &mut dyn FnMut(&mut NamespaceReader, Offset, &RecordRef<'_>, PartitionRecord<'_>) -> Result<()>,
    ) -> Result<()> {
        if !matches!(frame.header.kind, FrameKind::Data | FrameKind::State) {
            return Ok(());
        }
        let (base, mut next) = (frame.header.base, frame.header.base);
        for record in records(&frame.body) {
            let damaged = || {
                let name = &self.cut.named.name;
                EventsError::Damaged(format!(
                    "a record after offset {base} of namespace '{name}' is not a message"
                ))
            };
            let record = record.map_err(|_| damaged())?;
            let offset = record.delta.map_or(next, |delta| base + u64::from(delta));
            next = offset + 1;
            if (self.at..self.cut.next).contains(&offset) {
                let lies = PartitionRecord::decode(record.value, record.time).ok_or_else(damaged)?;
                show(self, offset, &record, lies)?;
            }
        }
        Ok(())
    }

    /// Offsets of messages that are no longer in any list: they were scavenged, but the log has not been rewritten yet.
    fn scavenged(&mut self, frames: &[Frame]) -> Result<HashSet<Offset>> {
        // With their global positions, by which the list is ordered.
        let mut found: BTreeSet<(u64, Offset)> = BTreeSet::new();
        for frame in frames {
            self.each(frame, &mut |reading, offset, _, lies| {
                if let PartitionRecord::Event(event) = lies
                    && (reading.cut.cleared_at..reading.cut.active_from).contains(&offset)
                {
                    found.insert((event.global, offset));
                }
                Ok(())
            })?;
        }
        // Neighbours in the log are usually neighbours in the list; imported messages may be anywhere.
        let mut from = 0;
        while let Some(start) = found.range((from, 0)..).next().map(|(global, _)| *global) {
            let (mut after, mut passed) = (start + 1, 0);
            let view = &self.cut.view;
            view.rows(&ListId::All, start, &mut |row| {
                after = after.max(row.global + 1);
                let is_own = found.remove(&(row.global, row.offset));
                passed = if is_own { 0 } else { passed + 1 };
                passed < PASSED_MAX
            })
            .map_err(failed)?;
            from = after;
        }
        Ok(found.into_iter().map(|(_, offset)| offset).collect())
    }

    /// Whether a reader could see the record, or the state of streams depends on it.
    fn is_needed(&self, offset: Offset, lies: &PartitionRecord<'_>, scavenged: &HashSet<Offset>) -> Result<bool> {
        match lies {
            PartitionRecord::Event(_) => Ok(offset >= self.cut.cleared_at && !scavenged.contains(&offset)),
            PartitionRecord::Cleared => Ok(offset >= self.cut.cleared_at),
            PartitionRecord::Document(document) => {
                let newest = match self.cut.documents.get(document.name) {
                    Some(at) => Some(*at),
                    None => self.cut.view.document(document.name).map_err(failed)?,
                };
                Ok(newest.is_none_or(|newest| newest.offset <= offset))
            }
        }
    }
}

fn failed(unread: IndexReadError) -> EventsError {
    match unread {
        IndexReadError::Failed(error) => error,
        IndexReadError::OnDisk | IndexReadError::Moved => {
            EventsError::Unavailable("the index could not be read".to_owned())
        }
    }
}

impl BackupFrameBuilder {
    fn take(
        &mut self,
        kind: FrameKind,
        offset: Offset,
        record: &RecordRef<'_>,
        is_message: bool,
        writer: &mut BackupWriter,
        out: &mut Vec<u8>,
    ) {
        let joins = self.head.is_some_and(|(own, base)| {
            own == kind
                && u32::try_from(offset - base).is_ok()
                && self.body.len() + record.value.len() <= FRAME_BYTES
                && self.counts.records < RECORDS_MAX as u64
        });
        if !joins {
            self.end(writer, out);
        }
        let (_, base) = *self.head.get_or_insert((kind, offset));
        let moved = RecordRef {
            delta: Some((offset - base) as u32),
            ..*record
        };
        moved.encode(&mut self.body);
        self.counts.records += 1;
        self.counts.messages += u64::from(is_message);
    }

    fn end(&mut self, writer: &mut BackupWriter, out: &mut Vec<u8>) {
        if let Some(head) = self.head.take() {
            writer.records(head, &self.body, std::mem::take(&mut self.counts), out);
            self.body.clear();
        }
    }
}
