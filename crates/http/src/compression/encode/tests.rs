use std::convert::Infallible;

use axum::body::to_bytes;
use futures::channel::mpsc;

use super::*;
use crate::compression::{decode, decoded_len, decoded_pieces};

const CODINGS: [ContentCoding; 2] = [ContentCoding::Gzip, ContentCoding::Zstd];

fn ample() -> AnswerEncoder {
    AnswerEncoder::new(64 << 20)
}

/// Readings of a machine as JSON.
fn text(len: usize) -> Vec<u8> {
    let lines = (0_u64..).map(|n| format!("{{\"n\":{n},\"at\":\"press-{}\",\"value\":{}}}\n", n % 7, n * n % 1013));
    let mut text: Vec<u8> = lines.take(len / 20 + 1).collect::<String>().into_bytes();
    text.truncate(len);
    text
}

fn decoded(coding: ContentCoding, body: &Bytes) -> Bytes {
    let len = decoded_len(coding, body, usize::MAX).unwrap();
    decode(coding, body, len).unwrap()
}

#[tokio::test]
async fn a_response_is_what_it_was_and_says_how_it_is_compressed() {
    for coding in CODINGS {
        for len in [1 << 10, PIECE_BYTES, PIECE_BYTES + 1, 3 << 20] {
            let plain = text(len);
            let mut response = Response::new(Body::from(plain.clone()));
            response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(len));
            let response = ample().encode(Some(coding), response);
            let headers = response.headers();
            assert_eq!(headers[CONTENT_ENCODING], coding.name());
            assert_eq!(headers[VARY], "accept-encoding");
            assert!(!headers.contains_key(CONTENT_LENGTH));
            let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
            assert!(body.len() * 2 < len, "{} of {len}", body.len());
            assert!(decoded(coding, &body) == plain, "{coding:?} {len}");
        }
    }
}

#[tokio::test]
async fn what_is_short_or_not_accepted_or_compressed_already_stays_as_it_is() {
    let plain = Bytes::from(text(4096));
    let of = |bytes: &Bytes| Response::new(Body::from(bytes.clone()));
    let mut has_one = of(&plain);
    has_one
        .headers_mut()
        .insert(CONTENT_ENCODING, HeaderValue::from_static("br"));
    let short = plain.slice(..1023);
    for (response, accepted, body, varies) in [
        (of(&plain), None, &plain, true),
        (of(&short), Some(ContentCoding::Gzip), &short, false),
        (has_one, Some(ContentCoding::Gzip), &plain, false),
    ] {
        let had = response.headers().get(CONTENT_ENCODING).cloned();
        let response = ample().encode(accepted, response);
        assert_eq!(response.headers().get(CONTENT_ENCODING).cloned(), had);
        assert_eq!(response.headers().contains_key(VARY), varies);
        assert_eq!(to_bytes(response.into_body(), usize::MAX).await.unwrap(), body);
    }
}

/// The client reads an event as soon as it is sent, not when there are enough of them.
#[tokio::test]
async fn each_event_of_a_stream_leaves_at_once_and_whole() {
    for coding in CODINGS {
        let (mut sender, events) = mpsc::unbounded::<Result<Bytes, Infallible>>();
        // Like the streams of faces, it may not be asked again after its end.
        let events = stream::unfold(events, |mut events| async move { Some((events.next().await?, events)) });
        let response = ample().encode(Some(coding), Response::new(Body::from_stream(events)));
        let mut sent = response.into_body().into_data_stream();
        let (mut arrives, arrived) = mpsc::unbounded::<Result<Bytes, Infallible>>();
        let mut client = decoded_pieces(coding, Body::from_stream(arrived)).into_data_stream();
        for n in 0..100 {
            assert!(futures::poll!(sent.next()).is_pending());
            let event = Bytes::from(format!("event: message\nid: {n}\ndata: {{\"n\":{n}}}\n\n"));
            sender.start_send(Ok(event.clone())).unwrap();
            let chunk = sent.next().await.unwrap().unwrap();
            arrives.start_send(Ok(chunk)).unwrap();
            assert_eq!(client.next().await.unwrap().unwrap(), event);
        }
        drop(sender);
        while let Some(end) = sent.next().await {
            arrives.start_send(Ok(end.unwrap())).unwrap();
        }
        drop(arrives);
        assert!(client.next().await.is_none(), "the body ends properly");
        assert!(sent.next().await.is_none(), "it may be asked again");
    }
}

#[tokio::test]
async fn without_memory_for_an_encoder_a_response_is_plain_and_later_ones_are_compressed_again() {
    for coding in CODINGS {
        let encoder = AnswerEncoder::new(2 * encoder_bytes(coding));
        let ask = || encoder.encode(Some(coding), Response::new(Body::from(text(4096))));
        let is_coded = |response: &Response<Body>| response.headers().contains_key(CONTENT_ENCODING);
        let (first, second, third) = (ask(), ask(), ask());
        assert!(is_coded(&first) && is_coded(&second) && !is_coded(&third));
        assert_eq!(third.headers()[VARY], "accept-encoding");
        assert_eq!(to_bytes(third.into_body(), usize::MAX).await.unwrap(), text(4096));
        drop(first);
        assert!(is_coded(&ask()));
        // The room is held until the body is sent.
        let body = to_bytes(second.into_body(), usize::MAX).await.unwrap();
        assert_eq!(decoded(coding, &body), text(4096));
    }
}

#[tokio::test]
async fn a_body_that_fails_is_cut_off() {
    for coding in CODINGS {
        let pieces = [Ok(Bytes::from(text(4096))), Err("the disk is gone")];
        let response = ample().encode(Some(coding), Response::new(Body::from_stream(stream::iter(pieces))));
        let mut sent = response.into_body().into_data_stream();
        assert!(sent.next().await.unwrap().is_ok());
        assert_eq!(sent.next().await.unwrap().unwrap_err().to_string(), "the disk is gone");
        assert!(sent.next().await.is_none());
    }
}
