//! Reads every message and verifies that it is where the indexes say, and reads every part of the indexes.
//!
//! List entries are verified for many messages at once, because entries of one list are adjacent.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_kit::blocking;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::{LogError, Offset, ReadOptions};

use super::index::{DocumentAt, IndexEntry, IndexReadError, IndexedEvent, Io, ListId, ListKind, hash};
use super::namespace::{EmbeddedNamespace, again_if_moved};
use super::scavenge_marks::OffsetRuns;
use super::{StoreInner, replay};
use crate::error::{EventsError, Result};
use crate::names;
use crate::store::{Direction, Fault, VerifyReport};

/// Number of messages per batch, which takes a few MiB.
const TOGETHER: usize = 32 << 10;

/// The lists that contain every message: of its stream, of its category, and of the namespace.
const LISTS: usize = 3;

/// Called with the progress from time to time.
pub type ProgressCallback = Box<dyn FnMut(&VerifyReport) + Send>;

/// Ends early if the future is dropped.
pub(super) async fn verify(inner: Arc<StoreInner>, mut tell: ProgressCallback) -> Result<VerifyReport> {
    // Prevents removals from the lists meanwhile.
    let stays = inner.scavenging.clone().read_owned().await;
    let all = inner.all();
    let wanted = CancelOnDrop::default();
    let is_wanted = wanted.0.clone();
    let looked = blocking::spawn(move || {
        let _stays = stays;
        let mut verified = VerifyReport::default();
        if let Err(error) = inner.place.table_store.verify() {
            verified.faults.push(Fault {
                namespace: String::new(),
                offset: 0,
                what: error.to_string(),
            });
        }
        for namespace in all {
            let mut goes_on = |looked: &VerifyReport| {
                tell(looked);
                is_wanted.load(Ordering::Relaxed)
            };
            namespace.look_at_all(&mut verified, &mut goes_on);
        }
        verified
    });
    let looked = looked.await;
    looked.map_err(|_| EventsError::Unavailable("it was interrupted".to_owned()))
}

/// Clears the flag on drop.
struct CancelOnDrop(Arc<AtomicBool>);

impl Default for CancelOnDrop {
    fn default() -> CancelOnDrop {
        CancelOnDrop(Arc::new(AtomicBool::new(true)))
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The offset of a fault, and its description.
type OffsetFault = (Offset, String);

impl EmbeddedNamespace {
    /// Stops at the first fault of the namespace, because later ones usually have the same cause.
    fn look_at_all(&self, verified: &mut VerifyReport, goes_on: &mut dyn FnMut(&VerifyReport) -> bool) {
        let state = self.index.read().state;
        let first = self.place.log.bounds(self.partition).map_or(0, |bounds| bounds.first);
        let (mut at, mut batch, mut own) = (first, Vec::new(), VerifyReport::default());
        let mut wrong: Option<OffsetFault> = None;
        // The offsets of all records, including documents, so that they form few runs.
        let mut there = OffsetRuns::default();
        while at < state.next_offset && wrong.is_none() {
            let read = replay::frames(self.place.log.as_ref(), self.partition, at, &mut |passed| {
                let replay::ReplayItem::Entry(entry, bytes) = passed else {
                    return;
                };
                let offset = entry.offset();
                if offset >= state.next_offset || wrong.is_some() {
                    return;
                }
                there.push(offset, offset + 1);
                match entry {
                    IndexEntry::Event(event) if offset >= state.cleared_at => batch.push((event, bytes)),
                    IndexEntry::Document { name, at } => {
                        let placed = self.misplaced_document(&name, at);
                        wrong = placed.err().map(|what| (offset, what));
                    }
                    IndexEntry::Event(_) | IndexEntry::Cleared { .. } => {}
                }
            });
            match read {
                Ok(next) => at = next,
                Err(error) => wrong = wrong.or(Some((at, error.to_string()))),
            }
            if batch.len() >= TOGETHER || at >= state.next_offset || wrong.is_some() {
                let misplaced = self.look_at(&batch, &mut own).err();
                // The first fault is reported.
                wrong = misplaced.or(wrong);
                batch.clear();
                let mut so_far = verified.clone();
                so_far.messages += own.messages;
                so_far.bytes += own.bytes;
                if !goes_on(&so_far) {
                    return;
                }
            }
        }
        // What was cleared or deleted meanwhile is no longer in its place.
        if self.is_gone() || self.index.read().state.generation() != state.generation() {
            return;
        }
        let messages = own.messages;
        verified.messages += messages;
        verified.bytes += own.bytes;
        if wrong.is_none() && messages != state.messages {
            wrong = match self.given_up(&there) {
                // Readers get them as gaps; they are counted until the indexes are rebuilt.
                Ok(given_up) if messages + given_up == state.messages => None,
                Ok(given_up) => {
                    let and_given_up = match given_up {
                        0 => String::new(),
                        some => format!(" and {some} were given up"),
                    };
                    let counted = state.messages;
                    let what = format!("{messages} messages are stored{and_given_up}, but {counted} are counted");
                    Some((at, what))
                }
                Err(unread) => Some((at, why(unread))),
            };
        }
        verified.faults.extend(wrong.map(|(offset, what)| Fault {
            namespace: self.about().name.clone(),
            offset,
            what,
        }));
    }

    /// The number of messages that are in the indexes but were given up by the log, after damage or because it ended
    /// before them. `there` has the offsets in the log.
    fn given_up(&self, there: &OffsetRuns) -> super::index::IndexReadResult<u64> {
        // A loss at the start of a partition has no gap frame. The gap is kept between rows, because frames are long
        // and rows are mostly in log order.
        let first = self.place.log.bounds(self.partition).map_or(0, |bounds| bounds.first);
        let (mut gap, mut given_up) = (0..0, 0);
        self.walk(&ListId::All, None, Direction::Forward, Io::MayBlock, &mut |row| {
            if there.has(row.offset) {
                return Ok(true);
            }
            if row.offset >= first && !gap.contains(&row.offset) {
                gap = self.gap_at(row.offset).map_err(IndexReadError::Failed)?;
            }
            given_up += u64::from(row.offset < first || gap.contains(&row.offset));
            Ok(true)
        })?;
        Ok(given_up)
    }

    /// The range that was given up around an offset, if it was. A scavenged message has no frame, or a frame without
    /// the record.
    fn gap_at(&self, offset: Offset) -> Result<Range<Offset>> {
        let (log, id) = (&self.place.log, self.partition);
        let want = ReadOptions {
            bytes: 1,
            synced: false,
        };
        let gap = match log.read(id, offset, want) {
            Err(LogError::Gap { to, .. }) => Some(offset..to),
            _ => None,
        };
        match (log.frame_at(id, offset), gap) {
            (Ok(Some(frame)), gap) if (frame.base..frame.next()).contains(&offset) => {
                let is_given_up = gap.is_some() || frame.kind == FrameKind::Gap;
                Ok(if is_given_up { frame.base..frame.next() } else { 0..0 })
            }
            (Ok(_), _) => Ok(0..0),
            // The file is unreadable, and its damage was given up.
            (Err(LogError::Corrupt { .. }), Some(gap)) => Ok(gap),
            (Err(error), _) => Err(error.into()),
        }
    }

    /// Whether anything of this namespace was given up, after damage or because the log ended before the indexes.
    fn has_given_up(&self) -> bool {
        let (log, id) = (&self.place.log, self.partition);
        let Ok(bounds) = log.bounds(id) else { return false };
        let mut at = bounds.first;
        while at < bounds.next {
            match log.frame_at(id, at) {
                Ok(Some(frame)) if frame.kind != FrameKind::Gap => at = frame.next().max(at + 1),
                Ok(None) => return false,
                // An unreadable file must have been given up, or the verification would have failed before.
                Ok(Some(_)) | Err(_) => return true,
            }
        }
        false
    }

    /// Verifies a batch and counts the messages that are in place.
    fn look_at(&self, batch: &[(IndexedEvent, u64)], own: &mut VerifyReport) -> std::result::Result<(), OffsetFault> {
        let events: Vec<&IndexedEvent> = batch.iter().map(|(event, _)| event).collect();
        let mut misplaced = self.misplaced(&events)?;
        misplaced.sort_by_key(|(offset, _)| *offset);
        let in_no_list = |offset: Offset| {
            let of_it = misplaced.partition_point(|(other, _)| *other <= offset)
                - misplaced.partition_point(|(other, _)| *other < offset);
            of_it >= LISTS
        };
        let mut wrong = misplaced.iter().filter(|(offset, _)| !self.is_scavenged(*offset));
        let mut has_given_up = None;
        // The message was removed from the lists, but not yet from the log, and the mark that says so may have been
        // lost.
        let wrong = wrong
            .find(|(offset, _)| !(in_no_list(*offset) && *has_given_up.get_or_insert_with(|| self.has_given_up())));
        if let Some(wrong) = wrong {
            return Err(wrong.clone());
        }
        misplaced.dedup_by_key(|(offset, _)| *offset);
        let gone = |event: &IndexedEvent| {
            let found = misplaced.binary_search_by_key(&event.offset, |(offset, _)| *offset);
            found.is_ok()
        };
        for (_, bytes) in batch.iter().filter(|(event, _)| !gone(event)) {
            own.messages += 1;
            own.bytes += bytes;
        }
        Ok(())
    }

    fn is_scavenged(&self, offset: Offset) -> bool {
        if self.is_marked(offset) {
            return true;
        }
        // Without marks, in older versions, only the rule that hides the message shows it.
        let stored = self.reading(Io::MayBlock).message(offset);
        let stored = stored.ok().flatten();
        stored.is_some_and(|stored| self.may_go(&mut self.hidden(), &stored.event()).unwrap_or(false))
    }

    /// The messages that are missing from a list, or an error if a list cannot be read.
    pub(super) fn misplaced(&self, events: &[&IndexedEvent]) -> std::result::Result<Vec<OffsetFault>, OffsetFault> {
        let (mut wrong, mut all) = (Vec::new(), events.to_vec());
        // In the order of the tables, so that each block is read once.
        all.sort_by_cached_key(|event| (hash(event.stream.as_bytes()), event.position));
        for group in all.chunk_by(|one, other| one.stream == other.stream) {
            let Some(first) = group.first() else { continue };
            let list = ListId::Of(ListKind::Stream, first.stream.to_string());
            self.not_in(&list, group, |event| event.position, "its stream", &mut wrong)?;
        }
        all.sort_by_cached_key(|event| (hash(names::category(&event.stream).as_bytes()), event.global));
        for group in all.chunk_by(|one, other| names::category(&one.stream) == names::category(&other.stream)) {
            let Some(first) = group.first() else { continue };
            let list = ListId::Of(ListKind::Category, names::category(&first.stream).to_owned());
            self.not_in(&list, group, |event| event.global, "its category", &mut wrong)?;
        }
        all.sort_by_key(|event| event.global);
        self.not_in(&ListId::All, &all, |event| event.global, "the namespace", &mut wrong)?;
        for event in events {
            // Ids from the server encode the offset and are in no index.
            let Some(id) = event.id else { continue };
            let found = self.with_id(id).map_err(|unread| (event.offset, why(unread)))?;
            if !found.contains(&event.offset) {
                let place = format_args!("position {} of stream {}", event.position, event.stream);
                let what = format!("{place}: the index of ids has {found:?} instead of {}", event.offset);
                wrong.push((event.offset, what));
            }
        }
        Ok(wrong)
    }

    fn with_id(&self, id: u64) -> super::index::IndexReadResult<Vec<Offset>> {
        let (mut found, view) = {
            let index = self.index.read();
            let view = index.view();
            (index.ids_here(&view, id), view)
        };
        found.extend(view.ids_in_tables(id, Io::MayBlock)?);
        Ok(found)
    }

    /// Finds the messages that are missing from a list. `events` must be in list order.
    fn not_in(
        &self,
        list: &ListId,
        events: &[&IndexedEvent],
        ordinal_of: impl Fn(&IndexedEvent) -> u64,
        of: &str,
        wrong: &mut Vec<OffsetFault>,
    ) -> std::result::Result<(), OffsetFault> {
        let Some(first) = events.first() else { return Ok(()) };
        let looked = again_if_moved(|| {
            let (mut missing, mut left, mut other) = (Vec::new(), events.iter().peekable(), None);
            self.walk(
                list,
                Some(ordinal_of(first)),
                Direction::Forward,
                Io::MayBlock,
                &mut |row| {
                    let at = (row.ordinal, row.offset);
                    while let Some(event) = left.next_if(|event| ordinal_of(event) < row.ordinal) {
                        missing.push((*event, other.take().or(Some(at))));
                    }
                    if left.next_if(|event| (ordinal_of(event), event.offset) == at).is_some() {
                        other = None;
                    } else if left.peek().is_some_and(|event| ordinal_of(event) == row.ordinal) {
                        other = Some(at);
                    }
                    Ok(left.peek().is_some())
                },
            )?;
            missing.extend(left.map(|event| (*event, other.take())));
            Ok(missing)
        });
        for (event, found) in looked.map_err(|unread| (first.offset, why(unread)))? {
            let (position, stream, at) = (event.position, &event.stream, (ordinal_of(event), event.offset));
            let what =
                format!("position {position} of stream {stream}: the index of {of} has {found:?} instead of {at:?}");
            wrong.push((event.offset, what));
        }
        Ok(())
    }

    /// Whether the newest version of a document is this one or a later one.
    pub(super) fn misplaced_document(&self, name: &str, at: DocumentAt) -> std::result::Result<(), String> {
        let found = self.document_at(name, Io::MayBlock).map_err(why)?;
        let is_known = found.is_some_and(|found| match found.offset == at.offset {
            true => found == at,
            false => found.offset > at.offset,
        });
        match is_known {
            true => Ok(()),
            false => Err(format!("document {name}: the index has {found:?} instead of {at:?}")),
        }
    }
}

fn why(unread: IndexReadError) -> String {
    match unread {
        IndexReadError::Failed(error) => error.to_string(),
        IndexReadError::OnDisk | IndexReadError::Moved => "the index was not read".to_owned(),
    }
}
