//! The input `mqtt`: subscribes to topics, and acknowledges a message to the broker when the flow has confirmed it. With a session
//! that the broker keeps, what was not confirmed comes again after a lost connection or a restart.

use std::sync::Arc;
use std::time::Duration;

use thalweg_config::{ComponentNode, Fields};
use thalweg_flow::{
    Backoff, BoxFuture, BuildContext, BuildError, Input, InputContext, InputError, InputSpec, ParseContext,
};
use thalweg_kit::clock;
use thalweg_mqtt_wire::topic::{self, SharedFilter};
use thalweg_mqtt_wire::{QoS, SubscribeOptions, subscribe::RetainHandling};
use tokio::time::sleep;

use crate::dial::{Dialer, SessionRequest};
use crate::input_session::{InputSession, SessionEnd};
use crate::options::{self, BrokerOptions};

/// The pauses between attempts to connect.
pub const PAUSES: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30)).with_jitter(0.5);
/// How long a broker may take no bytes, which are acknowledgements and pings.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// A connection that lasted this long was no failure.
const STABLE: Duration = Duration::from_secs(5);
const RECEIVE_MAXIMUM: i64 = 1024;

#[derive(Clone, Debug)]
pub struct MqttInputOptions {
    pub broker: Arc<BrokerOptions>,
    pub topics: Vec<String>,
    pub qos: QoS,
    pub clean_session: bool,
    /// Seconds.
    pub session_expiry: u32,
    pub receive_maximum: u16,
    pub replays_nacks: bool,
}

pub fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let broker = options::read(&mut fields);
    let topics = topics(&mut fields);
    let qos = options::qos(&mut fields, 1);
    let clean_session = fields.bool("clean_session", true);
    let expiry = fields.duration("session_expiry", "1h");
    let receive_maximum = fields.int_in("receive_maximum", RECEIVE_MAXIMUM, 1..=i64::from(u16::MAX));
    let replays_nacks = fields.bool("auto_replay_nacks", true);
    if !clean_session && broker.client_id.is_empty() {
        fields.error(
            "clean_session",
            "false needs a client_id, by which the broker finds the session after a restart",
        );
    }
    if !clean_session && broker.has_suffix {
        fields.error(
            "dynamic_client_id_suffix",
            "with clean_session: false it would leave a session at the broker with each start; remove it",
        );
    }
    // The largest number means that the session never ends.
    let session_expiry = u32::try_from(expiry.as_secs()).unwrap_or(u32::MAX);
    if session_expiry == 0 {
        fields.error(
            "session_expiry",
            "expected at least 1s; clean_session: true keeps no session",
        );
    }
    fields.finish();
    Some(Arc::new(MqttInputSpec(MqttInputOptions {
        broker: Arc::new(broker),
        topics,
        qos,
        clean_session,
        session_expiry,
        receive_maximum: u16::try_from(receive_maximum).unwrap_or(u16::MAX),
        replays_nacks,
    })))
}

fn topics(fields: &mut Fields<'_>) -> Vec<String> {
    let topics = fields.string_list("topics");
    if topics.is_empty() && !fields.diags().is_describing() {
        fields.error("topics", "no topic is set; set a list such as [\"plant/#\"]");
    }
    for filter in &topics {
        let is_filter = topic::is_filter(filter) && filter.len() <= usize::from(u16::MAX) && !filter.contains('\0');
        if !is_filter {
            let rule = "+ must fill a level, and # must be the last level";
            fields.error("topics", format!("\"{filter}\" is no filter of topics: {rule}"));
        } else if SharedFilter::of(filter).is_none() {
            fields.error("topics", format!("\"{filter}\": expected $share/<group>/<filter>"));
        }
    }
    topics
}

struct MqttInputSpec(MqttInputOptions);

impl InputSpec for MqttInputSpec {
    fn build(&self, _: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        let options = self.0.clone();
        let client_id = options.broker.client_id_of_run().map_err(BuildError::new)?;
        let dialer = Dialer::new(options.broker.clone(), client_id, WRITE_TIMEOUT);
        Ok(Box::new(MqttInput { options, dialer }))
    }
}

struct MqttInput {
    options: MqttInputOptions,
    dialer: Dialer,
}

impl MqttInputOptions {
    fn request(&self) -> SessionRequest {
        SessionRequest {
            clean_start: self.clean_session,
            // Each broker may have messages from earlier.
            clean_elsewhere: false,
            expiry: if self.clean_session { 0 } else { self.session_expiry },
            clean_session: self.clean_session,
            receive_maximum: self.receive_maximum,
        }
    }

    /// The filters with their options.
    pub fn subscriptions(&self) -> Vec<(&str, SubscribeOptions)> {
        let options = SubscribeOptions {
            qos: self.qos,
            // A session that the broker keeps gets retained messages once.
            retain_handling: match self.clean_session {
                true => RetainHandling::Always,
                false => RetainHandling::IfNew,
            },
            ..SubscribeOptions::default()
        };
        self.topics.iter().map(|topic| (topic.as_str(), options)).collect()
    }

    /// Whether the broker sends again what is not acknowledged, also to the next run.
    pub fn is_redelivered(&self, qos: QoS) -> bool {
        !self.clean_session && qos != QoS::AtMostOnce
    }
}

impl Input for MqttInput {
    fn run(mut self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            let context = Arc::new(context);
            let request = self.options.request();
            let mut session = InputSession::new(self.options.clone(), context.clone());
            let mut pauses = PAUSES;
            loop {
                let dialled = tokio::select! {
                    biased;
                    () = context.stop.cancelled() => break,
                    dialled = self.dialer.dial(request) => dialled,
                };
                let since = clock::now();
                match dialled {
                    Err(why) => context.connection.failed(&why),
                    Ok(dialled) => match session.run(dialled).await {
                        SessionEnd::Stopped => return Ok(()),
                        SessionEnd::Refused(why) => {
                            self.dialer.avoid_this_one();
                            context.connection.failed(&why);
                        }
                        SessionEnd::Lost(why) => {
                            if since.elapsed() >= STABLE {
                                pauses.reset();
                            }
                            context.connection.lost(&why);
                        }
                    },
                }
                tokio::select! {
                    () = context.stop.cancelled() => break,
                    () = sleep(pauses.next_pause()) => {}
                }
            }
            session.finish().await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use thalweg_config::{LoadOptions, SourceText, load};
    use thalweg_flow::ComponentRegistry;

    fn told(fields: &str) -> String {
        let mut registry = ComponentRegistry::new();
        crate::register(&mut registry);
        let text = format!("input: {{mqtt: {{{fields}}}}}\noutput: {{drop: {{}}}}\n");
        let loaded = load(&SourceText::new("t.yaml", text), &|_| None, &LoadOptions::default());
        let mut context = thalweg_flow::ParseContext::new(&loaded.diagnostics, &registry, &loaded.config);
        if let Some(flow) = loaded.config.flows.first() {
            drop(thalweg_flow::FlowSpec::parse(flow, &mut context));
        }
        loaded.diagnostics.to_string()
    }

    #[test]
    fn mistakes_are_told_at_their_places() {
        assert_eq!(told("urls: [a], topics: [\"plant/#\", $share/g/a]"), "");
        assert_eq!(
            told("urls: [a], topics: [a], client_id: c, clean_session: false, session_expiry: 10m"),
            ""
        );
        for (fields, expected) in [
            ("urls: [a]", "topics: no topic is set; set a list such as [\"plant/#\"]"),
            (
                "urls: [a], topics: [\"a#\"]",
                "\"a#\" is no filter of topics: + must fill a level",
            ),
            (
                "urls: [a], topics: [$share/g]",
                "\"$share/g\": expected $share/<group>/<filter>",
            ),
            (
                "urls: [a], topics: [a], qos: 3",
                "qos: expected a whole number from 0 to 2",
            ),
            (
                "urls: [a], topics: [a], clean_session: false",
                "clean_session: false needs a client_id",
            ),
            (
                "urls: [a], topics: [a], client_id: c, clean_session: false, dynamic_client_id_suffix: nanoid",
                "dynamic_client_id_suffix: with clean_session: false it would leave a session",
            ),
            (
                "urls: [a], topics: [a], receive_maximum: 0",
                "receive_maximum: expected a whole number from 1 to 65535",
            ),
            (
                "urls: [a], topics: [a], session_expiry: 0s",
                "session_expiry: expected at least 1s",
            ),
            ("urls: [a], topic: [a]", "unknown field \"topic\""),
        ] {
            let mistakes = told(fields);
            assert!(mistakes.contains(expected), "{fields}: {mistakes}");
        }
    }
}
