//! Indexes what the log has and the tables do not when the store is opened: for each namespace what was stored since
//! the last table, or everything if there are no tables.

pub(super) mod lost_clears;

use std::ops::Range;
use std::time::{Duration, Instant};

use thalweg_kit::clock;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::records;
use thalweg_log::{Log, LogError, Offset, PartitionId, ReadOptions};

use lost_clears::LostClearDetector;

use super::catalog::CatalogEntry;
use super::index::{DocumentAt, IndexEntry, IndexReadResult, Io, KeySpace, NamespaceIndex};
use super::namespace::{EmbeddedNamespace, StoreContext};
use super::record::PartitionRecord;
use super::scavenge::failed;
use super::scavenge_marks::{self, RemovalMarks};
use super::{OpenNamespace, maintenance};
use crate::error::{EventsError, Result};

/// Size of a read.
const READ: usize = 4 << 20;
/// Interval of progress messages.
const TOLD: Duration = Duration::from_secs(5);

/// Also returns the number of bytes that were indexed. Blocks until done. `marks`: there may be scavenge marks.
pub(super) fn all(place: &StoreContext, known: Vec<CatalogEntry>, marks: bool) -> Result<(Vec<OpenNamespace>, u64)> {
    let began = clock::now();
    let mut progress = Progress {
        began,
        told: began,
        bytes: 0,
    };
    let mut all = Vec::with_capacity(known.len());
    for named in known {
        let number = named.number;
        let opened = OpenNamespace::new(named, place, NamespaceIndex::new(&place.table_store, number));
        one(place, &opened, &all, marks, &mut progress)?;
        let loaded = opened
            .namespace
            .load_marks()
            .and_then(|()| opened.namespace.load_rules());
        loaded.map_err(failed)?;
        opened.namespace.add_deleted_versions().map_err(failed)?;
        opened.namespace.settle();
        all.push(opened);
    }
    if progress.bytes > 0 {
        tracing::debug!(bytes = progress.bytes, took = ?began.elapsed(), "the indexes of events are up to date");
    }
    Ok((all, progress.bytes))
}

struct Progress {
    began: Instant,
    told: Instant,
    bytes: u64,
}

impl Progress {
    fn tell(&mut self, namespace: &str, at: Offset, end: Offset) {
        if self.told.elapsed() < TOLD {
            return;
        }
        self.told = clock::now();
        let took = self.began.elapsed().as_secs();
        let mib = self.bytes >> 20;
        tracing::info!(namespace, at, end, mib, seconds = took, "indexing the stored messages");
    }
}

fn one(
    place: &StoreContext,
    opened: &OpenNamespace,
    others: &[OpenNamespace],
    marks: bool,
    progress: &mut Progress,
) -> Result<()> {
    let (namespace, log) = (&opened.namespace, place.log.as_ref());
    let id = namespace.partition;
    let bounds = log.bounds(id)?;
    let mut from = namespace.index.read().state.next_offset.max(bounds.first);
    let anew = place.table_store.state(namespace.number).is_none();
    // A rebuilt index must not bring back scavenged or cleared messages, which the log may still have.
    let own = match anew && marks {
        true => scavenge_marks::in_log(log, id)?,
        false => RemovalMarks::default(),
    };
    let mut indexing = ReplayIndexer {
        namespace,
        anew,
        own,
        after_gaps: LostClearDetector::default(),
        bytes: 0,
    };
    while from < bounds.next {
        let mut back = Ok(None);
        let next = frames(log, id, from, &mut |passed| {
            if let Ok(None) = back {
                back = indexing.pass(passed);
            }
        })?;
        from = back.map_err(failed)?.unwrap_or(next);
        progress.bytes += std::mem::take(&mut indexing.bytes);
        progress.tell(&namespace.about().name, from, bounds.next);
        if place.table_store.has_enough() {
            // All namespaces opened so far, and this one.
            let namespaces = || {
                others
                    .iter()
                    .chain([opened])
                    .map(|opened| opened.namespace.clone())
                    .collect()
            };
            maintenance::flush(place, namespaces, &|_: KeySpace| true)?;
        }
    }
    let mut index = namespace.index.write();
    index.state.next_offset = bounds.next;
    if anew {
        index.state.marks_followed = bounds.next;
    }
    Ok(())
}

/// Adds the log of a namespace to its index.
struct ReplayIndexer<'a> {
    namespace: &'a EmbeddedNamespace,
    /// There was no index.
    anew: bool,
    own: RemovalMarks,
    after_gaps: LostClearDetector,
    bytes: u64,
}

impl ReplayIndexer<'_> {
    /// Processes an item. Returns an offset to go back to if entries after it were indexed together with messages that
    /// had been removed. Blocks.
    fn pass(&mut self, passed: ReplayItem) -> IndexReadResult<Option<Offset>> {
        let ReplayItem::Entry(mut entry, bytes) = passed else {
            self.after_gaps.gap();
            return Ok(None);
        };
        if let Some(cleared) = self.own.cleared.take_if(|cleared| *cleared < entry.offset()) {
            self.clear(cleared);
        }
        match &mut entry {
            IndexEntry::Event(event) => {
                if self.own.scavenged.has(event.offset) {
                    return Ok(None);
                }
                if let Some(gap) = self.after_gaps.lost_clear(self.namespace, event)? {
                    tracing::warn!(
                        namespace = self.namespace.about().name,
                        offset = event.offset,
                        "the log lost the record that cleared all messages before offset {}, in damaged data that was \
                         given up; the messages stay removed, because positions start again after it",
                        gap.end
                    );
                    self.clear(gap.start);
                    return Ok(Some(gap.end));
                }
                // The first message of a stream may have been scavenged or lost.
                if (self.anew || self.after_gaps.any()) && !event.is_first {
                    let version = self.namespace.version_stored(&event.stream, Io::MayBlock);
                    event.is_first = version.is_ok_and(|version| version < 0);
                }
            }
            IndexEntry::Cleared { .. } => self.after_gaps.cleared(),
            IndexEntry::Document { .. } => {}
        }
        self.namespace.index.write().add(&entry, bytes);
        self.bytes += bytes;
        Ok(None)
    }

    fn clear(&mut self, offset: Offset) {
        self.after_gaps.cleared();
        self.namespace.index.write().add(&IndexEntry::Cleared { offset }, 0);
    }
}

impl EmbeddedNamespace {
    /// Adds the versions of streams that have a deletion but no messages in the log.
    fn add_deleted_versions(&self) -> IndexReadResult<()> {
        let rules = self.rules();
        for (stream, version) in rules.deleted_versions() {
            let stored = self.version_stored(stream, Io::MayBlock)?;
            if stored < version.cast_signed() {
                self.index.write().add_version(&stream.into(), version, stored < 0);
            }
        }
        Ok(())
    }
}

/// An item of a partition.
pub(super) enum ReplayItem {
    /// An entry and its size in the log.
    Entry(IndexEntry, u64),
    /// A gap that a recovery gave up, or scavenged records.
    Gap(Range<Offset>),
    /// Missing frames: scavenged, or lost together with their index.
    Hole(Range<Offset>),
}

/// Visits the items of some frames. Returns the next offset to read.
pub(super) fn frames(log: &dyn Log, id: PartitionId, from: Offset, show: &mut dyn FnMut(ReplayItem)) -> Result<Offset> {
    let want = ReadOptions {
        bytes: READ,
        synced: false,
    };
    let frames = match log.read(id, from, want) {
        Err(LogError::Gap { to, .. }) => {
            let to = to.max(from + 1);
            show(ReplayItem::Gap(from..to));
            return Ok(to);
        }
        frames => frames?,
    };
    let mut next = from;
    for frame in &frames {
        let base = frame.header.base;
        if base > next {
            show(ReplayItem::Hole(next..base));
        }
        next = frame.header.next();
        match frame.header.kind {
            FrameKind::Data | FrameKind::State => {}
            FrameKind::Gap => {
                show(ReplayItem::Gap(base.max(from)..next));
                continue;
            }
            FrameKind::Checkpoint | FrameKind::Meta => continue,
        }
        let mut ordinal = 0;
        for record in records(&frame.body) {
            let damaged = || EventsError::Damaged(format!("a damaged message follows offset {base} of partition {id}"));
            let record = record.map_err(|_| damaged())?;
            let offset = base + record.delta.map_or(ordinal, u64::from);
            ordinal = offset - base + 1;
            if offset < from {
                continue;
            }
            let entry = match PartitionRecord::decode(record.value, record.time).ok_or_else(damaged)? {
                PartitionRecord::Event(event) => IndexEntry::of(&event, event.stream.into(), offset),
                PartitionRecord::Document(document) => IndexEntry::Document {
                    name: document.name.into(),
                    at: DocumentAt {
                        offset,
                        revision: document.revision,
                        removed: document.content.is_none(),
                    },
                },
                PartitionRecord::Cleared => IndexEntry::Cleared { offset },
            };
            show(ReplayItem::Entry(entry, record.value.len() as u64));
        }
    }
    Ok(next.max(from + 1))
}
