//! The memory usage of rows.

use std::iter::Sum;
use std::ops::Add;

use hashbrown::HashTable;

/// Bytes per index entry: a key and a control byte.
pub(super) const PLACE: usize = size_of::<u32>() + 1;

/// Memory usage in bytes. A cleared buffer is still `held`, but not `used`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Bytes in use.
    pub used: usize,
    /// Bytes allocated.
    pub held: usize,
    /// The part of `used` that later rows share, so that more rows do not need more of it.
    pub shared: usize,
}

impl MemoryUsage {
    /// The bytes that belong to the rows alone.
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

    /// The usage of a hash table with one control byte per entry.
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
