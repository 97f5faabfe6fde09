//! Routes delivery reports to the write that waits for them. They arrive on the client's thread, record by record.

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

/// A record in flight: its write, and its index in it.
pub struct InFlightRecord {
    pub write: Arc<PendingDeliveries>,
    pub index: usize,
}

/// The number of writes in flight with a temporary failure. A write counts from its first failed record, because many
/// newer records could be sent before its other reports arrive.
pub type FailingWrites = Arc<AtomicUsize>;

/// The records of a write that are in flight.
pub struct PendingDeliveries {
    /// The number of records in flight, plus one while they are being sent.
    left: AtomicUsize,
    failed: Mutex<FailedRecords>,
    done: Notify,
    failing: FailingWrites,
    /// A rejected topic does not delay others.
    is_of_many_topics: bool,
}

#[derive(Default)]
struct FailedRecords {
    records: Vec<(usize, KafkaError)>,
    /// Whether the write is counted in `failing`.
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
    /// Starts with a count of one for the sender, so [`PendingDeliveries::ended`] is called once per record and once
    /// more.
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

    /// Waits for all reports; returns the failed records.
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
