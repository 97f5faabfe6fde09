//! Limits on a request body: how large it may be and how slowly it may come. The handler sees an error at the limit;
//! the client gets one sentence with status 413 or 408, whatever the handler made of it.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll};

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use crate::Limits;
use crate::refusal::refusal;

/// How long a body that is refused is read on.
const DRAIN_MAX: std::time::Duration = std::time::Duration::from_secs(1);

const NONE: u8 = 0;
const TOO_LARGE: u8 = 1;
const TOO_SLOW: u8 = 2;

/// Middleware around everything that reads a body.
pub async fn limit(State(limits): State<Limits>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    if body.is_end_stream() {
        return next.run(Request::from_parts(parts, body)).await;
    }
    let fault = Arc::new(AtomicU8::new(NONE));
    let mut body = LimitedBody::new(body, limits, fault.clone());
    if declared_length(&parts.headers).is_some_and(|length| length > limits.body_bytes_max as u64) {
        body.drain().await;
        return refused(TOO_LARGE, limits);
    }
    let response = next.run(Request::from_parts(parts, Body::new(body))).await;
    match fault.load(Relaxed) {
        NONE => response,
        fault => refused(fault, limits),
    }
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn refused(fault: u8, limits: Limits) -> Response {
    let (bytes_max, bytes_per_second) = (limits.body_bytes_max, limits.body_bytes_per_second_min);
    match fault {
        TOO_LARGE => refusal(
            StatusCode::PAYLOAD_TOO_LARGE,
            "message_too_large",
            format!("the request body is larger than {bytes_max} bytes; send it in parts"),
        ),
        _ => refusal(
            StatusCode::REQUEST_TIMEOUT,
            "request_timeout",
            format!(
                "the request body came slower than {bytes_per_second} bytes per second; send it over a faster line or in parts"
            ),
        ),
    }
}

struct LimitedBody {
    inner: Body,
    limits: Limits,
    received: u64,
    start: Instant,
    deadline: Pin<Box<Sleep>>,
    fault: Arc<AtomicU8>,
}

impl LimitedBody {
    fn new(inner: Body, limits: Limits, fault: Arc<AtomicU8>) -> LimitedBody {
        let start = Instant::now();
        let deadline = Box::pin(sleep_until(start + limits.body_grace));
        LimitedBody {
            inner,
            limits,
            received: 0,
            start,
            deadline,
            fault,
        }
    }

    /// Reads on for a moment, however much comes, because a client that is still sending when the connection closes may
    /// never see the answer.
    async fn drain(&mut self) {
        let inner = &mut self.inner;
        let read_on = async {
            while let Some(Ok(_)) = std::future::poll_fn(|context| Pin::new(&mut *inner).poll_frame(context)).await {}
        };
        let _ = timeout(DRAIN_MAX, read_on).await;
    }

    fn fail(&self, fault: u8) -> axum::Error {
        self.fault.store(fault, Relaxed);
        axum::Error::new(if fault == TOO_LARGE {
            "the request body is too large"
        } else {
            "the request body is too slow"
        })
    }
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                self.received += frame.data_ref().map_or(0, |data| data.len() as u64);
                if self.received > self.limits.body_bytes_max as u64 {
                    return Poll::Ready(Some(Err(self.fail(TOO_LARGE))));
                }
                let earned = self.received / self.limits.body_bytes_per_second_min.max(1);
                let deadline = self.start + self.limits.body_grace + std::time::Duration::from_secs(earned);
                self.deadline.as_mut().reset(deadline);
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Pending if self.deadline.as_mut().poll(context).is_ready() => {
                Poll::Ready(Some(Err(self.fail(TOO_SLOW))))
            }
            other => other,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
