//! What is constant for the rows of one tag: source, tag, unit and all metadata that has no column of its own.
//!
//! Messages of a tag share their metadata by pointer, so a row finds its series by that pointer, and columns, hashes and
//! texts are worked out once per series. Metadata that is not shared is recognised by its content. A pointer stays in
//! the table only as long as the table holds the map it points to, so it can never mean another map.

use std::collections::HashMap as StdHashMap;
use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use thalweg_record::{DropReason, Message, MetaMap, Metadata, Text, key};
use xxhash_rust::xxh3::Xxh3;

use crate::attributes::{Bindings, Place};
use crate::rows::slots::Source;

/// A script's explicit time in milliseconds.
const EXPLICIT_TIME: &str = "timestamp_ms";
const UNIT: &str = "unit";
const OPCUA_PATH: &str = "opcua_tag_path";
const OPCUA_GROUP: &str = "opcua_tag_group";
const OPCUA_NAME: &str = "opcua_tag_name";
const OPCUA_NODE: &str = "opcua_attr_nodeid";
const MQTT_TOPIC: &str = "mqtt_topic";

/// What one message may hold; more is refused with a reason.
#[derive(Clone, Copy, Debug)]
pub struct RowLimits {
    pub attributes_max: usize,
    pub attribute_name_bytes_max: usize,
    pub attribute_value_bytes_max: usize,
    pub value_bytes_max: usize,
}

impl Default for RowLimits {
    fn default() -> RowLimits {
        RowLimits {
            attributes_max: 1024,
            attribute_name_bytes_max: 512,
            attribute_value_bytes_max: 1 << 20,
            value_bytes_max: 64 << 20,
        }
    }
}

/// Why a message cannot become a row, ever.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub reason: DropReason,
    pub error: String,
}

impl Refusal {
    pub(super) fn too_large(error: String) -> Refusal {
        Refusal {
            reason: DropReason::TooLarge,
            error,
        }
    }
}

/// Everything that rows of one tag share.
#[derive(Debug)]
pub struct Series {
    pub source: Arc<str>,
    pub tag: Option<Text>,
    /// XXH3-64 over source and tag, each after its length as four bytes, little-endian.
    pub tag_id: i64,
    pub unit: Option<Text>,
    /// Sorted by name.
    pub attributes: Box<[(Text, Text)]>,
    pub bytes: usize,
    resolved: Mutex<Option<Arc<Resolved>>>,
}

/// Where the attributes of a series go.
#[derive(Debug)]
pub struct Resolved {
    epoch: u32,
    /// Promoted column and index of the attribute, by column.
    pub cells: Box<[(u16, u16)]>,
    /// Indexes of the attributes that go to the overflow map.
    pub overflow: Box<[u16]>,
}

impl Series {
    /// Whether every attribute's place is known.
    pub fn is_resolved(&self, bindings: &Bindings) -> bool {
        self.resolved
            .lock()
            .as_ref()
            .is_some_and(|resolved| resolved.epoch == bindings.epoch())
    }

    /// The places of all attributes. Names that `bindings` has not admitted go to the overflow map.
    pub fn resolve(&self, bindings: &Bindings) -> Arc<Resolved> {
        let mut known = self.resolved.lock();
        if let Some(resolved) = known.as_ref().filter(|resolved| resolved.epoch == bindings.epoch()) {
            return resolved.clone();
        }
        let (mut cells, mut overflow) = (Vec::new(), Vec::new());
        for (index, (name, _)) in (0u16..).zip(&self.attributes) {
            match bindings.place(Source::Attr, name) {
                Some(Place::Column(column)) => cells.push((column, index)),
                Some(Place::Overflow) | None => overflow.push(index),
            }
        }
        cells.sort_unstable();
        let resolved = Resolved {
            epoch: bindings.epoch(),
            cells: cells.into(),
            overflow: overflow.into(),
        };
        known.insert(Arc::new(resolved)).clone()
    }

    fn is_same(&self, other: &Series) -> bool {
        self.source == other.source
            && self.tag == other.tag
            && self.unit == other.unit
            && self.attributes == other.attributes
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

/// A series as it is known, and where the generation in work keeps it.
pub struct Slot {
    pub series: Arc<Series>,
    /// The shared map says `timestamp_ms`.
    shared_time: bool,
    /// The generation that `local` belongs to.
    pub generation: u64,
    pub local: u32,
}

/// One way to a slot: by pointer of the shared map, source, and hash of the message's own changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Alias {
    map: usize,
    source: u32,
    changes: u128,
}

struct Target {
    slot: u32,
    /// Keeps the address of the map from being used again.
    _held: Arc<MetaMap>,
}

/// All series seen lately.
#[derive(Default)]
pub struct SeriesTable {
    limits: RowLimits,
    sources: StdHashMap<Arc<str>, u32>,
    last_source: Option<(Arc<str>, u32)>,
    aliases: HashMap<Alias, Target>,
    by_content: HashMap<u64, Vec<u32>>,
    slots: Vec<Slot>,
    bytes: usize,
}

impl SeriesTable {
    pub fn new(limits: RowLimits) -> SeriesTable {
        SeriesTable {
            limits,
            ..SeriesTable::default()
        }
    }

    pub fn slot(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize)
    }

    /// Memory held between generations.
    pub fn bytes(&self) -> usize {
        self.bytes + self.aliases.len() * (size_of::<Alias>() + size_of::<Target>() + 1)
    }

    /// Forgets everything. Generations keep the series that they use.
    pub fn clear(&mut self) {
        *self = SeriesTable::new(self.limits);
    }

    /// The slot of a message's series, and the explicit time in its metadata.
    pub fn find(&mut self, source: &Arc<str>, message: &Message) -> Result<(u32, Option<i64>), Refusal> {
        let meta = &message.meta;
        let shared = meta.shared_map();
        let alias = Alias {
            map: Arc::as_ptr(shared).addr(),
            source: self.source_index(source),
            changes: if meta.is_changed() { changes_hash(meta) } else { 0 },
        };
        let index = match self.aliases.get(&alias) {
            Some(target) => target.slot,
            None => {
                let index = self.intern(
                    describe(source, meta, &self.limits)?,
                    shared.get(EXPLICIT_TIME).is_some(),
                );
                // A map that only this message holds will not come again.
                if Arc::strong_count(shared) > 1 {
                    self.aliases.insert(
                        alias,
                        Target {
                            slot: index,
                            _held: shared.clone(),
                        },
                    );
                }
                index
            }
        };
        let asks = meta.is_changed() || self.slots.get(index as usize).is_some_and(|slot| slot.shared_time);
        Ok((index, if asks { explicit_time(meta) } else { None }))
    }

    fn source_index(&mut self, source: &Arc<str>) -> u32 {
        if let Some((last, index)) = &self.last_source
            && Arc::ptr_eq(last, source)
        {
            return *index;
        }
        let next = u32::try_from(self.sources.len()).unwrap_or(u32::MAX);
        let index = *self.sources.entry(source.clone()).or_insert(next);
        self.last_source = Some((source.clone(), index));
        index
    }

    fn intern(&mut self, series: Series, shared_time: bool) -> u32 {
        let candidates = self.by_content.entry(series.content_hash()).or_default();
        let known = candidates.iter().copied().find(|index| {
            self.slots
                .get(*index as usize)
                .is_some_and(|slot| slot.series.is_same(&series) && slot.shared_time == shared_time)
        });
        if let Some(index) = known {
            return index;
        }
        let index = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        candidates.push(index);
        self.bytes += series.bytes;
        self.slots.push(Slot {
            series: Arc::new(series),
            shared_time,
            generation: 0,
            local: 0,
        });
        index
    }
}

/// The time that a script set, if the metadata holds one that is a number.
fn explicit_time(meta: &Metadata) -> Option<i64> {
    parse_time(&meta.get(EXPLICIT_TIME)?)
}

fn parse_time(text: &str) -> Option<i64> {
    text.trim().parse().ok()
}

fn is_time(text: &Text) -> bool {
    parse_time(text).is_some()
}

/// The changes of a message's own that make its series another one, in order.
fn relevant_changes(meta: &Metadata) -> impl Iterator<Item = (&Text, Option<&Text>)> {
    let status = meta.stamps().map(|stamps| stamps.status);
    meta.changes()
        .filter(move |(name, value)| match (name.as_str(), value) {
            // One time instead of another, or of none, is the same series; instead of a text it is not.
            (EXPLICIT_TIME, Some(own)) => {
                !is_time(own)
                    || meta
                        .shared_map()
                        .get(EXPLICIT_TIME)
                        .is_some_and(|below| !is_time(below))
            }
            (key::STATUS_CODE, Some(text)) => !status.is_some_and(|status| says_status(text, status)),
            // Hiding the text of a stamp changes nothing: stamps have columns of their own.
            (key::STATUS_CODE | key::SOURCE_TIMESTAMP | key::SERVER_TIMESTAMP, None) => status.is_none(),
            _ => true,
        })
}

/// Whether a text is that of a status code, as sources write it: `… (0x80000000)`.
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
    // 0 is kept for "no changes".
    if any { hash.digest128().max(1) } else { 0 }
}

/// Works out a series from the metadata as a whole.
fn describe(source: &Arc<str>, meta: &Metadata, limits: &RowLimits) -> Result<Series, Refusal> {
    let (tag, tag_key) = tag_of(meta);
    let stamped = meta.stamps().is_some();
    let mut attributes: Vec<(Text, Text)> = Vec::with_capacity(meta.shared_map().len());
    let mut unit = None;
    let changed: Vec<&str> = relevant_changes(meta).map(|(name, _)| name.as_str()).collect();
    for (name, value) in meta.iter() {
        let is_stamp = matches!(name, key::SOURCE_TIMESTAMP | key::SERVER_TIMESTAMP | key::STATUS_CODE);
        let has_column = match name {
            UNIT => true,
            EXPLICIT_TIME => explicit_time(meta).is_some(),
            name if is_stamp && stamped => !changed.contains(&name),
            name => Some(name) == tag_key,
        };
        if name == UNIT {
            unit = Some(Text::from(&*value));
        }
        if !has_column {
            check_attribute(name, &value, limits)?;
            attributes.push((name.into(), Text::from(value)));
        }
    }
    if attributes.len() > limits.attributes_max {
        let (count, max) = (attributes.len(), limits.attributes_max);
        return Err(Refusal::too_large(format!(
            "too_many_attributes: the message has {count} metadata entries, {max} are allowed; remove some in a processor"
        )));
    }
    let bytes = attributes
        .iter()
        .map(|(name, value)| 2 * size_of::<Text>() + name.len() + value.len())
        .sum::<usize>();
    Ok(Series {
        source: source.clone(),
        tag_id: tag_id(source, tag.as_deref()),
        bytes: size_of::<Series>() + 64 + bytes,
        tag,
        unit,
        attributes: attributes.into(),
        resolved: Mutex::new(None),
    })
}

fn check_attribute(name: &str, value: &str, limits: &RowLimits) -> Result<(), Refusal> {
    if name.len() > limits.attribute_name_bytes_max {
        let (max, start) = (
            limits.attribute_name_bytes_max,
            name.chars().take(40).collect::<String>(),
        );
        return Err(Refusal::too_large(format!(
            "name_too_long: the metadata key that begins {start:?} has {} bytes, {max} are allowed",
            name.len()
        )));
    }
    if value.len() > limits.attribute_value_bytes_max {
        return Err(Refusal::too_large(format!(
            "value_too_long: the metadata entry {name:?} has {} bytes, {} are allowed",
            value.len(),
            limits.attribute_value_bytes_max
        )));
    }
    Ok(())
}

/// The tag's name, and the key that holds just that name.
fn tag_of(meta: &Metadata) -> (Option<Text>, Option<&'static str>) {
    let get = |key| meta.get(key).map(Text::from);
    if let Some(topic) = get(key::UMH_TOPIC) {
        return (Some(topic), Some(key::UMH_TOPIC));
    }
    match (get(OPCUA_PATH), get(OPCUA_NAME), get(OPCUA_GROUP)) {
        (Some(path), Some(name), _) => return (Some(format!("{path}.{name}").into()), None),
        (Some(path), None, _) => return (Some(path), Some(OPCUA_PATH)),
        // Without a path the group is the tag's own name: a node directly below the root.
        (None, _, Some(group)) => return (Some(group), Some(OPCUA_GROUP)),
        (None, Some(name), None) => return (Some(name), Some(OPCUA_NAME)),
        (None, None, None) => {}
    }
    for key in [OPCUA_NODE, MQTT_TOPIC] {
        if let Some(text) = get(key) {
            return (Some(text), Some(key));
        }
    }
    (None, None)
}

#[cfg(test)]
mod tests;
