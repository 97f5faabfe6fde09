//! The output `uns`: writes messages under their topic of the unified namespace, checked by the schema of their
//! contract if it has one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use thalweg_config::{ComponentNode, Fields, Node, kind};
use thalweg_flow::{
    Batching, BoxFuture, BuildContext, BuildError, OpenError, Output, OutputContext, OutputSpec, ParseContext,
    Rejection, WriteError,
};
use thalweg_mapping::Interpolation;
use thalweg_record::{DropReason, Message, Text};
use thalweg_tags::topic;
use tokio::sync::OnceCell;

use super::bypass;
use super::contract::{self, ContractVerdict, VersionedContract};
use super::registry::SchemaRegistryClient;
use super::{TOPIC, topic_setup};
use crate::output::{value, write};
use crate::produce::{self, Producer, ProducerRecord, RecordEncoder, RecordKey};
use crate::{cluster, header_list};

const BATCHING: Batching = Batching {
    count: 100,
    byte_size: 0,
    period: Some(Duration::from_millis(100)),
};
const IN_FLIGHT: usize = 100;
const IN_FLIGHT_BYTES: usize = 64 << 20;

pub fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let mut client = cluster::read_unencrypted(&mut fields);
    produce::settle(&mut client);
    client
        .set("acks", "1")
        // acks=1 excludes the idempotent producer, so a second request in flight could overtake a resent one.
        .set("max.in.flight.requests.per.connection", "1")
        .set("allow.auto.create.topics", "false");
    let topic = fields.node("umh_topic", kind::INTERPOLATED);
    let bridged_by = fields.string("bridged_by", "umh_core");
    let registry = fields.string(
        "schema_registry_url",
        &format!("http://{}:8081", cluster::first_host(&client)),
    );
    if !registry.starts_with("http://") && !registry.starts_with("https://") {
        fields.error(
            "schema_registry_url",
            format!("expected http://host:port or https://host:port, got \"{registry}\""),
        );
    }
    let holds = fields.one_of("on_registry_failure", &["pass", "hold"], "pass") == "hold";
    fields.finish();
    let standard = || Node::parse("\"${! meta(\\\"umh_topic\\\") }\"").ok();
    let topic = context.interpolation(&topic.or_else(standard)?)?;
    Some(Arc::new(UnsOutputSpec {
        client,
        topic,
        bridged_by,
        registry,
        holds,
    }))
}

struct UnsOutputSpec {
    client: ClientConfig,
    topic: Interpolation,
    bridged_by: String,
    registry: String,
    holds: bool,
}

impl OutputSpec for UnsOutputSpec {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        let records = UnsRecordEncoder {
            topic: self.topic.clone(),
            bridged_by: self.bridged_by.clone(),
            registry: SchemaRegistryClient::new(&self.registry, self.holds, context.component.clone()),
            bypassed: bypass::BypassMetrics::new(&context.component),
        };
        Ok(Arc::new(UnsOutput {
            client: self.client.clone(),
            records: Arc::new(records),
            producer: OnceCell::new(),
        }))
    }
}

struct UnsOutput {
    client: ClientConfig,
    records: Arc<UnsRecordEncoder>,
    producer: OnceCell<Producer>,
}

impl Output for UnsOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        let opening = || async {
            topic_setup::ensure(&self.client, TOPIC, context).await?;
            Producer::open(
                &self.client,
                Some(TOPIC),
                self.records.clone(),
                IN_FLIGHT_BYTES,
                context,
            )
            .await
        };
        Box::pin(async move { self.producer.get_or_try_init(opening).await.map(drop) })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        write(&self.producer, messages)
    }

    fn max_in_flight(&self) -> usize {
        IN_FLIGHT
    }

    fn batching(&self) -> Option<Batching> {
        Some(BATCHING)
    }
}

struct UnsRecordEncoder {
    topic: Interpolation,
    bridged_by: String,
    registry: SchemaRegistryClient,
    bypassed: bypass::BypassMetrics,
}

impl RecordEncoder for UnsRecordEncoder {
    fn prepare(self: Arc<Self>, messages: Arc<Vec<Message>>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let keys: Vec<Option<Text>> = (0..messages.len())
                .map(|index| self.topic.render(&messages, index).ok())
                .collect();
            let contracts: Vec<&str> = keys.iter().map(|key| contract(key.as_ref())).collect();
            let to_ask: BTreeSet<String> = versioned(&messages, &contracts).map(str::to_owned).collect();
            match self.registry.holds() {
                true => self.registry.wait_for(&to_ask).await,
                false => self.registry.learn(&to_ask).await,
            }
            // Counted here, because records may be built more than once.
            for (message, contract) in messages.iter().zip(contracts).filter(|(_, name)| !name.is_empty()) {
                if let Err(bypass) = contract::subjects(contract, message, &self.registry) {
                    self.bypassed.count(bypass.reason);
                }
            }
        })
    }

    fn waits_for(&self) -> Option<String> {
        let why = self.registry.held()?;
        Some(format!("messages wait for the schema of their contract: {why}"))
    }

    fn needs_one_partition(&self) -> bool {
        true
    }

    fn record(&self, messages: &[Message], index: usize) -> Result<ProducerRecord, Rejection> {
        let key = self.key(messages, index)?;
        let found = topic::place(&key).map_err(|error| {
            let text = format!("error validating message key in message {index}: invalid UMH topic '{key}': {error}");
            Rejection::permanent(index, DropReason::InvalidTopic, text)
        })?;
        let Some(message) = messages.get(index) else {
            return Err(Rejection::permanent(
                index,
                DropReason::InvalidTopic,
                "there is no such message",
            ));
        };
        let verdict = contract::check(found, message, &self.registry)
            .map_err(|error| Rejection::permanent(index, DropReason::SchemaRejected, error))?;
        if let ContractVerdict::Bypassed(bypass) = &verdict
            && bypass.reason.is_registry_failure()
            && self.registry.holds()
        {
            // So many contracts arrived meanwhile that the cached result of this one was evicted.
            return Err(Rejection::temporary(index, bypass.why.as_str()));
        }
        let headers = header_list::of_message(message, |name| name.starts_with("kafka_") || OWN.contains(&name));
        Ok(ProducerRecord {
            topic: Text::new_static(TOPIC),
            headers: self.own_headers(headers, &verdict),
            value: value(message),
            key: Some(RecordKey::Text(key)),
            time_ms: None,
        })
    }
}

/// Returns the contract in a topic of the namespace; empty if the topic is invalid.
fn contract(key: Option<&Text>) -> &str {
    let place = key.and_then(|key| topic::place(key).ok());
    place.map_or("", |place| place.contract)
}

/// Returns the contracts of messages that can be checked.
fn versioned<'c>(messages: &[Message], contracts: &[&'c str]) -> impl Iterator<Item = &'c str> {
    let of_messages = messages.iter().zip(contracts);
    of_messages.filter_map(|(message, contract)| {
        let is_checked = VersionedContract::of(contract).is_some() && !message.bytes().is_empty();
        is_checked.then_some(*contract)
    })
}

const BRIDGED_BY: &str = "bridged_by";
const NAME: &str = "data_contract_name";
const VERSION: &str = "data_contract_version";
const BYPASSED: &str = "data_contract_bypassed";
const REASON: &str = "data_contract_bypass_reason";

/// Headers that this output sets itself, whatever the message has.
const OWN: [&str; 5] = [BRIDGED_BY, NAME, VERSION, BYPASSED, REASON];

impl UnsRecordEncoder {
    fn key(&self, messages: &[Message], index: usize) -> Result<Text, Rejection> {
        let refused = |reason, text: String| Err(Rejection::permanent(index, reason, text));
        match self.topic.render(messages, index) {
            // A missing key renders as `null`.
            Ok(key) if key.is_empty() || key == "null" => refused(
                DropReason::MissingField,
                format!("umh_topic is not set or is empty in message {index}, umh_topic is mandatory"),
            ),
            Ok(key) => Ok(key),
            Err(error) => refused(
                DropReason::InvalidTopic,
                format!("umh_topic of message {index}: {error}"),
            ),
        }
    }

    fn own_headers(&self, headers: OwnedHeaders, verdict: &ContractVerdict<'_>) -> OwnedHeaders {
        let add = |headers: OwnedHeaders, key, value: &str| {
            headers.insert(Header {
                key,
                value: Some(value.as_bytes()),
            })
        };
        let headers = add(headers, BRIDGED_BY, &self.bridged_by);
        match verdict {
            ContractVerdict::Checked(VersionedContract { name, version }) => {
                add(add(headers, NAME, name), VERSION, version)
            }
            ContractVerdict::Bypassed(bypass) => add(add(headers, BYPASSED, "true"), REASON, &bypass.why),
        }
    }
}

#[cfg(test)]
mod tests {
    use rdkafka::message::Headers as _;

    use super::*;

    fn records() -> UnsRecordEncoder {
        let component = OutputContext::for_tests("uns").component;
        UnsRecordEncoder {
            topic: Interpolation::compile("${! meta(\"umh_topic\") }").unwrap(),
            bridged_by: "umh_core".to_owned(),
            registry: SchemaRegistryClient::new("http://localhost:1", false, component.clone()),
            bypassed: bypass::BypassMetrics::new(&component),
        }
    }

    fn message(topic: &str) -> Message {
        let mut message = Message::raw("{}");
        message.meta.set("umh_topic", topic);
        message
    }

    #[test]
    fn refusals_have_the_texts_that_operators_know() {
        let messages = [
            message("umh.v1.a._raw.x"),
            message(""),
            message("umh.v1.a._raw"),
            message("x"),
        ];
        let records = records();
        assert!(records.record(&messages, 0).is_ok());
        for (index, reason, text) in [
            (
                1,
                DropReason::MissingField,
                "umh_topic is not set or is empty in message 1, umh_topic is mandatory",
            ),
            (
                2,
                DropReason::InvalidTopic,
                "error validating message key in message 2: invalid UMH topic 'umh.v1.a._raw': \
                 topic must have at least: umh.v1.level0._contract.name",
            ),
            (
                3,
                DropReason::InvalidTopic,
                "error validating message key in message 3: invalid UMH topic 'x': topic must start with umh.v1",
            ),
        ] {
            let rejection = records.record(&messages, index).err().unwrap();
            assert_eq!((rejection.permanent, rejection.error.as_str()), (Some(reason), text));
        }
    }

    #[test]
    fn headers_are_the_metadata_without_what_is_of_kafka_or_internal() {
        let mut message = message("umh.v1.a._raw.x");
        for (name, value) in [
            ("unit", "bar"),
            ("kafka_topic", "old"),
            ("_initialMetadata", "{}"),
            ("_incomingKeys", "a"),
            ("bridged_by", "another"),
            ("data_contract_name", "_stale"),
        ] {
            message.meta.set(name, value);
        }
        let record = records().record(&[message], 0).unwrap();
        let headers = record.headers.as_borrowed();
        let names: Vec<&str> = headers.iter().map(|header| header.key).collect();
        assert_eq!(names, ["umh_topic", "unit", BRIDGED_BY, BYPASSED, REASON]);
        assert_eq!(headers.get(2).value, Some(b"umh_core".as_slice()));
    }
}
