//! `POST /rpc`: an array of a method and its arguments; the response is its result or an error. The part of the method
//! name before the dot selects the file.

mod append;
mod methods;
mod namespaces;
mod retention;
mod snapshots;
mod streams;
mod subscriptions;
mod system;
mod tokens;

pub(crate) use subscriptions::write_message;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, Response};
use bytes::Bytes;
use futures::FutureExt as _;
use thalweg_events::EventsError;
use thalweg_events::json::Json;
use thalweg_http::compression::{accepted_coding, body_coding};
use thalweg_kit::blocking;

use crate::args::CallArgs;
use crate::auth::{Caller, admit};
use crate::error_kind::EventsApiErrorKind;
use crate::memory::ResponsePermit;
use crate::problem::{Problem, Result};
use crate::{EventsApiServer, body, log_answer};

/// No method reads more; further elements are ignored.
const ELEMENTS_MAX: usize = 8;

/// The response of a method.
pub(crate) enum RpcResponse {
    /// The complete text.
    Text(String),
    /// The complete text with its memory permit.
    Held(Bytes),
    /// A stream, for an array that is too long for memory.
    Stream(Body),
}

/// The caller and its arguments, as every method gets them.
#[derive(Clone, Copy)]
pub(crate) struct RpcCall<'a> {
    pub server: &'a Arc<EventsApiServer>,
    pub caller: &'a Caller,
    pub args: CallArgs<'a>,
}

pub(crate) async fn answer(server: Arc<EventsApiServer>, request: Request) -> Response<Body> {
    server.meters.request();
    let (method, accepted) = (request.method().clone(), accepted_coding(request.headers()));
    let done = AssertUnwindSafe(respond(&server, request)).catch_unwind().await;
    let response = match done.unwrap_or_else(|_| Err(Problem::bug())) {
        Ok(RpcResponse::Text(text)) => json_body(Body::from(text)),
        Ok(RpcResponse::Held(text)) => json_body(Body::from(text)),
        Ok(RpcResponse::Stream(body)) => json_body(body),
        Err(problem) => server.refuse(&problem),
    };
    log_answer(&method, "/rpc", &response);
    server.encoded(accepted, response)
}

fn json_body(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

async fn respond(server: &Arc<EventsApiServer>, request: Request) -> Result<RpcResponse> {
    let (parts, body) = request.into_parts();
    let caller = admit(server, &parts, &Method::POST).await?;
    let coding = body_coding(&parts.headers)?;
    let read = tokio::select! {
        read = body::read(&server.memory, body, coding) => read?,
        () = server.stopping.cancelled() => return Err(Problem::stopping()),
    };
    // From here on a call is completed even when the server stops.
    let _running = server.running.token();
    server.must_go_on()?;
    let elements = blocking::work(read.text.len(), || elements(&read.text))?;
    let Some((method, args)) = elements.split_first() else {
        return Err(Problem::invalid("Missing method name"));
    };
    let method = method
        .string()
        .ok_or_else(|| Problem::invalid("Method name must be a string"))?;
    let call = RpcCall {
        server,
        caller: &caller,
        args: CallArgs(args),
    };
    let mut room = ResponsePermit::default();
    loop {
        // The first step of a method reads its arguments.
        let mut text = match blocking::begin(read.text.len(), run(&method, call)).await? {
            RpcResponse::Text(text) => text,
            other => return Ok(other),
        };
        text.push('\n');
        let bytes = text.len();
        if !room.is_for(bytes) {
            drop(std::mem::take(&mut room));
            let now = server.memory.room_now(bytes);
            let is_given_up = now.is_none() && only_reads(&method);
            if is_given_up {
                drop(std::mem::take(&mut text));
            }
            room = match now {
                Some(now) => now,
                None => tokio::select! {
                    room = server.memory.room(bytes) => room,
                    () = server.stopping.cancelled() => return Err(Problem::stopping()),
                },
            };
            if is_given_up {
                continue;
            }
        }
        return Ok(RpcResponse::Held(room.hold(text)));
    }
}

/// The method and its arguments. Once per call, so a debugger can stop here at no cost.
#[inline(never)]
fn elements(text: &str) -> Result<Vec<Json<'_>>> {
    match Json::new(text) {
        null if null.is_null() => Ok(Vec::new()),
        array => {
            let all = array.array();
            let all = all.ok_or_else(|| Problem::malformed("expected an array"))?;
            Ok(all.take(ELEMENTS_MAX).collect())
        }
    }
}

async fn run(method: &str, call: RpcCall<'_>) -> Result<RpcResponse> {
    let unknown = || {
        let message = format!("Unknown method: {method}");
        Problem::new(EventsApiErrorKind::MethodNotFound, message)
    };
    if !methods::METHODS.contains(&method) {
        return Err(unknown());
    }
    let (family, name) = method.split_once('.').unwrap_or((method, ""));
    let done = match family {
        "stream" | "category" | "message" => streams::call(method, call).await,
        "ns" => namespaces::call(name, call).await,
        "token" => tokens::call(name, call).await,
        "retention" => retention::call(name, call).await,
        "sub" => subscriptions::call(name, call).await,
        "snapshot" => snapshots::call(name, call).await,
        "sys" => system::call(name, call).await,
        _ => None,
    };
    match done {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(problem)) => Err(told(&call, problem).await),
        None => Err(unknown()),
    }
}

/// Whether a method may be called again instead of keeping its result.
fn only_reads(method: &str) -> bool {
    matches!(
        method,
        "stream.get"
            | "stream.last"
            | "category.get"
            | "message.get"
            | "ns.list"
            | "ns.info"
            | "ns.streams"
            | "ns.categories"
            | "token.list"
            | "snapshot.get"
            | "sub.list"
            | "sub.info"
            | "sub.parked"
    )
}

/// An error of the storage about a namespace that was deleted meanwhile is not a failure: the namespace is reported as
/// not found.
async fn told(call: &RpcCall<'_>, problem: Problem) -> Problem {
    if !problem.status().is_server_error() {
        return problem;
    }
    let Ok(store) = call.server.store() else {
        return problem;
    };
    match store.namespace(&call.caller.name).await {
        Err(gone @ EventsError::NamespaceNotFound(_)) => gone.into(),
        _ => problem,
    }
}
