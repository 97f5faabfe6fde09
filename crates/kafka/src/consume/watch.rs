//! What the client calls back: partitions come and go, commits are answered, connections fail. All of it runs on the thread that
//! polls, within its calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};

use super::Shared;
use super::tracker::Partition;
use crate::link::reason;

pub struct Watch(pub Arc<Shared>);

impl ClientContext for Watch {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.0.link.log(level, facility, line);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.link.error(&error, reason);
    }
}

impl ConsumerContext for Watch {
    fn pre_rebalance(&self, consumer: &BaseConsumer<Watch>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(partitions) => {
                let mut tracker = self.0.tracker.lock();
                of(partitions).for_each(|partition| tracker.assigned(partition));
            }
            Rebalance::Revoke(partitions) => self.revoked(consumer, partitions),
            Rebalance::Error(_) => {}
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<Watch>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(partitions) = rebalance
            && self.0.holding.load(Ordering::Relaxed)
        {
            // They are resumed with all others.
            let _ = consumer.pause(partitions);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        self.0.answered();
        let failed = result.err().map(|error| reason(&error));
        for element in offsets.elements() {
            let error = element.error().err().map(|error| reason(&error));
            let Some(why) = error.or_else(|| failed.clone()) else {
                continue;
            };
            let partition = Partition {
                topic: element.topic().into(),
                number: element.partition(),
            };
            self.0.tracker.lock().uncommitted(&partition);
            let Partition { topic, number } = partition;
            self.0.link.component.warn_limited("commit", 1, || {
                format!(
                    "what was confirmed of {topic}, partition {number}, was not committed and is tried again: {why}"
                )
            });
        }
    }
}

impl Watch {
    /// Another member reads on where the last commit is, so what is confirmed is committed first. The request leaves before the
    /// one with which the partitions are given back, so the answer need not be waited for.
    fn revoked(&self, consumer: &BaseConsumer<Watch>, partitions: &TopicPartitionList) {
        let mut tracker = self.0.tracker.lock();
        // Taken away after a silence, they are another's already.
        if !consumer.assignment_lost() {
            let due = tracker.due();
            let own = |partition: &Partition| partitions.find_partition(&partition.topic, partition.number).is_some();
            let due = due.into_iter().filter(|(partition, _)| own(partition)).collect();
            self.0.commit(consumer, &mut tracker, due);
        }
        of(partitions).for_each(|partition| tracker.revoked(&partition));
    }
}

impl Shared {
    /// Sends a commit; [`Watch::commit_callback`] hears the answer.
    pub fn commit(&self, consumer: &BaseConsumer<Watch>, tracker: &mut super::Tracker, due: Vec<(Partition, i64)>) {
        if due.is_empty() {
            return;
        }
        let mut offsets = TopicPartitionList::with_capacity(due.len());
        for (partition, to) in &due {
            // Fails for an offset below zero only, which no broker gives.
            let _ = offsets.add_partition_offset(&partition.topic, partition.number, Offset::Offset(*to));
            tracker.committing(partition, *to);
        }
        self.commits.lock().push_back(Instant::now());
        match consumer.commit(&offsets, CommitMode::Async) {
            Ok(()) => {}
            Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::NoOffset) => self.answered(),
            Err(error) => {
                self.answered();
                due.iter().for_each(|(partition, _)| tracker.uncommitted(partition));
                self.link.component.warn_limited("commit", 1, || {
                    format!(
                        "what was confirmed was not committed and is tried again: {}",
                        reason(&error)
                    )
                });
            }
        }
    }
    /// A commit was answered, or none was sent.
    fn answered(&self) {
        if let Some(since) = self.commits.lock().pop_front() {
            self.meters.commit_time.observe(since.elapsed());
        }
    }
}

fn of(partitions: &TopicPartitionList) -> impl Iterator<Item = Partition> {
    let elements = partitions.elements();
    let partitions: Vec<Partition> = elements
        .iter()
        .map(|element| Partition {
            topic: element.topic().into(),
            number: element.partition(),
        })
        .collect();
    partitions.into_iter()
}
