//! Tracks how far an input has read and how far the flow has confirmed, as numbers. Batches may settle in any order. A
//! restart resumes at the floor, which never passes an unsettled batch.
//!
//! | a batch | effect |
//! |---|---|
//! | is sent | it is open |
//! | is confirmed | it closes; the floor rises past the closed batches at the front |
//! | is returned | it and all later batches are forgotten and read again, which preserves the order |

use std::collections::VecDeque;

#[derive(Debug)]
pub struct InputCursor {
    next: u64,
    floor: u64,
    /// Sent batches that are not below the floor, by position.
    open: VecDeque<InFlightBatch>,
    /// The number of the last sent batch.
    number: u64,
}

#[derive(Debug)]
struct InFlightBatch {
    number: u64,
    from: u64,
    /// Exclusive.
    to: u64,
    confirmed: bool,
}

impl InputCursor {
    pub fn new(at: u64) -> InputCursor {
        InputCursor {
            next: at,
            floor: at,
            open: VecDeque::new(),
            number: 0,
        }
    }

    /// The next position to read.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Everything below is confirmed.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Opens a batch that ends before `to`; returns its number, by which it is settled.
    pub fn sent(&mut self, to: u64) -> u64 {
        self.add(to, false)
    }

    /// Nothing before `to` is for the flow.
    pub fn passed(&mut self, to: u64) {
        self.add(to, true);
        self.rise();
    }

    pub fn confirmed(&mut self, number: u64) {
        if let Some(sent) = self.open.iter_mut().find(|sent| sent.number == number) {
            sent.confirmed = true;
        }
        self.rise();
    }

    /// `false` if the batch was already forgotten.
    pub fn given_back(&mut self, number: u64) -> bool {
        let Some(at) = self.open.iter().position(|sent| sent.number == number) else {
            return false;
        };
        if let Some(first) = self.open.get(at) {
            self.next = first.from;
        }
        self.open.truncate(at);
        true
    }

    fn add(&mut self, to: u64, confirmed: bool) -> u64 {
        self.number += 1;
        let to = to.max(self.next);
        self.open.push_back(InFlightBatch {
            number: self.number,
            from: self.next,
            to,
            confirmed,
        });
        self.next = to;
        self.number
    }

    fn rise(&mut self) {
        while let Some(first) = self.open.front().filter(|first| first.confirmed) {
            self.floor = first.to;
            self.open.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Send(u64),
        Pass(u64),
        Confirm(usize),
        GiveBack(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (1..5_u64).prop_map(Step::Send),
            (1..5_u64).prop_map(Step::Pass),
            any::<usize>().prop_map(Step::Confirm),
            any::<usize>().prop_map(Step::GiveBack),
        ]
    }

    proptest! {
        #[test]
        fn the_floor_never_rises_above_what_is_not_confirmed(steps in proptest::collection::vec(step(), 0..60)) {
            let mut cursor = InputCursor::new(1);
            // Positions that the flow has confirmed, and batches that it may still settle.
            let (mut done, mut sent) = (BTreeSet::new(), Vec::new());
            for step in steps {
                match step {
                    Step::Send(count) => {
                        let from = cursor.next();
                        sent.push((cursor.sent(from + count), from..from + count));
                    }
                    Step::Pass(count) => {
                        let from = cursor.next();
                        cursor.passed(from + count);
                        done.extend(from..from + count);
                    }
                    Step::Confirm(which) if !sent.is_empty() => {
                        let (number, places) = sent.remove(which % sent.len());
                        cursor.confirmed(number);
                        done.extend(places);
                    }
                    Step::GiveBack(which) if !sent.is_empty() => {
                        let (number, places) = sent.remove(which % sent.len());
                        if cursor.given_back(number) {
                            prop_assert_eq!(cursor.next(), places.start);
                        }
                    }
                    Step::Confirm(_) | Step::GiveBack(_) => {}
                }
                prop_assert!(cursor.floor() <= cursor.next());
                prop_assert!((1..cursor.floor()).all(|place| done.contains(&place)));
            }
        }
    }

    #[test]
    fn the_floor_waits_for_the_first_batch_and_then_rises_over_all() {
        let mut cursor = InputCursor::new(5);
        let (first, second) = (cursor.sent(7), cursor.sent(9));
        cursor.passed(12);
        cursor.confirmed(second);
        assert_eq!((cursor.floor(), cursor.next()), (5, 12));
        cursor.confirmed(first);
        assert_eq!(cursor.floor(), 12);
    }

    #[test]
    fn what_is_given_back_is_read_again_with_all_after_it() {
        let mut cursor = InputCursor::new(0);
        let (first, second) = (cursor.sent(2), cursor.sent(4));
        assert!(cursor.given_back(first));
        assert_eq!(cursor.next(), 0);
        cursor.confirmed(second);
        assert!(!cursor.given_back(second));
        assert_eq!(cursor.floor(), 0);
    }
}
