//! What queues of durability `memory` may keep together. Each takes room in pieces, ahead of its messages, so that one
//! message costs no more than a comparison.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const PIECE: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct Budget {
    limit: u64,
    taken: AtomicU64,
}

impl Budget {
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget {
            limit,
            taken: AtomicU64::new(0),
        })
    }

    fn take(&self, bytes: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.taken
            .try_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Room of one queue.
#[derive(Debug)]
pub(crate) struct Allowance {
    budget: Arc<Budget>,
    taken: u64,
}

impl Allowance {
    pub fn of(budget: Arc<Budget>) -> Allowance {
        Allowance { budget, taken: 0 }
    }

    pub fn limit(&self) -> u64 {
        self.budget.limit
    }

    /// Whether there is room for so many bytes in all.
    pub fn reaches(&mut self, bytes: u64) -> bool {
        let Some(lacking) = bytes.checked_sub(self.taken).filter(|lacking| *lacking > 0) else {
            return true;
        };
        // Near the limit less than a piece may be left.
        for more in [lacking.max(PIECE), lacking] {
            if self.budget.take(more) {
                self.taken += more;
                return true;
            }
        }
        false
    }

    /// Only so many bytes are needed now.
    pub fn shrinks(&mut self, bytes: u64) {
        let kept = bytes + PIECE;
        if self.taken > kept + PIECE {
            self.budget.give_back(self.taken - kept);
            self.taken = kept;
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.budget.give_back(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_share_what_there_is_and_give_back_what_they_do_not_need() {
        let budget = Budget::new(10 * PIECE);
        let (mut one, mut two) = (Allowance::of(budget.clone()), Allowance::of(budget.clone()));
        assert!(one.reaches(1) && one.reaches(PIECE) && one.reaches(7 * PIECE));
        assert!(two.reaches(3 * PIECE) && !two.reaches(3 * PIECE + 1) && !one.reaches(8 * PIECE));
        one.shrinks(6 * PIECE);
        assert!(!two.reaches(3 * PIECE + 1), "one piece and what is begun are kept");
        one.shrinks(2 * PIECE);
        assert!(two.reaches(7 * PIECE) && !two.reaches(7 * PIECE + 1));
        drop(one);
        assert!(two.reaches(10 * PIECE) && !two.reaches(u64::MAX));
        drop(two);
        assert_eq!(budget.taken.load(Ordering::Relaxed), 0);
    }
}
