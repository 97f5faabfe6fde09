//! `thalweg queue`: manages queues of a running process over its HTTP interface. Each sub-command is one or a few
//! requests; tables are for people, `--json` prints the answer of the process.

pub mod args;
mod buffer;
mod client;
mod consume;
mod dlq;
mod print;
mod produce;

use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Value, json};

use self::args::{QueueCommand, QueueCreate, QueueOptions, QueuePause};
use self::client::{QueueClient, segment};
use crate::out;

pub fn main(options: &QueueOptions) -> Result<ExitCode> {
    let client = QueueClient::new(&options.server)?;
    let as_json = options.server.json;
    match &options.command {
        QueueCommand::Create(create) => {
            let answer = client.post("/queues", &settings(create)?)?;
            tell(as_json, &answer, || format!("queue {} created", create.name))?;
        }
        QueueCommand::List => {
            let answer = client.get("/queues")?;
            tell(as_json, &answer, || print::queues(&answer))?;
        }
        QueueCommand::Show(queue) => show(&client, &queue.name, as_json)?,
        QueueCommand::Produce(produce) => produce::run(&client, produce, as_json)?,
        QueueCommand::Consume(consume) => consume::run(&client, consume, as_json)?,
        QueueCommand::Dlq(command) => return dlq::run(&client, command, as_json),
        QueueCommand::Purge(queue) => {
            let what = format!("All messages of the queue {} will be dropped.", queue.name);
            if !out::is_meant(what, queue.yes)? {
                return Ok(ExitCode::FAILURE);
            }
            let answer = client.post(&of(&queue.name, ":purge"), &json!({}))?;
            tell(as_json, &answer, || format!("{} messages dropped", answer["purged"]))?;
        }
        QueueCommand::Pause(pause) => paused(&client, pause, as_json)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn show(client: &QueueClient, name: &str, as_json: bool) -> Result<()> {
    let (shown, stats) = (client.get(&of(name, ""))?, client.get(&of(name, "/stats"))?);
    let messages = match buffer::is_buffer(name) {
        true => buffer::messages(name, &stats, |path| client.get(path))?,
        false => None,
    };
    let mut all = json!({"queue": shown, "stats": stats});
    if let Some(messages) = messages {
        all["messages"] = messages.into();
    }
    tell(as_json, &all, || print::queue(&shown, &stats, messages))
}

/// The path of a queue and what follows it.
fn of(queue: &str, rest: &str) -> String {
    format!("/queues/{}{rest}", segment(queue))
}

fn tell(as_json: bool, answer: &Value, text: impl FnOnce() -> String) -> Result<()> {
    match as_json {
        true => out::line(answer)?,
        false => out::line(text())?,
    };
    Ok(())
}

/// The body of a `create` request: the name, and each `--set retry.max_retries=3` at its path.
fn settings(create: &QueueCreate) -> Result<Value> {
    let mut body = json!({"name": create.name});
    if let Some(partitions) = create.partitions {
        body["partitions"] = partitions.into();
    }
    for (path, text) in &create.set {
        // A value that parses as JSON is JSON, anything else is a text: 30s needs no quotes.
        let value = serde_json::from_str(text).unwrap_or_else(|_| Value::from(text.as_str()));
        let mut at = &mut body;
        for name in path.split('.') {
            if at.is_null() {
                *at = json!({});
            }
            let Some(fields) = at.as_object_mut() else {
                anyhow::bail!("--set {path}: a part of this path has a value already; set only one of them");
            };
            at = fields.entry(name).or_insert(Value::Null);
        }
        *at = value;
    }
    Ok(body)
}

fn paused(client: &QueueClient, pause: &QueuePause, as_json: bool) -> Result<()> {
    let action = if pause.resume { "resume" } else { "pause" };
    let (path, body) = match &pause.group {
        Some(group) => (
            of(&pause.name, &format!("/groups/{}:{action}", segment(group))),
            json!({}),
        ),
        None => {
            let what = match (pause.produce, pause.consume) {
                (true, false) => "produce",
                (false, true) => "consume",
                _ => "both",
            };
            (of(&pause.name, &format!(":{action}")), json!({"what": what}))
        }
    };
    let answer = client.post(&path, &body)?;
    let done = if pause.resume { "resumed" } else { "paused" };
    tell(as_json, &answer, || match &pause.group {
        Some(group) => format!("group {group} of queue {} is {done}", pause.name),
        None => format!("queue {} is {done}", pause.name),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_new_queue_are_placed_by_their_paths() {
        let create = |set: &[(&str, &str)]| QueueCreate {
            name: "q".to_owned(),
            partitions: Some(4),
            set: set
                .iter()
                .map(|(path, value)| ((*path).to_owned(), (*value).to_owned()))
                .collect(),
        };
        let body = settings(&create(&[
            ("retry.max_retries", "3"),
            ("retry.jitter", "0"),
            ("ttl", "72h"),
        ]))
        .unwrap();
        let expected = json!({"name": "q", "partitions": 4, "retry": {"max_retries": 3, "jitter": 0}, "ttl": "72h"});
        assert_eq!(body, expected);
        assert!(settings(&create(&[("retry", "3"), ("retry.jitter", "0")])).is_err());
    }
}
