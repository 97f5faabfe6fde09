//! One query of the brokers, on its own thread: which topics exist, where newly assigned partitions start, and whether
//! the group reads all partitions. The thread that drives the client must not wait for any of it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::{Offset, TopicPartitionList};
use thalweg_kit::clock;

use super::ConsumerState;
use super::callbacks::ConsumerCallbacks;
use super::commit_metadata::CommitMetadata;
use super::coverage::GroupCoverage;
use super::identity::{IdentityMatch, TopicIdentities};
use super::starting_point::{CommittedOffset, StartingPoint, TopicHistory};
use super::tracker::{PartitionStart, SeekPosition, TopicPartition};
use crate::admin::{self, GroupDescription, TopicDescription, TopicDescriptions};
use crate::link::{ANSWER, reason};

/// Maximum time to find starting points; the remaining partitions follow in the next probe.
const BEGINNINGS: Duration = Duration::from_secs(5);
/// Maximum unread partitions that are named.
const TOLD_MAX: usize = 3;

/// What to query.
pub struct ConsumerProbe {
    pub topics: Vec<String>,
    pub group: String,
    pub starts_from_oldest: bool,
}

/// The results.
#[derive(Default)]
pub struct ConsumerProbeReport {
    pub topics: TopicDescriptions,
    /// Why nothing can be read, or not everything.
    pub wrong: Option<String>,
    pub placed: Vec<(PartitionStart, StartingPoint)>,
    pub found: Option<GroupCoverage>,
}

/// Newly assigned partitions of a topic.
struct UnresolvedPartitions<'a> {
    name: &'a str,
    now: TopicDescription,
    appeared: bool,
    /// With the numbers of their assignments.
    partitions: &'a [(TopicPartition, u64)],
}

impl ConsumerProbe {
    /// Runs the probe. Blocks for a bounded time. `identities` are the known topics.
    pub fn look(
        &self,
        consumer: &BaseConsumer<ConsumerCallbacks>,
        shared: &ConsumerState,
        identities: &TopicIdentities,
    ) -> ConsumerProbeReport {
        let mut findings = ConsumerProbeReport::default();
        match self.describe(consumer, shared) {
            Ok(topics) => findings.topics = topics,
            Err(why) => {
                findings.wrong = Some(why);
                return findings;
            }
        }
        findings.wrong = findings
            .topics
            .iter()
            .find_map(|(name, topic)| trouble(name, *topic.as_ref().err()?));
        // A member that leaves the group waits for this probe.
        let is_leaving = || shared.draining.load(Ordering::Relaxed);
        if is_leaving() {
            return findings;
        }
        let (placed, failed) = self.place(consumer, shared, identities, &findings.topics);
        findings.placed = placed;
        findings.wrong = findings.wrong.take().or(failed);
        if is_leaving() {
            return findings;
        }
        findings.found = self.find(consumer, shared, &findings.topics);
        findings
    }

    fn describe(
        &self,
        consumer: &BaseConsumer<ConsumerCallbacks>,
        shared: &ConsumerState,
    ) -> Result<TopicDescriptions, String> {
        let client = consumer.client();
        let metadata = shared.link.ask(client, self.topics.first().map(String::as_str))?;
        let topics = admin::describe_topics(client, &metadata, &self.topics, ANSWER);
        topics.map_err(|error| {
            let (topics, why) = (self.topics.join(", "), reason(&error));
            format!("the broker does not describe {topics}, retrying: {why}")
        })
    }

    /// Finds the starting points of newly assigned partitions. Also returns why this failed for some.
    fn place(
        &self,
        consumer: &BaseConsumer<ConsumerCallbacks>,
        shared: &ConsumerState,
        identities: &TopicIdentities,
        topics: &TopicDescriptions,
    ) -> (Vec<(PartitionStart, StartingPoint)>, Option<String>) {
        let mut unplaced: BTreeMap<String, Vec<(TopicPartition, u64)>> = BTreeMap::new();
        for (partition, assignment) in shared.tracker.lock().unplaced() {
            let of_topic = unplaced.entry(partition.topic.to_string()).or_default();
            of_topic.push((partition, assignment));
        }
        let (begun, mut placed) = (clock::now(), Vec::new());
        for (name, partitions) in &unplaced {
            let Some(Ok(now)) = topics.get(name) else { continue };
            if identities.compare(name, now) == IdentityMatch::Outdated {
                continue;
            }
            let unplaced = UnresolvedPartitions {
                name,
                now: *now,
                appeared: identities.appeared(name, now),
                partitions,
            };
            if let Err(error) = self.place_in(consumer, &unplaced, begun, &mut placed) {
                let why = reason(&error);
                let why = format!("cannot determine where to start reading {name}, retrying: {why}");
                return (placed, Some(why));
            }
        }
        (placed, None)
    }

    fn place_in(
        &self,
        consumer: &BaseConsumer<ConsumerCallbacks>,
        unplaced: &UnresolvedPartitions<'_>,
        begun: Instant,
        placed: &mut Vec<(PartitionStart, StartingPoint)>,
    ) -> KafkaResult<()> {
        let UnresolvedPartitions {
            name,
            now,
            appeared,
            partitions,
        } = *unplaced;
        let rest = || BEGINNINGS.saturating_sub(begun.elapsed());
        let commits = commits(consumer, name, now.partitions, partitions, rest())?;
        let topic = TopicHistory {
            now,
            commits: &commits,
            appeared,
            starts_from_oldest: self.starts_from_oldest,
        };
        for (partition, assignment) in partitions {
            let (beginning, mark) = topic.beginning(partition.number);
            let (start, is_to_be_committed) = match beginning {
                StartingPoint::Committed { offset, is_marked } => (SeekPosition::At(offset), !is_marked),
                // A new topic starts with this offset. Querying its oldest offset was rejected, because the response
                // may be of the old topic. Committing it tells a restart that the group has started.
                StartingPoint::Recreated { .. } | StartingPoint::First => (SeekPosition::At(0), true),
                StartingPoint::Oldest => (SeekPosition::Oldest, false),
                // Without this commit the group would start at the end as it is after a restart, and would skip the
                // records in between.
                StartingPoint::Newest => (SeekPosition::At(end(consumer, partition, rest())?), true),
            };
            let placement = PartitionStart {
                partition: partition.clone(),
                assignment: *assignment,
                mark,
                start,
                is_to_be_committed,
            };
            placed.push((placement, beginning));
        }
        Ok(())
    }

    /// Returns `None` if the coverage is unknown.
    fn find(
        &self,
        consumer: &BaseConsumer<ConsumerCallbacks>,
        shared: &ConsumerState,
        topics: &TopicDescriptions,
    ) -> Option<GroupCoverage> {
        let mut others = Vec::new();
        let own_none;
        {
            let tracker = shared.tracker.lock();
            own_none = tracker.is_empty();
            for (name, topic) in topics {
                let partitions = 0..topic.map_or(0, |topic| topic.partitions);
                others.extend(
                    partitions
                        .filter(|number| !tracker.has(name, *number))
                        .map(|number| (name, number)),
                );
            }
        }
        if others.is_empty() {
            return Some(GroupCoverage::Covered);
        }
        let assigned = match admin::describe_group(consumer.client(), &self.group, ANSWER) {
            Ok(GroupDescription::Stable(assigned)) => assigned,
            // This member's partitions are read; the others are being assigned.
            Ok(GroupDescription::Unsettled) if own_none => return Some(GroupCoverage::Settling),
            Ok(GroupDescription::Unsettled) | Err(_) => return None,
        };
        others.retain(|(name, number)| !assigned.contains(&((*name).clone(), *number)));
        let told = others.iter().take(TOLD_MAX);
        let told: Vec<String> = told
            .map(|(name, number)| format!("partition {number} of {name}"))
            .collect();
        Some(match others.len() {
            0 => GroupCoverage::Covered,
            count => GroupCoverage::Bare {
                partitions: match count - told.len() {
                    0 => told.join(", "),
                    more => format!("{} (and {more} more)", told.join(", ")),
                },
                own_none,
            },
        })
    }
}

fn trouble(topic: &str, error: RDKafkaErrorCode) -> Option<String> {
    match error {
        RDKafkaErrorCode::UnknownTopicOrPartition => {
            Some(format!("the topic {topic} does not exist; it is read once it does"))
        }
        RDKafkaErrorCode::TopicAuthorizationFailed => Some(format!(
            "this client has no access to the topic {topic}; grant it the right to describe and read it"
        )),
        // For example, a topic being created: it exists, and its partitions will show the rest.
        _ => None,
    }
}

/// Returns the offsets that the group has committed in a topic.
fn commits(
    consumer: &BaseConsumer<ConsumerCallbacks>,
    topic: &str,
    count: i32,
    assigned: &[(TopicPartition, u64)],
    timeout: Duration,
) -> KafkaResult<Vec<CommittedOffset>> {
    let mut asked = TopicPartitionList::new();
    for number in 0..count {
        asked.add_partition(topic, number);
    }
    // The description may be older than the assignment.
    for (partition, _) in assigned.iter().filter(|(partition, _)| partition.number >= count) {
        asked.add_partition(topic, partition.number);
    }
    let known = consumer.committed_offsets(asked, timeout)?;
    let mut commits = Vec::new();
    // SAFETY: the list is valid and unchanged until the end of this function.
    for element in unsafe { admin::partitions(known.ptr()) } {
        match RDKafkaErrorCode::from(element.err) {
            RDKafkaErrorCode::NoError => {}
            error => return Err(KafkaError::OffsetFetch(error)),
        }
        if let Offset::Offset(offset) = Offset::from_raw(element.offset) {
            commits.push(CommittedOffset {
                partition: element.partition,
                offset,
                mark: mark(element),
            });
        }
    }
    Ok(commits)
}

/// The library's own accessor was rejected, because it assumes that every client writes UTF-8.
fn mark(element: &rdkafka::bindings::rd_kafka_topic_partition_t) -> Option<CommitMetadata> {
    if element.metadata.is_null() {
        return None;
    }
    // SAFETY: the metadata has as many bytes as the element says, and is valid as long as the element.
    let bytes = unsafe { std::slice::from_raw_parts(element.metadata.cast::<u8>(), element.metadata_size) };
    CommitMetadata::parse(std::str::from_utf8(bytes).ok()?)
}

fn end(consumer: &BaseConsumer<ConsumerCallbacks>, partition: &TopicPartition, timeout: Duration) -> KafkaResult<i64> {
    let (_, end) = consumer.fetch_watermarks(&partition.topic, partition.number, timeout)?;
    Ok(end)
}
