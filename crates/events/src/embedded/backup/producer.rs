//! The bytes of a backup out of what the log has of each namespace up to its cut, without what no reader could see.

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

/// Bytes read at once, and bytes that are given out at once, about.
const READ: usize = 1 << 20;
const GIVEN: usize = 256 << 10;
/// Frames that are so large are ended: they become frames of the log that it is restored to, and a message is read with its frame.
const FRAME_BYTES: usize = 16 << 10;
/// Rows of other messages that are passed over before the next message is looked for.
const PASSED_MAX: usize = 256;

/// Makes the bytes of a backup, piece by piece.
pub(super) struct Producer {
    writer: BackupWriter,
    cuts: std::vec::IntoIter<NamespaceCut>,
    reading: Option<NamespaceReader>,
    out: Vec<u8>,
    ended: bool,
    failed: Option<EventsError>,
    _kept: BackupGuard,
}

/// A namespace, as far as it is read.
struct NamespaceReader {
    cut: NamespaceCut,
    at: Offset,
    gathered: BackupFrameBuilder,
}

/// Records that become one frame.
#[derive(Default)]
struct BackupFrameBuilder {
    /// That of the log's frame, and the offset of the first of them; `None` without any.
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

    /// What comes next, which may be nothing yet; `None` behind the end. An error is in the bytes first. Blocks.
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
                    tracing::error!(%error, "a backup cannot be made to its end");
                    self.ended = true;
                    self.writer.failed(&error, &mut self.out)?;
                    self.failed = Some(error);
                }
            }
        }
        Ok(Some(std::mem::take(&mut self.out)))
    }

    /// Returns the bytes that were read.
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

    /// Some frames of the log. Returns their bytes.
    fn read(&mut self, writer: &mut BackupWriter, out: &mut Vec<u8>) -> Result<usize> {
        let namespace = &self.cut.namespace;
        let want = ReadOptions {
            bytes: READ,
            synced: false,
        };
        let frames = match namespace.place.log.read(namespace.partition, self.at, want) {
            // Removed, or given up by a recovery that was told to skip what is damaged.
            Err(LogError::Gap { to, .. }) => {
                self.at = to.max(self.at + 1);
                return Ok(0);
            }
            frames => frames.map_err(|error| or_gone(error, &namespace.about().name))?,
        };
        let Some(last) = frames.last().map(|frame| frame.header.next()) else {
            let (name, at) = (&namespace.about().name, self.at);
            return Err(EventsError::Damaged(format!(
                "the log has nothing at offset {at} of namespace '{name}', which it had"
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

    /// Shows records of a frame that are of the backup and not read yet.
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
                    "what is behind offset {base} of namespace '{name}' is no message"
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

    /// Offsets of messages that are in no list any more: they were scavenged, and the log has not been rewritten yet.
    fn scavenged(&mut self, frames: &[Frame]) -> Result<HashSet<Offset>> {
        // With their global positions, by which they are listed.
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
        // Neighbours in the log mostly follow each other in the list; what was imported may be anywhere in it.
        let mut from = 0;
        while let Some(start) = found.range((from, 0)..).next().map(|(global, _)| *global) {
            let (mut behind, mut passed) = (start + 1, 0);
            let view = &self.cut.view;
            view.rows(&ListId::All, start, &mut |row| {
                behind = behind.max(row.global + 1);
                let is_own = found.remove(&(row.global, row.offset));
                passed = if is_own { 0 } else { passed + 1 };
                passed < PASSED_MAX
            })
            .map_err(failed)?;
            from = behind;
        }
        Ok(found.into_iter().map(|(_, offset)| offset).collect())
    }

    /// Whether a reader could see it, or what is known of streams depends on it.
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
