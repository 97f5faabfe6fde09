//! Converts values by client handle to messages with their tag's metadata. The hot path: per value an index into the
//! item table, a pointer to shared metadata and two timestamps, without any text. Texts for a status other than Good or
//! for a gap are built once for all equal values ([`marks`](super::marks)).

use std::sync::Arc;

use parking_lot::RwLock;
use thalweg_flow::ShardedMessages;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Ticks, Value, ValueQuality};

use super::age_histogram::{AgeBin, AgeHistogram};
use super::items::{Item, ItemIndex, ItemTable};
use super::marks::MarksCache;
use crate::config::TagGroupMode;
use crate::gaps::{Gap, Gaps, NO_GAP};
use crate::metadata::{self, TagType};
use crate::node_table::{NO_NODE, NodeIndex, NodeTable};
use crate::value::answers::ClientHandleValue;
use crate::value::{DataValue, ValueContent, status};

/// Above this many tags, metadata is not kept for tags that have sent only one value.
const METADATA_KEPT_MAX: usize = 250_000;

/// The result of converting a batch of values.
#[derive(Debug)]
pub(super) struct ConvertedBatch {
    pub messages: ShardedMessages,
    /// Notifications without a value that are filtered.
    pub without_value: usize,
    /// Messages that have a status and no value.
    pub bad_values: usize,
    pub too_large: usize,
    pub suppressed: usize,
    pub overflows: usize,
    /// Values whose handle was never assigned, or whose tag is gone.
    pub unknown: usize,
    /// Gaps of single items in this batch.
    pub gaps: Vec<Gap>,
    pub heartbeat: bool,
    pub newest: Option<Ticks>,
    /// The measurement times of the values, where present.
    pub ages: Vec<AgeBin>,
}

impl ConvertedBatch {
    /// The number that enters the flow: messages, and those that are filtered or dropped immediately.
    pub fn entered(&self) -> usize {
        self.messages.len() + self.without_value + self.too_large
    }
}

pub(super) struct Converter {
    table: Arc<RwLock<NodeTable>>,
    mode: TagGroupMode,
    /// Whether a status without a value becomes a message.
    passes_bad_values: bool,
    heartbeat: Option<Heartbeat>,
    marks: MarksCache,
    ages: AgeHistogram,
}

/// The server's clock as the heartbeat.
struct Heartbeat {
    item: ItemIndex,
    meta: Arc<MetaMap>,
}

impl Converter {
    pub fn new(table: Arc<RwLock<NodeTable>>, mode: TagGroupMode, passes_bad_values: bool) -> Converter {
        Converter {
            table,
            mode,
            passes_bad_values,
            heartbeat: None,
            marks: MarksCache::default(),
            ages: AgeHistogram::default(),
        }
    }

    /// Sets the item whose values are heartbeats: a dedicated item, or the user's, whose messages are then followed by
    /// a copy.
    pub fn set_heartbeat(&mut self, item: ItemIndex, meta: Arc<MetaMap>) {
        self.heartbeat = Some(Heartbeat { item, meta });
    }

    pub fn heartbeat_item(&self) -> Option<ItemIndex> {
        self.heartbeat.as_ref().map(|heartbeat| heartbeat.item)
    }

    pub fn is_heartbeat(&self, index: ItemIndex) -> bool {
        self.heartbeat_item() == Some(index)
    }

    /// Converts values to messages in `parts`.
    pub fn convert(
        &mut self,
        values: &mut Vec<ClientHandleValue>,
        items: &mut ItemTable,
        gaps: &mut Gaps,
        parts: ShardedMessages,
    ) -> ConvertedBatch {
        let mut converted = ConvertedBatch {
            messages: parts,
            without_value: 0,
            bad_values: 0,
            too_large: 0,
            suppressed: 0,
            overflows: 0,
            unknown: 0,
            gaps: Vec::new(),
            heartbeat: false,
            newest: None,
            ages: Vec::new(),
        };
        self.ages.begin(Ticks::now());
        let table = self.table.clone();
        let table = table.read();
        let keep_all = items.len() <= METADATA_KEPT_MAX;
        for (handle, value) in values.drain(..) {
            let index = ItemTable::of_handle(handle).filter(|index| items.is_served(*index));
            match index {
                Some(index) => self.convert_one(index, value, items, gaps, &table, keep_all, &mut converted),
                None => converted.unknown += 1,
            }
        }
        converted.ages = self.ages.take();
        converted
    }

    /// Converts one value to a message, in place. The shared metadata of a tag is made for its first value and kept; with
    /// more than [`METADATA_KEPT_MAX`] tags, it is made again for the second value and kept then.
    #[expect(
        clippy::too_many_arguments,
        reason = "the state of one loop, split only to keep it readable"
    )]
    #[inline]
    fn convert_one(
        &mut self,
        index: ItemIndex,
        value: DataValue,
        items: &mut ItemTable,
        gaps: &mut Gaps,
        table: &NodeTable,
        keep_all: bool,
        converted: &mut ConvertedBatch,
    ) {
        let Some((item, mut deadband)) = items.with_deadband(index) else {
            return;
        };
        let DataValue {
            content,
            stamps,
            wrapped,
        } = value;
        if status::is_overflow(stamps.status) {
            converted.overflows += 1;
            let gap = overflow_gap(item.last_time, stamps.source_time);
            converted.gaps.push(gap);
            let joined = gaps.take(item.gap).map_or(gap, |earlier| gap.joined(earlier));
            item.gap = gaps.open(joined, 1);
        }
        let value = match content {
            ValueContent::Value(value) => value,
            ValueContent::TooLarge => return converted.too_large += 1,
            ValueContent::Nothing => {
                if let Some(deadband) = &mut deadband {
                    deadband.forget();
                }
                // The server's clock without a time is no sign of life.
                if !self.passes_bad_values || status::is_good(stamps.status) || item.node == NO_NODE {
                    return converted.without_value += 1;
                }
                converted.bad_values += 1;
                Value::Null
            }
        };
        let has_value = !matches!(value, Value::Null);
        if deadband.is_some_and(|deadband| !deadband.passes(&value, stamps.status)) {
            return converted.suppressed += 1;
        }
        if has_value && !stamps.source_time.is_missing() {
            item.last_time = stamps.source_time;
            self.ages.add(stamps.source_time);
            converted.newest = Some(
                converted
                    .newest
                    .map_or(stamps.source_time, |newest| newest.max(stamps.source_time)),
            );
        }
        if item.node == NO_NODE {
            return self.heartbeat_message(value, stamps, converted);
        }
        let tag_type = match value {
            Value::Null if item.is_typed => item.tag_type,
            Value::Null => TagType::of_data_type(table.data_type(item.node)),
            _ if wrapped => TagType::String,
            ref value => TagType::of(value),
        };
        let shared = shared_metadata(item, tag_type, has_value, keep_all, |node| {
            metadata::of_node(table, node, tag_type, self.mode)
        });
        let gap = match item.gap {
            NO_GAP => None,
            number => gaps.take(number),
        };
        item.gap = NO_GAP;
        let mut meta = match self.marks.of(stamps.status, gap) {
            None => Metadata::stamped(shared, stamps),
            Some(marks) => Metadata::marked(shared, stamps, marks),
        };
        if tag_type != item.tag_type {
            meta.set(metadata::TAG_TYPE, tag_type.as_str());
        }
        let copy = self
            .heartbeat
            .as_ref()
            .filter(|heartbeat| heartbeat.item == index && has_value)
            .map(|_| value.clone());
        converted.messages.push(Message::new(Payload::Value(value), meta));
        if let Some(copy) = copy {
            self.heartbeat_message(copy, stamps, converted);
        }
    }

    /// Adds the message of the heartbeat's own tag.
    fn heartbeat_message(&mut self, value: Value, stamps: ValueQuality, converted: &mut ConvertedBatch) {
        converted.heartbeat = true;
        let Some(heartbeat) = &self.heartbeat else { return };
        let shared = heartbeat.meta.clone();
        let meta = match self.marks.of(stamps.status, None) {
            None => Metadata::stamped(shared, stamps),
            Some(marks) => Metadata::marked(shared, stamps, marks),
        };
        converted.messages.push(Message::new(Payload::Value(value), meta));
    }
}

/// Returns the metadata that a tag's messages share. What was made for a tag without a value is made again for its first
/// value, if that has another type than the node announced.
#[inline]
fn shared_metadata(
    item: &mut Item,
    tag_type: TagType,
    has_value: bool,
    keep_all: bool,
    make: impl FnOnce(NodeIndex) -> Arc<MetaMap>,
) -> Arc<MetaMap> {
    let is_wrong = !item.is_typed && tag_type != item.tag_type;
    item.is_typed |= has_value;
    if let Some(meta) = item.meta.as_ref().filter(|_| !is_wrong) {
        return meta.clone();
    }
    let meta = make(item.node);
    item.tag_type = tag_type;
    if keep_all || item.seen {
        item.meta = Some(meta.clone());
    }
    item.seen = true;
    meta
}

/// Returns the gap from the previous value to the one with the overflow bit.
fn overflow_gap(last: Ticks, now: Ticks) -> Gap {
    let to = if now.is_missing() { Ticks::now() } else { now };
    let from = if last.is_missing() { to } else { last.min(to) };
    Gap { from, to }
}

#[cfg(test)]
mod tests;
