//! What the client says between records, and what is done about it.
//!
//! | error | then |
//! |---|---|
//! | a record set with a wrong checksum | it is read again, a few times; then the input ends, since the client would pass over it |
//! | a compression that this build does not read | the input ends, since the client would pass over it |
//! | the client gave up | the input ends |
//! | missing rights | shown until something is read, or the group gives partitions |
//! | anything else | told; the client tries again by itself |

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};

use super::ConsumerState;
use super::callbacks::ConsumerCallbacks;
use super::tracker::{OffsetRange, TopicPartition};
use crate::link::{died_of, reason};

/// So often a record set may be wrong.
const TRIES_MAX: u32 = 5;
/// Places that are remembered.
const DAMAGED_MAX: usize = 100;

/// What follows an error.
#[derive(Debug, PartialEq, Eq)]
pub enum PollAction {
    GoOn,
    /// All that was read behind the last good record is read again.
    ReadAgain,
}

/// Record sets that do not fit their checksum: how often they were read, by the offset where they begin.
#[derive(Debug, Default)]
pub struct ChecksumFailures {
    tries: BTreeMap<Option<i64>, u32>,
    last: u32,
}

impl ChecksumFailures {
    /// Returns how often it was found wrong.
    fn again(&mut self, offset: Option<i64>) -> u32 {
        if self.tries.len() >= DAMAGED_MAX {
            self.tries.clear();
        }
        let tries = self.tries.entry(offset).or_default();
        *tries += 1;
        self.last = *tries;
        self.last
    }

    /// Of the last one.
    pub fn tries(&self) -> u32 {
        self.last
    }
}

/// Rights that are missing. The client tells it once, and not of which topic.
#[derive(Debug)]
pub struct AuthorizationFailure {
    pub why: String,
    /// Topics of which something was read since.
    read: BTreeSet<Arc<str>>,
}

impl ConsumerState {
    /// Something was read of these topics. Once it is so of all, no right is missing any more.
    pub fn read_of<'t>(&self, topics: impl Iterator<Item = &'t Arc<str>>) {
        let mut denied = self.denied.lock();
        if let Some(AuthorizationFailure { read, .. }) = &mut *denied {
            read.extend(topics.cloned());
            if read.len() >= self.topics {
                *denied = None;
            }
        }
    }

    /// A partition was read to its end; of which topic, nobody says.
    fn read_to_end(&self) {
        if self.topics == 1 {
            *self.denied.lock() = None;
        }
    }
}

/// `gathered`: what was read and is not passed on yet. `Err`: what follows the error must not be read.
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
            "records are compressed with zstd, which this build does not read; let the producer or the topic use lz4, snappy or gzip"
                .to_owned(),
        ),
        KafkaError::MessageConsumptionFatal(_) => Err(format!(
            "the client gave up: {}; a restart begins at the last commit",
            died_of(consumer.client(), &why)
        )),
        KafkaError::MessageConsumption(RDKafkaErrorCode::BadMessage) => damaged(shared, gathered, damage),
        KafkaError::MessageConsumption(
            RDKafkaErrorCode::TopicAuthorizationFailed | RDKafkaErrorCode::GroupAuthorizationFailed,
        ) => {
            let why = denied(error, &shared.link.heard());
            let read = BTreeSet::new();
            *shared.denied.lock() = Some(AuthorizationFailure { why, read });
            Ok(PollAction::GoOn)
        }
        _ => {
            let component = &shared.link.component;
            component.warn_limited("poll", 1, || format!("fetching failed, it is tried again: {why}"));
            Ok(PollAction::GoOn)
        }
    }
}

fn denied(error: &KafkaError, heard: &str) -> String {
    let cure = match error.rdkafka_error_code() {
        Some(RDKafkaErrorCode::GroupAuthorizationFailed) => "the right to read in this consumer_group",
        _ => "the right to describe and read all of its topics",
    };
    format!("the broker lets nothing be read ({heard}); give this client {cure}")
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
            "{place} does not fit its checksum, and was read {tries} times ({heard}); look at the disk of the broker and at the \
             network; to pass over it, set the offset of the consumer group behind it"
        ));
    }
    shared.link.component.warn_limited("checksum", 1, || {
        format!("{place} does not fit its checksum and is read again ({heard})")
    });
    Ok(PollAction::ReadAgain)
}

/// Of `MessageSet at offset 5 (100 bytes) failed CRC32C check …`, the client's only word on where it is.
fn set_offset(heard: &str) -> Option<i64> {
    let (_, rest) = heard.split_once(" at offset ")?;
    rest.split([' ', ':', ',']).next()?.parse().ok()
}

/// Where a record set lies that begins at an offset, as far as it can be told: the partition is not named, but it is one that was
/// read up to there.
fn place(places: &BTreeMap<TopicPartition, Option<i64>>, offset: Option<i64>) -> String {
    let is_there = |next: Option<i64>| next.is_some() && next == offset;
    // Reading may have begun within the set, and what lies before it may be compacted away: then it may be any of them.
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
