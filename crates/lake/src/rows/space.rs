//! How much memory rows take.

use std::iter::Sum;
use std::ops::Add;

use hashbrown::HashTable;

/// Bytes of memory. What was emptied holds its room for the rows to come, and has none of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// What there is.
    pub used: usize,
    /// With the room for more.
    pub held: usize,
}

impl Space {
    pub fn of<T>(values: &Vec<T>) -> Space {
        Space {
            used: values.len() * size_of::<T>(),
            held: values.capacity() * size_of::<T>(),
        }
    }

    /// One with a byte of its own for each place.
    pub fn of_index(index: &HashTable<u32>) -> Space {
        let place = size_of::<u32>() + 1;
        Space {
            used: index.len() * place,
            held: index.capacity() * place,
        }
    }

    pub fn full(bytes: usize) -> Space {
        Space {
            used: bytes,
            held: bytes,
        }
    }
}

impl Add for Space {
    type Output = Space;

    fn add(self, other: Space) -> Space {
        Space {
            used: self.used + other.used,
            held: self.held + other.held,
        }
    }
}

impl Sum for Space {
    fn sum<I: Iterator<Item = Space>>(all: I) -> Space {
        all.fold(Space::default(), Space::add)
    }
}
