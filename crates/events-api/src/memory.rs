//! The memory budget of calls and their responses, all of them together.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::problem::{Problem, Result};

/// The largest small call. A call of unknown length may grow to this before it takes a share of the large pool.
pub(crate) const SMALL_MAX: usize = 64 << 10;
/// Bytes per permit.
const UNIT: usize = 4096;
/// A response up to this size needs no permit: each connection buffers as much anyway.
const ANSWER_FREE_MAX: usize = 16 << 10;
/// A response up to this size never waits for a larger one.
const ANSWER_SMALL_MAX: usize = 1 << 20;
/// The memory of an import, in largest messages: a batch, a line, what is made from it, and what was read with it.
const IMPORT_MESSAGES: usize = 4;

/// The budget in quarters: for small calls, so that they never wait for large ones; for large calls; for imports, which
/// take long; and, in two halves, for responses and events on their way to clients, which may be slow.
pub(crate) struct MemoryBudget {
    small: PermitPool,
    large: PermitPool,
    imports: PermitPool,
    small_answers: PermitPool,
    large_answers: PermitPool,
    import_bytes: usize,
}

struct PermitPool {
    units: usize,
    free: Arc<Semaphore>,
}

impl PermitPool {
    fn new(bytes: usize) -> PermitPool {
        let units = (bytes / UNIT).clamp(1, u32::MAX as usize);
        PermitPool {
            units,
            free: Arc::new(Semaphore::new(units)),
        }
    }

    /// A request larger than the pool takes all of it.
    fn units(&self, bytes: usize) -> u32 {
        bytes.div_ceil(UNIT).clamp(1, self.units) as u32
    }

    /// Waits until this much is free.
    async fn take(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let taken = self.free.clone().acquire_many_owned(self.units(bytes)).await;
        taken.map_err(|_| Problem::stopping())
    }

    /// Takes the permits only if they are free now.
    fn take_now(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.free.clone().try_acquire_many_owned(self.units(bytes)).ok()
    }
}

impl MemoryBudget {
    pub fn new(bytes: usize, message_bytes_max: usize) -> MemoryBudget {
        MemoryBudget {
            small: PermitPool::new(bytes / 4),
            large: PermitPool::new(bytes / 4),
            imports: PermitPool::new(bytes / 4),
            small_answers: PermitPool::new(bytes / 8),
            large_answers: PermitPool::new(bytes / 8),
            import_bytes: IMPORT_MESSAGES * message_bytes_max.max(16 << 20),
        }
    }

    /// For a body and the text made from it.
    pub async fn for_call(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let share = if bytes > SMALL_MAX { &self.large } else { &self.small };
        share.take(2 * bytes).await
    }

    /// For a backup: what it reads at once, and what is made from it.
    pub async fn for_backup(&self) -> Result<OwnedSemaphorePermit> {
        self.imports.take(self.import_bytes / 2).await
    }

    pub async fn for_import(&self) -> Result<OwnedSemaphorePermit> {
        self.imports.take(self.import_bytes).await
    }

    /// For a response of this size and its source, if there is room now.
    pub fn room_now(&self, bytes: usize) -> Option<ResponsePermit> {
        if bytes <= ANSWER_FREE_MAX {
            return Some(ResponsePermit::default());
        }
        let permit = self.answers(bytes).take_now(2 * bytes)?;
        Some(ResponsePermit::new(permit, bytes))
    }

    /// Waits for the same room. The caller must not have the response in memory while it waits.
    pub async fn room(&self, bytes: usize) -> Result<ResponsePermit> {
        match self.room_now(bytes) {
            Some(room) => Ok(room),
            None => Ok(ResponsePermit::new(self.answers(bytes).take(2 * bytes).await?, bytes)),
        }
    }

    fn answers(&self, bytes: usize) -> &PermitPool {
        match bytes > ANSWER_SMALL_MAX {
            true => &self.large_answers,
            false => &self.small_answers,
        }
    }

    /// Reads, and gets room for the result. A result without room is dropped and read again once there is room.
    pub async fn read<T, F>(&self, read: impl Fn() -> F, bytes_of: impl Fn(&T) -> usize) -> Result<(T, ResponsePermit)>
    where
        F: Future<Output = Result<T>>,
    {
        let mut room = ResponsePermit::default();
        loop {
            let found = read().await?;
            let bytes = bytes_of(&found);
            if room.is_for(self, bytes) {
                return Ok((found, room));
            }
            // The size has changed since the last read.
            drop(std::mem::take(&mut room));
            if let Some(room) = self.room_now(bytes) {
                return Ok((found, room));
            }
            drop(found);
            room = self.room(bytes).await?;
        }
    }
}

/// The room of a response until it is sent.
#[derive(Clone, Default)]
pub(crate) struct ResponsePermit(Option<Arc<HeldPermit>>);

struct HeldPermit {
    permit: OwnedSemaphorePermit,
    is_large: bool,
}

impl ResponsePermit {
    fn new(permit: OwnedSemaphorePermit, bytes: usize) -> ResponsePermit {
        let is_large = bytes > ANSWER_SMALL_MAX;
        ResponsePermit(Some(Arc::new(HeldPermit { permit, is_large })))
    }

    /// Whether the room is large enough, and from the right pool.
    pub fn is_for(&self, memory: &MemoryBudget, bytes: usize) -> bool {
        let is_free = bytes <= ANSWER_FREE_MAX;
        match &self.0 {
            None => is_free,
            Some(held) => {
                let enough = memory.answers(bytes).units(2 * bytes) as usize;
                !is_free && held.is_large == (bytes > ANSWER_SMALL_MAX) && held.permit.num_permits() >= enough
            }
        }
    }

    /// The text, which keeps the room until the last part of it is dropped.
    pub fn hold(&self, text: String) -> Bytes {
        match &self.0 {
            None => Bytes::from(text),
            Some(held) => Bytes::from_owner(ResponseText {
                text,
                _held: held.clone(),
            }),
        }
    }
}

struct ResponseText {
    text: String,
    _held: Arc<HeldPermit>,
}

impl AsRef<[u8]> for ResponseText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn an_answer_has_its_room_until_the_last_of_it_is_gone() {
        let memory = MemoryBudget::new(8 << 20, 1 << 20);
        let room = memory.room_now(400 << 10).unwrap();
        let mut sent = room.hold("x".repeat(400 << 10));
        drop(room);
        let part = sent.split_to(100);
        assert!(memory.room_now(400 << 10).is_none());
        assert!(memory.room_now(10 << 10).is_some(), "what is small needs none");
        assert!(memory.room_now(2 << 20).is_some(), "what is large has its own");
        drop(sent);
        assert!(memory.room_now(400 << 10).is_none());
        drop(part);
        assert!(memory.room_now(400 << 10).is_some());
    }

    #[tokio::test]
    async fn what_there_is_no_room_for_is_read_again_when_there_is() {
        let memory = MemoryBudget::new(8 << 20, 1 << 20);
        let held = memory.room_now(400 << 10).unwrap().hold("x".to_owned());
        let reads = AtomicUsize::new(0);
        let read = || async {
            reads.fetch_add(1, SeqCst);
            Ok(300 << 10)
        };
        let mut reading = std::pin::pin!(memory.read(read, |bytes| *bytes));
        let early = tokio::time::timeout(Duration::from_millis(50), &mut reading).await;
        assert!(early.is_err() && reads.load(SeqCst) == 1);
        drop(held);
        let (bytes, room) = reading.await.unwrap();
        assert_eq!((bytes, reads.load(SeqCst)), (300 << 10, 2));
        assert!(room.is_for(&memory, 300 << 10));
        // A request larger than the pool gets all of it.
        drop(room);
        assert!(memory.read(|| async { Ok(100 << 20) }, |bytes| *bytes).await.is_ok());
    }
}
