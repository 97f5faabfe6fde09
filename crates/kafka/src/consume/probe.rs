//! One query of the brokers, on its own thread: which topics exist, where newly assigned partitions start, and whether
//! the group reads all partitions. The thread that drives the client must not wait for any of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::metadata::MetadataTopic;
use rdkafka::{Offset, TopicPartitionList};
use regex::RegexSet;
use thalweg_kit::clock;

use super::callbacks::ConsumerCallbacks;
use super::commit_metadata::CommitMetadata;
use super::coverage::GroupCoverage;
use super::identity::{IdentityMatch, TopicIdentities};
use super::starting_point::{CommittedOffset, StartingPoint, TopicHistory};
use super::tracker::{PartitionStart, SeekPosition, TopicPartition};
use super::{ConsumerState, StartOffset, TopicSelection};
use crate::admin::{self, GroupDescription, TopicDescription, TopicDescriptions};
use crate::link::{ANSWER, reason};

/// Maximum time to find starting points; the remaining partitions follow in the next probe.
const BEGINNINGS: Duration = Duration::from_secs(5);
/// Maximum unread partitions that are named.
const TOLD_MAX: usize = 3;
/// Maximum time to find the ends of partitions that are not fetched.
const ENDS: Duration = Duration::from_secs(1);

/// What to query.
pub struct ConsumerProbe {
    pub topics: Vec<String>,
    pub group: String,
    pub start: StartOffset,
    /// The selection, if the list of topics is to be queried.
    pub list: Option<RegexSet>,
    /// Whether the topics are those that expressions select: one that is gone is not missing.
    pub are_selected: bool,
    /// The partitions that are assigned by hand.
    pub by_hand: BTreeMap<String, BTreeSet<i32>>,
}

/// The results.
#[derive(Default)]
pub struct ConsumerProbeReport {
    /// The topics that expressions select, if they were listed.
    pub listed: Option<Vec<String>>,
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
        let listed = self.list.as_ref().map(|patterns| list(consumer, shared, patterns));
        let topics = match listed {
            None => self.topics.clone(),
            Some(Ok(listed)) => findings.listed.insert(listed).clone(),
            Some(Err(why)) => {
                findings.wrong = Some(why);
                return findings;
            }
        };
        if topics.is_empty() {
            findings.wrong =
                Some("no topic matches the expressions in topics; one that does is read once it exists".to_owned());
            return findings;
        }
        match describe(consumer, shared, &topics) {
            Ok(topics) => findings.topics = topics,
            Err(why) => {
                findings.wrong = Some(why);
                return findings;
            }
        }
        findings.wrong = findings
            .topics
            .iter()
            .find_map(|(name, topic)| self.trouble(name, topic.as_ref()));
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
        find_ends(consumer, shared);
        findings.found = match self.by_hand.is_empty() {
            true => self.find(consumer, shared, &findings.topics),
            false => Some(GroupCoverage::Covered),
        };
        findings
    }

    /// Returns why a topic cannot be read, or not all of its partitions.
    fn trouble(&self, topic: &str, found: Result<&TopicDescription, &RDKafkaErrorCode>) -> Option<String> {
        match found {
            Err(RDKafkaErrorCode::UnknownTopicOrPartition) if self.are_selected => None,
            Err(error) => trouble(topic, *error),
            Ok(description) => {
                let last = self.by_hand.get(topic)?.last().copied()?;
                let count = description.partitions;
                (last >= count).then(|| {
                    format!(
                        "the topic {topic} has {count} partitions and no partition {last}; it is read once it exists"
                    )
                })
            }
        }
    }

    /// Finds the starting points of newly assigned partitions. Also returns why this failed for some.
    fn place(
        &self,
        consumer: &BaseConsumer<ConsumerCallbacks>,
        shared: &ConsumerState,
        identities: &TopicIdentities,
        topics: &TopicDescriptions,
    ) -> (Vec<(PartitionStart, StartingPoint)>, Option<String>) {
        let mut wrong = None;
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
            let before = placed.len();
            if let Err(error) = self.place_in(consumer, &unplaced, begun, &mut placed) {
                let why = reason(&error);
                let why = format!("cannot determine where to start reading {name}, retrying: {why}");
                return (placed, Some(why));
            }
            if self.start == StartOffset::Committed && placed.len() - before < partitions.len() {
                let group = &self.group;
                wrong = Some(format!(
                    "the group {group} has committed no offset in some partitions of {name}, which are not read; commit one, or set \
                     start_offset to earliest or latest"
                ));
            }
        }
        (placed, wrong)
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
            starts_from_oldest: self.start != StartOffset::Latest,
        };
        for (partition, assignment) in partitions {
            let (beginning, mark) = topic.beginning(partition.number);
            if self.start == StartOffset::Committed && beginning.is_uncommitted() {
                continue;
            }
            // A seek in a partition that does not exist would only take time.
            if self.by_hand.contains_key(name) && partition.number >= now.partitions {
                continue;
            }
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
        let own_id = admin::member_id(consumer.client());
        let assigned = match admin::describe_group(consumer.client(), &self.group, ANSWER) {
            // The group does not know this member yet: the partitions may belong to one that has died.
            Ok(GroupDescription::Stable { members, .. })
                if own_none && !own_id.as_ref().is_some_and(|id| members.contains(id)) =>
            {
                return Some(GroupCoverage::Settling);
            }
            Ok(GroupDescription::Stable { assigned, .. }) => assigned,
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

/// Returns the topics that the expressions select. Blocks.
fn list(
    consumer: &BaseConsumer<ConsumerCallbacks>,
    shared: &ConsumerState,
    patterns: &RegexSet,
) -> Result<Vec<String>, String> {
    let metadata = shared.link.ask(consumer.client(), None)?;
    TopicSelection::matching(patterns, metadata.topics().iter().map(MetadataTopic::name))
}

fn describe(
    consumer: &BaseConsumer<ConsumerCallbacks>,
    shared: &ConsumerState,
    topics: &[String],
) -> Result<TopicDescriptions, String> {
    let client = consumer.client();
    let metadata = shared.link.ask(client, topics.first().map(String::as_str))?;
    admin::describe_topics(client, &metadata, topics, ANSWER).map_err(|error| {
        let told: Vec<&str> = topics.iter().take(TOLD_MAX).map(String::as_str).collect();
        let (topics, why) = (told.join(", "), reason(&error));
        format!("the broker does not describe {topics}, retrying: {why}")
    })
}

/// Queries where partitions end while fetching is on hold: the client does not learn it then.
fn find_ends(consumer: &BaseConsumer<ConsumerCallbacks>, shared: &ConsumerState) {
    if !shared.holding.load(Ordering::Relaxed) {
        return;
    }
    let begun = clock::now();
    let partitions = shared.tracker.lock().read();
    for partition in &partitions {
        let rest = ENDS.saturating_sub(begun.elapsed());
        if rest.is_zero() {
            return;
        }
        if let Ok(end) = end(consumer, partition, rest) {
            shared.ends.lock().found(partition, end);
        }
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
    let known = match consumer.committed_offsets(asked, timeout) {
        Ok(known) => known,
        // Nobody has joined or committed under this name yet.
        Err(error) if error.rdkafka_error_code() == Some(RDKafkaErrorCode::GroupIdNotFound) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
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
