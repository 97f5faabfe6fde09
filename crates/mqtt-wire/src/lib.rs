//! The packets of MQTT 3.1, 3.1.1 and 5.0 as bytes, without I/O, clock or state. Servers, clients and load generators use it.
//!
//! A received packet stays where it was received: [`Publish`], [`Subscribe`] and [`Unsubscribe`] are positions in a shared
//! buffer that was checked once. [`FixedHeader::parse`] tells from at most five bytes how large a packet is, before anything is
//! allocated for it; [`Packet::decode`] reads the rest.
//!
//! Source: MQTT Version 5.0, OASIS Standard, 7 March 2019; MQTT Version 3.1.1, OASIS Standard, 29 October 2014.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod connect;
pub mod encode;
pub mod frame;
pub mod packet;
pub mod properties;
pub mod publish;
pub mod reader;
pub mod reason;
pub mod subscribe;
pub mod topic;
pub mod utf8;

pub use connect::{Connect, ConnectRefusal, Will};
pub use frame::{FixedHeader, PacketKind};
pub use packet::{Ack, ConnAck, Disconnect, Packet, SubAck};
pub use properties::{Properties, Property, PropertyId, PropertyPlace, PropertyValue};
pub use publish::Publish;
pub use reader::{DecodeError, WireResult};
pub use reason::ReasonCode;
pub use subscribe::{Subscribe, SubscribeOptions, Unsubscribe};

/// The version of the protocol that a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProtocolVersion {
    V3_1,
    V3_1_1,
    V5,
}

impl ProtocolVersion {
    /// The protocol level in CONNECT.
    pub fn level(self) -> u8 {
        match self {
            ProtocolVersion::V3_1 => 3,
            ProtocolVersion::V3_1_1 => 4,
            ProtocolVersion::V5 => 5,
        }
    }

    /// Packets have properties and reason codes.
    #[inline]
    pub fn is_5(self) -> bool {
        self == ProtocolVersion::V5
    }

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            ProtocolVersion::V3_1 => "3.1",
            ProtocolVersion::V3_1_1 => "3.1.1",
            ProtocolVersion::V5 => "5.0",
        }
    }
}

/// The delivery guarantee of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QoS {
    #[default]
    AtMostOnce,
    AtLeastOnce,
    ExactlyOnce,
}

impl QoS {
    /// `None` for 3.
    #[inline]
    pub fn of(bits: u8) -> Option<QoS> {
        match bits {
            0 => Some(QoS::AtMostOnce),
            1 => Some(QoS::AtLeastOnce),
            2 => Some(QoS::ExactlyOnce),
            _ => None,
        }
    }

    #[inline]
    pub fn number(self) -> u8 {
        self as u8
    }
}

/// The side that sent a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Client,
    Server,
}

/// What a decoder must know of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeContext {
    pub version: ProtocolVersion,
    pub sender: Sender,
    /// Control characters and non-characters make a string malformed, too.
    pub strict_utf8: bool,
}

/// Reads bytes as a client or a server sends them, and checks that a PUBLISH that was read is read again as it is written.
#[doc(hidden)]
pub fn fuzz(data: &[u8]) {
    const PACKET_MAX: usize = 1 << 20;
    let whole = bytes::Bytes::copy_from_slice(data);
    for version in [ProtocolVersion::V3_1, ProtocolVersion::V3_1_1, ProtocolVersion::V5] {
        for sender in [Sender::Client, Sender::Server] {
            let context = DecodeContext {
                version,
                sender,
                strict_utf8: false,
            };
            let mut rest = whole.clone();
            while let Ok(Some(header)) = FixedHeader::parse(&rest, PACKET_MAX)
                && header.packet_len() <= rest.len()
            {
                let packet = rest.split_to(header.packet_len());
                let _ = Connect::decode(&packet, &header, true);
                if let Ok(Packet::Publish(publish)) = Packet::decode(packet, &header, context) {
                    publish.check_written_again(context);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
