//! Measures the memory of the encoders of responses that wait for their clients. A program of its own, because it reads
//! the memory of its process.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::convert::Infallible;
use std::task::Poll;

use axum::body::Body;
use axum::http::header::ACCEPT_ENCODING;
use axum::http::{HeaderMap, HeaderValue, Response};
use bytes::Bytes;
use futures::{StreamExt as _, stream};
use thalweg_http::compression::{AnswerEncoder, accepted_coding};

const RESPONSES: usize = 200;

/// In bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4096
}

#[tokio::test]
async fn an_encoder_has_no_more_memory_than_is_reserved_for_it() {
    // More than any window.
    let numbers: String = (0..150_000).map(|n| format!("{} ", n * 7919 % 1_000_003)).collect();
    let numbers = Bytes::from(numbers);
    for (coding, reserved) in [("gzip", 512 << 10), ("zstd", 1536 << 10)] {
        let encoder = AnswerEncoder::new(RESPONSES * reserved);
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(coding));
        let accepted = accepted_coding(&headers);
        let before = resident();
        let mut open = Vec::new();
        for _ in 0..RESPONSES {
            let piece = Ok::<_, Infallible>(numbers.clone());
            let body = Body::from_stream(stream::iter([piece]).chain(stream::pending()));
            let response = encoder.encode(accepted, Response::new(body));
            assert_eq!(response.headers()["content-encoding"], coding);
            let mut sent = response.into_body().into_data_stream();
            // The client has everything but the end. Between two pieces other tasks have their turn.
            let mut turns = 0;
            while turns < 3 {
                match futures::poll!(sent.next()) {
                    Poll::Ready(piece) => {
                        piece.unwrap().unwrap();
                        turns = 0;
                    }
                    Poll::Pending => turns += 1,
                }
            }
            open.push(sent);
        }
        let each = resident().saturating_sub(before) / RESPONSES;
        assert!(
            each > 64 << 10 && each < reserved,
            "{coding}: {each} of {reserved} bytes"
        );
        let plain = encoder.encode(accepted, Response::new(Body::from(numbers.clone())));
        assert!(
            !plain.headers().contains_key("content-encoding"),
            "there is no room for one more"
        );
    }
}
