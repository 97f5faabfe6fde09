//! Reads request bodies within a shared memory budget: a body is read once there is room for it and for the text made
//! from it, so no number of clients can exceed the budget.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody as _};
use futures::{StreamExt as _, TryStreamExt as _};
use thalweg_events::json;
use thalweg_kit::blocking;
use tokio::sync::OwnedSemaphorePermit;

use crate::error_kind::EventsApiErrorKind;
use crate::memory::{MemoryBudget, SMALL_MAX};
use crate::problem::{Problem, Result};

/// In bytes.
const BODY_MAX: usize = 100 << 20;
/// A refused body is read on for at most this long: a client that is still sending when its connection closes may never
/// see the response.
const DRAIN_MAX: Duration = Duration::from_secs(10);
/// The text of a call without white space. It keeps its share of the memory budget until it is dropped.
pub(crate) struct CallBody {
    pub text: String,
    _held: Option<OwnedSemaphorePermit>,
}

/// Reads a call completely.
pub(crate) async fn read(memory: &MemoryBudget, body: Body) -> Result<CallBody> {
    let declared = body.size_hint().exact();
    let mut stream = body.into_data_stream();
    if declared.is_some_and(|bytes| bytes > BODY_MAX as u64) {
        return Err(too_large(&mut stream).await);
    }
    let mut held = match declared {
        Some(bytes) => Some(memory.for_call(bytes as usize).await?),
        None => None,
    };
    let gone = |_| Problem::malformed("the request ended early");
    let Some(first) = stream.try_next().await.map_err(gone)? else {
        return Err(Problem::malformed("empty body"));
    };
    let Some(second) = stream.try_next().await.map_err(gone)? else {
        let text = compact(&first)?;
        return Ok(CallBody { text, _held: held });
    };
    let mut whole = Vec::with_capacity(declared.map_or(0, |bytes| bytes as usize));
    whole.extend_from_slice(&first);
    let mut next = Some(second);
    while let Some(more) = next {
        if whole.len() + more.len() > BODY_MAX {
            drop(whole);
            return Err(too_large(&mut stream).await);
        }
        whole.extend_from_slice(&more);
        if held.is_none() && whole.len() > SMALL_MAX {
            held = Some(memory.for_call(BODY_MAX).await?);
        }
        next = stream.try_next().await.map_err(gone)?;
    }
    let text = compact(&whole)?;
    Ok(CallBody { text, _held: held })
}

async fn too_large(stream: &mut BodyDataStream) -> Problem {
    let _ = tokio::time::timeout(DRAIN_MAX, drain(stream)).await;
    let message = format!("Request body exceeds {BODY_MAX} bytes");
    Problem::new(EventsApiErrorKind::PayloadTooLarge, message)
}

/// Reads to the end, or until the client disconnects.
pub(crate) async fn drain(stream: &mut BodyDataStream) {
    while let Some(Ok(_)) = stream.next().await {}
}

fn compact(bytes: &[u8]) -> Result<String> {
    blocking::work(bytes.len(), || {
        let mut text = String::with_capacity(bytes.len());
        json::compact(bytes, &mut text).map_err(|error| Problem::malformed(&error.to_string()))?;
        Ok(text)
    })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use futures::stream;

    use super::*;

    fn of_pieces(pieces: usize, bytes: usize) -> Body {
        let piece = Bytes::from(vec![b' '; bytes]);
        let spaces = stream::iter((0..pieces).map(move |_| Ok::<_, Infallible>(piece.clone())));
        Body::from_stream(spaces.chain(stream::iter([Ok(Bytes::from_static(b"[1]"))])))
    }

    #[tokio::test]
    async fn what_is_larger_than_the_limit_is_told_so_whether_it_says_so_before_or_not() {
        let memory = MemoryBudget::new(1 << 30, 1 << 20);
        for (body, fits) in [
            (of_pieces(99, 1 << 20), true),
            (of_pieces(100, 1 << 20), false),
            (Body::from(vec![b' '; BODY_MAX + 1]), false),
        ] {
            match read(&memory, body).await {
                Ok(read) => assert!(fits && read.text == "[1]"),
                Err(problem) => {
                    assert!(!fits);
                    assert_eq!(problem.kind, EventsApiErrorKind::PayloadTooLarge);
                    assert_eq!(problem.message, "Request body exceeds 104857600 bytes");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_body_waits_until_there_is_memory_for_it() {
        let memory = MemoryBudget::new(4 << 20, 1 << 20);
        let body = |bytes: usize| Body::from(vec![b' '; bytes].into_iter().chain(*b"[]").collect::<Vec<u8>>());
        let first = read(&memory, body(400 << 10)).await.unwrap();
        let mut second = std::pin::pin!(read(&memory, body(400 << 10)));
        assert!(futures::poll!(second.as_mut()).is_pending(), "the first has most of it");
        assert!(
            read(&memory, body(100)).await.is_ok(),
            "a small one waits for none of them"
        );
        drop(first);
        assert_eq!(second.await.unwrap().text, "[]");
        assert!(
            read(&memory, body(2 << 20)).await.is_ok(),
            "one larger than all goes alone"
        );
    }
}
