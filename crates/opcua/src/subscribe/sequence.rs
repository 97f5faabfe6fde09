//! The sequence numbers of a subscription's notification messages: which one is next and which ones are missing.
//!
//! Numbers start at 1 and wrap to 1. A keep-alive carries the number of the next message.

/// A repeated message is at most as far back as publish requests are outstanding. A larger step back means that the
/// server restarted its numbering.
const STEP_BACK_MAX: u32 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sequence {
    next: u32,
}

/// Meaning of a message's number.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The expected message.
    InOrder,
    /// These messages are missing before it.
    After(SequenceRange),
    /// The message was seen before.
    Seen,
    /// The server restarted its numbering: what it sent in between is unknown.
    Restarted,
}

/// Consecutive numbers, oldest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SequenceRange {
    pub first: u32,
    pub count: u32,
}

pub(super) fn successor(number: u32) -> u32 {
    number.checked_add(1).unwrap_or(1)
}

/// Returns the number that is `steps` after another one.
pub(super) fn later(number: u32, steps: u32) -> u32 {
    // Zero is not a valid number.
    let at = (u64::from(number.max(1)) - 1 + u64::from(steps)) % u64::from(u32::MAX);
    at as u32 + 1
}

/// Returns how far `to` is after `from` in counting order; a large number if it is before.
pub(super) fn distance(from: u32, to: u32) -> u32 {
    if to >= from {
        to - from
    } else {
        (u32::MAX - from).saturating_add(to)
    }
}

impl Default for Sequence {
    fn default() -> Sequence {
        Sequence { next: 1 }
    }
}

impl Sequence {
    pub fn next(&self) -> u32 {
        self.next
    }

    /// Records a message with data. The next number is the one after it, unless the message was seen before.
    pub fn message(&mut self, number: u32) -> Arrival {
        let arrival = self.compare(number);
        // Zero is not a valid number and leaves the next number unchanged.
        if arrival != Arrival::Seen && number != 0 {
            self.next = successor(number);
        }
        arrival
    }

    /// Records a keep-alive, which announces the next number.
    pub fn keep_alive(&mut self, number: u32) -> Arrival {
        let arrival = match self.compare(number) {
            // A keep-alive announces the next number, so it cannot be a repetition. Some servers send the number of the
            // last message instead.
            Arrival::Seen if successor(number) != self.next => Arrival::Restarted,
            arrival => arrival,
        };
        if let Arrival::After(_) | Arrival::Restarted = arrival {
            self.next = number;
        }
        arrival
    }

    fn compare(&self, number: u32) -> Arrival {
        if number == 0 {
            return Arrival::InOrder;
        }
        match distance(self.next, number) {
            0 => Arrival::InOrder,
            ahead if ahead <= u32::MAX / 2 => Arrival::After(SequenceRange {
                first: self.next,
                count: ahead,
            }),
            _ if distance(number, self.next) <= STEP_BACK_MAX => Arrival::Seen,
            _ => Arrival::Restarted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_skipped_is_missing_and_what_comes_again_was_seen() {
        let mut sequence = Sequence::default();
        assert_eq!(sequence.message(1), Arrival::InOrder);
        assert_eq!(
            sequence.message(4),
            Arrival::After(SequenceRange { first: 2, count: 2 })
        );
        assert_eq!(sequence.message(3), Arrival::Seen);
        assert_eq!(sequence.keep_alive(5), Arrival::InOrder);
        assert_eq!(
            sequence.keep_alive(6),
            Arrival::After(SequenceRange { first: 5, count: 1 })
        );
        assert_eq!(sequence.message(6), Arrival::InOrder);
    }

    #[test]
    fn numbers_wrap_to_one() {
        let mut sequence = Sequence { next: u32::MAX };
        assert_eq!(sequence.message(u32::MAX), Arrival::InOrder);
        assert_eq!(sequence.next(), 1);
        let mut sequence = Sequence { next: u32::MAX };
        let missing = SequenceRange {
            first: u32::MAX,
            count: 2,
        };
        assert_eq!(sequence.message(2), Arrival::After(missing));
        assert_eq!(
            (later(u32::MAX, 0), later(u32::MAX, 1), later(u32::MAX, 2)),
            (u32::MAX, 1, 2)
        );
        assert_eq!((later(7, 3), later(u32::MAX - 1, 3)), (10, 2));
    }

    #[test]
    fn zero_is_no_number_and_moves_nothing() {
        let mut sequence = Sequence { next: 6 };
        assert_eq!(sequence.message(0), Arrival::InOrder);
        assert_eq!(sequence.message(6), Arrival::InOrder);
    }

    #[test]
    fn a_large_step_back_is_a_new_count_and_a_small_one_a_repetition() {
        let mut sequence = Sequence { next: 5000 };
        assert_eq!(sequence.message(4999), Arrival::Seen);
        assert_eq!(sequence.message(5000 - STEP_BACK_MAX), Arrival::Seen);
        assert_eq!(sequence.message(1), Arrival::Restarted);
        assert_eq!(sequence.message(2), Arrival::InOrder);
        // A keep-alive is never a repetition but may carry the number of the last message.
        let mut sequence = Sequence { next: 10 };
        assert_eq!(sequence.keep_alive(9), Arrival::Seen);
        let mut sequence = Sequence { next: 10 };
        assert_eq!(sequence.keep_alive(1), Arrival::Restarted);
        assert_eq!(sequence.message(1), Arrival::InOrder);
        // After the wrap, numbers from before it count as seen.
        let mut sequence = Sequence { next: 3 };
        assert_eq!(sequence.message(u32::MAX), Arrival::Seen);
    }

    proptest! {
        /// Of messages 1..=n some are lost: every lost message before the last that arrived is reported exactly once,
        /// and nothing else is.
        #[test]
        fn every_loss_is_named_once(arrives in prop::collection::vec(any::<bool>(), 1..200)) {
            let mut sequence = Sequence::default();
            let mut named = Vec::new();
            for (i, _) in arrives.iter().enumerate().filter(|(_, arrives)| **arrives) {
                match sequence.message(i as u32 + 1) {
                    Arrival::After(missing) => named.extend((0..missing.count).map(|at| later(missing.first, at))),
                    Arrival::InOrder => {}
                    Arrival::Seen | Arrival::Restarted => prop_assert!(false),
                }
            }
            let last = arrives.iter().rposition(|arrives| *arrives).unwrap_or(0);
            let lost: Vec<u32> = (0..last).filter(|i| !arrives[*i]).map(|i| i as u32 + 1).collect();
            prop_assert_eq!(named, lost);
        }
    }
}
