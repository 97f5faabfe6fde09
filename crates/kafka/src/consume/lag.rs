//! The lag of each partition of this member: how many offsets lie between the confirmed one and the end.
//!
//! The end is the offset up to which transactions are decided. The last offsets of a transaction belong to its marker,
//! which is no record, so a confirmed offset never reaches that end. Therefore the lag of a partition that was fetched
//! to its end is counted up to the last record that was read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::Statistics;
use thalweg_flow::Component;
use thalweg_kit::clock;

use super::ConsumerState;
use super::tracker::{OffsetTracker, TopicPartition};

/// An end that was queried counts for this long if it is beyond the one that the client reports.
const FOUND_COUNTS: Duration = Duration::from_secs(10);

/// Where partitions end, by topic and number.
#[derive(Debug, Default)]
pub struct PartitionEnds(BTreeMap<TopicPartition, PartitionEnd>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PartitionEnd {
    /// The offset after the last one that can be read.
    end: i64,
    /// The oldest offset that can be read; 0 if unknown.
    oldest: i64,
    /// Whether the client has passed on all records up to the end.
    is_read: bool,
    /// When the end was queried, if it was.
    found: Option<Instant>,
}

impl PartitionEnds {
    /// Takes over what the client reports, which is all of its partitions.
    pub fn report(&mut self, statistics: &Statistics) {
        let (now, before) = (clock::now(), std::mem::take(&mut self.0));
        for topic in statistics.topics.values() {
            for partition in topic.partitions.values() {
                let ends = [partition.ls_offset, partition.hi_offset];
                let Some(end) = ends.into_iter().find(|offset| *offset >= 0) else {
                    continue;
                };
                let is_read = partition.fetchq_cnt == 0 && partition.next_offset >= end;
                let end = PartitionEnd {
                    end,
                    oldest: partition.lo_offset.max(0),
                    is_read,
                    found: None,
                };
                let partition = TopicPartition {
                    topic: topic.topic.as_str().into(),
                    number: partition.partition,
                };
                // While nothing is fetched, the client reports the end of the last fetch.
                let is_newer = |known: &&PartitionEnd| {
                    let found = known.found.map(|found| now.saturating_duration_since(found));
                    known.end > end.end && found.is_some_and(|age| age < FOUND_COUNTS)
                };
                let newer = before.get(&partition).filter(is_newer).copied();
                self.0.insert(partition, newer.unwrap_or(end));
            }
        }
    }

    /// Sets the end of a partition that is not fetched at the moment.
    pub fn found(&mut self, partition: &TopicPartition, end: i64) {
        let known = self.0.get(partition).copied();
        if known.is_none_or(|known| end >= known.end) {
            let found = PartitionEnd {
                end,
                oldest: known.map_or(0, |known| known.oldest),
                is_read: known.is_some_and(|known| known.is_read && known.end == end),
                found: Some(clock::now()),
            };
            self.0.insert(partition.clone(), found);
        }
    }

    /// Returns the lag of each partition that is read and whose end is known.
    fn lags(&self, tracker: &OffsetTracker) -> Vec<(TopicPartition, i64)> {
        let lags = self.0.iter().filter_map(|(partition, end)| {
            let progress = tracker.progress(partition)?;
            let confirmed = progress.confirmed.or(progress.next).unwrap_or(end.oldest);
            let read_to = progress.next.unwrap_or(confirmed);
            let last = if end.is_read && !progress.is_gathered {
                read_to
            } else {
                end.end
            };
            Some((partition.clone(), (last - confirmed).max(0)))
        });
        lags.collect()
    }
}

/// Exports the gauge of an input, for as long as it runs.
pub fn export(shared: &Arc<ConsumerState>, component: &Component) {
    let (shared, id, doc) = (Arc::downgrade(shared), component.id.clone(), shared.meters.lag);
    let labels = |id: &thalweg_telemetry::ComponentId| {
        let mut labels = vec![("label", id.label.clone()), ("path", id.path.clone())];
        labels.extend(id.flow.clone().map(|flow| ("flow", flow)));
        labels
    };
    let own = labels(&id);
    let own: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
    component.metrics.tell_of(&doc, &own, move |to| {
        let Some(shared) = shared.upgrade() else { return };
        let lags = {
            let tracker = shared.tracker.lock();
            shared.ends.lock().lags(&tracker)
        };
        let own = labels(&id);
        for (TopicPartition { topic, number }, lag) in lags {
            let number = number.to_string();
            let mut labels: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
            labels.extend([("topic", &*topic), ("partition", number.as_str())]);
            to.gauge(&doc, &labels, lag as f64);
        }
    });
}

#[cfg(test)]
mod tests {
    use thalweg_record::AckResult;

    use super::*;
    use crate::consume::commit_metadata::CommitMetadata;
    use crate::consume::tracker::{OffsetRange, PartitionStart, SeekPosition};

    fn partition() -> TopicPartition {
        TopicPartition {
            topic: "t".into(),
            number: 0,
        }
    }

    /// A partition that is read from this offset.
    fn tracker(at: i64) -> OffsetTracker {
        let mut tracker = OffsetTracker::default();
        tracker.assigned(partition());
        let [(partition, assignment)] = tracker.unplaced().try_into().unwrap();
        let mark = CommitMetadata {
            topic: None,
            newest_below: 0,
        };
        let start = SeekPosition::At(at);
        tracker.placed(&PartitionStart {
            partition: partition.clone(),
            assignment,
            mark,
            start,
            is_to_be_committed: false,
        });
        tracker.rewound(&partition, start);
        tracker
    }

    fn send(tracker: &mut OffsetTracker, from: i64, to: i64) -> u64 {
        let partition = partition();
        tracker.sent(&[OffsetRange { partition, from, to }])
    }

    fn statistics(end: i64, next: i64, queued: i64) -> Statistics {
        let partition = rdkafka::statistics::Partition {
            fetchq_cnt: queued,
            next_offset: next,
            // Another transaction has begun.
            hi_offset: end + 1,
            ls_offset: end,
            ..Default::default()
        };
        let topic = rdkafka::statistics::Topic {
            topic: "t".to_owned(),
            partitions: [(0, partition)].into(),
            ..Default::default()
        };
        Statistics {
            topics: [("t".to_owned(), topic)].into(),
            ..Default::default()
        }
    }

    fn lag(ends: &PartitionEnds, tracker: &OffsetTracker) -> Vec<i64> {
        ends.lags(tracker).into_iter().map(|(_, lag)| lag).collect()
    }

    #[test]
    fn it_is_what_is_not_confirmed_and_ends_at_the_last_record() {
        let (mut ends, mut tracker) = (PartitionEnds::default(), tracker(10));
        assert!(lag(&ends, &tracker).is_empty(), "the end is unknown");
        // The marker of a transaction is at offset 19.
        ends.report(&statistics(20, 15, 3));
        assert_eq!(lag(&ends, &tracker), [10]);
        let first = send(&mut tracker, 10, 15);
        tracker.settled(first, AckResult::Acked);
        assert_eq!(lag(&ends, &tracker), [5]);
        let second = send(&mut tracker, 15, 19);
        ends.report(&statistics(20, 20, 0));
        assert_eq!(lag(&ends, &tracker), [4], "they are in the flow");
        tracker.settled(second, AckResult::Acked);
        assert_eq!(lag(&ends, &tracker), [0]);
    }

    #[test]
    fn after_a_restart_behind_a_transaction_it_is_0() {
        let (mut ends, tracker) = (PartitionEnds::default(), tracker(19));
        ends.report(&statistics(20, 20, 0));
        assert_eq!(lag(&ends, &tracker), [0]);
    }

    #[test]
    fn records_that_were_read_and_not_passed_on_count() {
        let (mut ends, mut tracker) = (PartitionEnds::default(), tracker(10));
        ends.report(&statistics(13, 13, 0));
        tracker.gathered(&partition());
        assert_eq!(lag(&ends, &tracker), [3]);
        let sent = send(&mut tracker, 10, 13);
        assert_eq!(lag(&ends, &tracker), [3]);
        tracker.settled(sent, AckResult::Acked);
        assert_eq!(lag(&ends, &tracker), [0]);
    }

    #[test]
    fn it_grows_while_nothing_is_fetched() {
        let (mut ends, tracker) = (PartitionEnds::default(), tracker(10));
        ends.report(&statistics(13, 13, 0));
        ends.found(&partition(), 1000);
        assert_eq!(lag(&ends, &tracker), [990]);
        // The client knows only what it fetched.
        ends.report(&statistics(13, 13, 0));
        assert_eq!(lag(&ends, &tracker), [990]);
        ends.report(&statistics(1001, 13, 0));
        assert_eq!(lag(&ends, &tracker), [991]);
        ends.report(&Statistics::default());
        assert!(ends.0.is_empty(), "what the client does not have is forgotten");
    }

    #[test]
    fn a_partition_that_was_given_back_has_none() {
        let (mut ends, mut tracker) = (PartitionEnds::default(), tracker(10));
        ends.report(&statistics(13, 13, 0));
        tracker.revoked(&partition());
        assert!(lag(&ends, &tracker).is_empty());
    }
}
