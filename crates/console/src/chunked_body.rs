//! Sends a long answer in pieces, so that processing it on the way, such as compression, blocks the thread for one
//! piece at a time.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

/// Compressed in about a millisecond.
const PIECE_BYTES: usize = 32 << 10;

pub fn in_pieces(whole: impl Into<Bytes>) -> Body {
    let rest = whole.into();
    match rest.len() <= PIECE_BYTES {
        true => Body::from(rest),
        false => Body::new(ChunkedBody { rest, has_given: false }),
    }
}

struct ChunkedBody {
    rest: Bytes,
    /// Whether other tasks had their turn since the last piece.
    has_given: bool,
}

impl HttpBody for ChunkedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        if std::mem::take(&mut self.has_given) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.has_given = true;
        let bytes = self.rest.len().min(PIECE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(bytes)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;

    use super::*;

    #[tokio::test]
    async fn a_long_answer_comes_whole_and_others_have_their_turn_between_its_pieces() {
        for len in [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 10 * PIECE_BYTES] {
            let whole: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
            let body = in_pieces(whole.clone());
            assert_eq!(body.size_hint().exact(), Some(len as u64));
            assert_eq!(to_bytes(body, usize::MAX).await.unwrap(), whole);
            let mut body = in_pieces(whole);
            let mut context = Context::from_waker(std::task::Waker::noop());
            let mut without_a_turn = 0;
            loop {
                match Pin::new(&mut body).poll_frame(&mut context) {
                    Poll::Pending => without_a_turn = 0,
                    Poll::Ready(None) => break,
                    Poll::Ready(Some(frame)) => without_a_turn += frame.unwrap().into_data().unwrap().len(),
                }
                assert!(without_a_turn <= PIECE_BYTES, "{without_a_turn} of {len}");
            }
        }
    }
}
