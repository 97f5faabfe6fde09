//! Events on their way to a client. A client may be slow, and a message may be deleted or hidden while it waits here,
//! so the visibility of older messages is checked again before they are sent.
//!
//! | a waiting message | in its turn |
//! |---|---|
//! | nothing was hidden since it was read, and that is recent | is sent |
//! | something was hidden since, or it has waited too long | the store is asked about it and those after it |
//! | is no longer visible | is left out and reported as a gap |

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use thalweg_events::{Gap, StoredEvent};
use thalweg_kit::clock;
use tokio::time::Instant;

use super::frame;

/// The most messages of one visibility check.
const ASKED: usize = 64;
/// Retention by age hides messages without any change of the namespace.
const AGE_MAX: Duration = Duration::from_secs(1);

/// When a message was known to be visible.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisibilityCheck {
    /// As in [`NamespaceWatermark::hidden_at`](thalweg_events::NamespaceWatermark::hidden_at), before the message was
    /// read.
    pub hidden_at: u64,
    pub at: Instant,
}

impl VisibilityCheck {
    pub fn now(hidden_at: u64) -> VisibilityCheck {
        VisibilityCheck {
            hidden_at,
            at: clock::tokio_now(),
        }
    }

    fn holds(&self, hidden_at: u64) -> bool {
        self.hidden_at == hidden_at && self.at.elapsed() <= AGE_MAX
    }
}

/// A message in the form in which the store is asked about it.
#[derive(Clone, Debug)]
pub(super) struct PendingMessage {
    pub message: StoredEvent,
    /// The position in its stream or the global position, as gaps report it.
    pub place: u64,
    pub seen: VisibilityCheck,
}

struct OutboundEvent {
    bytes: Bytes,
    /// `None` if the event reveals no content of a message.
    waiting: Option<PendingMessage>,
}

#[derive(Default)]
pub(super) struct OutboundQueue(VecDeque<OutboundEvent>);

impl OutboundQueue {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn push(&mut self, bytes: Bytes) {
        self.0.push_back(OutboundEvent { bytes, waiting: None });
    }

    pub fn push_message(&mut self, bytes: Bytes, waiting: PendingMessage) {
        let waiting = Some(waiting);
        self.0.push_back(OutboundEvent { bytes, waiting });
    }

    /// The next event. Its visibility has been checked.
    pub fn pop(&mut self) -> Option<Bytes> {
        match self.0.pop_front() {
            Some(event) => Some(event.bytes),
            None => {
                // An idle subscriber keeps no capacity.
                self.0 = VecDeque::new();
                None
            }
        }
    }

    /// The namespace was cleared.
    pub fn forget_messages(&mut self) {
        self.0.retain(|event| event.waiting.is_none());
    }

    /// The messages that must be checked with the store before anything is sent.
    pub fn to_ask(&self, hidden_at: u64) -> Vec<StoredEvent> {
        let is_due = |waiting: &&PendingMessage| !waiting.seen.holds(hidden_at);
        let first = self.0.front().and_then(|event| event.waiting.as_ref());
        if first.filter(is_due).is_none() {
            return Vec::new();
        }
        let waiting = self.0.iter().take(ASKED).filter_map(|event| event.waiting.as_ref());
        waiting.filter(is_due).map(|waiting| waiting.message.clone()).collect()
    }

    /// Whether the next event needs no check, or was checked at `when`: the state may change again with every answer.
    pub fn was_looked_at(&self, when: VisibilityCheck) -> bool {
        let first = self.0.front().and_then(|event| event.waiting.as_ref());
        first.is_none_or(|waiting| waiting.seen.at == when.at)
    }

    /// Applies the answer of the store: `shown` has the global positions that are still visible.
    pub fn answered(&mut self, asked: &[StoredEvent], shown: &HashSet<u64>, seen: VisibilityCheck, tell_gaps: bool) {
        let asked: HashSet<u64> = asked.iter().map(|stored| stored.event().global).collect();
        let front: Vec<OutboundEvent> = self.0.drain(..ASKED.min(self.0.len())).collect();
        for mut event in front.into_iter().rev() {
            if let Some(waiting) = &mut event.waiting {
                let global = waiting.message.event().global;
                if shown.contains(&global) {
                    waiting.seen = seen;
                } else if asked.contains(&global) {
                    let (from, to) = (waiting.place, waiting.place);
                    match tell_gaps {
                        true => (event.bytes, event.waiting) = (frame::gap(Gap { from, to }), None),
                        false => continue,
                    }
                }
            }
            self.0.push_front(event);
        }
    }
}

impl Extend<Bytes> for OutboundQueue {
    fn extend<T: IntoIterator<Item = Bytes>>(&mut self, events: T) {
        events.into_iter().for_each(|bytes| self.push(bytes));
    }
}
