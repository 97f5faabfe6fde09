//! Groups of a queue: list, declare, seek, pause, remove.

use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Value, json};
use thalweg_config::Fields;
use thalweg_kit::blocking;
use thalweg_queue::names::check_name;
use thalweg_queue::settings::{GroupSettings, GroupStart};
use thalweg_queue::{Group, Pause, QueueError, SeekTo};

use crate::admin::{PART_WORK_BYTES, check, mapping, nothing_in, stats_work_bytes};
use crate::json::JsonObject;
use crate::problem::{Problem, Result};
use crate::request::ApiRequest;
use crate::response;

pub async fn list(call: ApiRequest) -> Result<Response> {
    let queue = call.queue()?;
    Ok(blocking::work(stats_work_bytes(&queue), || {
        let groups: Vec<Value> = queue.groups().iter().map(|group| shown_of(group)).collect();
        response::json(&json!({"groups": groups}))
    }))
}

pub async fn show(call: ApiRequest) -> Result<Response> {
    let queue = call.queue()?;
    Ok(response::json(&shown(&*call.group(&queue)?)))
}

/// Declares a group, which then does not expire. Repeating the request is no error.
pub async fn put(mut call: ApiRequest) -> Result<Response> {
    let body = call.small_body().await?;
    let queue = call.own_queue("change groups of")?;
    let name = call.name("group");
    check_name(name).map_err(|error| Problem::invalid(format!("group: {error}")))?;
    let (node, diags) = mapping(&body)?;
    let settings = GroupSettings::read_unnamed(name, Fields::new(&node, &diags));
    check(&diags)?;
    let status = match queue.group(name) {
        Ok(group) if group.is_declared() && *group.settings() == settings => return Ok(response::json(&shown(&group))),
        // A consumer has created it.
        Ok(_) => StatusCode::OK,
        Err(QueueError::GroupNotFound { .. }) => StatusCode::CREATED,
        Err(error) => return Err(error.into()),
    };
    let group = call.queues().create_group(&queue, settings).await?;
    Ok(response::json_with(status, &shown(&group)))
}

pub async fn delete(call: ApiRequest) -> Result<Response> {
    let queue = call.own_queue("change groups of")?;
    call.queues().remove_group(&queue, call.name("group")).await?;
    Ok(response::nothing())
}

pub async fn commit(mut call: ApiRequest) -> Result<Response> {
    let body = call.small_body().await?;
    let queue = call.own_queue("commit in")?;
    let group = call.group(&queue)?;
    let asked = JsonObject::of_body(&body, &["partition", "offset"])?;
    let partition = asked.number("partition", 0..=u32::MAX.into())?;
    let partition = partition.ok_or_else(|| asked.wrong("partition", "the number of a partition"))?;
    let offset = asked.number("offset", 0..=u64::MAX)?;
    let offset = offset.ok_or_else(|| asked.wrong("offset", "the first offset that is not done"))?;
    queue
        .commit(&group, u32::try_from(partition).unwrap_or(u32::MAX), offset)
        .await?;
    call.shared.stream_settled.notify_waiters();
    Ok(response::json(&shown(&group)))
}

pub async fn seek(mut call: ApiRequest) -> Result<Response> {
    let body = call.small_body().await?;
    let queue = call.own_queue("seek in")?;
    let group = call.group(&queue)?;
    let asked = JsonObject::of_body(&body, &["to", "partition"])?;
    let to = asked.required_text("to")?;
    let to: GroupStart = to.parse().map_err(|form| asked.wrong("to", form))?;
    let partition = asked.number("partition", 0..=u32::MAX.into())?;
    let partition = partition.and_then(|partition| u32::try_from(partition).ok());
    let to = match to {
        GroupStart::Offset(offset) => SeekTo::Offset { partition, offset },
        _ if partition.is_some() => {
            return Err(Problem::invalid(
                "partition: goes with an offset only; leave it out, or seek to offset:N",
            ));
        }
        GroupStart::Earliest => SeekTo::Earliest,
        GroupStart::Latest => SeekTo::Latest,
        GroupStart::Time(at) => SeekTo::Time(at),
    };
    queue.seek(&group, to).await?;
    call.shared.stream_settled.notify_waiters();
    Ok(response::json(&shown(&group)))
}

pub async fn pause(call: ApiRequest) -> Result<Response> {
    paused(call, true).await
}

pub async fn resume(call: ApiRequest) -> Result<Response> {
    paused(call, false).await
}

async fn paused(mut call: ApiRequest, paused: bool) -> Result<Response> {
    nothing_in(&call.small_body().await?)?;
    let queue = call.own_queue("pause groups of")?;
    let group = call.group(&queue)?;
    call.queues().pause(&queue, Pause::Group(group.clone()), paused).await?;
    Ok(response::json(&shown(&group)))
}

fn shown(group: &Group) -> Value {
    blocking::work(group.partition_count() * PART_WORK_BYTES, || shown_of(group))
}

fn shown_of(group: &Group) -> Value {
    let mut value = group.stats().to_json();
    let settings = group.settings();
    value["start"] = settings.start.to_string().into();
    if let Some(filter) = &settings.filter {
        value["filter"] = filter.as_str().into();
    }
    value
}
