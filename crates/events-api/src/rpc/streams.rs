//! `stream.*`, `category.get`, `message.get`: messages in and out.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures::stream;
use thalweg_events::json::{Json, Kind};
use thalweg_events::{
    Append, Appended, CategoryRead, Direction, Expected, From, MessageId, Namespace, Page, Stored, StreamRead,
};

use super::{Answer, Call};
use crate::args::{Args, Message, Options, stream_within};
use crate::auth::Need;
use crate::problem::{Problem, Result};
use crate::write::{number, row};

const WAIT_MS_MAX: i64 = 30_000;
/// Of a message in a batch, as its mistakes are told.
const MESSAGE: &str = "message";

pub(super) async fn write(call: Call<'_>) -> Result<Answer> {
    let args = call.args;
    args.at_least(2, "stream.write requires at least 2 arguments: streamName and message")?;
    let stream = args.stream(0)?;
    let message = Message::read(args.object(1, "message must be an object")?, MESSAGE)?;
    let options = args.options(2)?;
    let id = options.id()?;
    let expected = options.expected()?;
    stream_within(&stream)?;
    message.within(call.server.options.message_bytes_max, MESSAGE)?;
    call.caller.may(Need::Write)?;
    let appends = [Append {
        stream: &stream,
        expected,
        events: vec![message.new_event(id)],
    }];
    let places = call.caller.namespace()?.append(&appends).await;
    let place = places
        .map_err(Problem::of("write message"))?
        .first()
        .copied()
        .unwrap_or_default();
    let mut out = String::with_capacity(64);
    out.push_str("{\"globalPosition\":");
    number(&mut out, place.first_global);
    out.push_str(",\"position\":");
    number(&mut out, place.first_position);
    if place.duplicate {
        out.push_str(",\"duplicate\":true");
    }
    out.push('}');
    Ok(Answer::Text(out))
}

/// Messages for one stream, with their ids.
struct Batch<'a> {
    stream: std::borrow::Cow<'a, str>,
    expected: Expected,
    messages: Vec<(Message<'a>, Option<MessageId>)>,
}

impl<'a> Batch<'a> {
    fn append(&self) -> Append<'_> {
        let events = self.messages.iter();
        Append {
            stream: &self.stream,
            expected: self.expected,
            events: events.map(|(message, id)| message.new_event(id.clone())).collect(),
        }
    }

    fn within(&self, bytes_max: usize) -> Result<()> {
        stream_within(&self.stream)?;
        self.messages
            .iter()
            .try_for_each(|(message, _)| message.within(bytes_max, MESSAGE))
    }
}

fn messages(json: Option<Json<'_>>) -> Result<Vec<(Message<'_>, Option<MessageId>)>> {
    let all = json.and_then(Json::array);
    let all = all.ok_or_else(|| Problem::invalid("messages must be an array"))?;
    let read = all.map(|json| {
        if json.kind() != Kind::Object {
            return Err(Problem::invalid("message must be an object"));
        }
        let message = Message::read(json, MESSAGE)?;
        let id = Args(&[json]).options(0)?.id().map_err(|problem| Problem {
            message: problem.message.replacen("options.", "message.", 1),
            ..problem
        })?;
        Ok((message, id))
    });
    let read: Vec<_> = read.collect::<Result<_>>()?;
    match read.is_empty() {
        true => Err(Problem::invalid("messages must not be empty")),
        false => Ok(read),
    }
}

pub(super) async fn append(call: Call<'_>) -> Result<Answer> {
    let args = call.args;
    args.at_least(
        2,
        "stream.append requires at least 2 arguments: streamName and messages",
    )?;
    let batch = Batch {
        stream: args.stream(0)?,
        messages: messages(args.0.get(1).copied())?,
        expected: args.options(2)?.expected()?,
    };
    let places = append_batches(&call, &[batch]).await?;
    let mut out = String::new();
    range(&mut out, places.first().copied().unwrap_or_default());
    Ok(Answer::Text(out))
}

pub(super) async fn append_many(call: Call<'_>) -> Result<Answer> {
    let args = call.args;
    args.at_least(1, "stream.appendMany requires 1 argument: appends")?;
    let all = args.0.first().copied().and_then(Json::array);
    let all = all.ok_or_else(|| Problem::invalid("appends must be an array"))?;
    let mut batches: Vec<Batch<'_>> = Vec::new();
    for json in all {
        if json.kind() != Kind::Object {
            return Err(Problem::invalid("append must be an object"));
        }
        let stream = json
            .get("stream")
            .and_then(Json::string)
            .filter(|stream| !stream.is_empty());
        let stream = stream.ok_or_else(|| Problem::invalid("append.stream must be a non-empty string"))?;
        if batches.iter().any(|batch| batch.stream == stream) {
            return Err(Problem::invalid(format!(
                "append.stream '{stream}' comes more than once"
            )));
        }
        let object = [json];
        batches.push(Batch {
            stream,
            messages: messages(json.get("messages"))?,
            expected: Args(&object).options(0)?.expected()?,
        });
    }
    if batches.is_empty() {
        return Err(Problem::invalid("appends must not be empty"));
    }
    let places = append_batches(&call, &batches).await?;
    let mut out = String::from("[");
    for (n, place) in places.into_iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        range(&mut out, place);
    }
    out.push(']');
    Ok(Answer::Text(out))
}

async fn append_batches(call: &Call<'_>, batches: &[Batch<'_>]) -> Result<Vec<Appended>> {
    let bytes_max = call.server.options.message_bytes_max;
    batches.iter().try_for_each(|batch| batch.within(bytes_max))?;
    call.caller.may(Need::Write)?;
    let appends: Vec<Append<'_>> = batches.iter().map(Batch::append).collect();
    let places = call.caller.namespace()?.append(&appends).await;
    places.map_err(|error| {
        let stream = match &error {
            thalweg_events::EventsError::VersionConflict { stream, .. } if appends.len() > 1 => Some(stream.clone()),
            _ => None,
        };
        let problem = Problem::of("write message")(error);
        match stream {
            Some(stream) => problem.with("stream", &stream),
            None => problem,
        }
    })
}

fn range(out: &mut String, place: Appended) {
    for (name, value) in [
        ("{\"count\":", place.count),
        (",\"firstPosition\":", place.first_position),
        (",\"lastPosition\":", place.last_position()),
        (",\"firstGlobalPosition\":", place.first_global),
        (",\"lastGlobalPosition\":", place.last_global()),
    ] {
        out.push_str(name);
        number(out, value);
    }
    out.push_str(if place.duplicate { ",\"duplicate\":true}" } else { "}" });
}

pub(super) async fn get(call: Call<'_>) -> Result<Answer> {
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
    call.caller.may(Need::Read)?;
    let from = match (global, position) {
        (Some(global), _) => Some(From::Global(global.max(0) as u64)),
        (None, Some(position)) => Some(From::Position(position.max(0) as u64)),
        (None, None) => None,
    };
    let namespace = call.caller.namespace()?.clone();
    let read = move |next: Option<u64>, max: usize| {
        let (namespace, stream, types) = (namespace.clone(), stream.clone(), types.clone());
        async move {
            let read = StreamRead {
                stream: &stream,
                from: next.map(From::Position).or(from),
                direction,
                max,
                types: &types,
            };
            namespace.read_stream(read).await.map_err(Problem::of("get messages"))
        }
    };
    pages(&call, read, max, wait, false).await
}

pub(super) async fn category(call: Call<'_>) -> Result<Answer> {
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
    call.caller.may(Need::Read)?;
    let from = global.or(position).map(|position| match direction {
        Direction::Forward => position.max(1) as u64,
        Direction::Backward => position.max(0) as u64,
    });
    let namespace = call.caller.namespace()?.clone();
    // No category and no correlation has a `-` in its name.
    let nothing = category.contains('-') || correlation.as_ref().is_some_and(|text| text.contains('-'));
    let read = move |next: Option<u64>, max: usize| {
        let (namespace, category, types) = (namespace.clone(), category.clone(), types.clone());
        let correlation = correlation.clone();
        async move {
            if nothing {
                return Ok(Page::default());
            }
            let read = CategoryRead {
                category: Some(&*category).filter(|category| !category.is_empty()),
                from: next.or(from),
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

fn wait(options: Options<'_>) -> Result<Duration> {
    let ms = options.number("waitMs")?.unwrap_or(0);
    match (0..=WAIT_MS_MAX).contains(&ms) {
        true => Ok(Duration::from_millis(ms.unsigned_abs())),
        false => Err(Problem::invalid("options.waitMs must be between 0 and 30000")),
    }
}

/// An array of messages, read page by page: what is longer than one page goes out while the next is read.
async fn pages<R, F>(call: &Call<'_>, read: R, max: usize, wait: Duration, with_stream: bool) -> Result<Answer>
where
    R: Fn(Option<u64>, usize) -> F + Send + 'static,
    F: Future<Output = Result<Page>> + Send,
{
    let page = match wait.is_zero() {
        true => read(None, max).await?,
        false => first_match(call, &read, max, wait).await?,
    };
    let mut out = String::with_capacity(2 + page.events.iter().map(|event| event.bytes() + 128).sum::<usize>());
    out.push('[');
    rows(&mut out, &page.events, true, with_stream);
    let left = max - page.events.len();
    if left == 0 || page.next.is_none() {
        out.push(']');
        return Ok(Answer::Text(out));
    }
    let some = !page.events.is_empty();
    let begun = Some((read, page.next, left, some, Some(out)));
    let chunks = stream::try_unfold(begun, move |state| async move {
        let Some((read, next, left, some, first)) = state else {
            return Ok(None);
        };
        if let Some(first) = first {
            return Ok(Some((Bytes::from(first), Some((read, next, left, some, None)))));
        }
        let page = match next.filter(|_| left > 0) {
            Some(_) => read(next, left)
                .await
                .map_err(|problem| std::io::Error::other(problem.message))?,
            None => return Ok(Some((Bytes::from_static(b"]\n"), None))),
        };
        let mut out = String::new();
        rows(&mut out, &page.events, !some, with_stream);
        let some = some || !page.events.is_empty();
        let left = left - page.events.len();
        Ok::<_, std::io::Error>(Some((Bytes::from(out), Some((read, page.next, left, some, None)))))
    });
    Ok(Answer::Stream(Body::from_stream(chunks)))
}

/// A page with something in it, or an empty one when time is up.
async fn first_match<R, F>(call: &Call<'_>, read: &R, max: usize, wait: Duration) -> Result<Page>
where
    R: Fn(Option<u64>, usize) -> F,
    F: Future<Output = Result<Page>>,
{
    let mut visible = call.caller.namespace()?.watch();
    let until = tokio::time::Instant::now() + wait;
    loop {
        visible.borrow_and_update();
        let page = read(None, max).await?;
        if !page.events.is_empty() || page.next.is_some() {
            return Ok(page);
        }
        match tokio::time::timeout_at(until, visible.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return Ok(page),
        }
    }
}

fn rows(out: &mut String, events: &[Stored], first: bool, with_stream: bool) {
    for (n, stored) in events.iter().enumerate() {
        if n > 0 || !first {
            out.push(',');
        }
        row(out, stored, with_stream);
    }
}

fn row_or_null(stored: Option<Stored>, with_stream: bool) -> Answer {
    let mut out = String::new();
    match stored {
        Some(stored) => row(&mut out, &stored, with_stream),
        None => out.push_str("null"),
    }
    Answer::Text(out)
}

pub(super) async fn last(call: Call<'_>) -> Result<Answer> {
    let args = call.args;
    args.at_least(1, "stream.last requires at least 1 argument: streamName")?;
    let stream = args.stream(0)?;
    let kind = args.options(1)?.string("type")?.filter(|kind| !kind.is_empty());
    call.caller.may(Need::Read)?;
    let found = call.caller.namespace()?.last(&stream, kind.as_deref()).await;
    Ok(row_or_null(found.map_err(Problem::of("get last message"))?, false))
}

pub(super) async fn version(call: Call<'_>) -> Result<Answer> {
    call.args
        .at_least(1, "stream.version requires 1 argument: streamName")?;
    let stream = call.args.stream(0)?;
    call.caller.may(Need::Read)?;
    let version = call.caller.namespace()?.version(&stream).await;
    let version = version.map_err(Problem::of("get stream version"))?;
    Ok(Answer::Text(match version {
        ..0 => "null".to_owned(),
        version => version.to_string(),
    }))
}

pub(super) async fn message(call: Call<'_>) -> Result<Answer> {
    call.args.at_least(1, "message.get requires 1 argument: id")?;
    let id = call.args.non_empty(0, "id must be a non-empty string")?;
    call.caller.may(Need::Read)?;
    let namespace: &Arc<dyn Namespace> = call.caller.namespace()?;
    let found = namespace.by_id(&MessageId::of(&id)).await;
    Ok(row_or_null(found.map_err(Problem::of("get messages"))?, true))
}
