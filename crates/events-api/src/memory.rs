//! The memory budget of calls and their responses, all of them together.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_http::compression::AnswerEncoder;
use thalweg_kit::byte_budget::{ByteBudget, ByteReservation};

use crate::problem::Result;

/// The largest small call. A call of unknown length may grow to this before it takes a share of the large pool.
pub(crate) const SMALL_MAX: usize = 64 << 10;
/// A response up to this size needs no room: each connection buffers as much anyway.
const ANSWER_FREE_MAX: usize = 16 << 10;
/// A response up to this size never waits for a larger one.
const ANSWER_SMALL_MAX: usize = 1 << 20;
/// The memory of an import, in largest messages: a batch, a line, what is made from it, and what was read with it.
const IMPORT_MESSAGES: usize = 4;

/// Enough to compress one response.
const ENCODERS_MIN: usize = 2 << 20;

/// The budget in quarters: for small calls, so that they never wait for large ones, and for the compression of responses;
/// for large calls; for imports, which take long; and, in two halves, for responses and events on their way to clients,
/// which may be slow.
pub(crate) struct MemoryBudget {
    small: ByteBudget,
    large: ByteBudget,
    imports: ByteBudget,
    small_answers: ByteBudget,
    large_answers: ByteBudget,
    import_bytes: usize,
    pub encoder: AnswerEncoder,
}

/// Waits until this much is free. A request larger than the pool takes all of it.
async fn take(pool: &ByteBudget, bytes: usize) -> ByteReservation {
    let mut taken = pool.reservation();
    // A pool that clamps has room for any request in the end.
    taken.grow(bytes).await;
    taken
}

/// The same, but `None` if that takes longer.
async fn take_within(pool: &ByteBudget, bytes: usize, patience: Duration) -> Option<ByteReservation> {
    let mut taken = pool.reservation();
    taken.grow_within(bytes, patience).await.then_some(taken)
}

impl MemoryBudget {
    pub fn new(bytes: usize, message_bytes_max: usize) -> MemoryBudget {
        MemoryBudget {
            small: ByteBudget::clamping(bytes / 4 - bytes / 16),
            large: ByteBudget::clamping(bytes / 4),
            imports: ByteBudget::clamping(bytes / 4),
            small_answers: ByteBudget::clamping(bytes / 8),
            large_answers: ByteBudget::clamping(bytes / 8),
            import_bytes: IMPORT_MESSAGES * message_bytes_max.max(16 << 20),
            encoder: AnswerEncoder::new((bytes / 16).max(ENCODERS_MIN)),
        }
    }

    /// For a body and the text made from it. `None`: there was no room for as long as `patience`.
    pub async fn for_call(&self, bytes: usize, patience: Duration) -> Option<ByteReservation> {
        let share = if bytes > SMALL_MAX { &self.large } else { &self.small };
        take_within(share, 2 * bytes, patience).await
    }

    /// For a body that has so many bytes after decompression, and the text made from it. `held` is the room of the
    /// compressed body. `None`: there was no more room for as long as `patience`.
    pub async fn for_decoded_call(
        &self,
        held: Option<ByteReservation>,
        bytes: usize,
        patience: Duration,
    ) -> Option<ByteReservation> {
        match held {
            Some(held) if held.covers(2 * bytes) => Some(held),
            // It grows where it is: what others hold in the same share may be what it waits for.
            Some(mut held) if held.bytes() > 2 * SMALL_MAX || bytes <= SMALL_MAX => {
                let more = (2 * bytes).saturating_sub(held.bytes());
                held.grow_within(more, patience).await.then_some(held)
            }
            _none_or_small => self.for_call(bytes, patience).await,
        }
    }

    /// For a backup: what it reads at once, and what is made from it.
    pub async fn for_backup(&self) -> ByteReservation {
        take(&self.imports, self.import_bytes / 2).await
    }

    /// `None`: there was no room for as long as `patience`.
    pub async fn for_import(&self, patience: Duration) -> Option<ByteReservation> {
        take_within(&self.imports, self.import_bytes, patience).await
    }

    /// For a response of this size and its source, if there is room now.
    pub fn room_now(&self, bytes: usize) -> Option<ResponsePermit> {
        if bytes <= ANSWER_FREE_MAX {
            return Some(ResponsePermit::default());
        }
        let mut taken = self.answers(bytes).reservation();
        taken.try_grow(2 * bytes).then(|| ResponsePermit::new(taken, bytes))
    }

    /// Waits for the same room. The caller must not have the response in memory while it waits.
    pub async fn room(&self, bytes: usize) -> ResponsePermit {
        match self.room_now(bytes) {
            Some(room) => room,
            None => ResponsePermit::new(take(self.answers(bytes), 2 * bytes).await, bytes),
        }
    }

    fn answers(&self, bytes: usize) -> &ByteBudget {
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
            if room.is_for(bytes) {
                return Ok((found, room));
            }
            // The size has changed since the last read.
            drop(std::mem::take(&mut room));
            if let Some(room) = self.room_now(bytes) {
                return Ok((found, room));
            }
            drop(found);
            room = self.room(bytes).await;
        }
    }
}

/// The room of a response until it is sent.
#[derive(Clone, Default)]
pub(crate) struct ResponsePermit(Option<Arc<ResponseRoom>>);

struct ResponseRoom {
    taken: ByteReservation,
    is_large: bool,
}

impl ResponsePermit {
    fn new(taken: ByteReservation, bytes: usize) -> ResponsePermit {
        let is_large = bytes > ANSWER_SMALL_MAX;
        ResponsePermit(Some(Arc::new(ResponseRoom { taken, is_large })))
    }

    /// Whether the room is large enough, and from the right pool.
    pub fn is_for(&self, bytes: usize) -> bool {
        let is_free = bytes <= ANSWER_FREE_MAX;
        match &self.0 {
            None => is_free,
            Some(held) => !is_free && held.is_large == (bytes > ANSWER_SMALL_MAX) && held.taken.covers(2 * bytes),
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
    _held: Arc<ResponseRoom>,
}

impl AsRef<[u8]> for ResponseText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

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
        assert!(room.is_for(300 << 10));
        // A request larger than the pool gets all of it.
        drop(room);
        assert!(memory.read(|| async { Ok(100 << 20) }, |bytes| *bytes).await.is_ok());
    }
}
