//! `GET /subscribe`: pushes messages as soon as they can be read. The address selects them. A
//! [`SubscriberCursor`](cursor::SubscriberCursor) sends them: it reads from the store until it is at the live end, and
//! from then on takes what the namespace's [`NamespaceTailer`](tailer::NamespaceTailer) has read for all subscribers.

mod coalesce;
mod cursor;
#[cfg(test)]
mod deleted_tests;
mod frame;
mod gaps;
mod outbound;
mod request;
mod tailer;

use std::convert::Infallible;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{ACCESS_CONTROL_ALLOW_ORIGIN, CACHE_CONTROL, CONNECTION, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderName, HeaderValue, Method, Response, StatusCode};
use futures::stream;
use thalweg_http::compression::accepted_coding;

pub(crate) use tailer::NamespaceTailers;

use crate::auth::{RequiredScope, admit};
use crate::problem::Problem;
use crate::{EventsApiServer, log_answer, subscribe_persistent};
use cursor::SubscriberCursor;
use request::SubscribeRequest;

/// Mistakes in the address are answered in plain text, which clients show unchanged.
enum SubscribeError {
    Plain(&'static str),
    Problem(Problem),
}

impl From<Problem> for SubscribeError {
    fn from(problem: Problem) -> SubscribeError {
        SubscribeError::Problem(problem)
    }
}

pub(crate) async fn answer(server: Arc<EventsApiServer>, request: Request) -> Response<Body> {
    let (parts, _) = request.into_parts();
    let response = match subscribe_persistent::named(&parts) {
        Some(name) => subscribe_persistent::answer(&server, &parts, name).await,
        None => begin(&server, &parts).await,
    };
    log_answer(&parts.method, "/subscribe", &response);
    response
}

async fn begin(server: &Arc<EventsApiServer>, request: &Parts) -> Response<Body> {
    match subscribe(server, request).await {
        Ok(subscription) => {
            let sends_messages = subscription.sends_messages();
            // Boxed because it is moved in and out with each chunk.
            let chunks = stream::unfold(Box::new(subscription), |mut subscription| async move {
                let chunk = subscription.chunk().await?;
                Some((Ok::<_, Infallible>(chunk), subscription))
            });
            let events = event_stream(Body::from_stream(chunks));
            match sends_messages {
                true => server.encoded(accepted_coding(&request.headers), events),
                // Some clients of pokes forget the first half of an event that they read in two pieces, and what
                // decompresses for them cuts events wherever its buffer ends.
                false => events,
            }
        }
        Err(SubscribeError::Plain(message)) => {
            server.meters.refused("INVALID_REQUEST");
            let mut response = Response::new(Body::from(message));
            *response.status_mut() = StatusCode::BAD_REQUEST;
            let plain = HeaderValue::from_static("text/plain; charset=utf-8");
            response.headers_mut().insert(CONTENT_TYPE, plain);
            response
        }
        Err(SubscribeError::Problem(problem)) => server.refuse(&problem),
    }
}

pub(crate) fn event_stream(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    for (name, value) in [
        (CONTENT_TYPE, "text/event-stream"),
        (CACHE_CONTROL, "no-cache"),
        (CONNECTION, "keep-alive"),
        (ACCESS_CONTROL_ALLOW_ORIGIN, "*"),
        // A proxy would otherwise buffer messages until it has a page of them.
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn subscribe(server: &Arc<EventsApiServer>, request: &Parts) -> Result<SubscriberCursor, SubscribeError> {
    let caller = admit(server, request, &Method::GET).await?;
    let wanted = SubscribeRequest::read(request).map_err(SubscribeError::Plain)?;
    caller.may(RequiredScope::Read)?;
    let namespace = caller.namespace()?;
    Ok(SubscriberCursor::begin(server, namespace, wanted, caller.ended()))
}
