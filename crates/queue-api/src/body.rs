//! Reads the body of a request, within its own limit and a memory limit for all bodies together.
//!
//! A body announced as larger than its limit is refused before it is read. Memory is reserved for bytes that have
//! arrived, not for those announced; otherwise a few clients that announce much and send nothing would block all
//! others. So half-read bodies can wait for each other. This ends when the first has waited for [`PATIENCE`]: it is
//! refused, and its memory goes to the others. The listener limits how slowly a body may arrive.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::problem::{Problem, Result};

const PERMIT_BYTES: usize = 1 << 10;
/// How long a body waits for room.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a refused body is still read.
const READ_ON_MAX: Duration = Duration::from_secs(1);

/// The memory limit for the bodies of all requests.
pub struct BodyBudget {
    room: Arc<Semaphore>,
    bytes_max: usize,
    patience: Duration,
}

/// The memory of a body, until it is dropped.
#[derive(Default)]
pub struct BodyPermit(Option<OwnedSemaphorePermit>);

impl BodyBudget {
    pub fn within(bytes_max: usize) -> BodyBudget {
        BodyBudget::of(bytes_max, PATIENCE)
    }

    fn of(bytes_max: usize, patience: Duration) -> BodyBudget {
        let room = Arc::new(Semaphore::new(bytes_max / PERMIT_BYTES));
        BodyBudget {
            room,
            bytes_max,
            patience,
        }
    }

    /// The whole body, if it has at most `limit` bytes; `limit_of` says in an error what is limited and how to stay
    /// below it.
    pub async fn read(
        &self,
        body: Body,
        declared: Option<usize>,
        limit: usize,
        limit_of: &str,
    ) -> Result<(Bytes, BodyPermit)> {
        let mut chunks = body.into_data_stream();
        let too_large = || Problem::too_large(format!("the body has more than {limit} bytes, {limit_of}"));
        if declared.is_some_and(|length| length > limit) {
            read_on(&mut chunks).await;
            return Err(too_large());
        }
        let (mut whole, mut room) = (BodyBuffer::default(), BodyPermit::default());
        while let Some(chunk) = chunks.next().await {
            let chunk = chunk.map_err(|_| Problem::invalid("the body ends early; send it again"))?;
            let length = whole.len() + chunk.len();
            if length > limit {
                drop((whole, room));
                read_on(&mut chunks).await;
                return Err(too_large());
            }
            if let Err(problem) = self.make_room(&mut room, length).await {
                drop((whole, room, chunk));
                read_on(&mut chunks).await;
                return Err(problem);
            }
            whole.push(chunk);
        }
        Ok((whole.done(), room))
    }

    /// Makes the permit cover this many bytes in all.
    async fn make_room(&self, room: &mut BodyPermit, bytes: usize) -> Result<()> {
        let missing = bytes.div_ceil(PERMIT_BYTES).saturating_sub(room.permits());
        if missing == 0 {
            return Ok(());
        }
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let more = match self.room.clone().try_acquire_many_owned(missing) {
            Ok(more) => Some(more),
            Err(_) => {
                let waited = timeout(self.patience, self.room.clone().acquire_many_owned(missing)).await;
                waited.ok().and_then(|more| more.ok())
            }
        };
        match (&mut room.0, more) {
            (Some(permits), Some(more)) => permits.merge(more),
            (none, Some(more)) => *none = Some(more),
            (_, None) => return Err(Problem::too_many_bodies(self.bytes_max)),
        }
        Ok(())
    }
}

impl BodyPermit {
    fn permits(&self) -> usize {
        self.0.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }
}

/// A client that is still sending when the connection closes may never see the answer.
async fn read_on(chunks: &mut BodyDataStream) {
    let to_the_end = async { while let Some(Ok(_)) = chunks.next().await {} };
    let _ = timeout(READ_ON_MAX, to_the_end).await;
}

/// Collected chunks; a body of one chunk is not copied.
#[derive(Default)]
struct BodyBuffer {
    first: Bytes,
    rest: BytesMut,
}

impl BodyBuffer {
    fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    fn push(&mut self, chunk: Bytes) {
        if self.len() == 0 {
            self.first = chunk;
        } else {
            if self.rest.is_empty() {
                self.rest.extend_from_slice(&self.first);
                self.first.clear();
            }
            self.rest.extend_from_slice(&chunk);
        }
    }

    fn done(self) -> Bytes {
        match self.rest.is_empty() {
            true => self.first,
            false => self.rest.freeze(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::channel::mpsc::{UnboundedSender, unbounded};

    use super::*;

    const KIB: usize = 1 << 10;
    /// Longer than any test waits.
    const LONG: Duration = Duration::from_secs(600);

    fn body() -> (UnboundedSender<std::result::Result<Bytes, Infallible>>, Body) {
        let (sender, chunks) = unbounded();
        (sender, Body::from_stream(chunks))
    }

    fn kib(count: usize) -> std::result::Result<Bytes, Infallible> {
        Ok(vec![b'x'; count * KIB].into())
    }

    #[tokio::test]
    async fn who_announces_much_and_sends_nothing_takes_no_room() {
        let bodies = Arc::new(BodyBudget::of(8 * KIB, LONG));
        let mut silent = Vec::new();
        for _ in 0..100 {
            let (sender, chunks) = body();
            let reading = bodies.clone();
            let read = tokio::spawn(async move { reading.read(chunks, Some(8 * KIB), 8 * KIB, "").await });
            silent.push((sender, read));
        }
        tokio::task::yield_now().await;
        let (whole, room) = bodies
            .read(vec![b'x'; 8 * KIB].into(), None, 8 * KIB, "")
            .await
            .unwrap();
        assert_eq!((whole.len(), room.permits()), (8 * KIB, 8));
        assert!(silent.iter().all(|(_, read)| !read.is_finished()));
    }

    #[tokio::test]
    async fn a_body_waits_for_room_and_gives_it_back_with_its_answer() {
        let bodies = Arc::new(BodyBudget::of(8 * KIB, LONG));
        let (_, first) = bodies
            .read(vec![b'x'; 5 * KIB].into(), None, 8 * KIB, "")
            .await
            .unwrap();
        let (sender, chunks) = body();
        let reading = bodies.clone();
        let read = tokio::spawn(async move { reading.read(chunks, None, 8 * KIB, "").await });
        for _ in 0..2 {
            sender.unbounded_send(kib(2)).unwrap();
        }
        drop(sender);
        while bodies.room.available_permits() > 1 {
            tokio::task::yield_now().await;
        }
        assert!(!read.is_finished());
        drop(first);
        let (whole, room) = read.await.unwrap().unwrap();
        assert_eq!((whole.len(), room.permits()), (4 * KIB, 4));
        drop(room);
        assert_eq!(bodies.room.available_permits(), 8);
    }

    #[tokio::test]
    async fn of_bodies_that_wait_for_each_other_one_is_refused_and_the_other_goes_on() {
        let bodies = Arc::new(BodyBudget::of(8 * KIB, Duration::from_millis(200)));
        let begin = || {
            let (sender, chunks) = body();
            let reading = bodies.clone();
            sender.unbounded_send(kib(4)).unwrap();
            let read = tokio::spawn(async move { reading.read(chunks, None, 8 * KIB, "").await });
            (sender, read)
        };
        let (both, reads): (Vec<_>, Vec<_>) = [begin(), begin()].into_iter().unzip();
        while bodies.room.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        for sender in both {
            sender.unbounded_send(kib(3)).unwrap();
        }
        let (mut taken, mut refused) = (0, 0);
        for read in reads {
            match read.await.unwrap() {
                Ok((whole, _)) => taken += usize::from(whole.len() == 7 * KIB),
                Err(problem) => {
                    assert_eq!((problem.status(), problem.code()), (429, "too_many_pending"));
                    assert!(
                        problem.retry_after.is_some() && problem.detail.contains("8192 bytes"),
                        "{problem:?}"
                    );
                    refused += 1;
                }
            }
        }
        assert_eq!((taken, refused), (1, 1));
        assert_eq!(
            bodies.room.available_permits(),
            8,
            "what was refused or dropped holds nothing"
        );
    }

    #[tokio::test]
    async fn a_body_beyond_its_limit_is_refused_announced_or_not() {
        let bodies = BodyBudget::within(256 << 20);
        for (declared, length) in [(Some(11), 0), (Some(10), 11), (None, 11)] {
            let refused = bodies
                .read(vec![b'x'; length].into(), declared, 10, "the most here")
                .await;
            assert_eq!(
                refused.err().map(|problem| problem.status()),
                Some(413),
                "{declared:?} {length}"
            );
        }
        assert_eq!(
            bodies
                .read(vec![b'x'; 10].into(), Some(10), 10, "")
                .await
                .unwrap()
                .0
                .len(),
            10
        );
    }
}
