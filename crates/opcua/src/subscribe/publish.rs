//! Publish requests of one session: as many outstanding as its subscriptions call for, each carrying the
//! acknowledgements of what arrived since the last. Answers come through one queue in the order of their arrival.
//!
//! No request is sent while the flow has no room: the server then keeps the values, up to its queues' size. A request
//! whose answer brought nothing is not followed by another at once, so that no answer makes this end ask in a circle; the
//! others go on meanwhile.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use opcua::types::{PublishRequest, SubscriptionAcknowledgement};
use thalweg_telemetry::IntGauge;
use tokio::sync::mpsc;

use crate::channel::{AnswerQueue, QueuedAnswer};
use crate::session::Session;

/// Outstanding requests of a session.
const OUTSTANDING_MAX: usize = 64;

/// What the server is told about how long a request may wait: longer than any keep-alive.
const TIMEOUT_HINT: Duration = Duration::from_secs(600);

pub(crate) struct PublishRequester {
    answers: mpsc::UnboundedReceiver<QueuedAnswer>,
    queue: AnswerQueue,
    sent: HashMap<u64, Instant>,
    tag: u64,
    per_subscription: usize,
    /// The server refused more than this.
    limit: usize,
    acknowledgements: Vec<SubscriptionAcknowledgement>,
    /// Requests up to this one were sent before the latest subscription was made.
    replaced: u64,
    /// Until when places of requests stay empty; at most as many as there are places.
    resting: Vec<Instant>,
}

impl PublishRequester {
    /// `outstanding` shows how many requests the server holds.
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

    /// A subscription was made anew: what was asked before says nothing about it.
    pub fn subscription_replaced(&mut self) {
        self.replaced = self.tag;
    }

    /// Whether a request was sent before the latest subscription was made.
    pub fn is_before_replacement(&self, tag: u64) -> bool {
        tag <= self.replaced
    }

    /// How many requests may be sent now.
    pub fn missing(&mut self, subscriptions: usize) -> usize {
        let now = Instant::now();
        self.resting.retain(|until| *until > now);
        (self.per_subscription * subscriptions)
            .min(self.limit)
            .saturating_sub(self.sent.len() + self.resting.len())
    }

    /// The place of the request that was answered last stays empty for so long.
    pub fn rest(&mut self, pause: Duration) {
        if self.resting.len() < OUTSTANDING_MAX {
            self.resting.push(Instant::now() + pause);
        }
    }

    /// When the first place is free again.
    pub fn rests_until(&self) -> Option<Instant> {
        self.resting.iter().min().copied()
    }

    /// Whether nothing but the server can be waited for: requests are outstanding, or were answered in vain, and no answer
    /// waits to be processed.
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
        self.sent.insert(self.tag, Instant::now());
        session.enqueue(request, TIMEOUT_HINT, &self.queue, self.tag).await;
    }

    /// The next answer with the time since its request. Pending while nothing is outstanding.
    pub async fn answer(&mut self) -> (QueuedAnswer, Duration) {
        loop {
            let Some(answer) = self.answers.recv().await else {
                std::future::pending::<()>().await;
                continue;
            };
            // Answers to requests of a connection that is gone are told apart by their tag.
            if let Some(sent) = self.sent.remove(&answer.tag) {
                return (answer, sent.elapsed());
            }
        }
    }

    /// A message has been taken over; the server need not keep it.
    pub fn acknowledge(&mut self, subscription_id: u32, sequence_number: u32) {
        self.acknowledgements.push(SubscriptionAcknowledgement {
            subscription_id,
            sequence_number,
        });
    }

    /// The server has too many requests waiting. One that takes none at all is asked again after a pause.
    pub fn too_many(&mut self, pause: Duration) {
        self.limit = self.sent.len().max(1);
        if self.sent.is_empty() {
            self.rest(pause);
        }
    }

    /// The connection is gone, and all its requests with it. Acknowledgements wait for the next.
    pub fn connection_lost(&mut self) {
        self.sent.clear();
        self.resting.clear();
        while self.answers.try_recv().is_ok() {}
    }

    /// Another session: what the old one received cannot be acknowledged in it.
    pub fn session_lost(&mut self) {
        self.connection_lost();
        self.acknowledgements.clear();
        self.limit = OUTSTANDING_MAX;
    }
}

#[cfg(test)]
mod tests;
