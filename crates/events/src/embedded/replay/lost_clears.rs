//! Detects clearings whose record was lost by damage. Otherwise their messages would come back, mixed with those that
//! followed.
//!
//! There are two kinds of evidence. If a message after a gap of the log has a position that was assigned before,
//! everything was removed in between, and the clearing was in a gap. And existing indexes know the clearing: the store
//! then records it in a document of its own, so that rebuilt indexes know it too.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use thalweg_kit::threads;
use thalweg_kit::varint;
use thalweg_log::Offset;

use super::super::index::{IndexReadResult, IndexedEvent, Io, ListId, ListKind};
use super::super::namespace::EmbeddedNamespace;
use super::super::record::PartitionRecord;
use super::super::rules::{DELETED, StreamDeletion};
use super::super::{StoreInner, catalog};
use super::{ReplayItem, frames};
use crate::error::Result;
use crate::store::Direction;

/// The document that names the offset of the newest clearing, if the log has lost its record.
pub(in super::super) const CLEARED: &str = "~cleared";

/// The state of a replay that crosses gaps.
#[derive(Default)]
pub(super) struct LostClearDetector {
    /// The log had a gap since the newest clearing.
    any: bool,
    /// Streams that have been verified after the newest gap.
    streams: HashSet<Arc<str>>,
}

impl LostClearDetector {
    pub fn any(&self) -> bool {
        self.any
    }

    pub fn gap(&mut self) {
        self.any = true;
        self.streams.clear();
    }

    /// Earlier entries no longer matter after a clearing.
    pub fn cleared(&mut self) {
        *self = LostClearDetector::default();
    }

    /// The gap that contains a lost clearing, if this message, which is not indexed yet, proves that there was one.
    /// Blocks.
    pub fn lost_clear(
        &mut self,
        namespace: &EmbeddedNamespace,
        event: &IndexedEvent,
    ) -> IndexReadResult<Option<Range<Offset>>> {
        if !self.any {
            return Ok(None);
        }
        let mut given = namespace.global_given(event)?;
        // Positions of a stream increase, so checking its first message after a gap suffices, unless messages were
        // imported.
        if event.is_imported || !self.streams.contains(&event.stream) {
            given = given.max(namespace.position_given(event)?);
            self.streams.insert(event.stream.clone());
        }
        match given {
            Some(given) => namespace.first_gap(given + 1, event.offset),
            None => Ok(None),
        }
    }
}

impl EmbeddedNamespace {
    /// Offset of the newest message that cannot precede this one because of its global position.
    fn global_given(&self, event: &IndexedEvent) -> IndexReadResult<Option<Offset>> {
        let last = self.index.read().state.last_global;
        match event.global <= last {
            true => self.newest_from(&ListId::All, event.global, event.is_imported),
            false => Ok(None),
        }
    }

    /// Offset of the newest message that cannot precede this one because of its position in the stream, or of a
    /// deletion that covers the position.
    fn position_given(&self, event: &IndexedEvent) -> IndexReadResult<Option<Offset>> {
        let version = self.version_stored(&event.stream, Io::MayBlock)?;
        let of_message = match version >= event.position.cast_signed() {
            true => {
                let list = ListId::Of(ListKind::Stream, event.stream.to_string());
                self.newest_from(&list, event.position, event.is_imported)?
            }
            false => None,
        };
        let cleared_at = self.index.read().state.cleared_at;
        let deletion = self.own_document(&format!("{DELETED}{}", event.stream))?;
        let of_deletion = deletion.and_then(|(at, content)| {
            let deleted: StreamDeletion = serde_json::from_slice(&content).ok()?;
            (at.offset >= cleared_at && event.position < deleted.before).then_some(at.offset)
        });
        Ok(of_message.max(of_deletion))
    }

    /// Offset of the newest message in a list at or after a position, or only at that position, because an import can
    /// use any free one.
    fn newest_from(&self, list: &ListId, place: u64, alone: bool) -> IndexReadResult<Option<Offset>> {
        // Without imports, offsets increase with the positions.
        let (from, direction) = match alone || self.index.read().state.has_imports {
            true => (Some(place), Direction::Forward),
            false => (None, Direction::Backward),
        };
        let mut newest = None;
        self.walk(list, from, direction, Io::MayBlock, &mut |row| {
            let is_of_these = if alone {
                row.ordinal == place
            } else {
                row.ordinal >= place
            };
            newest = newest.max(is_of_these.then_some(row.offset));
            Ok(is_of_these && direction == Direction::Forward)
        })?;
        Ok(newest)
    }

    /// With several gaps, the first one is chosen. Messages between the gaps may have been removed or not, and no
    /// acknowledged message is hidden without proof.
    fn first_gap(&self, from: Offset, to: Offset) -> IndexReadResult<Option<Range<Offset>>> {
        let (log, mut at, mut gap, mut hole) = (self.place.log.as_ref(), from, None, None);
        while at < to && gap.is_none() {
            at = frames(log, self.partition, at, &mut |passed| match passed {
                ReplayItem::Gap(own) if own.start < to => drop(gap.get_or_insert(own)),
                ReplayItem::Hole(own) if own.start < to => drop(hole.get_or_insert(own)),
                _ => {}
            })?;
        }
        Ok(gap.or(hole))
    }

    /// The newest clearing, if only the indexes know it. Blocks.
    fn lost_clear(&self) -> IndexReadResult<Option<Offset>> {
        let state = self.index.read().state;
        if state.generation() == 0 {
            return Ok(None);
        }
        let record = self.reading(Io::MayBlock).record(state.cleared_at)?;
        let is_there =
            record.is_some_and(|(value, time)| PartitionRecord::decode(&value, time) == Some(PartitionRecord::Cleared));
        let said = || -> IndexReadResult<Option<Offset>> {
            let document = self.own_document(CLEARED)?;
            Ok(document.and_then(|(_, content)| decoded(&content)))
        };
        let is_known = is_there || said()? == Some(state.cleared_at);
        Ok((!is_known).then_some(state.cleared_at))
    }
}

/// The clearing that a document names.
pub(in super::super) fn decoded(content: &[u8]) -> Option<Offset> {
    varint::take(content).map(|(offset, _)| offset)
}

/// Records clearings that the log has lost in a document. Blocks.
pub(in super::super) fn say_again(inner: &StoreInner) {
    let runtime = tokio::runtime::Handle::current();
    for namespace in inner.all() {
        // Read errors are reported when the data is needed, and nothing is given up yet.
        let Ok(Some(lost)) = namespace.lost_clear() else {
            continue;
        };
        let said: Result<_> = threads::block_on(&runtime, async {
            inner.catalog.lock().await.needs(catalog::CLEARS, inner.now()).await?;
            let mut content = Vec::new();
            varint::put(&mut content, lost);
            namespace.put_own(CLEARED, Some(&content)).await
        });
        match said {
            Ok(_) => tracing::warn!(
                namespace = namespace.about().name,
                offset = lost,
                "the log lost the record that cleared all messages before this offset, in damaged data that was given \
                 up; the record was stored again, and the messages stay removed"
            ),
            Err(error) => tracing::error!(
                namespace = namespace.about().name,
                offset = lost,
                %error,
                "the log lost the record that cleared all messages before this offset, in damaged data that was given \
                 up; the record could not be stored again, and the next start will retry"
            ),
        }
    }
}
