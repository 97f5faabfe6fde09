//! How much memory rows take.

use std::iter::Sum;
use std::ops::Add;

use hashbrown::HashTable;

/// Of an index: a key, and a byte of its own.
pub(super) const PLACE: usize = size_of::<u32>() + 1;

/// Bytes of memory. What was emptied holds its room for the rows to come, and has none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// What there is.
    pub used: usize,
    /// With the room for more.
    pub held: usize,
    /// The part of what there is that rows to come have in common with these: more rows do not need more of it.
    pub shared: usize,
}

impl MemoryUsage {
    /// What rows have for themselves.
    pub fn own(&self) -> usize {
        self.used - self.shared
    }

    pub fn of<T>(values: &Vec<T>) -> MemoryUsage {
        MemoryUsage {
            used: values.len() * size_of::<T>(),
            held: values.capacity() * size_of::<T>(),
            shared: 0,
        }
    }

    /// One with a byte of its own for each place.
    pub fn of_index(index: &HashTable<u32>) -> MemoryUsage {
        MemoryUsage {
            used: index.len() * PLACE,
            held: index.capacity() * PLACE,
            shared: 0,
        }
    }

    pub fn full(bytes: usize) -> MemoryUsage {
        MemoryUsage {
            used: bytes,
            held: bytes,
            shared: 0,
        }
    }
}

impl Add for MemoryUsage {
    type Output = MemoryUsage;

    fn add(self, other: MemoryUsage) -> MemoryUsage {
        MemoryUsage {
            used: self.used + other.used,
            held: self.held + other.held,
            shared: self.shared + other.shared,
        }
    }
}

impl Sum for MemoryUsage {
    fn sum<I: Iterator<Item = MemoryUsage>>(all: I) -> MemoryUsage {
        all.fold(MemoryUsage::default(), MemoryUsage::add)
    }
}
