//! `classic_to_core`: turns a message with many values into one sample per value.
//!
//! The input is a classic payload, `{"timestamp_ms": t, "a": 1, "b": {"c": 2}}`, under a topic that ends with the group
//! of its tags, or with the contract. The output is samples `a` and `b.c` at `t`, each under its own topic. Every tag
//! is accounted for: a message that becomes n samples counts n - 1 more, and a tag that fails does not affect the
//! others.

mod payload;

use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields};
use thalweg_flow::{BuildError, ParseContext, Processor, ProcessorSpec, StageContext};
use thalweg_record::{Ack, Batch, DropReason, FilterReason, Message, MetaMap, Metadata, Payload, Text, key};
use thalweg_telemetry::{COMPONENT_LABELS, IntCounter, MetricDoc, metric_group};

use self::payload::{ClassicPayload, PayloadError};
use crate::datatype::json_form;
use crate::metrics::{MESSAGES_DROPPED, MESSAGES_ERRORED, MESSAGES_PROCESSED};
use crate::results::{DATA_CONTRACT, DropCause, LOCATION_PATH, TAG_NAME, TOPIC, VIRTUAL_PATH};
use crate::topic::{self, TopicError, TopicParts};

/// The former name of `data_contract`.
const SCHEMA: &str = "schema";
const TARGET: &str = "target_data_contract";

/// Limit for the topics of all tags of a message: each repeats the message's topic, however long that is.
const TOPICS_BYTES_MAX: usize = 4 << 20;
/// Messages that are split at once, and samples that are passed on together, because the result of a batch may be a
/// thousand times as large.
const MESSAGES_MAX: usize = 100;
const SAMPLES_MAX: usize = 10_000;

struct ClassicToCoreSpec {
    /// `None` keeps the contract of the topic.
    target: Option<Text>,
}

pub(crate) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    Some(Arc::new(read(node, context)?))
}

fn read(node: &ComponentNode, context: &ParseContext<'_>) -> Option<ClassicToCoreSpec> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let target = fields.string(TARGET, "");
    let is_contract = target.is_empty() || is_contract(&target);
    if !is_contract {
        fields.error(
            TARGET,
            format!(
                "{target:?} is not a data contract; write one such as _raw: an underscore, then letters, digits, \
                 _ and -"
            ),
        );
    }
    fields.finish();
    is_contract.then(|| ClassicToCoreSpec {
        target: (!target.is_empty()).then(|| target.into()),
    })
}

fn is_contract(text: &str) -> bool {
    let name = text.strip_prefix('_').unwrap_or_default();
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b))
}

impl ProcessorSpec for ClassicToCoreSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(ClassicToCore::new(self.target.clone(), context)))
    }
}

struct ClassicToCore {
    target: Option<Text>,
    counters: ClassicToCoreMetrics,
    context: StageContext,
}

metric_group! {
    pub(crate) CLASSIC_TO_CORE_METRICS("Processor `classic_to_core`", COMPONENT_LABELS) {
        PROCESSED = MESSAGES_PROCESSED.meaning("Messages that were split into samples.");
        ERRORED = MESSAGES_ERRORED.meaning("Messages and tags that could not be used.");
        DROPPED = MESSAGES_DROPPED.meaning("Messages without tags, and tags without a value.");
        EXPANDED = MetricDoc::counter("messages_expanded", "Samples emitted.");
        RECURSION_LIMIT_HIT = MetricDoc::counter("recursion_limit_hit", "Messages whose objects are nested too deeply.");
        TAG_LIMIT_EXCEEDED = MetricDoc::counter(
            "tag_limit_exceeded",
            "Messages with too many tags, or whose names or topics are too long.",
        );
    }
}

/// The processor's own counters, shared by its instances.
struct ClassicToCoreMetrics {
    processed: IntCounter,
    errored: IntCounter,
    dropped: IntCounter,
    expanded: IntCounter,
    recursion_limit_hit: IntCounter,
    tag_limit_exceeded: IntCounter,
}

impl ClassicToCoreMetrics {
    fn new(context: &StageContext) -> ClassicToCoreMetrics {
        let counter = |doc: &MetricDoc| context.component.counter(doc);
        ClassicToCoreMetrics {
            processed: counter(&PROCESSED),
            errored: counter(&ERRORED),
            dropped: counter(&DROPPED),
            expanded: counter(&EXPANDED),
            recursion_limit_hit: counter(&RECURSION_LIMIT_HIT),
            tag_limit_exceeded: counter(&TAG_LIMIT_EXCEEDED),
        }
    }
}

/// A message that was split.
struct SplitMessage<'a> {
    place: TopicParts<'a>,
    classic: ClassicPayload,
    /// The metadata that all its tags share.
    common: Metadata,
}

impl Processor for ClassicToCore {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let Batch { messages, mut ack } = batch;
        let mut samples = Vec::with_capacity(messages.len());
        let mut valueless = 0;
        for message in messages {
            let Some(topic) = message.meta.text(TOPIC).or_else(|| message.meta.text(key::UMH_TOPIC)) else {
                let refused = (
                    DropReason::MissingField,
                    "the message has neither topic nor umh_topic".to_owned(),
                );
                self.fail(&mut ack, message, refused);
                continue;
            };
            match self.split(&topic, &message) {
                Ok(split) => valueless += self.emit(split, &message, &mut samples, &mut ack),
                Err(refused) => self.fail(&mut ack, message, refused),
            }
            if samples.len() >= SAMPLES_MAX {
                let samples = std::mem::take(&mut samples);
                self.counters.expanded.inc_by(samples.len() as u64);
                let ack = ack.split(samples.len());
                out.push(Batch::new(samples, ack));
            }
        }
        if valueless > 0 {
            self.counters.dropped.inc_by(valueless as u64);
            ack.filtered(FilterReason::NoValue, valueless);
        }
        self.counters.expanded.inc_by(samples.len() as u64);
        if samples.is_empty() {
            return ack.delivered();
        }
        out.push(Batch::new(samples, ack));
    }

    fn messages_max(&self) -> usize {
        MESSAGES_MAX
    }
}

impl ClassicToCore {
    fn new(target: Option<Text>, context: StageContext) -> ClassicToCore {
        ClassicToCore {
            target,
            counters: ClassicToCoreMetrics::new(&context),
            context,
        }
    }

    fn split<'a>(&'a self, topic: &'a str, message: &Message) -> Result<SplitMessage<'a>, DropCause> {
        let place = self.place(topic).map_err(invalid_topic)?;
        let classic = ClassicPayload::read(&message.payload).map_err(|unreadable| {
            match unreadable {
                PayloadError::TooDeep => self.counters.recursion_limit_hit.inc(),
                PayloadError::TooManyTags | PayloadError::NamesTooLong => self.counters.tag_limit_exceeded.inc(),
                _ => {}
            }
            (unreadable.reason(), unreadable.to_string())
        })?;
        if classic.unused_meta {
            self.context.component.warn_limited("meta", 1, || {
                "meta or metadata of the payload is not an object, so it gives no metadata, and it is no tag either; send \
                 an object of names and values, or give the tag another name"
                    .to_owned()
            });
        }
        self.check_topics(&place, &classic)?;
        let common = common(&message.meta, &place, &classic);
        Ok(SplitMessage { place, classic, common })
    }

    /// Checked before anything is created: a short payload under a long topic would become a thousand long topics.
    fn check_topics(&self, place: &TopicParts<'_>, classic: &ClassicPayload) -> Result<(), DropCause> {
        let names: usize = classic.tags.iter().map(|(name, _)| name.len()).sum();
        let before = place.location.len() + place.contract.len() + place.path.len();
        let bytes = names + classic.tags.len() * before;
        if bytes <= TOPICS_BYTES_MAX {
            return Ok(());
        }
        self.counters.tag_limit_exceeded.inc();
        let text = format!(
            "the topics of the payload's {} tags have {bytes} bytes, and {TOPICS_BYTES_MAX} are allowed; shorten the topic of the \
             message, or send its tags in several messages",
            classic.tags.len()
        );
        Err((DropReason::Limit, text))
    }

    /// The common part of the topics of a message's tags. An error applies to all of them and is reported once.
    fn place<'a>(&'a self, topic: &'a str) -> Result<TopicParts<'a>, TopicError> {
        let place =
            TopicParts::of(topic).ok_or_else(|| topic::check(topic).err().unwrap_or(TopicError::ContractMissing))?;
        let place = TopicParts {
            contract: self.target.as_deref().unwrap_or(place.contract),
            path: topic::virtual_path(place.path),
            ..place
        };
        topic::build(place.location, place.contract, place.path, "tag")?;
        Ok(place)
    }

    /// Adds the samples of a message. Returns how many of its tags have no value; 1 if it has no tags.
    fn emit(&self, split: SplitMessage<'_>, message: &Message, samples: &mut Vec<Message>, ack: &mut Ack) -> usize {
        let SplitMessage { place, classic, common } = split;
        self.counters.processed.inc();
        if classic.tags.is_empty() {
            return 1;
        }
        ack.expanded(classic.tags.len() - 1);
        let mut valueless = 0;
        for (name, value) in classic.tags {
            if value.is_null() {
                valueless += 1;
                continue;
            }
            let topic = topic::build_of_source(place.location, place.contract, place.path, &name);
            let mut meta = common.clone();
            meta.reserve(3);
            meta.set(TAG_NAME, name);
            let checked = topic.map_err(invalid_topic).and_then(|topic| {
                let topic = Text::from(topic);
                meta.set(TOPIC, topic.clone());
                meta.set(key::UMH_TOPIC, topic);
                json_form(&value).map_err(|why| (DropReason::InvalidValue, why))
            });
            let sample = Message {
                payload: Payload::Sample {
                    value,
                    time_ms: classic.time_ms,
                },
                meta,
                ..message.clone()
            };
            match checked {
                Ok(()) => samples.push(sample),
                Err(refused) => self.fail(ack, sample, refused),
            }
        }
        valueless
    }

    fn fail(&self, ack: &mut Ack, message: Message, (reason, error): DropCause) {
        self.counters.errored.inc();
        self.context.fail(ack, message, reason, &error);
    }
}

fn invalid_topic(error: TopicError) -> DropCause {
    (DropReason::InvalidTopic, error.to_string())
}

/// The metadata of all tags of a message, in one shared map: that of the message, entries from its payload, and the
/// location.
fn common(meta: &Metadata, place: &TopicParts<'_>, classic: &ClassicPayload) -> Metadata {
    let owned = |(key, text): (&Text, &Text)| (key.clone(), text.clone());
    let place = [
        (LOCATION_PATH, place.location),
        (SCHEMA, place.contract),
        (DATA_CONTRACT, place.contract),
        (VIRTUAL_PATH, place.path),
    ];
    // Of duplicate keys the last one wins, and an empty text removes a key.
    let entries = meta
        .shared_map()
        .iter()
        .map(owned)
        .chain(
            meta.changes()
                .map(|(key, text)| (key.clone(), text.cloned().unwrap_or_default())),
        )
        .chain(classic.meta.iter().cloned())
        .chain(place.map(|(key, text)| (Text::new_static(key), Text::from(text))));
    // Without a series: from here on each tag has its own.
    let mut common = meta.with_shared(Arc::new(MetaMap::new(entries, None)));
    // Stamps take precedence over the map, so replaced stamps are set again.
    for (key, text) in meta.changes().filter(|(key, _)| key::STAMPS.contains(&key.as_str())) {
        common.set(key.clone(), text.cloned().unwrap_or_default());
    }
    common
}

#[cfg(test)]
mod tests;
