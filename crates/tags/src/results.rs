//! Shares the metadata of results: messages of one tag have one map at the input, and one map at the output.
//!
//! A script that writes the same keys for every message of a tag would give each message its own list. Instead the
//! result is built once per input map and written values, with the topic, and reused for every message that matches.
//! Keys whose value keeps changing for the same input map (a counter, a time) are detected and stay with the message.
//! Both tables are bounded.

use std::fmt::Write as _;
use std::sync::Arc;

use hashbrown::HashSet;
use smallvec::SmallVec;
use thalweg_record::{
    CacheLimits, DropReason, Message, MetaMap, Metadata, Payload, PerMapCache, Remembered, Text, Value, key,
};
use xxhash_rust::xxh3::xxh3_64;

use crate::computed::is_computed;
use crate::datatype::Datatype;
use crate::time::{TIMESTAMP, TIMESTAMP_MS};
use crate::topic;

const TOPICS: CacheLimits = CacheLimits {
    entries_max: 1 << 16,
    bytes_max: 64 << 20,
};
/// Results per input map: a fan-out produces several. With more, the keys in which they differ count as changing.
const VARIANTS_MAX: usize = 8;
const CHANGING_MAX: usize = 64;

pub(crate) const LOCATION_PATH: &str = "location_path";
pub(crate) const DATA_CONTRACT: &str = "data_contract";
pub(crate) const TAG_NAME: &str = "tag_name";
pub(crate) const VIRTUAL_PATH: &str = "virtual_path";
const DATATYPE: &str = "datatype";
pub(crate) const TOPIC: &str = "topic";

/// Why a message gets no metadata.
pub(crate) type DropCause = (DropReason, String);

/// What the metadata of a result says about its value and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SampleHints {
    pub datatype: Datatype,
    /// Whether metadata may contain a time.
    pub timed: bool,
}

/// Results seen so far, for one thread.
pub(crate) struct MetadataCache {
    by_input: PerMapCache<SmallVec<[MetadataVariant; 1]>>,
    /// Keys that change from message to message.
    changing: HashSet<Text>,
    topics: Remembered<String, Result<Text, String>>,
    /// Scratch buffer for the key of `topics`.
    parts: String,
}

impl Default for MetadataCache {
    fn default() -> MetadataCache {
        MetadataCache::within(CacheLimits::default(), TOPICS)
    }
}

struct MetadataVariant {
    /// The changes that it applies to, sorted by key, without changing keys.
    changes: Box<[(Text, Option<Text>)]>,
    map: Arc<MetaMap>,
    hints: SampleHints,
}

impl MetadataVariant {
    fn bytes(&self) -> usize {
        let text = |(key, text): &(Text, Option<Text>)| key.len() + text.as_ref().map_or(0, |text| text.len());
        let changes = size_of_val(&*self.changes) + self.changes.iter().map(text).sum::<usize>();
        size_of::<MetadataVariant>() + changes + self.map.memory_bytes()
    }
}

impl MetadataCache {
    fn within(input_maps: CacheLimits, topics: CacheLimits) -> MetadataCache {
        MetadataCache {
            by_input: PerMapCache::within(input_maps),
            changing: HashSet::new(),
            topics: Remembered::within(topics),
            parts: String::new(),
        }
    }

    /// The resulting metadata of a message, including the topic.
    pub fn metadata(&mut self, message: &Message) -> Result<(Metadata, SampleHints), DropCause> {
        let meta = &message.meta;
        if let Some(variants) = self.by_input.get(meta.shared_map(), ()) {
            let variant = variants.iter().find(|variant| self.stands_for(variant, meta));
            if let Some(variant) = variant {
                let mut result = meta.with_shared(variant.map.clone());
                let mut hints = variant.hints;
                if !self.changing.is_empty() || meta.changes().len() > variant.changes.len() {
                    hints = self.keep_changing(meta, &mut result, hints)?;
                }
                return Ok((result, hints));
            }
        }
        self.first(meta)
    }

    /// The result for messages with this shared map and no changes of their own; `None` if they are refused, or have
    /// individual results.
    pub fn of_map(&mut self, map: &Arc<MetaMap>) -> Option<(Arc<MetaMap>, SampleHints)> {
        let message = Message::new(Payload::Value(Value::Null), Metadata::shared(map.clone()));
        let (meta, hints) = self.metadata(&message).ok()?;
        (!meta.is_changed()).then(|| (meta.shared_map().clone(), hints))
    }

    fn is_changing(&self, key: &str) -> bool {
        key::STAMPS.contains(&key) || self.changing.contains(key)
    }

    fn stands_for(&self, variant: &MetadataVariant, meta: &Metadata) -> bool {
        let mut expected = variant.changes.iter();
        for (key, value) in meta.changes() {
            match expected.as_slice().first() {
                Some((k, v)) if k == key => {
                    if v.as_ref() != value {
                        return false;
                    }
                    expected.next();
                }
                _ if self.is_changing(key) => {}
                _ => return false,
            }
        }
        expected.as_slice().is_empty()
    }

    /// Adds the keys that change from message to message to a shared result. If parts of the topic are among them, the
    /// topic is added too.
    fn keep_changing(
        &mut self,
        meta: &Metadata,
        result: &mut Metadata,
        hints: SampleHints,
    ) -> Result<SampleHints, DropCause> {
        let mut topic_changes = false;
        for (key, value) in meta.changes() {
            if !self.is_changing(key) || is_computed(key) {
                continue;
            }
            topic_changes |= [LOCATION_PATH, DATA_CONTRACT, TAG_NAME, VIRTUAL_PATH].contains(&key.as_str());
            match value {
                Some(value) => result.set(key.clone(), as_in_topic(key, value)),
                None => result.remove(key),
            }
        }
        if topic_changes || self.changing_topic() {
            let topic = self.topic(meta)?;
            result.set(TOPIC, topic.clone());
            result.set(key::UMH_TOPIC, topic);
        }
        if self.changing.is_empty() {
            return Ok(hints);
        }
        Ok(SampleHints::of(result))
    }

    fn changing_topic(&self) -> bool {
        [LOCATION_PATH, DATA_CONTRACT, TAG_NAME, VIRTUAL_PATH]
            .iter()
            .any(|key| self.changing.contains(*key))
    }

    /// Handles a combination that was not seen before.
    fn first(&mut self, meta: &Metadata) -> Result<(Metadata, SampleHints), DropCause> {
        // Checked before anything is stored, so that a refused message leaves nothing behind.
        let topic = self.topic(meta)?;
        let known = self.by_input.get(meta.shared_map(), ());
        if known.is_some_and(|variants| variants.len() >= VARIANTS_MAX) {
            if self.changing.len() >= CHANGING_MAX {
                return Ok(unshared(meta, topic));
            }
            self.learn_changing(meta);
        }
        let variant = self.variant(meta, &topic);
        let (map, hints) = (variant.map.clone(), variant.hints);
        if let Some(variants) = self.by_input.extend(meta.shared_map(), (), variant.bytes()) {
            variants.push(variant);
        }
        let mut result = meta.with_shared(map);
        let hints = self.keep_changing(meta, &mut result, hints)?;
        Ok((result, hints))
    }

    /// The result of all metadata that does not change from message to message.
    fn variant(&self, meta: &Metadata, topic: &Text) -> MetadataVariant {
        let input = meta.shared_map();
        let own: Vec<(Text, Option<Text>)> = meta
            .changes()
            .filter(|(key, _)| !self.is_changing(key))
            .map(|(key, value)| (key.clone(), value.cloned()))
            .collect();
        let replaced = |key: &Text| own.binary_search_by(|(k, _)| k.cmp(key)).is_ok();
        let topics = [(TOPIC, topic), (key::UMH_TOPIC, topic)];
        let entries = input
            .iter()
            .filter(|(key, _)| !replaced(key))
            .map(|(key, value)| (key.clone(), value.clone()))
            .chain(
                own.iter()
                    .filter_map(|(key, value)| Some((key.clone(), value.clone()?))),
            )
            .filter(|(key, _)| !is_computed(key))
            .map(|(key, value)| {
                let value = as_in_topic(&key, &value);
                (key, value)
            })
            .chain(topics.map(|(key, topic)| (Text::new_static(key), topic.clone())));
        let series = input.series().unwrap_or_else(|| xxh3_64(topic.as_bytes()));
        // If the topic changes, so does the series, unless the input map has one.
        let series = (!self.changing_topic() || input.series().is_some()).then_some(series);
        let map = Arc::new(MetaMap::new(entries, series));
        let hints = SampleHints::of(&Metadata::shared(map.clone()));
        MetadataVariant {
            changes: own.into(),
            map,
            hints,
        }
    }

    /// There are too many results for one input map: the keys in which the newest differs from the others count as
    /// changing.
    fn learn_changing(&mut self, meta: &Metadata) {
        let Some(variants) = self.by_input.get(meta.shared_map(), ()) else {
            return;
        };
        let mut differing: Vec<Text> = Vec::new();
        // Both are sorted by key.
        let changes: Vec<(&Text, Option<&Text>)> = meta.changes().collect();
        for variant in variants {
            let value_in_variant = |key: &Text| {
                let at = variant.changes.binary_search_by(|(k, _)| k.cmp(key)).ok()?;
                variant.changes.get(at).map(|(_, value)| value.as_ref())
            };
            let own = changes
                .iter()
                .filter(|(key, value)| value_in_variant(key) != Some(*value));
            let is_gone = |key: &Text| changes.binary_search_by(|(k, _)| (*k).cmp(key)).is_err();
            let gone = variant.changes.iter().filter(|(key, _)| is_gone(key));
            differing.extend(
                own.map(|(key, _)| (*key).clone())
                    .chain(gone.map(|(key, _)| key.clone())),
            );
        }
        self.changing.extend(differing);
        // Earlier results contain values of keys that now belong to messages.
        self.by_input.clear();
    }

    fn topic(&mut self, meta: &Metadata) -> Result<Text, DropCause> {
        let part = |key: &str| meta.get(key).unwrap_or_default();
        let (location, contract, name) = (part(LOCATION_PATH), part(DATA_CONTRACT), part(TAG_NAME));
        if location.is_empty() || contract.is_empty() || name.is_empty() {
            return Err((DropReason::MissingField, String::new()));
        }
        let path = part(VIRTUAL_PATH);
        self.parts.clear();
        let _infallible = write!(self.parts, "{location}\0{contract}\0{path}\0{name}");
        let known = self.topics.get_or_insert_with(self.parts.as_str(), || {
            let built = topic::build(&location, &contract, &path, &name)
                .map(Text::from)
                .map_err(|error| format!("failed to construct UMH topic: failed to build UMH topic: {error}"));
            let bytes = self.parts.len() + built.as_ref().map_or_else(String::len, |topic| topic.len());
            (self.parts.clone(), built, bytes)
        });
        known.map_err(|text| (DropReason::InvalidTopic, text))
    }
}

/// The text of a key as it leaves: a virtual path is that of the topic, trimmed, and empty (so absent) for the words that
/// scripts use for "none".
fn as_in_topic(key: &str, text: &Text) -> Text {
    if key != VIRTUAL_PATH {
        return text.clone();
    }
    match topic::virtual_path(text) {
        path if path.len() == text.len() => text.clone(),
        path => Text::from(path),
    }
}

/// The result with all changes on the message itself: for scripts that create ever new keys.
fn unshared(meta: &Metadata, topic: Text) -> (Metadata, SampleHints) {
    let mut result = meta.clone();
    for computed in crate::computed::KEYS {
        result.remove(computed.name);
    }
    if let Some(path) = meta.text(VIRTUAL_PATH) {
        result.set(VIRTUAL_PATH, as_in_topic(VIRTUAL_PATH, &path));
    }
    result.set(TOPIC, topic.clone());
    result.set(key::UMH_TOPIC, topic);
    let hints = SampleHints::of(&result);
    (result, hints)
}

impl SampleHints {
    fn of(meta: &Metadata) -> SampleHints {
        SampleHints {
            datatype: Datatype::of(meta.get(DATATYPE).as_deref()),
            timed: meta.contains(TIMESTAMP_MS) || meta.contains(TIMESTAMP),
        }
    }
}

/// The required fields that are missing, in order.
pub(crate) fn missing_fields(meta: &Metadata) -> Vec<&'static str> {
    let required = [LOCATION_PATH, DATA_CONTRACT, TAG_NAME];
    required.into_iter().filter(|key| !meta.contains(key)).collect()
}

#[cfg(test)]
mod tests;
