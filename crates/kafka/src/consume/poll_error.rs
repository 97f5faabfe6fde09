//! Errors that the client reports between records, and their handling.
//!
//! | error | then |
//! |---|---|
//! | a record set with a wrong checksum | it is read again a few times; then the input ends, because the client would skip it |
//! | a compression that the client does not know | the input ends, because the client would skip the records |
//! | the client gave up | the input ends |
//! | missing permissions, a `session_timeout` that the broker does not take | shown until something is read, or the group assigns partitions |
//! | an answer to a generation of the group that has ended | nothing: each rebalance has such answers |
//! | anything else | logged; the client retries by itself |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use thalweg_record::{CacheLimits, Remembered};

use super::ConsumerState;
use super::callbacks::{ConsumerCallbacks, is_of_rebalance};
use super::tracker::{OffsetRange, TopicPartition};
use crate::link::{died_of, reason};

/// Maximum reads of a record set with a wrong checksum.
const TRIES_MAX: u32 = 5;
/// Maximum offsets remembered.
const DAMAGED_MAX: usize = 100;

/// What follows an error.
#[derive(Debug, PartialEq, Eq)]
pub enum PollAction {
    GoOn,
    /// Everything after the last good record is read again.
    ReadAgain,
}

/// Record sets with a wrong checksum: the number of reads, by their base offset.
#[derive(Debug)]
pub struct ChecksumFailures {
    tries: Remembered<Option<i64>, u32>,
    last: u32,
}

impl Default for ChecksumFailures {
    fn default() -> ChecksumFailures {
        ChecksumFailures {
            tries: Remembered::within(CacheLimits::entries(DAMAGED_MAX)),
            last: 0,
        }
    }
}

impl ChecksumFailures {
    /// Returns how often its checksum was wrong.
    fn again(&mut self, offset: Option<i64>) -> u32 {
        self.last = self.tries.get(&offset).copied().unwrap_or_default() + 1;
        self.tries.insert(offset, self.last, 0);
        self.last
    }

    /// The number of reads of the last one.
    pub fn tries(&self) -> u32 {
        self.last
    }
}

/// Why the broker refuses this client. The client reports it once, without the topic.
#[derive(Debug)]
pub struct BrokerRefusal {
    pub why: String,
    /// Topics that were read since.
    read: BTreeSet<Arc<str>>,
}

impl ConsumerState {
    /// Records were read from these topics. Once all topics were read, nothing is refused.
    pub fn read_of<'t>(&self, topics: impl Iterator<Item = &'t Arc<str>>) {
        let mut refused = self.refused.lock();
        if let Some(BrokerRefusal { read, .. }) = &mut *refused {
            read.extend(topics.cloned());
            if read.len() >= self.topics.load(Ordering::Relaxed) {
                *refused = None;
            }
        }
    }

    /// A partition was read to its end; the topic is unknown.
    fn read_to_end(&self) {
        if self.topics.load(Ordering::Relaxed) == 1 {
            *self.refused.lock() = None;
        }
    }
}

/// `gathered` is what was read and not passed on yet. `Err`: the records after the error must not be read.
pub fn after(
    error: &KafkaError,
    consumer: &BaseConsumer<ConsumerCallbacks>,
    shared: &ConsumerState,
    gathered: &[OffsetRange],
    damage: &mut ChecksumFailures,
) -> Result<PollAction, String> {
    if let KafkaError::PartitionEOF(_) = error {
        shared.read_to_end();
        return Ok(PollAction::GoOn);
    }
    shared.meters.poll_errors.inc();
    let why = reason(error);
    match error {
        KafkaError::MessageConsumption(RDKafkaErrorCode::NotImplemented) => Err(
            "records are compressed in a way that this build cannot read; configure the producer or the topic to use zstd, lz4, snappy or gzip"
                .to_owned(),
        ),
        KafkaError::MessageConsumptionFatal(_) => Err(format!(
            "the client gave up: {}; a restart begins at the last commit",
            died_of(consumer.client(), &why)
        )),
        KafkaError::MessageConsumption(RDKafkaErrorCode::BadMessage) => damaged(shared, gathered, damage),
        KafkaError::MessageConsumption(
            RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::GroupAuthorizationFailed
            | RDKafkaErrorCode::InvalidSessionTimeout,
        ) => {
            let why = refusal(error, &shared.link.heard());
            let read = BTreeSet::new();
            *shared.refused.lock() = Some(BrokerRefusal { why, read });
            Ok(PollAction::GoOn)
        }
        _ if is_of_rebalance(error.rdkafka_error_code()) => {
            let component = shared.link.component.title();
            tracing::debug!(component, "the group has moved on: {why}");
            Ok(PollAction::GoOn)
        }
        _ => {
            let component = &shared.link.component;
            component.warn_limited("poll", 1, || format!("fetching failed and is retried: {why}"));
            Ok(PollAction::GoOn)
        }
    }
}

fn refusal(error: &KafkaError, heard: &str) -> String {
    let cure = match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::InvalidSessionTimeout) => {
            return "the broker does not take this session_timeout; set one between its group.min.session.timeout.ms and \
                    group.max.session.timeout.ms"
                .to_owned();
        }
        Some(RDKafkaErrorCode::GroupAuthorizationFailed) => "the right to read in this consumer_group",
        _ => "the right to describe and read all of its topics",
    };
    format!("the broker denies reading ({heard}); grant this client {cure}")
}

fn damaged(
    shared: &ConsumerState,
    gathered: &[OffsetRange],
    damage: &mut ChecksumFailures,
) -> Result<PollAction, String> {
    let heard = shared.link.heard();
    let offset = set_offset(&heard);
    let mut places = shared.tracker.lock().places();
    places.extend(gathered.iter().map(|span| (span.partition.clone(), Some(span.to))));
    let place = place(&places, offset);
    let tries = damage.again(offset);
    if tries >= TRIES_MAX {
        return Err(format!(
            "{place} does not match its checksum after {tries} reads ({heard}); check the disk of the broker and the network; \
             to skip it, set the offset of the consumer group after it"
        ));
    }
    shared.link.component.warn_limited("checksum", 1, || {
        format!("{place} does not match its checksum and is read again ({heard})")
    });
    Ok(PollAction::ReadAgain)
}

/// Parses `MessageSet at offset 5 (100 bytes) failed CRC32C check …`, the only place where the client reports the
/// position.
fn set_offset(heard: &str) -> Option<i64> {
    let (_, rest) = heard.split_once(" at offset ")?;
    rest.split([' ', ':', ',']).next()?.parse().ok()
}

/// Describes the location of a record set by its base offset, as far as possible: the partition is not named, but it
/// must be one that was read up to this offset.
fn place(places: &BTreeMap<TopicPartition, Option<i64>>, offset: Option<i64>) -> String {
    let is_there = |next: Option<i64>| next.is_some() && next == offset;
    // Reading may have begun within the set, and records before it may be compacted away: then it may be in any
    // partition.
    let is_known = places.values().any(|next| is_there(*next));
    let found = places.iter().filter(|(_, next)| !is_known || is_there(**next));
    let found: Vec<String> = found
        .map(|(partition, _)| format!("{}, partition {}", partition.topic, partition.number))
        .collect();
    let offset = offset.map_or_else(|| "an unknown offset".to_owned(), |offset| format!("offset {offset}"));
    format!("the record set at {offset} of {}", found.join(" or of "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(topic: &str, number: i32, next: Option<i64>) -> (TopicPartition, Option<i64>) {
        let partition = TopicPartition {
            topic: topic.into(),
            number,
        };
        (partition, next)
    }

    #[test]
    fn the_place_of_a_record_set_is_told_as_far_as_it_is_known() {
        let heard = "MessageSet at offset 50 (100 bytes) failed CRC32C check (original 0x1 != calculated 0x2)";
        assert_eq!(set_offset(heard), Some(50));
        let mut places = BTreeMap::from([at("t", 0, Some(50)), at("t", 1, Some(7)), at("u", 0, None)]);
        assert_eq!(
            place(&places, Some(50)),
            "the record set at offset 50 of t, partition 0"
        );
        places.pop_first();
        assert_eq!(
            place(&places, Some(50)),
            "the record set at offset 50 of t, partition 1 or of u, partition 0"
        );
    }

    #[test]
    fn tries_are_counted_for_each_place() {
        let mut damage = ChecksumFailures::default();
        assert_eq!((damage.again(Some(5)), damage.again(Some(5))), (1, 2));
        assert_eq!(damage.again(Some(9)), 1);
        assert_eq!((damage.again(Some(5)), damage.tries()), (3, 3));
    }
}
