//! Stall detection for the streams of an HTTP/2 connection. The protocol has a window per stream, so a client can stall
//! an answer on a connection that is otherwise alive. Therefore each stream is checked, and the connection is closed.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::Response;
use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use parking_lot::Mutex;
use thalweg_kit::clock;
use tokio::time::{Instant, sleep};

use crate::connection_slots::{ActiveRequest, PendingBody};
use crate::http1_exchange::is_push;
use crate::transport::StallTimeouts;

/// Data per stream in the library's buffers. The library releases a piece only when the client has read all of it.
const PIECE_BYTES: usize = 16 << 10;

/// The streams of one connection.
pub struct Http2Streams {
    patience: StallTimeouts,
    idle_max: Duration,
    open: Mutex<OpenStreams>,
}

struct OpenStreams {
    waits: HashMap<u64, StreamDeadlines>,
    next: u64,
    /// Since when there are no streams.
    idle_since: Instant,
}

/// When a wait is too long.
#[derive(Clone, Copy, Default)]
struct StreamDeadlines {
    /// For more of the request body, while the service reads it.
    request: Option<Instant>,
    /// For the client to read the pending answer.
    answer: Option<Instant>,
}

/// Why a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseReason {
    /// There was no request for a long time.
    Idle,
    Stalled(&'static str),
}

impl Http2Streams {
    pub fn new(patience: StallTimeouts, idle_max: Duration) -> Arc<Http2Streams> {
        Arc::new(Http2Streams {
            patience,
            idle_max,
            open: Mutex::new(OpenStreams {
                waits: HashMap::new(),
                next: 0,
                idle_since: clock::tokio_now(),
            }),
        })
    }

    pub fn open(self: &Arc<Http2Streams>) -> Arc<Http2Stream> {
        let mut open = self.open.lock();
        open.next += 1;
        let id = open.next;
        open.waits.insert(id, StreamDeadlines::default());
        Arc::new(Http2Stream {
            id,
            streams: self.clone(),
        })
    }

    /// Returns when a stream has waited for too long, or when there was none for too long.
    pub async fn closed(&self) -> CloseReason {
        let StallTimeouts {
            write_stall_max,
            push_stall_max,
            request_stall_max,
        } = self.patience;
        let shortest = write_stall_max.min(push_stall_max).min(self.idle_max);
        let shortest = request_stall_max.map_or(shortest, |max| max.min(shortest));
        loop {
            sleep(shortest / 4).await;
            let now = clock::tokio_now();
            let open = self.open.lock();
            if open.waits.is_empty() && now.duration_since(open.idle_since) >= self.idle_max {
                return CloseReason::Idle;
            }
            for wait in open.waits.values() {
                if wait.request.is_some_and(|until| now >= until) {
                    return CloseReason::Stalled("the client stopped sending a request that it had started");
                }
                if wait.answer.is_some_and(|until| now >= until) {
                    return CloseReason::Stalled("the client does not read the response");
                }
            }
        }
    }
}

/// One request and its answer, open while either exists.
pub struct Http2Stream {
    id: u64,
    streams: Arc<Http2Streams>,
}

impl Http2Stream {
    /// The body of the request.
    pub fn request(self: &Arc<Http2Stream>, inner: Incoming, receiving: Option<PendingBody>) -> Http2RequestBody {
        Http2RequestBody {
            inner,
            stream: self.clone(),
            receiving,
        }
    }

    pub fn answer(self: Arc<Http2Stream>, response: Response<Body>, serving: ActiveRequest) -> Response<Body> {
        serving.answers();
        let patience = match is_push(&response) {
            true => self.streams.patience.push_stall_max,
            false => self.streams.patience.write_stall_max,
        };
        response.map(|inner| {
            Body::new(Http2ResponseBody {
                inner,
                rest: Bytes::new(),
                patience,
                stream: self,
                _serving: serving,
            })
        })
    }

    fn wait(&self, change: impl FnOnce(&mut StreamDeadlines)) {
        if let Some(wait) = self.streams.open.lock().waits.get_mut(&self.id) {
            change(wait);
        }
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        let mut open = self.streams.open.lock();
        open.waits.remove(&self.id);
        open.idle_since = clock::tokio_now();
    }
}

/// The body of a request.
pub struct Http2RequestBody {
    inner: Incoming,
    stream: Arc<Http2Stream>,
    /// Set until the end has arrived.
    receiving: Option<PendingBody>,
}

impl HttpBody for Http2RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || self.inner.is_end_stream() {
            self.receiving = None;
        }
        let max = self.stream.streams.patience.request_stall_max;
        self.stream.wait(|wait| match polled {
            Poll::Ready(_) => wait.request = None,
            Poll::Pending => wait.request = wait.request.or(max.map(|max| clock::tokio_now() + max)),
        });
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Http2RequestBody {
    fn drop(&mut self) {
        self.stream.wait(|wait| wait.request = None);
    }
}

/// The body of an answer. It is polled for the next piece when the previous one is being sent.
struct Http2ResponseBody {
    inner: Body,
    rest: Bytes,
    patience: Duration,
    stream: Arc<Http2Stream>,
    _serving: ActiveRequest,
}

impl HttpBody for Http2ResponseBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        self.stream.wait(|wait| wait.answer = None);
        if self.rest.is_empty() {
            let frame = match std::task::ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => frame,
                other => return Poll::Ready(other),
            };
            match frame.into_data() {
                Ok(data) => self.rest = data,
                Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
            }
        }
        let piece = match self.rest.len() > PIECE_BYTES {
            // A slice would keep the whole buffer alive.
            true => Bytes::copy_from_slice(&self.rest.split_to(PIECE_BYTES)),
            false => std::mem::take(&mut self.rest),
        };
        let until = clock::tokio_now() + self.patience;
        self.stream.wait(|wait| wait.answer = Some(until));
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint.set_lower(inner.lower() + rest);
        hint
    }
}
