//! Doubles in ascending order, of which one can be added, removed and found by its position without a look at all others: for
//! windows, which ask after each row. Values are in chunks of limited length; those that were added since the last question wait
//! until they are sorted in.

use std::collections::TryReserveError;
use std::mem::size_of;

/// The length of a full chunk, which is then halved.
const CHUNK_MAX: usize = 1_024;
/// If more values wait than this part of all, everything is sorted anew.
const WAITING_PART: usize = 16;

/// Values without NaN of another sign, in the order of `f64::total_cmp`.
#[derive(Debug, Default)]
pub struct OrderedDoubles {
    /// None is empty.
    chunks: Vec<Vec<f64>>,
    sorted: usize,
    waiting: Vec<f64>,
}

impl OrderedDoubles {
    pub fn len(&self) -> usize {
        self.sorted + self.waiting.len()
    }

    pub fn reserve(&mut self, more: usize) -> Result<(), TryReserveError> {
        self.waiting.try_reserve(more)
    }

    pub fn add(&mut self, value: f64) {
        self.waiting.push(value);
    }

    /// Sorts in what was added.
    pub fn sort(&mut self) {
        if self.waiting.len() > self.sorted / WAITING_PART {
            let mut all = match self.chunks.is_empty() {
                true => std::mem::take(&mut self.waiting),
                false => std::mem::take(self).all(),
            };
            all.sort_unstable_by(f64::total_cmp);
            self.sorted = all.len();
            // Half full, so that the next values fit in.
            self.chunks = all.chunks(CHUNK_MAX / 2).map(<[f64]>::to_vec).collect();
            all.clear();
            self.waiting = all;
            return;
        }
        while let Some(value) = self.waiting.pop() {
            self.insert(value);
        }
    }

    fn insert(&mut self, value: f64) {
        self.sorted += 1;
        let at = self.chunk_of(value);
        let Some(chunk) = self.chunks.get_mut(at) else {
            self.chunks.push(vec![value]);
            return;
        };
        let place = chunk.partition_point(|known| known.total_cmp(&value).is_lt());
        chunk.insert(place, value);
        if chunk.len() >= CHUNK_MAX {
            let upper = chunk.split_off(CHUNK_MAX / 2);
            self.chunks.insert(at + 1, upper);
        }
    }

    /// The chunk that has a value, or could have it.
    fn chunk_of(&self, value: f64) -> usize {
        let is_before = |chunk: &Vec<f64>| chunk.last().is_some_and(|last| last.total_cmp(&value).is_lt());
        let at = self.chunks.partition_point(is_before);
        at.min(self.chunks.len().saturating_sub(1))
    }

    /// Removes one of the values that equal this one. Returns whether there was one.
    pub fn remove(&mut self, value: f64) -> bool {
        self.sort();
        let at = self.chunk_of(value);
        let Some(chunk) = self.chunks.get_mut(at) else {
            return false;
        };
        let Ok(place) = chunk.binary_search_by(|known| known.total_cmp(&value)) else {
            return false;
        };
        chunk.remove(place);
        self.sorted -= 1;
        if chunk.is_empty() {
            self.chunks.remove(at);
        }
        true
    }

    /// The value at a position; those that were added since [`OrderedDoubles::sort`] have none.
    pub fn at(&self, position: usize) -> Option<f64> {
        let mut before = 0;
        for chunk in &self.chunks {
            if let Some(value) = chunk.get(position - before) {
                return Some(*value);
            }
            before += chunk.len();
        }
        None
    }

    /// All values, the sorted ones first.
    pub fn all(&self) -> Vec<f64> {
        let mut all = self.chunks.concat();
        all.extend(&self.waiting);
        all
    }

    /// Also what sorting takes.
    pub fn bytes(&self) -> usize {
        let held = 2 * self.sorted + self.waiting.capacity();
        2 * held * size_of::<f64>() + self.chunks.capacity() * size_of::<Vec<f64>>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_where_a_sorted_list_has_them() {
        let mut seed = 1_u64;
        let mut below = move |limit: u64| {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % limit
        };
        let (mut ordered, mut list) = (OrderedDoubles::default(), Vec::new());
        for step in 0..30_000 {
            let value = match below(20) {
                0 => f64::NAN,
                1 => f64::NEG_INFINITY,
                2..5 => 0.0,
                _ => below(500) as f64 - 250.0,
            };
            // It grows in the first half, and shrinks in the second.
            let added_of_ten = if step < 15_000 { 7 } else { 3 };
            if below(10) < added_of_ten {
                ordered.add(value);
                list.insert(
                    list.partition_point(|known: &f64| known.total_cmp(&value).is_lt()),
                    value,
                );
            } else {
                let place = list.binary_search_by(|known| known.total_cmp(&value));
                assert_eq!(ordered.remove(value), place.is_ok());
                if let Ok(place) = place {
                    list.remove(place);
                }
            }
            assert_eq!(ordered.len(), list.len());
            if below(50) == 0 {
                ordered.sort();
                for position in 0..=list.len() {
                    let bits = |value: Option<f64>| value.map(f64::to_bits);
                    assert_eq!(
                        bits(ordered.at(position)),
                        bits(list.get(position).copied()),
                        "{position}"
                    );
                }
            }
        }
    }
}
