//! What an input does with its connections, one after the other: subscribes, reads, and acknowledges. The messages that the flow
//! has not confirmed stay known from one connection to the next.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use thalweg_flow::InputContext;
use thalweg_kit::clock;
use thalweg_mqtt_wire::{Packet, Publish, ReasonCode, SubAck, encode};
use thalweg_record::{AckResult, Message, Payload};
use tokio::time::{sleep_until, timeout};

use crate::dial::{Dialled, refused};
use crate::feed::{FedMessage, FedOutcome, Feed};
use crate::incoming::{Incoming, Received};
use crate::input::MqttInputOptions;
use crate::link::Link;
use crate::metadata::SharedMaps;

/// Filters in one SUBSCRIBE; some brokers take no more.
const FILTERS: usize = 8;
/// How long the last packets of a connection may take to leave.
const LAST_PACKETS: Duration = Duration::from_secs(1);
/// After this time without a confirmation, outputs that collect messages are told to write what they have.
const HURRY: Duration = Duration::from_secs(1);
/// The weight of a message in memory, besides its payload.
const MESSAGE_BYTES: usize = 200;

/// Why a connection ended.
pub enum SessionEnd {
    Stopped,
    /// Before messages could come.
    Refused(String),
    Lost(String),
}

/// The state that outlives connections.
pub struct InputSession {
    options: MqttInputOptions,
    context: Arc<InputContext>,
    incoming: Incoming,
    maps: SharedMaps,
    feed: Feed,
    /// The subscriptions were made in the session that the broker may have kept.
    is_subscribed: bool,
    /// By packet identifier: the SUBSCRIBEs that wait for an answer, with the index of their first filter.
    subscribing: HashMap<u16, usize>,
}

impl InputSession {
    pub fn new(options: MqttInputOptions, context: Arc<InputContext>) -> InputSession {
        InputSession {
            feed: Feed::start(context.clone(), options.replays_nacks),
            options,
            context,
            incoming: Incoming::default(),
            maps: SharedMaps::default(),
            is_subscribed: false,
            subscribing: HashMap::new(),
        }
    }

    /// Works with a connection until it ends.
    pub async fn run(&mut self, dialled: Dialled) -> SessionEnd {
        let mut link = dialled.link;
        let url = dialled.url;
        // A session of another broker has packet identifiers of its own.
        let goes_on = dialled.session_present && dialled.is_same_broker;
        self.incoming.begin(link.version(), goes_on);
        self.subscribing.clear();
        if !(goes_on && self.is_subscribed) {
            self.subscribe(&mut link);
        }
        let mut is_up = false;
        let ended = self.serve(&mut link, &mut is_up).await;
        let Err(why) = ended else {
            self.stop(link).await;
            return SessionEnd::Stopped;
        };
        // The broker may be told why.
        let _ = timeout(LAST_PACKETS, link.flush_and_close()).await;
        let why = format!("{url}: {why}");
        match is_up {
            true => SessionEnd::Lost(why),
            false => SessionEnd::Refused(why),
        }
    }

    fn subscribe(&mut self, link: &mut Link) {
        self.is_subscribed = false;
        let version = link.version();
        let subscriptions = self.options.subscriptions();
        for (n, filters) in subscriptions.chunks(FILTERS).enumerate() {
            let packet_id = (n % usize::from(u16::MAX)) as u16 + 1;
            link.put(|out| encode::subscribe(out, version, packet_id, &[], filters));
            self.subscribing.insert(packet_id, n * FILTERS);
        }
    }

    /// Returns `Ok` when the flow stops.
    async fn serve(&mut self, link: &mut Link, is_up: &mut bool) -> Result<(), String> {
        let deadline = clock::tokio_now() + self.options.broker.connect_timeout;
        let mut confirmed = clock::tokio_now();
        loop {
            while self.reads() {
                match link.buffered()? {
                    Some(packet) => self.receive(link, packet)?,
                    None => break,
                }
            }
            if !*is_up && self.subscribing.is_empty() {
                (*is_up, self.is_subscribed) = (true, true);
                self.context.connection.up();
            }
            let reads = self.reads();
            if self.incoming.open() == 0 {
                confirmed = clock::tokio_now();
            }
            tokio::select! {
                biased;
                () = self.context.stop.cancelled() => return Ok(()),
                Some(outcome) = self.feed.outcomes.recv() => {
                    self.settle_all(outcome, link, true);
                    confirmed = clock::tokio_now();
                }
                progress = link.progress(reads) => progress?,
                () = self.feed.level.room(), if !self.feed.level.has_room() => {}
                // The broker may send no more before it has an acknowledgement, and an output may wait for more.
                () = sleep_until(confirmed + HURRY), if self.incoming.open() > 0 => {
                    self.context.sink.hurry();
                    confirmed = clock::tokio_now();
                }
                () = sleep_until(deadline), if !*is_up => return Err(self.unanswered()),
            }
        }
    }

    /// Whether the broker may send more.
    fn reads(&self) -> bool {
        self.feed.level.has_room() && self.incoming.open() < usize::from(self.options.receive_maximum)
    }

    fn unanswered(&self) -> String {
        let seconds = self.options.broker.connect_timeout.as_secs_f64();
        format!("the broker does not answer a subscription within connect_timeout ({seconds} s)")
    }

    fn receive(&mut self, link: &mut Link, packet: Packet) -> Result<(), String> {
        match packet {
            Packet::Publish(publish) => return self.publish(link, &publish),
            Packet::PubRel(ack) => {
                link.put(|out| self.incoming.release(ack.packet_id, out));
            }
            Packet::SubAck(ack) => return self.suback(&ack),
            Packet::PingResp => {}
            Packet::Disconnect(disconnect) => {
                let what = "the broker ends the connection";
                return Err(refused(what, disconnect.reason, &disconnect.properties));
            }
            _ => return Err("the broker sent a packet that nothing asked for".to_owned()),
        }
        Ok(())
    }

    fn publish(&mut self, link: &mut Link, publish: &Publish) -> Result<(), String> {
        if publish.topic().is_empty() {
            let version = link.version();
            link.put(|out| encode::disconnect(out, version, ReasonCode::TopicAliasInvalid, &[]));
            return Err("the broker sent a topic alias, although none was allowed".to_owned());
        }
        let mut received = Received::Known;
        link.put(|out| received = self.incoming.publish(publish.qos, publish.packet_id, publish.dup, out));
        if let Received::New(number) = received {
            // A copy, because the payload would hold the whole buffer that was received.
            let payload = Payload::Raw(Bytes::copy_from_slice(publish.payload()));
            self.feed.push(FedMessage {
                number,
                message: Message::new(payload, self.maps.metadata(publish)),
                is_redelivered: self.options.is_redelivered(publish.qos),
                bytes: publish.len() + MESSAGE_BYTES,
            });
        }
        Ok(())
    }

    fn suback(&mut self, ack: &SubAck) -> Result<(), String> {
        let Some(first) = self.subscribing.remove(&ack.packet_id) else {
            return Ok(());
        };
        let topics = self.options.topics.get(first..).unwrap_or_default();
        for (topic, code) in topics.iter().zip(&ack.codes) {
            if code.is_failure() {
                return Err(refused(
                    &format!("the broker refuses to subscribe {topic}"),
                    *code,
                    &ack.properties,
                ));
            }
            let wanted = self.options.qos.number();
            if code.number() < wanted {
                self.context.component.warn_limited("qos", 1, || {
                    format!(
                        "the broker sends {topic} with QoS {} at most, although qos is {wanted}",
                        code.number()
                    )
                });
            }
        }
        Ok(())
    }

    /// Settles an outcome, and those that wait behind it.
    fn settle_all(&mut self, first: FedOutcome, link: &mut Link, replays: bool) {
        self.settle(first, link, replays);
        while let Ok(next) = self.feed.outcomes.try_recv() {
            self.settle(next, link, replays);
        }
    }

    /// What the flow has given up enters it again, or counts as confirmed; at a stop it is left to the broker.
    fn settle(&mut self, settled: FedOutcome, link: &mut Link, replays: bool) {
        match settled.outcome {
            AckResult::Nacked if !replays => {}
            AckResult::Nacked if self.options.replays_nacks => {
                settled.given_up.into_iter().for_each(|message| self.feed.push(message));
            }
            _ => {
                link.put(|out| self.incoming.confirm(settled.numbers, out));
            }
        }
    }

    /// The flow stops: nothing more enters it, and what is in it is confirmed and acknowledged.
    async fn stop(&mut self, mut link: Link) {
        self.feed.close();
        let context = self.context.clone();
        loop {
            let drained = async {
                self.feed.task.drained().await;
                context.sink.settled().await;
            };
            tokio::select! {
                biased;
                () = drained => break,
                Some(outcome) = self.feed.outcomes.recv() => self.settle_all(outcome, &mut link, false),
                progress = link.progress(true) => {
                    if progress.is_err() || self.skip(&mut link).is_err() {
                        return self.finish().await;
                    }
                }
            }
        }
        if let Ok(outcome) = self.feed.outcomes.try_recv() {
            self.settle_all(outcome, &mut link, false);
        }
        let _ = timeout(LAST_PACKETS, link.disconnect(self.options.clean_session)).await;
    }

    /// Reads what must be answered although the flow stops. Messages are left to the broker.
    fn skip(&mut self, link: &mut Link) -> Result<(), String> {
        while let Some(packet) = link.buffered()? {
            match packet {
                Packet::Publish(_) => {}
                other => self.receive(link, other)?,
            }
        }
        Ok(())
    }

    /// The flow stops without a connection: what is in it is waited for, and comes again if the broker has kept it.
    pub async fn finish(&mut self) {
        self.feed.close();
        self.feed.task.drained().await;
        self.context.sink.settled().await;
    }
}
