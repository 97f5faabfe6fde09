//! Ends long answers when the login of their client is revoked.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::http1_exchange::is_push;

/// Ends a streamed body with `ended`. An event stream ends normally; all others end as if the connection broke, so that
/// a part is not mistaken for the whole.
pub fn until(ended: CancellationToken, response: Response) -> Response {
    if response.body().size_hint().exact().is_some() {
        return response;
    }
    let is_push = is_push(&response);
    response.map(|inner| {
        Body::new(RevocableBody {
            inner,
            ended: Box::pin(ended.cancelled_owned()),
            is_push,
        })
    })
}

struct RevocableBody {
    inner: Body,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
    is_push: bool,
}

impl HttpBody for RevocableBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.ended.as_mut().poll(context).is_ready() {
            let broken = || axum::Error::new("the token or user of this request was revoked");
            return Poll::Ready((!self.is_push).then(|| Err(broken())));
        }
        Pin::new(&mut self.inner).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
