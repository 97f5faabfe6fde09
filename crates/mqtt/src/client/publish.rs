//! PUBLISH of a client (specification section 4).

use std::sync::atomic::Ordering::Relaxed;

use thalweg_mqtt_store::incoming::IncomingPublish;
use thalweg_mqtt_store::{Message, MessageParts};
use thalweg_mqtt_wire::{PacketKind, Publish, QoS, ReasonCode};

use super::{ClientConnection, PacketResult, broken, is_acknowledged};
use crate::action::{Action, PublishAction};
use crate::settings::DeniedV3Publish;

impl ClientConnection {
    pub(super) fn publish(&mut self, publish: Publish) -> PacketResult {
        self.counted.publish(publish.qos);
        let settings = &self.broker.settings;
        if publish.qos > settings.max_qos {
            return Err(broken(
                ReasonCode::QoSNotSupported,
                "the QoS is higher than the broker's Maximum QoS",
            ));
        }
        if publish.retain && !settings.retain_available {
            return Err(broken(
                ReasonCode::RetainNotSupported,
                "retained messages are turned off",
            ));
        }
        let aliased = self.aliased(&publish)?;
        if is_acknowledged(publish.qos) && !self.begin(&publish)? {
            return Ok(());
        }
        let topic = aliased.as_deref().unwrap_or(publish.topic());
        if let Some(code) = self.refused(&publish, topic) {
            if code == ReasonCode::NotAuthorized {
                self.broker.counters.denied_publishes.fetch_add(1, Relaxed);
            }
            let closes = self.broker.settings.v3_denied_publish == DeniedV3Publish::Close;
            if code == ReasonCode::NotAuthorized && closes && !self.context.version.is_5() {
                return Err(broken(code, "this client may not publish to this topic"));
            }
            self.refuse(&publish, code);
            return Ok(());
        }
        let expires = publish
            .expiry
            .map(|expiry| (self.broker.wall)() + i64::from(expiry) * 1_000_000);
        let message = Message::new(&MessageParts {
            topic,
            qos: publish.qos,
            retain: publish.retain,
            publisher: &self.source.session.client_id,
            expires,
            properties: &publish.forwarded(),
            payload: publish.payload(),
        });
        self.route(message, publish.packet_id);
        Ok(())
    }

    /// The topic that the alias of a PUBLISH stands for, if it has none of its own.
    fn aliased(&mut self, publish: &Publish) -> Result<Option<Box<str>>, crate::outbox::ConnectionEnd> {
        let alias = usize::from(publish.topic_alias);
        if alias == 0 {
            return Ok(None);
        }
        if alias > usize::from(self.broker.settings.topic_alias_max) {
            return Err(broken(
                ReasonCode::TopicAliasInvalid,
                "the topic alias exceeds the Topic Alias Maximum",
            ));
        }
        if self.aliases.len() <= alias {
            self.aliases.resize(alias + 1, None);
        }
        let known = self.aliases.get_mut(alias);
        match (publish.topic().is_empty(), known) {
            (false, Some(known)) => {
                *known = Some(publish.topic().into());
                Ok(None)
            }
            (true, Some(Some(topic))) => Ok(Some(topic.clone())),
            _ => Err(broken(ReasonCode::ProtocolError, "the topic alias is unknown")),
        }
    }

    /// Notes the identifier of a message. Returns whether the message is new.
    fn begin(&mut self, publish: &Publish) -> Result<bool, crate::outbox::ConnectionEnd> {
        let maximum = self.broker.settings.receive_maximum;
        let mut state = self.source.session.lock();
        // Another connection has the session: what this one sends has no effect.
        if state.connection(self.source.number).is_none() {
            return Ok(false);
        }
        let begun = match publish.qos {
            QoS::ExactlyOnce => state.stored.incoming.exactly_once(publish.packet_id, maximum),
            _ => state.stored.incoming.at_least_once(publish.packet_id, maximum),
        };
        let is_waiting = state.stored.incoming.is_storing(publish.packet_id);
        drop(state);
        match begun {
            IncomingPublish::New => Ok(true),
            // The answer to the first one is on its way.
            IncomingPublish::Again if is_waiting => Ok(false),
            IncomingPublish::Again => {
                self.answer(PacketKind::PubRec, publish.packet_id, ReasonCode::Success);
                Ok(false)
            }
            IncomingPublish::Refused(code) if self.context.version.is_5() => {
                self.answer(kind_of(publish.qos), publish.packet_id, code);
                Ok(false)
            }
            IncomingPublish::Refused(code) => Err(broken(code, "the packet identifier is in use")),
            IncomingPublish::TooMany => Err(broken(
                ReasonCode::ReceiveMaximumExceeded,
                "more messages are unacknowledged than the Receive Maximum allows",
            )),
        }
    }

    /// Why a message is not taken, if it is not.
    fn refused(&self, publish: &Publish, topic: &str) -> Option<ReasonCode> {
        let settings = &self.broker.settings;
        if topic.starts_with('$') || !self.access.may_publish(topic) {
            return Some(ReasonCode::NotAuthorized);
        }
        if topic.split('/').count() > settings.max_topic_levels {
            return Some(ReasonCode::TopicNameInvalid);
        }
        let is_wrong_text =
            settings.check_payload_format && publish.is_text && std::str::from_utf8(publish.payload()).is_err();
        is_wrong_text.then_some(ReasonCode::PayloadFormatInvalid)
    }

    /// Answers a message that is not taken. 3.1.1 has no code for it: it is acknowledged and dropped.
    fn refuse(&mut self, publish: &Publish, code: ReasonCode) {
        let is_failure = self.context.version.is_5();
        let mut state = self.source.session.lock();
        match publish.qos {
            QoS::AtMostOnce => return,
            QoS::AtLeastOnce => state.stored.incoming.acked(publish.packet_id),
            QoS::ExactlyOnce => state.stored.incoming.received(publish.packet_id, is_failure),
        }
        drop(state);
        self.answer(kind_of(publish.qos), publish.packet_id, code);
    }

    fn route(&mut self, message: Message, packet_id: u16) {
        let qos = message.qos();
        let route = self.broker.routing.route(message.topic());
        let must_store = is_acknowledged(qos) && !route.stored.is_empty();
        let must_keep_id = qos == QoS::ExactlyOnce && self.source.session.lock().is_stored;
        // Answers and messages keep the order in which the publishes came.
        let must_follow = self.source.pending.has(qos);
        if must_store || must_keep_id || must_follow || message.retain() {
            return self.push(Action::Publish(PublishAction {
                source: self.source.clone(),
                message,
                packet_id,
                qos,
            }));
        }
        self.broker
            .deliver(&message, &route, Some(self.source.session.id), None, &mut self.touched);
        if !is_acknowledged(qos) {
            return;
        }
        let mut state = self.source.session.lock();
        match qos {
            QoS::ExactlyOnce => state.stored.incoming.received(packet_id, false),
            _ => state.stored.incoming.acked(packet_id),
        }
        drop(state);
        let code = match route.is_empty() {
            true => ReasonCode::NoMatchingSubscribers,
            false => ReasonCode::Success,
        };
        self.answer(kind_of(qos), packet_id, code);
    }
}

/// The first answer to a PUBLISH.
fn kind_of(qos: QoS) -> PacketKind {
    match qos {
        QoS::ExactlyOnce => PacketKind::PubRec,
        _ => PacketKind::PubAck,
    }
}
