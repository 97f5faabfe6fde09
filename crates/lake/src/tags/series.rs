//! What is constant for the rows of one tag: source, tag, unit and all other metadata.
//!
//! Messages of a tag share their metadata by pointer, so a row finds its series by that pointer, and where its texts are in
//! the columns of the rows that grow is looked up once for each series. Metadata that is not shared is recognised by its
//! content. A pointer stays in the table only as long as the table holds the map it points to, so it can never mean another map.

use std::collections::HashMap as StdHashMap;
use std::sync::Arc;

use hashbrown::HashMap;
use thalweg_record::{DropReason, Message, MetaMap, Metadata, Text, key};
use xxhash_rust::xxh3::Xxh3;

use crate::rows::chunk::Chunk;
use crate::rows::slots::Source;
use crate::rows::text::NULL;
use crate::tables::tags as table;

/// A script's explicit time in milliseconds.
const EXPLICIT_TIME: &str = "timestamp_ms";
const UNIT: &str = "unit";
const OPCUA_PATH: &str = "opcua_tag_path";
const OPCUA_GROUP: &str = "opcua_tag_group";
const OPCUA_NAME: &str = "opcua_tag_name";
const OPCUA_NODE: &str = "opcua_attr_nodeid";
const MQTT_TOPIC: &str = "mqtt_topic";

/// Bytes of metadata of a row that weigh nothing beside what the row takes anyway.
const LIGHT_BYTES: usize = 1024;

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
            value_bytes_max: 16 << 20,
        }
    }
}

impl RowLimits {
    /// Whether an entry of metadata is within them.
    #[inline]
    pub(super) fn allow(&self, name: &str, text: &str) -> bool {
        name.len() <= self.attribute_name_bytes_max && text.len() <= self.attribute_value_bytes_max
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
pub(super) struct Series {
    pub source: Arc<str>,
    pub tag: Option<Text>,
    /// XXH3-64 over source and tag, each after its length as four bytes, little-endian.
    pub tag_id: i64,
    pub unit: Option<Text>,
    /// Sorted by name.
    pub attributes: Box<[(Text, Text)]>,
    /// What it takes itself.
    pub bytes: usize,
    /// What a row of it takes beyond the usual, if none of its attributes has a column.
    weight: usize,
}

impl Series {
    /// `Ok` if a row may have as many attributes, and such.
    pub fn check(&self, limits: &RowLimits) -> Result<(), Refusal> {
        let (count, max) = (self.attributes.len(), limits.attributes_max);
        for (name, value) in &self.attributes {
            check_attribute(name, value, limits)?;
        }
        match count > max {
            true => Err(Refusal::too_large(format!(
                "too_many_attributes: the message has {count} metadata entries, {max} are allowed; remove some in a processor"
            ))),
            false => Ok(()),
        }
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

/// Where the texts of a series are in some rows.
#[derive(Debug, Default)]
struct Placed {
    /// Of the rows that it is true of.
    chunk: u64,
    source: u32,
    tag: u32,
    unit: u32,
    /// Column and key of each attribute that has one.
    cells: Vec<(u32, u32)>,
    /// Indexes of attributes for which there is no column.
    extras: Vec<u32>,
}

/// A series as it is known.
#[derive(Debug)]
pub(super) struct Slot {
    pub series: Arc<Series>,
    /// The shared map says `timestamp_ms`.
    shared_time: bool,
    placed: Placed,
}

impl Slot {
    /// Gives a row what all rows of the series have.
    #[inline]
    pub fn put(&mut self, row: usize, chunk: &mut Chunk) {
        if self.placed.chunk != chunk.id() {
            self.place(chunk);
        }
        let Slot { series, placed, .. } = self;
        chunk.longs(table::TAG_ID).push(row, series.tag_id);
        chunk.add_weight(series.weight);
        chunk.texts(table::SOURCE).push_key(row, placed.source);
        if placed.tag != NULL {
            chunk.texts(table::TAG).push_key(row, placed.tag);
        }
        if placed.unit != NULL {
            chunk.texts(table::UNIT).push_key(row, placed.unit);
        }
        for (column, key) in &placed.cells {
            if let Some(column) = chunk.slots.column_mut(*column) {
                column.push_key(row, *key);
            }
        }
        for index in &placed.extras {
            if let Some((name, text)) = series.attributes.get(*index as usize) {
                chunk.push_extra(row, Source::Attr, name, text);
            }
        }
    }

    #[inline(never)]
    fn place(&mut self, chunk: &mut Chunk) {
        let Slot { series, placed, .. } = self;
        let text = |text: &Option<Text>, chunk: &mut Chunk, column| match text {
            Some(text) => chunk.texts(column).intern(text.as_bytes()),
            None => NULL,
        };
        placed.chunk = chunk.id();
        placed.source = chunk.texts(table::SOURCE).intern(series.source.as_bytes());
        placed.tag = text(&series.tag, chunk, table::TAG);
        placed.unit = text(&series.unit, chunk, table::UNIT);
        placed.cells.clear();
        placed.extras.clear();
        for (index, (name, text)) in (0..).zip(&series.attributes) {
            let place = chunk.slots.place(Source::Attr, name);
            let column = place.and_then(|place| Some((place, chunk.slots.column_mut(place)?)));
            match column {
                Some((place, column)) => placed.cells.push((place, column.intern(text.as_bytes()))),
                None => placed.extras.push(index),
            }
        }
    }
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
pub(super) struct SeriesTable {
    sources: StdHashMap<Arc<str>, u32>,
    last_source: Option<(Arc<str>, u32)>,
    aliases: HashMap<Alias, Target>,
    by_content: HashMap<u64, Vec<u32>>,
    slots: Vec<Slot>,
    bytes: usize,
}

impl SeriesTable {
    pub fn slot(&mut self, index: u32) -> Option<&mut Slot> {
        self.slots.get_mut(index as usize)
    }

    /// Memory that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes + self.aliases.len() * (size_of::<Alias>() + size_of::<Target>() + 1)
    }

    /// The slot of a message's series, and the explicit time in its metadata.
    pub fn find(&mut self, source: &Arc<str>, message: &Message) -> (u32, Option<i64>) {
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
                let index = self.intern(describe(source, meta), shared.get(EXPLICIT_TIME).is_some());
                // A map that only this message holds will not come again.
                if Arc::strong_count(shared) > 1 {
                    let series = self.slots.get(index as usize);
                    self.bytes += series.map_or(0, |slot| slot.series.bytes);
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
        (index, if asks { explicit_time(meta) } else { None })
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
            placed: Placed::default(),
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
pub(super) fn describe(source: &Arc<str>, meta: &Metadata) -> Series {
    let (tag, tag_key) = tag_of(meta);
    let stamped = meta.stamps().is_some();
    let mut attributes: Vec<(Text, Text)> = Vec::with_capacity(meta.shared_map().len());
    let mut unit = None;
    let changed: Vec<&str> = relevant_changes(meta).map(|(name, _)| name.as_str()).collect();
    let has_time = explicit_time(meta).is_some();
    let mut take = |name: &str, pair: &dyn Fn() -> (Text, Text)| {
        let is_stamp = matches!(name, key::SOURCE_TIMESTAMP | key::SERVER_TIMESTAMP | key::STATUS_CODE);
        let has_column = match name {
            UNIT => true,
            EXPLICIT_TIME => has_time,
            name if is_stamp && stamped => !changed.contains(&name),
            name => Some(name) == tag_key,
        };
        if name == UNIT {
            unit = Some(pair().1);
        }
        if !has_column {
            attributes.push(pair());
        }
    };
    match meta.is_changed() {
        true => meta
            .iter()
            .for_each(|(name, value)| take(name, &|| (name.into(), Text::from(&*value)))),
        // Texts that many share are not copied.
        false => {
            let shared = meta.shared_map().iter();
            shared.for_each(|(name, value)| take(name, &|| (name.clone(), value.clone())));
        }
    }
    let texts: usize = attributes.iter().map(|(name, text)| name.len() + text.len()).sum();
    let places = attributes.len() * (2 * size_of::<Text>() + size_of::<(u32, u32)>());
    Series {
        source: source.clone(),
        tag_id: tag_id(source, tag.as_deref()),
        bytes: size_of::<Series>() + size_of::<Slot>() + places + texts,
        weight: texts.saturating_sub(LIGHT_BYTES),
        tag,
        unit,
        attributes: attributes.into(),
    }
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
