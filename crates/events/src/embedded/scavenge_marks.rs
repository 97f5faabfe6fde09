//! Scavenge marks record which messages were scavenged but may still be in the log, whose current file is not
//! rewritten. They are documents of the engine, stored before the indexes forget a message, so that rebuilt indexes
//! leave it out, whatever has happened to the rule that hid it. A mark is removed when the log has been rewritten
//! beyond everything it names and no older file has it.
//!
//! Content of a mark: for each run of offsets, the distance from the end of the previous run and its length, as
//! varints.

use std::sync::Arc;

use thalweg_kit::varint;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::records;
use thalweg_log::{Log, LogError, Offset, PartitionId, ReadOptions};

use super::index::{DocumentAt, IndexReadResult, Io};
use super::namespace::EmbeddedNamespace;
use super::record::PartitionRecord;
use super::replay::lost_clears;
use super::rules::OWN;
use crate::error::{EventsError, Result};

/// The prefix of the names of marks.
pub(super) const SCAVENGED: &str = "~scavenged/";
/// The document with the last assigned global position, written when its message is scavenged.
pub(super) const LAST: &str = "~last";

/// Maximum number of runs in one mark.
const RUNS_MAX: usize = 64 << 10;
/// More marks than this are merged into one.
const MARKS_MAX: usize = 32;
const ONE_FRAME: ReadOptions = ReadOptions {
    bytes: 1,
    synced: false,
};
/// Number of documents in one step.
const NAMES: usize = 1000;

/// Sorted offsets, with consecutive ones merged into runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OffsetRuns(Vec<(Offset, Offset)>);

impl OffsetRuns {
    /// Builds runs from ascending offsets.
    pub fn of(offsets: &[Offset]) -> OffsetRuns {
        let mut runs = OffsetRuns::default();
        offsets
            .iter()
            .for_each(|offset| runs.push(*offset, offset.saturating_add(1)));
        runs
    }

    /// Adds a run. Runs must be added in the order of their starts.
    pub fn push(&mut self, start: Offset, end: Offset) {
        match self.0.last_mut() {
            Some((_, last)) if *last >= start => *last = (*last).max(end),
            _ => self.0.push((start, end)),
        }
    }

    pub fn has(&self, offset: Offset) -> bool {
        let at = self.0.partition_point(|(_, end)| *end <= offset);
        self.0.get(at).is_some_and(|(start, _)| *start <= offset)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One past the last offset; 0 if empty.
    pub fn end(&self) -> Offset {
        self.0.last().map_or(0, |(_, end)| *end)
    }

    pub fn iter(&self) -> impl Iterator<Item = (Offset, Offset)> {
        self.0.iter().copied()
    }

    pub fn add(&mut self, other: &OffsetRuns) {
        if self.end() <= other.0.first().map_or(0, |(start, _)| *start) {
            other.iter().for_each(|(start, end)| self.push(start, end));
            return;
        }
        let mut all = std::mem::take(&mut self.0);
        all.extend(other.iter());
        all.sort_unstable();
        all.into_iter().for_each(|(start, end)| self.push(start, end));
    }

    fn chunks(&self) -> impl Iterator<Item = OffsetRuns> {
        self.0.chunks(RUNS_MAX).map(|runs| OffsetRuns(runs.to_vec()))
    }

    fn encode(&self) -> Vec<u8> {
        let (mut out, mut at) = (Vec::new(), 0);
        for (start, end) in self.iter() {
            varint::put(&mut out, start - at);
            varint::put(&mut out, end - start);
            at = end;
        }
        out
    }

    /// `None` if the bytes are not a mark.
    fn decode(mut bytes: &[u8]) -> Option<OffsetRuns> {
        let (mut runs, mut at) = (OffsetRuns::default(), 0u64);
        while !bytes.is_empty() {
            let (distance, rest) = varint::take(bytes)?;
            let (len, rest) = varint::take(rest)?;
            let start = at.checked_add(distance)?;
            at = start.checked_add(len).filter(|_| len > 0)?;
            runs.push(start, at);
            bytes = rest;
        }
        Some(runs)
    }
}

#[derive(Clone, Debug)]
struct ScavengeMark {
    name: String,
    at: DocumentAt,
    /// One past the last message that it names.
    end: Offset,
}

/// All marks of a namespace.
#[derive(Clone, Debug, Default)]
pub(super) struct ScavengeMarks {
    runs: OffsetRuns,
    marks: Vec<ScavengeMark>,
}

impl ScavengeMarks {
    pub fn has(&self, offset: Offset) -> bool {
        self.runs.has(offset)
    }

    /// The offset of the newest mark; 0 if there is none.
    pub fn newest(&self) -> Offset {
        self.marks.iter().map(|mark| mark.at.offset).max().unwrap_or(0)
    }

    fn add(&mut self, mark: ScavengeMark, runs: &OffsetRuns) {
        self.marks.retain(|other| other.name != mark.name);
        self.marks.push(mark);
        self.runs.add(runs);
    }
}

/// The removals that the engine's own documents record, for messages that the log may still have.
#[derive(Debug, Default)]
pub(super) struct RemovalMarks {
    pub scavenged: OffsetRuns,
    /// The offset of a clearing whose record was lost.
    pub cleared: Option<Offset>,
}

/// Finds the marks in the log before there is an index. Only frames that can have such documents are read.
pub(super) fn in_log(log: &dyn Log, id: PartitionId) -> Result<RemovalMarks> {
    let mut own = RemovalMarks::default();
    let bounds = log.bounds(id)?;
    let mut found = std::collections::BTreeMap::new();
    let mut at = bounds.first;
    while at < bounds.next {
        let header = match log.frame_at(id, at) {
            Ok(Some(header)) => header,
            Ok(None) => break,
            // The frames of the file are unknown. If the damage was given up, a read returns where to continue.
            Err(error @ LogError::Corrupt { .. }) => {
                at = after_gap(log, id, at)?.ok_or(error)?;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let next = header.next().max(at + 1);
        if header.kind != FrameKind::State {
            at = next;
            continue;
        }
        let from = at.max(header.base);
        let frames = match log.read(id, from, ONE_FRAME) {
            Err(LogError::Gap { .. }) => {
                at = after_gap(log, id, from)?.unwrap_or(next);
                continue;
            }
            frames => frames?,
        };
        for record in frames.iter().take(1).flat_map(|frame| records(&frame.body)).flatten() {
            let Some(PartitionRecord::Document(document)) = PartitionRecord::decode(record.value, record.time) else {
                continue;
            };
            match document.content {
                Some(content) if document.name == lost_clears::CLEARED => own.cleared = lost_clears::decoded(content),
                Some(content) if document.name.starts_with(SCAVENGED) => {
                    found.insert(document.name.to_owned(), decoded(document.name, content)?);
                }
                Some(_) => {}
                None => drop(found.remove(document.name)),
            }
        }
        at = next;
    }
    found.values().for_each(|runs| own.scavenged.add(runs));
    Ok(own)
}

/// The offset after a gap that was given up; `None` if there is no such gap.
fn after_gap(log: &dyn Log, id: PartitionId, from: Offset) -> Result<Option<Offset>> {
    match log.read(id, from, ONE_FRAME) {
        Err(LogError::Gap { to, .. }) => {
            tracing::error!(
                partition = %id,
                from,
                to,
                "the log lost records of documents and of scavenging, in damaged data that was given up; scavenged \
                 messages may be visible again until a rule or a deletion hides them"
            );
            Ok(Some(to.max(from + 1)))
        }
        Err(LogError::Corrupt { .. }) | Ok(_) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn decoded(name: &str, content: &[u8]) -> Result<OffsetRuns> {
    OffsetRuns::decode(content).ok_or_else(|| {
        EventsError::Damaged(format!(
            "the record of scavenged messages ({name}) has a form that this version does not know"
        ))
    })
}

impl EmbeddedNamespace {
    pub(super) fn marks(&self) -> Arc<ScavengeMarks> {
        self.marks.read().clone()
    }

    /// Whether a message was scavenged, even if the log still has it.
    pub(super) fn is_marked(&self, offset: Offset) -> bool {
        self.marks.read().has(offset)
    }

    /// Loads the marks from the index, and the last assigned position. Blocks.
    pub(super) fn load_marks(&self) -> IndexReadResult<()> {
        let (mut marks, mut cursor) = (ScavengeMarks::default(), String::new());
        loop {
            let names = self.documents_stored(SCAVENGED, &cursor, NAMES)?;
            let Some(last) = names.last() else { break };
            cursor.clone_from(last);
            for name in names {
                if let Some((at, content)) = self.own_document(&name)? {
                    let runs = decoded(&name, &content)?;
                    let end = runs.end();
                    marks.add(ScavengeMark { name, at, end }, &runs);
                }
            }
        }
        *self.marks.write() = Arc::new(marks);
        let cleared_at = self.index.read().state.cleared_at;
        if let Some((at, content)) = self.own_document(LAST)?
            && at.offset >= cleared_at
            && let Some((last, _)) = varint::take(&content)
        {
            let mut index = self.index.write();
            index.state.last_global = index.state.last_global.max(last);
        }
        Ok(())
    }

    pub(super) fn own_document(&self, name: &str) -> IndexReadResult<Option<(DocumentAt, bytes::Bytes)>> {
        debug_assert!(name.starts_with(OWN));
        let Some(at) = self.document_at(name, Io::MayBlock)?.filter(|at| !at.removed) else {
            return Ok(None);
        };
        let record = self.reading(Io::MayBlock).record(at.offset)?;
        let content = record.and_then(|(value, _)| super::record::content(&value));
        Ok(content.map(|(content, _)| (at, content)))
    }

    /// Marks that the indexes have not followed yet, because of a crash.
    pub(super) fn pending_marks(&self) -> Result<OffsetRuns> {
        let followed = self.index.read().state.marks_followed;
        let mut pending = OffsetRuns::default();
        for mark in self.marks().marks.iter().filter(|mark| mark.at.offset >= followed) {
            let content = self.own_document(&mark.name).map_err(super::scavenge::failed)?;
            if let Some((_, content)) = content {
                pending.add(&decoded(&mark.name, &content)?);
            }
        }
        Ok(pending)
    }

    /// Records durably that messages are scavenged. Returns the offset after the marks.
    pub(super) async fn mark(self: &Arc<Self>, runs: &OffsetRuns, last_global: Option<u64>) -> Result<Offset> {
        if let Some(last) = last_global {
            let mut content = Vec::new();
            varint::put(&mut content, last);
            self.put_own(LAST, Some(&content)).await?;
        }
        let before = self.marks();
        let mut all = runs.clone();
        let joins = before.marks.len() >= MARKS_MAX;
        if joins {
            all.add(&before.runs);
        }
        for (part, n) in all.chunks().zip(0..) {
            let next = self.index.read().state.next_offset;
            let name = format!("{SCAVENGED}{next:020}.{n}");
            let at = self.put_own(&name, Some(&part.encode())).await?;
            let end = part.end();
            Arc::make_mut(&mut self.marks.write()).add(ScavengeMark { name, at, end }, &part);
        }
        if joins {
            for mark in &before.marks {
                self.unmark(mark).await?;
            }
        }
        Ok(self.marks().newest() + 1)
    }

    /// Removes marks before an offset, because no file of the log has messages before it that are not in the indexes.
    pub(super) async fn forget_marks(self: &Arc<Self>, before: Offset) -> Result<()> {
        for mark in self.marks().marks.iter().filter(|mark| mark.end <= before) {
            self.unmark(mark).await?;
        }
        Arc::make_mut(&mut self.marks.write())
            .runs
            .0
            .retain(|(_, end)| *end > before);
        Ok(())
    }

    async fn unmark(self: &Arc<Self>, mark: &ScavengeMark) -> Result<()> {
        self.put_own(&mark.name, None).await?;
        Arc::make_mut(&mut self.marks.write())
            .marks
            .retain(|other| other.name != mark.name);
        Ok(())
    }

    /// Stores a document of the engine, which nobody else writes.
    pub(super) async fn put_own(self: &Arc<Self>, name: &str, content: Option<&[u8]>) -> Result<DocumentAt> {
        let own = name.to_owned();
        let at = self.ask(move |namespace, io| namespace.document_at(&own, io)).await?;
        let known = at.filter(|at| !at.removed).map_or(0, |at| at.revision);
        let stored = self.store_document(name, content, known).await?;
        let revision = stored.ok_or_else(|| {
            EventsError::Unavailable(format!("document {name} was changed by another writer meanwhile"))
        })?;
        Ok(DocumentAt {
            // A revision is the offset plus one, see where it is assigned.
            offset: revision.saturating_sub(1),
            revision,
            removed: content.is_none(),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn offsets_come_back_and_no_others(
            one in proptest::collection::btree_set(0..2000u64, 0..300),
            other in proptest::collection::btree_set(0..2000u64, 0..300),
        ) {
            let of = |set: &std::collections::BTreeSet<u64>| OffsetRuns::of(&set.iter().copied().collect::<Vec<_>>());
            let mut runs = of(&one);
            prop_assert_eq!(OffsetRuns::decode(&runs.encode()), Some(runs.clone()));
            runs.add(&of(&other));
            prop_assert_eq!(OffsetRuns::decode(&runs.encode()), Some(runs.clone()));
            for offset in 0..2001 {
                prop_assert_eq!(runs.has(offset), one.contains(&offset) || other.contains(&offset));
            }
            prop_assert_eq!(runs.end(), one.iter().chain(&other).max().map_or(0, |last| last + 1));
        }

        #[test]
        fn bytes_are_no_mark_or_one_that_is_read_as_it_is_written(
            bytes in prop_oneof![any::<Vec<u8>>(), proptest::collection::vec(0..4u8, 0..40)],
        ) {
            // Neighbouring runs are merged, so the encoding may become shorter, with the same meaning.
            if let Some(runs) = OffsetRuns::decode(&bytes) {
                prop_assert!(runs.iter().all(|(start, end)| start < end));
                prop_assert!(runs.0.windows(2).all(|pair| pair[0].1 < pair[1].0));
                prop_assert_eq!(OffsetRuns::decode(&runs.encode()), Some(runs));
            }
        }
    }
}
