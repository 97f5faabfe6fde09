//! `thalweg events append`: appends one message from flags, or the messages of a file in one append, which is stored
//! completely or not at all.

use std::fmt::Write as _;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::args::EventsAppend;
use super::client::{EventsClient, object};
use crate::out;

/// The most that an append accepts, with room for the separators between messages.
const INPUT_MAX: u64 = 100 << 20;

pub fn run(options: &EventsAppend) -> Result<()> {
    let call = call(options)?;
    let answer = EventsClient::new(&options.server)?.call(&call)?;
    out::line(answer)?;
    Ok(())
}

fn call(options: &EventsAppend) -> Result<String> {
    let stream = json!(options.stream);
    let mut settings = serde_json::Map::new();
    if let Some(version) = &options.expected_version {
        settings.insert("expectedVersion".to_owned(), expected(version));
    }
    if let Some(path) = &options.input {
        let messages = messages(path)?;
        return Ok(format!(
            "[\"stream.append\",{stream},[{messages}],{}]",
            Value::Object(settings)
        ));
    }
    if let Some(id) = &options.id {
        settings.insert("id".to_owned(), json!(id));
    }
    let data = object("--data", options.data.as_deref().unwrap_or("{}"))?;
    let mut message = format!("{{\"type\":{},\"data\":{data}", json!(options.kind));
    if let Some(metadata) = &options.metadata {
        let _ = write!(message, ",\"metadata\":{}", object("--metadata", metadata)?);
    }
    Ok(format!(
        "[\"stream.write\",{stream},{message}}},{}]",
        Value::Object(settings)
    ))
}

/// A number becomes a JSON number; the server interprets anything else.
fn expected(text: &str) -> Value {
    text.parse::<i64>().map_or_else(|_| json!(text), |number| json!(number))
}

/// The lines as elements of a JSON array.
fn messages(path: &Path) -> Result<String> {
    let mut text = String::new();
    let mut source = super::files::input(Some(path))?.take(INPUT_MAX + 1);
    let shown = path.display();
    let read = source.read_to_string(&mut text);
    read.with_context(|| format!("cannot read the messages of {shown}; they must be UTF-8"))?;
    ensure!(
        text.len() as u64 <= INPUT_MAX,
        "{shown} has more than {INPUT_MAX} bytes, more than an append accepts; use import, or several appends"
    );
    let mut all = String::with_capacity(text.len());
    for (line, n) in text.lines().zip(1..) {
        if line.trim().is_empty() {
            continue;
        }
        let message = object("the message", line).with_context(|| format!("line {n} of {shown}"))?;
        if !all.is_empty() {
            all.push(',');
        }
        all.push_str(message.get());
    }
    ensure!(!all.is_empty(), "{shown} has no message");
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::args::EventsEndpoint;

    fn options() -> EventsAppend {
        EventsAppend {
            server: EventsEndpoint {
                url: String::new(),
                token: None,
                token_file: None,
                ca_file: None,
            },
            stream: "order-\"1\"".to_owned(),
            kind: Some("Created".to_owned()),
            data: Some(r#"{"n": 1.10}"#.to_owned()),
            metadata: None,
            id: None,
            expected_version: None,
            input: None,
        }
    }

    #[test]
    fn the_call_has_the_text_of_the_data() {
        let call = call(&options()).unwrap();
        assert_eq!(
            call,
            r#"["stream.write","order-\"1\"",{"type":"Created","data":{"n": 1.10}},{}]"#
        );
        let mut more = options();
        more.metadata = Some("{}".to_owned());
        more.id = Some("x".to_owned());
        more.expected_version = Some("-1".to_owned());
        let call = super::call(&more).unwrap();
        assert!(
            call.ends_with(r#""metadata":{}},{"expectedVersion":-1,"id":"x"}]"#),
            "{call}"
        );
        assert_eq!(expected("noStream"), json!("noStream"));
    }

    #[test]
    fn lines_are_one_append_and_a_bad_one_is_named() {
        let folder = std::env::temp_dir().join(format!("thalweg-append-{}", std::process::id()));
        std::fs::write(
            &folder,
            "{\"type\": \"a\", \"data\": {}}\n\n{\"type\":\"b\",\"data\":{}}\n",
        )
        .unwrap();
        let mut from_file = options();
        from_file.input = Some(folder.clone());
        let call = super::call(&from_file).unwrap();
        assert_eq!(
            call,
            r#"["stream.append","order-\"1\"",[{"type": "a", "data": {}},{"type":"b","data":{}}],{}]"#
        );
        std::fs::write(&folder, "{}\n[]\n").unwrap();
        let error = super::call(&from_file).unwrap_err();
        std::fs::remove_file(&folder).unwrap();
        assert!(format!("{error:#}").starts_with("line 2 of "), "{error:#}");
    }
}
