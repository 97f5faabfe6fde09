//! The output `mqtt`: publishes each message to its topic, and confirms it when the broker has acknowledged it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_config::{ComponentNode, Fields, Node, kind};
use thalweg_flow::{
    Backoff, BoxFuture, BuildContext, BuildError, OpenError, Output, OutputContext, OutputSpec, ParseContext,
    Rejection, WriteError,
};
use thalweg_mapping::Interpolation;
use thalweg_mqtt_wire::encode::PropertyWriter;
use thalweg_mqtt_wire::{PropertyId, ProtocolVersion, QoS, topic};
use thalweg_record::{DropReason, Message, Payload, Text};
use tokio::sync::OnceCell;

use crate::dial::Dialer;
use crate::input::PAUSES;
use crate::options::{self, BrokerOptions};
use crate::outgoing::OutgoingPublish;
use crate::publisher::{Publisher, PublisherOptions};

const IN_FLIGHT: i64 = 64;
/// The longest text of the protocol.
const TEXT_BYTES_MAX: usize = 65_535;
/// Longer ones are shown cut.
const SHOWN_CHARS: usize = 40;

pub fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let broker = options::read(&mut fields);
    let topic = fields.required_node("topic", kind::INTERPOLATED);
    let qos = options::qos(&mut fields, 1);
    let write_timeout = fields.duration("write_timeout", "3s");
    if write_timeout.is_zero() {
        fields.error("write_timeout", "expected a time above 0");
    }
    let retained = fields.bool("retained", false);
    let retained_interpolated = fields.node("retained_interpolated", kind::INTERPOLATED);
    let max_in_flight = fields.int_in("max_in_flight", IN_FLIGHT, 1..=i64::from(u16::MAX));
    let content_type = fields.node("content_type", kind::INTERPOLATED);
    let user_properties = fields.node_or("user_properties", kind::INTERPOLATED_MAPPING, "{}");
    let expiry = fields.opt_duration("message_expiry");
    if broker.version != ProtocolVersion::V5 {
        for name in ["content_type", "user_properties", "message_expiry"] {
            if fields.has(name) {
                fields.error(name, "MQTT 3.1.1 does not have it; set version: 5.0, or remove it");
            }
        }
    }
    fields.finish();
    let topic = topic.and_then(|node| checked_topic(&node, context));
    let retained_interpolated = optional(retained_interpolated.as_ref(), context);
    let content_type = optional(content_type.as_ref(), context);
    let user_properties = user_properties.map_or(Some(Vec::new()), |node| members(&node, context));
    let template = PublishTemplate {
        topic: topic?,
        qos,
        retained,
        retained_interpolated: retained_interpolated?,
        content_type: content_type?.filter(|text| text.is_static() != Some("")),
        user_properties: user_properties?,
        // The broker counts whole seconds, and 0 would end the message at once.
        expiry: expiry.map(|expiry| u32::try_from(expiry.as_secs().max(1)).unwrap_or(u32::MAX)),
    };
    Some(Arc::new(MqttOutputSpec {
        broker: Arc::new(broker),
        template: Arc::new(template),
        write_timeout,
        max_in_flight: u16::try_from(max_in_flight).unwrap_or(1),
    }))
}

/// A topic that is the same for all messages is checked now.
fn checked_topic(node: &Node, context: &mut ParseContext<'_>) -> Option<Interpolation> {
    let topic = context.interpolation(node)?;
    if let Some(Err(error)) = topic.is_static().map(check_topic) {
        context.diagnostics.error(node, error);
    }
    Some(topic)
}

fn check_topic(text: &str) -> Result<(), String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!(
            "a topic has at most {TEXT_BYTES_MAX} bytes, this one has {}",
            text.len()
        ));
    }
    match topic::is_name(text) && !text.contains('\0') {
        true => Ok(()),
        false if text.is_empty() => Err("the topic is empty".to_owned()),
        false => {
            let shown: String = text.chars().take(SHOWN_CHARS).collect();
            Err(format!("\"{shown}\" is no topic: it may not contain +, # and U+0000"))
        }
    }
}

/// Returns `None` after an error.
fn optional(node: Option<&Node>, context: &mut ParseContext<'_>) -> Option<Option<Interpolation>> {
    match node {
        Some(node) => context.interpolation(node).map(Some),
        None => Some(None),
    }
}

fn members(node: &Node, context: &mut ParseContext<'_>) -> Option<Vec<(String, Interpolation)>> {
    let map = match node.expect_map() {
        Ok(map) => map,
        Err(error) => {
            context.diagnostics.error(node, error);
            return None;
        }
    };
    let member =
        |(name, value): (&thalweg_config::Key, &Node)| Some((name.as_str().to_owned(), context.interpolation(value)?));
    map.iter().map(member).collect()
}

struct MqttOutputSpec {
    broker: Arc<BrokerOptions>,
    template: Arc<PublishTemplate>,
    write_timeout: Duration,
    max_in_flight: u16,
}

impl OutputSpec for MqttOutputSpec {
    fn build(&self, _: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        let client_id = self.broker.client_id_of_run().map_err(BuildError::new)?;
        Ok(Arc::new(MqttOutput {
            broker: self.broker.clone(),
            client_id,
            template: self.template.clone(),
            write_timeout: self.write_timeout,
            max_in_flight: self.max_in_flight,
            publisher: OnceCell::new(),
        }))
    }
}

struct MqttOutput {
    broker: Arc<BrokerOptions>,
    client_id: String,
    template: Arc<PublishTemplate>,
    write_timeout: Duration,
    max_in_flight: u16,
    /// Set once a broker was connected.
    publisher: OnceCell<Publisher>,
}

impl Output for MqttOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            let options = PublisherOptions {
                window: self.max_in_flight,
                qos: self.template.qos,
                write_timeout: self.write_timeout,
                needs_5: self.template.needs_5(),
            };
            let opened = self.publisher.get_or_try_init(|| async {
                let dialer = Dialer::new(self.broker.clone(), self.client_id.clone(), self.write_timeout);
                let component = context.component.clone();
                Publisher::open(dialer, options, component, context.connection.clone()).await
            });
            opened.await.map_err(OpenError::Temporary)?;
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> BoxFuture<'static, Result<(), WriteError>> {
        let Some(publisher) = self.publisher.get() else {
            let error = WriteError::Temporary("no broker was connected yet".to_owned());
            return Box::pin(std::future::ready(Err(error)));
        };
        let publishes = (0..messages.len()).map(|index| self.template.publish(&messages, index));
        publisher.write(publishes.collect())
    }

    fn max_in_flight(&self) -> usize {
        self.max_in_flight.into()
    }

    fn backoff(&self) -> Backoff {
        PAUSES
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            match self.publisher.get() {
                Some(publisher) => publisher.close().await,
                None => Ok(()),
            }
        })
    }
}

/// How messages become PUBLISHes.
struct PublishTemplate {
    topic: Interpolation,
    qos: QoS,
    retained: bool,
    retained_interpolated: Option<Interpolation>,
    content_type: Option<Interpolation>,
    user_properties: Vec<(String, Interpolation)>,
    /// Seconds.
    expiry: Option<u32>,
}

impl PublishTemplate {
    fn needs_5(&self) -> bool {
        self.content_type.is_some() || !self.user_properties.is_empty() || self.expiry.is_some()
    }

    fn publish(&self, messages: &[Message], index: usize) -> Result<OutgoingPublish, Rejection> {
        let rejected = |reason: DropReason, error: String| Rejection::permanent(index, reason, error);
        let Some(message) = messages.get(index) else {
            return Err(rejected(
                DropReason::OutputRejected,
                "there is no such message".to_owned(),
            ));
        };
        let render = |what: &str, text: &Interpolation| {
            let text = text.render(messages, index);
            text.map_err(|error| rejected(DropReason::OutputRejected, format!("{what}: {error}")))
        };
        let topic = render("topic", &self.topic)?;
        check_topic(&topic).map_err(|error| rejected(DropReason::InvalidTopic, error))?;
        let retain = match &self.retained_interpolated {
            None => self.retained,
            Some(text) => {
                let text = render("retained_interpolated", text)?;
                truth(&text).map_err(|error| rejected(DropReason::InvalidValue, error))?
            }
        };
        let mut properties = PropertyWriter::default();
        let mut put = |name: &str, value: Text, write: &dyn Fn(&mut PropertyWriter, &str)| {
            if value.len() > TEXT_BYTES_MAX || value.contains('\0') {
                let error = format!("{name}: a property has at most {TEXT_BYTES_MAX} bytes, and no U+0000");
                return Err(rejected(DropReason::InvalidValue, error));
            }
            write(&mut properties, &value);
            Ok(())
        };
        if let Some(content_type) = &self.content_type {
            let value = render("content_type", content_type)?;
            put("content_type", value, &|properties, value| {
                properties.text(PropertyId::ContentType, value);
            })?;
        }
        for (name, value) in &self.user_properties {
            let value = render("user_properties", value)?;
            put("user_properties", value, &|properties, value| {
                properties.user(name, value);
            })?;
        }
        Ok(OutgoingPublish {
            topic,
            payload: payload(message),
            qos: self.qos,
            retain,
            expiry: self.expiry,
            properties: Bytes::copy_from_slice(properties.bytes()),
        })
    }
}

fn truth(text: &str) -> Result<bool, String> {
    match text.trim() {
        "true" => Ok(true),
        "false" => Ok(false),
        other => {
            let shown: String = other.chars().take(SHOWN_CHARS).collect();
            Err(format!(
                "retained_interpolated: expected true or false, got \"{shown}\""
            ))
        }
    }
}

fn payload(message: &Message) -> Bytes {
    match &message.payload {
        Payload::Raw(bytes) => bytes.clone(),
        _ => Bytes::from(message.bytes().into_owned()),
    }
}

#[cfg(test)]
mod tests;
