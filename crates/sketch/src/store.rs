//! The bins of one sign, as a contiguous array of counts.
//!
//! Only the [`BINS_MAX`] bins up to the highest have their own counts; lower ones count in the lowest of these. The
//! limit depends on the highest bin alone, so the result does not depend on the order of insertion.

use std::ops::Range;

/// The most bins with a count, for each sign.
pub const BINS_MAX: usize = 2048;
/// The distance from the highest bin to the lowest.
const SPAN_MAX: i32 = BINS_MAX as i32 - 1;
/// Memory grows by this many bins.
const ROOM: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct SketchBinStore {
    /// Never more than [`BINS_MAX`], so a count in an existing bin never collapses another bin.
    bins: Vec<f64>,
    /// The index of the first of `bins`.
    first: i32,
    /// The outermost bins with a count; crossed if the store is empty.
    low: i32,
    high: i32,
}

impl Default for SketchBinStore {
    fn default() -> SketchBinStore {
        SketchBinStore {
            bins: Vec::new(),
            first: 0,
            low: i32::MAX,
            high: i32::MIN,
        }
    }
}

/// Spare bins do not count.
impl PartialEq for SketchBinStore {
    fn eq(&self, other: &SketchBinStore) -> bool {
        self.low == other.low && self.counts() == other.counts()
    }
}

impl SketchBinStore {
    pub fn is_empty(&self) -> bool {
        self.low > self.high
    }

    /// The index of the first of [`SketchBinStore::counts`].
    pub fn low(&self) -> i32 {
        self.low
    }

    /// The outermost bins with a count.
    pub fn range(&self) -> Option<(i32, i32)> {
        (!self.is_empty()).then_some((self.low, self.high))
    }

    /// The counts from the lowest bin with a count to the highest.
    pub fn counts(&self) -> &[f64] {
        self.bins.get(self.live()).unwrap_or_default()
    }

    pub fn count(&self) -> f64 {
        self.counts().iter().sum()
    }

    /// The lowest bin at which the cumulative count satisfies `is_reached`; otherwise the highest bin.
    pub fn first_where(&self, is_reached: impl Fn(f64) -> bool) -> Option<i32> {
        let mut sum = 0.0;
        let at = self.counts().iter().position(|count| {
            sum += count;
            is_reached(sum)
        });
        match at {
            Some(at) => i32::try_from(at).ok().map(|at| self.low + at),
            None => (!self.is_empty()).then_some(self.high),
        }
    }

    pub fn allocated_bytes(&self) -> usize {
        self.bins.capacity() * size_of::<f64>()
    }

    /// Removes all counts and keeps the memory.
    pub fn clear(&mut self) {
        let live = self.live();
        if let Some(live) = self.bins.get_mut(live) {
            live.fill(0.0);
        }
        (self.low, self.high) = (i32::MAX, i32::MIN);
    }

    /// Adds a positive count to a bin. The index must be within the range of doubles.
    #[inline]
    pub fn add(&mut self, index: i32, count: f64) {
        if !self.try_add(index, count) {
            self.add_beyond(index, count);
        }
    }

    #[inline]
    fn try_add(&mut self, index: i32, count: f64) -> bool {
        let at = usize::try_from(index - self.first).ok();
        let Some(bin) = at.and_then(|at| self.bins.get_mut(at)) else {
            return false;
        };
        *bin += count;
        self.low = self.low.min(index);
        self.high = self.high.max(index);
        true
    }

    #[cold]
    fn add_beyond(&mut self, index: i32, count: f64) {
        let index = self.make_room(index, index);
        self.try_add(index, count);
    }

    /// Adds a positive count to each of some bins, in ascending order.
    pub fn add_each(&mut self, indexes: &[i32], count: f64) {
        let (Some(low), Some(high)) = (indexes.first(), indexes.last()) else {
            return;
        };
        let has = |index: i32| usize::try_from(index - self.first).is_ok_and(|at| at < self.bins.len());
        if !(has(*low) && has(*high)) {
            return indexes.iter().for_each(|index| self.add(*index, count));
        }
        for index in indexes {
            if let Some(bin) = self.bins.get_mut(position(*index, self.first)) {
                *bin += count;
            }
        }
        self.low = self.low.min(*low);
        self.high = self.high.max(*high);
    }

    /// Adds little-endian counts to consecutive bins. The first and last count must be positive.
    pub fn add_run(&mut self, low: i32, counts: &[[u8; 8]]) {
        let Some(high) = i32::try_from(counts.len()).ok().map(|len| low + len - 1) else {
            return;
        };
        let from = self.make_room(low, high);
        // Counts below the lowest possible bin collapse into it.
        let below = position(from, low).min(counts.len());
        let (collapsed, counts) = counts.split_at(below);
        let collapsed: f64 = collapsed.iter().map(|bytes| f64::from_le_bytes(*bytes)).sum();
        if collapsed > 0.0 {
            self.add(from, collapsed);
        }
        let at = position(from, self.first);
        if let Some(bins) = self.bins.get_mut(at..at + counts.len())
            && !bins.is_empty()
        {
            for (bin, bytes) in bins.iter_mut().zip(counts) {
                *bin += f64::from_le_bytes(*bytes);
            }
            // A run that was cut may begin with zeros; then its first bin has the collapsed counts.
            self.low = self.low.min(from);
            self.high = self.high.max(high);
        }
    }

    /// Makes room for these bins, and returns the lowest one that can have its own count, `low` or above.
    pub fn make_room(&mut self, low: i32, high: i32) -> i32 {
        let high = self.high.max(high);
        let floor = high - SPAN_MAX;
        let from = low.max(floor);
        let low = self.low.min(low).max(floor);
        if low < self.first || position(high, self.first) >= self.bins.len() {
            self.shift(low, high);
        }
        from
    }

    /// Moves the counts so that the bins from `low` to `high` have room. Counts below `low` collapse into it.
    fn shift(&mut self, low: i32, high: i32) {
        let collapsed = self.take_below(low);
        let live = self.live();
        let needed = position(high, low) + 1;
        let len = needed.next_multiple_of(ROOM).min(BINS_MAX).max(self.bins.len());
        self.bins.resize(len, 0.0);
        // Spare room is split between both sides.
        let spare = i32::try_from(len - needed).unwrap_or(0);
        let first = low - spare / 2;
        if !live.is_empty() {
            let to = position(self.low, first);
            self.bins.copy_within(live.clone(), to);
            let left = if to > live.start {
                live.start..live.end.min(to)
            } else {
                live.start.max(to + live.len())..live.end
            };
            self.bins.get_mut(left).unwrap_or_default().fill(0.0);
        }
        self.first = first;
        if collapsed > 0.0 {
            self.add(low, collapsed);
        }
    }

    /// Removes the counts of all bins below `floor` and returns their sum.
    fn take_below(&mut self, floor: i32) -> f64 {
        if self.is_empty() || self.low >= floor {
            return 0.0;
        }
        let (live, end) = (self.live(), position(self.high.min(floor - 1), self.first) + 1);
        let below = self.bins.get_mut(live.start..end).unwrap_or_default();
        let collapsed = below.iter().sum();
        below.fill(0.0);
        if self.high < floor {
            (self.low, self.high) = (i32::MAX, i32::MIN);
            return collapsed;
        }
        let rest = self.bins.get(end..live.end).unwrap_or_default();
        let zeros = rest.iter().take_while(|count| **count == 0.0).count();
        self.low = floor.saturating_add(i32::try_from(zeros).unwrap_or(0));
        collapsed
    }

    /// The range of `bins` that has counts.
    fn live(&self) -> Range<usize> {
        if self.is_empty() {
            return 0..0;
        }
        position(self.low, self.first)..position(self.high, self.first) + 1
    }
}

/// The distance from `first` to `index`; 0 if it is negative.
fn position(index: i32, first: i32) -> usize {
    usize::try_from(index - first).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(store: &SketchBinStore) -> Vec<(i32, f64)> {
        let counts = store.counts().iter().enumerate().filter(|(_, count)| **count > 0.0);
        counts.map(|(at, count)| (store.low() + at as i32, *count)).collect()
    }

    #[test]
    fn the_lowest_bins_are_collapsed_whichever_comes_first() {
        let mut rising = SketchBinStore::default();
        let mut falling = SketchBinStore::default();
        let indexes = [-3000, -10, 0, 5, 2000, 2040, 2041];
        for index in indexes {
            rising.add(index, 1.0);
        }
        for index in indexes.into_iter().rev() {
            falling.add(index, 1.0);
        }
        let expected = [(-6, 2.0), (0, 1.0), (5, 1.0), (2000, 1.0), (2040, 1.0), (2041, 1.0)];
        assert_eq!(contents(&rising), expected);
        assert_eq!(contents(&falling), expected);
        rising.add(30_000, 0.5);
        assert_eq!(contents(&rising), [(27_953, 7.0), (30_000, 0.5)]);
        assert!(rising.allocated_bytes() <= BINS_MAX * 8);
    }

    #[test]
    fn room_is_kept_and_what_is_cleared_is_gone() {
        let mut store = SketchBinStore::default();
        (0..1000).for_each(|index| store.add(index, 1.0));
        let room = store.allocated_bytes();
        for shift in [-30_000, 0, 30_000, 500] {
            store.clear();
            assert!(store.is_empty() && store.counts().is_empty());
            (0..1000).rev().for_each(|index| store.add(index + shift, 2.0));
            assert_eq!(
                (store.low(), store.counts().len(), store.count()),
                (shift, 1000, 2000.0)
            );
            assert_eq!(store.allocated_bytes(), room);
        }
    }

    #[test]
    fn runs_are_what_their_bins_are_one_by_one() {
        let bytes = |counts: &[f64]| counts.iter().map(|count| count.to_le_bytes()).collect::<Vec<_>>();
        for before in [vec![], vec![0], vec![-5000], vec![2500], vec![10, 4000]] {
            for counts in [vec![1.0], vec![1.0, 0.0, 3.0], vec![2.0; 3000]] {
                for low in [-2000, 0, 1900] {
                    let (mut run, mut single) = (SketchBinStore::default(), SketchBinStore::default());
                    for index in &before {
                        run.add(*index, 1.0);
                        single.add(*index, 1.0);
                    }
                    run.add_run(low, &bytes(&counts));
                    for (at, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0.0) {
                        single.add(low + at as i32, *count);
                    }
                    assert_eq!(
                        (run.low(), run.counts()),
                        (single.low(), single.counts()),
                        "{before:?} {counts:?}"
                    );
                }
            }
        }
    }
}
