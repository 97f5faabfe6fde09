//! One client: what its packets mean. The socket is elsewhere.

mod connect;
mod publish;
mod socket;
mod subscribe;

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::MutexGuard;
use thalweg_mqtt_store::{AckOutcome, InflightMessage};
use thalweg_mqtt_wire::{
    Ack, DecodeContext, DecodeError, Disconnect, FixedHeader, Packet, PacketKind, QoS, ReasonCode, encode,
};
use tokio_util::task::AbortOnDropHandle;

use crate::access::ClientAccess;
use crate::action::{Action, ActionSource, DisconnectAction};
use crate::broker::Broker;
use crate::counters::LocalCounters;
use crate::outbox::{ConnectionEnd, TouchedOutboxes};
use crate::session::{Session, SessionState, SharedInflight};

pub(crate) use connect::{ConnectRequest, accept};

/// A client that has its session.
pub(crate) struct ClientConnection {
    broker: Arc<Broker>,
    source: ActionSource,
    context: DecodeContext,
    access: Arc<ClientAccess>,
    counted: LocalCounters,
    /// Ends the connection when its login is revoked.
    #[allow(dead_code, reason = "it works until it is dropped")]
    revocation: Option<AbortOnDropHandle<()>>,
    /// Incoming topic aliases.
    aliases: Vec<Option<Box<str>>>,
    touched: TouchedOutboxes,
    /// Seconds in force; 0 is off.
    pub keep_alive: u16,
    has_left: bool,
}

/// A packet that ends its connection.
pub(crate) type PacketResult = Result<(), ConnectionEnd>;

impl From<DecodeError> for ConnectionEnd {
    fn from(error: DecodeError) -> ConnectionEnd {
        ConnectionEnd::Code(error.code, error.what.to_owned())
    }
}

/// A packet that breaks a rule of the standard.
fn broken(code: ReasonCode, what: &str) -> ConnectionEnd {
    ConnectionEnd::Code(code, what.to_owned())
}

impl ClientConnection {
    /// Handles a whole packet.
    pub fn packet(&mut self, packet: Bytes, header: &FixedHeader) -> PacketResult {
        self.counted.packet(header.kind, packet.len());
        match Packet::decode(packet, header, self.context)? {
            Packet::Publish(publish) => self.publish(publish),
            Packet::PubAck(ack) => self.puback(&ack),
            Packet::PubRec(ack) => self.pubrec(&ack),
            Packet::PubRel(ack) => self.pubrel(&ack),
            Packet::PubComp(ack) => self.pubcomp(&ack),
            Packet::Subscribe(subscribe) => self.subscribe(&subscribe),
            Packet::Unsubscribe(unsubscribe) => self.unsubscribe(&unsubscribe),
            Packet::PingReq => {
                self.touched.append(&self.source.outbox, encode::pingresp);
                Ok(())
            }
            Packet::Disconnect(disconnect) => self.disconnect(&disconnect),
            // The decoder refuses what only servers send.
            _ => Err(broken(ReasonCode::ProtocolError, "only servers send this packet")),
        }
    }

    /// All packets that came together are handled: what they caused is written.
    pub fn flush(&mut self) {
        self.touched.flush();
        self.counted.add_to(&self.broker.counters);
    }

    /// Waits while the connection has more in the journal than it may, or more to take.
    pub async fn may_read(&self) {
        if !self.source.outbox.has_room() {
            // Who does not take its answers is not read; what writes to the socket looks again.
            return std::future::pending().await;
        }
        self.source.pending.fewer_than(PENDING_BYTES).await;
    }

    pub fn version(&self) -> thalweg_mqtt_wire::ProtocolVersion {
        self.context.version
    }

    fn push(&self, action: Action) {
        self.source.pending.add(action.qos(), action.bytes());
        self.broker.journal.push(action);
    }

    fn puback(&mut self, ack: &Ack) -> PacketResult {
        self.acknowledged(|outgoing| outgoing.puback(ack.packet_id))
    }

    fn pubcomp(&mut self, ack: &Ack) -> PacketResult {
        self.acknowledged(|outgoing| outgoing.pubcomp(ack.packet_id))
    }

    /// The last packet about a message: its identifier is free, and there is room for another one.
    fn acknowledged(
        &mut self,
        acknowledge: impl FnOnce(&mut thalweg_mqtt_store::OutgoingMessages) -> AckOutcome,
    ) -> PacketResult {
        let session = self.source.session.clone();
        let mut state = session.lock();
        if state.connection(self.source.number).is_none() {
            return Ok(());
        }
        let done = match acknowledge(&mut state.stored.outgoing) {
            AckOutcome::Done(done) => done,
            AckOutcome::OutOfTurn => {
                return Err(broken(
                    ReasonCode::ProtocolError,
                    "an acknowledgement does not fit the state of its message",
                ));
            }
            AckOutcome::Unknown | AckOutcome::Release { .. } => return Ok(()),
        };
        self.done(&session, state, &done);
        Ok(())
    }

    /// A message is done: its identifier is free, and there is room for another one.
    fn done(&mut self, session: &Arc<Session>, mut state: MutexGuard<'_, SessionState>, done: &InflightMessage) {
        let shared = state.finished(done.packet_id);
        let becomes_dirty = state.is_stored && !std::mem::replace(&mut state.is_dirty, true);
        let must_feed = state.must_feed();
        let groups: Vec<_> = state.groups.values().cloned().collect();
        drop(state);
        if becomes_dirty {
            self.broker.note_dirty(session);
        }
        if let Some(SharedInflight { group, .. }) = shared {
            self.broker.group_acknowledged(&group, done.offset);
        }
        if must_feed {
            self.broker.feed(session, &mut self.touched);
        }
        self.broker.feed_groups(&groups, &mut self.touched);
    }

    fn pubrec(&mut self, ack: &Ack) -> PacketResult {
        let is_failure = ack.reason.is_failure();
        let session = self.source.session.clone();
        let mut state = session.lock();
        if state.connection(self.source.number).is_none() {
            return Ok(());
        }
        let outcome = state.stored.outgoing.pubrec(ack.packet_id, is_failure);
        if let AckOutcome::Done(done) = outcome {
            // The message has ended, as by PUBCOMP.
            self.done(&session, state, &done);
            return Ok(());
        }
        let is_stored = state.is_stored;
        drop(state);
        match outcome {
            AckOutcome::Release { .. } if is_stored || self.source.pending.has(QoS::ExactlyOnce) => {
                self.push(Action::Received {
                    source: self.source.clone(),
                    packet_id: ack.packet_id,
                });
            }
            AckOutcome::Release { .. } => self.answer(PacketKind::PubRel, ack.packet_id, ReasonCode::Success),
            AckOutcome::Done(_) => {}
            AckOutcome::Unknown => {
                self.answer(PacketKind::PubRel, ack.packet_id, ReasonCode::PacketIdentifierNotFound);
            }
            AckOutcome::OutOfTurn => return Err(broken(ReasonCode::ProtocolError, "PUBREC for a message of QoS 1")),
        }
        Ok(())
    }

    fn pubrel(&mut self, ack: &Ack) -> PacketResult {
        let mut state = self.source.session.lock();
        if state.connection(self.source.number).is_none() {
            return Ok(());
        }
        let code = match state.stored.incoming.release(ack.packet_id) {
            true => ReasonCode::Success,
            false => ReasonCode::PacketIdentifierNotFound,
        };
        let is_stored = state.is_stored;
        drop(state);
        let must_store = is_stored && code == ReasonCode::Success;
        if must_store || self.source.pending.has(QoS::ExactlyOnce) {
            self.push(Action::Released {
                source: self.source.clone(),
                packet_id: ack.packet_id,
                code,
            });
        } else {
            self.answer(PacketKind::PubComp, ack.packet_id, code);
        }
        Ok(())
    }

    fn answer(&mut self, kind: PacketKind, packet_id: u16, code: ReasonCode) {
        let version = self.context.version;
        self.touched.append(&self.source.outbox, |out| {
            encode::ack(out, version, kind, packet_id, code, &[])
        });
    }

    fn disconnect(&mut self, disconnect: &Disconnect) -> PacketResult {
        let expiry = disconnect.session_expiry;
        let is_kept = self.source.session.lock().stored.expiry > 0;
        // [MQTT-3.14.2-2]
        if !is_kept && expiry.is_some_and(|expiry| expiry > 0) {
            return Err(broken(
                ReasonCode::ProtocolError,
                "DISCONNECT gives an expiry to a session that had none",
            ));
        }
        self.broker.counters.left.add(disconnect.reason.number().into(), 1);
        let discards_will = disconnect.reason == ReasonCode::Success;
        self.leave_with(
            expiry.map(|expiry| expiry.min(self.broker.settings.max_session_expiry)),
            discards_will,
        );
        Err(ConnectionEnd::Closed)
    }

    /// The connection has ended by itself; the session stays if it outlives it.
    pub fn leave(&mut self) {
        self.leave_with(None, false);
    }

    fn leave_with(&mut self, expiry: Option<u32>, discards_will: bool) {
        if !std::mem::replace(&mut self.has_left, true) {
            let source = self.source.clone();
            self.broker.journal.push(Action::Disconnect(DisconnectAction {
                source,
                discards_will,
                expiry,
            }));
        }
    }
}

/// A connection is not read while its actions hold more than this.
const PENDING_BYTES: usize = 1 << 20;

impl Drop for ClientConnection {
    fn drop(&mut self) {
        self.leave();
    }
}

/// QoS 1 and 2 alike.
fn is_acknowledged(qos: QoS) -> bool {
    qos != QoS::AtMostOnce
}
