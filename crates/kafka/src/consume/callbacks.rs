//! The callbacks of the client: rebalances, commit responses, connection errors. All of them run on the polling thread,
//! within its calls.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdkafka::bindings;
use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Offset, Statistics, TopicPartitionList};
use thalweg_kit::clock;

use super::ConsumerState;
use super::commit_metadata::CommitMetadata;
use super::tracker::TopicPartition;
use crate::link::reason;

pub struct ConsumerCallbacks(pub Arc<ConsumerState>);

impl ClientContext for ConsumerCallbacks {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        self.0.link.log(level, facility, line);
        // Only the log line names the partition.
        if let Some((partition, at)) = reset(line) {
            self.0.reset(&partition, at);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.link.error(&error, reason);
    }

    fn stats(&self, statistics: Statistics) {
        self.0.ends.lock().report(&statistics);
    }
}

impl ConsumerContext for ConsumerCallbacks {
    fn pre_rebalance(&self, consumer: &BaseConsumer<ConsumerCallbacks>, rebalance: &Rebalance<'_>) {
        match rebalance {
            Rebalance::Assign(partitions) => self.0.before_assignment(consumer, partitions),
            Rebalance::Revoke(partitions) => self.revoked(consumer, partitions),
            Rebalance::Error(_) => {}
        }
    }

    fn post_rebalance(&self, consumer: &BaseConsumer<ConsumerCallbacks>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(partitions) = rebalance {
            // Each is resumed when its starting point is known; while fetching is on hold, together with all others.
            let _ = consumer.pause(partitions);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, offsets: &TopicPartitionList) {
        self.0.answered();
        let failed = result.err();
        for element in offsets.elements() {
            let error = element.error().err();
            let Some(error) = error.as_ref().or(failed.as_ref()) else {
                continue;
            };
            let partition = TopicPartition {
                topic: element.topic().into(),
                number: element.partition(),
            };
            let is_held = self.0.tracker.lock().uncommitted(&partition);
            let TopicPartition { topic, number } = partition;
            let is_passing = !self.0.is_assigned_by_hand && is_of_rebalance(error.rdkafka_error_code());
            if !is_held || is_passing {
                let component = self.0.link.component.title();
                tracing::debug!(component, "{topic}, partition {number}, was not committed: {error}");
                continue;
            }
            self.0.link.component.warn_limited("commit", 1, || {
                let why = reason(error);
                format!("the commit of {topic}, partition {number}, failed and is retried: {why}")
            });
        }
    }
}

impl ConsumerCallbacks {
    /// Another member will continue from the last commit, so confirmed offsets are committed first. This request is
    /// sent before the one that gives the partitions back, so its response need not be awaited.
    fn revoked(&self, consumer: &BaseConsumer<ConsumerCallbacks>, partitions: &TopicPartitionList) {
        let mut tracker = self.0.tracker.lock();
        // If the assignment was lost (after a session timeout), the partitions already belong to another member.
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

/// Whether the commit or the request belongs to a generation of the group that has just ended. Each rebalance has such
/// answers, and the next generation does what they refuse.
pub fn is_of_rebalance(error: Option<RDKafkaErrorCode>) -> bool {
    use RDKafkaErrorCode::{IllegalGeneration, RebalanceInProgress, UnknownMemberId};
    matches!(error, Some(RebalanceInProgress | IllegalGeneration | UnknownMemberId))
}

impl ConsumerState {
    /// Partitions are going to be assigned to this member. The client would start at the committed offset, even if it
    /// belongs to a deleted topic of the same name. Nothing is fetched until the starting point is known: the partition
    /// is paused before the assignment, and again after it in case the client did not know it yet. The offset is a
    /// number, because for any other start the client would query the broker, and seek to the answer whenever it
    /// arrives, overriding a seek made meanwhile and skipping all records in between.
    fn before_assignment(&self, consumer: &BaseConsumer<ConsumerCallbacks>, partitions: &TopicPartitionList) {
        // What the broker refused has been granted.
        *self.refused.lock() = None;
        let mut tracker = self.tracker.lock();
        of(partitions).for_each(|partition| tracker.assigned(partition));
        drop(tracker);
        let _ = consumer.pause(partitions);
        for mut partition in partitions.elements() {
            let _ = partition.set_offset(Offset::Offset(0));
        }
        self.probe_now.store(true, Ordering::Relaxed);
    }

    /// Assigns partitions without the group, as the group does it.
    pub fn assign_by_hand(
        &self,
        consumer: &BaseConsumer<ConsumerCallbacks>,
        partitions: &TopicPartitionList,
    ) -> KafkaResult<()> {
        self.before_assignment(consumer, partitions);
        consumer.assign(partitions)?;
        consumer.pause(partitions)
    }

    /// Handles an offset reset: the next offset does not exist, and the partition continues elsewhere.
    fn reset(&self, partition: &TopicPartition, at: Option<i64>) {
        let TopicPartition { topic, number } = partition;
        let at = at.unwrap_or(-1);
        {
            let mut tracker = self.tracker.lock();
            // Before the partition is placed, its position has no meaning.
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
                "{topic}, partition {number}: offset {at} no longer exists (its record was deleted before it was read, or the topic \
                 was recreated); reading continues at the oldest record"
            )
        });
    }

    /// Sends a commit; [`ConsumerCallbacks::commit_callback`] receives the response ([`send_commit`]).
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
            // This fails only for negative offsets, which no broker returns.
            let _ = offset.set_offset(Offset::Offset(*to));
            offset.set_metadata(mark.text());
            tracker.committing(partition, *to);
        }
        self.commits.lock().push_back(clock::now());
        match send_commit(consumer, &offsets) {
            Ok(()) => {}
            Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::NoOffset) => self.answered(),
            Err(error) => {
                self.answered();
                for (partition, ..) in &due {
                    tracker.uncommitted(partition);
                }
                self.link.component.warn_limited("commit", 1, || {
                    format!("the commit failed and is retried: {}", reason(&error))
                });
            }
        }
    }

    /// A commit was answered, or could not be sent.
    fn answered(&self) {
        if let Some(since) = self.commits.lock().pop_front() {
            self.meters.commit_time.observe(since.elapsed());
        }
    }
}

/// Commits like the library's own function, which requests no response because it uses events and not callbacks, so
/// neither success nor failure would be reported. The response to this one goes to the queue that is polled.
fn send_commit(consumer: &BaseConsumer<ConsumerCallbacks>, offsets: &TopicPartitionList) -> KafkaResult<()> {
    let client = consumer.client().native_ptr();
    // SAFETY: client and offsets outlive the call, which copies the offsets; the queue is reference counted, and
    // released once.
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

/// Parses `t [0]: offset reset (at offset 5 (leader epoch 0), broker 1) to …` into the partition and the missing
/// offset.
fn reset(line: &str) -> Option<(TopicPartition, Option<i64>)> {
    let (partition, rest) = line.split_once(": offset reset (at ")?;
    let (topic, number) = partition.strip_suffix(']')?.rsplit_once(" [")?;
    let partition = TopicPartition {
        // The name of a thread may precede it; topic names contain no spaces.
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
