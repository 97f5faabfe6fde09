//! Frees the space of what no reader sees any more: messages that are hidden or were cleared, and documents that were changed
//! since. First the indexes forget them, then the log is rewritten without them: a crash in between leaves messages that are
//! in no list, which the next time are left out as well. The last message of a stream stays, for its version.

use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{LogError, Offset};

use super::hidden::Hidden;
use super::index::{DocumentAt, Gone, GoneOf, Io, List, Listed, Read, Unread};
use super::namespace::EmbeddedNamespace;
use super::record::Lies;
use super::{Inner, upkeep};
use crate::error::{EventsError, Result};
use crate::event::EventRef;
use crate::names;
use crate::store::{Direction, Scavenged};

pub(super) async fn scavenge(inner: Arc<Inner>) -> Result<Scavenged> {
    let _alone = inner.scavenging.clone().write_owned().await;
    let done = tokio::task::spawn_blocking(move || all(&inner)).await;
    done.unwrap_or_else(|_| Err(EventsError::Unavailable("the scavenging was given up".to_owned())))
}

/// So many messages are remembered at a time.
const ROUND: usize = 8_000_000;

/// Blocks.
fn all(inner: &Inner) -> Result<Scavenged> {
    let mut scavenged = Scavenged::default();
    loop {
        let (some, is_all) = some(inner, ROUND)?;
        scavenged.messages += some.messages;
        scavenged.bytes += some.bytes;
        if is_all {
            return Ok(scavenged);
        }
    }
}

/// A namespace that was looked at.
pub(super) struct Looked {
    namespace: Arc<EmbeddedNamespace>,
    /// Up to where.
    to: Offset,
    cleared_at: Offset,
}

/// As many messages as a round has, and whether these were all.
pub(super) fn some(inner: &Inner, round: usize) -> Result<(Scavenged, bool)> {
    let (gone, looked, is_all) = look(inner, round)?;
    forget(inner, &gone, &looked)?;
    let mut scavenged = Scavenged::default();
    let none = GoneOf::default();
    for Looked {
        namespace,
        to,
        cleared_at,
    } in looked
    {
        let gone = gone.0.get(&namespace.number).unwrap_or(&none);
        scavenged.messages += gone.offsets.len() as u64;
        scavenged.bytes += namespace.rewrite(to, cleared_at, gone)?;
    }
    Ok((scavenged, is_all))
}

/// What may go.
pub(super) fn look(inner: &Inner, round: usize) -> Result<(Gone, Vec<Looked>, bool)> {
    // What is looked at below is in tables, if there are any.
    upkeep::flush_all(inner)?;
    let mut gone = Gone::default();
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
        // Where the tables end, if there are any: what came since is in memory and stays as it is.
        let in_tables = inner.place.shelf.state(namespace.number).map(|state| state.next_offset);
        let to = match inner.place.shelf.is_on_disk() {
            true => in_tables.unwrap_or(0).min(state.next_offset),
            false => state.next_offset,
        };
        let (mut found, to) = namespace.hidden_messages(bounds.first.max(state.cleared_at), to, left)?;
        left -= found.offsets.len();
        found.space = space;
        // What hides them may be newer than what is on disk, and a power cut must not take both.
        let next = namespace.index.read().state.next_offset;
        if inner.place.shelf.is_on_disk()
            && let Err(error) = upkeep::until_synced(&namespace, next)
        {
            match namespace.is_gone() {
                true => continue,
                false => return Err(error),
            }
        }
        if !found.offsets.is_empty() {
            gone.0.insert(namespace.number, found);
        }
        looked.push(Looked {
            namespace,
            to,
            cleared_at: state.cleared_at,
        });
    }
    Ok((gone, looked, left > 0))
}

/// Has the indexes leave out what goes.
pub(super) fn forget(inner: &Inner, gone: &Gone, looked: &[Looked]) -> Result<()> {
    if gone.0.is_empty() {
        return Ok(());
    }
    let lives = |space| inner.lives(space);
    let left_out = inner.place.shelf.leave_out(gone, &lives, |publish| {
        let own = |looked: &'_ Looked| gone.0.get(&looked.namespace.number);
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

fn failed(unread: Unread) -> EventsError {
    match unread {
        Unread::Failed(error) => error,
        Unread::OnDisk | Unread::Moved => EventsError::Unavailable("the index could not be read".to_owned()),
    }
}

impl EmbeddedNamespace {
    /// Whether a message may go: it is hidden, and nobody needs its position to know the stream's version, or its global
    /// position to know the last one.
    pub(super) fn may_go(&self, hidden: &mut Hidden, event: &EventRef<'_>) -> Read<bool> {
        if !hidden.hides(self, event, Io::MayBlock)? || event.global == self.index.read().state.last_global {
            return Ok(false);
        }
        if self.rules().is_tombstoned(event.stream) {
            return Ok(true);
        }
        let version = self.version_stored(event.stream, Io::MayBlock)?;
        Ok((event.position as i64) < version)
    }

    /// Those that may go and are in the lists, up to `max`, and up to where they were looked for.
    fn hidden_messages(&self, from: Offset, to: Offset, max: usize) -> Result<(GoneOf, Offset)> {
        let mut gone = GoneOf::default();
        if self.rules().is_empty() {
            return Ok((gone, to));
        }
        let (mut hidden, mut wrong, mut end) = (self.hidden(), None, to);
        self.place.log.scan(self.partition, from, to, &mut |offset, record| {
            let Some(Lies::Event(event)) = Lies::decode(record.value, record.time) else {
                return true;
            };
            match self
                .may_go(&mut hidden, &event)
                .and_then(|goes| Ok(goes && self.is_listed(&event, offset)?))
            {
                Ok(true) => self.note(&mut gone, &event, offset),
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
            None => Ok((gone, end)),
        }
    }

    fn note(&self, gone: &mut GoneOf, event: &EventRef<'_>, offset: Offset) {
        gone.offsets.push(offset);
        *gone.streams.entry(event.stream.to_owned()).or_default() += 1;
        let category = gone
            .categories
            .entry(names::category(event.stream).to_owned())
            .or_default();
        category.messages += 1;
        // With its last message a stream goes that nothing is stored in any more.
        let version = self.version_stored(event.stream, Io::MayBlock).unwrap_or(-1);
        category.streams += i64::from(event.position as i64 == version);
    }

    fn is_listed(&self, event: &EventRef<'_>, offset: Offset) -> Read<bool> {
        let mut found = false;
        let list = Listed::Of(List::Stream, event.stream.to_owned());
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

    /// In no list since a scavenging that a crash has ended.
    fn is_left_over(&self, hidden: &mut Hidden, event: &EventRef<'_>, offset: Offset) -> bool {
        let goes = self.may_go(hidden, event).unwrap_or(false);
        goes && self.is_listed(event, offset).is_ok_and(|listed| !listed)
    }

    /// Has the log keep what is needed of what stands before `to`: all that is in a list, whatever has been hidden since
    /// `gone` was left out of them. Returns the bytes that are freed.
    fn rewrite(&self, to: Offset, cleared_at: Offset, gone: &GoneOf) -> Result<u64> {
        let log = &self.place.log;
        let before = log.bytes(self.partition, 0, Offset::MAX).unwrap_or(0);
        let work = Mutex::new(self.hidden());
        let synced = match self.place.shelf.is_on_disk() {
            true => log.bounds(self.partition).map_or(0, |bounds| bounds.synced),
            false => Offset::MAX,
        };
        let keep = |offset: Offset, record: &RecordRef<'_>| {
            if offset >= to {
                return true;
            }
            match Lies::decode(record.value, record.time) {
                Some(Lies::Event(_)) if offset < cleared_at => false,
                Some(Lies::Event(event)) => !gone.has(offset) && !self.is_left_over(&mut work.lock(), &event, offset),
                Some(Lies::Document(document)) => {
                    let newest = self.document_at(document.name, Io::MayBlock);
                    let is_over = |newest: &DocumentAt| (offset + 1..synced).contains(&newest.offset);
                    newest.map_or(true, |newest| !newest.as_ref().is_some_and(is_over))
                }
                Some(Lies::Cleared) => offset >= cleared_at,
                // Whatever it is, it is not ours to remove.
                None => true,
            }
        };
        match log.rewrite(self.partition, &keep) {
            Ok(_) | Err(LogError::NoPartition(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let after = log.bytes(self.partition, 0, Offset::MAX).unwrap_or(0);
        Ok(before.saturating_sub(after))
    }
}
