//! What the log has and the tables do not is indexed when the store is opened: of each namespace what was stored since the
//! last table was written, or, where there are no tables, everything.

use std::time::{Duration, Instant};

use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::records;
use thalweg_log::{Log, LogError, Offset, PartitionId, ReadWant};

use super::catalog::Named;
use super::index::{DocumentAt, Entry, Index, Io, Read, Space};
use super::marks::{self, OffsetRuns};
use super::namespace::{EmbeddedNamespace, Place};
use super::record::Lies;
use super::scavenge::failed;
use super::{Opened, upkeep};
use crate::error::{EventsError, Result};

/// Bytes read at once.
const READ: usize = 4 << 20;
/// How often it is told how far it is.
const TOLD: Duration = Duration::from_secs(5);

/// Also the bytes of what was indexed. Blocks for as long as it takes.
/// `marks`: some of what was scavenged may be marked.
pub(super) fn all(place: &Place, known: Vec<Named>, marks: bool) -> Result<(Vec<Opened>, u64)> {
    let began = Instant::now();
    let mut progress = Progress {
        began,
        told: began,
        bytes: 0,
    };
    let mut all = Vec::with_capacity(known.len());
    for named in known {
        let number = named.number;
        let opened = Opened::new(named, place, Index::new(&place.shelf, number));
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
        self.told = Instant::now();
        let took = self.began.elapsed().as_secs();
        let mib = self.bytes >> 20;
        tracing::info!(namespace, at, end, mib, seconds = took, "indexing what is stored");
    }
}

fn one(place: &Place, opened: &Opened, others: &[Opened], marks: bool, progress: &mut Progress) -> Result<()> {
    let (namespace, log) = (&opened.namespace, place.log.as_ref());
    let id = namespace.partition;
    let bounds = log.bounds(id)?;
    let mut from = namespace.index.read().state.next_offset.max(bounds.first);
    // What says that it is the first of its stream may have been scavenged.
    let anew = place.shelf.state(namespace.number).is_none();
    // What is made anew must not bring back what was scavenged: the log may have it still.
    let scavenged = match anew && marks {
        true => marks::in_log(log, id)?,
        false => OffsetRuns::default(),
    };
    while from < bounds.next {
        from = frames(log, id, from, &mut |mut entry, bytes| {
            if matches!(entry, Entry::Event(_)) && scavenged.has(entry.offset()) {
                return;
            }
            if let Entry::Event(event) = &mut entry
                && anew
                && !event.is_first
            {
                event.is_first = namespace
                    .version_stored(&event.stream, Io::MayBlock)
                    .is_ok_and(|version| version < 0);
            }
            namespace.index.write().add(&entry, bytes);
            progress.bytes += bytes;
        })?;
        progress.tell(&namespace.about().name, from, bounds.next);
        if place.shelf.has_enough() {
            // All that were opened, and this one.
            let namespaces = || {
                others
                    .iter()
                    .chain([opened])
                    .map(|opened| opened.namespace.clone())
                    .collect()
            };
            upkeep::flush(place, namespaces, &|_: Space| true)?;
        }
    }
    let mut index = namespace.index.write();
    index.state.next_offset = bounds.next;
    if anew {
        index.state.marks_followed = bounds.next;
    }
    Ok(())
}

impl EmbeddedNamespace {
    /// Streams of which the log has no message any more, but a deletion that says where they go on.
    fn add_deleted_versions(&self) -> Read<()> {
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

/// Shows what is in some frames, and what it takes. Returns where the next ones begin.
pub(super) fn frames(log: &dyn Log, id: PartitionId, from: Offset, show: &mut dyn FnMut(Entry, u64)) -> Result<Offset> {
    let want = ReadWant {
        bytes: READ,
        synced: false,
    };
    let frames = match log.read(id, from, want) {
        // Given up by a recovery that was told to skip what is damaged, or scavenged.
        Err(LogError::Gap { to, .. }) => return Ok(to.max(from + 1)),
        frames => frames?,
    };
    let mut next = from;
    for frame in &frames {
        let base = frame.header.base;
        next = frame.header.next();
        if !matches!(frame.header.kind, Kind::Data | Kind::State) {
            continue;
        }
        let mut ordinal = 0;
        for record in records(&frame.body) {
            let damaged =
                || EventsError::Damaged(format!("what is behind offset {base} of partition {id} is no message"));
            let record = record.map_err(|_| damaged())?;
            let offset = base + record.delta.map_or(ordinal, u64::from);
            ordinal = offset - base + 1;
            if offset < from {
                continue;
            }
            let entry = match Lies::decode(record.value, record.time).ok_or_else(damaged)? {
                Lies::Event(event) => Entry::of(&event, event.stream.into(), offset),
                Lies::Document(document) => Entry::Document {
                    name: document.name.into(),
                    at: DocumentAt {
                        offset,
                        revision: document.revision,
                        removed: document.content.is_none(),
                    },
                },
                Lies::Cleared => Entry::Cleared { offset },
            };
            show(entry, record.value.len() as u64);
        }
    }
    Ok(next.max(from + 1))
}
