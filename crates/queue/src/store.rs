//! The messages of a partition: stored in the log, or, for queues of durability `memory`, only in memory.

mod cursor;
mod memory;

use std::sync::Arc;

use thalweg_log::clock::Clock;
use thalweg_log::{Log, LogError, Micros, Offset, PartitionId, ReadOptions};

use crate::message::Message;

pub(crate) use cursor::Cursor;
pub(crate) use memory::MemoryStore;

/// Frames are read in pieces of about this size.
const READ_BYTES: usize = 256 << 10;

pub(crate) enum MessageStore {
    Log {
        log: Arc<dyn Log>,
        id: PartitionId,
        /// Converts wall-clock times that producers set.
        clock: Arc<dyn Clock>,
    },
    Memory(MemoryStore),
}

/// A message and where it was found, or why there is none.
pub(crate) enum NextMessage<M = Message> {
    Message(M, u32),
    /// No message yet.
    End,
    /// Offsets up to this one do not exist; `lost` if they once did.
    Gap {
        to: Offset,
        lost: bool,
    },
    /// The disk must be read first: [`MessageStore::load`] does it, outside of all locks.
    Load,
}

/// Messages that were stored together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoredSpan {
    pub first: Offset,
    pub next: Offset,
    pub bytes: u64,
    /// Append time of the first and of the last message.
    pub time: Micros,
    pub last_time: Micros,
}

/// The oldest messages of a store, about to be trimmed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PendingTrim {
    /// All messages before this offset.
    below: Offset,
    pub count: u64,
    /// For a store in memory they are counted when the messages are trimmed.
    bytes: u64,
}

impl MessageStore {
    pub fn first(&self) -> Result<Offset, LogError> {
        match self {
            MessageStore::Log { log, id, .. } => Ok(log.bounds(*id)?.first),
            MessageStore::Memory(memory) => Ok(memory.bounds().0),
        }
    }

    pub fn next(&self) -> Result<Offset, LogError> {
        match self {
            MessageStore::Log { log, id, .. } => Ok(log.bounds(*id)?.next),
            MessageStore::Memory(memory) => Ok(memory.bounds().1),
        }
    }

    /// A lower bound of the next offset, if one is available without a lock.
    pub fn next_hint(&self) -> Option<Offset> {
        match self {
            MessageStore::Log { .. } => None,
            MessageStore::Memory(memory) => Some(memory.next_hint()),
        }
    }

    /// Bytes of all messages, as [`Queue::size_of`](crate::queue::Queue::size_of) counts them. May read a disk.
    pub fn bytes(&self) -> Result<u64, LogError> {
        self.bytes_before(Offset::MAX)
    }

    /// Bytes of the messages before an offset; for a store in memory, of all. May read a disk.
    pub fn bytes_before(&self, end: Offset) -> Result<u64, LogError> {
        match self {
            MessageStore::Log { log, id, .. } => {
                let bounds = log.bounds(*id)?;
                log.bytes(*id, bounds.first, bounds.next.min(end))
            }
            MessageStore::Memory(memory) => Ok(memory.bytes()),
        }
    }

    /// The messages from `offset` on that were stored together, or the next such span, without reading them; `None` at
    /// the end.
    pub fn span_at(&self, offset: Offset) -> Result<Option<StoredSpan>, LogError> {
        match self {
            MessageStore::Log { log, id, .. } => {
                let Some(frame) = log.frame_at(*id, offset)? else {
                    return Ok(None);
                };
                let first = frame.base.max(offset);
                Ok(Some(StoredSpan {
                    first,
                    next: frame.next(),
                    bytes: log.bytes(*id, first, frame.next())?,
                    time: frame.base_time,
                    last_time: frame.max_time,
                }))
            }
            MessageStore::Memory(memory) => Ok(memory.span_at(offset)),
        }
    }

    /// The first offset whose message may have been appended at `time` or later.
    pub fn offset_at(&self, time: Micros) -> Result<Offset, LogError> {
        match self {
            MessageStore::Log { log, id, .. } => log.offset_at(*id, time),
            MessageStore::Memory(memory) => Ok(memory.offset_at(time)),
        }
    }

    /// Approximate append time of the message at an offset or the next one, without reading it.
    pub fn time_of(&self, offset: Offset) -> Option<Micros> {
        self.span_at(offset).ok()?.map(|span| span.time)
    }

    /// What [`MessageStore::trim`] would remove. May read a disk.
    pub fn weigh(&self, below: Offset) -> Result<PendingTrim, LogError> {
        match self {
            MessageStore::Log { log, id, .. } => {
                let bounds = log.bounds(*id)?;
                let below = below.min(bounds.next);
                if below <= bounds.first {
                    return Ok(PendingTrim::default());
                }
                Ok(PendingTrim {
                    below,
                    count: below - bounds.first,
                    bytes: log.bytes(*id, bounds.first, below)?,
                })
            }
            MessageStore::Memory(memory) => {
                let (first, next) = memory.bounds();
                Ok(PendingTrim {
                    below,
                    count: below.min(next).saturating_sub(first),
                    bytes: 0,
                })
            }
        }
    }

    /// Removes what was weighed, without reading a disk. Returns the number of messages and their bytes. One caller at
    /// a time, from the weighing on.
    pub fn trim(&self, going: PendingTrim) -> Result<(u64, u64), LogError> {
        match self {
            MessageStore::Log { log, id, .. } => {
                log.trim(*id, going.below)?;
                Ok((going.count, going.bytes))
            }
            MessageStore::Memory(memory) => Ok(memory.trim(going.below)),
        }
    }

    /// The message at `from` or the first after it, without reading a disk.
    pub fn at(&self, cursor: &mut Cursor, from: Offset) -> Result<NextMessage, LogError> {
        self.at_with(cursor, from, |message| message)
    }

    /// Like `at`; `take` puts the message in its final place. A message is some hundred bytes, and moving it repeatedly
    /// would cost as much as finding it.
    #[inline]
    pub fn at_with<M>(
        &self,
        cursor: &mut Cursor,
        from: Offset,
        mut take: impl FnMut(Message) -> M,
    ) -> Result<NextMessage<M>, LogError> {
        match self {
            MessageStore::Memory(memory) => Ok(memory.at(from, take)),
            MessageStore::Log { log, id, clock } => {
                if let Some(next) = cursor.at(from, clock.as_ref(), &mut take) {
                    return next;
                }
                match log.newest(*id, from, READ_BYTES) {
                    Ok(Some(frames)) if frames.is_empty() => Ok(NextMessage::End),
                    Ok(Some(frames)) => {
                        cursor.set(frames);
                        cursor.at(from, clock.as_ref(), take).unwrap_or(Ok(NextMessage::End))
                    }
                    Ok(None) => Ok(NextMessage::Load),
                    Err(LogError::Gap { to, .. }) => Ok(NextMessage::Gap { to, lost: false }),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Reads what is needed at `from` from the disk. Blocks.
    pub fn load(&self, from: Offset) -> Result<Cursor, LogError> {
        self.load_some(from, READ_BYTES)
    }

    /// Reads about this many bytes, and at least the message at `from`. Blocks.
    pub fn load_some(&self, from: Offset, bytes: usize) -> Result<Cursor, LogError> {
        let mut cursor = Cursor::default();
        if let MessageStore::Log { log, id, .. } = self {
            let want = ReadOptions { bytes, synced: false };
            match log.read(*id, from, want) {
                Ok(frames) => cursor.set(frames),
                Err(LogError::Gap { to, .. }) => cursor.set_gap(from, to),
                Err(error) => return Err(error),
            }
        }
        Ok(cursor)
    }
}
