//! What the client calls back: partitions come and go, commits are answered, connections fail. All of it runs on the thread that
//! polls, within its calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rdkafka::bindings;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};

use super::ConsumerState;
use super::commit_metadata::CommitMetadata;
use super::tracker::TopicPartition;
use crate::link::reason;

pub struct ConsumerCallbacks(pub Arc<ConsumerState>);

impl ClientContext for ConsumerCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.0.link.log(level, facility, line);
        // Nowhere else the client says which partition it was.
        if let Some((partition, at)) = reset(line) {
            self.0.reset(&partition, at);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.link.error(&error, reason);
    }
}

impl ConsumerContext for ConsumerCallbacks {
    fn pre_rebalance(&self, consumer: &BaseConsumer<ConsumerCallbacks>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(partitions) => {
                // Rights that were missing are there.
                *self.0.denied.lock() = None;
                let mut tracker = self.0.tracker.lock();
                of(partitions).for_each(|partition| tracker.assigned(partition));
                drop(tracker);
                // The client would begin at what is committed, whatever topic that was in. Nothing is fetched until it is known better:
                // paused before it is assigned, and again behind it in case the client did not know it yet. The place is a number, as
                // the client would ask the broker where any other one is, and with the answer, however late, go there again, away from
                // where it was told to read meanwhile, and over all records between.
                let _ = consumer.pause(partitions);
                for mut partition in partitions.elements() {
                    let _ = partition.set_offset(Offset::Offset(0));
                }
                self.0.probe_now.store(true, Ordering::Relaxed);
            }
            Rebalance::Revoke(partitions) => self.revoked(consumer, partitions),
            Rebalance::Error(_) => {}
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<ConsumerCallbacks>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(partitions) = rebalance {
            // Each is resumed when it is known where it begins; while nothing is to be fetched, with all others.
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
            let partition = TopicPartition {
                topic: element.topic().into(),
                number: element.partition(),
            };
            self.0.tracker.lock().uncommitted(&partition);
            let TopicPartition { topic, number } = partition;
            self.0.link.component.warn_limited("commit", 1, || {
                format!(
                    "what was confirmed of {topic}, partition {number}, was not committed and is tried again: {why}"
                )
            });
        }
    }
}

impl ConsumerCallbacks {
    /// Another member reads on where the last commit is, so what is confirmed is committed first. The request leaves before the
    /// one with which the partitions are given back, so the answer need not be waited for.
    fn revoked(&self, consumer: &BaseConsumer<ConsumerCallbacks>, partitions: &TopicPartitionList) {
        let mut tracker = self.0.tracker.lock();
        // Taken away after a silence, they are another's already.
        if !consumer.assignment_lost() {
            let due = tracker.due();
            let own =
                |partition: &TopicPartition| partitions.find_partition(&partition.topic, partition.number).is_some();
            let due = due.into_iter().filter(|(partition, ..)| own(partition)).collect();
            self.0.commit(consumer, &mut tracker, due);
        }
        of(partitions).for_each(|partition| tracker.revoked(&partition));
    }
}

impl ConsumerState {
    /// A partition goes on elsewhere, since what was to come next is not there.
    fn reset(&self, partition: &TopicPartition, at: Option<i64>) {
        let TopicPartition { topic, number } = partition;
        let at = at.unwrap_or(-1);
        {
            let mut tracker = self.tracker.lock();
            // Where it is until then is nobody's place.
            if !tracker.is_placed(partition) {
                return;
            }
            tracker.lost(partition, at);
        }
        self.meters.offset_resets.inc();
        self.was_reset.store(true, Ordering::Relaxed);
        self.probe_now.store(true, Ordering::Relaxed);
        self.link.component.warn_limited("reset", 1, || {
            format!(
                "{topic}, partition {number}: offset {at} is not there any more (it was deleted before it was read, or the topic was \
                 made anew); it is read on from the oldest record"
            )
        });
    }

    /// Sends a commit; [`ConsumerCallbacks::commit_callback`] hears the answer ([`send_commit`]).
    pub fn commit(
        &self,
        consumer: &BaseConsumer<ConsumerCallbacks>,
        tracker: &mut super::OffsetTracker,
        due: Vec<(TopicPartition, i64, CommitMetadata)>,
    ) {
        if due.is_empty() {
            return;
        }
        let mut offsets = TopicPartitionList::with_capacity(due.len());
        for (partition, to, mark) in &due {
            let mut offset = offsets.add_partition(&partition.topic, partition.number);
            // Fails for an offset below zero only, which no broker gives.
            let _ = offset.set_offset(Offset::Offset(*to));
            offset.set_metadata(mark.text());
            tracker.committing(partition, *to);
        }
        self.commits.lock().push_back(Instant::now());
        match send_commit(consumer, &offsets) {
            Ok(()) => {}
            Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::NoOffset) => self.answered(),
            Err(error) => {
                self.answered();
                due.iter().for_each(|(partition, ..)| tracker.uncommitted(partition));
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

/// As the library's own commit, which asks for no answer since it takes events and no callbacks: neither a success nor a failure
/// would be heard of. The answer to this one comes to the queue that is polled.
fn send_commit(consumer: &BaseConsumer<ConsumerCallbacks>, offsets: &TopicPartitionList) -> KafkaResult<()> {
    let client = consumer.client().native_ptr();
    // SAFETY: client and offsets outlive the call, which copies the offsets; the queue is counted, and let go once.
    let code = unsafe {
        let queue = bindings::rd_kafka_queue_get_consumer(client);
        if queue.is_null() {
            return Err(KafkaError::ConsumerCommit(RDKafkaErrorCode::UnknownGroup));
        }
        let code = bindings::rd_kafka_commit_queue(client, offsets.ptr(), queue, None, std::ptr::null_mut());
        bindings::rd_kafka_queue_destroy(queue);
        code
    };
    match RDKafkaErrorCode::from(code) {
        RDKafkaErrorCode::NoError => Ok(()),
        error => Err(KafkaError::ConsumerCommit(error)),
    }
}

/// Of `t [0]: offset reset (at offset 5 (leader epoch 0), broker 1) to …`: the partition, and the offset that was not there.
fn reset(line: &str) -> Option<(TopicPartition, Option<i64>)> {
    let (partition, rest) = line.split_once(": offset reset (at ")?;
    let (topic, number) = partition.strip_suffix(']')?.rsplit_once(" [")?;
    let partition = TopicPartition {
        // What stands before it is the name of a thread; names of topics have no spaces.
        topic: topic.rsplit(' ').next()?.into(),
        number: number.parse().ok()?,
    };
    let at = rest.strip_prefix("offset ")?.split([' ', ',', ')']).next();
    Some((partition, at.and_then(|at| at.parse().ok())))
}

fn of(partitions: &TopicPartitionList) -> impl Iterator<Item = TopicPartition> {
    let elements = partitions.elements();
    let partitions: Vec<TopicPartition> = elements
        .iter()
        .map(|element| TopicPartition {
            topic: element.topic().into(),
            number: element.partition(),
        })
        .collect();
    partitions.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clients_line_of_a_reset_names_partition_and_offset() {
        let line = "[thrd:main]: plant.a-b_c [12]: offset reset (at offset 5 (leader epoch 0), broker 1) to offset BEGINNING \
                    (leader epoch -1): fetch failed due to requested offset not available on the broker: Broker: Offset out of range";
        let partition = TopicPartition {
            topic: "plant.a-b_c".into(),
            number: 12,
        };
        assert_eq!(reset(line), Some((partition.clone(), Some(5))));
        let without_place = line.replace("offset 5 (", "offset END (");
        assert_eq!(reset(&without_place), Some((partition, None)));
        assert_eq!(reset("[thrd:main]: t [0]: something else"), None);
    }
}
