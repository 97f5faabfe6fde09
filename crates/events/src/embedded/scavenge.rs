//! Frees the space of records that no reader can see: hidden or cleared messages, and outdated documents. First
//! [scavenge marks](super::scavenge_marks) record durably which messages go, then the indexes forget them, then the log
//! is rewritten without them. After a crash in between, the next start makes the indexes follow the marks. The last
//! message of a stream is kept for its version, unless a deletion records the version.

use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_kit::{blocking, threads};
use thalweg_log::format::record::RecordRef;
use thalweg_log::{LogError, Offset};

use super::index::{DocumentAt, IndexReadError, IndexReadResult, Io, ListId, ListKind, NamespaceRemovals, RemovalSet};
use super::namespace::EmbeddedNamespace;
use super::record::PartitionRecord;
use super::rules::VisibilityRules;
use super::scavenge_marks::OffsetRuns;
use super::visibility::VisibilityFilter;
use super::{StoreInner, catalog, maintenance};
use crate::error::{EventsError, Result};
use crate::event::EventRef;
use crate::names;
use crate::store::{Direction, ScavengeReport};

pub(super) async fn scavenge(inner: Arc<StoreInner>) -> Result<ScavengeReport> {
    let _alone = inner.scavenging.clone().write_owned().await;
    let done = blocking::spawn(move || all(&inner)).await;
    done.unwrap_or_else(|_| Err(EventsError::Unavailable("scavenging was interrupted".to_owned())))
}

/// Scavenges and also erases the bytes from disk: the current file is closed, so that everything can be rewritten, and
/// no file that had the bytes stays or is reused.
pub(super) async fn erase(inner: Arc<StoreInner>) -> Result<ScavengeReport> {
    let first = scavenge(inner.clone()).await?;
    inner.place.log.roll().await?;
    let _alone = inner.scavenging.clone().write_owned().await;
    let done = blocking::spawn(move || {
        let then = all(&inner)?;
        inner.place.log.erase()?;
        Ok(ScavengeReport {
            messages: first.messages + then.messages,
            bytes: first.bytes + then.bytes,
        })
    });
    let done = done.await;
    done.unwrap_or_else(|_| Err(EventsError::Unavailable("scavenging was interrupted".to_owned())))
}

/// Maximum number of messages that are remembered at a time.
const ROUND: usize = 8_000_000;

/// Scavenges in rounds. Blocks.
fn all(inner: &StoreInner) -> Result<ScavengeReport> {
    let mut scavenged = ScavengeReport::default();
    loop {
        let (some, is_all) = some(inner, ROUND)?;
        scavenged.messages += some.messages;
        scavenged.bytes += some.bytes;
        if is_all {
            return Ok(scavenged);
        }
    }
}

/// A namespace that was scanned.
pub(super) struct ScannedNamespace {
    namespace: Arc<EmbeddedNamespace>,
    /// The rules at the time of the scan.
    rules: Arc<VisibilityRules>,
    /// The global position of the newest message, if that message is removed.
    last_global: Option<u64>,
    /// The end of the scanned range.
    to: Offset,
    cleared_at: Offset,
}

/// Scavenges one round of messages. Returns whether that was everything.
pub(super) fn some(inner: &StoreInner, round: usize) -> Result<(ScavengeReport, bool)> {
    finish(inner)?;
    let (mut gone, looked, is_all) = look(inner, round)?;
    let ruling = mark(inner, &mut gone, &looked)?;
    forget(inner, &gone, &looked)?;
    drop(ruling);
    let mut scavenged = ScavengeReport::default();
    let none = NamespaceRemovals::default();
    for ScannedNamespace {
        namespace,
        to,
        cleared_at,
        ..
    } in looked
    {
        let gone = gone.0.get(&namespace.number).unwrap_or(&none);
        scavenged.messages += gone.offsets.len() as u64;
        scavenged.bytes += namespace.rewrite(to, cleared_at, gone)?;
    }
    Ok((scavenged, is_all))
}

/// Collects what can be removed.
pub(super) fn look(inner: &StoreInner, round: usize) -> Result<(RemovalSet, Vec<ScannedNamespace>, bool)> {
    // The scan below reads tables, if there are any.
    maintenance::flush_all(inner)?;
    let mut gone = RemovalSet::default();
    let mut looked = Vec::new();
    let mut left = round;
    for namespace in inner.all() {
        if left == 0 {
            return Ok((gone, looked, false));
        }
        let (state, space) = {
            let index = namespace.index.read();
            (index.state, index.space())
        };
        let bounds = match namespace.place.log.bounds(namespace.partition) {
            Ok(bounds) => bounds,
            // It was deleted meanwhile.
            Err(_) => continue,
        };
        // The end of the tables, if there are any. Newer entries are in memory and stay unchanged.
        let table_store = &inner.place.table_store;
        let in_tables = table_store.state(namespace.number).map(|state| state.next_offset);
        let to = match table_store.is_on_disk() {
            true => in_tables.unwrap_or(0).min(state.next_offset),
            false => state.next_offset,
        };
        let rules = namespace.rules();
        let (mut found, to, last) = namespace.hidden_messages(bounds.first.max(state.cleared_at), to, left)?;
        left -= found.offsets.len();
        found.space = space;
        if !found.offsets.is_empty() {
            gone.0.insert(namespace.number, found);
        }
        looked.push(ScannedNamespace {
            namespace,
            rules,
            last_global: last,
            to,
            cleared_at: state.cleared_at,
        });
    }
    Ok((gone, looked, left > 0))
}

/// Locks that keep the rules unchanged until the indexes have forgotten what they hid.
type RuleLocks = Vec<tokio::sync::OwnedMutexGuard<()>>;

/// Records durably what will be removed. Messages stay if the rule that hid them has changed meanwhile.
fn mark(inner: &StoreInner, gone: &mut RemovalSet, looked: &[ScannedNamespace]) -> Result<RuleLocks> {
    let mut ruling = Vec::new();
    if gone.0.is_empty() {
        return Ok(ruling);
    }
    let runtime = tokio::runtime::Handle::current();
    threads::block_on(&runtime, async {
        inner.catalog.lock().await.needs(catalog::MARKS, inner.now()).await
    })?;
    for looked in looked {
        let namespace = &looked.namespace;
        let Some(own) = gone.0.get_mut(&namespace.number) else {
            continue;
        };
        let guard = threads::block_on(&runtime, namespace.ruling.clone().lock_owned());
        let rules = namespace.rules();
        let changed = own
            .streams
            .keys()
            .any(|stream| !rules.rule_alike(&looked.rules, stream));
        let runs = OffsetRuns::of(&own.offsets);
        let marked = match changed {
            true => None,
            false => match threads::block_on(&runtime, namespace.mark(&runs, looked.last_global)) {
                Err(_) if namespace.is_gone() => None,
                marked => Some(marked?),
            },
        };
        let Some(marked_to) = marked else {
            gone.0.remove(&namespace.number);
            continue;
        };
        own.marked_to = marked_to;
        // The marks and the rules may be newer than what is on disk. A power cut must not undo them and leave indexes
        // without the messages.
        let next = namespace.index.read().state.next_offset;
        if inner.place.table_store.is_on_disk()
            && let Err(error) = maintenance::until_synced(namespace, next)
            && !namespace.is_gone()
        {
            return Err(error);
        }
        ruling.push(guard);
    }
    Ok(ruling)
}

/// Makes the indexes follow marks left by a crash or by a failed index write. Blocks.
pub(super) fn finish(inner: &StoreInner) -> Result<()> {
    let (mut gone, mut looked) = (RemovalSet::default(), Vec::new());
    for namespace in inner.all() {
        let pending = namespace.pending_marks()?;
        if pending.is_empty() {
            continue;
        }
        if looked.is_empty() {
            maintenance::flush_all(inner)?;
        }
        let (state, space) = {
            let index = namespace.index.read();
            (index.state, index.space())
        };
        let mut own = NamespaceRemovals {
            space,
            marked_to: namespace.marks().newest() + 1,
            ..NamespaceRemovals::default()
        };
        for (start, end) in pending.iter() {
            namespace.listed_messages(start.max(state.cleared_at), end, &mut own)?;
        }
        if own.offsets.is_empty() {
            namespace.index.write().state.leave_out(&own);
            continue;
        }
        gone.0.insert(namespace.number, own);
        looked.push(ScannedNamespace {
            rules: namespace.rules(),
            last_global: None,
            namespace,
            to: 0,
            cleared_at: state.cleared_at,
        });
    }
    forget(inner, &gone, &looked)
}

/// Removes the messages from the indexes.
pub(super) fn forget(inner: &StoreInner, gone: &RemovalSet, looked: &[ScannedNamespace]) -> Result<()> {
    if gone.0.is_empty() {
        return Ok(());
    }
    let lives = |space| inner.lives(space);
    let left_out = inner.place.table_store.leave_out(gone, &lives, |publish| {
        let own = |looked: &'_ ScannedNamespace| gone.0.get(&looked.namespace.number);
        let mut indexes: Vec<_> = looked
            .iter()
            .filter_map(|looked| Some((looked.namespace.index.write(), own(looked)?)))
            .collect();
        publish()?;
        for (index, gone) in &mut indexes {
            index.leave_out(gone, inner.place.in_memory);
        }
        Ok(())
    });
    left_out.map_err(|error| EventsError::Unavailable(format!("the folder of indexes: {error}")))
}

pub(super) fn failed(unread: IndexReadError) -> EventsError {
    match unread {
        IndexReadError::Failed(error) => error,
        IndexReadError::OnDisk | IndexReadError::Moved => {
            EventsError::Unavailable("the index could not be read".to_owned())
        }
    }
}

impl EmbeddedNamespace {
    /// Whether a message can be removed: it is hidden, and its position is not needed for the stream's version.
    pub(super) fn may_go(&self, hidden: &mut VisibilityFilter, event: &EventRef<'_>) -> IndexReadResult<bool> {
        if !hidden.hides(self, event, Io::MayBlock)? {
            return Ok(false);
        }
        let rules = self.rules();
        // The deletion records the version.
        if rules.is_tombstoned(event.stream) || event.position < rules.deleted_before(event.stream) {
            return Ok(true);
        }
        let version = self.version_stored(event.stream, Io::MayBlock)?;
        Ok((event.position as i64) < version)
    }

    /// Collects the listed messages in a range of the log.
    fn listed_messages(&self, from: Offset, to: Offset, gone: &mut NamespaceRemovals) -> Result<()> {
        let mut wrong = None;
        self.place
            .log
            .scan(self.partition, from, to.max(from), &mut |offset, record| {
                if let Some(PartitionRecord::Event(event)) = PartitionRecord::decode(record.value, record.time) {
                    match self.is_listed(&event, offset) {
                        Ok(true) => self.note(gone, &event, offset),
                        Ok(false) => {}
                        Err(unread) => wrong = Some(failed(unread)),
                    }
                }
                wrong.is_none()
            })?;
        wrong.map_or(Ok(()), Err)
    }

    /// The removable messages that are in the lists, up to `max`, the end of the scanned range, and the last global
    /// position if its message is among them.
    fn hidden_messages(
        &self,
        from: Offset,
        to: Offset,
        max: usize,
    ) -> Result<(NamespaceRemovals, Offset, Option<u64>)> {
        let mut gone = NamespaceRemovals::default();
        if self.rules().is_empty() {
            return Ok((gone, to, None));
        }
        let mut last = 0;
        let (mut hidden, mut wrong, mut end) = (self.hidden(), None, to);
        self.place.log.scan(self.partition, from, to, &mut |offset, record| {
            let Some(PartitionRecord::Event(event)) = PartitionRecord::decode(record.value, record.time) else {
                return true;
            };
            match self
                .may_go(&mut hidden, &event)
                .and_then(|goes| Ok(goes && self.is_listed(&event, offset)?))
            {
                Ok(true) => {
                    last = last.max(event.global);
                    self.note(&mut gone, &event, offset);
                }
                Ok(false) => {}
                Err(unread) => wrong = Some(failed(unread)),
            }
            if gone.offsets.len() >= max {
                end = end.min(offset + 1);
            }
            wrong.is_none() && end == to
        })?;
        match wrong {
            Some(error) => Err(error),
            None => {
                let is_last = last > 0 && last == self.index.read().state.last_global;
                Ok((gone, end, is_last.then_some(last)))
            }
        }
    }

    fn note(&self, gone: &mut NamespaceRemovals, event: &EventRef<'_>, offset: Offset) {
        gone.offsets.push(offset);
        *gone.streams.entry(event.stream.to_owned()).or_default() += 1;
        let category = gone
            .categories
            .entry(names::category(event.stream).to_owned())
            .or_default();
        category.messages += 1;
        // A tombstoned stream disappears with its last message. Other streams continue and are still counted.
        if !self.rules().is_tombstoned(event.stream) {
            return;
        }
        let version = self.version_stored(event.stream, Io::MayBlock).unwrap_or(-1);
        category.streams += i64::from(event.position as i64 == version);
    }

    fn is_listed(&self, event: &EventRef<'_>, offset: Offset) -> IndexReadResult<bool> {
        let mut found = false;
        let list = ListId::Of(ListKind::Stream, event.stream.to_owned());
        self.walk(
            &list,
            Some(event.position),
            Direction::Forward,
            Io::MayBlock,
            &mut |row| {
                found = (row.ordinal, row.offset) == (event.position, offset);
                Ok(false)
            },
        )?;
        Ok(found)
    }

    /// It is in no list since a scavenging that a crash interrupted, before marks existed.
    fn is_left_over(&self, hidden: &mut VisibilityFilter, event: &EventRef<'_>, offset: Offset) -> bool {
        let goes = self.may_go(hidden, event).unwrap_or(false);
        goes && self.is_listed(event, offset).is_ok_and(|listed| !listed)
    }

    /// Rewrites the log before `to` without the removed records. Everything that is in a list stays, even if it was
    /// hidden after `gone` was removed from the lists. Returns the number of freed bytes.
    fn rewrite(self: &Arc<Self>, to: Offset, cleared_at: Offset, gone: &NamespaceRemovals) -> Result<u64> {
        let log = &self.place.log;
        let before = log.bytes(self.partition, 0, Offset::MAX).unwrap_or(0);
        let work = Mutex::new(self.hidden());
        let synced = match self.place.table_store.is_on_disk() {
            true => log.bounds(self.partition).map_or(0, |bounds| bounds.synced),
            false => Offset::MAX,
        };
        let keep = |offset: Offset, record: &RecordRef<'_>| {
            if offset >= to {
                return true;
            }
            match PartitionRecord::decode(record.value, record.time) {
                Some(PartitionRecord::Event(_)) if offset < cleared_at => false,
                Some(PartitionRecord::Event(event)) => {
                    let goes = gone.has(offset) || self.is_marked(offset);
                    !goes && !self.is_left_over(&mut work.lock(), &event, offset)
                }
                Some(PartitionRecord::Document(document)) => {
                    let newest = self.document_at(document.name, Io::MayBlock);
                    let is_over = |newest: &DocumentAt| (offset + 1..synced).contains(&newest.offset);
                    newest.map_or(true, |newest| !newest.as_ref().is_some_and(is_over))
                }
                Some(PartitionRecord::Cleared) => offset >= cleared_at,
                // Unknown records are kept.
                None => true,
            }
        };
        match log.rewrite(self.partition, &keep) {
            Ok(seen) => {
                // An unused old file still has the messages and would be read again if its replacement were lost.
                let left = log.oldest_leftover(self.partition).unwrap_or(Some(0));
                let before = seen.min(to).min(left.unwrap_or(Offset::MAX));
                let forgotten = threads::block_on(&tokio::runtime::Handle::current(), self.forget_marks(before));
                forgotten.or_else(|error| if self.is_gone() { Ok(()) } else { Err(error) })?;
            }
            Err(LogError::NoPartition(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let after = log.bytes(self.partition, 0, Offset::MAX).unwrap_or(0);
        Ok(before.saturating_sub(after))
    }
}
