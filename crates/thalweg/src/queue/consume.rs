//! `thalweg queue consume`: claims messages, prints them, and acknowledges them. Claimed messages that cannot be
//! printed, because the reader has left, are returned at once.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::args::QueueConsume;
use super::client::{QueueClient, segment};
use super::of;
use crate::out;

const CLAIM: u64 = 100;
/// How long one claim waits with `--follow`; then the next follows.
const WAIT: &str = "30s";

pub fn run(client: &QueueClient, options: &QueueConsume, as_json: bool) -> Result<()> {
    let group = of(&options.name, &format!("/groups/{}", segment(&options.group)));
    let mut left = options.max.unwrap_or(u64::MAX);
    while left > 0 {
        let wait = if options.follow { WAIT } else { "0" };
        let claim = json!({"consumer": options.consumer, "max": left.min(CLAIM), "wait": wait});
        let claimed = client.post_for_text(&format!("{group}/claim"), &claim)?;
        let messages = messages(&claimed)?;
        if messages.is_empty() && !options.follow {
            break;
        }
        left -= left.min(messages.len() as u64);
        let mut printed = 0;
        for message in &messages {
            let read_on = match as_json {
                true => out::line(message.get())?,
                false => out::line(payload(&members(message)?))?,
            };
            if !read_on {
                break;
            }
            printed += 1;
        }
        let (done, back) = messages.split_at_checked(printed).unwrap_or((&messages, &[]));
        settle(client, &group, if options.no_ack { &[] } else { done }, back)?;
        if !back.is_empty() {
            break;
        }
    }
    Ok(())
}

/// Messages as they were written: numbers in payloads keep all their digits.
type RawMessage = Box<RawValue>;

fn messages(claimed: &str) -> Result<Vec<RawMessage>> {
    if claimed.is_empty() {
        return Ok(Vec::new());
    }
    let mut claimed: BTreeMap<String, Vec<RawMessage>> =
        serde_json::from_str(claimed).context("the answer is not a claim")?;
    Ok(claimed.remove("messages").unwrap_or_default())
}

fn members(message: &RawMessage) -> Result<BTreeMap<String, RawMessage>> {
    serde_json::from_str(message.get()).context("the answer contains a message that is not an object")
}

fn receipt(message: &RawMessage) -> Result<Value> {
    let members = members(message)?;
    let receipt = members
        .get("receipt")
        .context("the answer contains a message without a receipt")?;
    Ok(serde_json::from_str(receipt.get())?)
}

fn settle(client: &QueueClient, group: &str, done: &[RawMessage], back: &[RawMessage]) -> Result<()> {
    if done.is_empty() && back.is_empty() {
        return Ok(());
    }
    let ack: Vec<Value> = done.iter().map(receipt).collect::<Result<_>>()?;
    let nack = |message: &RawMessage| Ok(json!({"r": receipt(message)?, "delay": 0}));
    let nack: Vec<Value> = back.iter().map(nack).collect::<Result<_>>()?;
    let settled = client.post(&format!("{group}/settle"), &json!({"ack": ack, "nack": nack}))?;
    for failed in settled["failed"].as_array().into_iter().flatten() {
        let (code, detail) = (failed["code"].as_str(), failed["detail"].as_str());
        out::complain(format_args!(
            "thalweg: {}: {}",
            code.unwrap_or_default(),
            detail.unwrap_or_default()
        ));
    }
    Ok(())
}

/// The payload for people; base64 is marked, because it is not what was sent.
fn payload(message: &BTreeMap<String, RawMessage>) -> String {
    let text = |name: &str| -> Option<String> { serde_json::from_str(message.get(name)?.get()).ok() };
    let json = || message.get("json").map(|json| json.get().to_owned());
    let base64 = || text("base64").map(|base64| format!("base64:{base64}"));
    text("text").or_else(json).or_else(base64).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_shown_to_the_last_digit() {
        let claimed = r#"{"messages":[{"receipt":"q:0:1:1","json":{"v":123456789012345678901.10}},{"receipt":"q:0:2:1","text":"a"}]}"#;
        let messages = messages(claimed).unwrap();
        let shown: Vec<String> = messages
            .iter()
            .map(|message| payload(&members(message).unwrap()))
            .collect();
        assert_eq!(shown, [r#"{"v":123456789012345678901.10}"#, "a"]);
        assert_eq!(receipt(&messages[0]).unwrap(), "q:0:1:1");
    }
}
