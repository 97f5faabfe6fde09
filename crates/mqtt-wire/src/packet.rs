//! All packets but CONNECT, which comes first and alone, from bytes.

use bytes::Bytes;

use crate::properties::{Properties, PropertyId, PropertyPlace};
use crate::reader::{DecodeError, WireReader, WireResult};
use crate::reason::allowed;
use crate::subscribe::section;
use crate::{DecodeContext, FixedHeader, PacketKind, Publish, ReasonCode, Sender, Subscribe, Unsubscribe};

/// A received packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Packet {
    ConnAck(Box<ConnAck>),
    Publish(Publish),
    PubAck(Ack),
    PubRec(Ack),
    PubRel(Ack),
    PubComp(Ack),
    Subscribe(Subscribe),
    SubAck(SubAck),
    Unsubscribe(Unsubscribe),
    UnsubAck(SubAck),
    PingReq,
    PingResp,
    Disconnect(Disconnect),
}

/// PUBACK, PUBREC, PUBREL or PUBCOMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ack {
    pub packet_id: u16,
    /// Success in 3.1.1.
    pub reason: ReasonCode,
    pub properties: Properties,
}

/// SUBACK or UNSUBACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubAck {
    pub packet_id: u16,
    pub properties: Properties,
    /// One code per filter. UNSUBACK of 3.1.1 has none.
    pub codes: Vec<ReasonCode>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disconnect {
    pub reason: ReasonCode,
    /// Seconds, if the client changes it.
    pub session_expiry: Option<u32>,
    pub properties: Properties,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnAck {
    pub session_present: bool,
    /// In 3.1.1 the code of 5.0 that says the same.
    pub reason: ReasonCode,
    pub properties: Properties,
}

impl Packet {
    /// Reads a whole packet, of which `header` is the fixed header. Its buffer is shared.
    #[inline]
    pub fn decode(packet: Bytes, header: &FixedHeader, context: DecodeContext) -> WireResult<Packet> {
        if header.is_padded && context.version.is_5() {
            return Err(DecodeError::malformed("the remaining length is longer than needed"));
        }
        match header.kind {
            PacketKind::Publish => Publish::decode(packet, header, context).map(Packet::Publish),
            PacketKind::PubAck => ack(&packet, header, context, allowed::PUBACK).map(Packet::PubAck),
            PacketKind::PubRec => ack(&packet, header, context, allowed::PUBACK).map(Packet::PubRec),
            PacketKind::PubRel => ack(&packet, header, context, allowed::PUBREL).map(Packet::PubRel),
            PacketKind::PubComp => ack(&packet, header, context, allowed::PUBREL).map(Packet::PubComp),
            _ => others(&packet, header, context),
        }
    }
}

fn others(packet: &Bytes, header: &FixedHeader, context: DecodeContext) -> WireResult<Packet> {
    let is_client = context.sender == Sender::Client;
    match header.kind {
        PacketKind::Subscribe if is_client => Subscribe::decode(packet, header, context).map(Packet::Subscribe),
        PacketKind::Unsubscribe if is_client => Unsubscribe::decode(packet, header, context).map(Packet::Unsubscribe),
        PacketKind::PingReq if is_client => empty(header, Packet::PingReq),
        PacketKind::PingResp if !is_client => empty(header, Packet::PingResp),
        PacketKind::Disconnect if is_client || context.version.is_5() => disconnect(packet, header, context),
        PacketKind::ConnAck if !is_client => connack(packet, header, context),
        PacketKind::SubAck if !is_client => suback(packet, header, context).map(Packet::SubAck),
        PacketKind::UnsubAck if !is_client => unsuback(packet, header, context).map(Packet::UnsubAck),
        PacketKind::Auth if !context.version.is_5() => Err(DecodeError::malformed("the packet type is 15")),
        PacketKind::Auth => Err(DecodeError::protocol("AUTH without an authentication method")),
        PacketKind::Connect => Err(DecodeError::protocol("a second CONNECT")),
        _ => Err(DecodeError::protocol("the other side may not send this packet")),
    }
}

fn empty(header: &FixedHeader, packet: Packet) -> WireResult<Packet> {
    match header.remaining {
        0 => Ok(packet),
        _ => Err(DecodeError::malformed("a ping has a body")),
    }
}

#[inline]
fn reason(byte: u8, allowed: &[ReasonCode]) -> WireResult<ReasonCode> {
    let code = ReasonCode::of(byte).filter(|code| allowed.contains(code));
    code.ok_or_else(|| DecodeError::malformed("the reason code does not belong to this packet"))
}

/// Reads an acknowledgement. Of length 2 it means success, of length 3 it has no properties (standard 3.4.2.1).
#[inline]
fn ack(packet: &Bytes, header: &FixedHeader, context: DecodeContext, allowed: &[ReasonCode]) -> WireResult<Ack> {
    let mut reader = WireReader::new(packet, header.len, context.strict_utf8);
    let mut ack = Ack {
        packet_id: reader.packet_id()?,
        reason: ReasonCode::Success,
        properties: Properties::default(),
    };
    if context.version.is_5() && !reader.is_at_end() {
        ack.reason = reason(reader.byte()?, allowed)?;
        if !reader.is_at_end() {
            ack.properties = section(packet, &mut reader, context, PropertyPlace::Ack, |_| {})?;
        }
    }
    reader.end()?;
    Ok(ack)
}

/// Of length 0 it means 0x00, of length 1 it has no properties (standard 3.14.2.1).
fn disconnect(packet: &Bytes, header: &FixedHeader, context: DecodeContext) -> WireResult<Packet> {
    let mut reader = WireReader::new(packet, header.len, context.strict_utf8);
    let mut disconnect = Disconnect {
        reason: ReasonCode::Success,
        session_expiry: None,
        properties: Properties::default(),
    };
    let (place, is_allowed): (_, fn(ReasonCode) -> bool) = match context.sender {
        Sender::Client => (PropertyPlace::ClientDisconnect, allowed::disconnect_of_client),
        Sender::Server => (PropertyPlace::ServerDisconnect, allowed::disconnect_of_server),
    };
    if context.version.is_5() && !reader.is_at_end() {
        let code = ReasonCode::of(reader.byte()?).filter(|code| is_allowed(*code));
        disconnect.reason =
            code.ok_or_else(|| DecodeError::malformed("the reason code does not belong to this packet"))?;
        if !reader.is_at_end() {
            disconnect.properties = section(packet, &mut reader, context, place, |property| {
                if property.id == PropertyId::SessionExpiryInterval {
                    disconnect.session_expiry = Some(property.value.number());
                }
            })?;
        }
    }
    reader.end()?;
    Ok(Packet::Disconnect(disconnect))
}

fn connack(packet: &Bytes, header: &FixedHeader, context: DecodeContext) -> WireResult<Packet> {
    let mut reader = WireReader::new(packet, header.len, context.strict_utf8);
    let flags = reader.byte()?;
    if flags > 1 {
        return Err(DecodeError::malformed("a reserved flag of CONNACK is set"));
    }
    let code = reader.byte()?;
    let reason = match context.version.is_5() {
        true => reason(code, allowed::CONNACK)?,
        false => connack_v3(code)?,
    };
    let properties = section(packet, &mut reader, context, PropertyPlace::ConnAck, |_| {})?;
    reader.end()?;
    Ok(Packet::ConnAck(Box::new(ConnAck {
        session_present: flags == 1,
        reason,
        properties,
    })))
}

fn connack_v3(code: u8) -> WireResult<ReasonCode> {
    Ok(match code {
        0 => ReasonCode::Success,
        1 => ReasonCode::UnsupportedProtocolVersion,
        2 => ReasonCode::ClientIdentifierNotValid,
        3 => ReasonCode::ServerUnavailable,
        4 => ReasonCode::BadUserNameOrPassword,
        5 => ReasonCode::NotAuthorized,
        _ => return Err(DecodeError::malformed("an unknown return code of CONNACK")),
    })
}

fn codes(reader: &mut WireReader<'_>, allowed: &[ReasonCode]) -> WireResult<Vec<ReasonCode>> {
    let mut codes = Vec::with_capacity(reader.rest().len());
    while !reader.is_at_end() {
        codes.push(reason(reader.byte()?, allowed)?);
    }
    Ok(codes)
}

const SUBACK_V3: &[ReasonCode] = &[
    ReasonCode::Success,
    ReasonCode::GrantedQoS1,
    ReasonCode::GrantedQoS2,
    ReasonCode::UnspecifiedError,
];

fn suback(packet: &Bytes, header: &FixedHeader, context: DecodeContext) -> WireResult<SubAck> {
    let mut reader = WireReader::new(packet, header.len, context.strict_utf8);
    let allowed = if context.version.is_5() {
        allowed::SUBACK
    } else {
        SUBACK_V3
    };
    Ok(SubAck {
        packet_id: reader.packet_id()?,
        properties: section(packet, &mut reader, context, PropertyPlace::Ack, |_| {})?,
        codes: codes(&mut reader, allowed)?,
    })
}

fn unsuback(packet: &Bytes, header: &FixedHeader, context: DecodeContext) -> WireResult<SubAck> {
    let mut reader = WireReader::new(packet, header.len, context.strict_utf8);
    let packet_id = reader.packet_id()?;
    let properties = section(packet, &mut reader, context, PropertyPlace::Ack, |_| {})?;
    let codes = match context.version.is_5() {
        true => codes(&mut reader, allowed::UNSUBACK)?,
        false => Vec::new(),
    };
    reader.end()?;
    Ok(SubAck {
        packet_id,
        properties,
        codes,
    })
}
