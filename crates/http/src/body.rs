//! Reads the whole body of a request within limits on its size, its time and the memory of all bodies. A body is
//! complete, or there is a [`BodyFault`], which each protocol reports in its own words. What is left of a refused body
//! is read and discarded.
//!
//! A body that is announced as too large is refused before it is read. Memory is reserved for bytes that have arrived,
//! not for those announced; otherwise a few clients that announce much and send nothing would keep all others out. So
//! half-read bodies can wait for each other. This ends when the first has waited for [`ROOM_PATIENCE`]: it is refused,
//! and its memory goes to the others. The listener limits how slowly a body may arrive.

use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use bytes::{Bytes, BytesMut};
use thalweg_kit::byte_budget::ByteReservation;
use tokio::time::timeout;

/// How long a body waits for memory.
pub const ROOM_PATIENCE: Duration = Duration::from_secs(10);
/// How long the rest of a refused body is read.
pub const DRAIN_TIME_MAX: Duration = Duration::from_secs(5);
/// How much of the rest of a refused body is read.
pub const DRAIN_BYTES_MAX: usize = 128 << 20;

/// What a body may take.
#[derive(Clone, Copy, Debug)]
pub struct BodyRules {
    /// In bytes.
    pub limit: usize,
    /// The whole body arrives within this time, waits for memory included. `None`: the listener alone limits it.
    pub within: Option<Duration>,
    /// How long each piece waits for memory. With [`Duration::ZERO`] a body is refused at once.
    pub room_patience: Duration,
}

impl BodyRules {
    /// A limit in bytes, with the patience of all faces.
    pub fn up_to(limit: usize) -> BodyRules {
        BodyRules {
            limit,
            within: None,
            room_patience: ROOM_PATIENCE,
        }
    }
}

/// Why there is no whole body.
#[derive(Debug)]
pub enum BodyFault {
    /// It has more bytes than this.
    TooLarge { limit: usize },
    /// Memory for its first `bytes` bytes was not free in time.
    NoRoom { bytes: usize },
    /// The client has left, or a layer below has refused the body.
    EndedEarly(axum::Error),
    /// It did not arrive within this time.
    TooSlow { within: Duration },
}

/// The memory of a body, which grows while the body arrives.
pub trait BodyRoom {
    /// Makes room for the first `bytes` bytes of the body, and waits at most `patience` for it. `false`: there is none.
    fn cover(&mut self, bytes: usize, patience: Duration) -> impl Future<Output = bool> + Send;
}

impl BodyRoom for ByteReservation {
    async fn cover(&mut self, bytes: usize, patience: Duration) -> bool {
        let more = bytes.saturating_sub(self.bytes());
        self.grow_within(more, patience).await
    }
}

/// For bodies that are so small that nothing counts them.
impl BodyRoom for () {
    async fn cover(&mut self, _: usize, _: Duration) -> bool {
        true
    }
}

/// Returns the whole body and its memory, which the caller keeps as long as the bytes. A body of one piece is not
/// copied. If the body is refused, its rest has been read by [`drain`] when this returns.
pub async fn collect<R: BodyRoom>(mut body: Body, rules: BodyRules, room: R) -> Result<(Bytes, R), BodyFault> {
    let gathering = gather(&mut body, rules, room);
    let gathered = match rules.within {
        None => gathering.await,
        Some(within) => {
            let gathered = timeout(within, gathering).await;
            gathered.unwrap_or(Err(BodyFault::TooSlow { within }))
        }
    };
    // After the other faults nothing more is expected.
    let goes_on = matches!(gathered, Err(BodyFault::TooLarge { .. } | BodyFault::NoRoom { .. }));
    if goes_on {
        drain(&mut body).await;
    }
    gathered
}

/// Memory and bytes are gone when this fails, so that reading on holds nothing.
async fn gather<R: BodyRoom>(body: &mut Body, rules: BodyRules, mut room: R) -> Result<(Bytes, R), BodyFault> {
    let limit = rules.limit;
    if body.size_hint().lower() > limit as u64 {
        return Err(BodyFault::TooLarge { limit });
    }
    let mut whole = BodyBuffer::default();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
        let Ok(piece) = frame.map_err(BodyFault::EndedEarly)?.into_data() else {
            continue;
        };
        let bytes = whole.len() + piece.len();
        if bytes > limit {
            return Err(BodyFault::TooLarge { limit });
        }
        if !room.cover(bytes, rules.room_patience).await {
            return Err(BodyFault::NoRoom { bytes });
        }
        whole.push(piece);
    }
    Ok((whole.into_bytes(), room))
}

/// Reads and discards the rest of a refused body, at most [`DRAIN_BYTES_MAX`], and for at most [`DRAIN_TIME_MAX`]. A
/// client that still sends when its connection closes may never see the answer, take its request for lost, and send it
/// again.
pub async fn drain(body: &mut Body) {
    drain_within(body, DRAIN_BYTES_MAX, DRAIN_TIME_MAX).await;
}

async fn drain_within(body: &mut Body, bytes_max: usize, time_max: Duration) {
    let reading_on = async {
        let mut left = bytes_max;
        while left > 0
            && let Some(Ok(frame)) = std::future::poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await
        {
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    // What arrives later finds the connection closed.
    let _ = timeout(time_max, reading_on).await;
}

/// Collected pieces; a body of one piece is not copied.
#[derive(Default)]
struct BodyBuffer {
    first: Bytes,
    rest: BytesMut,
}

impl BodyBuffer {
    fn len(&self) -> usize {
        self.first.len() + self.rest.len()
    }

    fn push(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.first = piece;
            return;
        }
        if self.rest.is_empty() {
            self.rest.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.rest.extend_from_slice(&piece);
    }

    fn into_bytes(self) -> Bytes {
        match self.rest.is_empty() {
            true => self.first,
            false => self.rest.freeze(),
        }
    }
}

#[cfg(test)]
mod tests;
