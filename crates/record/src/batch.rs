//! The unit in which messages move.

use crate::{Ack, DropReason, FilterReason, Message};

/// Messages and the [`Ack`] that answers for them. Invariant: `ack.count() == messages.len()` whenever a batch is
/// between two stages.
#[derive(Debug)]
pub struct Batch {
    pub messages: Vec<Message>,
    pub ack: Ack,
}

impl Batch {
    pub fn new(messages: Vec<Message>, ack: Ack) -> Batch {
        debug_assert_eq!(
            messages.len(),
            ack.count(),
            "a batch and its answer must agree on the number of messages"
        );
        Batch { messages, ack }
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// Approximate memory, for queue limits.
    pub fn memory_bytes(&self) -> usize {
        self.messages.iter().map(Message::memory_bytes).sum()
    }

    /// Keeps the messages for which `keep` holds; the others count as filtered.
    pub fn filter(&mut self, reason: FilterReason, keep: impl FnMut(&mut Message) -> bool) {
        let before = self.len();
        self.messages.retain_mut(keep);
        let removed = before - self.len();
        if removed > 0 {
            self.ack.filtered(reason, removed);
        }
    }

    /// Keeps the messages for which `keep` holds; the others count as dropped.
    pub fn drop_unless(&mut self, reason: DropReason, keep: impl FnMut(&mut Message) -> bool) {
        let before = self.len();
        self.messages.retain_mut(keep);
        let removed = before - self.len();
        if removed > 0 {
            self.ack.dropped(reason, removed);
        }
    }

    /// Adds the messages of another batch of the same flow.
    pub fn append(&mut self, other: Batch) {
        self.messages.extend(other.messages);
        self.ack.merge(other.ack);
    }
}
