//! The fixed header: what a packet is and how long it is, from its first bytes.

use crate::reader::{DecodeError, VariableInteger, WireResult};
use crate::{QoS, ReasonCode};

/// The type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketKind {
    Connect = 1,
    ConnAck = 2,
    Publish = 3,
    PubAck = 4,
    PubRec = 5,
    PubRel = 6,
    PubComp = 7,
    Subscribe = 8,
    SubAck = 9,
    Unsubscribe = 10,
    UnsubAck = 11,
    PingReq = 12,
    PingResp = 13,
    Disconnect = 14,
    Auth = 15,
}

impl PacketKind {
    /// All types in the order of their numbers, with their names.
    pub const ALL: [(PacketKind, &str); 15] = [
        (PacketKind::Connect, "CONNECT"),
        (PacketKind::ConnAck, "CONNACK"),
        (PacketKind::Publish, "PUBLISH"),
        (PacketKind::PubAck, "PUBACK"),
        (PacketKind::PubRec, "PUBREC"),
        (PacketKind::PubRel, "PUBREL"),
        (PacketKind::PubComp, "PUBCOMP"),
        (PacketKind::Subscribe, "SUBSCRIBE"),
        (PacketKind::SubAck, "SUBACK"),
        (PacketKind::Unsubscribe, "UNSUBSCRIBE"),
        (PacketKind::UnsubAck, "UNSUBACK"),
        (PacketKind::PingReq, "PINGREQ"),
        (PacketKind::PingResp, "PINGRESP"),
        (PacketKind::Disconnect, "DISCONNECT"),
        (PacketKind::Auth, "AUTH"),
    ];

    /// `None` for type 0.
    #[inline]
    pub fn of(first: u8) -> Option<PacketKind> {
        let index = usize::from(first >> 4).checked_sub(1)?;
        PacketKind::ALL.get(index).map(|(kind, _)| *kind)
    }

    pub fn name(self) -> &'static str {
        PacketKind::ALL.get(self as usize - 1).map_or("", |(_, name)| name)
    }

    /// The lower four bits of the first byte. PUBLISH has its own.
    #[inline]
    pub fn flags(self) -> u8 {
        match self {
            PacketKind::PubRel | PacketKind::Subscribe | PacketKind::Unsubscribe => 2,
            _ => 0,
        }
    }

    /// The first byte of a packet that is not PUBLISH.
    #[inline]
    pub fn first_byte(self) -> u8 {
        (self as u8) << 4 | self.flags()
    }
}

/// A fixed header with valid flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FixedHeader {
    pub kind: PacketKind,
    pub flags: u8,
    /// Bytes of the fixed header itself, 2 to 5.
    pub len: usize,
    /// Bytes behind it.
    pub remaining: usize,
    /// The length takes more bytes than needed, which only 3.1 and 3.1.1 allow.
    pub is_padded: bool,
}

impl FixedHeader {
    /// Reads the header at the front of the bytes. `None`: it goes on behind their end, and what is there is valid. A packet
    /// of more than `packet_max` bytes is refused before it is received.
    #[inline]
    pub fn parse(bytes: &[u8], packet_max: usize) -> WireResult<Option<FixedHeader>> {
        let Some((first, rest)) = bytes.split_first() else {
            return Ok(None);
        };
        let Some(kind) = PacketKind::of(*first) else {
            return Err(DecodeError::malformed("the packet type is 0"));
        };
        let flags = first & 0x0f;
        match kind {
            PacketKind::Publish => publish_flags(flags)?,
            _ if flags != kind.flags() => {
                return Err(DecodeError::malformed("the flags of the fixed header are reserved"));
            }
            _ => {}
        }
        let Some(length) = VariableInteger::read(rest)? else {
            return Ok(None);
        };
        let header = FixedHeader {
            kind,
            flags,
            len: 1 + length.len,
            remaining: length.value as usize,
            is_padded: length.is_padded,
        };
        match header.packet_len() > packet_max {
            true => Err(DecodeError {
                code: ReasonCode::PacketTooLarge,
                what: "the packet is larger than the Maximum Packet Size",
            }),
            false => Ok(Some(header)),
        }
    }

    /// Bytes of the whole packet.
    #[inline]
    pub fn packet_len(&self) -> usize {
        self.len + self.remaining
    }

    /// Of PUBLISH.
    #[inline]
    pub fn qos(&self) -> QoS {
        QoS::of(self.flags >> 1 & 3).unwrap_or_default()
    }

    /// Of PUBLISH.
    #[inline]
    pub fn dup(&self) -> bool {
        self.flags & 8 != 0
    }

    /// Of PUBLISH.
    #[inline]
    pub fn retain(&self) -> bool {
        self.flags & 1 != 0
    }
}

#[inline]
fn publish_flags(flags: u8) -> WireResult<()> {
    match flags >> 1 & 3 {
        3 => Err(DecodeError::malformed("the QoS is 3")),
        0 if flags & 8 != 0 => Err(DecodeError::malformed("DUP is set with QoS 0")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1 << 20;

    #[test]
    fn each_type_has_its_flags() {
        assert!(FixedHeader::parse(&[0x00, 0], MAX).is_err());
        for (kind, name) in PacketKind::ALL {
            assert_eq!((kind.name(), PacketKind::of((kind as u8) << 4)), (name, Some(kind)));
            for flags in 0..16_u8 {
                let result = FixedHeader::parse(&[(kind as u8) << 4 | flags, 0], MAX);
                let is_right = match kind {
                    PacketKind::Publish => flags >> 1 & 3 != 3 && (flags & 8 == 0 || flags >> 1 & 3 != 0),
                    PacketKind::PubRel | PacketKind::Subscribe | PacketKind::Unsubscribe => flags == 2,
                    _ => flags == 0,
                };
                assert_eq!(result.is_ok(), is_right, "{name} {flags}");
                if let Err(error) = result {
                    assert_eq!(error.code, ReasonCode::MalformedPacket);
                }
            }
        }
    }

    #[test]
    fn headers_say_how_long_a_packet_is() {
        assert_eq!(FixedHeader::parse(&[], MAX), Ok(None));
        assert_eq!(FixedHeader::parse(&[0x30], MAX), Ok(None));
        assert_eq!(FixedHeader::parse(&[0x30, 0x80], MAX), Ok(None));
        let header = FixedHeader::parse(&[0x3d, 0x80, 1, 0], MAX).unwrap().unwrap();
        assert_eq!((header.len, header.remaining, header.packet_len()), (3, 128, 131));
        assert_eq!(
            (header.qos(), header.dup(), header.retain()),
            (QoS::ExactlyOnce, true, true)
        );
        assert!(!header.is_padded);
        assert!(FixedHeader::parse(&[0xc0, 0x80, 0], MAX).unwrap().unwrap().is_padded);
        let error = FixedHeader::parse(&[0x30, 0xff, 0xff, 0xff, 0xff], MAX).unwrap_err();
        assert_eq!(error.code, ReasonCode::MalformedPacket);
    }

    #[test]
    fn packets_over_the_limit_are_refused_by_their_header() {
        assert!(FixedHeader::parse(&[0x30, 98], 100).is_ok());
        let error = FixedHeader::parse(&[0x30, 99], 100).unwrap_err();
        assert_eq!(error.code, ReasonCode::PacketTooLarge);
    }
}
