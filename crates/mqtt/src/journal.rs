//! The queue of actions in front of the log. All that comes while one batch is being committed is the next batch.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::action::Action;

/// Actions that wait for their commit, in the order in which they take effect.
#[derive(Default)]
pub(crate) struct Journal {
    queue: Mutex<JournalQueue>,
    wake: Notify,
    /// All that was pushed has taken effect.
    idle: Notify,
}

#[derive(Default)]
struct JournalQueue {
    actions: VecDeque<Action>,
    /// Everything that was taken has taken effect.
    is_idle: bool,
    is_closed: bool,
}

/// The most actions of one batch, and bytes: a batch is one submission.
const BATCH_ACTIONS: usize = 4096;
const BATCH_BYTES: usize = 8 << 20;

impl Journal {
    pub fn push(&self, action: Action) {
        let mut queue = self.queue.lock();
        let was_empty = queue.actions.is_empty();
        queue.actions.push_back(action);
        drop(queue);
        if was_empty {
            self.wake.notify_one();
        }
    }

    /// Puts actions back in front, in their order.
    pub fn put_back(&self, actions: Vec<Action>) {
        let mut queue = self.queue.lock();
        for action in actions.into_iter().rev() {
            queue.actions.push_front(action);
        }
        drop(queue);
        self.wake.notify_one();
    }

    /// The next actions, as soon as there are some; empty once the journal is closed and everything was taken.
    pub async fn take(&self) -> Vec<Action> {
        loop {
            {
                let mut queue = self.queue.lock();
                if !queue.actions.is_empty() {
                    let mut bytes = 0;
                    let fits = |action: &&Action| {
                        bytes += action.bytes();
                        bytes <= BATCH_BYTES
                    };
                    let count = queue.actions.iter().take(BATCH_ACTIONS).take_while(fits).count().max(1);
                    queue.is_idle = false;
                    return queue.actions.drain(..count).collect();
                }
                queue.is_idle = true;
                self.idle.notify_waiters();
                if queue.is_closed {
                    return Vec::new();
                }
            }
            self.wake.notified().await;
        }
    }

    /// Waits until all that was pushed has taken effect.
    pub async fn settled(&self) {
        loop {
            let idle = self.idle.notified();
            {
                let queue = self.queue.lock();
                if queue.is_idle && queue.actions.is_empty() {
                    return;
                }
            }
            idle.await;
        }
    }

    /// Ends the journal after what it has.
    pub fn close(&self) {
        self.queue.lock().is_closed = true;
        self.wake.notify_one();
    }
}
