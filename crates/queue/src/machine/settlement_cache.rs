//! Remembers settled messages that did not end with an ack of their first delivery, so that late receipts get the right
//! answer also below the floor. The size is bounded: the oldest are forgotten, and then count as acked.

use std::collections::VecDeque;

use hashbrown::HashMap;
use thalweg_log::Offset;

use super::types::FinalState;

/// Maximum number of remembered messages.
pub const REMEMBERED: usize = 4096;

/// How a message ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    pub kind: FinalState,
    pub deliveries: u32,
    /// Epoch of its last lease.
    pub epoch: u32,
}

#[derive(Default)]
pub struct SettlementCache {
    ends: HashMap<Offset, Settlement>,
    order: VecDeque<Offset>,
}

impl SettlementCache {
    /// Acks of the first delivery, and messages without any receipt, are not stored.
    pub fn note(&mut self, offset: Offset, end: Settlement) {
        if end.deliveries == 0 || (end.kind == FinalState::Acked && end.deliveries == 1) {
            return;
        }
        self.insert(offset, end);
    }

    pub fn insert(&mut self, offset: Offset, end: Settlement) {
        if self.ends.insert(offset, end).is_some() {
            return;
        }
        self.order.push_back(offset);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
    }

    pub fn get(&self, offset: Offset) -> Option<Settlement> {
        if self.order.is_empty() {
            return None;
        }
        self.ends.get(&offset).copied()
    }

    /// Older ones may have been forgotten.
    pub fn is_full(&self) -> bool {
        self.order.len() >= REMEMBERED
    }

    /// Forgets everything from `to` on, because those messages are unsettled again.
    pub fn forget_from(&mut self, to: Offset) {
        self.order.retain(|offset| *offset < to);
        self.ends.retain(|offset, _| *offset < to);
    }

    /// Oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Offset, Settlement)> + '_ {
        let plain = Settlement {
            kind: FinalState::Acked,
            deliveries: 1,
            epoch: 0,
        };
        self.order
            .iter()
            .map(move |offset| (*offset, self.ends.get(offset).copied().unwrap_or(plain)))
    }
}
