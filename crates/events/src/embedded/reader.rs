//! Messages by their offsets in the log.

use std::sync::Arc;

use thalweg_log::format::frame::Kind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Frame, Log, LogError, Offset, PartitionId, ReadWant};

use crate::error::{EventsError, Result};
use crate::event::Stored;

/// Bytes of messages that one page takes, beyond its first.
const PAGE_BYTES: usize = 4 << 20;

/// Of what was asked for, what fits into a page, in that order.
/// `in_memory`: no disk is ever waited for.
pub(crate) async fn fetch(
    log: &Arc<dyn Log>,
    in_memory: bool,
    id: PartitionId,
    offsets: Vec<Offset>,
) -> Result<Vec<Stored>> {
    if let Some(found) = Reading::new(log.as_ref(), id, in_memory).all(&offsets)? {
        return Ok(found);
    }
    let log = log.clone();
    let read = move || Reading::new(log.as_ref(), id, true).all(&offsets);
    let read = tokio::task::spawn_blocking(read).await;
    let found = read.unwrap_or_else(|_| Err(LogError::Closed.into()))?;
    Ok(found.unwrap_or_default())
}

struct Reading<'a> {
    log: &'a dyn Log,
    id: PartitionId,
    may_block: bool,
    /// The frame that was read last: the next message is often in it.
    walk: Option<Walk>,
}

/// A way through the records of a frame.
struct Walk {
    frame: Frame,
    /// Byte of the body at which the next record begins, and which of the frame's it is.
    at: usize,
    ordinal: u64,
}

impl<'a> Reading<'a> {
    fn new(log: &'a dyn Log, id: PartitionId, may_block: bool) -> Reading<'a> {
        Reading {
            log,
            id,
            may_block,
            walk: None,
        }
    }

    /// `None` if a disk has to be read and may not be.
    fn all(&mut self, offsets: &[Offset]) -> Result<Option<Vec<Stored>>> {
        let mut out = Vec::with_capacity(offsets.len());
        let mut bytes = 0;
        for offset in offsets {
            let Some(stored) = self.one(*offset)? else {
                return Ok(None);
            };
            bytes += stored.bytes();
            if bytes > PAGE_BYTES && !out.is_empty() {
                break;
            }
            out.push(stored);
        }
        Ok(Some(out))
    }

    fn one(&mut self, offset: Offset) -> Result<Option<Stored>> {
        let here = |walk: &Walk| walk.frame.header.base + walk.ordinal <= offset && offset < walk.frame.header.next();
        if !self.walk.as_ref().is_some_and(here) {
            let frames = match self.log.newest(self.id, offset, 1)? {
                Some(frames) => frames,
                None if !self.may_block => return Ok(None),
                None => self.log.read(
                    self.id,
                    offset,
                    ReadWant {
                        bytes: 1,
                        synced: false,
                    },
                )?,
            };
            self.walk = frames.into_iter().next().map(|frame| Walk {
                frame,
                at: 0,
                ordinal: 0,
            });
        }
        let found = self.walk.as_mut().and_then(|walk| walk.to(offset));
        found.map(Some).ok_or_else(|| self.missing(offset))
    }

    fn missing(&self, offset: Offset) -> EventsError {
        EventsError::Damaged(format!("no message is at offset {offset} of partition {}", self.id))
    }
}

impl Walk {
    /// Goes on to an offset that is in this frame, not before the last one.
    fn to(&mut self, offset: Offset) -> Option<Stored> {
        if self.frame.header.kind != Kind::Data {
            return None;
        }
        let base = self.frame.header.base;
        loop {
            let rest = self.frame.body.get(self.at..)?;
            let (record, after) = RecordRef::take(rest)?;
            let own = base + record.delta.map_or(self.ordinal, u64::from);
            let found = (own == offset).then(|| Stored::new(self.frame.body.slice_ref(record.value), record.time));
            if own > offset {
                return None;
            }
            self.at = self.frame.body.len() - after.len();
            self.ordinal = own - base + 1;
            if let Some(found) = found {
                return found;
            }
        }
    }
}
