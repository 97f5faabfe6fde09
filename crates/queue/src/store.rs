//! Where the messages of a partition are: in the log, or, for queues of durability `memory`, in memory alone.

mod cursor;
mod memory;

use std::sync::Arc;

use thalweg_log::{Log, LogError, Micros, Offset, PartitionId, ReadWant};

use crate::message::Message;

pub(crate) use cursor::Cursor;
pub(crate) use memory::MemoryStore;

/// Frames are asked for in pieces of about this.
const READ_BYTES: usize = 256 << 10;

pub(crate) enum Store {
    Log { log: Arc<dyn Log>, id: PartitionId },
    Memory(MemoryStore),
}

/// A message and where it was found, or why there is none.
pub(crate) enum Next<M = Message> {
    Message(M, u32),
    /// Nothing is there yet.
    End,
    /// Offsets up to this one do not exist; `lost` if they did once.
    Gap {
        to: Offset,
        lost: bool,
    },
    /// The disk has to be read first: [`Store::load`] does it, outside of all locks.
    Load,
}

impl Store {
    pub fn first(&self) -> Result<Offset, LogError> {
        match self {
            Store::Log { log, id } => Ok(log.bounds(*id)?.first),
            Store::Memory(memory) => Ok(memory.bounds().0),
        }
    }

    pub fn next(&self) -> Result<Offset, LogError> {
        match self {
            Store::Log { log, id } => Ok(log.bounds(*id)?.next),
            Store::Memory(memory) => Ok(memory.bounds().1),
        }
    }

    /// Not more than the next offset, if that can be told without a lock.
    pub fn next_hint(&self) -> Option<Offset> {
        match self {
            Store::Log { .. } => None,
            Store::Memory(memory) => Some(memory.next_hint()),
        }
    }

    pub fn bytes(&self) -> Result<u64, LogError> {
        match self {
            Store::Log { log, id } => log.bytes(*id),
            Store::Memory(memory) => Ok(memory.bytes()),
        }
    }

    /// The first offset whose message may have been appended at `time` or later.
    pub fn offset_at(&self, time: Micros) -> Result<Offset, LogError> {
        match self {
            Store::Log { log, id } => log.offset_at(*id, time),
            Store::Memory(memory) => Ok(memory.offset_at(time)),
        }
    }

    /// When the message at an offset was appended, about, if that is known without reading it.
    pub fn time_of(&self, offset: Offset) -> Option<Micros> {
        match self {
            Store::Log { log, id } => log.time_of(*id, offset).ok()?,
            Store::Memory(_) => None,
        }
    }

    /// Lets go of what stands before `below`. Returns how many messages that were.
    pub fn trim(&self, below: Offset) -> Result<u64, LogError> {
        match self {
            Store::Log { log, id } => {
                let bounds = log.bounds(*id)?;
                let below = below.min(bounds.next);
                if below > bounds.first {
                    log.trim(*id, below)?;
                }
                Ok(below.saturating_sub(bounds.first))
            }
            Store::Memory(memory) => Ok(memory.trim(below).0),
        }
    }

    /// The message at `from` or the first behind it, without reading a disk.
    pub fn at(&self, cursor: &mut Cursor, from: Offset) -> Result<Next, LogError> {
        self.at_with(cursor, from, |message| message)
    }

    /// The same; `take` puts the message where it is to stay. It is some hundred bytes, and moving it from hand to hand
    /// would cost as much as finding it.
    #[inline]
    pub fn at_with<M>(
        &self,
        cursor: &mut Cursor,
        from: Offset,
        mut take: impl FnMut(Message) -> M,
    ) -> Result<Next<M>, LogError> {
        match self {
            Store::Memory(memory) => Ok(memory.at(from, take)),
            Store::Log { log, id } => {
                if let Some(next) = cursor.at(from, &mut take) {
                    return next;
                }
                match log.newest(*id, from, READ_BYTES) {
                    Ok(Some(frames)) if frames.is_empty() => Ok(Next::End),
                    Ok(Some(frames)) => {
                        cursor.set(frames);
                        cursor.at(from, take).unwrap_or(Ok(Next::End))
                    }
                    Ok(None) => Ok(Next::Load),
                    Err(LogError::Gap { to, .. }) => Ok(Next::Gap { to, lost: false }),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Reads what is needed at `from` from the disk. Blocks.
    pub fn load(&self, from: Offset) -> Result<Cursor, LogError> {
        let mut cursor = Cursor::default();
        if let Store::Log { log, id } = self {
            let want = ReadWant {
                bytes: READ_BYTES,
                synced: false,
            };
            match log.read(*id, from, want) {
                Ok(frames) => cursor.set(frames),
                Err(LogError::Gap { to, .. }) => cursor.set_gap(from, to),
                Err(error) => return Err(error),
            }
        }
        Ok(cursor)
    }
}
