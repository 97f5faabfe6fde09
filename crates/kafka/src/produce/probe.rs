//! Queries to a broker while writes continue: whether it responds, which rejected topics exist again, and why records
//! are not confirmed. The client does not report the last: records that wait for a leader or for replicas wait
//! silently.

use std::sync::Arc;
use std::time::Instant;

use rdkafka::error::RDKafkaErrorCode;
use rdkafka::metadata::{Metadata, MetadataPartition, MetadataTopic};
use rdkafka::producer::Producer as _;
use thalweg_kit::blocking;
use thalweg_record::Text;

use super::{ProducerClient, topic_metadata};
use crate::link::{BrokerLink, TopicAccessError};

/// Maximum topics queried one by one. More are queried together, with all others that the client knows.
const ALONE_MAX: usize = 8;
/// Maximum partitions that are named.
const TOLD_MAX: usize = 3;

/// A write that has not been confirmed for long.
pub struct StalledWrite {
    pub place: u64,
    pub since: Instant,
    pub topics: Vec<Text>,
}

/// What to query.
#[derive(Default)]
pub struct ProducerProbe {
    /// Whether a broker responds at all; for an output with one topic, whether it has it.
    pub is_there: bool,
    /// The partition count of the one topic.
    pub partitions: bool,
    pub stalled: Option<StalledWrite>,
    pub refused: Vec<Text>,
}

/// The results.
pub struct ProducerProbeReport {
    pub broker: Option<Result<(), String>>,
    /// `None` without a response or without a topic.
    pub partitions: Option<usize>,
    /// The write, and why it is not confirmed.
    pub stalled: Option<(u64, String)>,
    /// Topics with the reason why they are still rejected, or `None` if they are not.
    pub refused: Vec<(Text, Option<String>)>,
}

impl ProducerProbe {
    pub fn is_needless(&self) -> bool {
        !self.is_there && !self.partitions && self.stalled.is_none() && self.refused.is_empty()
    }

    /// Runs the queries. Blocks.
    pub fn ask(self, link: &BrokerLink, client: &ProducerClient, own: Option<&str>) -> ProducerProbeReport {
        let stalled = self.stalled.map(|stalled| (stalled.place, stalled.why(link, client)));
        let refused = match self.refused.len() <= ALONE_MAX {
            true => one_by_one(link, client, self.refused),
            false => topic_metadata::troubles(client, self.refused),
        };
        let refused = refused.into_iter();
        let counted = own.filter(|_| self.partitions);
        ProducerProbeReport {
            partitions: counted.and_then(|topic| partitions(link, client, topic)),
            refused: refused
                .map(|(topic, trouble)| (topic, trouble.map(|trouble| trouble.why().to_owned())))
                .collect(),
            broker: self.is_there.then(|| is_there(link, client, own)),
            stalled,
        }
    }
}

/// Queries what is wrong with topics, up to the first without a response, because each further one would time out too.
fn one_by_one(link: &BrokerLink, client: &ProducerClient, topics: Vec<Text>) -> Vec<(Text, Option<TopicAccessError>)> {
    let answers = topics.into_iter().map_while(|topic| {
        let trouble = link.trouble(client.client(), &topic).ok()?;
        Some((topic, trouble))
    });
    answers.collect()
}

/// Queries whether a broker responds and has a topic. Does not block.
pub async fn ask_whether_there(
    link: &Arc<BrokerLink>,
    client: &ProducerClient,
    topic: Option<&str>,
) -> Result<(), String> {
    let (link, client, topic) = (link.clone(), client.clone(), topic.map(str::to_owned));
    let asked = blocking::spawn(move || is_there(&link, &client, topic.as_deref()));
    asked
        .await
        .unwrap_or_else(|_| Err("the process is stopping".to_owned()))
}

fn is_there(link: &BrokerLink, client: &ProducerClient, topic: Option<&str>) -> Result<(), String> {
    let Some(topic) = topic else {
        return link.ask(client.client(), None).map(drop);
    };
    match link.trouble(client.client(), topic)? {
        None => Ok(()),
        Some(TopicAccessError::Missing) => Err(format!(
            "the topic {topic} does not exist; create it, or let the brokers create topics"
        )),
        Some(TopicAccessError::Denied) => Err(format!(
            "this client has no access to the topic {topic}; grant it the right to describe and write it"
        )),
    }
}

fn partitions(link: &BrokerLink, client: &ProducerClient, name: &str) -> Option<usize> {
    let metadata = link.ask(client.client(), Some(name)).ok()?;
    let topic = metadata.topics().iter().find(|topic| topic.name() == name)?;
    topic.error().is_none().then(|| topic.partitions().len())
}

impl TopicAccessError {
    fn why(self) -> &'static str {
        match self {
            TopicAccessError::Missing => "it does not exist",
            TopicAccessError::Denied => "this client has no right to see it",
        }
    }
}

impl StalledWrite {
    fn why(&self, link: &BrokerLink, client: &ProducerClient) -> String {
        let answers = self.topics.iter().map_while(|topic| {
            let metadata = link.ask(client.client(), Some(topic)).ok()?;
            Some(trouble(&metadata, topic))
        });
        let told = answers.flatten().next();
        let topics: Vec<&str> = self.topics.iter().map(Text::as_str).collect();
        let told = told.unwrap_or_else(|| {
            "its leader is available and reports no reason; check the log, the disk and the load of the broker"
                .to_owned()
        });
        let (topics, seconds) = (topics.join(", "), self.since.elapsed().as_secs());
        format!("records to {topics} are not confirmed for {seconds} s: {told}")
    }
}

/// Returns what may prevent the confirmation of a topic's records.
fn trouble(metadata: &Metadata, name: &str) -> Option<String> {
    let topic = metadata.topics().iter().find(|topic| topic.name() == name)?;
    if let Some(error) = topic.error() {
        return Some(format!("topic {name}: {}", RDKafkaErrorCode::from(error)));
    }
    in_partitions(topic, without_leader).or_else(|| in_partitions(topic, without_replicas))
}

fn in_partitions(topic: &MetadataTopic, what: impl Fn(&MetadataPartition) -> Option<String>) -> Option<String> {
    let found = topic.partitions().iter().filter_map(|partition| {
        let what = what(partition)?;
        Some(format!("topic {}, partition {}: {what}", topic.name(), partition.id()))
    });
    let found: Vec<String> = found.take(TOLD_MAX).collect();
    (!found.is_empty()).then(|| found.join("; "))
}

fn without_leader(partition: &MetadataPartition) -> Option<String> {
    match partition.error().map(RDKafkaErrorCode::from) {
        // A follower is away; the leader continues.
        Some(RDKafkaErrorCode::ReplicaNotAvailable) => None,
        Some(error) => Some(format!("{error}; are all brokers running?")),
        None => (partition.leader() < 0).then(|| "it has no leader; are all brokers running?".to_owned()),
    }
}

fn without_replicas(partition: &MetadataPartition) -> Option<String> {
    let (all, in_sync) = (partition.replicas().len(), partition.isr().len());
    (in_sync < all).then(|| format!("{in_sync} of {all} replicas are in sync; are all brokers running?"))
}
