//! A backup while others write: all indexes are held for one moment, in which it is noted how far each namespace is and what its
//! index says; then the log is read up to there. What is visible is so in an index before it is answered, so whatever was done
//! because of an answer stands behind it here as well. Records that no reader could see are left out, those that scavenging
//! would remove; offsets, and with them ids and revisions, stay what they are.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, Frame, LogError, Offset, ReadWant};
use tokio::sync::OwnedRwLockReadGuard;

use super::index::{DocumentAt, Listed, Unread, View};
use super::namespace::{EmbeddedNamespace, or_gone};
use super::record::Lies;
use super::{Inner, Named, Opened, upkeep};
use crate::backup::{BackupWriter, Begin, Counts, Head, RECORDS_MAX};
use crate::error::{EventsError, Result};
use crate::store::{BackupPieces, BoxFuture};

/// Bytes read at once, and bytes that are given out at once, about.
const READ: usize = 1 << 20;
const GIVEN: usize = 256 << 10;
/// Frames that are so large are ended: they become frames of the log that it is restored to, and a message is read with its frame.
const FRAME_BYTES: usize = 64 << 10;
/// Rows of other messages that are passed over before the next message is looked for.
const PASSED_MAX: usize = 256;

/// What waits for the end of the backups that are being made.
#[derive(Default)]
pub(crate) struct Backups(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    made: usize,
    /// Of namespaces that were deleted: their partitions are still read.
    numbers: Vec<u32>,
}

impl Backups {
    pub fn are_made(&self) -> bool {
        self.0.lock().made > 0
    }

    /// Whether the partition of a deleted namespace has to stay, which goes when the backups have ended.
    pub fn keep(&self, number: u32) -> bool {
        let mut waiting = self.0.lock();
        if waiting.made > 0 {
            waiting.numbers.push(number);
        }
        waiting.made > 0
    }
}

/// Nothing that a backup reads is removed before it is dropped.
struct Kept {
    inner: Arc<Inner>,
    _unscavenged: OwnedRwLockReadGuard<()>,
}

impl Kept {
    async fn new(inner: Arc<Inner>) -> Kept {
        let unscavenged = inner.scavenging.clone().read_owned().await;
        inner.place.backups.0.lock().made += 1;
        Kept {
            inner,
            _unscavenged: unscavenged,
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let numbers = {
            let mut waiting = self.inner.place.backups.0.lock();
            waiting.made -= 1;
            match waiting.made {
                0 => std::mem::take(&mut waiting.numbers),
                _ => Vec::new(),
            }
        };
        // Where no runtime is left, the next start removes them.
        if let (false, Ok(runtime)) = (numbers.is_empty(), tokio::runtime::Handle::try_current()) {
            let inner = self.inner.clone();
            runtime.spawn(async move {
                for number in numbers {
                    let removed = inner.catalog.lock().await.remove_partition(number).await;
                    if let Err(error) = removed {
                        tracing::warn!(%error, "the space of a deleted namespace is freed at the next start");
                    }
                }
            });
        }
    }
}

/// A namespace as it was at the instant.
struct Cut {
    namespace: Arc<EmbeddedNamespace>,
    named: Named,
    first: Offset,
    next: Offset,
    cleared_at: Offset,
    /// What stands before it is in the view, if it is in a list.
    active_from: Offset,
    view: View,
    /// Documents that the view does not know yet.
    documents: BTreeMap<String, DocumentAt>,
}

pub(super) async fn begin(inner: Arc<Inner>) -> Result<Box<dyn BackupPieces>> {
    let kept = Kept::new(inner.clone()).await;
    // So that little is in memory that has to be copied in the moment in which everything is held.
    let flushing = inner.clone();
    let flushed = tokio::task::spawn_blocking(move || upkeep::flush_all(&flushing)).await;
    if let Ok(Err(error)) = flushed {
        // As on a full disk, of which a backup is wanted all the more.
        tracing::warn!(%error, "before a backup the indexes were not written");
    }
    // No namespace and no token comes or goes meanwhile.
    let catalog = inner.catalog.lock().await;
    let cuts = cut(&inner)?;
    let time = inner.now();
    drop(catalog);
    let begin = Begin {
        made_by: env!("CARGO_PKG_VERSION").to_owned(),
        time,
        namespaces: cuts.len() as u64,
    };
    let mut out = Vec::new();
    let writer = BackupWriter::new(&begin, &mut out)?;
    Ok(Box::new(Making {
        producer: Some(Producer {
            writer,
            cuts: cuts.into_iter(),
            reading: None,
            out,
            ended: false,
            failed: None,
            _kept: kept,
        }),
    }))
}

fn cut(inner: &Inner) -> Result<Vec<Cut>> {
    let mut all: Vec<Opened> = inner.namespaces.read().values().cloned().collect();
    all.sort_by_key(|opened| opened.namespace.number);
    // Nobody holds an index and waits for another meanwhile: only scavenging would, which waits.
    let held: Vec<_> = all.iter().map(|opened| opened.namespace.index.read()).collect();
    let cuts = all.iter().zip(&held).map(|(opened, index)| {
        let namespace = opened.namespace.clone();
        let mut named = opened.named();
        if inner.place.in_memory {
            // What is restored to a disk is to be as safe there as what is made there.
            named.durability = Durability::Fsync.name().to_owned();
        }
        Ok(Cut {
            first: inner.place.log.bounds(namespace.partition)?.first,
            next: index.state.next_offset,
            cleared_at: index.state.cleared_at,
            active_from: match inner.place.in_memory {
                true => 0,
                false => index.active_from(),
            },
            view: index.view(),
            documents: index.documents_here("", ""),
            named,
            namespace,
        })
    });
    cuts.collect()
}

/// Between two pieces nobody works on it, and no thread waits for whoever takes them.
struct Making {
    /// `None` while a piece is made, and behind the end.
    producer: Option<Producer>,
}

impl BackupPieces for Making {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>>> {
        Box::pin(async move {
            // Where much is left out nothing may come for a while; whoever gives up is noticed all the same.
            while let Some(mut producer) = self.producer.take() {
                let made = tokio::task::spawn_blocking(move || {
                    let piece = producer.piece();
                    (producer, piece)
                });
                let (producer, piece) = made
                    .await
                    .map_err(|_| EventsError::Unavailable("the backup was given up".to_owned()))?;
                let Some(piece) = piece? else { return Ok(None) };
                self.producer = Some(producer);
                if !piece.is_empty() {
                    return Ok(Some(piece.into()));
                }
            }
            Ok(None)
        })
    }
}

struct Producer {
    writer: BackupWriter,
    cuts: std::vec::IntoIter<Cut>,
    reading: Option<Reading>,
    out: Vec<u8>,
    ended: bool,
    failed: Option<EventsError>,
    _kept: Kept,
}

/// A namespace, as far as it is read.
struct Reading {
    cut: Cut,
    at: Offset,
    gathered: Gathered,
}

/// Records that become one frame.
#[derive(Default)]
struct Gathered {
    /// That of the log's frame, and the offset of the first of them; `None` without any.
    head: Option<(Kind, Offset)>,
    body: Vec<u8>,
    counts: Counts,
}

impl Producer {
    /// What comes next, which may be nothing yet; `None` behind the end. An error is in the bytes first. Blocks.
    fn piece(&mut self) -> Result<Option<Vec<u8>>> {
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
                    let head = Head {
                        named: cut.named.clone(),
                        first: cut.first,
                        next: cut.next,
                    };
                    self.writer.namespace(&head, &mut self.out)?;
                    self.reading = Some(Reading::new(cut));
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

impl Reading {
    fn new(cut: Cut) -> Reading {
        Reading {
            at: cut.first,
            cut,
            gathered: Gathered::default(),
        }
    }

    /// Some frames of the log. Returns their bytes.
    fn read(&mut self, writer: &mut BackupWriter, out: &mut Vec<u8>) -> Result<usize> {
        let namespace = &self.cut.namespace;
        let want = ReadWant {
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
                    let is_message = matches!(lies, Lies::Event(_));
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
        show: &mut dyn FnMut(&mut Reading, Offset, &RecordRef<'_>, Lies<'_>) -> Result<()>,
    ) -> Result<()> {
        if !matches!(frame.header.kind, Kind::Data | Kind::State) {
            return Ok(());
        }
        let (base, mut next) = (frame.header.base, frame.header.base);
        for record in thalweg_log::format::record::records(&frame.body) {
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
                let lies = Lies::decode(record.value, record.time).ok_or_else(damaged)?;
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
                if let Lies::Event(event) = lies
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
            view.rows(&Listed::All, start, &mut |row| {
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
    fn is_needed(&self, offset: Offset, lies: &Lies<'_>, scavenged: &HashSet<Offset>) -> Result<bool> {
        match lies {
            Lies::Event(_) => Ok(offset >= self.cut.cleared_at && !scavenged.contains(&offset)),
            Lies::Cleared => Ok(offset >= self.cut.cleared_at),
            Lies::Document(document) => {
                let newest = match self.cut.documents.get(document.name) {
                    Some(at) => Some(*at),
                    None => self.cut.view.document(document.name).map_err(failed)?,
                };
                Ok(newest.is_none_or(|newest| newest.offset <= offset))
            }
        }
    }
}

fn failed(unread: Unread) -> EventsError {
    match unread {
        Unread::Failed(error) => error,
        Unread::OnDisk | Unread::Moved => EventsError::Unavailable("the index could not be read".to_owned()),
    }
}

impl Gathered {
    fn take(
        &mut self,
        kind: Kind,
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
