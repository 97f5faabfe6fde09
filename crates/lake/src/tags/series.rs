//! Series of tags: what is constant for the rows of one tag, that is source, tag, unit and all other metadata.

mod admission_filter;
mod cache;
mod cached_series;
mod metadata_writer;

use std::borrow::Cow;
use std::sync::Arc;

use thalweg_record::{MetaMap, Metadata, Text, key};
use xxhash_rust::xxh3::Xxh3;

pub(super) use cache::TagSeriesCache;

/// A script's explicit time in milliseconds.
const EXPLICIT_TIME: &str = "timestamp_ms";
const UNIT: &str = "unit";
const OPCUA_PATH: &str = "opcua_tag_path";
const OPCUA_GROUP: &str = "opcua_tag_group";
const OPCUA_NAME: &str = "opcua_tag_name";

/// Metadata up to this size does not add to the weight of a row.
const LIGHT_BYTES: usize = 1024;

/// Metadata without a fixed column, sorted by name.
#[derive(Debug)]
pub(super) enum TagAttributes {
    /// The entries of a shared constant map, except those at some indexes.
    Shared {
        map: Arc<MetaMap>,
        skipped: Box<[u16]>,
    },
    Own(Box<[(Text, Text)]>),
}

impl TagAttributes {
    pub fn len(&self) -> usize {
        match self {
            TagAttributes::Shared { map, skipped } => map.len() - skipped.len(),
            TagAttributes::Own(entries) => entries.len(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Text, &Text)> {
        let (shared, skipped, own) = match self {
            TagAttributes::Shared { map, skipped } => (Some(map.iter()), &**skipped, &[][..]),
            TagAttributes::Own(entries) => (None, &[][..], &**entries),
        };
        let mut skipped = skipped.iter().peekable();
        let shared = (0_u16..).zip(shared.into_iter().flatten());
        let shared = shared.filter(move |(at, _)| skipped.next_if(|skipped| *skipped == at).is_none());
        shared
            .map(|(_, entry)| entry)
            .chain(own.iter().map(|(name, text)| (name, text)))
    }

    /// The memory usage, including the map.
    fn bytes(&self) -> usize {
        match self {
            TagAttributes::Shared { map, skipped } => size_of_val(&**skipped) + bytes_of(map),
            TagAttributes::Own(entries) => entries.iter().map(|(name, text)| bytes_of_entry(name, text)).sum(),
        }
    }
}

pub(super) fn bytes_of(map: &MetaMap) -> usize {
    size_of::<MetaMap>() + map.len() * 2 * size_of::<Text>() + map.text_bytes()
}

fn bytes_of_entry(name: &Text, text: &Text) -> usize {
    2 * size_of::<Text>() + name.len() + text.len()
}

/// Everything that rows of one tag share.
#[derive(Debug)]
pub(super) struct TagSeries {
    pub source: Arc<str>,
    pub tag: Option<Text>,
    /// XXH3-64 over source and tag, each after its length as four bytes, little-endian.
    pub tag_id: i64,
    pub unit: Option<Text>,
    pub attributes: TagAttributes,
    /// The extra size of its rows if none of its attributes has a column.
    weight: usize,
}

impl TagSeries {
    fn is_same(&self, other: &TagSeries) -> bool {
        self.source == other.source
            && self.tag == other.tag
            && self.unit == other.unit
            && self.attributes.iter().eq(other.attributes.iter())
    }

    fn bytes(&self) -> usize {
        size_of::<TagSeries>() + self.attributes.bytes()
    }

    fn content_hash(&self) -> u64 {
        let mut hash = Xxh3::new();
        let fixed = [Some(&*self.source), self.tag.as_deref(), self.unit.as_deref()];
        let attributes = self
            .attributes
            .iter()
            .flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        for part in fixed.map(Option::unwrap_or_default).into_iter().chain(attributes) {
            hash_part(&mut hash, part);
        }
        hash.digest()
    }
}

fn hash_part(hash: &mut Xxh3, part: &str) {
    hash.update(&u32::try_from(part.len()).unwrap_or(u32::MAX).to_le_bytes());
    hash.update(part.as_bytes());
}

/// The id of a tag of a source.
pub fn tag_id(source: &str, tag: Option<&str>) -> i64 {
    let mut hash = Xxh3::new();
    hash_part(&mut hash, source);
    hash_part(&mut hash, tag.unwrap_or_default());
    hash.digest().cast_signed()
}

/// The time that a script set, if the metadata has it as a number.
fn explicit_time(meta: &Metadata) -> Option<i64> {
    parse_time(&meta.get(EXPLICIT_TIME)?)
}

fn parse_time(text: &str) -> Option<i64> {
    text.trim().parse().ok()
}

fn is_time(text: &Text) -> bool {
    parse_time(text).is_some()
}

/// The message's own changes that make it another series, in order.
fn relevant_changes(meta: &Metadata) -> impl Iterator<Item = (&Text, Option<&Text>)> {
    let status = meta.stamps().map(|stamps| stamps.status);
    meta.changes()
        .filter(move |(name, value)| match (name.as_str(), value) {
            // Setting or replacing a time does not change the series; replacing a text does.
            (EXPLICIT_TIME, Some(own)) => {
                !is_time(own)
                    || meta
                        .shared_map()
                        .get(EXPLICIT_TIME)
                        .is_some_and(|below| !is_time(below))
            }
            (key::STATUS_CODE, Some(text)) => !status.is_some_and(|status| says_status(text, status)),
            // Hiding the text of a stamp changes nothing, because stamps have columns.
            (key::STATUS_CODE | key::SOURCE_TIMESTAMP | key::SERVER_TIMESTAMP, None) => status.is_none(),
            _ => true,
        })
}

/// Whether a text is this status code as sources write it: `… (0x80000000)`.
fn says_status(text: &str, status: u32) -> bool {
    let digits = text.strip_suffix(')').and_then(|text| text.rsplit_once("(0x"));
    let bare = text.strip_prefix("0x");
    let hex = digits.map(|(_, hex)| hex).or(bare);
    hex.and_then(|hex| u32::from_str_radix(hex, 16).ok()) == Some(status)
}

fn changes_hash(meta: &Metadata) -> u128 {
    let mut hash = Xxh3::new();
    let mut any = false;
    for (name, value) in relevant_changes(meta) {
        any = true;
        hash_part(&mut hash, name);
        hash.update(&[u8::from(value.is_some())]);
        hash_part(&mut hash, value.map_or("", |value| value.as_str()));
    }
    // 0 means "no changes".
    if any { hash.digest128().max(1) } else { 0 }
}

/// Which metadata of a message is stored in fixed columns.
pub(super) struct FixedMetadata {
    tag_key: Option<&'static str>,
    has_time: bool,
    source_time: bool,
    server_time: bool,
    status: bool,
}

impl FixedMetadata {
    pub fn of(meta: &Metadata, tag_key: Option<&'static str>) -> FixedMetadata {
        let stamped = meta.stamps().is_some();
        let mut fixed = FixedMetadata {
            tag_key,
            has_time: explicit_time(meta).is_some(),
            source_time: stamped,
            server_time: stamped,
            status: stamped,
        };
        // A text that replaces a stamp has no column.
        for (name, _) in relevant_changes(meta) {
            match name.as_str() {
                key::SOURCE_TIMESTAMP => fixed.source_time = false,
                key::SERVER_TIMESTAMP => fixed.server_time = false,
                key::STATUS_CODE => fixed.status = false,
                _ => {}
            }
        }
        fixed
    }

    #[inline]
    pub fn has(&self, name: &str) -> bool {
        match name {
            UNIT => true,
            EXPLICIT_TIME => self.has_time,
            key::SOURCE_TIMESTAMP => self.source_time,
            key::SERVER_TIMESTAMP => self.server_time,
            key::STATUS_CODE => self.status,
            name => self.tag_key == Some(name),
        }
    }
}

/// Whether a change of this name only affects the text of an attribute.
fn is_plain(name: &str) -> bool {
    let has_column = matches!(
        name,
        UNIT | EXPLICIT_TIME | key::SOURCE_TIMESTAMP | key::SERVER_TIMESTAMP | key::STATUS_CODE
    );
    let tells_tag = matches!(
        name,
        key::UMH_TOPIC | OPCUA_PATH | OPCUA_GROUP | OPCUA_NAME | key::OPCUA_NODE | key::MQTT_TOPIC
    );
    !has_column && !tells_tag
}

/// The metadata of a message without its stamps, which are in columns or replaced, sorted by name.
pub(super) fn entries(meta: &Metadata) -> impl Iterator<Item = (&Text, &Text)> {
    let mut shared = meta.shared_map().iter().peekable();
    let mut own = meta.changes().peekable();
    std::iter::from_fn(move || {
        loop {
            let Some(&(name, _)) = own.peek() else {
                return shared.next();
            };
            if let Some(below) = shared.next_if(|(below, _)| *below < name) {
                return Some(below);
            }
            // A change hides the entry of the same name.
            let _ = shared.next_if(|(below, _)| *below == name);
            if let Some((name, Some(text))) = own.next() {
                return Some((name, text));
            }
        }
    })
}

/// Computes a series from the whole metadata.
fn describe(source: &Arc<str>, meta: &Metadata) -> TagSeries {
    let (tag, tag_key) = tag_of(meta);
    let fixed = FixedMetadata::of(meta, tag_key);
    let map = meta.shared_map();
    let attributes = if meta.is_changed() || u16::try_from(map.len()).is_err() {
        let own = entries(meta).filter(|(name, _)| !fixed.has(name));
        TagAttributes::Own(own.map(|(name, text)| (name.clone(), text.clone())).collect())
    } else {
        let entries = (0_u16..).zip(map.iter());
        let skipped = entries.filter(|(_, (name, _))| fixed.has(name)).map(|(at, _)| at);
        TagAttributes::Shared {
            skipped: skipped.collect(),
            map: map.clone(),
        }
    };
    let texts: usize = attributes.iter().map(|(name, text)| name.len() + text.len()).sum();
    TagSeries {
        source: source.clone(),
        tag_id: tag_id(source, tag.as_deref()),
        weight: texts.saturating_sub(LIGHT_BYTES),
        tag: tag.map(Text::from),
        unit: meta.text(UNIT),
        attributes,
    }
}

/// The tag's name, and the key whose value is exactly that name.
pub(super) fn tag_of(meta: &Metadata) -> (Option<Cow<'_, str>>, Option<&'static str>) {
    let get = |key| meta.get(key);
    if let Some(topic) = get(key::UMH_TOPIC) {
        return (Some(topic), Some(key::UMH_TOPIC));
    }
    match (get(OPCUA_PATH), get(OPCUA_NAME), get(OPCUA_GROUP)) {
        (Some(path), Some(name), _) => return (Some(format!("{path}.{name}").into()), None),
        (Some(path), None, _) => return (Some(path), Some(OPCUA_PATH)),
        // Without a path, the group is the tag's own name: a node directly below the root.
        (None, _, Some(group)) => return (Some(group), Some(OPCUA_GROUP)),
        (None, Some(name), None) => return (Some(name), Some(OPCUA_NAME)),
        (None, None, None) => {}
    }
    for name in [key::OPCUA_NODE, key::MQTT_TOPIC] {
        if let Some(text) = get(name) {
            return (Some(text), Some(name));
        }
    }
    (None, None)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
