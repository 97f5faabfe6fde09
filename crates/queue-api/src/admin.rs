//! Queues as a whole: list, create, change, purge, pause, remove.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::{Map, Value, json};
use smol_str::SmolStr;
use thalweg_config::{Diagnostics, Node};
use thalweg_kit::blocking;
use thalweg_queue::names::{QueueChange, check_name, check_user_change};
use thalweg_queue::settings::QueueSettings;
use thalweg_queue::{Pause, Queue, QueueError};

use crate::json::JsonObject;
use crate::problem::{Problem, Result};
use crate::request::ApiRequest;
use crate::response;
use crate::routes::BASE;

pub async fn list(call: ApiRequest) -> Result<Response> {
    let queues = call.queues().all();
    Ok(blocking::work(queues.len() * QUEUE_WORK_BYTES, || {
        let queues: Vec<Value> = queues.iter().map(summary).collect();
        response::json(&json!({"queues": queues}))
    }))
}

pub async fn show(call: ApiRequest) -> Result<Response> {
    Ok(response::json(&shown(&call.queue()?)))
}

pub async fn create(mut call: ApiRequest) -> Result<Response> {
    let body = call.small_body().await?;
    let (node, diags) = mapping(&body)?;
    let (name, settings) = QueueSettings::read_named(&node, &diags);
    check(&diags)?;
    made(&call, &name, settings).await
}

/// Creates the queue, or replaces its settings; fields that are not given get their defaults.
pub async fn put(mut call: ApiRequest) -> Result<Response> {
    let name = SmolStr::new(call.name("queue"));
    let body = call.small_body().await?;
    let (node, diags) = mapping(&body)?;
    let settings = QueueSettings::read(&node, &diags);
    check(&diags)?;
    match call.queues().get(&name) {
        Ok(_) => configured(&call, &name, settings).await,
        Err(QueueError::QueueNotFound { .. }) => made(&call, &name, settings).await,
        Err(error) => Err(error.into()),
    }
}

/// Changes the given settings; `null` restores the default, or removes the value where there is none (RFC 7396).
pub async fn patch(mut call: ApiRequest) -> Result<Response> {
    let body = call.small_body().await?;
    let queue = call.queue()?;
    check_user_change(queue.name(), QueueChange::Configure)?;
    let mut settings = queue.settings().to_json();
    let (node, diags) = blocking::work(body.len(), || {
        merge(&mut settings, object(&body)?, &[]);
        node(&settings)
    })?;
    let settings = QueueSettings::read(&node, &diags);
    check(&diags)?;
    configured(&call, queue.name(), settings).await
}

pub async fn delete(call: ApiRequest) -> Result<Response> {
    let force = call.flag("force", false)?;
    let queue = call.queue()?;
    check_user_change(queue.name(), QueueChange::Delete)?;
    call.queues().remove(queue.name(), force).await?;
    Ok(response::nothing())
}

pub async fn purge(mut call: ApiRequest) -> Result<Response> {
    nothing_in(&call.small_body().await?)?;
    let queue = call.own_queue("purge")?;
    let purged = queue.purge().await?;
    Ok(response::json(&json!({"purged": purged})))
}

pub async fn pause(call: ApiRequest) -> Result<Response> {
    paused(call, true).await
}

pub async fn resume(call: ApiRequest) -> Result<Response> {
    paused(call, false).await
}

pub async fn stats(call: ApiRequest) -> Result<Response> {
    let queue = call.queue()?;
    Ok(blocking::work(stats_work_bytes(&queue), || {
        response::json(&queue.stats().to_json())
    }))
}

async fn paused(mut call: ApiRequest, paused: bool) -> Result<Response> {
    let body = call.small_body().await?;
    let asked = JsonObject::of_body(&body, &["what"])?;
    let what = match asked.text("what")?.as_deref() {
        None | Some("both") => Pause::Both,
        Some("produce") => Pause::Produce,
        Some("consume") => Pause::Consume,
        Some(_) => return Err(asked.wrong("what", "produce, consume or both")),
    };
    let queue = call.own_queue("pause")?;
    call.queues().pause(&queue, what, paused).await?;
    Ok(response::json(&json!({"paused": paused_of(&queue)})))
}

async fn made(call: &ApiRequest, name: &str, settings: QueueSettings) -> Result<Response> {
    check_name(name).map_err(|error| Problem::invalid(format!("name: {error}")))?;
    check_user_change(name, QueueChange::Create)?;
    let queue = call.queues().create(name, settings).await?;
    let mut response = response::json_with(StatusCode::CREATED, &shown(&queue));
    // Names of queues have only characters that headers can have.
    if let Ok(place) = HeaderValue::try_from(format!("{BASE}/queues/{name}")) {
        response.headers_mut().insert(header::LOCATION, place);
    }
    Ok(response)
}

async fn configured(call: &ApiRequest, name: &str, settings: QueueSettings) -> Result<Response> {
    check_user_change(name, QueueChange::Configure)?;
    call.queues().configure(name, settings).await?;
    Ok(response::json(&shown(&call.queues().get(name)?)))
}

/// The entry of a queue in the list, without anything that each partition would have to be asked for.
fn summary(queue: &Arc<Queue>) -> Value {
    json!({
        "name": queue.name().as_str(),
        "partitions": queue.partition_count(),
        "durability": queue.durability().name(),
        "depth": queue.depth(),
        "bytes": queue.bytes(),
        "groups": queue.group_count(),
        "paused": paused_of(queue),
    })
}

fn shown(queue: &Arc<Queue>) -> Value {
    json!({
        "name": queue.name().as_str(),
        "durability": queue.durability().name(),
        "depth": queue.depth(),
        "bytes": queue.bytes(),
        "paused": paused_of(queue),
        "settings": queue.settings().to_json(),
    })
}

fn paused_of(queue: &Queue) -> Value {
    json!({"produce": queue.is_producing_paused(), "consume": queue.is_consuming_paused()})
}

/// Listing one queue takes about as long as scanning this many bytes.
const QUEUE_WORK_BYTES: usize = 256;
/// The same for one partition of a group in statistics, each under its own lock.
pub const PART_WORK_BYTES: usize = 32;

/// The same for all statistics of a queue.
pub fn stats_work_bytes(queue: &Queue) -> usize {
    queue.partition_count() as usize * (1 + queue.group_count()) * PART_WORK_BYTES
}

/// Settings without a value, which their JSON leaves out.
const OPTIONAL: [&[&str]; 2] = [&["durability"], &["dlq", "webhook"]];

/// The settings are complete, so a missing field is an unknown name; the reader reports it.
fn merge(settings: &mut Value, change: Map<String, Value>, at: &[&str]) {
    let Some(fields) = settings.as_object_mut() else {
        return;
    };
    for (name, value) in change {
        let path: Vec<&str> = at.iter().copied().chain([name.as_str()]).collect();
        match value {
            Value::Null if fields.remove(&name).is_some() || OPTIONAL.contains(&path.as_slice()) => {}
            Value::Object(inner) if fields.get(&name).is_some_and(Value::is_object) => {
                if let Some(field) = fields.get_mut(&name) {
                    merge(field, inner, &path);
                }
            }
            value => drop(fields.insert(name, value)),
        }
    }
}

/// Reads a body with the configuration reader, so that settings are parsed in one way. It must be JSON first: the rest
/// of YAML (anchors, tags, several documents) has no place in a request.
pub fn mapping(body: &[u8]) -> Result<(Node, Diagnostics)> {
    blocking::work(body.len(), || node(&Value::Object(object(body)?)))
}

/// A body that is a JSON object; an empty body is an empty object.
fn object(body: &[u8]) -> Result<Map<String, Value>> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body };
    match serde_json::from_slice(body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Problem::invalid("the body is not a JSON object")),
        Err(error) => Err(Problem::invalid(format!("the body is not JSON: {error}"))),
    }
}

fn node(value: &Value) -> Result<(Node, Diagnostics)> {
    // JSON escapes that YAML lacks are plain characters in this text.
    let node = Node::parse(&value.to_string()).map_err(|error| Problem::invalid(format!("the body: {error}")))?;
    Ok((node, Diagnostics::new("body")))
}

/// All mistakes, without positions, because the text that was read is not the one that was sent.
pub fn check(diags: &Diagnostics) -> Result<()> {
    if !diags.has_errors() {
        return Ok(());
    }
    let mistakes: Vec<String> = diags.sorted().into_iter().map(|mistake| mistake.message).collect();
    Err(Problem::invalid(mistakes.join("; ")))
}

/// A request whose body must be empty.
pub fn nothing_in(body: &[u8]) -> Result<()> {
    JsonObject::of_body(body, &[]).map(drop)
}
