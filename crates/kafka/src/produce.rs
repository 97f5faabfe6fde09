//! A producer as an output. Many writes may be on their way; the order of each key is that of the writes all the same, because the
//! client sends a partition's records in the order in which it got them, and what has to be sent again is sent again before
//! anything newer ([`lane`]).

mod deliveries;
mod fate;
mod lane;

use std::sync::Arc;

use bytes::Bytes;
use rdkafka::ClientConfig;
use rdkafka::config::FromClientConfigAndContext as _;
use rdkafka::message::OwnedHeaders;
use rdkafka::producer::{Producer as _, ThreadedProducer};
use thalweg_flow::{BoxFuture, OpenError, OutputContext, Rejection, WriteError};
use thalweg_record::{Message, Text};
use tokio::sync::{mpsc, oneshot};

use deliveries::Deliveries;
use lane::{Job, Lane};

use crate::link::Link;

/// What a message becomes.
pub struct Record {
    pub topic: Text,
    pub key: Option<Text>,
    pub headers: OwnedHeaders,
    pub value: Bytes,
}

/// Makes records of messages.
pub trait Encode: Send + Sync + 'static {
    /// Finds out what has to be known of messages before they can become records.
    fn prepare<'a>(&'a self, messages: &'a [Message]) -> BoxFuture<'a, ()> {
        let _ = messages;
        Box::pin(std::future::ready(()))
    }

    /// `Err`: the message is refused for good.
    fn record(&self, messages: &[Message], index: usize) -> Result<Record, Rejection>;
}

type Client = ThreadedProducer<Deliveries>;

/// The settings of every producer here.
pub fn settle(client: &mut ClientConfig) {
    client
        // What waits for a broker waits in its order, for as long as it takes; the flow bounds how much.
        .set("message.timeout.ms", "0")
        .set("queue.buffering.max.messages", "0")
        .set("queue.buffering.max.kbytes", "2147483647")
        // As the protocol's own clients choose the partition of a key.
        .set("partitioner", "murmur2_random");
}

/// A producer that has found a broker. Dropping it gives up what is on its way.
pub struct Producer {
    jobs: mpsc::UnboundedSender<Job>,
}

impl Producer {
    /// `topic`: what the broker is asked for.
    pub async fn open(
        settings: &ClientConfig,
        topic: Option<&str>,
        encode: Arc<dyn Encode>,
        context: &OutputContext,
    ) -> Result<Producer, OpenError> {
        let addresses = settings.get("bootstrap.servers").unwrap_or_default().to_owned();
        let (component, connection) = (context.component.clone(), context.connection.clone());
        let link = Arc::new(Link::new(component, connection, addresses));
        let client = connect(settings, &link).map_err(OpenError::Permanent)?;
        ask(&link, &client, topic).await.map_err(OpenError::Temporary)?;
        let (jobs, received) = mpsc::unbounded_channel();
        let lane = Lane::new(
            client,
            settings.clone(),
            link,
            encode,
            topic.map(str::to_owned),
            received,
        );
        tokio::spawn(lane.run());
        context.connection.up();
        Ok(Producer { jobs })
    }

    /// Takes the messages now, which fixes their place in the order; the future ends when the broker has them.
    pub fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let (done, written) = oneshot::channel();
        let taken = self.jobs.send(Job { messages, done });
        Box::pin(async move {
            let gone = || WriteError::Temporary("the producer has ended".to_owned());
            taken.map_err(|_| gone())?;
            written.await.unwrap_or_else(|_| Err(gone()))
        })
    }
}

fn connect(settings: &ClientConfig, link: &Arc<Link>) -> Result<Client, String> {
    let client = Client::from_config_and_context(settings, Deliveries(link.clone()));
    client.map_err(|error| format!("the Kafka client refuses its settings: {error}"))
}

/// Whether a broker answers and has the topic.
async fn ask(link: &Arc<Link>, client: &Client, topic: Option<&str>) -> Result<(), String> {
    let (link, client, topic) = (link.clone(), client.clone(), topic.map(str::to_owned));
    let asked = tokio::task::spawn_blocking(move || {
        let Some(topic) = topic else {
            return link.ask(client.client(), None).map(drop);
        };
        match link.has(client.client(), &topic)? {
            true => Ok(()),
            false => Err(format!(
                "the topic {topic} does not exist; make it, or let brokers make topics"
            )),
        }
    });
    asked
        .await
        .unwrap_or_else(|_| Err("the process is stopping".to_owned()))
}
