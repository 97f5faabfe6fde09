//! What is remembered of settled messages whose end was not a plain ack of the first delivery, so that late receipts
//! get the right answer also below the floor. Bounded: the oldest are forgotten, and then count as acked.

use std::collections::VecDeque;

use hashbrown::HashMap;
use thalweg_log::Offset;

use super::types::Terminal;

/// How many are remembered.
pub const REMEMBERED: usize = 4096;

#[derive(Default)]
pub struct Memory {
    ends: HashMap<Offset, (Terminal, u32)>,
    order: VecDeque<Offset>,
}

impl Memory {
    /// Of a message that was delivered `deliveries` times; plain ends and those without any receipt are not kept.
    pub fn note(&mut self, offset: Offset, kind: Terminal, deliveries: u32) {
        if deliveries == 0 || (kind == Terminal::Acked && deliveries == 1) {
            return;
        }
        self.insert(offset, kind, deliveries);
    }

    pub fn insert(&mut self, offset: Offset, kind: Terminal, deliveries: u32) {
        if self.ends.insert(offset, (kind, deliveries)).is_some() {
            return;
        }
        self.order.push_back(offset);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.ends.remove(&oldest);
        }
    }

    pub fn get(&self, offset: Offset) -> Option<(Terminal, u32)> {
        if self.order.is_empty() {
            return None;
        }
        self.ends.get(&offset).copied()
    }

    /// Older ones may have been forgotten.
    pub fn is_full(&self) -> bool {
        self.order.len() >= REMEMBERED
    }

    /// Forgets everything from `to` on: those messages are unsettled again.
    pub fn forget_from(&mut self, to: Offset) {
        self.order.retain(|offset| *offset < to);
        self.ends.retain(|offset, _| *offset < to);
    }

    /// Oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (Offset, Terminal, u32)> + '_ {
        self.order.iter().map(|offset| {
            let (kind, deliveries) = self.ends.get(offset).copied().unwrap_or((Terminal::Acked, 1));
            (*offset, kind, deliveries)
        })
    }
}
