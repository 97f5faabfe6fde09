//! `thalweg queue produce`: sends messages from arguments, a file or the standard input, in batches that are stored
//! completely or not at all.
//!
//! Messages reported as stored are stored. If a batch is refused, the error says how many messages were stored before
//! it.

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Write as _};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::args::QueueProduce;
use super::client::QueueClient;
use super::of;
use crate::out;

const BATCH_LINES: usize = 10_000;
const BATCH_BYTES: usize = 4 << 20;

pub fn run(client: &QueueClient, options: &QueueProduce, as_json: bool) -> Result<()> {
    let mut batch = ProduceBatch {
        client,
        path: of(&options.name, "/messages:batch"),
        lines: String::new(),
        count: 0,
        stored: 0,
        as_json,
        progress: std::io::stderr().is_terminal(),
    };
    if options.payloads.is_empty() {
        read(options, &mut batch)?;
    } else {
        for payload in &options.payloads {
            batch.add(&message(options, payload).to_string())?;
        }
    }
    batch.send()?;
    if batch.progress && batch.stored > BATCH_LINES {
        out::complain("");
    }
    if !as_json {
        let stored = batch.stored;
        out::line(format_args!("{stored} messages stored in {}", options.name))?;
    }
    Ok(())
}

fn read(options: &QueueProduce, batch: &mut ProduceBatch<'_>) -> Result<()> {
    let input: Box<dyn BufRead> = match &options.file {
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            Box::new(BufReader::new(file))
        }
        None => Box::new(std::io::stdin().lock()),
    };
    for (line, n) in input.lines().zip(1..) {
        let line = line.with_context(|| format!("line {n} cannot be read; it must be UTF-8"))?;
        if options.lines {
            batch.add(&message(options, &line).to_string())?;
        } else if !line.trim().is_empty() {
            batch.add(&with_options(options, &line, n)?)?;
        }
    }
    Ok(())
}

/// Adds the options of the command line to a JSON line where it does not set them itself.
fn with_options(options: &QueueProduce, line: &str, n: usize) -> Result<String> {
    let fields = fields(options);
    if fields.is_empty() {
        // Sent unchanged: the process parses it and reports errors.
        return Ok(line.to_owned());
    }
    let mut value: Value =
        serde_json::from_str(line).with_context(|| format!("line {n} is not JSON; raw lines need --lines"))?;
    let object = value
        .as_object_mut()
        .with_context(|| format!("line {n} is not a JSON object"))?;
    for (name, value) in fields {
        object.entry(name).or_insert(value);
    }
    Ok(value.to_string())
}

fn message(options: &QueueProduce, payload: &str) -> Value {
    let mut message = json!({"text": payload});
    for (name, value) in fields(options) {
        message[name] = value;
    }
    message
}

fn fields(options: &QueueProduce) -> Vec<(&'static str, Value)> {
    let texts = [
        ("key", &options.key),
        ("delay", &options.delay),
        ("deliver_at", &options.deliver_at),
        ("ttl", &options.ttl),
    ];
    let texts = texts
        .into_iter()
        .filter_map(|(name, value)| Some((name, Value::from(value.as_deref()?))));
    let properties: serde_json::Map<String, Value> = options
        .property
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    let properties = (!properties.is_empty()).then_some(("properties", Value::from(properties)));
    texts.chain(properties).collect()
}

/// A batch of lines that is not sent yet.
struct ProduceBatch<'c> {
    client: &'c QueueClient,
    path: String,
    lines: String,
    count: usize,
    stored: usize,
    as_json: bool,
    progress: bool,
}

impl ProduceBatch<'_> {
    fn add(&mut self, line: &str) -> Result<()> {
        if self.count == BATCH_LINES || (self.count > 0 && self.lines.len() + line.len() > BATCH_BYTES) {
            self.send()?;
            if self.progress {
                // Overwrites the previous line. A failed write only loses progress output.
                let _ = write!(std::io::stderr(), "\r{} messages stored", self.stored);
            }
        }
        self.lines.push_str(line);
        self.lines.push('\n');
        self.count += 1;
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        if self.count == 0 {
            return Ok(());
        }
        let stored = self.stored;
        let answer = self
            .client
            .post_lines(&self.path, std::mem::take(&mut self.lines))
            .with_context(|| format!("after {stored} stored messages the next batch was refused as a whole"))?;
        self.stored += std::mem::take(&mut self.count);
        if self.as_json {
            for message in answer["messages"].as_array().into_iter().flatten() {
                out::line(message)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(key: Option<&str>) -> QueueProduce {
        QueueProduce {
            name: "q".to_owned(),
            payloads: Vec::new(),
            file: None,
            lines: false,
            key: key.map(str::to_owned),
            delay: None,
            deliver_at: None,
            ttl: Some("1h".to_owned()).filter(|_| key.is_some()),
            property: Vec::new(),
        }
    }

    #[test]
    fn a_line_says_more_than_the_command_line() {
        let line = with_options(&options(Some("a")), r#"{"text": "x", "key": "b"}"#, 1).unwrap();
        let value: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value, json!({"text": "x", "key": "b", "ttl": "1h"}));
        let as_it_is = r#"{"json": 1.10}"#;
        assert_eq!(with_options(&options(None), as_it_is, 1).unwrap(), as_it_is);
        assert!(
            with_options(&options(Some("a")), "x", 7)
                .unwrap_err()
                .to_string()
                .starts_with("line 7")
        );
    }
}
