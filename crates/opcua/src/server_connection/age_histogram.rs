//! The ages of the values in a batch: collapses the source time of each to a few times with counts, which are evaluated
//! when the output has acknowledged the batch.
//!
//! Values whose ages differ by less than an eighth share a bin, and a bin stands for its oldest value: so no value
//! counts as younger than it is, and a batch costs the same whatever its times are. A list of all distinct times was
//! rejected, because servers with precise clocks give every value its own.

use thalweg_record::Ticks;

/// Number of bits below the top bit of an age that choose the bin.
const BITS: u32 = 3;

/// Ages from 2^40 steps of 100 ns (30 hours) share the last bin.
const TOP_MAX: u32 = 40;

const BINS: usize = ((TOP_MAX - BITS + 2) as usize) << BITS;

/// Values that count as measured at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AgeBin {
    pub oldest: Ticks,
    pub values: u64,
}

const EMPTY: AgeBin = AgeBin {
    oldest: Ticks(i64::MAX),
    values: 0,
};

impl Default for AgeBin {
    fn default() -> AgeBin {
        EMPTY
    }
}

pub(super) struct AgeHistogram {
    now: Ticks,
    /// Consecutive values with the same time, as in one cycle.
    run: AgeBin,
    bins: Box<[AgeBin]>,
    used: Vec<u16>,
}

impl Default for AgeHistogram {
    fn default() -> AgeHistogram {
        AgeHistogram {
            now: Ticks::MISSING,
            run: EMPTY,
            bins: vec![EMPTY; BINS].into(),
            used: Vec::new(),
        }
    }
}

impl AgeHistogram {
    pub fn begin(&mut self, now: Ticks) {
        self.now = now;
    }

    /// Adds a value with a source time.
    #[inline]
    pub fn add(&mut self, time: Ticks) {
        if time != self.run.oldest {
            self.end_run();
            self.run.oldest = time;
        }
        self.run.values += 1;
    }

    fn end_run(&mut self) {
        let run = std::mem::take(&mut self.run);
        if run.values == 0 {
            return;
        }
        let number = bin_of(self.now.0.saturating_sub(run.oldest.0));
        let Some(bin) = self.bins.get_mut(number) else { return };
        if bin.values == 0 {
            self.used.push(number as u16);
        }
        bin.values += run.values;
        bin.oldest = bin.oldest.min(run.oldest);
    }

    /// Returns all bins since the last call.
    pub fn take(&mut self) -> Vec<AgeBin> {
        self.end_run();
        let mut taken = Vec::with_capacity(self.used.len());
        for number in self.used.drain(..) {
            taken.extend(self.bins.get_mut(usize::from(number)).map(std::mem::take));
        }
        taken
    }
}

/// The bin of an age in steps; a negative age counts as 0.
fn bin_of(age: i64) -> usize {
    let age = u64::try_from(age).unwrap_or(0);
    if age < 1 << BITS {
        return age as usize;
    }
    let top = 63 - age.leading_zeros();
    if top > TOP_MAX {
        return BINS - 1;
    }
    let below = (age >> (top - BITS)) as usize & ((1 << BITS) - 1);
    (((top - BITS + 1) as usize) << BITS) + below
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Ticks = Ticks(20_000_000_000_000_000);

    fn aged(ages: &mut AgeHistogram, of: impl IntoIterator<Item = i64>) -> Vec<(i64, u64)> {
        ages.begin(NOW);
        of.into_iter().for_each(|age| ages.add(Ticks(NOW.0 - age)));
        let mut taken: Vec<(i64, u64)> = ages
            .take()
            .iter()
            .map(|aged| (NOW.0 - aged.oldest.0, aged.values))
            .collect();
        taken.sort_unstable();
        taken
    }

    #[test]
    fn each_value_keeps_its_own_age_where_a_batch_spans_several_changes() {
        let mut ages = AgeHistogram::default();
        // Ten changes of each of a thousand tags, tag by tag, as servers send them.
        let changes: Vec<i64> = (1..=10).map(|n| n * 1_000_000).collect();
        let batch = (0..1000).flat_map(|_| changes.iter().rev().copied());
        let taken = aged(&mut ages, batch);
        assert_eq!(taken, changes.iter().map(|age| (*age, 1000)).collect::<Vec<_>>());
        // Closer ages count as the oldest of them.
        assert_eq!(aged(&mut ages, [1_000_000, 1_010_000, 1_020_000]), [(1_020_000, 3)]);
        assert_eq!(aged(&mut ages, []), [], "nothing is left over for the next batch");
        assert_eq!(aged(&mut ages, [7, 7, 7]), [(7, 3)]);
    }

    #[test]
    fn times_that_no_clock_here_would_give_have_a_bin_too() {
        let mut ages = AgeHistogram::default();
        let far = i64::MAX - NOW.0;
        let taken = aged(&mut ages, [-1, -far, 0, 1 << 41, far / 2, 1 << 60]);
        assert_eq!(taken.iter().map(|(_, values)| values).sum::<u64>(), 6);
        assert_eq!(taken.len(), 2);
        assert_eq!(bin_of(i64::MAX), BINS - 1);
        assert!((0..1 << 20).all(|age| bin_of(age) <= bin_of(age + 1) && bin_of(age + 1) <= bin_of(age) + 1));
        assert_eq!(bin_of((2 << TOP_MAX) - 1), BINS - 1);
    }

    proptest! {
        #[test]
        fn no_value_is_younger_than_it_is_and_none_much_older(
            of in prop::collection::vec(prop_oneof![0i64..100, 0i64..100_000_000, 0i64..1 << 40], 0..300),
        ) {
            let mut ages = AgeHistogram::default();
            let taken = aged(&mut ages, of.iter().copied());
            prop_assert_eq!(taken.iter().map(|(_, values)| values).sum::<u64>(), of.len() as u64);
            // By rank, the kept ages bound the true ones.
            let mut truly = of.clone();
            truly.sort_unstable();
            let kept = taken.iter().flat_map(|(age, values)| (0..*values).map(move |_| *age));
            for (kept, truly) in kept.zip(truly) {
                prop_assert!(kept >= truly && kept <= truly + truly / 8, "{} for {}", kept, truly);
            }
        }
    }
}
