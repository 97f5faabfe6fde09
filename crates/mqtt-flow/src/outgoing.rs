//! The sending half of a session as a pure state machine: packet identifiers, what is in flight, and what must be sent again
//! after a lost connection. It has neither clock nor I/O.
//!
//! | a message is | with QoS 1 | with QoS 2 |
//! |---|---|---|
//! | published | waits for PUBACK | waits for PUBREC |
//! | received | | PUBREL was sent, waits for PUBCOMP |
//!
//! On a new connection with the same session, what is in flight is sent again in its order: a PUBLISH with DUP, or the PUBREL.
//! On one with a new session it is published anew, without DUP, in the same order and before anything else. So the messages of a
//! topic reach the broker in their order, with repetitions at most.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use thalweg_mqtt_wire::encode::{self, PublishHead};
use thalweg_mqtt_wire::{PacketKind, ProtocolVersion, QoS, ReasonCode};
use thalweg_record::Text;

/// A message to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutgoingPublish {
    pub topic: Text,
    pub payload: Bytes,
    pub qos: QoS,
    pub retain: bool,
    /// Seconds; ignored below 5.0.
    pub expiry: Option<u32>,
    /// Other properties as bytes; ignored below 5.0.
    pub properties: Bytes,
}

impl OutgoingPublish {
    fn head(&self, packet_id: u16, dup: bool) -> PublishHead<'_> {
        PublishHead {
            qos: self.qos,
            dup,
            retain: self.retain,
            packet_id,
            topic: &self.topic,
            topic_alias: 0,
            expiry: self.expiry,
            forwarded: &self.properties,
            subscription_ids: &[],
        }
    }

    /// Bytes of the packet.
    pub fn packet_len(&self, version: ProtocolVersion) -> usize {
        self.head(1, false).packet_len(version, self.payload.len())
    }

    pub fn write(&self, packet_id: u16, dup: bool, version: ProtocolVersion, out: &mut Vec<u8>) {
        out.reserve(self.packet_len(version));
        self.head(packet_id, dup).write(out, version, self.payload.len());
        out.extend_from_slice(&self.payload);
    }
}

/// The end of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settled<K> {
    pub key: K,
    pub publish: OutgoingPublish,
    /// Success, or why the broker has refused it.
    pub reason: ReasonCode,
}

#[derive(Debug)]
struct InFlight<K> {
    packet_id: u16,
    key: K,
    publish: OutgoingPublish,
    is_received: bool,
}

/// The state of the sending half. `K` names a message for the caller.
#[derive(Debug)]
pub struct Outgoing<K> {
    version: ProtocolVersion,
    /// In the order of their first sending; `None` were settled. The first is never `None`.
    in_flight: VecDeque<Option<InFlight<K>>>,
    /// By packet identifier: the position in `in_flight`, counted from the first message ever.
    places: HashMap<u16, u64>,
    /// The count at the front of `in_flight`.
    front: u64,
    unsettled: usize,
    last_id: u16,
    /// How many of `in_flight` were sent on this connection, counted from the front of all.
    sent: u64,
    /// Published on this connection and not settled.
    open: usize,
}

/// Messages that were settled before an older one count as well, so that what is kept is bounded.
const KEPT_MAX: usize = 1 << 16;

impl<K> Default for Outgoing<K> {
    fn default() -> Outgoing<K> {
        Outgoing {
            version: ProtocolVersion::V5,
            in_flight: VecDeque::new(),
            places: HashMap::new(),
            front: 0,
            unsettled: 0,
            last_id: 0,
            sent: 0,
            open: 0,
        }
    }
}

impl<K: Clone> Outgoing<K> {
    /// A connection begins. What is in flight must be sent again, see [`Outgoing::resend`].
    pub fn begin(&mut self, version: ProtocolVersion, session_present: bool) {
        self.version = version;
        self.sent = self.front;
        self.open = 0;
        if !session_present {
            // A broker may pass a QoS 2 message on at its PUBREL, which the new session does not know.
            self.in_flight
                .iter_mut()
                .flatten()
                .for_each(|message| message.is_received = false);
        }
    }

    /// Messages that are not settled.
    pub fn unsettled(&self) -> usize {
        self.unsettled
    }

    /// Messages that were sent on this connection and are not settled.
    pub fn open(&self) -> usize {
        self.open
    }

    /// Whether everything in flight was sent on this connection.
    pub fn is_resent(&self) -> bool {
        self.sent >= self.front + self.in_flight.len() as u64
    }

    /// Sends the next message of an earlier connection again. Returns `false` if there is none.
    pub fn resend(&mut self, session_present: bool, out: &mut Vec<u8>) -> bool {
        loop {
            let index = (self.sent - self.front) as usize;
            let Some(entry) = self.in_flight.get(index) else {
                return false;
            };
            self.sent += 1;
            let Some(message) = entry else { continue };
            match message.is_received {
                true => encode::ack(
                    out,
                    self.version,
                    PacketKind::PubRel,
                    message.packet_id,
                    ReasonCode::Success,
                    &[],
                ),
                false => message
                    .publish
                    .write(message.packet_id, session_present, self.version, out),
            }
            self.open += 1;
            return true;
        }
    }

    /// Whether another message may be sent, of which `window` may be open.
    pub fn has_room(&self, window: usize) -> bool {
        self.open < window && self.unsettled < usize::from(u16::MAX) && self.in_flight.len() < KEPT_MAX
    }

    /// Sends a message with QoS 1 or 2; there must be room, and everything in flight must have been sent again.
    pub fn send(&mut self, key: K, publish: OutgoingPublish, out: &mut Vec<u8>) {
        debug_assert!(publish.qos != QoS::AtMostOnce && self.is_resent() && self.has_room(usize::MAX));
        let packet_id = self.free_id();
        publish.write(packet_id, false, self.version, out);
        self.in_flight.push_back(Some(InFlight {
            packet_id,
            key,
            publish,
            is_received: false,
        }));
        self.places.insert(packet_id, self.sent);
        self.sent += 1;
        self.unsettled += 1;
        self.open += 1;
    }

    fn free_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            if !self.places.contains_key(&self.last_id) {
                return self.last_id;
            }
        }
    }

    fn index(&self, packet_id: u16) -> Option<usize> {
        let place = self.places.get(&packet_id)?;
        usize::try_from(place.checked_sub(self.front)?).ok()
    }

    fn settle(&mut self, packet_id: u16, reason: ReasonCode) -> Option<Settled<K>> {
        let index = self.index(packet_id)?;
        let message = self.in_flight.get_mut(index)?.take()?;
        // A message that was not yet sent again is not open.
        if self.front + (index as u64) < self.sent {
            self.open = self.open.saturating_sub(1);
        }
        self.places.remove(&packet_id);
        self.unsettled -= 1;
        while matches!(self.in_flight.front(), Some(None)) {
            self.in_flight.pop_front();
            self.front += 1;
        }
        self.sent = self.sent.max(self.front);
        Some(Settled {
            key: message.key,
            publish: message.publish,
            reason,
        })
    }

    fn is(&self, packet_id: u16, qos: QoS) -> bool {
        let found = self.index(packet_id).and_then(|index| self.in_flight.get(index));
        matches!(found, Some(Some(message)) if message.publish.qos == qos)
    }

    /// A PUBACK came. `None`: nothing waits for it.
    pub fn puback(&mut self, packet_id: u16, reason: ReasonCode) -> Option<Settled<K>> {
        match self.is(packet_id, QoS::AtLeastOnce) {
            true => self.settle(packet_id, reason),
            false => None,
        }
    }

    /// A PUBREC came; `out` gets the PUBREL. With a failure the message is settled.
    pub fn pubrec(&mut self, packet_id: u16, reason: ReasonCode, out: &mut Vec<u8>) -> Option<Settled<K>> {
        let is_known = self.is(packet_id, QoS::ExactlyOnce);
        if reason.is_failure() {
            return if is_known { self.settle(packet_id, reason) } else { None };
        }
        let index = if is_known { self.index(packet_id) } else { None };
        if let Some(Some(message)) = index.and_then(|index| self.in_flight.get_mut(index)) {
            message.is_received = true;
        }
        let answer = match is_known {
            true => ReasonCode::Success,
            false => ReasonCode::PacketIdentifierNotFound,
        };
        encode::ack(out, self.version, PacketKind::PubRel, packet_id, answer, &[]);
        None
    }

    /// A PUBCOMP came. A broker that does not know the identifier has ended the exchange earlier.
    pub fn pubcomp(&mut self, packet_id: u16) -> Option<Settled<K>> {
        let found = self.index(packet_id).and_then(|index| self.in_flight.get(index));
        match found {
            Some(Some(message)) if message.is_received => self.settle(packet_id, ReasonCode::Success),
            _ => None,
        }
    }

    /// The key of the oldest message that was sent on this connection, if it is the only one.
    pub fn only_open(&self) -> Option<u16> {
        if self.open != 1 {
            return None;
        }
        let sent = (self.sent - self.front) as usize;
        let first = self.in_flight.iter().take(sent).flatten().next();
        first.map(|message| message.packet_id)
    }

    /// Gives up a message, which is the broker's fault.
    pub fn refuse(&mut self, packet_id: u16, reason: ReasonCode) -> Option<Settled<K>> {
        self.settle(packet_id, reason)
    }

    /// The key of the newest message in flight.
    pub fn newest(&self) -> Option<K> {
        self.in_flight
            .iter()
            .rev()
            .flatten()
            .next()
            .map(|message| message.key.clone())
    }
}

#[cfg(test)]
mod tests;
