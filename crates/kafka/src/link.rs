//! Tracks whether a broker responds. The client's connection events are only a hint, because it opens and closes
//! connections at will: after each event a broker is queried, and the result is the state that the component shows.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rdkafka::client::{Client, ClientContext};
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::metadata::Metadata;
use thalweg_flow::{Component, Connection};

/// Maximum time for a broker to respond.
pub const ANSWER: Duration = Duration::from_secs(3);

/// Why a topic cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicAccessError {
    Missing,
    /// This client has no permission to see it.
    Denied,
}

pub struct BrokerLink {
    pub component: Component,
    pub connection: Connection,
    addresses: String,
    /// Whether the client has reported an event since the last query.
    suspected: AtomicBool,
    /// The last error that the client reported.
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

    /// Whether a broker should be queried now.
    pub fn is_doubtful(&self) -> bool {
        self.suspected.load(Ordering::Relaxed) || !self.connection.is_up()
    }

    /// A broker is being queried: earlier events need no other query.
    pub fn forget_doubt(&self) {
        self.suspected.store(false, Ordering::Relaxed);
    }

    /// Requests the metadata of a topic, or of all. Blocks.
    pub fn ask<C: ClientContext>(&self, client: &Client<C>, topic: Option<&str>) -> Result<Metadata, String> {
        self.forget_doubt();
        client
            .fetch_metadata(topic, ANSWER)
            .map_err(|error| self.no_answer(&error))
    }

    /// Queries what is wrong with a topic. Blocks.
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
            // For example, a topic being created: it exists, and its partitions will show the rest.
            Some(_) => None,
        })
    }

    /// Data cannot flow, for this reason: the connection shows and logs it.
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
        format!(
            "no broker answers at {addresses} ({why}); check that it runs and that address, tls and sasl are correct"
        )
    }

    /// The last error that the client reported.
    pub fn heard(&self) -> String {
        self.heard.lock().clone()
    }

    /// Forwards a line of the client's own log.
    pub fn log(&self, level: RDKafkaLogLevel, facility: &str, line: &str) {
        let component = self.component.title();
        tracing::debug!(component, ?level, facility, "{line}");
    }

    /// Handles a connection error of the client.
    pub fn error(&self, error: &KafkaError, why: &str) {
        // "All brokers down" is less specific than the error of the last connection.
        if error.rdkafka_error_code() != Some(RDKafkaErrorCode::AllBrokersDown) {
            *self.heard.lock() = why.to_owned();
        }
        self.suspected.store(true, Ordering::Relaxed);
    }
}

/// Returns the client's fatal error; the error of the call only says that there is one.
pub fn died_of<C: ClientContext>(client: &Client<C>, otherwise: &str) -> String {
    match client.fatal_error() {
        Some((code, why)) => format!("{why} ({code})"),
        None => otherwise.to_owned(),
    }
}

/// The protocol's description of an error.
pub fn reason(error: &KafkaError) -> String {
    match error.rdkafka_error_code() {
        Some(code) => code.to_string(),
        None => error.to_string(),
    }
}
