//! The receiving half of a session as a pure state machine: which PUBLISH is new, and which acknowledgement is due. It has
//! neither clock nor I/O.
//!
//! | a delivery is | PUBLISH came | the flow confirmed | sent |
//! |---|---|---|---|
//! | open | on this connection | no | |
//! | confirmed | on this connection | yes | PUBACK or PUBREC, as soon as those before it are |
//! | carried over | on an earlier connection | no | |
//! | early | on an earlier connection | yes | PUBACK or PUBREC, when the broker sends it again |
//! | released (QoS 2) | | yes | PUBREC; PUBCOMP follows PUBREL |
//!
//! Acknowledgements leave in the order in which the messages came [MQTT-4.6.0-2, -3]. A PUBLISH that the broker sends again
//! because the connection was lost is recognised by its packet identifier, and does not enter the flow again.

use std::collections::{HashMap, HashSet, VecDeque};

use thalweg_mqtt_wire::encode;
use thalweg_mqtt_wire::{PacketKind, ProtocolVersion, QoS, ReasonCode};

/// The number of a delivery, unique in the process's run.
pub type DeliveryNumber = u64;

/// What to do with a PUBLISH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It enters the flow. With QoS 1 and 2 the flow's confirmation has this number.
    New(Option<DeliveryNumber>),
    /// The flow has it, or had it.
    Known,
}

#[derive(Clone, Copy, Debug)]
struct OpenDelivery {
    packet_id: u16,
    qos: QoS,
    is_confirmed: bool,
    /// The PUBLISH came on this connection, so that an acknowledgement may leave.
    is_here: bool,
}

/// The state of the receiving half.
#[derive(Debug)]
pub struct Incoming {
    version: ProtocolVersion,
    next: DeliveryNumber,
    deliveries: HashMap<DeliveryNumber, OpenDelivery>,
    /// Those of this connection, in the order in which they came.
    order: VecDeque<DeliveryNumber>,
    by_packet_id: HashMap<u16, DeliveryNumber>,
    /// QoS 2 packet identifiers whose PUBREC was sent and whose PUBREL did not come.
    released: HashSet<u16>,
}

impl Default for Incoming {
    fn default() -> Incoming {
        Incoming {
            version: ProtocolVersion::V5,
            next: 0,
            deliveries: HashMap::new(),
            order: VecDeque::new(),
            by_packet_id: HashMap::new(),
            released: HashSet::new(),
        }
    }
}

impl Incoming {
    /// A connection begins. If the broker has no session, it has forgotten all that is open, and so does this side: late
    /// confirmations have no effect.
    pub fn begin(&mut self, version: ProtocolVersion, session_present: bool) {
        self.version = version;
        self.order.clear();
        if !session_present {
            self.deliveries.clear();
            self.by_packet_id.clear();
            self.released.clear();
            return;
        }
        self.deliveries
            .values_mut()
            .for_each(|delivery| delivery.is_here = false);
    }

    /// Deliveries of this connection that are not acknowledged.
    pub fn open(&self) -> usize {
        self.order.len()
    }

    /// A PUBLISH came. `out` gets what must be answered at once.
    pub fn publish(&mut self, qos: QoS, packet_id: u16, dup: bool, out: &mut Vec<u8>) -> Received {
        if qos == QoS::AtMostOnce {
            return Received::New(None);
        }
        if qos == QoS::ExactlyOnce && self.released.contains(&packet_id) {
            self.acknowledge(qos, packet_id, out);
            return Received::Known;
        }
        if self.is_again(qos, packet_id, dup) {
            self.came_again(packet_id, out);
            return Received::Known;
        }
        // The broker uses the identifier for another message, so it does not expect an acknowledgement of the old one.
        if let Some(old) = self.by_packet_id.remove(&packet_id) {
            self.deliveries.remove(&old);
        }
        let number = self.next;
        self.next += 1;
        let delivery = OpenDelivery {
            packet_id,
            qos,
            is_confirmed: false,
            is_here: true,
        };
        self.deliveries.insert(number, delivery);
        self.by_packet_id.insert(packet_id, number);
        self.order.push_back(number);
        Received::New(Some(number))
    }

    /// Whether the flow has this message already: it comes again with DUP [MQTT-3.3.1-1], or, with QoS 2, on the same
    /// connection [MQTT-4.3.3-10]. Another message with the identifier of one that is open is taken for new, so that nothing
    /// is lost to a broker that has forgotten the old one.
    fn is_again(&self, qos: QoS, packet_id: u16, dup: bool) -> bool {
        let known = self.by_packet_id.get(&packet_id);
        let known = known.and_then(|number| self.deliveries.get(number));
        known.is_some_and(|known| known.qos == qos && (dup || (qos == QoS::ExactlyOnce && known.is_here)))
    }

    fn came_again(&mut self, packet_id: u16, out: &mut Vec<u8>) {
        let Some(number) = self.by_packet_id.get(&packet_id).copied() else {
            return;
        };
        if let Some(delivery) = self.deliveries.get_mut(&number)
            && !delivery.is_here
        {
            delivery.is_here = true;
            self.order.push_back(number);
            self.acknowledge_settled(out);
        }
    }

    /// The flow has confirmed these deliveries. `out` gets the acknowledgements that are due now.
    pub fn confirm(&mut self, numbers: impl IntoIterator<Item = DeliveryNumber>, out: &mut Vec<u8>) {
        for number in numbers {
            if let Some(delivery) = self.deliveries.get_mut(&number) {
                delivery.is_confirmed = true;
            }
        }
        self.acknowledge_settled(out);
    }

    fn acknowledge_settled(&mut self, out: &mut Vec<u8>) {
        while let Some(number) = self.order.front() {
            let Some(delivery) = self.deliveries.get(number).copied() else {
                self.order.pop_front();
                continue;
            };
            if !delivery.is_confirmed {
                return;
            }
            self.deliveries.remove(number);
            self.order.pop_front();
            self.by_packet_id.remove(&delivery.packet_id);
            if delivery.qos == QoS::ExactlyOnce {
                self.released.insert(delivery.packet_id);
            }
            self.acknowledge(delivery.qos, delivery.packet_id, out);
        }
    }

    fn acknowledge(&self, qos: QoS, packet_id: u16, out: &mut Vec<u8>) {
        let kind = match qos {
            QoS::ExactlyOnce => PacketKind::PubRec,
            _ => PacketKind::PubAck,
        };
        encode::ack(out, self.version, kind, packet_id, ReasonCode::Success, &[]);
    }

    /// A PUBREL came, which ends a QoS 2 delivery.
    pub fn release(&mut self, packet_id: u16, out: &mut Vec<u8>) {
        let reason = match self.released.remove(&packet_id) {
            true => ReasonCode::Success,
            false => ReasonCode::PacketIdentifierNotFound,
        };
        encode::ack(out, self.version, PacketKind::PubComp, packet_id, reason, &[]);
    }
}

#[cfg(test)]
pub(crate) mod tests;
