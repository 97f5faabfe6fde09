use std::convert::Infallible;
use std::io::Write as _;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use axum::body::{HttpBody as _, to_bytes};
use proptest::prelude::*;

use super::*;

const CODINGS: [ContentCoding; 2] = [ContentCoding::Gzip, ContentCoding::Zstd];

fn packed(coding: ContentCoding, bytes: &[u8]) -> Vec<u8> {
    match coding {
        ContentCoding::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        }
        ContentCoding::Zstd => zstd::bulk::compress(bytes, 1).unwrap(),
    }
}

/// Bytes that cannot be compressed.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1_u64;
    let mut byte = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| byte()).collect()
}

fn at_once(coding: ContentCoding, body: &[u8], limit: usize) -> Result<Bytes, DecodeError> {
    let body = Bytes::copy_from_slice(body);
    let len = decoded_len(coding, &body, limit)?;
    let decoded = decode(coding, &body, len)?;
    assert_eq!(decoded.len(), len);
    Ok(decoded)
}

fn body_of(pieces: Vec<Bytes>) -> Body {
    Body::from_stream(stream::iter(pieces.into_iter().map(Ok::<_, Infallible>)))
}

/// What comes out of these pieces, and the error that ends it.
async fn by_pieces(coding: ContentCoding, pieces: Vec<Bytes>) -> (Vec<u8>, Option<DecodeError>) {
    let mut body = decoded_pieces(coding, body_of(pieces)).into_data_stream();
    let mut out = Vec::new();
    let mut error = None;
    while let Some(piece) = body.next().await {
        match piece {
            Ok(piece) => {
                assert!(piece.len() <= PIECE_BYTES);
                out.extend_from_slice(&piece);
            }
            Err(failed) => error = Some(DecodeError::of(&failed).unwrap().clone()),
        }
    }
    assert!(body.next().await.is_none(), "it may be asked again");
    (out, error)
}

fn cut(bytes: &[u8], cuts: &[usize]) -> Vec<Bytes> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2)
        .map(|pair| Bytes::copy_from_slice(&bytes[pair[0]..pair[1]]))
        .collect()
}

proptest! {
    /// Several members or frames, in pieces of any size, and cut off anywhere.
    #[test]
    fn a_body_is_the_same_however_it_arrives_and_a_part_of_it_is_no_body(
        parts in prop::collection::vec("[ab{}\n]{0,300}", 1..4),
        cuts in prop::collection::vec(any::<usize>(), 0..8),
        end in any::<usize>(),
        is_zstd in any::<bool>(),
    ) {
        let coding = CODINGS[usize::from(is_zstd)];
        let bodies: Vec<Vec<u8>> = parts.iter().map(|part| packed(coding, part.as_bytes())).collect();
        let text = parts.concat();
        let body = bodies.concat();
        prop_assert_eq!(at_once(coding, &body, text.len()).unwrap(), text.as_bytes());
        let (out, error) = futures::executor::block_on(by_pieces(coding, cut(&body, &cuts)));
        prop_assert_eq!((out.as_slice(), error), (text.as_bytes(), None));
        // Between two members it is whole.
        let ends: Vec<usize> = bodies.iter().scan(0, |end, body| { *end += body.len(); Some(*end) }).collect();
        let end = end % body.len();
        if end > 0 && !ends.contains(&end) {
            let part = &body[..end];
            let failed = at_once(coding, part, text.len());
            prop_assert!(matches!(failed, Err(DecodeError::Malformed { at, .. }) if at <= end as u64), "{failed:?}");
            let (out, error) = futures::executor::block_on(by_pieces(coding, cut(part, &cuts)));
            prop_assert!(text.as_bytes().starts_with(&out) && error == failed.err());
        }
    }

    #[test]
    fn bytes_that_are_no_body_are_told(bytes in prop::collection::vec(any::<u8>(), 1..200), is_zstd in any::<bool>()) {
        let coding = CODINGS[usize::from(is_zstd)];
        let _ = at_once(coding, &bytes, 1 << 20);
        let mut damaged = packed(coding, &noise(500));
        // Behind the head of gzip, which has a time that means nothing.
        let at = 20 + bytes.len();
        damaged[at] ^= bytes[0] | 1;
        // A changed byte of the payload of zstd is not noticed without its checksum, which clients may leave out.
        if coding == ContentCoding::Gzip {
            let failed = at_once(coding, &damaged, 1 << 20);
            prop_assert!(matches!(failed, Err(DecodeError::Malformed { .. })), "{failed:?}");
        }
    }
}

#[test]
fn an_empty_body_is_empty() {
    for coding in CODINGS {
        assert_eq!(at_once(coding, b"", 0).unwrap(), Bytes::new());
        assert_eq!(at_once(coding, &packed(coding, b""), 0).unwrap(), Bytes::new());
        let (out, error) = futures::executor::block_on(by_pieces(coding, Vec::new()));
        assert_eq!((out, error), (Vec::new(), None));
    }
}

#[test]
fn what_becomes_too_much_is_stopped_on_the_way() {
    let zeros = vec![0; 64 << 20];
    let much = noise(2 << 20);
    for coding in CODINGS {
        let bomb = packed(coding, &zeros);
        assert_eq!(
            at_once(coding, &bomb, usize::MAX),
            Err(DecodeError::Ratio),
            "{coding:?}"
        );
        let (out, error) = futures::executor::block_on(by_pieces(coding, vec![Bytes::from(bomb.clone())]));
        assert_eq!(error, Some(DecodeError::Ratio), "{coding:?}");
        let most = (bomb.len() as u64 * RATIO_MAX).max(RATIO_FREE);
        assert!(out.len() as u64 <= most, "{coding:?} {}", out.len());
        let body = packed(coding, &much);
        assert_eq!(at_once(coding, &body, much.len()).unwrap(), much);
        let limit = much.len() - 1;
        assert_eq!(at_once(coding, &body, limit), Err(DecodeError::TooLarge { limit }));
    }
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.window_log(24).unwrap();
    encoder.write_all(&much).unwrap();
    let wide = encoder.finish().unwrap();
    assert_eq!(
        at_once(ContentCoding::Zstd, &wide, usize::MAX),
        Err(DecodeError::Window)
    );
}

#[tokio::test]
async fn after_a_mistake_the_rest_of_the_body_is_read() {
    for coding in CODINGS {
        let taken = Arc::new(AtomicUsize::new(0));
        let counts = taken.clone();
        let body = stream::iter(0..100).map(move |_| {
            counts.fetch_add(1, SeqCst);
            Ok::<_, Infallible>(Bytes::from_static(b"neither gzip nor zstd"))
        });
        let mut decoded = decoded_pieces(coding, Body::from_stream(body)).into_data_stream();
        let failed = decoded.next().await.unwrap().unwrap_err();
        let failed = DecodeError::of(&failed).unwrap();
        assert!(matches!(failed, DecodeError::Malformed { .. }), "{failed}");
        assert!(taken.load(SeqCst) < 10);
        assert!(decoded.next().await.is_none());
        assert_eq!(taken.load(SeqCst), 100);
    }
}

#[tokio::test]
async fn others_have_their_turn_between_the_pieces_of_a_large_body() {
    let text = vec![b'a'; 1 << 20];
    for coding in CODINGS {
        let mut body = decoded_pieces(coding, body_of(vec![Bytes::from(packed(coding, &text))]));
        let mut context = Context::from_waker(Waker::noop());
        let (mut whole, mut without_a_turn) = (0, 0);
        loop {
            match Pin::new(&mut body).poll_frame(&mut context) {
                Poll::Pending => without_a_turn = 0,
                Poll::Ready(None) => break,
                Poll::Ready(Some(frame)) => {
                    let made = frame.unwrap().into_data().unwrap().len();
                    whole += made;
                    without_a_turn += made;
                }
            }
            assert!(without_a_turn <= PIECE_BYTES, "{without_a_turn}");
        }
        assert_eq!(whole, text.len());
    }
    let body = decoded_pieces(
        ContentCoding::Gzip,
        body_of(vec![Bytes::from(packed(ContentCoding::Gzip, &text))]),
    );
    assert_eq!(to_bytes(body, usize::MAX).await.unwrap(), text);
}
