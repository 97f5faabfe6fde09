//! `POST …/settle`: settles many messages in one request.
//!
//! An unreadable receipt is an error of the whole request, and then nothing is settled. A receipt that is no longer
//! valid is reported with its code beside the settled ones.

use std::time::Duration;

use axum::response::Response;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use thalweg_kit::blocking;
use thalweg_queue::message_times::DELAY_MAX;
use thalweg_queue::{REASON_BYTES_MAX, Receipt, SettleAction, SettleResult};

use crate::BODY_BYTES_MAX;
use crate::claim::VISIBILITY;
use crate::json::JsonObject;
use crate::problem::{Problem, Result};
use crate::request::ApiRequest;
use crate::response;

const RECEIPTS_MAX: usize = 10_000;
/// Settling one message takes about as long as scanning this many bytes.
const RECEIPT_WORK_BYTES: usize = 64;
const LISTS: &[&str] = &["ack", "nack", "reject", "extend"];

pub async fn settle(mut call: ApiRequest) -> Result<Response> {
    let wait = call.flag("wait", true)?;
    let queue = call.own_queue("settle messages of")?;
    let group = call.group(&queue)?;
    let body = call
        .body(
            BODY_BYTES_MAX,
            "the most that a request which settles takes; send it in parts",
        )
        .await?;
    // A request may contain hundreds of thousands of receipts before it is refused for their number.
    let verdicts = blocking::work(body.len(), || read(&body))?;
    // All of them are settled in the first step; the rest waits for the commit.
    let settling_work = verdicts.len() * RECEIPT_WORK_BYTES;
    let outcome = blocking::begin(settling_work, queue.settle(&group, verdicts, wait)).await?;
    if !group.is_work() {
        call.shared.stream_settled.notify_waiters();
    }
    let telling_work = outcome.failed.len() * RECEIPT_WORK_BYTES;
    Ok(blocking::work(telling_work, || told(&outcome)))
}

fn told(outcome: &SettleResult) -> Response {
    let failed: Vec<Value> = outcome
        .failed
        .iter()
        .map(|(receipt, error)| json!({"r": receipt.to_string(), "code": error.code(), "detail": error.to_string()}))
        .collect();
    response::json(&json!({"settled": outcome.settled, "failed": failed}))
}

fn read(body: &[u8]) -> Result<Vec<(Receipt, SettleAction)>> {
    let members = JsonObject::of_body(body, LISTS)?;
    let mut verdicts = Vec::new();
    for (n, text) in members.list::<String>("ack", "a list of receipts")?.iter().enumerate() {
        verdicts.push((receipt(text, format_args!("ack[{n}]"))?, SettleAction::Ack));
    }
    for name in ["nack", "reject", "extend"] {
        for (n, raw) in members.list::<&RawValue>(name, "a list of objects")?.iter().enumerate() {
            verdicts.push(entry(name, n, raw)?);
        }
    }
    match verdicts.len() {
        0 => Err(Problem::invalid("nothing to settle: give ack, nack, reject or extend")),
        n if n > RECEIPTS_MAX => {
            let detail = format!("a request settles at most {RECEIPTS_MAX} messages, this one {n}; send it in parts");
            Err(Problem::too_large(detail))
        }
        _ => Ok(verdicts),
    }
}

fn entry(list: &str, n: usize, raw: &RawValue) -> Result<(Receipt, SettleAction)> {
    let known: &'static [&'static str] = match list {
        "nack" => &["r", "receipt", "delay", "reason"],
        "reject" => &["r", "receipt", "reason"],
        _ => &["r", "receipt", "visibility"],
    };
    let place = format!("{list}[{n}]");
    // An entry may be just a receipt.
    if let Ok(text) = serde_json::from_str::<String>(raw.get()) {
        return Ok((receipt(&text, &place)?, verdict(list, None, None, None)));
    }
    let entry = JsonObject::of(raw.get(), format!("{place}."), known)?;
    let text = match (entry.text("r")?, entry.text("receipt")?) {
        (Some(text), None) | (None, Some(text)) => text,
        (None, None) => return Err(entry.wrong("r", "a receipt")),
        (Some(_), Some(_)) => {
            return Err(Problem::invalid(format!(
                "{place}: r and receipt are the same; give one"
            )));
        }
    };
    let receipt = receipt(&text, format_args!("{place}.r"))?;
    let (mut delay, mut reason, mut visibility) = (None, None, None);
    if list == "extend" {
        visibility = entry.duration("visibility", VISIBILITY)?;
    } else {
        reason = entry.text("reason")?;
    }
    if list == "nack" {
        delay = entry.duration("delay", Duration::ZERO..=DELAY_MAX)?;
    }
    if reason.as_ref().is_some_and(|reason| reason.len() > REASON_BYTES_MAX) {
        return Err(entry.wrong("reason", &format!("at most {REASON_BYTES_MAX} bytes")));
    }
    Ok((receipt, verdict(list, delay, reason, visibility)))
}

fn verdict(list: &str, delay: Option<Duration>, reason: Option<String>, visibility: Option<Duration>) -> SettleAction {
    match list {
        "nack" => SettleAction::Nack {
            delay,
            reason: reason.map(String::into_boxed_str),
        },
        "reject" => SettleAction::Reject {
            reason: reason.map(String::into_boxed_str),
        },
        _ => SettleAction::Extend { visibility },
    }
}

fn receipt(text: &str, place: impl std::fmt::Display) -> Result<Receipt> {
    text.parse().map_err(|error| Problem::from(error).within(place))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_verdict_has_its_list() {
        let body = br#"{"ack": ["q:0:1:1", "q:0:6:2:16.1.6927a51e"],
            "nack": [{"r": "q:0:2:1", "delay": "5s", "reason": "busy"}],
            "reject": [{"r": "q:0:3:1", "reason": "bad"}, "q:0:4:1"], "extend": [{"receipt": "q:0:5:1", "visibility": 2000}]}"#;
        let verdicts: Vec<String> = read(body)
            .unwrap()
            .iter()
            .map(|(r, verdict)| format!("{r} {verdict:?}"))
            .collect();
        assert_eq!(
            verdicts,
            [
                "q:0:1:1 Ack",
                "q:0:6:2:16.1.6927a51e Ack",
                "q:0:2:1 Nack { delay: Some(5s), reason: Some(\"busy\") }",
                "q:0:3:1 Reject { reason: Some(\"bad\") }",
                "q:0:4:1 Reject { reason: None }",
                "q:0:5:1 Extend { visibility: Some(2s) }",
            ]
        );
    }

    #[test]
    fn a_mistake_names_its_entry_and_settles_nothing() {
        for (body, expected) in [
            ("", "nothing to settle"),
            (r#"{"ack": ["x"]}"#, "ack[0]: \"x\" is not a receipt"),
            (
                r#"{"ack": ["q:0:1:1:16.1"]}"#,
                "ack[0]: \"q:0:1:1:16.1\" is not a receipt",
            ),
            (r#"{"ack": "q:0:1:1"}"#, "ack: expected a list of receipts"),
            (
                r#"{"nack": [{"r": "q:0:1:1"}, {"delay": 1}]}"#,
                "nack[1].r: expected a receipt, got nothing",
            ),
            (
                r#"{"reject": [{"r": "q:0:1:1", "delay": 1}]}"#,
                "reject[0].delay: unknown field",
            ),
            (
                r#"{"extend": [{"r": "q:0:1:1", "visibility": "13h"}]}"#,
                "extend[0].visibility: expected from 1s",
            ),
            (r#"{"ask": []}"#, "ask: unknown field, did you mean \"ack\"?"),
        ] {
            let problem = read(body.as_bytes()).unwrap_err();
            assert!(problem.detail.starts_with(expected), "{}", problem.detail);
        }
    }

    #[test]
    fn a_request_settles_no_more_than_its_limit() {
        let receipts = vec!["q:0:1:1"; RECEIPTS_MAX + 1];
        let body = json!({"ack": receipts}).to_string();
        assert_eq!(read(body.as_bytes()).unwrap_err().kind.facts().status, 413);
    }

    proptest! {
        #[test]
        fn no_body_breaks_the_reader(text in "[{}\\[\\]\":,acknrejt0-9\\\\ ]{0,60}") {
            let _ = read(text.as_bytes());
        }
    }
}
