//! Values by client handle to messages with their tag's metadata. The hot path: per value an index into the item table,
//! a pointer to shared metadata, two numbers of time; no text is made unless a status is not Good.

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::RwLock;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Text, Ticks, Value, key};

use super::items::{ItemIndex, Items};
use crate::config::TagGroupMode;
use crate::gaps::{Gap, Gaps, NO_GAP};
use crate::metadata::{self, TagType};
use crate::node_table::{NO_NODE, NodeTable};
use crate::value::answers::HandledValue;
use crate::value::{Content, DataValue, status};

/// Above this many tags, metadata of tags that have sent only one value is not kept.
const METADATA_KEPT_MAX: usize = 250_000;

/// Texts of statuses that are remembered; servers use few.
const STATUS_TEXTS_MAX: usize = 1024;

/// What a batch of values became.
#[derive(Debug, Default)]
pub(super) struct Converted {
    pub messages: Vec<Message>,
    /// Notifications without a value.
    pub without_value: usize,
    pub too_large: usize,
    pub suppressed: usize,
    pub overflows: usize,
    /// Gaps of single items in this batch.
    pub gaps: Vec<Gap>,
    pub heartbeat: bool,
    pub newest: Option<Ticks>,
}

impl Converted {
    /// What enters the flow: messages and what is filtered or dropped at once.
    pub fn entered(&self) -> usize {
        self.messages.len() + self.without_value + self.too_large
    }
}

pub(super) struct Converter {
    table: Arc<RwLock<NodeTable>>,
    mode: TagGroupMode,
    heartbeat: Option<Heartbeat>,
    status_texts: HashMap<u32, Text>,
}

/// The server's clock as a sign of life.
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
            status_texts: HashMap::new(),
        }
    }

    /// The item whose values are heartbeats: one of its own, or the user's, whose messages a copy then follows.
    pub fn set_heartbeat(&mut self, item: ItemIndex, meta: Arc<MetaMap>) {
        self.heartbeat = Some(Heartbeat { item, meta });
    }

    pub fn convert(&mut self, values: &mut Vec<HandledValue>, items: &mut Items, gaps: &mut Gaps) -> Converted {
        let mut converted = Converted {
            messages: Vec::with_capacity(values.len()),
            ..Converted::default()
        };
        let table = self.table.clone();
        let table = table.read();
        let keep_all = items.len() <= METADATA_KEPT_MAX;
        for (handle, value) in values.drain(..) {
            if let Some(index) = Items::of_handle(handle) {
                self.one(index, value, items, gaps, &table, keep_all, &mut converted);
            }
        }
        converted
    }

    #[expect(
        clippy::too_many_arguments,
        reason = "the state of one loop, split only to keep it readable"
    )]
    #[inline]
    fn one(
        &mut self,
        index: ItemIndex,
        value: DataValue,
        items: &mut Items,
        gaps: &mut Gaps,
        table: &NodeTable,
        keep_all: bool,
        converted: &mut Converted,
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
            if item.gap == NO_GAP {
                item.gap = gaps.open(gap, 1);
            }
        }
        let value = match content {
            Content::Value(value) => value,
            Content::Nothing => return converted.without_value += 1,
            Content::TooLarge => return converted.too_large += 1,
        };
        if deadband.is_some_and(|deadband| !deadband.passes(&value, stamps.status)) {
            return converted.suppressed += 1;
        }
        if !stamps.source_time.is_missing() {
            item.last_time = stamps.source_time;
            converted.newest = Some(
                converted
                    .newest
                    .map_or(stamps.source_time, |newest| newest.max(stamps.source_time)),
            );
        }
        if item.node == NO_NODE {
            return self.beat(value, stamps, converted);
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
        let mut meta = Metadata::stamped(shared, stamps);
        if tag_type != item.tag_type {
            meta.set(metadata::TAG_TYPE, tag_type.as_str());
        }
        if item.gap != NO_GAP
            && let Some(gap) = gaps.take(std::mem::replace(&mut item.gap, NO_GAP))
        {
            gap.mark(&mut meta);
        }
        if stamps.status != 0 {
            meta.set(key::STATUS_CODE, self.status_text(stamps.status));
        }
        let copy = self
            .heartbeat
            .as_ref()
            .filter(|heartbeat| heartbeat.item == index)
            .map(|_| value.clone());
        converted.messages.push(Message::new(Payload::Value(value), meta));
        if let Some(copy) = copy {
            self.beat(copy, stamps, converted);
        }
    }

    fn beat(&mut self, value: Value, stamps: thalweg_record::Stamps, converted: &mut Converted) {
        converted.heartbeat = true;
        let Some(heartbeat) = &self.heartbeat else { return };
        let mut meta = Metadata::stamped(heartbeat.meta.clone(), stamps);
        if stamps.status != 0 {
            meta.set(key::STATUS_CODE, self.status_text(stamps.status));
        }
        converted.messages.push(Message::new(Payload::Value(value), meta));
    }

    fn status_text(&mut self, code: u32) -> Text {
        if let Some(text) = self.status_texts.get(&code) {
            return text.clone();
        }
        let text = Text::new(status::text(code));
        if self.status_texts.len() < STATUS_TEXTS_MAX {
            self.status_texts.insert(code, text.clone());
        }
        text
    }
}

/// From the value before to the one that says that others were lost.
fn overflow_gap(last: Ticks, now: Ticks) -> Gap {
    let to = if now.is_missing() { Ticks::now() } else { now };
    let from = if last.is_missing() { to } else { last.min(to) };
    Gap { from, to }
}
