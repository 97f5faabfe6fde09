//! `snapshot.*`: the state of a stream at a version.

use thalweg_events::json::{Json, JsonKind};
use thalweg_events::limits::TYPE_BYTES_MAX;
use thalweg_events::snapshot::{self, Snapshot};
use thalweg_events::time;

use super::{RpcCall, RpcResponse};
use crate::args::{name_within, stream_within};
use crate::auth::RequiredScope;
use crate::json_text::{instant, number, text};
use crate::problem::{Problem, Result};

pub(super) async fn call(name: &str, call: RpcCall<'_>) -> Option<Result<RpcResponse>> {
    Some(match name {
        "put" => put(call).await,
        "get" => get(call).await,
        _ => return None,
    })
}

async fn put(call: RpcCall<'_>) -> Result<RpcResponse> {
    let args = call.args;
    args.at_least(2, "snapshot.put requires at least 2 arguments: streamName and snapshot")?;
    let stream = args.stream(0)?;
    let object = args.object(1, "snapshot must be an object")?;
    let wrong = |what: &str| Problem::invalid(format!("snapshot{what}"));
    let version = object.get("version").and_then(Json::integer);
    let version = version.ok_or_else(|| wrong(".version must be a number"))?;
    if version < 0 {
        return Err(wrong(".version must be non-negative"));
    }
    let kind = object
        .get("type")
        .and_then(Json::string)
        .filter(|kind| !kind.is_empty());
    let kind = kind.ok_or_else(|| wrong(".type must be a non-empty string"))?;
    let data = object.get("data").filter(|data| data.kind() == JsonKind::Object);
    let data = data.ok_or_else(|| wrong(".data must be an object"))?.text();
    stream_within(&stream)?;
    name_within(&kind, TYPE_BYTES_MAX, "snapshot.type")?;
    let (size, bytes_max) = (kind.len() + data.len(), call.server.options.message_bytes_max);
    if size > bytes_max {
        return Err(wrong(&format!(" size {size} exceeds the limit of {bytes_max} bytes")));
    }
    call.caller.may(RequiredScope::Write)?;
    let snapshot = Snapshot {
        version: version.unsigned_abs(),
        kind: kind.into_owned(),
        data: data.to_owned(),
        time: time::now(),
    };
    let kept = snapshot::put(call.caller.namespace()?.as_ref(), &stream, &snapshot).await;
    let kept = kept.map_err(Problem::of("put snapshot"))?;
    Ok(RpcResponse::Text(format!(
        "{{\"version\":{},\"stored\":{}}}",
        kept.version, kept.stored
    )))
}

async fn get(call: RpcCall<'_>) -> Result<RpcResponse> {
    call.args.at_least(1, "snapshot.get requires 1 argument: streamName")?;
    let stream = call.args.stream(0)?;
    stream_within(&stream)?;
    call.caller.may(RequiredScope::Read)?;
    let found = snapshot::get(call.caller.namespace()?.as_ref(), &stream).await;
    let Some(snapshot) = found.map_err(Problem::of("get snapshot"))? else {
        return Ok(RpcResponse::Text("null".to_owned()));
    };
    let mut out = String::with_capacity(96 + snapshot.data.len());
    out.push_str("{\"version\":");
    number(&mut out, snapshot.version);
    out.push_str(",\"type\":");
    text(&mut out, &snapshot.kind);
    out.push_str(",\"data\":");
    out.push_str(&snapshot.data);
    out.push_str(",\"time\":");
    instant(&mut out, Some(snapshot.time));
    out.push('}');
    Ok(RpcResponse::Text(out))
}
