//! The publish requests of a session: as many outstanding as its subscriptions need, each with the acknowledgements of
//! the messages that arrived since the last one. Responses arrive through one queue in order.
//!
//! No request is sent while the flow is full; the server then buffers values up to the size of its queues. A request
//! whose response brought nothing is not replaced at once, so that no response can cause a busy loop. The other
//! requests continue meanwhile.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use opcua::types::{PublishRequest, SubscriptionAcknowledgement};
use thalweg_kit::clock;
use thalweg_telemetry::IntGauge;
use tokio::sync::mpsc;

use crate::channel::{AnswerQueue, QueuedAnswer};
use crate::session::Session;

/// Maximum number of outstanding requests per session.
const OUTSTANDING_MAX: usize = 64;

/// Timeout hint sent to the server: longer than any keep-alive interval.
const TIMEOUT_HINT: Duration = Duration::from_secs(600);

pub(crate) struct PublishRequester {
    answers: mpsc::UnboundedReceiver<QueuedAnswer>,
    queue: AnswerQueue,
    sent: HashMap<u64, Instant>,
    tag: u64,
    per_subscription: usize,
    /// The server rejected more requests than this.
    limit: usize,
    acknowledgements: Vec<SubscriptionAcknowledgement>,
    /// Requests up to this tag were sent before the latest subscription was created.
    replaced: u64,
    /// Times until which request slots stay unused; at most one per slot.
    resting: Vec<Instant>,
}

impl PublishRequester {
    /// `outstanding` shows the number of requests that the server holds.
    pub fn new(per_subscription: usize, outstanding: IntGauge) -> PublishRequester {
        let (sender, answers) = mpsc::unbounded_channel();
        let queue = AnswerQueue {
            answers: sender,
            outstanding,
        };
        PublishRequester {
            answers,
            queue,
            sent: HashMap::new(),
            tag: 0,
            per_subscription,
            limit: OUTSTANDING_MAX,
            acknowledgements: Vec::new(),
            replaced: 0,
            resting: Vec::new(),
        }
    }

    /// A subscription was recreated: responses to earlier requests say nothing about the new one.
    pub fn subscription_replaced(&mut self) {
        self.replaced = self.tag;
    }

    /// Returns whether a request was sent before the latest subscription was created.
    pub fn is_before_replacement(&self, tag: u64) -> bool {
        tag <= self.replaced
    }

    /// Returns how many requests may be sent now.
    pub fn missing(&mut self, subscriptions: usize) -> usize {
        let now = clock::now();
        self.resting.retain(|until| *until > now);
        (self.per_subscription * subscriptions)
            .min(self.limit)
            .saturating_sub(self.sent.len() + self.resting.len())
    }

    /// Keeps the slot of the request answered last unused for `pause`.
    pub fn rest(&mut self, pause: Duration) {
        if self.resting.len() < OUTSTANDING_MAX {
            self.resting.push(clock::now() + pause);
        }
    }

    /// Returns when the first slot becomes usable again.
    pub fn rests_until(&self) -> Option<Instant> {
        self.resting.iter().min().copied()
    }

    /// Returns whether only the server can make progress: requests are outstanding or were answered in vain, and no
    /// response is waiting to be processed.
    pub fn is_up_to_date(&self) -> bool {
        !(self.sent.is_empty() && self.resting.is_empty()) && self.answers.is_empty()
    }

    pub async fn send(&mut self, session: &Session) {
        let acknowledgements = std::mem::take(&mut self.acknowledgements);
        let request = PublishRequest {
            request_header: Default::default(),
            subscription_acknowledgements: (!acknowledgements.is_empty()).then_some(acknowledgements),
        };
        self.tag += 1;
        self.sent.insert(self.tag, clock::now());
        session.enqueue(request, TIMEOUT_HINT, &self.queue, self.tag).await;
    }

    /// Returns the next response and the time since its request. Pending while nothing is outstanding.
    pub async fn answer(&mut self) -> (QueuedAnswer, Duration) {
        loop {
            let Some(answer) = self.answers.recv().await else {
                std::future::pending::<()>().await;
                continue;
            };
            // Responses to requests of a lost connection have a tag that is no longer in `sent`.
            if let Some(sent) = self.sent.remove(&answer.tag) {
                return (answer, sent.elapsed());
            }
        }
    }

    /// Marks a message as received; the server need not keep it.
    pub fn acknowledge(&mut self, subscription_id: u32, sequence_number: u32) {
        self.acknowledgements.push(SubscriptionAcknowledgement {
            subscription_id,
            sequence_number,
        });
    }

    /// The server rejected a request because too many are queued. If it accepts none at all, the next attempt follows
    /// after a pause.
    pub fn too_many(&mut self, pause: Duration) {
        self.limit = self.sent.len().max(1);
        if self.sent.is_empty() {
            self.rest(pause);
        }
    }

    /// The connection is lost together with all its requests. Acknowledgements are kept for the next one.
    pub fn connection_lost(&mut self) {
        self.sent.clear();
        self.resting.clear();
        while self.answers.try_recv().is_ok() {}
    }

    /// The session is lost: messages received in it cannot be acknowledged in another one.
    pub fn session_lost(&mut self) {
        self.connection_lost();
        self.acknowledgements.clear();
        self.limit = OUTSTANDING_MAX;
    }
}

#[cfg(test)]
mod tests;
