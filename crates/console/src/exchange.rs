//! How far a connection of HTTP/1.1 is with its request. The service says when a request has come and when its answer has
//! gone, the transport when the first byte of the next one is there; so it knows when a silent client holds something up.
//!
//! | stage | what is waited for | ends with |
//! |---|---|---|
//! | waiting | a request, which is no hurry | its first byte |
//! | receiving | the rest of head and body | the end of the body, or the answer |
//! | answering | the server | the end of the answer |

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::http::{Response, header};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};

const WAITING: u8 = 0;
const RECEIVING: u8 = 1;
const ANSWERING: u8 = 2;

/// What transport and service of one connection know together.
#[derive(Debug, Default)]
pub struct Exchange {
    stage: AtomicU8,
    /// Bytes came since the service answered last, so what is written now it has not said. The stage does not tell: a short
    /// answer ends when it is encoded, before it is written.
    unanswered: AtomicBool,
    /// The answer is a stream of events, which a client may leave alone for longer.
    pushing: AtomicBool,
}

impl Exchange {
    /// Bytes came.
    pub fn came(&self) {
        self.unanswered.store(true, Relaxed);
        let _ = self.stage.compare_exchange(WAITING, RECEIVING, Relaxed, Relaxed);
    }

    /// A part of a request is missing.
    pub fn is_receiving(&self) -> bool {
        self.stage.load(Relaxed) == RECEIVING
    }

    /// What is written now does not come from the service.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.load(Relaxed)
    }

    pub fn is_pushing(&self) -> bool {
        self.pushing.load(Relaxed)
    }

    fn received(&self) {
        let _ = self.stage.compare_exchange(RECEIVING, ANSWERING, Relaxed, Relaxed);
    }

    /// Has the end of the answer seen.
    pub fn answer(self: Arc<Exchange>, response: Response<Body>) -> Response<Body> {
        let kind = response.headers().get(header::CONTENT_TYPE);
        let is_push = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"));
        self.stage.store(ANSWERING, Relaxed);
        self.unanswered.store(false, Relaxed);
        self.pushing.store(is_push, Relaxed);
        response.map(|inner| Body::new(Answer { inner, exchange: self }))
    }
}

/// The body of a request, whose end is told.
pub struct Incoming<B: HttpBody> {
    inner: B,
    exchange: Arc<Exchange>,
}

impl<B: HttpBody> Incoming<B> {
    pub fn new(inner: B, exchange: Arc<Exchange>) -> Incoming<B> {
        if inner.is_end_stream() {
            exchange.received();
        }
        Incoming { inner, exchange }
    }
}

impl<B: HttpBody + Unpin> HttpBody for Incoming<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || self.inner.is_end_stream() {
            self.exchange.received();
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B: HttpBody> Drop for Incoming<B> {
    fn drop(&mut self) {
        // Whoever was to read it wants no more of it.
        self.exchange.received();
    }
}

/// The body of an answer; with it the exchange ends.
struct Answer {
    inner: Body,
    exchange: Arc<Exchange>,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.exchange.stage.store(WAITING, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_holds_something_up_only_between_the_first_byte_and_the_last() {
        let exchange = Arc::new(Exchange::default());
        assert!(!exchange.is_receiving(), "nothing has come");
        exchange.came();
        assert!(exchange.is_receiving());
        let body = Incoming::new(Body::from("x"), exchange.clone());
        assert!(exchange.is_receiving(), "the body is missing");
        drop(body);
        assert!(!exchange.is_receiving() && exchange.is_unanswered());
        let response = exchange.clone().answer(Response::new(Body::empty()));
        exchange.came();
        assert!(!exchange.is_receiving(), "the answer is first");
        let response = exchange.clone().answer(response);
        drop(response);
        assert!(!exchange.is_unanswered(), "it may not have been written yet");
        exchange.came();
        assert!(exchange.is_receiving() && exchange.is_unanswered(), "the next one");
    }

    #[test]
    fn a_request_without_a_body_has_come_with_its_head() {
        let exchange = Arc::new(Exchange::default());
        exchange.came();
        let _body = Incoming::new(Body::empty(), exchange.clone());
        assert!(!exchange.is_receiving());
    }

    #[test]
    fn only_streams_of_events_are_pushes() {
        for (kind, expected) in [("text/event-stream", true), ("application/json", false)] {
            let exchange = Arc::new(Exchange::default());
            let response = Response::builder().header("content-type", kind);
            let _response = exchange.clone().answer(response.body(Body::empty()).unwrap());
            assert_eq!(exchange.is_pushing(), expected);
        }
    }
}
