//! Which receipts still name a lease. A lease is named by message, delivery number and epoch; an epoch is given once, to one
//! process or to what follows one seek.
//!
//! Delivery numbers alone come again: those of the last block before a crash are lost, and a seek back lets them begin anew. The
//! epoch of a lease is kept with it over a restart. Of messages that are settled it is remembered where it tells something;
//! of the others, that they were settled before this epoch began.

use thalweg_log::Offset;

use super::settlement_cache::Settlement;
use super::window::WindowSlot;
use super::{FinalState, MessageStatus, WorkMachine};

/// What was settled when the epoch of now began.
#[derive(Clone, Debug, Default)]
pub struct PreviousEpoch {
    /// In which leases were last made.
    epoch: u32,
    floor: Offset,
    /// From the floor on, in order.
    runs: Vec<(Offset, Offset)>,
}

impl PreviousEpoch {
    fn contains(&self, offset: Offset) -> bool {
        let behind = self.runs.partition_point(|(first, _)| *first <= offset);
        let run = behind.checked_sub(1).and_then(|at| self.runs.get(at));
        offset < self.floor || run.is_some_and(|(_, end)| offset < *end)
    }
}

impl WorkMachine {
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Leases are made in this epoch from now on, which never was one before. O(window).
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

    /// Whether a receipt with this epoch names no lease that this group knows of: one of an earlier process that was lost
    /// with it, or from before a seek.
    pub fn is_stale(&self, offset: Offset, epoch: u32) -> bool {
        match self.find(offset) {
            MessageStatus::Active(entry) => {
                let at = self.store.entries.get(entry);
                let known = if at.deliveries > 0 { at.epoch } else { self.epoch };
                known != epoch
            }
            MessageStatus::Asleep | MessageStatus::Unpassed => epoch != self.epoch,
            MessageStatus::Settled(..) => match self.memory.get(offset) {
                Some(end) => end.epoch != epoch,
                None => epoch != self.epoch && !(epoch == self.previous.epoch && self.previous.contains(offset)),
            },
        }
    }

    /// Remembers how a message ended, if that is not what counts for all others.
    pub(super) fn remember(&mut self, offset: Offset, end: Settlement) {
        let is_plain = end.epoch == self.epoch && offset >= self.previous.floor;
        match end.kind {
            FinalState::Acked if !is_plain && end.deliveries > 0 => self.memory.insert(offset, end),
            _ => self.memory.note(offset, end),
        }
    }
}
