//! How the broker's answers find the write that waits for them. They come in on the client's thread, record by record.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::KafkaError;
use rdkafka::producer::{DeliveryResult, ProducerContext};
use tokio::sync::Notify;

use super::retry_decision::{RetryDecision, fate};
use crate::link::BrokerLink;

pub struct ProducerCallbacks(pub Arc<BrokerLink>);

/// A record on its way: the write that it belongs to, and its index in it.
pub struct InFlightRecord {
    pub write: Arc<PendingDeliveries>,
    pub index: usize,
}

/// The writes on their way of which some record failed for now. It counts from the first such record on: until the others have an
/// answer too, much that is newer could be sent.
pub type FailingWrites = Arc<AtomicUsize>;

/// The records of a write that are on their way.
pub struct PendingDeliveries {
    /// One more than records, while they are being sent.
    left: AtomicUsize,
    failed: Mutex<FailedRecords>,
    done: Notify,
    failing: FailingWrites,
    /// A topic that is refused holds up no other.
    is_of_many_topics: bool,
}

#[derive(Default)]
struct FailedRecords {
    records: Vec<(usize, KafkaError)>,
    /// It is among the failing ones.
    is_counted: bool,
}

impl ClientContext for ProducerCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.0.log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.error(&error, reason);
    }
}

impl ProducerContext for ProducerCallbacks {
    type DeliveryOpaque = Box<InFlightRecord>;

    fn delivery(&self, result: &DeliveryResult<'_>, place: Box<InFlightRecord>) {
        if let Err((error, _)) = result {
            place.write.failed(place.index, error.clone());
        }
        place.write.ended();
    }
}

impl PendingDeliveries {
    /// Records are being sent, until [`PendingDeliveries::ended`] is called once more than there are records.
    pub fn new(failing: FailingWrites, is_of_many_topics: bool) -> Arc<PendingDeliveries> {
        Arc::new(PendingDeliveries {
            left: AtomicUsize::new(1),
            failed: Mutex::default(),
            done: Notify::new(),
            failing,
            is_of_many_topics,
        })
    }

    pub fn begun(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
    }

    pub fn failed(&self, index: usize, error: KafkaError) {
        let mut failed = self.failed.lock();
        let holds_up = match fate(&error) {
            RetryDecision::Refused(..) => false,
            RetryDecision::Topic(_) => !self.is_of_many_topics,
            RetryDecision::Again(_) | RetryDecision::Together(..) | RetryDecision::ClientLost(_) => true,
        };
        if holds_up && !failed.is_counted {
            failed.is_counted = true;
            self.failing.fetch_add(1, Ordering::AcqRel);
        }
        failed.records.push((index, error));
    }

    pub fn ended(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
    }

    /// Waits for all of them; returns those that the broker did not take.
    pub async fn finished(&self) -> Vec<(usize, KafkaError)> {
        while self.left.load(Ordering::Acquire) > 0 {
            self.done.notified().await;
        }
        let failed = std::mem::take(&mut *self.failed.lock());
        if failed.is_counted {
            self.failing.fetch_sub(1, Ordering::AcqRel);
        }
        failed.records
    }
}
