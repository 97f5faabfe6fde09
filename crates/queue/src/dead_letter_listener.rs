//! Notification of dead letters. A queue stores the address in `dlq.webhook` but sends nothing itself; an HTTP client
//! registers here and is called once a dead letter is stored.

use std::sync::Arc;

use thalweg_log::Offset;

use crate::queue::Queue;
use crate::queues::Queues;

/// Called for each dead letter of the queues that have `dlq.webhook`.
pub trait DeadLetterListener: Send + Sync {
    /// `letter` is its offset in `dlq.<queue>`. Messages wait for this call, so it must not block.
    fn dead_letter(&self, queue: &Arc<Queue>, letter: Offset);
}

impl Queues {
    /// Registers the listener. Only the first one is kept. Without a listener, settings with a `dlq.webhook` are
    /// refused.
    pub fn listen_for_dead_letters(&self, listener: Arc<dyn DeadLetterListener>) {
        let _ = self.home.listener.set(listener);
    }
}

impl Queue {
    pub(crate) fn tell_dead_letter(self: &Arc<Queue>, letter: Offset) {
        if self.settings().dlq.webhook.is_none() {
            return;
        }
        if let Some(listener) = self.registry().as_ref().and_then(|home| home.listener.get()) {
            listener.dead_letter(self, letter);
        }
    }
}
