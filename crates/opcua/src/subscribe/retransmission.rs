//! Orders the messages of one subscription: decides which are missing, which of those to request again (Republish),
//! what becomes a gap, and what is delivered when. There is no clock and no I/O here: the owner executes the steps that
//! [`Retransmission::next`] returns and reports the results.
//!
//! Every message is delivered once or replaced by a gap, and every loop has a limit of its own, whatever the server
//! responds. A connection loss between two steps changes nothing: the same step is next on the next connection.
//!
//! | | state | requests | next state |
//! | |---|---|---|
//! | | following | nothing | filling when a message arrives too early; catching up after a reconnect |
//! | | filling | the missing messages that the server lists, or the newest few if it lists none; oldest first | catching up or following; a missing message becomes a gap before the next one |
//! | | catching up | the messages that the server lists as kept, or, without a list, the next number until it is not available | following |

use std::collections::VecDeque;

use super::sequence::{Arrival, Sequence, SequenceRange, distance, later, successor};
use crate::gaps::GapReason;

/// Maximum number of listed messages to request at a time; the newest ones win. Servers keep far fewer.
const LISTED_MAX: usize = 1000;

/// The same for a hole if the server does not list what it keeps. A server keeps at least as many messages as publish
/// requests were outstanding.
const UNLISTED_MAX: u32 = 64;

/// Maximum number of messages requested after a reconnect without knowing whether they exist. Any later ones show as a
/// hole before the next message.
const AHEAD_MAX: usize = 1000;

#[derive(Debug)]
pub(crate) struct Retransmission<V> {
    sequence: Sequence,
    /// Steps to do before anything else is requested, in order.
    ready: VecDeque<RetransmissionStep<V>>,
    /// Follows `ready` in message order.
    hole: Option<Hole<V>>,
    /// Follows the hole in message order.
    ahead: ReconnectBacklog,
}

/// The next step for the owner.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RetransmissionStep<V> {
    /// Request the message with this number from the server and report the result with [`Retransmission::answered`].
    Ask(u32),
    /// Messages are missing before the next delivery.
    Gap(GapReason),
    /// Pass on a message and acknowledge it.
    Deliver { number: u32, values: V },
    /// A recovery is complete, with these counts.
    Ended(RecoveryCounts),
}

/// The server's response to a request for a message.
#[derive(Debug)]
pub(crate) enum RepublishReply<V> {
    /// A server that does not have the message may send an empty one, like a keep-alive, or another one.
    Message {
        number: u32,
        is_keep_alive: bool,
        values: V,
    },
    NotAvailable,
    /// The message exists but cannot be decoded.
    Unreadable,
    /// No response, or one which implies that no other number will be served either.
    Unanswered,
}

/// Message counts of one recovery.
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

/// Consecutive missing messages and the message after them.
#[derive(Debug)]
struct Hole<V> {
    /// The first message that has neither arrived nor been covered by a gap.
    first: u32,
    /// Number of messages from `first` to the end of the hole.
    rest: u32,
    /// Numbers to request, oldest first.
    plan: VecDeque<u32>,
    /// The message that arrived too early; `None` if a keep-alive revealed the hole.
    early: Option<(u32, V)>,
    unreadable: bool,
    counts: RecoveryCounts,
}

/// Messages that may have been sent into a broken connection.
#[derive(Debug, Default)]
struct ReconnectBacklog {
    /// Numbers that the server lists as kept, oldest first.
    listed: VecDeque<u32>,
    /// How many more messages may be requested without knowing whether they exist.
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
    /// Handles a message of a Publish response; `available` lists what the server keeps. A message that was seen before
    /// is not delivered again.
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

    /// Handles a Publish response without a message.
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

    /// The connection is back, and the server still has the subscription. `available` lists what the server keeps; it
    /// is empty if the server does not say.
    pub fn reconnected(&mut self, available: &[u32]) {
        // Keeps what remains of an earlier list that another connection loss interrupted.
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

    /// Returns the next step, or `None` to wait for the next Publish response.
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

    /// Reports the result of [`RetransmissionStep::Ask`]. Only a message with the requested number counts as one.
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
            // A newer message of the list may still be available.
            RepublishReply::NotAvailable if is_listed => {}
            RepublishReply::NotAvailable | RepublishReply::Unanswered => {
                self.ahead.listed.clear();
                self.ahead.unlisted = 0;
            }
        }
    }

    /// Stops requesting messages because the subscription is gone or recovery takes too long. Missing messages become a
    /// gap.
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
    fn new(missing: SequenceRange, available: &[u32], early: Option<(u32, V)>) -> Hole<V> {
        let plan = match available.is_empty() {
            true => newest(missing),
            false => listed(missing, available),
        };
        Hole {
            first: missing.first,
            rest: missing.count,
            plan,
            early,
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
            // Servers discard the oldest messages first; newer ones may still be available.
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
        if let Some((number, values)) = self.early {
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

/// Returns the newest numbers, oldest first, since servers discard the oldest messages first.
fn newest(missing: SequenceRange) -> VecDeque<u32> {
    let skipped = missing.count.saturating_sub(UNLISTED_MAX);
    (skipped..missing.count).map(|at| later(missing.first, at)).collect()
}

/// Returns the newest of those that the server keeps, oldest first. The server may list them in any order and
/// repeatedly.
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
