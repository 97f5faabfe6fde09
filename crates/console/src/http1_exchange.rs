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
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, HttpBody, to_bytes};
use axum::http::{HeaderValue, Response, header};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;

use crate::connection_slots::{ActiveRequest, PendingBody};

const WAITING: u8 = 0;
const RECEIVING: u8 = 1;
const ANSWERING: u8 = 2;

/// What is left of a body that nobody wanted is read on up to so many bytes and for so long, since only then the next request
/// can follow on the connection. An answer may be held up by it.
const READ_ON_BYTES: usize = 64 << 10;
const READ_ON_TIME: Duration = Duration::from_millis(100);

/// What transport and service of one connection know together.
#[derive(Debug, Default)]
pub struct Http1Exchange {
    stage: AtomicU8,
    /// Bytes came since the service answered last, so what is written now it has not said. The stage does not tell: a short
    /// answer ends when it is encoded, before it is written.
    unanswered: AtomicBool,
    /// The answer is a stream of events, which a client may leave alone for longer.
    pushing: AtomicBool,
    /// Of a request that was answered without it.
    left: Mutex<UnreadBody>,
}

#[derive(Debug, Default)]
enum UnreadBody {
    #[default]
    Nothing,
    Body(Body),
    /// The client sends it when it is told to go on, which nobody did.
    Unsent,
}

impl Http1Exchange {
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

    /// Reads what nobody wanted of the request, if it is little; otherwise the answer says that the connection ends with it.
    /// The protocol would end it without a word, and take the next request from a client that did not know.
    pub async fn read_on(&self, mut response: Response<Body>) -> Response<Body> {
        let left = std::mem::take(&mut *self.left.lock());
        let is_read = match left {
            UnreadBody::Nothing => true,
            UnreadBody::Body(body) => {
                let read = tokio::time::timeout(READ_ON_TIME, to_bytes(body, READ_ON_BYTES));
                read.await.is_ok_and(|read| read.is_ok())
            }
            UnreadBody::Unsent => false,
        };
        if !is_read {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        response
    }

    /// Has the end of the answer seen, up to which it is served.
    pub fn answer(
        self: Arc<Http1Exchange>,
        response: Response<Body>,
        serving: Option<ActiveRequest>,
    ) -> Response<Body> {
        if let Some(serving) = &serving {
            serving.answers();
        }
        self.stage.store(ANSWERING, Relaxed);
        self.unanswered.store(false, Relaxed);
        self.pushing.store(is_push(&response), Relaxed);
        response.map(|inner| {
            Body::new(Http1ResponseBody {
                inner,
                exchange: self,
                _serving: serving,
            })
        })
    }
}

/// Whether an answer goes on for as long as the client listens.
pub fn is_push(response: &Response<Body>) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// What the body of a request is.
pub trait RequestBody: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static {}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static> RequestBody for B {}

/// The body of a request, whose end is told.
pub struct Http1RequestBody<B: RequestBody> {
    /// There until it is dropped.
    inner: Option<B>,
    exchange: Arc<Http1Exchange>,
    /// The client waits to be told to go on, which asking for the body does.
    waits: bool,
    /// There until the end has come.
    receiving: Option<PendingBody>,
}

impl<B: RequestBody> Http1RequestBody<B> {
    /// `waits` if the client sends it only when it is told to.
    pub fn new(
        inner: B,
        exchange: Arc<Http1Exchange>,
        waits: bool,
        receiving: Option<PendingBody>,
    ) -> Http1RequestBody<B> {
        if inner.is_end_stream() {
            exchange.received();
        }
        Http1RequestBody {
            inner: Some(inner),
            exchange,
            waits,
            receiving,
        }
    }
}

impl<B: RequestBody> HttpBody for Http1RequestBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.waits = false;
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        let polled = Pin::new(&mut *inner).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || inner.is_end_stream() {
            self.exchange.received();
            self.receiving = None;
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}

impl<B: RequestBody> Drop for Http1RequestBody<B> {
    fn drop(&mut self) {
        // Whoever was to read it wants no more of it.
        if let Some(inner) = self.inner.take().filter(|inner| !inner.is_end_stream()) {
            *self.exchange.left.lock() = match self.waits {
                true => UnreadBody::Unsent,
                false => UnreadBody::Body(Body::new(inner)),
            };
        }
        self.exchange.received();
    }
}

/// The body of an answer; with it the exchange ends.
struct Http1ResponseBody {
    inner: Body,
    exchange: Arc<Http1Exchange>,
    _serving: Option<ActiveRequest>,
}

impl HttpBody for Http1ResponseBody {
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

impl Drop for Http1ResponseBody {
    fn drop(&mut self) {
        self.exchange.stage.store(WAITING, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body that does not come.
    struct Never;

    impl HttpBody for Never {
        type Data = Bytes;
        type Error = std::convert::Infallible;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            Poll::Pending
        }
    }

    #[test]
    fn a_client_holds_something_up_only_between_the_first_byte_and_the_last() {
        let exchange = Arc::new(Http1Exchange::default());
        assert!(!exchange.is_receiving(), "nothing has come");
        exchange.came();
        assert!(exchange.is_receiving());
        let body = Http1RequestBody::new(Body::from("x"), exchange.clone(), false, None);
        assert!(exchange.is_receiving(), "the body is missing");
        drop(body);
        assert!(!exchange.is_receiving() && exchange.is_unanswered());
        let response = exchange.clone().answer(Response::new(Body::empty()), None);
        exchange.came();
        assert!(!exchange.is_receiving(), "the answer is first");
        let response = exchange.clone().answer(response, None);
        drop(response);
        assert!(!exchange.is_unanswered(), "it may not have been written yet");
        exchange.came();
        assert!(exchange.is_receiving() && exchange.is_unanswered(), "the next one");
    }

    #[test]
    fn a_request_without_a_body_has_come_with_its_head() {
        let exchange = Arc::new(Http1Exchange::default());
        exchange.came();
        let _body = Http1RequestBody::new(Body::empty(), exchange.clone(), false, None);
        assert!(!exchange.is_receiving());
    }

    #[tokio::test]
    async fn what_nobody_wanted_is_read_if_it_is_little_and_else_the_connection_ends() {
        for (body, waits, closes) in [
            (Body::from("x"), false, false),
            (Body::from(vec![0; READ_ON_BYTES]), false, false),
            (Body::from(vec![0; READ_ON_BYTES + 1]), false, true),
            (Body::new(Never), false, true),
            (Body::from("x"), true, true),
            (Body::empty(), true, false),
        ] {
            let exchange = Arc::new(Http1Exchange::default());
            drop(Http1RequestBody::new(body, exchange.clone(), waits, None));
            let response = exchange.read_on(Response::new(Body::empty())).await;
            assert_eq!(response.headers().contains_key(header::CONNECTION), closes);
            let next = exchange.read_on(Response::new(Body::empty())).await;
            assert!(next.headers().is_empty(), "it is of one request");
        }
    }

    #[test]
    fn only_streams_of_events_are_pushes() {
        for (kind, expected) in [("text/event-stream", true), ("application/json", false)] {
            let exchange = Arc::new(Http1Exchange::default());
            let response = Response::builder().header("content-type", kind);
            let _response = exchange.clone().answer(response.body(Body::empty()).unwrap(), None);
            assert_eq!(exchange.is_pushing(), expected);
        }
    }
}
