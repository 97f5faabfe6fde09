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

/// Metadata without a column of its own, sorted by name.
#[derive(Debug)]
pub(super) enum Attributes {
    /// Entries of a constant map, which are not copied, but for those at some places.
    Shared {
        map: Arc<MetaMap>,
        skipped: Box<[u16]>,
    },
    Own(Box<[(Text, Text)]>),
}

impl Attributes {
    pub fn len(&self) -> usize {
        match self {
            Attributes::Shared { map, skipped } => map.len() - skipped.len(),
            Attributes::Own(entries) => entries.len(),
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Text, &Text)> {
        let (shared, skipped, own) = match self {
            Attributes::Shared { map, skipped } => (Some(map.iter()), &**skipped, &[][..]),
            Attributes::Own(entries) => (None, &[][..], &**entries),
        };
        let mut skipped = skipped.iter().peekable();
        let shared = (0_u16..).zip(shared.into_iter().flatten());
        let shared = shared.filter(move |(at, _)| skipped.next_if(|skipped| *skipped == at).is_none());
        shared
            .map(|(_, entry)| entry)
            .chain(own.iter().map(|(name, text)| (name, text)))
    }

    /// Memory that it holds, a map included.
    fn bytes(&self) -> usize {
        match self {
            Attributes::Shared { map, skipped } => size_of_val(&**skipped) + bytes_of(map.iter()),
            Attributes::Own(entries) => bytes_of(entries.iter().map(|(name, text)| (name, text))),
        }
    }

    fn is_of(&self, other: &Arc<MetaMap>) -> bool {
        matches!(self, Attributes::Shared { map, .. } if Arc::ptr_eq(map, other))
    }
}

fn bytes_of<'a>(entries: impl Iterator<Item = (&'a Text, &'a Text)>) -> usize {
    entries
        .map(|(name, text)| 2 * size_of::<Text>() + name.len() + text.len())
        .sum()
}

/// Everything that rows of one tag share.
#[derive(Debug)]
pub(super) struct Series {
    pub source: Arc<str>,
    pub tag: Option<Text>,
    /// XXH3-64 over source and tag, each after its length as four bytes, little-endian.
    pub tag_id: i64,
    pub unit: Option<Text>,
    pub attributes: Attributes,
    /// What a row of it takes beyond the usual, if none of its attributes has a column.
    weight: usize,
}

impl Series {
    /// `Ok` if a row may have as many attributes, and such.
    pub fn check(&self, limits: &RowLimits) -> Result<(), Refusal> {
        let (count, max) = (self.attributes.len(), limits.attributes_max);
        for (name, value) in self.attributes.iter() {
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
            && self.attributes.iter().eq(other.attributes.iter())
    }

    fn bytes(&self) -> usize {
        size_of::<Series>() + size_of::<Slot>() + self.attributes.bytes() + self.attributes.len() * size_of::<u32>()
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

/// Names of attributes that many series have in the same order, and their columns.
#[derive(Debug)]
struct Shape {
    names: Box<[Text]>,
    /// Of the rows that it is true of.
    chunk: u64,
    /// The column of each name; `NULL` if there is none.
    columns: Box<[u32]>,
}

impl Shape {
    fn look_up(&mut self, chunk: &mut Chunk) {
        self.chunk = chunk.id();
        for (name, column) in self.names.iter().zip(&mut self.columns) {
            *column = chunk.slots.place(Source::Attr, name).unwrap_or(NULL);
        }
    }
}

/// Where the texts of a series are in some rows.
#[derive(Debug, Default)]
struct Placed {
    /// Of the rows that it is true of.
    chunk: u64,
    source: u32,
    tag: u32,
    unit: u32,
    /// Of each attribute that has a column.
    keys: Box<[u32]>,
}

/// A series as it is known.
#[derive(Debug)]
pub(super) struct Slot {
    pub series: Arc<Series>,
    /// The shared map says `timestamp_ms`.
    shared_time: bool,
    shape: u32,
    placed: Placed,
}

impl Slot {
    /// Gives a row what all rows of the series have.
    #[inline]
    fn put(&mut self, row: usize, chunk: &mut Chunk, shape: &mut Shape) {
        if self.placed.chunk != chunk.id() {
            if shape.chunk != chunk.id() {
                shape.look_up(chunk);
            }
            self.place(chunk, shape);
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
        for (index, (column, key)) in shape.columns.iter().zip(&placed.keys).enumerate() {
            if let Some(column) = chunk.slots.column_mut(*column) {
                column.push_key(row, *key);
            } else if let Some((name, text)) = series.attributes.iter().nth(index) {
                chunk.push_extra(row, Source::Attr, name, text);
            }
        }
    }

    #[inline(never)]
    fn place(&mut self, chunk: &mut Chunk, shape: &Shape) {
        let Slot { series, placed, .. } = self;
        let text = |text: &Option<Text>, chunk: &mut Chunk, column| match text {
            Some(text) => chunk.texts(column).intern(text.as_bytes()),
            None => NULL,
        };
        placed.chunk = chunk.id();
        placed.source = chunk.texts(table::SOURCE).intern(series.source.as_bytes());
        placed.tag = text(&series.tag, chunk, table::TAG);
        placed.unit = text(&series.unit, chunk, table::UNIT);
        if placed.keys.len() != series.attributes.len() {
            placed.keys = vec![NULL; series.attributes.len()].into();
        }
        let of_columns = shape.columns.iter().zip(&mut placed.keys);
        for ((_, text), (column, key)) in series.attributes.iter().zip(of_columns) {
            if let Some(column) = chunk.slots.column_mut(*column) {
                *key = column.intern(text.as_bytes());
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

/// The index of the series that is not kept.
const PASSING: u32 = u32::MAX;
/// Messages of series that are not kept, for each that is, after which the table begins anew: those that it has may be of
/// tags that nobody sends any more.
const PASSED_FOR_EACH: usize = 32;

/// All series seen lately, as long as there is room. Where there is none, those that are known stay: of tags that come in turns
/// a table that forgot the oldest ones would know none.
#[derive(Default)]
pub(super) struct SeriesTable {
    sources: StdHashMap<Arc<str>, u32>,
    last_source: Option<(Arc<str>, u32)>,
    aliases: HashMap<Alias, Target>,
    by_content: HashMap<u64, Vec<u32>>,
    shapes: Vec<Shape>,
    by_names: HashMap<u64, Vec<u32>>,
    slots: Vec<Slot>,
    bytes: usize,
    room: usize,
    passing: Option<Slot>,
    passed: usize,
}

impl SeriesTable {
    /// It may hold so many bytes from now on.
    pub fn set_room(&mut self, room: usize) {
        let forget = self.passed > PASSED_FOR_EACH * self.slots.len().max(1);
        if forget || self.bytes() > room + room / 4 {
            *self = SeriesTable::default();
        }
        self.room = room;
    }

    /// Memory that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes + self.aliases.len() * (size_of::<Alias>() + size_of::<Target>() + 1)
    }

    /// Gives a row what all rows of a series have that was just found.
    #[inline]
    pub fn put(&mut self, index: u32, row: usize, chunk: &mut Chunk) {
        let slot = match index {
            PASSING => self.passing.as_mut(),
            known => self.slots.get_mut(known as usize),
        };
        if let Some(slot) = slot
            && let Some(shape) = self.shapes.get_mut(slot.shape as usize)
        {
            slot.put(row, chunk, shape);
        }
    }

    fn slot(&self, index: u32) -> Option<&Slot> {
        match index {
            PASSING => self.passing.as_ref(),
            known => self.slots.get(known as usize),
        }
    }

    /// The slot of a message's series, until the next one is looked for, and the explicit time in its metadata.
    #[inline]
    pub fn find(&mut self, source: &Arc<str>, message: &Message) -> (u32, Option<i64>) {
        let meta = &message.meta;
        let alias = Alias {
            map: Arc::as_ptr(meta.shared_map()).addr(),
            source: self.source_index(source),
            changes: if meta.is_changed() { changes_hash(meta) } else { 0 },
        };
        let index = match self.aliases.get(&alias) {
            Some(target) => target.slot,
            None => self.find_by_content(source, meta, alias),
        };
        let asks = meta.is_changed() || self.slot(index).is_some_and(|slot| slot.shared_time);
        (index, if asks { explicit_time(meta) } else { None })
    }

    #[inline(never)]
    fn find_by_content(&mut self, source: &Arc<str>, meta: &Metadata, alias: Alias) -> u32 {
        let shared = meta.shared_map();
        // A map that only this message holds will not come again.
        let may_come_again = Arc::strong_count(shared) > 1;
        let index = self.intern(describe(source, meta), shared.get(EXPLICIT_TIME).is_some());
        if index != PASSING && may_come_again && self.bytes() < self.room {
            if !self
                .slot(index)
                .is_some_and(|slot| slot.series.attributes.is_of(shared))
            {
                self.bytes += bytes_of(shared.iter());
            }
            let held = shared.clone();
            self.aliases.insert(
                alias,
                Target {
                    slot: index,
                    _held: held,
                },
            );
        }
        index
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
        let hash = series.content_hash();
        let same = |index: &u32| {
            let slot = self.slots.get(*index as usize);
            slot.is_some_and(|slot| slot.series.is_same(&series) && slot.shared_time == shared_time)
        };
        let candidates = self.by_content.get(&hash).into_iter().flatten();
        if let Some(index) = candidates.copied().find(|index| same(index)) {
            return index;
        }
        let bytes = series.bytes();
        let slot = Slot {
            shape: self.shape(&series.attributes),
            series: Arc::new(series),
            shared_time,
            placed: Placed::default(),
        };
        if self.bytes() + bytes > self.room {
            self.passing = Some(slot);
            self.passed += 1;
            return PASSING;
        }
        let index = u32::try_from(self.slots.len()).unwrap_or(PASSING - 1);
        self.by_content.entry(hash).or_default().push(index);
        self.bytes += bytes;
        self.slots.push(slot);
        index
    }

    /// The number of the names that these attributes have.
    fn shape(&mut self, attributes: &Attributes) -> u32 {
        let mut hash = Xxh3::new();
        attributes.iter().for_each(|(name, _)| hash_part(&mut hash, name));
        let candidates = self.by_names.entry(hash.digest()).or_default();
        let same = |index: &u32| {
            let shape = self.shapes.get(*index as usize);
            shape.is_some_and(|shape| shape.names.iter().eq(attributes.iter().map(|(name, _)| name)))
        };
        if let Some(known) = candidates.iter().copied().find(same) {
            return known;
        }
        let index = u32::try_from(self.shapes.len()).unwrap_or(u32::MAX);
        candidates.push(index);
        let names: Box<[Text]> = attributes.iter().map(|(name, _)| name.clone()).collect();
        self.bytes += size_of::<Shape>() + names.iter().map(|name| size_of::<Text>() + name.len()).sum::<usize>();
        self.shapes.push(Shape {
            columns: vec![NULL; names.len()].into(),
            chunk: 0,
            names,
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
    let mut unit = None;
    let changed: Vec<&str> = relevant_changes(meta).map(|(name, _)| name.as_str()).collect();
    let has_time = explicit_time(meta).is_some();
    let has_column = |name: &str| {
        let is_stamp = matches!(name, key::SOURCE_TIMESTAMP | key::SERVER_TIMESTAMP | key::STATUS_CODE);
        match name {
            UNIT => true,
            EXPLICIT_TIME => has_time,
            name if is_stamp && stamped => !changed.contains(&name),
            name => Some(name) == tag_key,
        }
    };
    let map = meta.shared_map();
    let attributes = if meta.is_changed() || u16::try_from(map.len()).is_err() {
        let mut own: Vec<(Text, Text)> = Vec::new();
        meta.iter().for_each(|(name, value)| {
            if name == UNIT {
                unit = Some(Text::from(&*value));
            }
            if !has_column(name) {
                own.push((name.into(), Text::from(&*value)));
            }
        });
        Attributes::Own(own.into())
    } else {
        unit = map.get(UNIT).cloned();
        let entries = (0_u16..).zip(map.iter());
        let skipped = entries.filter(|(_, (name, _))| has_column(name)).map(|(at, _)| at);
        Attributes::Shared {
            skipped: skipped.collect(),
            map: map.clone(),
        }
    };
    let texts: usize = attributes.iter().map(|(name, text)| name.len() + text.len()).sum();
    Series {
        source: source.clone(),
        tag_id: tag_id(source, tag.as_deref()),
        weight: texts.saturating_sub(LIGHT_BYTES),
        tag,
        unit,
        attributes,
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
