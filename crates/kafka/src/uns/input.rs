//! The input `uns`: records whose key matches one of the expressions. Headers become metadata; the records of one key
//! mostly have the same headers, so their messages share it.

use std::borrow::Cow;
use std::sync::Arc;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use rdkafka::message::{BorrowedMessage, Message as _};
use regex::bytes::RegexSet;
use thalweg_config::{ComponentNode, Fields, Node, kind};
use thalweg_flow::{BoxFuture, BuildContext, BuildError, Input, InputContext, InputError, InputSpec, ParseContext};
use thalweg_kit::re2;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Text, key};

use super::TOPIC;
use super::shared_metadata::SharedMetadata;
use crate::cluster;
use crate::consume::{self, ConsumerMetrics, ConsumerOptions, INPUT_UNS, RecordDecoder, StartOffset, TopicSelection};
use crate::header_list;
use crate::headers::{self, RecordHeader};
use crate::input::{TOMBSTONE, payload};
use crate::text_bytes::{self, ESCAPED};

pub fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mut client = cluster::read_unencrypted(&mut fields);
    consume::fetch_ahead(&mut client, consume::FETCHED_AHEAD);
    let group = fields.string("consumer_group", "uns_plugin");
    let topic = fields.string("kafka_topic", TOPIC);
    if let Err(error) = cluster::check_topic(&topic) {
        fields.error("kafka_topic", error);
    }
    let mut wanted = KeyPatterns::default();
    for node in fields.list("umh_topics") {
        wanted.add(&node, &fields);
    }
    if let Some(node) = fields.node("umh_topic", kind::TEXT) {
        wanted.add(&node, &fields);
    }
    if let Some(node) = fields.legacy("topic", "is one more of umh_topics; write it there") {
        wanted.add(&node, &fields);
    }
    let is_bytes = fields.one_of("metadata_format", &["string", "bytes"], "string") == "bytes";
    let keys = wanted.set(&fields);
    fields.finish();
    let topics = TopicSelection::Names(vec![topic]);
    Some(Arc::new(UnsInputSpec {
        options: ConsumerOptions::new(client, &group, topics, StartOffset::Earliest),
        keys: keys?,
        is_bytes,
    }))
}

/// Expressions as they are read.
#[derive(Default)]
struct KeyPatterns {
    texts: Vec<String>,
    is_wrong: bool,
}

impl KeyPatterns {
    fn add(&mut self, node: &Node, fields: &Fields<'_>) {
        let text = node.expect_text().map(str::to_owned);
        let checked = text.and_then(|text| {
            let pattern = re2::without_quotes(&text);
            match regex::bytes::Regex::new(&pattern) {
                Ok(_) => Ok(pattern.into_owned()),
                Err(error) => Err(format!(
                    "\"{text}\" is no regular expression: {}",
                    last_line(&error.to_string())
                )),
            }
        });
        match checked {
            Ok(text) => self.texts.push(text),
            Err(error) => {
                self.is_wrong = true;
                fields.diags().error(node, error);
            }
        }
    }

    /// Returns `None` after a mistake.
    fn set(mut self, fields: &Fields<'_>) -> Option<RegexSet> {
        if self.texts.is_empty() {
            self.texts.push(".*".to_owned());
        }
        if self.is_wrong {
            return None;
        }
        match RegexSet::new(self.texts) {
            Ok(set) => Some(set),
            Err(error) => {
                let why = last_line(&error.to_string()).to_owned();
                fields.error(
                    "umh_topics",
                    format!("the expressions cannot be used together: {why}; use fewer or simpler ones"),
                );
                None
            }
        }
    }
}

/// Returns the message of an error without the drawing of its position.
fn last_line(error: &str) -> &str {
    let last = error.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last)
}

struct UnsInputSpec {
    options: ConsumerOptions,
    keys: RegexSet,
    is_bytes: bool,
}

impl InputSpec for UnsInputSpec {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        let records = UnsRecordDecoder {
            keys: self.keys.clone(),
            is_bytes: self.is_bytes,
            shared: SharedMetadata::default(),
        };
        Ok(Box::new(UnsInput {
            options: self.options.clone(),
            records,
        }))
    }
}

struct UnsInput {
    options: ConsumerOptions,
    records: UnsRecordDecoder,
}

impl Input for UnsInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            let meters = ConsumerMetrics::new(&context.component, &INPUT_UNS);
            consume::run(self.options, meters, self.records, context).await
        })
    }
}

struct UnsRecordDecoder {
    keys: RegexSet,
    is_bytes: bool,
    shared: SharedMetadata,
}

impl RecordDecoder for UnsRecordDecoder {
    fn message(&mut self, record: &BorrowedMessage<'_>) -> Option<Message> {
        let key = record.key().unwrap_or_default();
        if !self.keys.is_match(key) {
            return None;
        }
        let mut meta = Metadata::shared(self.map(key, record));
        if let Some(ms) = record.timestamp().to_millis() {
            meta.set("kafka_timestamp_ms", ms.to_string());
        }
        // A deletion of its key. Other records lack this metadata, as in the reference system.
        if record.payload().is_none() {
            meta.set(TOMBSTONE, "true");
        }
        Some(Message::new(Payload::Raw(payload(record)), meta))
    }
}

impl UnsRecordDecoder {
    fn map(&mut self, key: &[u8], record: &BorrowedMessage<'_>) -> Arc<MetaMap> {
        let headers = as_they_came(record);
        if let Some(known) = self.shared.get(key, &headers) {
            return known;
        }
        let map = Arc::new(self.read(key, record));
        self.shared.insert(key, headers, map.clone());
        map
    }

    fn read(&self, key: &[u8], record: &BorrowedMessage<'_>) -> MetaMap {
        let (topic, record_topic) = (self.text(key), Text::from(record.topic()));
        let own = [
            (Text::new_static("kafka_msg_key"), topic.clone()),
            (Text::new_static("kafka_topic"), record_topic),
            (Text::new_static(key::UMH_TOPIC), topic),
        ];
        // The series of a message follows from its topic.
        MetaMap::new(self.headers(key, record).into_iter().chain(own), None)
    }

    fn headers(&self, key: &[u8], record: &BorrowedMessage<'_>) -> Vec<(Text, Text)> {
        let headers = headers::of(record).filter(|header| !header_list::is_reserved(&header.name));
        let mut is_escaped = false;
        let mut entries: Vec<(Text, Text)> = if self.is_bytes {
            let entry = |header: RecordHeader<'_>| {
                // Names are texts in either format.
                is_escaped |= matches!(header.name, Cow::Owned(_));
                (Text::from(&*header.name), self.text(header.value.unwrap_or_default()))
            };
            headers.map(entry).collect()
        } else {
            is_escaped = matches!(text_bytes::text_of(key), Cow::Owned(_));
            header_list::entries(headers, false)
        };
        if is_escaped {
            entries.push((Text::new_static(ESCAPED), Text::new_static("true")));
        }
        entries
    }

    fn text(&self, bytes: &[u8]) -> Text {
        match std::str::from_utf8(bytes) {
            Ok(text) if self.is_bytes => text.into(),
            // Metadata is text: invalid UTF-8 is kept as base64 if bytes are requested.
            Err(_) if self.is_bytes => BASE64_STANDARD.encode(bytes).into(),
            _ => Text::from(&*text_bytes::text_of(bytes)),
        }
    }
}

fn as_they_came(record: &BorrowedMessage<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    for header in headers::of(record) {
        out.push(u8::from(header.value.is_some()));
        for part in [header.name.as_bytes(), header.value.unwrap_or_default()] {
            out.extend_from_slice(&part.len().to_le_bytes());
            out.extend_from_slice(part);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use thalweg_config::Diagnostics;

    use super::*;

    fn keys(list: &str) -> Result<RegexSet, String> {
        let (node, diagnostics) = (Node::parse(list).unwrap(), Diagnostics::new("flow.yaml"));
        let fields = Fields::new(&node, &diagnostics);
        let mut wanted = KeyPatterns::default();
        for pattern in node.get("umh_topics").and_then(Node::as_seq).unwrap_or_default() {
            wanted.add(pattern, &fields);
        }
        wanted.set(&fields).ok_or_else(|| diagnostics.to_string())
    }

    /// Files of the reference system quote topics, whose dots would match anything.
    #[test]
    fn quoted_topics_match_themselves_alone() {
        let keys = keys(r"umh_topics: ['^\Qumh.v1.plant._raw.a+b\E$', '\Q.c', 'line[0-9]\Q.\Etemp']").unwrap();
        for (key, is_matched) in [
            ("umh.v1.plant._raw.a+b", true),
            ("umh_v1.plant._raw.a+b", false),
            ("umh.v1.plant._raw.aab", false),
            ("plant.c", true),
            ("plant_c", false),
            ("line7.temp", true),
            ("line7_temp", false),
        ] {
            assert_eq!(keys.is_match(key.as_bytes()), is_matched, "{key}");
        }
    }

    #[test]
    fn a_mistake_is_told_as_it_was_written() {
        let mistake = keys(r"umh_topics: ['\Qa.b\E(', 'c']").unwrap_err();
        assert!(
            mistake.contains(r#""\Qa.b\E(" is no regular expression: unclosed group"#),
            "{mistake}"
        );
    }
}
