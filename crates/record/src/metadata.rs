//! A message's metadata: text keys and values. The part that is constant for a tag is shared by all its messages.
//!
//! A look-up searches three layers: the message's own changes, then the stamps (OPC UA times, status and gaps, stored
//! as numbers and formatted only on demand), then the shared [`MetaMap`]. An empty value means "absent", so setting a
//! key to `""` removes it.
//!
//! Few values have more than two times and "Good". Those that do have [`QualityDetails`], shared by all values with the
//! same details. When a server falls behind, every value has them, and they must not be the most expensive part then.

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use crate::{Text, Ticks};

/// Keys that Thalweg itself reads or writes.
pub mod key {
    pub const SOURCE_TIMESTAMP: &str = "opcua_source_timestamp";
    pub const SERVER_TIMESTAMP: &str = "opcua_server_timestamp";
    pub const STATUS_CODE: &str = "opcua_attr_statuscode";
    /// `true` on the first value after a gap.
    pub const GAP: &str = "opcua_gap";
    pub const GAP_FROM: &str = "opcua_gap_from";
    pub const GAP_TO: &str = "opcua_gap_to";
    pub const UMH_TOPIC: &str = "umh_topic";
    pub const OPCUA_NODE: &str = "opcua_attr_nodeid";
    pub const MQTT_TOPIC: &str = "mqtt_topic";
    /// Keys that belong to a single message, not to its tag.
    pub const STAMPS: [&str; 6] = [SOURCE_TIMESTAMP, SERVER_TIMESTAMP, STATUS_CODE, GAP, GAP_FROM, GAP_TO];
}

/// The text of the status Good in metadata; every other status has its own text, which its source provides.
const STATUS_GOOD: &str = "The operation succeeded. StatusGood (0x0)";

/// Metadata that many messages share: sorted by key, keys unique, no empty values.
///
/// Properties that every message needs are computed once and are in the same cache line as the `Arc`'s counts: with
/// 50,000 tags, reading another line would mostly wait for memory.
#[derive(Debug)]
pub struct MetaMap {
    entries: Box<[(Text, Text)]>,
    number: u64,
    /// Zero means none.
    series: u64,
    memory_bytes: u32,
    text_bytes: u32,
    longest_text: u32,
    longest_key: u16,
    has_series: bool,
}

impl Default for MetaMap {
    fn default() -> MetaMap {
        MetaMap::of_sorted(Box::default(), None)
    }
}

impl MetaMap {
    /// Of duplicate keys the last wins; empty values are dropped. `series` is the hash by which messages of one tag are
    /// kept in order, if it is the same for all of them.
    pub fn new(entries: impl IntoIterator<Item = (Text, Text)>, series: Option<u64>) -> MetaMap {
        let mut entries: Vec<_> = entries.into_iter().collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let mut unique: Vec<(Text, Text)> = Vec::with_capacity(entries.len());
        for entry in entries {
            match unique.last_mut() {
                Some(last) if last.0 == entry.0 => *last = entry,
                _ => unique.push(entry),
            }
        }
        unique.retain(|(_, value)| !value.is_empty());
        MetaMap::of_sorted(unique.into(), series)
    }

    pub fn get(&self, key: &str) -> Option<&Text> {
        let at = self.entries.binary_search_by(|(k, _)| k.as_str().cmp(key)).ok()?;
        self.entries.get(at).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Text, &Text)> {
        self.entries.iter().map(|(k, v)| (k, v))
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn series(&self) -> Option<u64> {
        self.has_series.then_some(self.series)
    }

    /// A unique number: no other map has it, not even after this one is gone.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The length of all keys and texts.
    pub fn text_bytes(&self) -> usize {
        self.text_bytes as usize
    }

    /// Whether all keys and texts are within these lengths. Also `false` for keys and texts whose length overflows its
    /// field.
    #[inline]
    pub fn is_within(&self, key_bytes_max: usize, text_bytes_max: usize) -> bool {
        let (key, text) = (self.longest_key, self.longest_text);
        key < u16::MAX && text < u32::MAX && usize::from(key) <= key_bytes_max && text as usize <= text_bytes_max
    }

    /// Sorted by key, without repeated keys and empty texts, as [`MetaMap::entries`] returns them.
    pub(crate) fn of_sorted(entries: Box<[(Text, Text)]>, series: Option<u64>) -> MetaMap {
        let (mut memory, mut texts) = (size_of_val(&*entries), 0);
        let (mut longest_key, mut longest_text) = (0, 0);
        for (key, text) in &entries {
            memory += heap_bytes(key) + heap_bytes(text);
            texts += key.len() + text.len();
            longest_key = longest_key.max(key.len());
            longest_text = longest_text.max(text.len());
        }
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        MetaMap {
            entries,
            number: next_number(),
            series: series.unwrap_or_default(),
            memory_bytes: narrow(memory),
            text_bytes: narrow(texts),
            longest_text: narrow(longest_text),
            longest_key: u16::try_from(longest_key).unwrap_or(u16::MAX),
            has_series: series.is_some(),
        }
    }

    /// Approximate memory of its texts; texts shared with other maps count in full.
    pub fn memory_bytes(&self) -> usize {
        self.memory_bytes as usize
    }

    pub(crate) fn entries(&self) -> &[(Text, Text)] {
        &self.entries
    }

    pub(crate) fn empty() -> &'static Arc<MetaMap> {
        static EMPTY: LazyLock<Arc<MetaMap>> = LazyLock::new(Arc::default);
        &EMPTY
    }
}

/// A number that no map had before. Threads reserve blocks of numbers, so that they need not synchronise for each map;
/// it would take centuries to use them up.
fn next_number() -> u64 {
    const BLOCK: u64 = 1 << 12;
    static BLOCKS: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static LAST: Cell<u64> = const { Cell::new(0) };
    }
    LAST.with(|last| {
        let number = match last.get() % BLOCK {
            // The block is used up, or this is the first one. Its first number is skipped, because zero means no map.
            0 => BLOCKS.fetch_add(1, Ordering::Relaxed) * BLOCK + 1,
            _ => last.get() + 1,
        };
        last.set(number);
        number
    })
}

/// Memory of a text beyond its inline part; short ones have none.
fn heap_bytes(text: &Text) -> usize {
    match text.is_heap_allocated() {
        true => text.len() + 2 * size_of::<usize>(),
        false => 0,
    }
}

/// What a value's source reported about it, typed. Visible as metadata unless hidden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueQuality {
    /// [`Ticks::MISSING`] if the source gave none.
    pub source_time: Ticks,
    pub server_time: Ticks,
    /// OPC UA status code; 0 is Good.
    pub status: u32,
}

impl ValueQuality {
    pub const NONE: ValueQuality = ValueQuality {
        source_time: Ticks::MISSING,
        server_time: Ticks::MISSING,
        status: 0,
    };
}

/// A key with its new text; `None` hides the key of the layers below.
pub(crate) type MetadataChange = (Text, Option<Text>);

/// All parts of metadata without quality details.
pub(crate) struct MetadataParts<'a> {
    pub shared: &'a Arc<MetaMap>,
    pub stamps: ValueQuality,
    pub shown: u8,
    pub stamped: bool,
    /// `None` if there are none.
    pub changes: Option<&'a Arc<MetadataChanges>>,
}

/// Details of a value besides its stamps. Values with the same details share them, and so do copies.
#[derive(Clone, Debug)]
pub struct QualityDetails(Arc<MetadataChanges>);

impl QualityDetails {
    /// `status`: the text of a status other than Good; an empty one means none. `gap`: the time span before this value
    /// in which values may be missing.
    pub fn new(status: Option<Text>, gap: Option<(Ticks, Ticks)>) -> QualityDetails {
        QualityDetails(Arc::new(MetadataChanges {
            status: status.filter(|text| !text.is_empty()),
            gap,
            list: Vec::new(),
        }))
    }

    pub fn status(&self) -> Option<&Text> {
        self.0.status.as_ref()
    }

    pub fn gap(&self) -> Option<(Ticks, Ticks)> {
        self.0.gap
    }

    /// Whether both are the same object in memory.
    pub fn is_same(&self, other: &QualityDetails) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What a message has beyond the shared map and two times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MetadataChanges {
    status: Option<Text>,
    gap: Option<(Ticks, Ticks)>,
    /// Sorted by key.
    list: Vec<MetadataChange>,
}

impl MetadataChanges {
    /// From changes sorted by key, without quality details.
    pub fn of_list(list: Vec<MetadataChange>) -> MetadataChanges {
        MetadataChanges {
            list,
            ..MetadataChanges::default()
        }
    }

    pub fn list(&self) -> &[MetadataChange] {
        &self.list
    }

    fn is_marked(&self) -> bool {
        self.status.is_some() || self.gap.is_some()
    }
}

/// Copies of the message share it until one of them makes another change.
#[derive(Clone, Debug, Default)]
struct SharedChanges(Option<Arc<MetadataChanges>>);

impl SharedChanges {
    fn make_mut(&mut self) -> &mut Vec<MetadataChange> {
        &mut Arc::make_mut(self.0.get_or_insert_default()).list
    }

    /// The quality details without the changes.
    fn marks(&self) -> SharedChanges {
        let marked = self.0.as_ref().filter(|own| own.is_marked());
        SharedChanges(marked.map(|own| match own.list.is_empty() {
            true => own.clone(),
            false => QualityDetails::new(own.status.clone(), own.gap).0,
        }))
    }
}

impl std::ops::Deref for SharedChanges {
    type Target = [MetadataChange];

    fn deref(&self) -> &[MetadataChange] {
        self.0.as_deref().map_or(&[], MetadataChanges::list)
    }
}

const SOURCE: u8 = 1;
const SERVER: u8 = 2;
const STATUS: u8 = 4;
const GAP: u8 = 8;
const GAP_FROM: u8 = 16;
const GAP_TO: u8 = 32;
const GAPS: u8 = GAP | GAP_FROM | GAP_TO;

/// Sorted by key.
const STAMPS: [(&str, u8); 6] = [
    (key::STATUS_CODE, STATUS),
    (key::GAP, GAP),
    (key::GAP_FROM, GAP_FROM),
    (key::GAP_TO, GAP_TO),
    (key::SERVER_TIMESTAMP, SERVER),
    (key::SOURCE_TIMESTAMP, SOURCE),
];

/// The metadata of one message.
#[derive(Clone, Debug)]
pub struct Metadata {
    shared: Arc<MetaMap>,
    /// The fields of [`ValueQuality`], separately, so that the small ones share a word.
    source_time: Ticks,
    server_time: Ticks,
    status: u32,
    /// Which stamps are visible, as a set of `SOURCE`, `SERVER`, `STATUS`, and `GAPS` if there is one; 0 for messages
    /// that are not OPC UA values.
    shown: u8,
    stamped: bool,
    own: SharedChanges,
}

impl Default for Metadata {
    fn default() -> Metadata {
        Metadata::shared(MetaMap::empty().clone())
    }
}

impl Metadata {
    pub fn shared(shared: Arc<MetaMap>) -> Metadata {
        Metadata::with(shared, ValueQuality::NONE, 0, false, SharedChanges::default())
    }

    fn with(shared: Arc<MetaMap>, stamps: ValueQuality, shown: u8, stamped: bool, own: SharedChanges) -> Metadata {
        Metadata {
            shared,
            source_time: stamps.source_time,
            server_time: stamps.server_time,
            status: stamps.status,
            shown,
            stamped,
            own,
        }
    }

    fn all_stamps(&self) -> ValueQuality {
        ValueQuality {
            source_time: self.source_time,
            server_time: self.server_time,
            status: self.status,
        }
    }

    /// Metadata of an OPC UA value: the tag's constant part and this value's stamps. The text of a status other than
    /// Good is in its quality details.
    pub fn stamped(shared: Arc<MetaMap>, stamps: ValueQuality) -> Metadata {
        Metadata::with(shared, stamps, SOURCE | SERVER | STATUS, true, SharedChanges::default())
    }

    /// Like `stamped`, for a value with quality details.
    pub fn marked(shared: Arc<MetaMap>, stamps: ValueQuality, marks: QualityDetails) -> Metadata {
        let gap = if marks.gap().is_some() { GAPS } else { 0 };
        let own = SharedChanges(Some(marks.0));
        Metadata::with(shared, stamps, SOURCE | SERVER | STATUS | gap, true, own)
    }

    /// Whether there are quality details, whose texts are not among the [`Metadata::changes`].
    pub fn is_marked(&self) -> bool {
        self.own.0.as_ref().is_some_and(|own| own.is_marked())
    }

    /// The same texts, with the quality details converted to changes: for code that stores changes and does not support
    /// quality details.
    pub fn settled(&self) -> Cow<'_, Metadata> {
        let Some(own) = self.own.0.as_ref().filter(|own| own.is_marked()) else {
            return Cow::Borrowed(self);
        };
        let texts = STAMPS.iter().filter_map(|(key, bit)| {
            let is_mark = bit & GAPS != 0 || (*bit == STATUS && own.status.is_some());
            let is_seen = is_mark && self.shown & bit != 0 && self.find_own(key).is_err();
            let text = self.stamp_text(if is_seen { *bit } else { 0 })?;
            Some((Text::new_static(key), Some(Text::from(text))))
        });
        let mut list: Vec<MetadataChange> = own.list.iter().cloned().chain(texts).collect();
        list.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Cow::Owned(Metadata {
            shared: self.shared.clone(),
            own: SharedChanges(Some(Arc::new(MetadataChanges::of_list(list)))),
            shown: self.shown & !GAPS,
            ..*self
        })
    }

    /// For metadata without quality details.
    pub(crate) fn parts(&self) -> MetadataParts<'_> {
        MetadataParts {
            shared: &self.shared,
            stamps: self.all_stamps(),
            shown: self.shown & !GAPS,
            stamped: self.stamped,
            changes: self.own.0.as_ref().filter(|own| !own.list.is_empty()),
        }
    }

    pub(crate) fn of_parts(parts: MetadataParts<'_>) -> Metadata {
        let own = SharedChanges(parts.changes.cloned());
        Metadata::with(parts.shared.clone(), parts.stamps, parts.shown, parts.stamped, own)
    }

    /// The same stamps and quality details over another shared map, without the message's own changes. Applies a
    /// memoized result.
    pub fn with_shared(&self, shared: Arc<MetaMap>) -> Metadata {
        Metadata {
            shared,
            own: self.own.marks(),
            ..*self
        }
    }

    /// The typed stamps, even after a script hid or replaced their texts. `None` if this is not an OPC UA value.
    pub fn stamps(&self) -> Option<ValueQuality> {
        self.stamped.then(|| self.all_stamps())
    }

    pub fn shared_map(&self) -> &Arc<MetaMap> {
        &self.shared
    }

    /// Whether the message has its own changes on top of the shared part.
    pub fn is_changed(&self) -> bool {
        !self.own.is_empty()
    }

    /// The message's own changes, sorted by key; `None` hides a key of the layers below. Quality details are not
    /// included.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = (&Text, Option<&Text>)> {
        self.own.iter().map(|(key, value)| (key, value.as_ref()))
    }

    pub fn get(&self, key: &str) -> Option<Cow<'_, str>> {
        if let Ok(at) = self.find_own(key) {
            return self
                .own
                .get(at)
                .and_then(|(_, value)| value.as_deref())
                .map(Cow::Borrowed);
        }
        self.stamp_text(stamp_bit(key))
            .or_else(|| self.shared.get(key).map(|v| Cow::Borrowed(v.as_str())))
    }

    /// Like [`Metadata::get`], without copying an existing text.
    pub fn text(&self, key: &str) -> Option<Text> {
        if let Ok(at) = self.find_own(key) {
            return self.own.get(at).and_then(|(_, value)| value.clone());
        }
        let stamp = self.stamp_text(stamp_bit(key));
        stamp.map(Text::from).or_else(|| self.shared.get(key).cloned())
    }

    pub fn contains(&self, key: &str) -> bool {
        match self.find_own(key) {
            Ok(at) => self.own.get(at).is_some_and(|(_, value)| value.is_some()),
            Err(_) => self.shown & stamp_bit(key) != 0 || self.shared.get(key).is_some(),
        }
    }

    /// Reserves capacity for that many changes.
    pub fn reserve(&mut self, changes: usize) {
        if changes > 0 {
            self.own.make_mut().reserve_exact(changes);
        }
    }

    /// Sets a key; the empty text removes it.
    pub fn set(&mut self, key: impl Into<Text>, value: impl Into<Text>) {
        let (key, value) = (key.into(), value.into());
        if value.is_empty() {
            return self.remove(&key);
        }
        match self.find_own(&key) {
            Ok(at) => {
                if let Some(entry) = self.own.make_mut().get_mut(at) {
                    entry.1 = Some(value);
                }
            }
            Err(at) => self.own.make_mut().insert(at, (key, Some(value))),
        }
    }

    /// Like setting one after the other, but not in quadratic time.
    pub fn set_all(&mut self, mut entries: Vec<(Text, Text)>) {
        const FEW: usize = 32;
        if entries.len() <= FEW {
            self.reserve(entries.len());
            return entries.into_iter().for_each(|(key, value)| self.set(key, value));
        }
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        let mut old = std::mem::take(self.own.make_mut()).into_iter().peekable();
        let mut entries = entries.into_iter().peekable();
        let mut list = Vec::with_capacity(old.len() + entries.len());
        while let Some((key, value)) = entries.next() {
            // Of equal keys the last one wins.
            if entries.peek().is_some_and(|(next, _)| *next == key) {
                continue;
            }
            list.extend(std::iter::from_fn(|| old.next_if(|(before, _)| *before < key)));
            let _replaced = old.next_if(|(same, _)| *same == key);
            let is_below = || self.shown & stamp_bit(&key) != 0 || self.shared.get(&key).is_some();
            if !value.is_empty() {
                list.push((key, Some(value)));
            } else if is_below() {
                list.push((key, None));
            }
        }
        list.extend(old);
        *self.own.make_mut() = list;
    }

    pub fn remove(&mut self, key: &str) {
        let below = self.shown & stamp_bit(key) != 0 || self.shared.get(key).is_some();
        match (self.find_own(key), below) {
            (Ok(at), true) => {
                if let Some(entry) = self.own.make_mut().get_mut(at) {
                    entry.1 = None;
                }
            }
            (Ok(at), false) => drop(self.own.make_mut().remove(at)),
            (Err(at), true) => self.own.make_mut().insert(at, (key.into(), None)),
            (Err(_), false) => {}
        }
    }

    /// All keys with their texts, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Cow<'_, str>)> {
        let mut shared = self.shared.iter().peekable();
        let mut stamps = STAMPS.into_iter().filter(|(_, bit)| self.shown & bit != 0).peekable();
        let mut own = self.own.iter().peekable();
        std::iter::from_fn(move || {
            loop {
                let heads = [
                    own.peek().map(|e| e.0.as_str()),
                    stamps.peek().map(|s| s.0),
                    shared.peek().map(|e| e.0.as_str()),
                ];
                let least = heads.into_iter().flatten().min()?;
                let [from_own, from_stamps, from_shared] = heads.map(|head| head == Some(least));
                let shared = if from_shared { shared.next() } else { None };
                let stamp = if from_stamps { stamps.next() } else { None };
                if from_own {
                    // A hidden key is skipped together with its values in the layers below.
                    if let Some((key, Some(value))) = own.next() {
                        return Some((key.as_str(), Cow::Borrowed(value.as_str())));
                    }
                } else if let Some((key, bit)) = stamp {
                    return self.stamp_text(bit).map(|text| (key, text));
                } else if let Some((key, value)) = shared {
                    return Some((key.as_str(), Cow::Borrowed(value.as_str())));
                }
            }
        })
    }

    /// Removes every key, including quality details; the typed stamps stay for tables.
    pub fn clear(&mut self) {
        self.shared = MetaMap::empty().clone();
        self.shown = 0;
        self.own = SharedChanges::default();
    }

    /// Approximate memory of the message's own changes and quality details.
    pub fn heap_bytes(&self) -> usize {
        let Some(own) = &self.own.0 else { return 0 };
        let changes = own
            .list
            .iter()
            .map(|(k, v)| size_of::<(Text, Option<Text>)>() + k.len() + v.as_ref().map_or(0, |v| v.len()));
        size_of::<MetadataChanges>() + own.status.as_ref().map_or(0, |text| text.len()) + changes.sum::<usize>()
    }

    /// The message's share of the memory of its shared map: all of it if nothing else refers to the map, as for
    /// messages created one by one, and next to nothing for the map of a tag. It is an approximation, because it is
    /// computed for every message. The reference count is rounded down to a power of two, so that a shift suffices,
    /// which makes the result up to twice the share; and references come and go.
    pub fn shared_bytes(&self) -> usize {
        let holders = Arc::strong_count(&self.shared);
        self.shared.memory_bytes() >> holders.ilog2()
    }

    fn find_own(&self, key: &str) -> Result<usize, usize> {
        self.own.binary_search_by(|(k, _)| k.as_str().cmp(key))
    }

    fn stamp_text(&self, bit: u8) -> Option<Cow<'_, str>> {
        let own = self.own.0.as_deref();
        let gap = || own.and_then(|own| own.gap);
        let time = match self.shown & bit {
            SOURCE => self.source_time,
            SERVER => self.server_time,
            STATUS => {
                let text = own.and_then(|own| own.status.as_deref());
                return Some(Cow::Borrowed(text.unwrap_or(STATUS_GOOD)));
            }
            GAP => return Some(Cow::Borrowed("true")),
            GAP_FROM => gap()?.0,
            GAP_TO => gap()?.1,
            _ => return None,
        };
        let mut text = String::with_capacity(27);
        time.write_micros(&mut text);
        Some(Cow::Owned(text))
    }
}

impl PartialEq for Metadata {
    /// Equal if every key has the same text in both.
    fn eq(&self, other: &Metadata) -> bool {
        self.iter().eq(other.iter())
    }
}

fn stamp_bit(key: &str) -> u8 {
    match key {
        key::SOURCE_TIMESTAMP => SOURCE,
        key::SERVER_TIMESTAMP => SERVER,
        key::STATUS_CODE => STATUS,
        key::GAP => GAP,
        key::GAP_FROM => GAP_FROM,
        key::GAP_TO => GAP_TO,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
