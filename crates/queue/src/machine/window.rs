//! The dense ring: one slot per offset from the floor on. A slot is empty, contains the final state, marks a sleeping
//! message, or refers to the entry of an active one. Invariant: slots of offsets below the floor are empty, so reading
//! a slot is one masked array access at any width.

use thalweg_log::Offset;

use super::types::FinalState;

const START: usize = 64;
const ASLEEP: u32 = 6;
const ENTRY: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowSlot {
    /// Not passed yet.
    Empty,
    Settled(FinalState),
    /// Long-delayed; in the set of delayed messages.
    Asleep,
    Active(u32),
}

pub struct OffsetWindow {
    floor: Offset,
    mask: u64,
    slots: Vec<u32>,
}

fn decode(code: u32) -> WindowSlot {
    match code {
        0 => WindowSlot::Empty,
        1 => WindowSlot::Settled(FinalState::Acked),
        2 => WindowSlot::Settled(FinalState::Dead),
        3 => WindowSlot::Settled(FinalState::Expired),
        4 => WindowSlot::Settled(FinalState::Dropped),
        5 => WindowSlot::Settled(FinalState::Skipped),
        ASLEEP..ENTRY => WindowSlot::Asleep,
        _ => WindowSlot::Active(code - ENTRY),
    }
}

impl OffsetWindow {
    pub fn new(floor: Offset) -> Self {
        OffsetWindow {
            floor,
            mask: START as u64 - 1,
            slots: vec![0; START],
        }
    }

    pub fn floor(&self) -> Offset {
        self.floor
    }

    /// Memory at the peak width so far, or up to `end` if that is more.
    pub fn bytes_to(&self, end: Offset) -> usize {
        let width = end.saturating_sub(self.floor) as usize;
        self.slots.len().max(width.next_power_of_two()) * size_of::<u32>()
    }

    /// Up to this offset it needs no more memory.
    pub fn reaches_to(&self) -> Offset {
        self.end()
    }

    /// Releases memory. All slots must be empty.
    pub fn shrink(&mut self) {
        debug_assert!(self.slots.iter().all(|slot| *slot == 0));
        *self = OffsetWindow::new(self.floor);
    }

    /// Offsets at or beyond the end have empty slots.
    pub fn end(&self) -> Offset {
        self.floor.saturating_add(self.slots.len() as u64)
    }

    /// The slot of an offset at or above the floor.
    pub fn get(&self, offset: Offset) -> WindowSlot {
        debug_assert!(offset >= self.floor);
        if offset - self.floor > self.mask {
            return WindowSlot::Empty;
        }
        decode(self.slots[(offset & self.mask) as usize])
    }

    pub fn set_active(&mut self, offset: Offset, entry: u32) {
        self.set(offset, ENTRY + entry);
    }

    pub fn set_asleep(&mut self, offset: Offset) {
        self.set(offset, ASLEEP);
    }

    pub fn settle(&mut self, offset: Offset, kind: FinalState) {
        self.set(offset, kind as u32);
    }

    pub fn clear(&mut self, offset: Offset) {
        debug_assert!(offset >= self.floor);
        if offset - self.floor <= self.mask {
            self.slots[(offset & self.mask) as usize] = 0;
        }
    }

    /// Raises the floor by one.
    pub fn pop(&mut self) {
        self.slots[(self.floor & self.mask) as usize] = 0;
        self.floor += 1;
    }

    /// Empties all slots and sets the floor.
    pub fn reset(&mut self, floor: Offset) {
        self.slots.fill(0);
        self.floor = floor;
    }

    fn set(&mut self, offset: Offset, code: u32) {
        debug_assert!(offset >= self.floor);
        if offset - self.floor > self.mask {
            self.grow(offset - self.floor);
        }
        self.slots[(offset & self.mask) as usize] = code;
    }

    #[cold]
    fn grow(&mut self, distance: u64) {
        let len = (distance + 1).next_power_of_two();
        let mut slots = vec![0; len as usize];
        for offset in self.floor..self.end() {
            slots[(offset & (len - 1)) as usize] = self.slots[(offset & self.mask) as usize];
        }
        self.slots = slots;
        self.mask = len - 1;
    }
}
