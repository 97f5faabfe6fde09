//! Decides whether a receipt still names a lease. A lease is identified by message, delivery number and epoch. An epoch
//! is used once, by one process or after one seek.
//!
//! Delivery numbers alone repeat: those of the last block before a crash are lost, and a seek back restarts them. The
//! epoch of a lease is stored with it, so it survives a restart. Of settled messages the epoch is remembered only where
//! it matters; the others are known to be settled before this epoch began.

use thalweg_log::Offset;

use super::settlement_cache::Settlement;
use super::window::WindowSlot;
use super::{FinalState, MessageStatus, WorkMachine};

/// What was settled when the current epoch began.
#[derive(Clone, Debug, Default)]
pub struct PreviousEpoch {
    /// The epoch of the last leases.
    epoch: u32,
    floor: Offset,
    /// From the floor on, in order.
    runs: Vec<(Offset, Offset)>,
}

impl PreviousEpoch {
    fn contains(&self, offset: Offset) -> bool {
        let after = self.runs.partition_point(|(first, _)| *first <= offset);
        let run = after.checked_sub(1).and_then(|at| self.runs.get(at));
        offset < self.floor || run.is_some_and(|(_, end)| offset < *end)
    }
}

impl WorkMachine {
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Starts an epoch that was never used before. O(window).
    pub fn set_epoch(&mut self, epoch: u32) {
        let floor = self.floor();
        let mut runs: Vec<(Offset, Offset)> = Vec::new();
        for offset in floor..self.window.end() {
            if !matches!(self.window.get(offset), WindowSlot::Settled(_)) {
                continue;
            }
            match runs.last_mut() {
                Some((_, end)) if *end == offset => *end += 1,
                _ => runs.push((offset, offset + 1)),
            }
        }
        self.previous = PreviousEpoch {
            epoch: self.leased_in,
            floor,
            runs,
        };
        self.epoch = epoch;
        self.journal.set_epoch(epoch);
    }

    /// Whether a receipt with this epoch names no lease known to this group: the lease was lost with an earlier
    /// process, or is from before a seek.
    pub fn is_stale(&self, offset: Offset, epoch: u32) -> bool {
        match self.find(offset) {
            MessageStatus::Active(entry) => {
                let at = self.store.entries.get(entry);
                let known = if at.deliveries > 0 { at.epoch } else { self.epoch };
                known != epoch
            }
            MessageStatus::Asleep | MessageStatus::Unpassed => epoch != self.epoch,
            MessageStatus::Settled(..) => match self.settlements.get(offset) {
                Some(end) => end.epoch != epoch,
                None => epoch != self.epoch && !(epoch == self.previous.epoch && self.previous.contains(offset)),
            },
        }
    }

    /// Remembers how a message ended, unless the general rule covers it.
    pub(super) fn remember(&mut self, offset: Offset, end: Settlement) {
        let is_plain = end.epoch == self.epoch && offset >= self.previous.floor;
        match end.kind {
            FinalState::Acked if !is_plain && end.deliveries > 0 => self.settlements.insert(offset, end),
            _ => self.settlements.note(offset, end),
        }
    }
}
