//! Events that are on their way to a client. A client may be slow, and a message may be deleted or hidden while it waits here: so
//! what was read some time ago is looked at again before it is handed out.
//!
//! | a message that waits | when it is its turn |
//! |---|---|
//! | nothing was hidden since it was read, which is not long ago | goes out |
//! | something was hidden since, or it has waited for some time | the store is asked, for it and for those behind it |
//! | is not shown any more | is left out, and told of as a gap |

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use thalweg_events::{Gap, StoredEvent};
use tokio::time::Instant;

use super::frame;

/// So many are asked for together.
const ASKED: usize = 64;
/// A message that is older than its rule allows is hidden without any change of the namespace.
const AGE_MAX: Duration = Duration::from_secs(1);

/// When a message was known to be shown.
#[derive(Clone, Copy, Debug)]
pub(super) struct VisibilityCheck {
    /// As with [`NamespaceWatermark::hidden_at`](thalweg_events::NamespaceWatermark::hidden_at), before it was read.
    pub hidden_at: u64,
    pub at: Instant,
}

impl VisibilityCheck {
    pub fn now(hidden_at: u64) -> VisibilityCheck {
        VisibilityCheck {
            hidden_at,
            at: Instant::now(),
        }
    }

    fn holds(&self, hidden_at: u64) -> bool {
        self.hidden_at == hidden_at && self.at.elapsed() <= AGE_MAX
    }
}

/// A message as the store is asked for it.
#[derive(Clone, Debug)]
pub(super) struct PendingMessage {
    pub message: StoredEvent,
    /// Of its stream, or of all, as gaps are told.
    pub place: u64,
    pub seen: VisibilityCheck,
}

struct OutboundEvent {
    bytes: Bytes,
    /// `None` for what says nothing of the content of a message.
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

    /// The next one, which was looked at.
    pub fn pop(&mut self) -> Option<Bytes> {
        match self.0.pop_front() {
            Some(event) => Some(event.bytes),
            None => {
                // Who waits for long keeps no room for many.
                self.0 = VecDeque::new();
                None
            }
        }
    }

    /// All messages were removed.
    pub fn forget_messages(&mut self) {
        self.0.retain(|event| event.waiting.is_none());
    }

    /// Messages for which the store is to be asked before anything goes out.
    pub fn to_ask(&self, hidden_at: u64) -> Vec<StoredEvent> {
        let is_due = |waiting: &&PendingMessage| !waiting.seen.holds(hidden_at);
        let first = self.0.front().and_then(|event| event.waiting.as_ref());
        if first.filter(is_due).is_none() {
            return Vec::new();
        }
        let waiting = self.0.iter().take(ASKED).filter_map(|event| event.waiting.as_ref());
        waiting.filter(is_due).map(|waiting| waiting.message.clone()).collect()
    }

    /// Whether the next one needs no look, or the store was asked for it at that time: it may change again with every answer.
    pub fn was_looked_at(&self, when: VisibilityCheck) -> bool {
        let first = self.0.front().and_then(|event| event.waiting.as_ref());
        first.is_none_or(|waiting| waiting.seen.at == when.at)
    }

    /// What the store said of those: the global positions that it still shows.
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
