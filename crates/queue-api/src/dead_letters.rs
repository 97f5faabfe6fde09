//! Dead letters: list, resend, discard.

use axum::response::Response;
use serde_json::json;
use serde_json::value::RawValue;
use smol_str::SmolStr;
use thalweg_kit::blocking;
use thalweg_log::{Micros, Offset};
use thalweg_queue::message_times::DELAY_MAX;
use thalweg_queue::names::{NameKind, dead_letter_name};
use thalweg_queue::settings::GroupStart;
use thalweg_queue::{DeadLetterFilter, DeadLetterSelection, MessageId, ResendTo};

use crate::browse::MessagePage;
use crate::json::{JsonObject, cut};
use crate::problem::{Problem, Result};
use crate::request::{ApiRequest, user_queue};
use crate::response;

const LIMIT: u64 = 100;
const LIMIT_MAX: u64 = 1000;
const IDS_MAX: usize = 10_000;
const FILTER: &[&str] = &["group", "reason", "key", "since", "until", "property"];

pub async fn list(call: ApiRequest) -> Result<Response> {
    let queue = call.queue()?;
    let filter = DeadLetterFilter {
        group: call.parameter("group").map(SmolStr::new),
        reason: call.parameter("reason").map(SmolStr::new),
        key: call.parameter("key").map(|key| key.as_bytes().into()),
        since: call.parameter("since").map(|at| time("since", at)).transpose()?,
        until: call.parameter("until").map(|at| time("until", at)).transpose()?,
        property: call.parameter("property").map(property).transpose()?,
    };
    let after = call.number("after", 0..=Offset::MAX - 1)?;
    let limit = call.number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT) as usize;
    let found = queue.dead_page(&filter, after, limit).await?;
    // Dead letters have ids of the queue that contains them; if it does not exist, there are none.
    let dead = dead_letter_name(queue.name()).ok().flatten();
    let dead = dead.and_then(|name| call.queues().get(&name).ok());
    let mut page = MessagePage::new(dead.as_deref().unwrap_or(&queue));
    let letters: Vec<_> = found.letters.into_iter().map(|letter| (0, letter)).collect();
    page.add_all(&letters);
    page.push_raw("]");
    if let Some(next) = found.next {
        page.push_raw(&format!(",\"next\":{next}"));
    }
    Ok(page.finish())
}

pub async fn resend(mut call: ApiRequest) -> Result<Response> {
    let body = call.small_body().await?;
    let queue = call.own_queue("resend dead letters of")?;
    let asked = blocking::work(body.len(), || {
        JsonObject::of_body(&body, &["ids", "filter", "to", "delay"])
    })?;
    let select = blocking::work(body.len(), || select(&asked))?;
    let target = match asked.text("to")? {
        None => ResendTo::Source,
        Some(name) => {
            user_queue(&name, "produce to")?;
            if NameKind::of(&name) == NameKind::DeadLetter {
                return Err(Problem::invalid(format!(
                    "to: {name} contains dead letters, which cannot be resent from there to their source; name another \
                     queue"
                )));
            }
            call.queues().get(&name)?;
            ResendTo::Queue(SmolStr::from(name))
        }
    };
    let delay = asked.duration("delay", std::time::Duration::ZERO..=DELAY_MAX)?;
    let resent = queue.resend(&select, target, delay).await?;
    match resent.stopped {
        None => Ok(response::json(&json!({"resent": resent.count}))),
        Some(error) if resent.count == 0 => Err(error.into()),
        Some(error) => {
            let done = format!("{} dead letters were resent, the others were not", resent.count);
            Err(Problem::from(error).within(done))
        }
    }
}

pub async fn purge(mut call: ApiRequest) -> Result<Response> {
    let body = call.small_body().await?;
    let queue = call.own_queue("purge dead letters of")?;
    let asked = blocking::work(body.len(), || JsonObject::of_body(&body, &["ids", "filter"]))?;
    let select = blocking::work(body.len(), || select(&asked))?;
    let purged = queue.purge_dead(&select).await?;
    Ok(response::json(&json!({"purged": purged})))
}

/// Exactly one of both, so that a request without either does not take them all.
fn select(asked: &JsonObject<'_>) -> Result<DeadLetterSelection> {
    match (asked.raw("ids"), asked.raw("filter")) {
        (Some(_), None) => {
            let texts = asked.list::<String>("ids", "a list of message ids")?;
            if texts.len() > IDS_MAX {
                return Err(Problem::too_large(format!(
                    "ids: at most {IDS_MAX} at once; send them in parts"
                )));
            }
            let id = |(n, text): (usize, &String)| {
                text.parse()
                    .map_err(|error| Problem::from(error).within(format!("ids[{n}]")))
            };
            let ids: Vec<MessageId> = texts.iter().enumerate().map(id).collect::<Result<_>>()?;
            Ok(DeadLetterSelection::Ids(ids))
        }
        (None, Some(raw)) => filter(raw).map(DeadLetterSelection::Filter),
        _ => Err(Problem::invalid(
            "give either ids or filter; the filter {} selects all dead letters",
        )),
    }
}

fn filter(raw: &RawValue) -> Result<DeadLetterFilter> {
    let asked = JsonObject::of(raw.get(), "filter.".to_owned(), FILTER)?;
    let at = |name: &str| -> Result<Option<Micros>> {
        asked
            .text(name)?
            .map(|text| time(name, &text))
            .transpose()
            .map_err(|problem| problem.within("filter"))
    };
    Ok(DeadLetterFilter {
        group: asked.text("group")?.map(SmolStr::from),
        reason: asked.text("reason")?.map(SmolStr::from),
        key: asked.text("key")?.map(|key| key.into_bytes().into()),
        since: at("since")?,
        until: at("until")?,
        property: asked.text("property")?.as_deref().map(property).transpose()?,
    })
}

/// As groups have it in `time:…`.
fn time(name: &str, text: &str) -> Result<Micros> {
    match format!("time:{text}").parse() {
        Ok(GroupStart::Time(at)) => Ok(at),
        _ => {
            let form = "a time such as 2026-03-01T06:00:00Z, or milliseconds since 1970";
            Err(Problem::invalid(format!(
                "{name}: expected {form}, got {:?}",
                cut(text)
            )))
        }
    }
}

fn property(text: &str) -> Result<(String, String)> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let pair = pair.map(|(name, value)| (name.to_owned(), value.to_owned()));
    pair.ok_or_else(|| Problem::invalid(format!("property: expected name=value, got {:?}", cut(text))))
}
