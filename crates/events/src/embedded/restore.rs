//! Restores a backup into a log without namespaces. Records keep their offsets, because ids and document revisions are
//! derived from them. Derived data is not in the backup; it is rebuilt from the log when the store is opened.

use std::io;
use std::sync::Arc;

use thalweg_kit::threads;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::{RecordRef, records};
use thalweg_log::{Durability, Log, LogError, Offset, PartitionId, Records, SUBMISSION_RECORDS_MAX, WriteBatch};
use tokio::runtime::Handle;

use super::catalog::{self, Catalog, CatalogChange, CatalogOptions};
use super::{CatalogEntry, EmbeddedStore};
use crate::backup::{BackupCounts, BackupError, BackupPart, BackupReader, BackupRecords, NamespaceHeader};
use crate::error::EventsError;
use crate::time;

/// Approximate size of a submission, which is synced as a whole.
const UNIT_BYTES: usize = 4 << 20;
/// Maximum number of empty offsets in one frame.
const HOLE_MAX: u64 = 1 << 31;

type RestoreResult<T> = std::result::Result<T, BackupError>;

/// The result of a restore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreReport {
    pub all: BackupCounts,
    /// Size of the backup.
    pub bytes: u64,
    /// Number of messages for each namespace.
    messages: Vec<(String, u64)>,
}

/// Stores a backup in a log without namespaces and reports progress. Everything is synced when it returns; after an
/// error or a crash the log must not be used. Blocks; must be called on a thread of a runtime that may block.
pub fn restore<R: io::Read>(
    log: &Arc<dyn Log>,
    mut backup: BackupReader<R>,
    tell: &mut dyn FnMut(&RestoreReport),
) -> RestoreResult<RestoreReport> {
    let runtime = Handle::current();
    if log.partitions().into_iter().any(|id| catalog::number_of(id).is_some()) {
        let why = "the log already has namespaces of events, and a backup can only be restored to a log without any";
        return Err(EventsError::Unavailable(why.to_owned()).into());
    }
    let now = time::now();
    let (mut catalog, _) = threads::block_on(
        &runtime,
        Catalog::open(
            log.clone(),
            CatalogOptions {
                now,
                ..CatalogOptions::default()
            },
        ),
    )?;
    threads::block_on(&runtime, catalog.needs(catalog::MARKS, now))?;
    let mut filling: Option<(CatalogEntry, PartitionFiller<'_>)> = None;
    let mut restored = RestoreReport::default();
    while let Some(part) = backup.next_part()? {
        restored.bytes = backup.bytes();
        match (part, &mut filling) {
            (BackupPart::Begin(_), _) => {}
            (BackupPart::Namespace(head), filling) => {
                let NamespaceHeader { named, first, next } = *head;
                *filling = Some((
                    named.clone(),
                    PartitionFiller::begin(log.as_ref(), &runtime, &named, (first, next))?,
                ));
            }
            (BackupPart::Records(piece), Some((_, filling))) => {
                restored.all.records += filling.push(&piece)?;
                tell(&restored);
            }
            (BackupPart::NamespaceEnd(own), filling) => {
                if let Some((named, own_filling)) = filling.take() {
                    own_filling.finish()?;
                    restored.messages.push((named.name.clone(), own.messages));
                    let created_at = named.created_at;
                    threads::block_on(&runtime, catalog.store(&CatalogChange::Created(named), created_at))?;
                    restored.all.namespaces += 1;
                    restored.all.messages += own.messages;
                    tell(&restored);
                }
            }
            (BackupPart::End(all), _) => restored.all = all,
            // The reader has verified the order.
            (BackupPart::Records(_), None) => {}
        }
    }
    Ok(restored)
}

impl EmbeddedStore {
    /// Fails unless the store that was opened on a restored log has all messages.
    pub fn has_restored(&self, restored: &RestoreReport) -> crate::error::Result<()> {
        for (name, messages) in &restored.messages {
            let namespace = self.inner.opened(name)?.namespace;
            let found = namespace.index.read().state.messages;
            if found != *messages {
                return Err(EventsError::Damaged(format!(
                    "namespace '{name}' has {found} messages, and the backup has {messages}"
                )));
            }
        }
        Ok(())
    }
}

/// Fills a partition.
struct PartitionFiller<'a> {
    log: &'a dyn Log,
    runtime: &'a Handle,
    id: PartitionId,
    first: Offset,
    end: Offset,
    /// The offset after the pushed records.
    at: Offset,
    unit: WriteBatch,
    /// Counts of the current unit.
    parts: usize,
    records: usize,
    bytes: usize,
}

impl<'a> PartitionFiller<'a> {
    fn begin(
        log: &'a dyn Log,
        runtime: &'a Handle,
        named: &CatalogEntry,
        (first, end): (Offset, Offset),
    ) -> RestoreResult<PartitionFiller<'a>> {
        let name = &named.name;
        let no_number = || EventsError::Damaged(format!("namespace '{name}' has an impossible number"));
        let id = catalog::checked_partition(named.number).ok_or_else(no_number)?;
        threads::block_on(runtime, log.create(id, Durability::Fsync)).map_err(|error| match error {
            LogError::PartitionExists(_) => no_number(),
            error => error.into(),
        })?;
        Ok(PartitionFiller {
            log,
            runtime,
            id,
            first,
            end,
            at: 0,
            unit: WriteBatch::default(),
            parts: 0,
            records: 0,
            bytes: 0,
        })
    }

    /// Returns the number of records.
    fn push(&mut self, piece: &BackupRecords) -> RestoreResult<u64> {
        self.leave_empty(piece.base)?;
        let mut part = Records::with_capacity(piece.body.len());
        let is_whole = |count: usize| count as u64 == piece.next - piece.base;
        let count = records(&piece.body).count();
        for record in records(&piece.body).flatten() {
            // Without holes, the offset follows from the position.
            let delta = record.delta.filter(|_| !is_whole(count));
            part.push(&RecordRef { delta, ..record }).map_err(EventsError::from)?;
        }
        if !is_whole(count) {
            let offsets = u32::try_from(piece.next - piece.base).unwrap_or(u32::MAX);
            part = part.covering(offsets).map_err(EventsError::from)?;
        }
        self.add(piece.kind, part, piece.next)?;
        Ok(count as u64)
    }

    /// Leaves the offsets up to `to` empty.
    fn leave_empty(&mut self, to: Offset) -> RestoreResult<()> {
        while self.at < to {
            let next = to.min(self.at + HOLE_MAX);
            let hole = Records::new().covering((next - self.at) as u32);
            self.add(FrameKind::Data, hole.map_err(EventsError::from)?, next)?;
        }
        Ok(())
    }

    fn add(&mut self, kind: FrameKind, part: Records, next: Offset) -> RestoreResult<()> {
        let (records, bytes) = (part.len(), part.bytes());
        if self.parts > 0 && (self.records + records > SUBMISSION_RECORDS_MAX || self.bytes + bytes > UNIT_BYTES) {
            self.store()?;
        }
        // The other parts follow the first.
        let part = if self.parts == 0 { part.expecting(self.at) } else { part };
        self.unit = std::mem::take(&mut self.unit).and_of(kind, self.id, part);
        (self.parts, self.records, self.bytes) = (self.parts + 1, self.records + records, self.bytes + bytes);
        self.at = next;
        Ok(())
    }

    fn store(&mut self) -> RestoreResult<()> {
        (self.parts, self.records, self.bytes) = (0, 0, 0);
        let stored = threads::block_on(self.runtime, self.log.append(std::mem::take(&mut self.unit)));
        stored.map_err(EventsError::from)?;
        Ok(())
    }

    fn finish(mut self) -> RestoreResult<()> {
        self.leave_empty(self.end)?;
        if self.parts > 0 {
            self.store()?;
        }
        self.log.trim(self.id, self.first).map_err(EventsError::from)?;
        Ok(())
    }
}
