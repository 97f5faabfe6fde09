//! Reads request bodies within a shared memory budget: a body is read once there is room for it and for the text made
//! from it, so no number of clients can exceed the budget. A body that waits too long for room is refused.

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use bytes::Bytes;
use thalweg_events::json;
use thalweg_http::body::{BodyFault, BodyRoom, BodyRules, collect};
use thalweg_http::compression::{ContentCoding, DecodeError, decode, decoded_len};
use thalweg_kit::blocking;
use thalweg_kit::byte_budget::ByteReservation;

use crate::error_kind::EventsApiErrorKind;
use crate::memory::{MemoryBudget, SMALL_MAX};
use crate::problem::{Problem, Result};

/// In bytes, as sent and after decompression.
const BODY_MAX: usize = 100 << 20;
/// How many times as large a compressed body usually becomes at most. One that becomes larger needs more room later.
const RATIO_USUAL: usize = 8;
/// Bytes that are decompressed in the time in which one is read.
const DECODING_COST: usize = 64;

/// The text of a call without white space. It keeps its share of the memory budget until it is dropped.
pub(crate) struct CallBody {
    pub text: String,
    _held: Option<ByteReservation>,
}

/// The memory of a call. It takes the room for all announced bytes when the first of them are there. If large calls
/// took it bit by bit, several would have parts of the share and wait for each other.
struct CallRoom<'a> {
    memory: &'a MemoryBudget,
    declared: Option<usize>,
    held: Option<ByteReservation>,
}

impl BodyRoom for CallRoom<'_> {
    async fn cover(&mut self, bytes: usize, patience: Duration) -> bool {
        if self.held.is_some() {
            return true;
        }
        let whole = match self.declared {
            Some(declared) => declared,
            None if bytes <= SMALL_MAX => return true,
            None => BODY_MAX,
        };
        self.held = self.memory.for_call(whole, patience).await;
        self.held.is_some()
    }
}

/// Reads a call completely.
pub(crate) async fn read(memory: &MemoryBudget, body: Body, coding: Option<ContentCoding>) -> Result<CallBody> {
    read_by(memory, body, coding, BodyRules::up_to(BODY_MAX)).await
}

async fn read_by(
    memory: &MemoryBudget,
    body: Body,
    coding: Option<ContentCoding>,
    rules: BodyRules,
) -> Result<CallBody> {
    let declared = body.size_hint().exact();
    // More than can be counted is refused as too large.
    let declared = declared.map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let room = CallRoom {
        memory,
        declared: match coding {
            None => declared,
            Some(_) => declared.map(|bytes| bytes.saturating_mul(RATIO_USUAL).min(BODY_MAX)),
        },
        held: None,
    };
    let (bytes, room) = collect(body, rules, room).await.map_err(problem_of)?;
    let (bytes, held) = match coding {
        None => (bytes, room.held),
        Some(coding) => decoded(room, coding, bytes, rules.room_patience).await?,
    };
    if bytes.is_empty() {
        return Err(Problem::malformed("empty body"));
    }
    let text = compact(&bytes)?;
    Ok(CallBody { text, _held: held })
}

/// Decompresses a body. Its size is counted first, so that it takes room for what it has and for no more.
async fn decoded(
    room: CallRoom<'_>,
    coding: ContentCoding,
    packed: Bytes,
    patience: Duration,
) -> Result<(Bytes, Option<ByteReservation>)> {
    let cost = packed.len().saturating_mul(DECODING_COST);
    let len = blocking::work(cost, || decoded_len(coding, &packed, BODY_MAX)).map_err(undecodable)?;
    let held = room.memory.for_decoded_call(room.held, len, patience).await;
    let held = held.ok_or_else(Problem::no_room)?;
    let bytes = blocking::work(len, || decode(coding, &packed, len)).map_err(undecodable)?;
    Ok((bytes, Some(held)))
}

fn undecodable(error: DecodeError) -> Problem {
    match error {
        DecodeError::TooLarge { limit } => {
            let message = format!("Request body exceeds {limit} bytes after decompression");
            Problem::new(EventsApiErrorKind::PayloadTooLarge, message)
        }
        DecodeError::Ratio => Problem::new(EventsApiErrorKind::PayloadTooLarge, error.to_string()),
        DecodeError::Malformed { .. } | DecodeError::Window => Problem::malformed(&error.to_string()),
    }
}

fn problem_of(fault: BodyFault) -> Problem {
    match fault {
        BodyFault::TooLarge { limit } => {
            let message = format!("Request body exceeds {limit} bytes");
            Problem::new(EventsApiErrorKind::PayloadTooLarge, message)
        }
        BodyFault::NoRoom { .. } => Problem::no_room(),
        // The listener replaces the answer to a body that is too slow for it.
        BodyFault::EndedEarly(_) | BodyFault::TooSlow { .. } => Problem::malformed("the request ended early"),
    }
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

    use futures::{StreamExt as _, stream};

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
            match read(&memory, body, None).await {
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
        let first = read(&memory, body(400 << 10), None).await.unwrap();
        let mut second = std::pin::pin!(read(&memory, body(400 << 10), None));
        assert!(futures::poll!(second.as_mut()).is_pending(), "the first has most of it");
        assert!(
            read(&memory, body(100), None).await.is_ok(),
            "a small one waits for none of them"
        );
        drop(first);
        assert_eq!(second.await.unwrap().text, "[]");
        assert!(
            read(&memory, body(2 << 20), None).await.is_ok(),
            "one larger than all goes alone"
        );
    }

    #[tokio::test]
    async fn a_body_that_finds_no_memory_in_time_is_refused_and_may_come_again() {
        let memory = MemoryBudget::new(4 << 20, 1 << 20);
        let rules = BodyRules {
            room_patience: Duration::from_millis(20),
            ..BodyRules::up_to(BODY_MAX)
        };
        let declared = || Body::from([vec![b' '; 400 << 10], b"[]".to_vec()].concat());
        let first = read(&memory, declared(), None).await.unwrap();
        for body in [declared(), of_pieces(2, 400 << 10)] {
            let refused = read_by(&memory, body, None, rules).await.err().unwrap();
            assert_eq!((refused.status().as_u16(), refused.code()), (503, "UNAVAILABLE"));
            assert_eq!(refused.answer().headers()["retry-after"], "1");
        }
        drop(first);
        assert!(read_by(&memory, declared(), None, rules).await.is_ok());
    }
}
