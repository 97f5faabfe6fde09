//! Counts of the bins of one sign, as a row of numbers from the first bin that has room to the last.
//!
//! At most [`BINS_MAX`] bins up to the highest have counts of their own; what is lower counts in the lowest of these. Since that
//! depends on the highest alone, counts end up in the same bins whatever the order in which they come.

use std::ops::Range;

/// Bins with a count, for each sign.
pub const BINS_MAX: usize = 2048;
/// From the highest bin to the lowest.
const SPAN_MAX: i32 = BINS_MAX as i32 - 1;
/// Room is made for so many bins at a time.
const ROOM: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct SketchBinStore {
    /// Never more than [`BINS_MAX`], so none of them has to be collapsed when another of them gets a count.
    bins: Vec<f64>,
    /// Of the first of `bins`.
    first: i32,
    /// The outermost that have a count; crossed when none has.
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

/// Room does not count.
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

    /// From the lowest bin that has a count to the highest.
    pub fn counts(&self) -> &[f64] {
        self.bins.get(self.live()).unwrap_or_default()
    }

    pub fn count(&self) -> f64 {
        self.counts().iter().sum()
    }

    /// The first bin, from the lowest on, at which the sum of the counts up to it is as wanted; else the last.
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

    /// Keeps the room that was made.
    pub fn clear(&mut self) {
        let live = self.live();
        if let Some(live) = self.bins.get_mut(live) {
            live.fill(0.0);
        }
        (self.low, self.high) = (i32::MAX, i32::MIN);
    }

    /// Adds a count above zero to a bin whose index is one of a double's.
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

    /// Adds little-endian counts to bins that follow each other, the first and the last of which are above zero.
    pub fn add_run(&mut self, low: i32, counts: &[[u8; 8]]) {
        let Some(high) = i32::try_from(counts.len()).ok().map(|len| low + len - 1) else {
            return;
        };
        let from = self.make_room(low, high);
        // What lies below the bins that there can be.
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
            // Zeros within a run that was cut leave its first bin without a count: then the collapsed ones are there.
            self.low = self.low.min(from);
            self.high = self.high.max(high);
        }
    }

    /// Makes room for counts of these bins and returns the lowest that can have one, `low` or above it.
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

    /// Moves the counts so that the bins from `low` to `high` have room; what is below `low` goes there.
    fn shift(&mut self, low: i32, high: i32) {
        let collapsed = self.take_below(low);
        let live = self.live();
        let needed = position(high, low) + 1;
        let len = needed.next_multiple_of(ROOM).min(BINS_MAX).max(self.bins.len());
        self.bins.resize(len, 0.0);
        // Room that is not needed now lies to both sides.
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

    /// Takes the counts of all bins below one of them out.
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

    /// Where in `bins` there are counts.
    fn live(&self) -> Range<usize> {
        if self.is_empty() {
            return 0..0;
        }
        position(self.low, self.first)..position(self.high, self.first) + 1
    }
}

/// How far one index is behind another.
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
