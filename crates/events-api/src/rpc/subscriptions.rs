//! `sub.*`: persistent subscriptions, whose position and parked messages the server keeps.

mod settings;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use thalweg_events::json::Json;
use thalweg_events::subscription::{Lease, NAME_BYTES_MAX, Nack, SettleOutcome, SubscriptionInfo, SubscriptionSource};
use thalweg_events::{
    DeliveredMessage, FetchRequest, Namespace, ParkedMessage, StartPosition, StoredEvent, Subscriptions,
};
use thalweg_kit::{blocking, clock};

use super::{RpcCall, RpcResponse};
use crate::args::{CallOptions, name_within};
use crate::auth::RequiredScope;
use crate::json_text::{instant, number, row, text};
use crate::problem::{Problem, Result};
use crate::subscribe_persistent::{bytes_of, give_back};
use settings::{MICROS_PER_MS, strategy_name};

const FETCH_MAX: i64 = 1000;
const WAIT_MS_MAX: i64 = 30_000;
const DELAY_MS_MAX: i64 = 43_200_000;
const LIST: i64 = 100;
const LIST_MAX: i64 = 1000;
/// The most leases of a call, and the most messages of a replay.
const LEASES_MAX: usize = 10_000;

pub(super) async fn call(name: &str, call: RpcCall<'_>) -> Option<Result<RpcResponse>> {
    let text = match name {
        "create" => create(call).await,
        "update" => update(call).await,
        "delete" => delete(call).await,
        "list" => list(call).await,
        "info" => info(call).await,
        "reset" => reset(call).await,
        "fetch" => return Some(fetch(call).await),
        "ack" => ack(call).await,
        "nack" => nack(call).await,
        "parked" => parked(call).await,
        "replay" => replay(call).await,
        _ => return None,
    };
    Some(text.map(RpcResponse::Text))
}

impl<'a> RpcCall<'a> {
    fn subscriptions(&self) -> &'a Subscriptions {
        &self.server.subscriptions
    }

    /// The first argument.
    fn subscription_name(&self) -> Result<String> {
        let name = self.args.non_empty(0, "name must be a non-empty string")?;
        name_within(&name, NAME_BYTES_MAX, "name")?;
        Ok(name.into_owned())
    }

    /// The namespace, if the caller has the scope.
    fn namespace_for(&self, need: RequiredScope) -> Result<&'a Arc<dyn Namespace>> {
        self.caller.may(need)?;
        self.caller.namespace()
    }
}

async fn create(call: RpcCall<'_>) -> Result<String> {
    call.args
        .at_least(2, "sub.create requires at least 2 arguments: name and options")?;
    let name = call.subscription_name()?;
    let wanted = settings::read(call.args.options(1)?)?;
    let namespace = call.namespace_for(RequiredScope::Write)?;
    let settings = wanted.settings(namespace.as_ref());
    let created = call.subscriptions().create(namespace, &name, settings).await;
    created.map_err(Problem::of("create subscription"))?;
    told(&call, namespace, &name).await
}

async fn update(call: RpcCall<'_>) -> Result<String> {
    call.args
        .at_least(2, "sub.update requires at least 2 arguments: name and options")?;
    let name = call.subscription_name()?;
    let change = settings::change(call.args.options(1)?)?;
    let namespace = call.namespace_for(RequiredScope::Write)?;
    let updated = call.subscriptions().update(namespace, &name, change).await;
    updated.map_err(Problem::of("update subscription"))?;
    told(&call, namespace, &name).await
}

async fn told(call: &RpcCall<'_>, namespace: &Arc<dyn Namespace>, name: &str) -> Result<String> {
    let info = call.subscriptions().info(namespace, name).await;
    let mut out = String::new();
    write_info(&mut out, name, &info.map_err(Problem::of("get subscription"))?);
    Ok(out)
}

async fn delete(call: RpcCall<'_>) -> Result<String> {
    call.args.at_least(1, "sub.delete requires 1 argument: name")?;
    let name = call.subscription_name()?;
    let namespace = call.namespace_for(RequiredScope::Write)?;
    let deleted = call.subscriptions().delete(namespace, &name).await;
    deleted.map_err(Problem::of("delete subscription"))?;
    let mut out = String::from("{\"name\":");
    text(&mut out, &name);
    out.push('}');
    Ok(out)
}

async fn list(call: RpcCall<'_>) -> Result<String> {
    let options = call.args.options(0)?;
    let prefix = options.string("prefix")?.unwrap_or_default();
    let cursor = options.string("cursor")?.unwrap_or_default();
    let limit = within(options, "limit", LIST, 1, LIST_MAX)?;
    name_within(&prefix, NAME_BYTES_MAX, "options.prefix")?;
    name_within(&cursor, NAME_BYTES_MAX, "options.cursor")?;
    let namespace = call.namespace_for(RequiredScope::Read)?;
    let found = call
        .subscriptions()
        .list(namespace, &prefix, &cursor, limit.unsigned_abs() as usize)
        .await;
    let found = found.map_err(Problem::of("list subscriptions"))?;
    Ok(array(&found, |out, (name, info)| write_info(out, name, info)))
}

async fn info(call: RpcCall<'_>) -> Result<String> {
    call.args.at_least(1, "sub.info requires 1 argument: name")?;
    let name = call.subscription_name()?;
    let namespace = call.namespace_for(RequiredScope::Read)?;
    told(&call, namespace, &name).await
}

async fn reset(call: RpcCall<'_>) -> Result<String> {
    call.args
        .at_least(2, "sub.reset requires at least 2 arguments: name and options")?;
    let name = call.subscription_name()?;
    let start: Option<StartPosition> = settings::start(call.args.options(1)?)?;
    let start = start.ok_or_else(|| Problem::invalid("options.from must be start, end or a number"))?;
    let namespace = call.namespace_for(RequiredScope::Write)?;
    let from = call.subscriptions().reset(namespace, &name, start).await;
    let from = from.map_err(Problem::of("reset subscription"))?;
    let mut out = String::from("{\"from\":");
    number(&mut out, from);
    out.push_str(",\"name\":");
    text(&mut out, &name);
    out.push('}');
    Ok(out)
}

async fn fetch(call: RpcCall<'_>) -> Result<RpcResponse> {
    call.args.at_least(1, "sub.fetch requires at least 1 argument: name")?;
    let name = call.subscription_name()?;
    let options = call.args.options(1)?;
    let consumer = options.string("consumer")?.unwrap_or_default();
    let max = within(options, "max", 1, 1, FETCH_MAX)?;
    let wait = within(options, "waitMs", 0, 0, WAIT_MS_MAX)?;
    name_within(&consumer, NAME_BYTES_MAX, "options.consumer")?;
    // A fetch leases messages, which is stored.
    call.caller.may(RequiredScope::Read)?;
    let namespace = call.namespace_for(RequiredScope::Write)?;
    let ask = FetchRequest {
        consumer: consumer.into(),
        max: max.unsigned_abs() as usize,
        held: Vec::new(),
    };
    let until = clock::tokio_now() + Duration::from_millis(wait.unsigned_abs());
    let fetched = async {
        loop {
            let fetched = call.subscriptions().fetch(namespace, &name, ask.clone(), until).await;
            let fetched = fetched.map_err(Problem::of("fetch messages"))?;
            let bytes = bytes_of(&fetched.messages);
            let Some(room) = call.server.memory.room_now(bytes) else {
                let back = give_back(call.server, namespace, &name, fetched.messages).await;
                back.map_err(Problem::of("fetch messages"))?;
                call.server.memory.room(bytes).await;
                continue;
            };
            return Ok::<_, Problem>((fetched, room));
        }
    };
    let (fetched, room) = tokio::select! {
        fetched = fetched => fetched?,
        () = call.caller.ended() => return Err(Problem::unauthorized(&call.caller.name)),
        () = call.server.stopping.cancelled() => return Err(Problem::stopping()),
    };
    let bytes = fetched.messages.iter().map(|message| message.stored.bytes()).sum();
    let mut text = blocking::work(bytes, || array(&fetched.messages, write_message));
    text.push('\n');
    Ok(RpcResponse::Held(room.hold(text)))
}

async fn ack(call: RpcCall<'_>) -> Result<String> {
    call.args
        .at_least(2, "sub.ack requires at least 2 arguments: name and leases")?;
    let name = call.subscription_name()?;
    let leases = leases(call.args.0.get(1).copied())?;
    let namespace = call.namespace_for(RequiredScope::Write)?;
    let acked = call.subscriptions().ack(namespace, &name, leases).await;
    Ok(settled("acked", &acked.map_err(Problem::of("acknowledge messages"))?))
}

async fn nack(call: RpcCall<'_>) -> Result<String> {
    call.args
        .at_least(2, "sub.nack requires at least 2 arguments: name and leases")?;
    let name = call.subscription_name()?;
    let leases = leases(call.args.0.get(1).copied())?;
    let options = call.args.options(2)?;
    let action = options.string("action")?;
    let delay = within(options, "delayMs", 0, 0, DELAY_MS_MAX)? * MICROS_PER_MS;
    let reason = options.string("reason")?.unwrap_or_default().into_owned();
    let nack = match action.as_deref() {
        None | Some("retry") => Nack::Retry { delay, reason },
        Some("park") => Nack::Park { reason },
        Some("skip") => Nack::Skip,
        Some(_) => return Err(Problem::invalid("options.action must be retry, park or skip")),
    };
    let namespace = call.namespace_for(RequiredScope::Write)?;
    let nacked = call.subscriptions().nack(namespace, &name, leases, nack).await;
    Ok(settled("nacked", &nacked.map_err(Problem::of("refuse messages"))?))
}

async fn parked(call: RpcCall<'_>) -> Result<String> {
    call.args.at_least(1, "sub.parked requires at least 1 argument: name")?;
    let name = call.subscription_name()?;
    let options = call.args.options(1)?;
    let from = options.number("globalPosition")?.unwrap_or(0).max(0).unsigned_abs();
    let limit = within(options, "limit", LIST, 1, LIST_MAX)?.unsigned_abs() as usize;
    let namespace = call.namespace_for(RequiredScope::Read)?;
    let found = call.subscriptions().parked(namespace, &name, from, limit).await;
    let found = found.map_err(Problem::of("get parked messages"))?;
    let bytes = found.iter().filter_map(|parked| parked.stored.as_ref());
    let bytes = bytes.map(StoredEvent::bytes).sum();
    let write = |out: &mut String, parked: &ParkedMessage| {
        out.push_str("{\"globalPosition\":");
        number(out, parked.global);
        out.push_str(",\"attempts\":");
        number(out, u64::from(parked.attempts));
        out.push_str(",\"reason\":");
        text(out, &parked.reason);
        out.push_str(",\"time\":");
        instant(out, Some(parked.at));
        out.push_str(",\"message\":");
        match &parked.stored {
            Some(stored) => row(out, stored, true),
            None => out.push_str("null"),
        }
        out.push('}');
    };
    Ok(blocking::work(bytes, || array(&found, write)))
}

async fn replay(call: RpcCall<'_>) -> Result<String> {
    call.args.at_least(1, "sub.replay requires at least 1 argument: name")?;
    let name = call.subscription_name()?;
    let options = call.args.options(1)?;
    let wrong = || Problem::invalid("options.globalPositions must be an array of numbers, at most 10000");
    let named = match options.get("globalPositions") {
        None => Vec::new(),
        Some(json) => {
            let globals = json.array().ok_or_else(wrong)?;
            let globals = globals.map(|global| global.integer().map(|global| global.max(0).unsigned_abs()));
            let globals: Option<Vec<u64>> = globals.collect();
            globals
                .filter(|globals| (1..=LEASES_MAX).contains(&globals.len()))
                .ok_or_else(wrong)?
        }
    };
    let limit = within(options, "limit", LEASES_MAX as i64, 1, LEASES_MAX as i64)?.unsigned_abs() as usize;
    let discard = match options.get("discard") {
        None => false,
        Some(json) => json
            .bool()
            .ok_or_else(|| Problem::invalid("options.discard must be true or false"))?,
    };
    let namespace = call.namespace_for(RequiredScope::Write)?;
    let count = call
        .subscriptions()
        .replay(namespace, &name, named, limit, discard)
        .await;
    let count = count.map_err(Problem::of("replay parked messages"))?;
    let key = if discard { "discarded" } else { "replayed" };
    Ok(format!("{{\"{key}\":{count}}}"))
}

fn within(options: CallOptions<'_>, name: &str, default: i64, least: i64, most: i64) -> Result<i64> {
    let number = options.number(name)?.unwrap_or(default);
    match (least..=most).contains(&number) {
        true => Ok(number),
        false => Err(Problem::invalid(format!(
            "options.{name} must be between {least} and {most}"
        ))),
    }
}

fn leases(json: Option<Json<'_>>) -> Result<Vec<Lease>> {
    let array = json.and_then(Json::array);
    let wrong = || Problem::invalid("leases must be an array of strings");
    let mut out = Vec::new();
    for lease in array.ok_or_else(wrong)? {
        let lease = lease.string().ok_or_else(wrong)?;
        if out.len() == LEASES_MAX {
            return Err(Problem::invalid(format!(
                "leases must have at most {LEASES_MAX} entries"
            )));
        }
        let lease = lease.parse();
        out.push(lease.map_err(|()| Problem::invalid("leases must be those that sub.fetch returned"))?);
    }
    Ok(out)
}

fn settled(key: &str, settled: &SettleOutcome) -> String {
    let stale = array(&settled.stale, |out, lease| text(out, &lease.to_string()));
    format!("{{\"{key}\":{},\"stale\":{stale}}}", settled.settled)
}

/// `{"lease","attempt","message"}`.
pub(crate) fn write_message(out: &mut String, message: &DeliveredMessage) {
    out.push_str("{\"lease\":");
    text(out, &message.lease.to_string());
    out.push_str(",\"attempt\":");
    number(out, u64::from(message.attempt));
    out.push_str(",\"message\":");
    row(out, &message.stored, true);
    out.push('}');
}

fn write_info(out: &mut String, name: &str, info: &SubscriptionInfo) {
    let settings = &info.settings;
    out.push_str("{\"name\":");
    text(out, name);
    match &settings.source {
        SubscriptionSource::Category(category) => {
            out.push_str(",\"category\":");
            text(out, category);
        }
        SubscriptionSource::Stream(stream) => {
            out.push_str(",\"stream\":");
            text(out, stream);
        }
        SubscriptionSource::All => out.push_str(",\"all\":true"),
    }
    out.push_str(",\"from\":");
    number(out, settings.from);
    out.push_str(",\"strategy\":");
    text(out, strategy_name(settings.strategy));
    for (key, value) in [
        (
            ",\"ackTimeoutMs\":",
            (settings.ack_timeout / MICROS_PER_MS).unsigned_abs(),
        ),
        (",\"maxAttempts\":", u64::from(settings.max_attempts)),
        (",\"maxInFlight\":", settings.max_in_flight as u64),
    ] {
        out.push_str(key);
        number(out, value);
    }
    out.push_str(",\"types\":");
    out.push_str(&array(&settings.types, |out, kind| text(out, kind)));
    out.push_str(",\"correlation\":");
    match &settings.correlation {
        Some(correlation) => text(out, correlation),
        None => out.push_str("null"),
    }
    out.push_str(",\"createdAt\":");
    instant(out, Some(info.created_at));
    for (key, value) in [
        (",\"position\":", info.position),
        (",\"read\":", info.read),
        (",\"inFlight\":", info.in_flight as u64),
        (",\"waiting\":", info.waiting as u64),
        (",\"parked\":", info.parked as u64),
    ] {
        out.push_str(key);
        number(out, value);
    }
    out.push_str(",\"consumers\":");
    out.push_str(&array(&info.consumers, |out, (consumer, count)| {
        out.push_str("{\"consumer\":");
        text(out, consumer);
        out.push_str(",\"inFlight\":");
        number(out, *count as u64);
        out.push('}');
    }));
    out.push('}');
}

fn array<T>(items: &[T], write: impl Fn(&mut String, &T)) -> String {
    let mut out = String::from("[");
    for (n, item) in items.iter().enumerate() {
        if n > 0 {
            out.push(',');
        }
        write(&mut out, item);
    }
    out.push(']');
    out
}
