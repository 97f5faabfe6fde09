//! The stage of an HTTP/1.1 connection's current request. The service reports when a request has arrived and when its
//! answer has been sent, the transport when the first byte of the next one arrives. So the transport knows when a
//! silent client blocks something.
//!
//! | stage | waits for | ends with |
//! |---|---|---|
//! | waiting | a request, without a hurry | its first byte |
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

/// Limits for reading the unread rest of a body, which is necessary before the next request on the connection. This may
/// delay an answer.
const READ_ON_BYTES: usize = 64 << 10;
const READ_ON_TIME: Duration = Duration::from_millis(100);

/// State shared by transport and service of one connection.
#[derive(Debug, Default)]
pub struct Http1Exchange {
    stage: AtomicU8,
    /// Bytes arrived since the service last answered, so data written now does not come from it. The stage does not
    /// show this: a short answer ends when it is encoded, before it is written.
    unanswered: AtomicBool,
    /// The answer is an event stream, which a client may leave unread for longer.
    pushing: AtomicBool,
    /// The unread body of a request that was answered without it.
    left: Mutex<UnreadBody>,
}

#[derive(Debug, Default)]
enum UnreadBody {
    #[default]
    Nothing,
    Body(Body),
    /// The client sends it only after `100 Continue`, which was not sent.
    Unsent,
}

impl Http1Exchange {
    /// Bytes arrived.
    pub fn came(&self) {
        self.unanswered.store(true, Relaxed);
        let _ = self.stage.compare_exchange(WAITING, RECEIVING, Relaxed, Relaxed);
    }

    /// A part of a request is missing.
    pub fn is_receiving(&self) -> bool {
        self.stage.load(Relaxed) == RECEIVING
    }

    /// Data written now does not come from the service.
    pub fn is_unanswered(&self) -> bool {
        self.unanswered.load(Relaxed)
    }

    pub fn is_pushing(&self) -> bool {
        self.pushing.load(Relaxed)
    }

    fn received(&self) {
        let _ = self.stage.compare_exchange(RECEIVING, ANSWERING, Relaxed, Relaxed);
    }

    /// Reads the unread rest of the request if it is small; otherwise the answer announces that the connection closes.
    /// The library would close it without notice, while the client may send its next request.
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

    /// Wraps the answer so that its end is noticed; the request counts as served until then.
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

/// Whether an answer lasts as long as the client listens.
pub fn is_push(response: &Response<Body>) -> bool {
    let kind = response.headers().get(header::CONTENT_TYPE);
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// The type of a request body.
pub trait RequestBody: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static {}

impl<B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Unpin + Send + 'static> RequestBody for B {}

/// A request body that reports its end.
pub struct Http1RequestBody<B: RequestBody> {
    /// Set until it is dropped.
    inner: Option<B>,
    exchange: Arc<Http1Exchange>,
    /// The client waits for `100 Continue`, which polling the body sends.
    waits: bool,
    /// Set until the end has arrived.
    receiving: Option<PendingBody>,
}

impl<B: RequestBody> Http1RequestBody<B> {
    /// `waits` if the client sends it only after `100 Continue`.
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
        // The reader does not want the rest.
        if let Some(inner) = self.inner.take().filter(|inner| !inner.is_end_stream()) {
            *self.exchange.left.lock() = match self.waits {
                true => UnreadBody::Unsent,
                false => UnreadBody::Body(Body::new(inner)),
            };
        }
        self.exchange.received();
    }
}

/// The body of an answer; its end ends the exchange.
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

    /// A body that never arrives.
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
