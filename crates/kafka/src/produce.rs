//! A producer as an output. Many writes may be in flight, and still the order of each key is that of the writes: the
//! client sends a partition's records in the order of the calls, and failed records are resent before anything newer,
//! followed by the records that overtook them ([`producer_task`]).

mod deliveries;
mod order;
mod probe;
mod producer_task;
mod retry_decision;
mod topic_metadata;
mod topics;
mod write;

use std::cmp::Ordering;
use std::sync::Arc;

use bytes::Bytes;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::ThreadedProducer;
use thalweg_flow::{BoxFuture, OpenError, OutputContext, Rejection, WriteError};
use thalweg_kit::blocking;
use thalweg_record::{Message, Text};
use tokio::sync::{mpsc, oneshot};

use deliveries::ProducerCallbacks;
use producer_task::ProducerTask;
pub use producer_task::not_one_partition;
use write::WriteRequest;

use crate::link::BrokerLink;

/// The key of a record. Most keys are texts, which cost no copy.
#[derive(Clone, Debug)]
pub enum RecordKey {
    Text(Text),
    Bytes(Arc<[u8]>),
}

impl RecordKey {
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            RecordKey::Text(text) => text.as_bytes(),
            RecordKey::Bytes(bytes) => bytes,
        }
    }
}

/// Equal bytes are the same key, whatever they were made of.
impl Ord for RecordKey {
    fn cmp(&self, other: &RecordKey) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl PartialOrd for RecordKey {
    fn partial_cmp(&self, other: &RecordKey) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RecordKey {
    fn eq(&self, other: &RecordKey) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for RecordKey {}

/// The record of a message.
pub struct ProducerRecord {
    pub topic: Text,
    pub key: Option<RecordKey>,
    /// Milliseconds since 1970; `None` means the time of sending.
    pub time_ms: Option<i64>,
    pub headers: OwnedHeaders,
    /// `None` means a tombstone.
    pub value: Option<Bytes>,
}

/// Converts messages to records.
pub trait RecordEncoder: Send + Sync + 'static {
    /// Loads what is needed to convert the messages. Later messages wait meanwhile.
    fn prepare(self: Arc<Self>, messages: Arc<Vec<Message>>) -> BoxFuture<'static, ()> {
        let _ = messages;
        Box::pin(std::future::ready(()))
    }

    /// Why messages are not prepared yet, if something is wrong.
    fn waits_for(&self) -> Option<String> {
        None
    }

    /// Whether all records go to the only partition of one topic: a topic with more partitions ends the output.
    fn needs_one_partition(&self) -> bool {
        false
    }

    /// `Err`: the message is rejected permanently, or must be retried.
    fn record(&self, messages: &[Message], index: usize) -> Result<ProducerRecord, Rejection>;
}

type ProducerClient = ThreadedProducer<ProducerCallbacks>;

/// Applies the settings of every producer.
pub fn settle(client: &mut ClientConfig) {
    client
        // Records wait for a broker in order and without a time limit. The producer task bounds their size, because the
        // client would reject records beyond its own limit.
        .set("message.timeout.ms", "0")
        .set("queue.buffering.max.messages", "0")
        .set("queue.buffering.max.kbytes", "2147483647")
        // How long the creation of a topic may take to reach all brokers.
        .set("topic.metadata.propagation.max.ms", "5000")
        // Choose the partition of a key like the protocol's own clients.
        .set("partitioner", "murmur2_random");
}

/// A producer that has found a broker. Dropping it gives up what is in flight.
pub struct Producer {
    jobs: mpsc::UnboundedSender<WriteRequest>,
}

impl Producer {
    /// `topic` is the topic to check for. `bytes_max` limits the bytes in flight, which the client copies; one more
    /// write may come on top.
    pub async fn open(
        settings: &ClientConfig,
        topic: Option<&str>,
        encode: Arc<dyn RecordEncoder>,
        bytes_max: usize,
        context: &OutputContext,
    ) -> Result<Producer, OpenError> {
        let addresses = settings.get("bootstrap.servers").unwrap_or_default().to_owned();
        let (component, connection) = (context.component.clone(), context.connection.clone());
        let link = Arc::new(BrokerLink::new(component, connection, addresses));
        let client = connect(settings, &link).await.map_err(OpenError::Permanent)?;
        if let Err(why) = probe::ask_whether_there(&link, &client, topic).await {
            drop_aside(client).await;
            return Err(OpenError::Temporary(why));
        }
        let (jobs, received) = mpsc::unbounded_channel();
        let task = ProducerTask::new(
            client,
            settings.clone(),
            link,
            encode,
            topic.map(str::to_owned),
            bytes_max,
            received,
        );
        tokio::spawn(task.run());
        context.connection.up();
        Ok(Producer { jobs })
    }

    /// Accepts the messages now, which fixes their place in the order; the future completes when the broker has them.
    pub fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let (done, written) = oneshot::channel();
        let taken = self.jobs.send(WriteRequest { messages, done });
        Box::pin(async move {
            let gone = || WriteError::Temporary("the producer has ended".to_owned());
            taken.map_err(|_| gone())?;
            written.await.unwrap_or_else(|_| Err(gone()))
        })
    }
}

/// Creates a client, which reads certificates and starts threads.
async fn connect(settings: &ClientConfig, link: &Arc<BrokerLink>) -> Result<ProducerClient, String> {
    let (settings, deliveries) = (settings.clone(), ProducerCallbacks(link.clone()));
    let made = blocking::spawn(move || ProducerClient::from_config_and_context(&settings, deliveries));
    match made.await {
        Ok(client) => client.map_err(|error| format!("the Kafka client rejects its settings: {error}")),
        Err(_) => Err("the process is stopping".to_owned()),
    }
}

/// Drops a client on a blocking thread, because it waits for its threads and for requests in flight.
async fn drop_aside(client: ProducerClient) {
    let _ = blocking::spawn(move || drop(client)).await;
}
