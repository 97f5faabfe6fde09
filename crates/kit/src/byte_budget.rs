//! A limit in bytes that many holders share. A reservation grows while its holder gets more to keep, and dropping it
//! gives everything back. The reservations together never have more than the limit.
//!
//! Whoever waits is served in the order of arrival. So a large request is not overtaken for ever by small ones, which
//! wait behind it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// Bytes are handed out in units of this size.
const UNIT: usize = 1 << 10;

/// A limit in bytes. Clones share it.
#[derive(Clone)]
pub struct ByteBudget(Arc<ByteBudgetState>);

struct ByteBudgetState {
    free: Semaphore,
    /// Of all reservations together.
    units_max: usize,
    clamps: bool,
    on_change: Option<ChangeReport>,
}

/// Gets the change in reserved bytes.
type ChangeReport = Box<dyn Fn(i64) + Send + Sync>;

/// A share of a budget, until it is dropped.
pub struct ByteReservation {
    budget: Arc<ByteBudgetState>,
    bytes: usize,
    units: usize,
}

impl ByteBudget {
    /// A limit of this many bytes, rounded down to whole KiB, from 1 KiB to 4 TiB. No reservation grows beyond it.
    pub fn new(bytes: usize) -> ByteBudget {
        ByteBudget::with(bytes, false, None)
    }

    /// The same, but a reservation that wants more than the limit takes all of it, and so goes alone.
    pub fn clamping(bytes: usize) -> ByteBudget {
        ByteBudget::with(bytes, true, None)
    }

    /// Like [`ByteBudget::new`]. `on_change` gets each change in reserved bytes, not rounded; more is positive.
    pub fn reporting(bytes: usize, on_change: impl Fn(i64) + Send + Sync + 'static) -> ByteBudget {
        ByteBudget::with(bytes, false, Some(Box::new(on_change)))
    }

    fn with(bytes: usize, clamps: bool, on_change: Option<ChangeReport>) -> ByteBudget {
        let units_max = (bytes / UNIT).clamp(1, u32::MAX as usize);
        ByteBudget(Arc::new(ByteBudgetState {
            free: Semaphore::new(units_max),
            units_max,
            clamps,
            on_change,
        }))
    }

    /// A reservation of nothing, which grows.
    pub fn reservation(&self) -> ByteReservation {
        ByteReservation {
            budget: self.0.clone(),
            bytes: 0,
            units: 0,
        }
    }

    /// The limit in bytes.
    pub fn max(&self) -> usize {
        self.0.units_max * UNIT
    }

    /// Bytes that are reserved, or set aside for the first who waits. Each reservation is rounded up to whole KiB.
    pub fn used(&self) -> usize {
        self.0.units_max.saturating_sub(self.0.free.available_permits()) * UNIT
    }
}

impl ByteBudgetState {
    /// `None` if a reservation of this many bytes can never exist.
    fn units(&self, bytes: usize) -> Option<usize> {
        let units = bytes.div_ceil(UNIT);
        match units <= self.units_max {
            true => Some(units),
            false => self.clamps.then_some(self.units_max),
        }
    }

    fn report(&self, change: i64) {
        if let Some(on_change) = &self.on_change {
            on_change(change);
        }
    }
}

impl ByteReservation {
    /// Bytes that were asked for so far.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a request for this many bytes in all would need to grow no further.
    pub fn covers(&self, bytes: usize) -> bool {
        self.budget.units(bytes).is_some_and(|units| units <= self.units)
    }

    /// Reserves this many bytes more. Returns `false`, and reserves nothing, if they are not free now.
    pub fn try_grow(&mut self, bytes: usize) -> bool {
        let Some(units) = self.missing(bytes) else {
            return false;
        };
        let Ok(taken) = self.budget.free.try_acquire_many(units) else {
            return false;
        };
        taken.forget();
        self.grown(bytes, units);
        true
    }

    /// Waits until this many bytes more are free, and reserves them. Returns `false`, at once, only if the limit is too
    /// small for them. A dropped future reserves nothing.
    pub async fn grow(&mut self, bytes: usize) -> bool {
        let Some(units) = self.missing(bytes) else {
            return false;
        };
        // It fails only when it is closed, which nobody does.
        let Ok(taken) = self.budget.free.acquire_many(units).await else {
            return false;
        };
        taken.forget();
        self.grown(bytes, units);
        true
    }

    /// Like [`ByteReservation::grow`], but returns `false` when that has taken as long as `patience`, too.
    pub async fn grow_within(&mut self, bytes: usize, patience: Duration) -> bool {
        if self.try_grow(bytes) {
            return true;
        }
        !patience.is_zero() && timeout(patience, self.grow(bytes)).await.unwrap_or(false)
    }

    /// The units that this many bytes more need.
    fn missing(&self, bytes: usize) -> Option<u32> {
        let units = self.budget.units(self.bytes.saturating_add(bytes))?;
        u32::try_from(units.saturating_sub(self.units)).ok()
    }

    fn grown(&mut self, bytes: usize, units: u32) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.units += units as usize;
        self.budget.report(signed(bytes));
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        self.budget.free.add_permits(self.units);
        self.budget.report(-signed(self.bytes));
    }
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

    use proptest::prelude::*;

    use super::*;

    const KIB: usize = 1 << 10;
    /// Longer than any test waits.
    const LONG: Duration = Duration::from_secs(600);

    fn reserved(budget: &ByteBudget, bytes: usize) -> ByteReservation {
        let mut reservation = budget.reservation();
        assert!(reservation.try_grow(bytes));
        reservation
    }

    #[derive(Clone, Debug)]
    enum Step {
        Begin,
        Grow { nth: usize, bytes: usize },
        End { nth: usize },
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Begin),
            (any::<usize>(), 0..12 * KIB).prop_map(|(nth, bytes)| Step::Grow { nth, bytes }),
            any::<usize>().prop_map(|nth| Step::End { nth }),
        ]
    }

    proptest! {
        /// Compares a budget with sums over its reservations.
        #[test]
        fn reservations_together_never_have_more_than_the_limit_and_what_is_dropped_is_free(
            max in 1..40 * KIB,
            steps in prop::collection::vec(step(), 0..60),
        ) {
            let told = Arc::new(AtomicI64::new(0));
            let sum = told.clone();
            let budget = ByteBudget::reporting(max, move |change| {
                sum.fetch_add(change, SeqCst);
            });
            prop_assert!(budget.max() <= max.max(KIB));
            let mut open = vec![budget.reservation()];
            for step in steps {
                let count = open.len();
                match step {
                    Step::Begin => open.push(budget.reservation()),
                    Step::End { nth } if count > 1 => drop(open.swap_remove(nth % count)),
                    Step::End { .. } => {}
                    Step::Grow { nth, bytes } => {
                        let grows = &mut open[nth % count];
                        let before = grows.bytes();
                        let more = (before + bytes).div_ceil(KIB) - before.div_ceil(KIB);
                        let fits = budget.used() + more * KIB <= budget.max();
                        prop_assert_eq!(grows.try_grow(bytes), fits);
                        prop_assert_eq!(grows.bytes(), if fits { before + bytes } else { before });
                    }
                }
                let units: usize = open.iter().map(|one| one.bytes().div_ceil(KIB)).sum();
                let bytes: usize = open.iter().map(ByteReservation::bytes).sum();
                prop_assert_eq!(budget.used(), units * KIB);
                prop_assert!(budget.used() <= budget.max());
                prop_assert_eq!(told.load(SeqCst), bytes as i64);
            }
            drop(open);
            prop_assert_eq!((budget.used(), told.load(SeqCst)), (0, 0));
        }
    }

    #[test]
    fn what_wants_more_than_there_is_takes_all_of_it_where_that_is_wanted() {
        let strict = ByteBudget::new(8 * KIB);
        assert!(!strict.reservation().try_grow(8 * KIB + 1));
        let clamping = ByteBudget::clamping(8 * KIB);
        let all = reserved(&clamping, 100 * KIB);
        assert_eq!((clamping.used(), clamping.max()), (8 * KIB, 8 * KIB));
        assert!(all.covers(200 * KIB), "there is no more than all");
        assert!(!clamping.reservation().try_grow(1));
        drop(all);
        let part = reserved(&clamping, 2 * KIB);
        assert!(part.covers(2 * KIB) && !part.covers(2 * KIB + 1));
    }

    #[tokio::test]
    async fn who_waits_gets_room_when_there_is_some_in_the_order_of_arrival() {
        let budget = ByteBudget::new(8 * KIB);
        let first = reserved(&budget, 6 * KIB);
        let waits = |bytes: usize| {
            let mut reservation = budget.reservation();
            tokio::spawn(async move { reservation.grow_within(bytes, LONG).await.then_some(reservation) })
        };
        let large = waits(8 * KIB);
        while budget.used() < 8 * KIB {
            // What is free is set aside for the first who waits.
            tokio::task::yield_now().await;
        }
        let small = waits(KIB);
        tokio::task::yield_now().await;
        assert!(!budget.reservation().try_grow(1) && !small.is_finished());
        drop(first);
        let large = large.await.unwrap().unwrap();
        assert!(!small.is_finished(), "it came later");
        drop(large);
        assert_eq!(small.await.unwrap().unwrap().bytes(), KIB);
        assert_eq!(budget.used(), 0);
    }

    #[tokio::test]
    async fn who_gives_up_or_can_never_be_served_holds_nothing() {
        let budget = ByteBudget::new(8 * KIB);
        let mut first = reserved(&budget, 6 * KIB);
        let mut impatient = budget.reservation();
        assert!(!impatient.grow_within(4 * KIB, Duration::from_millis(20)).await);
        assert!(!impatient.grow_within(4 * KIB, Duration::ZERO).await);
        assert!(!impatient.grow(9 * KIB).await, "it does not wait for what cannot be");
        assert_eq!((budget.used(), impatient.bytes()), (6 * KIB, 0));
        assert!(!first.grow_within(3 * KIB, Duration::from_millis(20)).await);
        assert_eq!(first.bytes(), 6 * KIB, "what it has stays");
        assert!(impatient.grow(2 * KIB).await);
    }
}
