//! Gaps to report to a subscriber: messages that were removed before it read them. Each is reported once, before the
//! message after it.

use std::collections::VecDeque;

use thalweg_events::Gap;

/// The most gaps that wait for the message after them; beyond that they are sent without it.
const WAITING_MAX: usize = 1000;

pub(super) struct PendingGaps {
    waiting: VecDeque<Gap>,
    /// Everything before this place was examined. Places are positions for a stream and global positions otherwise.
    pub looked: u64,
    /// The store does not record gaps.
    pub unknown: bool,
    /// For a category: places in between belong to others.
    sparse: bool,
}

impl PendingGaps {
    pub fn new(looked: u64, sparse: bool) -> PendingGaps {
        PendingGaps {
            waiting: VecDeque::new(),
            looked,
            unknown: false,
            sparse,
        }
    }

    /// The namespace was cleared: new messages start at the first places again.
    pub fn begin_anew(&mut self) {
        self.waiting.clear();
        self.looked = 0;
    }

    /// Adds gaps from the part that ends before `looked`. Nothing after the waiting gaps has been sent.
    pub fn found(&mut self, gaps: &[Gap]) {
        for gap in gaps {
            let sparse = self.sparse;
            match self.waiting.back_mut() {
                Some(last) if sparse || last.to + 1 >= gap.from => last.to = last.to.max(gap.to),
                _ => self.waiting.push_back(*gap),
            }
        }
    }

    /// Takes the gaps that lie before a place.
    pub fn before(&mut self, place: u64) -> impl Iterator<Item = Gap> {
        let count = self.waiting.iter().take_while(|gap| gap.from < place).count();
        self.waiting.drain(..count)
    }

    /// Takes all gaps if too many wait.
    pub fn surplus(&mut self) -> impl Iterator<Item = Gap> {
        let count = match self.waiting.len() > WAITING_MAX {
            true => self.waiting.len(),
            false => 0,
        };
        self.waiting.drain(..count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gap(from: u64, to: u64) -> Gap {
        Gap { from, to }
    }

    #[test]
    fn what_two_pages_say_of_one_gap_is_told_once() {
        let mut gaps = PendingGaps::new(0, false);
        gaps.found(&[gap(0, 1), gap(3, 4)]);
        gaps.found(&[gap(5, 6)]);
        assert_eq!(gaps.before(3).collect::<Vec<_>>(), [gap(0, 1)]);
        assert_eq!(gaps.before(9).collect::<Vec<_>>(), [gap(3, 6)]);
        assert_eq!(gaps.before(99).count(), 0);
    }

    #[test]
    fn of_a_category_all_up_to_the_next_message_is_one() {
        let mut gaps = PendingGaps::new(0, true);
        gaps.found(&[gap(1, 1)]);
        gaps.found(&[gap(7, 8)]);
        assert_eq!(gaps.before(9).collect::<Vec<_>>(), [gap(1, 8)]);
    }

    #[test]
    fn too_many_do_not_wait() {
        let mut gaps = PendingGaps::new(0, false);
        let many: Vec<Gap> = (0..2000).map(|n| gap(2 * n, 2 * n)).collect();
        gaps.found(many.get(..10).unwrap());
        assert_eq!(gaps.surplus().count(), 0);
        gaps.found(many.get(10..).unwrap());
        assert_eq!(gaps.surplus().count(), 2000);
    }
}
