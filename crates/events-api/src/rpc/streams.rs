//! `stream.*`, `category.get`, `message.get`: reading messages, and deleting streams.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use thalweg_events::names::is_category;
use thalweg_events::{CategoryRead, Direction, MessageId, Namespace, Page, StoredEvent, StreamPosition, StreamRead};
use thalweg_kit::{blocking, clock};

use super::{RpcCall, RpcResponse, append};
use crate::args::CallOptions;
use crate::auth::RequiredScope;
use crate::json_text::{row, text};
use crate::problem::{Problem, Result};

const WAIT_MS_MAX: i64 = 30_000;
/// A caller that waits for a rare match in a busy namespace pauses this many times as long as its last read took.
const READING_PART: u32 = 4;
const REST_MIN: Duration = Duration::from_millis(1);

pub(super) async fn call(method: &str, call: RpcCall<'_>) -> Option<Result<RpcResponse>> {
    Some(match method {
        "stream.write" => append::write(call).await,
        "stream.append" => append::append(call).await,
        "stream.appendMany" => append::append_many(call).await,
        "stream.get" => get(call).await,
        "stream.last" => last(call).await,
        "stream.version" => version(call).await,
        "stream.delete" => delete(call).await,
        "category.get" => category(call).await,
        "message.get" => message(call).await,
        _ => return None,
    })
}

async fn get(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(1, "stream.get requires at least 1 argument: streamName")?;
    let stream: Arc<str> = args.stream(0)?.into();
    let options = args.options(1)?;
    let position = options.number("position")?;
    let global = options.number("globalPosition")?;
    let max = options.batch_size()?;
    let direction = options.direction()?;
    let types: Arc<[String]> = options.types()?.into();
    let wait = wait(options)?;
    call.caller.may(RequiredScope::Read)?;
    let from = match (global, position) {
        (Some(global), _) => Some(StreamPosition::Global(global.max(0) as u64)),
        (None, Some(position)) => Some(StreamPosition::Position(position.max(0) as u64)),
        (None, None) => None,
    };
    let namespace = call.caller.namespace()?.clone();
    let read = move |place: PageStart, max: usize| {
        let (namespace, stream, types) = (namespace.clone(), stream.clone(), types.clone());
        async move {
            let read = StreamRead {
                stream: &stream,
                from: match place {
                    PageStart::Asked => from,
                    PageStart::Next(next) => Some(StreamPosition::Position(next)),
                    PageStart::First => None,
                },
                direction,
                max,
                types: &types,
            };
            namespace.read_stream(read).await.map_err(Problem::of("get messages"))
        }
    };
    pages(&call, read, max, wait, false).await
}

async fn category(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(1, "category.get requires at least 1 argument: categoryName")?;
    let category: Arc<str> = args.string(0, "categoryName must be a string")?.into();
    let options = args.options(1)?;
    let position = options.number("position")?;
    let global = options.number("globalPosition")?;
    let max = options.batch_size()?;
    let correlation: Option<Arc<str>> = options
        .string("correlation")?
        .filter(|text| !text.is_empty())
        .map(Into::into);
    let member = options.member()?;
    let direction = options.direction()?;
    let types: Arc<[String]> = options.types()?.into();
    let wait = wait(options)?;
    call.caller.may(RequiredScope::Read)?;
    let from = global.or(position).map(|position| match direction {
        Direction::Forward => position.max(1) as u64,
        Direction::Backward => position.max(0) as u64,
    });
    let namespace = call.caller.namespace()?.clone();
    // A correlation is a category, too.
    let nothing = !is_category(&category) || correlation.as_ref().is_some_and(|text| !is_category(text));
    let read = move |place: PageStart, max: usize| {
        let (namespace, category, types) = (namespace.clone(), category.clone(), types.clone());
        let correlation = correlation.clone();
        async move {
            if nothing {
                return Ok(Page::default());
            }
            let read = CategoryRead {
                category: Some(&*category).filter(|category| !category.is_empty()),
                from: match place {
                    PageStart::Asked => from,
                    PageStart::Next(next) => Some(next),
                    PageStart::First => None,
                },
                direction,
                max,
                correlation: correlation.as_deref(),
                member,
                types: &types,
            };
            namespace
                .read_category(read)
                .await
                .map_err(Problem::of("get category messages"))
        }
    };
    pages(&call, read, max, wait, true).await
}

fn wait(options: CallOptions<'_>) -> Result<Duration> {
    let ms = options.number("waitMs")?.unwrap_or(0);
    match (0..=WAIT_MS_MAX).contains(&ms) {
        true => Ok(Duration::from_millis(ms.unsigned_abs())),
        false => Err(Problem::invalid("options.waitMs must be between 0 and 30000")),
    }
}

/// An array of messages, read page by page: a long result is sent while the next page is read.
async fn pages<R, F>(call: &RpcCall<'_>, read: R, max: usize, wait: Duration, with_stream: bool) -> Result<RpcResponse>
where
    R: Fn(PageStart, usize) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Page>> + Send,
{
    let (meters, memory) = (call.server.meters.of(&call.caller.name), call.server.memory.clone());
    let first = || async {
        match wait.is_zero() {
            true => read(PageStart::Asked, max).await,
            false => first_match(call, &read, max, wait).await,
        }
    };
    let (page, room) = tokio::select! {
        read = memory.read(first, text_bytes) => read?,
        () = call.server.stopping.cancelled() => return Err(Problem::stopping()),
    };
    meters.read(page.events.len());
    let mut out = String::with_capacity(3 + text_bytes(&page));
    out.push('[');
    rows(&mut out, &page, true, with_stream);
    let left = max.saturating_sub(page.events.len());
    if left == 0 || page.next.is_none() {
        out.push_str("]\n");
        return Ok(RpcResponse::Held(room.hold(out)));
    }
    let some = !page.events.is_empty();
    let begun = Some((read, page.next, left, some, Some(room.hold(out))));
    drop((page, room));
    let stopping = call.server.stopping.clone();
    let chunks = stream::try_unfold(begun, move |state| {
        let (meters, memory, stopping) = (meters.clone(), memory.clone(), stopping.clone());
        async move {
            let Some((read, next, left, some, first)) = state else {
                return Ok(None);
            };
            if let Some(first) = first {
                return Ok(Some((first, Some((read, next, left, some, None)))));
            }
            let Some(next) = next.filter(|_| left > 0) else {
                return Ok(Some((Bytes::from_static(b"]\n"), None)));
            };
            // A truncated array must not look complete.
            if stopping.is_cancelled() {
                return Err(std::io::Error::other("the server is shutting down"));
            }
            let read_on = memory.read(|| read(PageStart::Next(next), left), text_bytes);
            let (page, room) = read_on
                .await
                .map_err(|problem| std::io::Error::other(problem.message))?;
            meters.read(page.events.len());
            let mut out = String::with_capacity(text_bytes(&page));
            rows(&mut out, &page, !some, with_stream);
            let some = some || !page.events.is_empty();
            let left = left.saturating_sub(page.events.len());
            let next = page.next;
            drop(page);
            Ok::<_, std::io::Error>(Some((room.hold(out), Some((read, next, left, some, None)))))
        }
    });
    Ok(RpcResponse::Stream(Body::from_stream(chunks)))
}

/// The approximate size of the messages as text.
fn text_bytes(page: &Page) -> usize {
    page.events.iter().map(|event| event.bytes() + 128).sum()
}

/// Where a page begins.
#[derive(Clone, Copy)]
enum PageStart {
    /// Where the caller asked.
    Asked,
    /// After the previous page.
    Next(u64),
    /// At the first message: the namespace was cleared while the caller waited.
    First,
}

/// The first page that is not empty, or an empty page after the timeout.
async fn first_match<R, F>(call: &RpcCall<'_>, read: &R, max: usize, wait: Duration) -> Result<Page>
where
    R: Fn(PageStart, usize) -> F,
    F: Future<Output = Result<Page>>,
{
    let mut visible = call.caller.namespace()?.watch();
    let began = clock::tokio_now();
    let until = began + wait;
    let cleared = visible.borrow().cleared;
    let mut ended = call.caller.ended();
    let mut gone = false;
    loop {
        let place = match visible.borrow_and_update().cleared == cleared {
            true => PageStart::Asked,
            false => PageStart::First,
        };
        let reading = clock::tokio_now();
        let page = read(place, max).await?;
        if !page.events.is_empty() || page.next.is_some() || gone {
            return Ok(page);
        }
        let rest = reading.elapsed() * READING_PART;
        let changed = async {
            if rest >= REST_MIN {
                tokio::time::sleep(rest).await;
            }
            visible.changed().await
        };
        tokio::select! {
            changed = changed => gone = changed.is_err(),
            () = tokio::time::sleep_until(until) => return Ok(page),
            () = &mut ended => return Err(Problem::unauthorized(&call.caller.name)),
            () = call.server.stopping.cancelled() => return Err(Problem::stopping()),
        }
    }
}

fn rows(out: &mut String, page: &Page, first: bool, with_stream: bool) {
    blocking::work(text_bytes(page), || {
        for (n, stored) in page.events.iter().enumerate() {
            if n > 0 || !first {
                out.push(',');
            }
            row(out, stored, with_stream);
        }
    });
}

fn row_or_null(stored: Option<StoredEvent>, with_stream: bool) -> RpcResponse {
    let mut out = String::new();
    match stored {
        Some(stored) => row(&mut out, &stored, with_stream),
        None => out.push_str("null"),
    }
    RpcResponse::Text(out)
}

async fn last(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(1, "stream.last requires at least 1 argument: streamName")?;
    let stream = args.stream(0)?;
    let kind = args.options(1)?.string("type")?.filter(|kind| !kind.is_empty());
    call.caller.may(RequiredScope::Read)?;
    let found = call.caller.namespace()?.last(&stream, kind.as_deref()).await;
    Ok(row_or_null(found.map_err(Problem::of("get last message"))?, false))
}

async fn version(call: RpcCall<'_>) -> Result<RpcResponse> {
    call.args
        .at_least(1, "stream.version requires 1 argument: streamName")?;
    let stream = call.args.stream(0)?;
    call.caller.may(RequiredScope::Read)?;
    let version = call.caller.namespace()?.version(&stream).await;
    let version = version.map_err(Problem::of("get stream version"))?;
    Ok(RpcResponse::Text(match version {
        ..0 => "null".to_owned(),
        version => version.to_string(),
    }))
}

async fn message(call: RpcCall<'_>) -> Result<RpcResponse> {
    call.args.at_least(1, "message.get requires 1 argument: id")?;
    let id = call.args.non_empty(0, "id must be a non-empty string")?;
    call.caller.may(RequiredScope::Read)?;
    let namespace: &Arc<dyn Namespace> = call.caller.namespace()?;
    let found = namespace.by_id(&MessageId::of(&id)).await;
    Ok(row_or_null(found.map_err(Problem::of("get messages"))?, true))
}

/// Hides all messages of a stream. Later messages continue after them, unless the stream is tombstoned.
async fn delete(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(1, "stream.delete requires at least 1 argument: streamName")?;
    let stream = args.stream(0)?;
    let options = args.options(1)?;
    let expected = options.expected()?;
    let tombstone = options.bool("tombstone")?;
    call.caller.may(RequiredScope::Write)?;
    let namespace = call.caller.namespace()?;
    let deleted = namespace.delete_stream(&stream, expected, tombstone).await;
    deleted.map_err(Problem::of("delete stream"))?;
    let mut out = String::from("{\"stream\":");
    text(&mut out, &stream);
    out.push_str(if tombstone {
        ",\"tombstone\":true}"
    } else {
        ",\"tombstone\":false}"
    });
    Ok(RpcResponse::Text(out))
}
