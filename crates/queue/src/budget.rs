//! The memory budget that all queues share: messages of durability `memory`, dedup-ids and the state of groups. Each
//! user reserves memory in pieces, ahead of its need, so that one message costs no more than a comparison.

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

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Reserves memory for as long as the reservation lives, if that much is free.
    pub fn reserve(self: &Arc<Budget>, bytes: u64) -> Option<Reservation> {
        // Nothing fits either if the budget is already exceeded.
        (bytes == 0 || self.take(bytes)).then(|| Reservation {
            budget: self.clone(),
            bytes,
        })
    }

    /// Reserves memory for something that already exists; it counts whether or not there is room for it.
    pub fn reserve_anyway(self: &Arc<Budget>, bytes: u64) -> Reservation {
        self.taken.fetch_add(bytes, Ordering::Relaxed);
        Reservation {
            budget: self.clone(),
            bytes,
        }
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

/// Returned to the budget on drop.
#[derive(Debug)]
pub(crate) struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// Splits off a part with its own lifetime. What this reservation lacks is taken from the budget whether or not
    /// there is room.
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let own = bytes.min(self.bytes);
        self.bytes -= own;
        let mut part = self.budget.reserve_anyway(bytes - own);
        part.bytes += own;
        part
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.give_back(self.bytes);
    }
}

/// The share of one queue.
#[derive(Debug)]
pub(crate) struct Allowance {
    budget: Arc<Budget>,
    piece: u64,
    taken: u64,
}

impl Allowance {
    pub fn of(budget: Arc<Budget>) -> Allowance {
        Allowance::in_pieces(budget, PIECE)
    }

    /// Uses a smaller piece, for when many queues share a small budget.
    pub fn in_pieces(budget: Arc<Budget>, piece: u64) -> Allowance {
        Allowance {
            budget,
            piece,
            taken: 0,
        }
    }

    pub fn limit(&self) -> u64 {
        self.budget.limit
    }

    /// Whether the allowance can grow to this many bytes in all.
    pub fn reaches(&mut self, bytes: u64) -> bool {
        let Some(lacking) = bytes.checked_sub(self.taken).filter(|lacking| *lacking > 0) else {
            return true;
        };
        // Near the limit, less than a piece may be left.
        for more in [lacking.max(self.piece), lacking] {
            if self.budget.take(more) {
                self.taken += more;
                return true;
            }
        }
        false
    }

    /// Returns what exceeds this need.
    pub fn shrinks(&mut self, bytes: u64) {
        let kept = bytes + self.piece;
        if self.taken > kept + self.piece {
            self.budget.give_back(self.taken - kept);
            self.taken = kept;
        }
    }

    /// Returns everything. Not for allowances that grow and shrink all the time.
    pub fn is_not_needed(&mut self) {
        // The counter is shared by all threads.
        if self.taken > 0 {
            self.budget.give_back(std::mem::take(&mut self.taken));
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

    #[test]
    fn what_is_reserved_is_given_back_part_by_part_and_what_is_there_already_counts_beyond_the_limit() {
        let budget = Budget::new(10);
        let mut whole = budget.reserve(8).unwrap();
        assert!(budget.reserve(3).is_none() && budget.reserve(2).is_some());
        let (first, more) = (whole.split(5), whole.split(5));
        drop(whole);
        assert_eq!(
            budget.taken.load(Ordering::Relaxed),
            10,
            "two bytes more than there were"
        );
        drop(first);
        assert!(budget.reserve(6).is_none() && budget.reserve(5).is_some());
        let stored = budget.reserve_anyway(20);
        assert!(budget.reserve(0).is_some() && budget.reserve(1).is_none());
        drop((more, stored));
        assert_eq!(budget.taken.load(Ordering::Relaxed), 0);
    }
}
