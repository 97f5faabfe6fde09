//! Appends: one message, several for a stream, or several for several streams at once.

use std::borrow::Cow;
use std::collections::HashSet;

use thalweg_events::json::{Json, JsonKind};
use thalweg_events::limits::AppendSize;
use thalweg_events::{Append, AppendOutcome, BrokenLimit, EventsError, ExpectedVersion, MessageId};
use thalweg_kit::clock;

use super::{RpcCall, RpcResponse};
use crate::args::{CallOptions, MessageArg, stream_within};
use crate::auth::RequiredScope;
use crate::json_text::number;
use crate::problem::{Problem, Result};

/// The name of a message of a batch in error messages.
const MESSAGE: &str = "message";

pub(super) async fn write(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(2, "stream.write requires at least 2 arguments: streamName and message")?;
    let stream = args.stream(0)?;
    let message = MessageArg::read(args.object(1, "message must be an object")?, MESSAGE)?;
    let options = args.options(2)?;
    let id = options.id()?;
    let expected = options.expected()?;
    stream_within(&stream)?;
    message.within(call.server.options.message_bytes_max)?;
    call.caller.may(RequiredScope::Write)?;
    let appends = [Append {
        stream: &stream,
        expected,
        events: vec![message.new_event(id)],
    }];
    let place = store(&call, &appends)
        .await
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
    Ok(RpcResponse::Text(out))
}

/// The only call of the store's append; measures its duration.
async fn store(call: &RpcCall<'_>, appends: &[Append<'_>]) -> thalweg_events::Result<Vec<AppendOutcome>> {
    let Ok(namespace) = call.caller.namespace() else {
        return Err(EventsError::NamespaceNotFound(call.caller.name.clone()));
    };
    let began = clock::now();
    let places = namespace.append(appends).await?;
    let messages = appends.iter().map(|append| append.events.len() as u64).sum();
    call.server
        .meters
        .appended(namespace.name(), appends.len(), messages, began.elapsed());
    Ok(places)
}

/// Messages for one stream, with their ids.
struct Batch<'a> {
    stream: Cow<'a, str>,
    expected: ExpectedVersion,
    messages: Vec<(MessageArg<'a>, Option<MessageId>)>,
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
            .try_for_each(|(message, _)| message.within(bytes_max))
    }
}

/// Counts while it reads, so that nothing of an oversized append is kept.
fn messages<'a>(
    json: Option<Json<'a>>,
    stream: &str,
    size: &mut AppendSize,
) -> Result<Vec<(MessageArg<'a>, Option<MessageId>)>> {
    let all = json.and_then(Json::array);
    let all = all.ok_or_else(|| Problem::invalid("messages must be an array"))?;
    let mut read = Vec::new();
    for json in all {
        if json.kind() != JsonKind::Object {
            return Err(Problem::invalid("message must be an object"));
        }
        let message = MessageArg::read(json, MESSAGE)?;
        let id = CallOptions::of(json).id().map_err(|problem| Problem {
            message: problem.message.replacen("options.", "message.", 1),
            ..problem
        })?;
        size.add_message(stream, message.bytes())?;
        read.push((message, id));
    }
    match read.is_empty() {
        true => Err(Problem::invalid("messages must not be empty")),
        false => Ok(read),
    }
}

pub(super) async fn append(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(
        2,
        "stream.append requires at least 2 arguments: streamName and messages",
    )?;
    let stream = args.stream(0)?;
    let batch = Batch {
        messages: messages(args.get(1), &stream, &mut AppendSize::default())?,
        stream,
        expected: args.options(2)?.expected()?,
    };
    let places = append_batches(&call, &[batch], false).await?;
    let mut out = String::new();
    range(&mut out, places.first().copied().unwrap_or_default());
    Ok(RpcResponse::Text(out))
}

pub(super) async fn append_many(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(1, "stream.appendMany requires 1 argument: appends")?;
    let all = args.get(0).and_then(Json::array);
    let all = all.ok_or_else(|| Problem::invalid("appends must be an array"))?;
    let (mut batches, mut size, mut seen) = (Vec::new(), AppendSize::default(), HashSet::new());
    for json in all {
        if json.kind() != JsonKind::Object {
            return Err(Problem::invalid("append must be an object"));
        }
        let stream = json.get("stream").and_then(Json::string);
        let stream = stream.filter(|stream| !stream.is_empty());
        let stream = stream.ok_or_else(|| Problem::invalid("append.stream must be a non-empty string"))?;
        size.add_stream()?;
        if !seen.insert(stream.clone()) {
            return Err(BrokenLimit::RepeatedStream(stream.into_owned()).into());
        }
        batches.push(Batch {
            messages: messages(json.get("messages"), &stream, &mut size)?,
            stream,
            expected: CallOptions::of(json).expected().map_err(|problem| Problem {
                message: problem.message.replacen("options.", "append.", 1),
                ..problem
            })?,
        });
    }
    if batches.is_empty() {
        return Err(Problem::invalid("appends must not be empty"));
    }
    let places = append_batches(&call, &batches, true).await?;
    let mut out = String::from("[");
    for (n, place) in places.into_iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        range(&mut out, place);
    }
    out.push(']');
    Ok(RpcResponse::Text(out))
}

/// With `many`, a conflict names its stream.
async fn append_batches(call: &RpcCall<'_>, batches: &[Batch<'_>], many: bool) -> Result<Vec<AppendOutcome>> {
    let bytes_max = call.server.options.message_bytes_max;
    batches.iter().try_for_each(|batch| batch.within(bytes_max))?;
    call.caller.may(RequiredScope::Write)?;
    let appends: Vec<Append<'_>> = batches.iter().map(Batch::append).collect();
    store(call, &appends).await.map_err(|error| {
        let stream = match &error {
            EventsError::VersionConflict { stream, .. } if many => Some(stream.clone()),
            _ => None,
        };
        let problem = Problem::of("write message")(error);
        match stream {
            Some(stream) => problem.with("stream", &stream),
            None => problem,
        }
    })
}

fn range(out: &mut String, place: AppendOutcome) {
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
