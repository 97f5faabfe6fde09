//! Acknowledgements: how a source learns the outcome of its messages, and how they are counted on the way.
//!
//! An [`Ack`] answers for a number of messages. Stages report what they did (filtered, dropped, expanded, split,
//! merged) and outputs end it. The source is notified once, after everything derived from its batch has ended: `Acked`
//! if every part was delivered, filtered or dropped with a reason, `Nacked` if a part was given up. An `Ack` that is
//! lost (a panic, a forgotten path) counts its messages as dropped and nacks: no message disappears silently.
//!
//! With a durable buffer there are two parts. Storing ends the first ([`Ack::kept`]), reading begins the second
//! ([`Ack::resume`]). In between, and when the second is given up, the messages stay in flight. So do messages that a
//! stop gives up, if their source delivers again what is not confirmed ([`Ack::enter_redeliverable`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use crate::{DropReason, FilterReason, FlowBalance, Message};

/// The outcome of a source's batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckResult {
    /// Everything derived from the batch was confirmed, filtered, or dropped with a reason.
    Acked,
    /// Part of it was given up (shutdown, lost stage): a source that can redelivers the batch.
    Nacked,
}

type SettleFn = Box<dyn FnOnce(AckResult) + Send>;

/// Called for a message that was refused for good, with the reason; returns `true` if the source handles it.
type RefuseFn = Box<dyn Fn(&Message, &str) -> bool + Send + Sync>;

/// One source batch, or several whose acknowledgement was split. It is settled when the last [`Ack`] that refers to it
/// is dropped.
struct AckOrigin {
    given_up: AtomicBool,
    of: OriginKind,
}

enum OriginKind {
    Source {
        settle: Mutex<Option<SettleFn>>,
        refuse: Option<RefuseFn>,
        /// Whether the source delivers again what is not confirmed, also to the next run.
        redelivers: bool,
    },
    Several(Vec<Arc<AckOrigin>>),
}

impl AckOrigin {
    fn refuse(&self, message: &Message, error: &str) -> bool {
        match &self.of {
            OriginKind::Source { refuse, .. } => refuse.as_ref().is_some_and(|refuse| refuse(message, error)),
            OriginKind::Several(origins) => origins.iter().any(|origin| origin.refuse(message, error)),
        }
    }

    fn redelivers(&self) -> bool {
        match &self.of {
            OriginKind::Source { redelivers, .. } => *redelivers,
            OriginKind::Several(origins) => origins.iter().all(|origin| origin.redelivers()),
        }
    }
}

impl Drop for AckOrigin {
    fn drop(&mut self) {
        let given_up = *self.given_up.get_mut();
        match &mut self.of {
            OriginKind::Source { settle, .. } => {
                if let Some(settle) = settle.get_mut().take() {
                    settle(if given_up { AckResult::Nacked } else { AckResult::Acked });
                }
            }
            OriginKind::Several(origins) if given_up => {
                origins
                    .iter()
                    .for_each(|origin| origin.given_up.store(true, Ordering::Relaxed));
            }
            OriginKind::Several(_) => {}
        }
    }
}

/// Answers for `count` messages of one flow.
#[must_use = "an acknowledgement must be ended by delivered() or given_up(), or passed on"]
pub struct Ack {
    balance: Arc<FlowBalance>,
    count: u64,
    /// A buffer still has the messages; if they are given up, they stay in it.
    buffered: bool,
    /// Beyond [`FEW`] entries, some may be duplicates until the next clean-up.
    origins: SmallVec<[Arc<AckOrigin>; 1]>,
    /// Number of entries after the last clean-up.
    distinct: usize,
}

/// Up to this many batches are searched for duplicates; longer lists are sorted each time that they have doubled.
const FEW: usize = 16;

impl Ack {
    /// A batch of `count` messages enters the flow; `settle` is called with the outcome, on the thread that ends it.
    pub fn enter(balance: &Arc<FlowBalance>, count: usize, settle: impl FnOnce(AckResult) + Send + 'static) -> Ack {
        balance.enter(count as u64);
        Ack::new(balance, count, false, None, false, Box::new(settle))
    }

    /// Like [`Ack::enter`], for a source that delivers again what is not confirmed: what a stop gives up is not lost,
    /// and stays in flight.
    pub fn enter_redeliverable(
        balance: &Arc<FlowBalance>,
        count: usize,
        settle: impl FnOnce(AckResult) + Send + 'static,
    ) -> Ack {
        balance.enter(count as u64);
        Ack::new(balance, count, false, None, true, Box::new(settle))
    }

    /// Like [`Ack::enter_redeliverable`], for a source that handles messages refused for good: `refuse` is called with
    /// each and the reason, and returns whether the source handles it.
    pub fn enter_refusable(
        balance: &Arc<FlowBalance>,
        count: usize,
        refuse: impl Fn(&Message, &str) -> bool + Send + Sync + 'static,
        settle: impl FnOnce(AckResult) + Send + 'static,
    ) -> Ack {
        balance.enter(count as u64);
        Ack::new(balance, count, false, Some(Box::new(refuse)), true, Box::new(settle))
    }

    /// Messages that a buffer has stored continue. The buffer has them until `settle` is called with `Acked`.
    pub fn resume(balance: &Arc<FlowBalance>, count: usize, settle: impl FnOnce(AckResult) + Send + 'static) -> Ack {
        balance.resume(count as u64);
        Ack::new(balance, count, true, None, false, Box::new(settle))
    }

    fn new(
        balance: &Arc<FlowBalance>,
        count: usize,
        buffered: bool,
        refuse: Option<RefuseFn>,
        redelivers: bool,
        settle: SettleFn,
    ) -> Ack {
        let origin = AckOrigin {
            given_up: AtomicBool::new(false),
            of: OriginKind::Source {
                settle: Mutex::new(Some(settle)),
                refuse,
                redelivers,
            },
        };
        Ack {
            balance: balance.clone(),
            count: count as u64,
            buffered,
            origins: smallvec![Arc::new(origin)],
            distinct: 1,
        }
    }

    /// Number of messages.
    pub fn count(&self) -> usize {
        self.count as usize
    }

    /// `n` of the messages were removed as intended.
    pub fn filtered(&mut self, reason: FilterReason, n: usize) {
        let n = self.take(n);
        self.balance.filter(reason, n);
    }

    /// `n` of the messages were lost to a fault or limit, which was already logged or sent to a dead letter.
    pub fn dropped(&mut self, reason: DropReason, n: usize) {
        let n = self.take(n);
        self.balance.lose(reason, n);
    }

    /// One of the messages was refused for good, and there is no dead letter output. Notifies the source and returns
    /// whether it handles the message, which is counted as dropped either way.
    pub fn refused(&self, message: &Message, error: &str) -> bool {
        self.origins.iter().any(|origin| origin.refuse(message, error))
    }

    /// `n` messages were added: one that became three adds two.
    pub fn expanded(&mut self, n: usize) {
        self.count += n as u64;
        self.balance.expand(n as u64);
    }

    /// Splits off the acknowledgement of `n` messages for another path.
    pub fn split(&mut self, n: usize) -> Ack {
        let count = self.take(n);
        if self.origins.len() > FEW {
            // Otherwise each of many parts would refer to each of many batches.
            self.sort_out();
            let several = AckOrigin {
                given_up: AtomicBool::new(false),
                of: OriginKind::Several(self.origins.drain(..).collect()),
            };
            self.origins.push(Arc::new(several));
            self.distinct = 1;
        }
        Ack {
            balance: self.balance.clone(),
            count,
            buffered: self.buffered,
            origins: self.origins.clone(),
            distinct: self.distinct,
        }
    }

    /// Takes over another path's messages. Both must belong to one flow.
    pub fn merge(&mut self, mut other: Ack) {
        self.check_that_it_meets(&other);
        self.count += std::mem::take(&mut other.count);
        if self.origins.len() + other.origins.len() > FEW {
            self.origins.append(&mut other.origins);
            if self.origins.len() > 2 * self.distinct.max(FEW) {
                self.sort_out();
            }
            return;
        }
        for origin in other.origins.drain(..) {
            if !self.origins.iter().any(|known| Arc::ptr_eq(known, &origin)) {
                self.origins.push(origin);
            }
        }
        self.distinct = self.origins.len();
    }

    /// Like [`Ack::merge`], for many at once; refers to each of their batches once.
    pub fn merge_all(&mut self, others: impl IntoIterator<Item = Ack>) {
        for mut other in others {
            self.check_that_it_meets(&other);
            self.count += std::mem::take(&mut other.count);
            self.origins.append(&mut other.origins);
        }
        self.sort_out();
    }

    fn sort_out(&mut self) {
        self.origins.sort_unstable_by_key(|origin| Arc::as_ptr(origin).addr());
        self.origins.dedup_by(|a, b| Arc::ptr_eq(a, b));
        self.distinct = self.origins.len();
    }

    fn check_that_it_meets(&self, other: &Ack) {
        debug_assert!(
            Arc::ptr_eq(&self.balance, &other.balance),
            "messages of two flows cannot share an answer"
        );
        debug_assert_eq!(
            self.buffered, other.buffered,
            "messages before and after a buffer cannot share an answer"
        );
    }

    /// Some of the messages were delivered; the rest is still open.
    pub fn delivered_some(&mut self, n: usize) {
        let n = self.take(n);
        self.balance.deliver(n);
    }

    /// All remaining messages were delivered.
    pub fn delivered(mut self) {
        let n = std::mem::take(&mut self.count);
        if n > 0 {
            self.balance.deliver(n);
        }
        self.origins.clear();
    }

    /// All remaining messages are in a buffer, which answers for them from now on.
    pub fn kept(mut self) {
        let n = std::mem::take(&mut self.count);
        self.balance.keep(n);
        self.origins.clear();
    }

    /// The remaining messages will not be delivered in this run: counted as dropped with reason `shutdown`, and nacked.
    /// Those that a buffer has stay in flight, because the next run delivers them; so do those that a stop gives up and
    /// that their source delivers again.
    pub fn given_up(self) {}

    /// Whether the next run gets the messages from their source.
    fn comes_again(&self) -> bool {
        self.balance.is_stopping() && !self.origins.is_empty() && self.origins.iter().all(|origin| origin.redelivers())
    }

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
            match self.buffered {
                true => self.balance.keep(self.count),
                false if self.comes_again() => {}
                false => self.balance.lose(DropReason::Shutdown, self.count),
            }
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

    fn enter(balance: &Arc<FlowBalance>, n: usize, log: &Arc<Mutex<Vec<AckResult>>>) -> Ack {
        let log = log.clone();
        Ack::enter(balance, n, move |outcome| log.lock().push(outcome))
    }

    #[test]
    fn a_batch_is_acked_once_after_its_last_part() {
        let (balance, log) = (Arc::new(FlowBalance::default()), Arc::default());
        let mut ack = enter(&balance, 5, &log);
        let part = ack.split(2);
        ack.filtered(FilterReason::Unchanged, 1);
        ack.delivered();
        assert!(log.lock().is_empty());
        assert_eq!(balance.snapshot().in_flight, 2);
        part.delivered();
        assert_eq!(*log.lock(), [AckResult::Acked]);
        let counts = balance.snapshot();
        assert!(counts.adds_up() && counts.out == 4 && counts.in_flight == 0);
    }

    /// What comes again is not lost: after a stop it is in flight.
    #[test]
    fn what_a_stop_gives_up_stays_in_flight_if_its_source_delivers_it_again() {
        let (balance, log) = (Arc::new(FlowBalance::default()), Arc::new(Mutex::new(Vec::new())));
        let again = |n| {
            let log = log.clone();
            Ack::enter_redeliverable(&balance, n, move |outcome| log.lock().push(outcome))
        };
        again(1).given_up();
        assert_eq!(
            balance.snapshot().dropped(DropReason::Shutdown),
            1,
            "it enters again, in this run"
        );
        balance.stops();
        again(3).given_up();
        let mut joined = again(4);
        joined.merge_all((0..40).map(|_| again(1)));
        // Refers to many batches, so the parts share one origin.
        joined.split(10).given_up();
        joined.delivered();
        let counts = balance.snapshot();
        assert_eq!((counts.in_flight, counts.dropped_total(), counts.out), (13, 1, 34));
        Ack::enter_refusable(&balance, 5, |_, _| false, |_| {}).given_up();
        assert_eq!(balance.snapshot().in_flight, 18);
        // Part of the messages comes from a source that does not: no one knows which ones these are.
        let mut mixed = again(2);
        mixed.merge(enter(&balance, 1, &Arc::default()));
        mixed.given_up();
        let counts = balance.snapshot();
        assert!(counts.adds_up());
        assert_eq!((counts.in_flight, counts.dropped(DropReason::Shutdown)), (18, 4));
        assert!(log.lock().contains(&AckResult::Nacked));
    }

    #[test]
    fn a_lost_ack_is_counted_and_nacked() {
        let (balance, log) = (Arc::new(FlowBalance::default()), Arc::default());
        let mut ack = enter(&balance, 3, &log);
        drop(ack.split(1));
        ack.delivered();
        assert_eq!(*log.lock(), [AckResult::Nacked]);
        assert_eq!(balance.snapshot().dropped(DropReason::Shutdown), 1);
        assert!(balance.snapshot().adds_up());
    }

    #[test]
    fn messages_in_a_buffer_are_in_flight_until_what_was_read_of_them_ends() {
        let (balance, log) = (Arc::new(FlowBalance::default()), Arc::default());
        balance.found(2);
        enter(&balance, 3, &log).kept();
        assert_eq!(
            *log.lock(),
            [AckResult::Acked],
            "storing ends the first part of the way"
        );
        let counts = balance.snapshot();
        assert!(
            counts.adds_up() && counts.in_flight == 5 && counts.buffered() == 5,
            "{counts}"
        );
        let resume = |n| {
            let log = log.clone();
            Ack::resume(&balance, n, move |outcome| log.lock().push(outcome))
        };
        let (mut first, second) = (resume(3), resume(1));
        assert_eq!(balance.snapshot().buffered(), 1);
        first.expanded(1);
        first.dropped(DropReason::Late, 1);
        first.delivered();
        second.given_up();
        assert_eq!(log.lock()[1..], [AckResult::Acked, AckResult::Nacked]);
        let counts = balance.snapshot();
        assert!(
            counts.adds_up() && counts.out == 3 && counts.dropped_total() == 1,
            "{counts}"
        );
        assert_eq!(
            (counts.in_flight, counts.buffered()),
            (2, 2),
            "what was given up is still in the buffer"
        );
        balance.lost(DropReason::Limit, 9);
        let counts = balance.snapshot();
        assert!(
            counts.adds_up() && counts.in_flight == 0 && counts.dropped(DropReason::Limit) == 2,
            "{counts}"
        );
    }

    #[test]
    fn messages_read_before_they_are_said_to_be_stored_balance_in_the_end() {
        let balance = Arc::new(FlowBalance::default());
        let stored = Ack::enter(&balance, 4, |_| {});
        let read = Ack::resume(&balance, 4, |_| {});
        assert_eq!((balance.snapshot().in_flight, balance.snapshot().buffered()), (4, 0));
        stored.kept();
        read.delivered();
        let counts = balance.snapshot();
        assert!(
            counts.adds_up() && counts.out == 4 && counts.in_flight == 0 && counts.buffered() == 0,
            "{counts}"
        );
    }

    #[test]
    fn a_source_that_wants_refused_messages_back_gets_its_own() {
        let balance = Arc::new(FlowBalance::default());
        let wants = |name: &'static str| move |message: &Message, _: &str| *message.bytes() == *name.as_bytes();
        let mut ack = Ack::enter_refusable(&balance, 1, wants("a"), |_| {});
        ack.merge(Ack::enter_refusable(&balance, 1, wants("b"), |_| {}));
        ack.merge(Ack::enter(&balance, 1, |_| {}));
        assert!(ack.refused(&Message::raw("a"), "") && ack.split(1).refused(&Message::raw("b"), ""));
        assert!(!ack.refused(&Message::raw("c"), ""));
        ack.delivered();
    }

    proptest! {
        /// For any sequence of operations: the sums add up at every step, each batch is settled exactly once, and it is
        /// acked exactly if none of its messages was given up.
        #[test]
        fn any_history_balances(sizes in prop_oneof![prop::collection::vec(1usize..20, 1..5), prop::collection::vec(1usize..5, 15..60)], ops in prop::collection::vec((0u8..8, any::<prop::sample::Index>(), any::<u8>()), 0..60)) {
            let balance = Arc::new(FlowBalance::default());
            let settled = Arc::new(AtomicUsize::new(0));
            let nacked = Arc::new(AtomicUsize::new(0));
            let batches = sizes.len();
            let mut acks: Vec<Ack> = sizes.iter().map(|&n| {
                let (settled, nacked) = (settled.clone(), nacked.clone());
                Ack::enter(&balance, n, move |outcome| {
                    settled.fetch_add(1, Ordering::Relaxed);
                    nacked.fetch_add(usize::from(outcome == AckResult::Nacked), Ordering::Relaxed);
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
                    6 => { let mut ack = acks.swap_remove(at); ack.merge_all(acks.drain(..)); acks.push(ack); }
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

    /// A stage that holds messages back may merge the acknowledgements of any number of batches.
    #[test]
    fn joining_many_batches_one_by_one_is_a_step_for_each() {
        let make = |n: usize| {
            let balance = Arc::new(FlowBalance::default());
            let enter = |_| Ack::enter(&balance, 1, |_| {});
            (0..n).map(enter).collect::<Vec<_>>()
        };
        let join = |acks: Vec<Ack>| {
            let mut acks = acks.into_iter();
            let mut first = acks.next().unwrap();
            acks.for_each(|ack| first.merge(ack));
            first.delivered();
        };
        let exponent = crate::growth::exponent(2_000, make, join);
        assert!(exponent < crate::growth::LINEAR, "{exponent}");
    }

    /// Each message of a merged batch may leave it separately, as to a dead letter.
    #[test]
    fn dividing_what_was_joined_is_a_step_for_each_part() {
        let make = |n: usize| {
            let balance = Arc::new(FlowBalance::default());
            let mut joined = Ack::enter(&balance, 1, |_| {});
            joined.merge_all((1..n).map(|_| Ack::enter(&balance, 1, |_| {})));
            joined
        };
        let divide = |mut joined: Ack| {
            while joined.count() > 0 {
                joined.split(1).delivered();
            }
        };
        let exponent = crate::growth::exponent(500, make, divide);
        assert!(exponent < crate::growth::LINEAR, "{exponent}");
    }

    /// Parts of a batch that are merged again refer to it once, however often that happens.
    #[test]
    fn a_batch_is_not_held_more_and_more_often() {
        let balance = Arc::new(FlowBalance::default());
        let mut acks: Vec<Ack> = (0..40).map(|_| Ack::enter(&balance, 100, |_| {})).collect();
        let mut all = acks.pop().unwrap();
        for ack in &mut acks {
            (0..50).for_each(|_| all.merge(ack.split(1)));
        }
        assert!(all.origins.len() <= 2 * 40 + 1, "{}", all.origins.len());
        assert_eq!(all.count(), 100 + 39 * 50);
        acks.into_iter().for_each(|ack| all.merge(ack));
        all.delivered();
        assert!(balance.snapshot().adds_up() && balance.snapshot().out == 4000);
    }
}
