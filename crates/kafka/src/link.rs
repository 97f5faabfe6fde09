//! Whether a broker answers. What the client says of its connections is only a hint, since it closes and opens them as it likes:
//! after each, a broker is asked, and its answer is what the component shows as its state.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use thalweg_flow::{Component, Connection};

/// So long a broker may take to answer.
pub const ANSWER: Duration = Duration::from_secs(3);

/// Why a topic is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicAccessError {
    Missing,
    /// This client has no right to see it.
    Denied,
}

pub struct BrokerLink {
    pub component: Component,
    pub connection: Connection,
    addresses: String,
    /// Something was said since a broker was asked.
    suspected: AtomicBool,
    /// The newest that the client has said of what is wrong.
    heard: Mutex<String>,
}

impl BrokerLink {
    pub fn new(component: Component, connection: Connection, addresses: String) -> BrokerLink {
        BrokerLink {
            component,
            connection,
            addresses,
            suspected: AtomicBool::new(false),
            heard: Mutex::default(),
        }
    }

    /// Whether a broker should be asked now.
    pub fn is_doubtful(&self) -> bool {
        self.suspected.load(Ordering::Relaxed) || !self.connection.is_up()
    }

    /// A broker is asked now: what was said before is no reason to ask again.
    pub fn forget_doubt(&self) {
        self.suspected.store(false, Ordering::Relaxed);
    }

    /// Asks a broker for a topic, or for all. Blocks.
    pub fn ask<C: ClientContext>(&self, client: &Client<C>, topic: Option<&str>) -> Result<Metadata, String> {
        self.forget_doubt();
        client
            .fetch_metadata(topic, ANSWER)
            .map_err(|error| self.no_answer(&error))
    }

    /// Asks a broker what is wrong with a topic. Blocks.
    pub fn trouble<C: ClientContext>(
        &self,
        client: &Client<C>,
        topic: &str,
    ) -> Result<Option<TopicAccessError>, String> {
        let metadata = self.ask(client, Some(topic))?;
        let found = metadata.topics().iter().find(|found| found.name() == topic);
        Ok(match found.map(|found| found.error().map(RDKafkaErrorCode::from)) {
            None | Some(Some(RDKafkaErrorCode::UnknownTopicOrPartition)) => Some(TopicAccessError::Missing),
            Some(Some(RDKafkaErrorCode::TopicAuthorizationFailed)) => Some(TopicAccessError::Denied),
            // As a topic that is being made: it is there, and its partitions say the rest.
            Some(_) => None,
        })
    }

    /// Data cannot flow, for this reason: the connection shows it, and tells it in the log.
    pub fn down(&self, why: &str) {
        match self.connection.is_up() {
            true => self.connection.lost(why),
            false => self.connection.failed(why),
        }
    }

    fn no_answer(&self, error: &KafkaError) -> String {
        let addresses = &self.addresses;
        let heard = self.heard.lock();
        let why = match heard.is_empty() {
            true => reason(error),
            false => heard.clone(),
        };
        format!("no broker answers at {addresses} ({why}); is it running, and are address, tls and sasl right?")
    }

    /// What the client said last of what is wrong.
    pub fn heard(&self) -> String {
        self.heard.lock().clone()
    }

    /// A line of the client's own log.
    pub fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        let component = self.component.title();
        tracing::debug!(component, ?level, facility, "{line}");
    }

    /// The client says that something is wrong with its connections.
    pub fn error(&self, error: &KafkaError, why: &str) {
        // That all are lost says less than what was said of the last one.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.heard.lock() = why.to_owned();
        }
        self.suspected.store(true, Ordering::Relaxed);
    }
}

/// What a client died of: its own error says only that it did.
pub fn died_of<C: ClientContext>(client: &Client<C>, otherwise: &str) -> String {
    match client.fatal_error() {
        Some((code, why)) => format!("{why} ({code})"),
        None => otherwise.to_owned(),
    }
}

/// The protocol's own words for an error.
pub fn reason(error: &KafkaError) -> String {
    match error.rdkafka_error_code() {
        Some(code) => code.to_string(),
        None => error.to_string(),
    }
}
