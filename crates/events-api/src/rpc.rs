//! `POST /rpc`: an array of a method and its arguments, and its result or what is wrong.

mod namespaces;
mod snapshots;
mod streams;
mod subscriptions;
mod system;

pub(crate) use subscriptions::write_message;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, Response, StatusCode};
use futures::TryStreamExt as _;
use thalweg_events::json::{self, Json};

use crate::args::Args;
use crate::auth::{Caller, authenticate};
use crate::problem::{Problem, Result};
use crate::{Server, query_value};

/// Bytes of a request.
const BODY_MAX: usize = 100 << 20;

/// What a method answers with.
pub(crate) enum Answer {
    /// The whole of it.
    Text(String),
    /// As it comes: an array that is too long to be in memory.
    Stream(Body),
}

/// The caller and what it asks, as all methods get it.
pub(crate) struct Call<'a> {
    pub server: &'a Arc<Server>,
    pub caller: &'a Caller,
    pub args: Args<'a>,
}

pub(crate) async fn answer(server: Arc<Server>, request: Request) -> Response<Body> {
    match respond(&server, request).await {
        Ok(Answer::Text(mut text)) => {
            text.push('\n');
            json_body(Body::from(text))
        }
        Ok(Answer::Stream(body)) => json_body(body),
        Err(problem) => problem.answer(),
    }
}

fn json_body(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}

async fn respond(server: &Arc<Server>, request: Request) -> Result<Answer> {
    let (parts, body) = request.into_parts();
    let token = query_value(parts.uri.query(), "token");
    let store = server.store.as_ref();
    let caller = authenticate(store, server.options.test_mode, &parts.headers, token.as_deref()).await?;
    if parts.method != Method::POST {
        return Err(Problem {
            status: StatusCode::METHOD_NOT_ALLOWED,
            ..Problem::invalid("Only POST method allowed")
        });
    }
    let text = read(body).await?;
    let elements: Vec<Json<'_>> = match Json::new(&text) {
        null if null.is_null() => Vec::new(),
        array => array
            .array()
            .ok_or_else(|| Problem::malformed("expected an array"))?
            .collect(),
    };
    let Some((method, args)) = elements.split_first() else {
        return Err(Problem::invalid("Missing method name"));
    };
    let method = method
        .string()
        .ok_or_else(|| Problem::invalid("Method name must be a string"))?;
    let call = Call {
        server,
        caller: &caller,
        args: Args(args),
    };
    match method.as_ref() {
        "stream.write" => streams::write(call).await,
        "stream.append" => streams::append(call).await,
        "stream.appendMany" => streams::append_many(call).await,
        "stream.get" => streams::get(call).await,
        "stream.last" => streams::last(call).await,
        "stream.version" => streams::version(call).await,
        "category.get" => streams::category(call).await,
        "message.get" => streams::message(call).await,
        "ns.create" => namespaces::create(call).await,
        "ns.delete" => namespaces::delete(call).await,
        "ns.list" => namespaces::list(call).await,
        "ns.info" => namespaces::info(call).await,
        "ns.streams" => namespaces::streams(call).await,
        "ns.categories" => namespaces::categories(call).await,
        "sys.version" => system::version(call),
        "sys.health" => system::health(call),
        "snapshot.put" => snapshots::put(call).await,
        "snapshot.get" => snapshots::get(call).await,
        of if of.starts_with("sub.") && subscriptions::is_known(of) => subscriptions::answer(of, call).await,
        other => {
            let message = format!("Unknown method: {other}");
            Err(Problem::new(StatusCode::NOT_FOUND, "METHOD_NOT_FOUND", message))
        }
    }
}

/// The body, without white space.
async fn read(body: Body) -> Result<String> {
    let mut stream = body.into_data_stream();
    let gone = |_| Problem::malformed("the request ended early");
    let Some(first) = stream.try_next().await.map_err(gone)? else {
        return Err(Problem::malformed("empty body"));
    };
    let mut text = String::new();
    let Some(second) = stream.try_next().await.map_err(gone)? else {
        compact(&first, &mut text)?;
        return Ok(text);
    };
    let mut whole = [first, second].concat();
    loop {
        if whole.len() > BODY_MAX {
            let message = format!("Request body exceeds {BODY_MAX} bytes");
            return Err(Problem::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "PAYLOAD_TOO_LARGE",
                message,
            ));
        }
        match stream.try_next().await.map_err(gone)? {
            Some(more) => whole.extend_from_slice(&more),
            None => break,
        }
    }
    compact(&whole, &mut text)?;
    Ok(text)
}

fn compact(bytes: &[u8], text: &mut String) -> Result<()> {
    text.reserve(bytes.len());
    json::compact(bytes, text).map_err(|error| Problem::malformed(&error.to_string()))
}
