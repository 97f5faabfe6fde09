//! Converts values by client handle to messages with their tag's metadata. The hot path: per value an index into the
//! item table, a pointer to shared metadata and two timestamps, without any text. Texts for a status other than Good or
//! for a gap are built once for all equal values ([`marks`](super::marks)).

use std::sync::Arc;

use parking_lot::RwLock;
use thalweg_flow::ShardedMessages;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Ticks, Value, ValueQuality};

use super::age_histogram::{AgeBin, AgeHistogram};
use super::items::{ItemIndex, ItemTable};
use super::marks::MarksCache;
use crate::config::TagGroupMode;
use crate::gaps::{Gap, Gaps, NO_GAP};
use crate::metadata::{self, TagType};
use crate::node_table::{NO_NODE, NodeTable};
use crate::value::answers::ClientHandleValue;
use crate::value::{DataValue, ValueContent, status};

/// Above this many tags, metadata is not kept for tags that have sent only one value.
const METADATA_KEPT_MAX: usize = 250_000;

/// The result of converting a batch of values.
#[derive(Debug)]
pub(super) struct ConvertedBatch {
    pub messages: ShardedMessages,
    /// Notifications without a value.
    pub without_value: usize,
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
    pub fn new(table: Arc<RwLock<NodeTable>>, mode: TagGroupMode) -> Converter {
        Converter {
            table,
            mode,
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
        let Some((item, deadband)) = items.with_deadband(index) else {
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
            ValueContent::Nothing => return converted.without_value += 1,
            ValueContent::TooLarge => return converted.too_large += 1,
        };
        if deadband.is_some_and(|deadband| !deadband.passes(&value, stamps.status)) {
            return converted.suppressed += 1;
        }
        if !stamps.source_time.is_missing() {
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
        let tag_type = if wrapped { TagType::String } else { TagType::of(&value) };
        let shared = match &item.meta {
            Some(meta) => meta.clone(),
            None => {
                let meta = metadata::of_node(table, item.node, tag_type, self.mode);
                item.tag_type = tag_type;
                if keep_all || item.seen {
                    item.meta = Some(meta.clone());
                }
                item.seen = true;
                meta
            }
        };
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
            .filter(|heartbeat| heartbeat.item == index)
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

/// Returns the gap from the previous value to the one with the overflow bit.
fn overflow_gap(last: Ticks, now: Ticks) -> Gap {
    let to = if now.is_missing() { Ticks::now() } else { now };
    let from = if last.is_missing() { to } else { last.min(to) };
    Gap { from, to }
}

#[cfg(test)]
mod tests {
    use super::super::items::{AcquisitionMode, MonitoringStage};
    use super::*;
    use crate::node_table::{DiscoveredNode, NodeKind};
    use opcua::types::NodeId;

    const OVERFLOW: u32 = 0x480;

    fn setup(tags: u32) -> (Converter, ItemTable, Gaps) {
        let mut table = NodeTable::default();
        let mut items = ItemTable::default();
        for i in 0..tags {
            let found = DiscoveredNode {
                id: &NodeId::new(1, i),
                name: "Tag",
                class: NodeKind::Variable,
                parent: NO_NODE,
            };
            items.add(table.add(&found).unwrap(), AcquisitionMode::Monitor);
        }
        let table = Arc::new(RwLock::new(table));
        (Converter::new(table, TagGroupMode::Clean), items, Gaps::default())
    }

    fn value(handle: u32, time: i64, status: u32) -> ClientHandleValue {
        let stamps = ValueQuality {
            source_time: Ticks(time),
            status,
            ..ValueQuality::NONE
        };
        let value = DataValue {
            content: ValueContent::Value(Value::I32(1)),
            stamps,
            wrapped: false,
        };
        (handle, value)
    }

    #[test]
    fn values_that_belong_to_no_tag_are_counted() {
        let (mut converter, mut items, mut gaps) = setup(3);
        items.set_way(1, AcquisitionMode::Nowhere);
        items.set_way(2, AcquisitionMode::Nowhere);
        if let Some(item) = items.get_mut(2) {
            // Failed temporarily, and retried later: its last response is a message.
            item.stage = MonitoringStage::Failed;
        }
        let mut values = [0, 1, 2, 3, 4, u32::MAX].map(|handle| value(handle, 1, 0)).to_vec();
        let converted = converter.convert(&mut values, &mut items, &mut gaps, ShardedMessages::new(1, 4));
        assert_eq!((converted.messages.len(), converted.unknown), (2, 4));
    }

    /// Three changes of each of two tags in one batch, a value without a time, and a notification without a value.
    #[test]
    fn values_of_a_batch_are_counted_by_their_own_times() {
        let (mut converter, mut items, mut gaps) = setup(2);
        let now = Ticks::now().0;
        let seconds = |n: i64| now - n * 10_000_000;
        let mut values: Vec<ClientHandleValue> = [1, 2]
            .into_iter()
            .flat_map(|handle| [30, 20, 10].map(|age| value(handle, seconds(age), 0)))
            .collect();
        values.push(value(1, Ticks::MISSING.0, 0));
        let mut none = value(2, seconds(5), 0x8000_0000);
        none.1.content = ValueContent::Nothing;
        values.push(none);
        let converted = converter.convert(&mut values, &mut items, &mut gaps, ShardedMessages::new(1, 8));
        assert_eq!((converted.messages.len(), converted.without_value), (7, 1));
        let ages: Vec<(Ticks, u64)> = converted.ages.iter().map(|aged| (aged.oldest, aged.values)).collect();
        assert_eq!(ages, [30, 20, 10].map(|age| (Ticks(seconds(age)), 2)));
        assert_eq!(converted.newest, Some(Ticks(seconds(10))));
    }

    #[test]
    fn an_overflow_in_an_open_gap_is_marked_with_it() {
        let (mut converter, mut items, mut gaps) = setup(1);
        items.set_gap(
            &mut gaps,
            Gap {
                from: Ticks(100),
                to: Ticks(200),
            },
            |_| true,
        );
        let mut values = vec![value(1, 300, OVERFLOW), value(1, 400, 0)];
        let converted = converter.convert(&mut values, &mut items, &mut gaps, ShardedMessages::new(1, 4));
        let mark = |i: usize, key: &str| {
            converted
                .messages
                .iter()
                .nth(i)
                .unwrap()
                .meta
                .get(key)
                .map(|value| value.into_owned())
        };
        let text = |time: i64| Some(crate::value::ticks::micros_text(Ticks(time)));
        assert_eq!(
            (mark(0, "opcua_gap_from"), mark(0, "opcua_gap_to")),
            (text(100), text(300))
        );
        assert_eq!(mark(1, "opcua_gap"), None);
    }
}
