//! Limits on a request body: its size and how slowly it may arrive. The handler sees an error at the limit; the client
//! gets one sentence with status 413 or 408, whatever the handler returns. The rest of a body that is too large is read
//! before that, by the rule of all faces ([`drain`]).
//!
//! Only time in which the handler waits for the client counts as slow. The rejected option, a limit on the mean rate
//! since the first byte, has a flaw: a client that sends much at once could then be silent for as long as sending it
//! slowly would take, and keep the memory in use.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;
use thalweg_http::body::drain;
use thalweg_kit::clock;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::HttpLimits;
use crate::refusal::{ListenerErrorKind, refusal};

const NONE: u8 = 0;
const TOO_LARGE: u8 = 1;
const TOO_SLOW: u8 = 2;

/// The limits, and the paths that have their own limit on the size of bodies.
#[derive(Clone)]
pub struct BodyLimits {
    pub limits: HttpLimits,
    pub own: Arc<Vec<&'static str>>,
}

/// Monitors a body while it is read.
pub struct BodyMonitor {
    limits: HttpLimits,
    faults: Option<Arc<BodyFaults>>,
}

/// What went wrong with a body.
#[derive(Default)]
struct BodyFaults {
    /// The first, or [`NONE`].
    fault: AtomicU8,
    /// The unread rest of a body that is too large. The handler cannot read it.
    rest: Mutex<Option<Body>>,
}

impl BodyLimits {
    /// The body with its limits; refused at once if its announced length is too large.
    pub async fn watch(&self, request: &Parts, mut body: Body) -> Result<(Body, BodyMonitor), Response> {
        let mut limits = self.limits;
        if self.own.contains(&request.uri.path()) {
            limits.body_bytes_max = usize::MAX;
        }
        if body.is_end_stream() {
            return Ok((body, BodyMonitor { limits, faults: None }));
        }
        if declared_length(&request.headers).is_some_and(|length| length > limits.body_bytes_max as u64) {
            drain(&mut body).await;
            return Err(refused(TOO_LARGE, limits));
        }
        let faults = Arc::new(BodyFaults::default());
        let body = Body::new(LimitedBody::new(body, limits, faults.clone()));
        let faults = Some(faults);
        Ok((body, BodyMonitor { limits, faults }))
    }
}

impl BodyMonitor {
    /// The refusal, if the body exceeded a limit, whatever the handler has made of its error.
    pub async fn judge(self, response: Response) -> Response {
        let Some(faults) = self.faults else {
            return response;
        };
        let fault = faults.fault.load(Relaxed);
        if fault == NONE {
            return response;
        }
        drop(response);
        let rest = faults.rest.lock().take();
        if let Some(mut rest) = rest {
            drain(&mut rest).await;
        }
        refused(fault, self.limits)
    }
}

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn refused(fault: u8, limits: HttpLimits) -> Response {
    let (bytes_max, bytes_per_second) = (limits.body_bytes_max, limits.body_bytes_per_second_min);
    let grace = limits.body_grace;
    match fault {
        TOO_LARGE => refusal(
            ListenerErrorKind::MessageTooLarge,
            format!("the request body is larger than {bytes_max} bytes; send it in parts"),
        ),
        _ => refusal(
            ListenerErrorKind::RequestTimeout,
            format!(
                "the request body arrived more slowly than {bytes_per_second} bytes per second for {grace:?}; send it \
                 over a faster line or in parts"
            ),
        ),
    }
}

struct LimitedBody {
    inner: Body,
    bytes_max: u64,
    received: u64,
    pace: BodyTimeBudget,
    deadline: Pin<Box<Sleep>>,
    faults: Arc<BodyFaults>,
}

impl LimitedBody {
    fn new(inner: Body, limits: HttpLimits, faults: Arc<BodyFaults>) -> LimitedBody {
        LimitedBody {
            inner,
            bytes_max: limits.body_bytes_max as u64,
            received: 0,
            pace: BodyTimeBudget::new(limits),
            deadline: Box::pin(sleep_until(clock::tokio_now())),
            faults,
        }
    }

    fn is_too_large(&self) -> bool {
        self.received > self.bytes_max
    }

    /// The rest is left to the monitor, which reads it when the handler has let go of what it has read.
    fn too_large(&mut self) -> axum::Error {
        let rest = std::mem::take(&mut self.inner);
        if self.faults.fault.load(Relaxed) == NONE {
            self.faults.fault.store(TOO_LARGE, Relaxed);
            *self.faults.rest.lock() = Some(rest);
        }
        axum::Error::new("the request body is too large")
    }

    fn too_slow(&self) -> axum::Error {
        self.faults.fault.store(TOO_SLOW, Relaxed);
        axum::Error::new("the request body is too slow")
    }
}

impl HttpBody for LimitedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.is_too_large() {
            return Poll::Ready(Some(Err(self.too_large())));
        }
        match Pin::new(&mut self.inner).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
                self.received += bytes;
                if self.is_too_large() {
                    return Poll::Ready(Some(Err(self.too_large())));
                }
                self.pace.received(bytes, clock::tokio_now());
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Pending => {
                let until = self.pace.waits_until(clock::tokio_now());
                if self.deadline.deadline() != until {
                    self.deadline.as_mut().reset(until);
                }
                match self.deadline.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(Some(Err(self.too_slow()))),
                    Poll::Pending => Poll::Pending,
                }
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

/// How much longer a client may keep the handler waiting: at most `grace`, less the time used, plus the time that each
/// arriving byte earns.
struct BodyTimeBudget {
    grace: Duration,
    left: Duration,
    bytes_per_second_min: u64,
    waiting_since: Option<Instant>,
}

impl BodyTimeBudget {
    fn new(limits: HttpLimits) -> BodyTimeBudget {
        BodyTimeBudget {
            grace: limits.body_grace,
            left: limits.body_grace,
            bytes_per_second_min: limits.body_bytes_per_second_min.max(1),
            waiting_since: None,
        }
    }

    /// The handler waits, since now or earlier. Returns until when it may wait.
    fn waits_until(&mut self, now: Instant) -> Instant {
        *self.waiting_since.get_or_insert(now) + self.left
    }

    fn received(&mut self, bytes: u64, now: Instant) {
        if let Some(since) = self.waiting_since.take() {
            self.left = self.left.saturating_sub(now - since);
        }
        let earned = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second_min as f64);
        self.left = (self.left + earned).min(self.grace);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn pace() -> (BodyTimeBudget, Instant) {
        let limits = HttpLimits {
            body_grace: 20 * SECOND,
            body_bytes_per_second_min: 1000,
            ..HttpLimits::default()
        };
        (BodyTimeBudget::new(limits), clock::tokio_now())
    }

    #[test]
    fn much_at_once_buys_no_more_silence_than_nothing_does() {
        let (mut pace, start) = pace();
        assert_eq!(pace.waits_until(start), start + 20 * SECOND);
        pace.received(30 << 20, start + SECOND);
        assert_eq!(pace.waits_until(start + SECOND), start + 21 * SECOND);
    }

    #[test]
    fn who_keeps_the_pace_may_go_on_for_ever_and_who_drips_may_not() {
        for (bytes, goes_on) in [(1000, true), (990, false)] {
            let (mut pace, mut now) = pace();
            let kept = (0..10_000).all(|_| {
                let until = pace.waits_until(now);
                now += SECOND;
                pace.received(bytes, now);
                now < until
            });
            assert_eq!(kept, goes_on, "{bytes} bytes per second");
        }
    }

    #[test]
    fn a_client_is_not_slow_while_nobody_asks_it() {
        let (mut pace, start) = pace();
        pace.received(1, start);
        let late = start + 3600 * SECOND;
        assert_eq!(pace.waits_until(late), late + 20 * SECOND);
        pace.received(0, late + 15 * SECOND);
        let later = late + 3600 * SECOND;
        assert_eq!(pace.waits_until(later), later + 5 * SECOND);
    }
}
