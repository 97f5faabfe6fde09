//! The tags that one connection serves, by client handle: index plus one, because servers and libraries treat handle 0
//! specially. Handles never change while the process lives, even when an item is created again.

use std::sync::Arc;

use thalweg_record::{MetaMap, Ticks};

use crate::deadband::{ClientDeadband, Deadband};
use crate::gaps::NO_GAP;
use crate::metadata::TagType;
use crate::node_table::{NO_NODE, NodeIndex};

/// Position in the table.
pub(super) type ItemIndex = u32;

/// The subscription of an item without one.
const NO_SUBSCRIPTION: u16 = u16::MAX;

/// How a tag's values are acquired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcquisitionMode {
    Monitor,
    Poll,
    /// Not any more.
    Nowhere,
}

/// The stage of a monitored item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MonitoringStage {
    /// To be created.
    Waiting,
    /// In a pending call.
    Asked,
    Created,
    /// Refused; the browse retries it.
    Failed,
}

/// Where the deadband is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filtering {
    /// At the server, or nowhere.
    Server,
    /// Here, with the deadband of this number.
    Client(u32),
}

#[derive(Debug)]
pub(super) struct Item {
    /// `NO_NODE` for the heartbeat.
    pub node: NodeIndex,
    pub way: AcquisitionMode,
    pub stage: MonitoringStage,
    /// The number of the subscription in which it was requested, or `NO_SUBSCRIPTION`.
    pub subscription: u16,
    /// The server's id of the item.
    pub monitored_id: u32,
    pub filtering: Filtering,
    /// The last filter was refused: request none.
    pub without_filter: bool,
    /// The step of its sampling interval; above 0, `sampling_refused` is the status of the refused one.
    pub sampling_step: u8,
    pub sampling_refused: u32,
    /// It is or was polled only because the server had no room for it.
    pub lacks_room: bool,
    /// The gap that its next value marks.
    pub gap: u32,
    /// Source time of its last value.
    pub last_time: Ticks,
    pub meta: Option<Arc<MetaMap>>,
    pub tag_type: TagType,
    /// Whether `tag_type` is that of a value, and not only that of the node's data type.
    pub is_typed: bool,
    /// Whether a value has arrived: with very many tags, metadata is kept only from the second value.
    pub seen: bool,
}

#[derive(Debug, Default)]
pub(super) struct ItemTable {
    items: Vec<Item>,
    deadbands: Vec<ClientDeadband>,
    /// Items that are polled, and some that were until recently.
    polled: Vec<ItemIndex>,
    polled_stale: bool,
    by_node: hashbrown::HashMap<NodeIndex, ItemIndex>,
}

impl ItemTable {
    pub fn add(&mut self, node: NodeIndex, way: AcquisitionMode) -> ItemIndex {
        if let Some(index) = self.of_node(node) {
            self.set_way(index, way);
            return index;
        }
        let index = self.items.len() as ItemIndex;
        self.items.push(Item {
            node,
            way: AcquisitionMode::Nowhere,
            stage: MonitoringStage::Waiting,
            subscription: NO_SUBSCRIPTION,
            monitored_id: 0,
            filtering: Filtering::Server,
            without_filter: false,
            sampling_step: 0,
            sampling_refused: 0,
            lacks_room: false,
            gap: NO_GAP,
            last_time: Ticks::MISSING,
            meta: None,
            tag_type: TagType::Number,
            is_typed: false,
            seen: false,
        });
        if node != NO_NODE {
            self.by_node.insert(node, index);
        }
        self.set_way(index, way);
        index
    }

    pub fn set_way(&mut self, index: ItemIndex, way: AcquisitionMode) {
        let Some(item) = self.items.get_mut(index as usize) else {
            return;
        };
        // While the list of polled items is updated below, this item is in no list.
        let before = std::mem::replace(
            &mut item.way,
            if way == AcquisitionMode::Poll {
                AcquisitionMode::Nowhere
            } else {
                way
            },
        );
        if before == way {
            item.way = way;
            return;
        }
        item.stage = MonitoringStage::Waiting;
        match (before, way) {
            (AcquisitionMode::Poll, _) => self.polled_stale = true,
            (_, AcquisitionMode::Poll) => {
                self.forget_stale();
                self.polled.push(index);
            }
            _ => {}
        }
        if let (AcquisitionMode::Poll, Some(item)) = (way, self.items.get_mut(index as usize)) {
            item.way = way;
        }
    }

    /// Removing many items from the list costs one pass at its next use.
    fn forget_stale(&mut self) {
        if std::mem::take(&mut self.polled_stale) {
            let items = &self.items;
            self.polled.retain(|index| {
                items
                    .get(*index as usize)
                    .is_some_and(|item| item.way == AcquisitionMode::Poll)
            });
        }
    }

    pub fn polled(&mut self) -> &[ItemIndex] {
        self.forget_stale();
        &self.polled
    }

    pub fn any_polled(&self) -> bool {
        !self.polled.is_empty()
    }

    pub fn of_node(&self, node: NodeIndex) -> Option<ItemIndex> {
        self.by_node.get(&node).copied()
    }

    pub fn handle(index: ItemIndex) -> u32 {
        index + 1
    }

    /// Returns the item of a client handle that a server sent.
    pub fn of_handle(handle: u32) -> Option<ItemIndex> {
        handle.checked_sub(1)
    }

    pub fn get(&self, index: ItemIndex) -> Option<&Item> {
        self.items.get(index as usize)
    }

    /// Whether values of this item are wanted. A polled item that failed is retried later, so its last response is
    /// wanted.
    pub fn is_served(&self, index: ItemIndex) -> bool {
        self.get(index)
            .is_some_and(|item| item.way != AcquisitionMode::Nowhere || item.stage == MonitoringStage::Failed)
    }

    pub fn get_mut(&mut self, index: ItemIndex) -> Option<&mut Item> {
        self.items.get_mut(index as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = (ItemIndex, &Item)> {
        self.items
            .iter()
            .enumerate()
            .map(|(index, item)| (index as ItemIndex, item))
    }

    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// A subscription was removed, and later ones have moved up.
    pub fn slot_removed(&mut self, removed: u16) {
        for item in &mut self.items {
            match item.subscription {
                NO_SUBSCRIPTION => {}
                number if number == removed => item.subscription = NO_SUBSCRIPTION,
                number if number > removed => item.subscription -= 1,
                _ => {}
            }
        }
    }

    /// Applies the deadband of an item here.
    pub fn filter_here(&mut self, index: ItemIndex, deadband: Deadband, span: Option<f64>) {
        let Some(filter) = ClientDeadband::new(deadband, span) else {
            return;
        };
        let Some(item) = self.items.get_mut(index as usize) else {
            return;
        };
        match item.filtering {
            Filtering::Client(number) => {
                if let Some(slot) = self.deadbands.get_mut(number as usize) {
                    *slot = filter;
                }
            }
            Filtering::Server => {
                item.filtering = Filtering::Client(self.deadbands.len() as u32);
                self.deadbands.push(filter);
            }
        }
    }

    /// Returns an item and its deadband, if it is applied here.
    pub fn with_deadband(&mut self, index: ItemIndex) -> Option<(&mut Item, Option<&mut ClientDeadband>)> {
        let item = self.items.get_mut(index as usize)?;
        let deadband = match item.filtering {
            Filtering::Server => None,
            Filtering::Client(number) => self.deadbands.get_mut(number as usize),
        };
        Some((item, deadband))
    }

    /// Paths have changed.
    pub fn forget_metadata(&mut self) {
        for item in self.items.iter_mut().filter(|item| item.node != NO_NODE) {
            item.meta = None;
        }
    }

    /// Sets a gap on the affected items. Returns their number.
    pub fn set_gap(
        &mut self,
        gaps: &mut crate::gaps::Gaps,
        gap: crate::gaps::Gap,
        touched: impl Fn(&Item) -> bool,
    ) -> usize {
        // The heartbeat has no values that could be missed.
        let touched = |item: &Item| item.node != NO_NODE && touched(item);
        // Items with an earlier unmarked gap mark both as one; those with the same earlier gap share the new one.
        let mut groups: hashbrown::HashMap<u32, (crate::gaps::Gap, usize)> = hashbrown::HashMap::new();
        let mut count = 0;
        for item in self.items.iter().filter(|item| touched(item)) {
            count += 1;
            let (joined, members) = groups.entry(item.gap).or_insert((gap, 0));
            *members += 1;
            if let Some(earlier) = gaps.take(item.gap) {
                *joined = gap.joined(earlier);
            }
        }
        let numbers: hashbrown::HashMap<u32, u32> = groups
            .into_iter()
            .map(|(earlier, (joined, members))| (earlier, gaps.open(joined, members)))
            .collect();
        for item in self.items.iter_mut().filter(|item| touched(item)) {
            if let Some(number) = numbers.get(&item.gap) {
                item.gap = *number;
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gaps::{Gap, Gaps};

    fn gap(from: i64, to: i64) -> Gap {
        Gap {
            from: Ticks(from),
            to: Ticks(to),
        }
    }

    #[test]
    fn each_item_marks_its_own_losses_as_one_span() {
        let mut items = ItemTable::default();
        let mut gaps = Gaps::default();
        for node in 0..4 {
            items.add(node, AcquisitionMode::Monitor);
        }
        assert_eq!(items.set_gap(&mut gaps, gap(10, 20), |item| item.node == 0), 1);
        assert_eq!(
            items.set_gap(&mut gaps, gap(15, 40), |item| item.node == 1 || item.node == 2),
            2
        );
        // Item 3 has lost nothing before, and must not mark the losses of others.
        assert_eq!(items.set_gap(&mut gaps, gap(50, 60), |_| true), 4);
        let marks: Vec<Option<Gap>> = (0..4).map(|i| gaps.take(items.get(i).unwrap().gap)).collect();
        let expected = [gap(10, 60), gap(15, 60), gap(15, 60), gap(50, 60)];
        assert_eq!(marks, expected.map(Some));
    }
}
