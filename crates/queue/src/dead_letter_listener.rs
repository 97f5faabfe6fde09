//! Who is told of dead letters. Queues know the address in `dlq.webhook`, but send nothing themselves: whoever has a client
//! listens here, and hears of a letter once it is stored.

use std::sync::Arc;

use thalweg_log::Offset;

use crate::queue::Queue;
use crate::queues::Queues;

/// Hears of each dead letter of the queues that have `dlq.webhook`.
pub trait DeadLetterListener: Send + Sync {
    /// `letter` is its offset in `dlq.<queue>`. Messages wait behind this call, so it must not.
    fn dead_letter(&self, queue: &Arc<Queue>, letter: Offset);
}

impl Queues {
    /// From now on; without a listener, settings with a `dlq.webhook` are refused. The first one stays.
    pub fn listen_for_dead_letters(&self, listener: Arc<dyn DeadLetterListener>) {
        let _ = self.home.listener.set(listener);
    }
}

impl Queue {
    pub(crate) fn tell_dead_letter(self: &Arc<Queue>, letter: Offset) {
        if self.settings().dlq.webhook.is_none() {
            return;
        }
        if let Some(listener) = self.home.upgrade().as_ref().and_then(|home| home.listener.get()) {
            listener.dead_letter(self, letter);
        }
    }
}
