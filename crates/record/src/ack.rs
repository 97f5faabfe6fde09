//! The way back: what a source learns of the messages it gave, and how they are counted on the way.
//!
//! An [`Ack`] answers for a number of messages. Stages tell it what they did (filtered, dropped, expanded, split, merged)
//! and outputs end it. The source hears once, after everything derived from its batch has ended: `Acked` if every part
//! was delivered, filtered or dropped with a reason, `Nacked` if a part was given up. An `Ack` that is lost (a panic, a
//! forgotten path) counts its messages as dropped and nacks: there is no silent way out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use crate::{Balance, DropReason, FilterReason};

/// The verdict on a source's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything derived from the batch was confirmed, filtered, or dropped with a reason.
    Acked,
    /// Part of it was given up (shutdown, lost stage): a source that can, delivers the batch again.
    Nacked,
}

type Settle = Box<dyn FnOnce(Outcome) + Send>;

/// One source batch. It is settled when the last [`Ack`] that holds it goes.
struct Origin {
    given_up: AtomicBool,
    settle: Mutex<Option<Settle>>,
}

impl Drop for Origin {
    fn drop(&mut self) {
        let outcome = if *self.given_up.get_mut() {
            Outcome::Nacked
        } else {
            Outcome::Acked
        };
        if let Some(settle) = self.settle.get_mut().take() {
            settle(outcome);
        }
    }
}

/// Answers for `count` messages of one flow.
#[must_use = "an acknowledgement must be ended by delivered() or given_up(), or passed on"]
pub struct Ack {
    balance: Arc<Balance>,
    count: u64,
    origins: SmallVec<[Arc<Origin>; 1]>,
}

impl Ack {
    /// A batch of `count` messages enters the flow; `settle` hears the outcome, on whatever thread ends it.
    pub fn enter(balance: &Arc<Balance>, count: usize, settle: impl FnOnce(Outcome) + Send + 'static) -> Ack {
        let count = count as u64;
        balance.enter(count);
        let origin = Origin {
            given_up: AtomicBool::new(false),
            settle: Mutex::new(Some(Box::new(settle))),
        };
        Ack {
            balance: balance.clone(),
            count,
            origins: smallvec![Arc::new(origin)],
        }
    }

    /// How many messages are answered for.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// `n` of the messages were removed as intended.
    pub fn filtered(&mut self, reason: FilterReason, n: usize) {
        let n = self.take(n);
        self.balance.filter(reason, n);
    }

    /// `n` of the messages were lost to a fault or limit, and that was logged or sent to a dead letter before.
    pub fn dropped(&mut self, reason: DropReason, n: usize) {
        let n = self.take(n);
        self.balance.lose(reason, n);
    }

    /// `n` messages were added: one that became three adds two.
    pub fn expanded(&mut self, n: usize) {
        self.count += n as u64;
        self.balance.expand(n as u64);
    }

    /// Hands the answer for `n` of the messages to another path.
    pub fn split(&mut self, n: usize) -> Ack {
        let count = self.take(n);
        Ack {
            balance: self.balance.clone(),
            count,
            origins: self.origins.clone(),
        }
    }

    /// Takes over another path's messages. Both must belong to one flow.
    pub fn merge(&mut self, mut other: Ack) {
        debug_assert!(
            Arc::ptr_eq(&self.balance, &other.balance),
            "messages of two flows cannot share an answer"
        );
        self.count += std::mem::take(&mut other.count);
        for origin in other.origins.drain(..) {
            if !self.origins.iter().any(|known| Arc::ptr_eq(known, &origin)) {
                self.origins.push(origin);
            }
        }
    }

    /// Some of the messages went out; the rest is still answered for.
    pub fn delivered_some(&mut self, n: usize) {
        let n = self.take(n);
        self.balance.deliver(n);
    }

    /// All remaining messages went out.
    pub fn delivered(mut self) {
        let n = std::mem::take(&mut self.count);
        if n > 0 {
            self.balance.deliver(n);
        }
        self.origins.clear();
    }

    /// The remaining messages will not be delivered in this run: counted as dropped with reason `shutdown`, and nacked.
    pub fn given_up(self) {}

    fn take(&mut self, n: usize) -> u64 {
        let n = n as u64;
        assert!(
            n <= self.count,
            "a stage accounts for {n} messages of a batch of {}",
            self.count
        );
        self.count -= n;
        n
    }
}

impl Drop for Ack {
    fn drop(&mut self) {
        if self.count > 0 {
            self.balance.lose(DropReason::Shutdown, self.count);
            for origin in &self.origins {
                origin.given_up.store(true, Ordering::Relaxed);
            }
        }
    }
}

impl std::fmt::Debug for Ack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ack({} messages of {} batches)", self.count, self.origins.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicUsize;

    fn enter(balance: &Arc<Balance>, n: usize, log: &Arc<Mutex<Vec<Outcome>>>) -> Ack {
        let log = log.clone();
        Ack::enter(balance, n, move |outcome| log.lock().push(outcome))
    }

    #[test]
    fn a_batch_is_acked_once_after_its_last_part() {
        let (balance, log) = (Arc::new(Balance::default()), Arc::default());
        let mut ack = enter(&balance, 5, &log);
        let part = ack.split(2);
        ack.filtered(FilterReason::Unchanged, 1);
        ack.delivered();
        assert!(log.lock().is_empty());
        assert_eq!(balance.snapshot().in_flight, 2);
        part.delivered();
        assert_eq!(*log.lock(), [Outcome::Acked]);
        let counts = balance.snapshot();
        assert!(counts.adds_up() && counts.out == 4 && counts.in_flight == 0);
    }

    #[test]
    fn a_lost_ack_is_counted_and_nacked() {
        let (balance, log) = (Arc::new(Balance::default()), Arc::default());
        let mut ack = enter(&balance, 3, &log);
        drop(ack.split(1));
        ack.delivered();
        assert_eq!(*log.lock(), [Outcome::Nacked]);
        assert_eq!(balance.snapshot().dropped(DropReason::Shutdown), 1);
        assert!(balance.snapshot().adds_up());
    }

    proptest! {
        /// Whatever stages do, in whatever order: the sums add up at every step, each batch is settled exactly once, and
        /// it is acked exactly when none of its messages was given up.
        #[test]
        fn any_history_balances(sizes in prop::collection::vec(1usize..20, 1..5), ops in prop::collection::vec((0u8..7, any::<prop::sample::Index>(), any::<u8>()), 0..60)) {
            let balance = Arc::new(Balance::default());
            let settled = Arc::new(AtomicUsize::new(0));
            let nacked = Arc::new(AtomicUsize::new(0));
            let batches = sizes.len();
            let mut acks: Vec<Ack> = sizes.iter().map(|&n| {
                let (settled, nacked) = (settled.clone(), nacked.clone());
                Ack::enter(&balance, n, move |outcome| {
                    settled.fetch_add(1, Ordering::Relaxed);
                    nacked.fetch_add(usize::from(outcome == Outcome::Nacked), Ordering::Relaxed);
                })
            }).collect();
            let mut given_up = false;
            for (op, index, n) in ops {
                if acks.is_empty() { break; }
                let at = index.index(acks.len());
                let n = usize::from(n) % (acks[at].count() + 1);
                match op {
                    0 => acks[at].filtered(FilterReason::Unchanged, n),
                    1 => acks[at].dropped(DropReason::Late, n),
                    2 => acks[at].expanded(n),
                    3 => { let part = acks[at].split(n); acks.push(part); }
                    4 => { let ack = acks.swap_remove(at); match acks.first_mut() { Some(first) => first.merge(ack), None => acks.push(ack) } }
                    5 => acks.swap_remove(at).delivered(),
                    _ => { let ack = acks.swap_remove(at); given_up |= ack.count() > 0; ack.given_up(); }
                }
                let counts = balance.snapshot();
                prop_assert!(counts.adds_up());
                prop_assert_eq!(counts.in_flight, acks.iter().map(|a| a.count() as u64).sum::<u64>());
            }
            acks.into_iter().for_each(Ack::delivered);
            prop_assert_eq!(settled.load(Ordering::Relaxed), batches);
            prop_assert_eq!(nacked.load(Ordering::Relaxed) > 0, given_up);
            prop_assert_eq!(balance.snapshot().in_flight, 0);
            prop_assert!(balance.snapshot().adds_up());
        }
    }
}
