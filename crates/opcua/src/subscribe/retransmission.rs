//! The messages of one subscription in the order of their numbers: which are missing, which of those are asked for again
//! (Republish), what remains a gap, and what leaves when. There is no clock and no I/O here: whoever owns it does what
//! [`Retransmission::next`] says and reports back.
//!
//! Every message leaves once, or a gap leaves in its place, and every loop has a bound of its own, whatever the server says.
//! A connection that breaks between two steps changes nothing: the same step is the next one on the next connection.
//!
//! | state | asks for | goes on to |
//! |---|---|---|
//! | following | nothing | filling at a message that comes too early; asking ahead after a reconnect |
//! | filling | the missing messages that the server lists, or the newest few if it lists none; oldest first | asking ahead or following; what did not come is a gap before whatever lies behind it |
//! | asking ahead | what the server lists as kept, or, if it does not say, the number that comes next until it is not there | following |

use std::collections::VecDeque;

use super::sequence::{Arrival, Sequence, SequenceRange, distance, later, successor};
use crate::gaps::GapReason;

/// Messages that are asked for at a time: the newest of those that the server lists. Servers keep far fewer.
const LISTED_MAX: usize = 1000;

/// The same of a hole if the server does not list what it keeps. It keeps at least as many as publish requests were
/// outstanding.
const UNLISTED_MAX: u32 = 64;

/// Messages that are asked for after a reconnect without knowing whether they exist. What lies behind them shows as a
/// hole before the next message.
const AHEAD_MAX: usize = 1000;

#[derive(Debug)]
pub(crate) struct Retransmission<V> {
    sequence: Sequence,
    /// What can be done before anything else is asked for, in order.
    ready: VecDeque<RetransmissionStep<V>>,
    /// It lies behind what is ready.
    hole: Option<Hole<V>>,
    /// It lies behind the hole.
    ahead: ReconnectBacklog,
}

/// What is to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RetransmissionStep<V> {
    /// Ask the server for the message of this number, and report with [`Retransmission::answered`].
    Ask(u32),
    /// Messages are missing before whatever is delivered next.
    Gap(GapReason),
    /// A message to pass on, and to acknowledge.
    Deliver { number: u32, values: V },
    /// What was missing has been dealt with, and this has come of it.
    Ended(RecoveryCounts),
}

/// What a server answers to the wish for a message.
#[derive(Debug)]
pub(crate) enum RepublishReply<V> {
    /// Servers that do not have a message may answer with an empty one, as a keep-alive is, or with another one.
    Message {
        number: u32,
        is_keep_alive: bool,
        values: V,
    },
    NotAvailable,
    /// There is one, but it cannot be read.
    Unreadable,
    /// No answer, or one that says that there will be none for other numbers either.
    Unanswered,
}

/// Of one recovery, in messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecoveryCounts {
    pub missing: u32,
    pub asked: u32,
    pub fetched: u32,
}

impl RecoveryCounts {
    pub fn given_up(&self) -> u32 {
        self.missing.saturating_sub(self.fetched)
    }
}

/// Consecutive messages that are missing, and the one behind them.
#[derive(Debug)]
struct Hole<V> {
    /// The first message that has neither come nor is behind a gap.
    first: u32,
    /// Messages from there to the end of the hole.
    rest: u32,
    /// Numbers to ask for, oldest first.
    plan: VecDeque<u32>,
    /// The message that came too early; `None` if a keep-alive told of the hole.
    behind: Option<(u32, V)>,
    unreadable: bool,
    counts: RecoveryCounts,
}

/// Messages that may have been sent into a connection that broke.
#[derive(Debug, Default)]
struct ReconnectBacklog {
    /// Numbers that the server says it keeps, oldest first.
    listed: VecDeque<u32>,
    /// How many more may be asked for without knowing of them.
    unlisted: usize,
    counts: RecoveryCounts,
}

impl<V> Default for Retransmission<V> {
    fn default() -> Retransmission<V> {
        Retransmission {
            sequence: Sequence::default(),
            ready: VecDeque::new(),
            hole: None,
            ahead: ReconnectBacklog::default(),
        }
    }
}

impl<V> Retransmission<V> {
    /// A message of a Publish answer, which also lists what the server keeps. One that was seen before does not leave
    /// again.
    pub fn published(&mut self, number: u32, available: &[u32], values: V) -> Arrival {
        self.give_up();
        let arrival = self.sequence.message(number);
        match arrival {
            Arrival::Seen => {}
            Arrival::InOrder => self.deliver(number, values),
            Arrival::Restarted => {
                self.gap(GapReason::NotRepublished);
                self.deliver(number, values);
            }
            Arrival::After(missing) => self.hole = Some(Hole::new(missing, available, Some((number, values)))),
        }
        arrival
    }

    /// A Publish answer without a message.
    pub fn kept_alive(&mut self, number: u32, available: &[u32]) -> Arrival {
        self.give_up();
        let arrival = self.sequence.keep_alive(number);
        match arrival {
            Arrival::Seen | Arrival::InOrder => {}
            Arrival::Restarted => self.gap(GapReason::NotRepublished),
            Arrival::After(missing) => self.hole = Some(Hole::new(missing, available, None)),
        }
        arrival
    }

    /// The connection broke and is back, and the server still has the subscription. `available` is what it says it keeps;
    /// nothing if it does not say.
    pub fn reconnected(&mut self, available: &[u32]) {
        // What a list before another break was not asked for yet is still to be asked for.
        if available.is_empty() && !self.ahead.listed.is_empty() {
            return;
        }
        let coming = SequenceRange {
            first: self.sequence.next(),
            count: u32::MAX / 2,
        };
        self.ahead.listed = listed(coming, available);
        self.ahead.unlisted = if available.is_empty() { AHEAD_MAX } else { 0 };
    }

    /// What is to be done now; `None`: wait for the next Publish answer.
    pub fn next(&mut self) -> Option<RetransmissionStep<V>> {
        if let Some(ready) = self.ready.pop_front() {
            return Some(ready);
        }
        if let Some(hole) = &self.hole {
            if let Some(number) = hole.plan.front() {
                return Some(RetransmissionStep::Ask(*number));
            }
            self.end_hole();
            return self.ready.pop_front();
        }
        if let Some(number) = self.ahead.listed.front() {
            return Some(RetransmissionStep::Ask(*number));
        }
        if self.ahead.unlisted > 0 {
            return Some(RetransmissionStep::Ask(self.sequence.next()));
        }
        self.end_ahead();
        self.ready.pop_front()
    }

    /// The answer to [`RetransmissionStep::Ask`]. Only a message of the number that was asked for counts as one.
    pub fn answered(&mut self, asked: u32, reply: RepublishReply<V>) {
        let reply = match reply {
            RepublishReply::Message {
                number, is_keep_alive, ..
            } if number != asked || is_keep_alive => RepublishReply::NotAvailable,
            reply => reply,
        };
        match &mut self.hole {
            Some(hole) => hole.answered(asked, reply, &mut self.ready),
            None => self.answered_ahead(asked, reply),
        }
    }

    fn answered_ahead(&mut self, asked: u32, reply: RepublishReply<V>) {
        self.ahead.counts.asked += 1;
        let is_listed = self.ahead.listed.pop_front().is_some();
        match reply {
            RepublishReply::Message { values, .. } => {
                let skipped = distance(self.sequence.next(), asked);
                if skipped > 0 {
                    self.gap(GapReason::NotRepublished);
                }
                self.ahead.counts.missing = self.ahead.counts.missing.saturating_add(skipped + 1);
                self.ahead.counts.fetched += 1;
                self.ahead.unlisted = self.ahead.unlisted.saturating_sub(1);
                self.sequence.message(asked);
                self.deliver(asked, values);
            }
            RepublishReply::Unreadable => {
                self.ahead.unlisted = 0;
                self.gap(GapReason::Undecodable);
            }
            // Of what is listed a newer one may still be there.
            RepublishReply::NotAvailable if is_listed => {}
            RepublishReply::NotAvailable | RepublishReply::Unanswered => {
                self.ahead.listed.clear();
                self.ahead.unlisted = 0;
            }
        }
    }

    /// Nothing more is asked for: the subscription is gone, or it takes too long. What is missing is a gap.
    pub fn give_up(&mut self) {
        self.end_hole();
        self.end_ahead();
    }

    fn end_hole(&mut self) {
        if let Some(hole) = self.hole.take() {
            hole.end(&mut self.ready);
        }
    }

    fn end_ahead(&mut self) {
        let ahead = std::mem::take(&mut self.ahead);
        if ahead.counts.asked > 0 {
            self.ready.push_back(RetransmissionStep::Ended(ahead.counts));
        }
    }

    fn deliver(&mut self, number: u32, values: V) {
        self.ready.push_back(RetransmissionStep::Deliver { number, values });
    }

    fn gap(&mut self, reason: GapReason) {
        self.ready.push_back(RetransmissionStep::Gap(reason));
    }
}

impl<V> Hole<V> {
    fn new(missing: SequenceRange, available: &[u32], behind: Option<(u32, V)>) -> Hole<V> {
        let plan = match available.is_empty() {
            true => newest(missing),
            false => listed(missing, available),
        };
        Hole {
            first: missing.first,
            rest: missing.count,
            plan,
            behind,
            unreadable: false,
            counts: RecoveryCounts {
                missing: missing.count,
                ..RecoveryCounts::default()
            },
        }
    }

    fn answered(&mut self, asked: u32, reply: RepublishReply<V>, ready: &mut VecDeque<RetransmissionStep<V>>) {
        self.plan.pop_front();
        self.counts.asked += 1;
        match reply {
            RepublishReply::Message { values, .. } => {
                let skipped = distance(self.first, asked);
                if skipped > 0 {
                    ready.push_back(RetransmissionStep::Gap(self.reason()));
                }
                self.counts.fetched += 1;
                self.rest = self.rest.saturating_sub(skipped + 1);
                self.first = successor(asked);
                self.unreadable = false;
                ready.push_back(RetransmissionStep::Deliver { number: asked, values });
            }
            // The oldest are given up first; newer ones may still be there.
            RepublishReply::NotAvailable => {}
            RepublishReply::Unreadable => self.unreadable = true,
            RepublishReply::Unanswered => self.plan.clear(),
        }
    }

    fn end(self, ready: &mut VecDeque<RetransmissionStep<V>>) {
        if self.rest > 0 {
            ready.push_back(RetransmissionStep::Gap(self.reason()));
        }
        ready.push_back(RetransmissionStep::Ended(self.counts));
        if let Some((number, values)) = self.behind {
            ready.push_back(RetransmissionStep::Deliver { number, values });
        }
    }

    fn reason(&self) -> GapReason {
        match self.unreadable {
            true => GapReason::Undecodable,
            false => GapReason::NotRepublished,
        }
    }
}

/// Of many messages the newest, oldest first: servers forget the oldest first.
fn newest(missing: SequenceRange) -> VecDeque<u32> {
    let skipped = missing.count.saturating_sub(UNLISTED_MAX);
    (skipped..missing.count).map(|at| later(missing.first, at)).collect()
}

/// The same of those that the server keeps, in whatever order and however often it says so.
fn listed(missing: SequenceRange, available: &[u32]) -> VecDeque<u32> {
    let places = available.iter().filter(|number| **number != 0);
    let places = places.map(|number| distance(missing.first, *number));
    let mut places: Vec<u32> = places.filter(|place| *place < missing.count).collect();
    places.sort_unstable();
    places.dedup();
    let skipped = places.len().saturating_sub(LISTED_MAX);
    let places = places.into_iter().skip(skipped);
    places.map(|place| later(missing.first, place)).collect()
}

#[cfg(test)]
mod tests;
