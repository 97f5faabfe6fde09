//! Writes packets. Each function appends to a buffer, so packets that leave together are written together.

use crate::properties::{PropertyId, PropertyValue};
use crate::reader::VariableInteger;
use crate::{PacketKind, ProtocolVersion, QoS, ReasonCode, SubscribeOptions};

/// A section of properties that is being written, without its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertyWriter(Vec<u8>);

impl PropertyWriter {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn byte(&mut self, id: PropertyId, value: u8) -> &mut PropertyWriter {
        self.put(id, PropertyValue::Byte(value))
    }

    pub fn two(&mut self, id: PropertyId, value: u16) -> &mut PropertyWriter {
        self.put(id, PropertyValue::Two(value))
    }

    /// A number of four bytes, or the variable one of a subscription identifier.
    pub fn number(&mut self, id: PropertyId, value: u32) -> &mut PropertyWriter {
        self.put(id, PropertyValue::Number(value))
    }

    pub fn text(&mut self, id: PropertyId, text: &str) -> &mut PropertyWriter {
        self.put(id, PropertyValue::Text(text))
    }

    pub fn user(&mut self, name: &str, value: &str) -> &mut PropertyWriter {
        self.put(PropertyId::UserProperty, PropertyValue::Pair(name, value))
    }

    /// The value must have the type of the property. Texts and binary data are cut at 65,535 bytes.
    pub fn put(&mut self, id: PropertyId, value: PropertyValue<'_>) -> &mut PropertyWriter {
        self.0.push(id as u8);
        match value {
            PropertyValue::Byte(value) => self.0.push(value),
            PropertyValue::Two(value) => self.0.extend_from_slice(&value.to_be_bytes()),
            PropertyValue::Number(value) if id == PropertyId::SubscriptionIdentifier => {
                variable(&mut self.0, value as usize)
            }
            PropertyValue::Number(value) => self.0.extend_from_slice(&value.to_be_bytes()),
            PropertyValue::Text(text) => string(&mut self.0, text),
            PropertyValue::Binary(bytes) => binary(&mut self.0, bytes),
            PropertyValue::Pair(name, value) => {
                string(&mut self.0, name);
                string(&mut self.0, value);
            }
        }
        self
    }

    /// The bytes that a section takes with its length.
    pub fn section_len(&self) -> usize {
        section_len(&self.0)
    }
}

#[inline]
fn section_len(section: &[u8]) -> usize {
    VariableInteger::len_of(section.len()) + section.len()
}

#[inline]
pub fn variable(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a string with its length, cut at 65,535 bytes between letters.
#[inline]
pub fn string(out: &mut Vec<u8>, text: &str) {
    binary(
        out,
        text.get(..text.floor_char_boundary(usize::from(u16::MAX)))
            .unwrap_or_default()
            .as_bytes(),
    );
}

/// Appends bytes with their length, cut at 65,535.
#[inline]
pub fn binary(out: &mut Vec<u8>, bytes: &[u8]) {
    let len = bytes.len().min(usize::from(u16::MAX));
    out.extend_from_slice(&(len as u16).to_be_bytes());
    out.extend_from_slice(bytes.get(..len).unwrap_or_default());
}

#[inline]
fn section(out: &mut Vec<u8>, section: &[u8]) {
    variable(out, section.len());
    out.extend_from_slice(section);
}

#[inline]
fn header(out: &mut Vec<u8>, first: u8, remaining: usize) {
    out.push(first);
    variable(out, remaining);
}

/// A CONNECT. Strings have at most 65,535 bytes.
#[derive(Clone, Debug)]
pub struct ConnectRequest<'a> {
    pub version: ProtocolVersion,
    pub clean_start: bool,
    /// Seconds.
    pub keep_alive: u16,
    pub client_id: &'a str,
    pub user_name: Option<&'a str>,
    pub password: Option<&'a [u8]>,
    pub will: Option<WillRequest<'a>>,
    /// Of 5.0.
    pub properties: &'a [u8],
}

#[derive(Clone, Debug)]
pub struct WillRequest<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Of 5.0.
    pub properties: &'a [u8],
}

pub fn connect(out: &mut Vec<u8>, request: &ConnectRequest<'_>) {
    let mut body = Vec::new();
    let name = if request.version == ProtocolVersion::V3_1 {
        "MQIsdp"
    } else {
        "MQTT"
    };
    string(&mut body, name);
    body.push(request.version.level());
    let will = request
        .will
        .as_ref()
        .map_or(0, |will| 0x04 | will.qos.number() << 3 | u8::from(will.retain) << 5);
    let flags = u8::from(request.clean_start) << 1
        | will
        | u8::from(request.password.is_some()) << 6
        | u8::from(request.user_name.is_some()) << 7;
    body.push(flags);
    body.extend_from_slice(&request.keep_alive.to_be_bytes());
    if request.version.is_5() {
        section(&mut body, request.properties);
    }
    string(&mut body, request.client_id);
    if let Some(will) = &request.will {
        if request.version.is_5() {
            section(&mut body, will.properties);
        }
        string(&mut body, will.topic);
        binary(&mut body, will.payload);
    }
    if let Some(user_name) = request.user_name {
        string(&mut body, user_name);
    }
    if let Some(password) = request.password {
        binary(&mut body, password);
    }
    header(out, PacketKind::Connect.first_byte(), body.len());
    out.extend_from_slice(&body);
}

/// A CONNACK of 5.0.
pub fn connack(out: &mut Vec<u8>, session_present: bool, reason: ReasonCode, properties: &[u8]) {
    header(out, PacketKind::ConnAck.first_byte(), 2 + section_len(properties));
    out.extend_from_slice(&[session_present.into(), reason.number()]);
    section(out, properties);
}

/// A CONNACK of 3.1 and 3.1.1; `code` is one of theirs.
pub fn connack_v3(out: &mut Vec<u8>, session_present: bool, code: u8) {
    header(out, PacketKind::ConnAck.first_byte(), 2);
    out.extend_from_slice(&[session_present.into(), code]);
}

/// A PUBACK, PUBREC, PUBREL or PUBCOMP in its shortest form. 3.1.1 has neither reason nor properties.
#[inline]
pub fn ack(
    out: &mut Vec<u8>,
    version: ProtocolVersion,
    kind: PacketKind,
    packet_id: u16,
    reason: ReasonCode,
    properties: &[u8],
) {
    let [high, low] = packet_id.to_be_bytes();
    if !version.is_5() || (reason == ReasonCode::Success && properties.is_empty()) {
        return out.extend_from_slice(&[kind.first_byte(), 2, high, low]);
    }
    if properties.is_empty() {
        return out.extend_from_slice(&[kind.first_byte(), 3, high, low, reason.number()]);
    }
    header(out, kind.first_byte(), 3 + section_len(properties));
    out.extend_from_slice(&[high, low, reason.number()]);
    section(out, properties);
}

/// A SUBACK. In 3.1.1 each failure is 0x80.
pub fn suback(out: &mut Vec<u8>, version: ProtocolVersion, packet_id: u16, properties: &[u8], codes: &[ReasonCode]) {
    let properties = version.is_5().then_some(properties);
    let len = 2 + properties.map_or(0, section_len) + codes.len();
    header(out, PacketKind::SubAck.first_byte(), len);
    out.extend_from_slice(&packet_id.to_be_bytes());
    if let Some(properties) = properties {
        section(out, properties);
    }
    out.extend(codes.iter().map(|code| match code.is_failure() && !version.is_5() {
        true => ReasonCode::UnspecifiedError.number(),
        false => code.number(),
    }));
}

/// An UNSUBACK. 3.1.1 has no codes.
pub fn unsuback(out: &mut Vec<u8>, version: ProtocolVersion, packet_id: u16, properties: &[u8], codes: &[ReasonCode]) {
    if !version.is_5() {
        header(out, PacketKind::UnsubAck.first_byte(), 2);
        return out.extend_from_slice(&packet_id.to_be_bytes());
    }
    header(
        out,
        PacketKind::UnsubAck.first_byte(),
        2 + section_len(properties) + codes.len(),
    );
    out.extend_from_slice(&packet_id.to_be_bytes());
    section(out, properties);
    out.extend(codes.iter().map(|code| code.number()));
}

/// A SUBSCRIBE; below 5.0 only the QoS of the options is sent.
pub fn subscribe(
    out: &mut Vec<u8>,
    version: ProtocolVersion,
    packet_id: u16,
    properties: &[u8],
    filters: &[(&str, SubscribeOptions)],
) {
    let mut body = request(version, packet_id, properties);
    for (filter, options) in filters {
        string(&mut body, filter);
        body.push(if version.is_5() {
            options.byte()
        } else {
            options.qos.number()
        });
    }
    header(out, PacketKind::Subscribe.first_byte(), body.len());
    out.extend_from_slice(&body);
}

pub fn unsubscribe(out: &mut Vec<u8>, version: ProtocolVersion, packet_id: u16, properties: &[u8], filters: &[&str]) {
    let mut body = request(version, packet_id, properties);
    filters.iter().for_each(|filter| string(&mut body, filter));
    header(out, PacketKind::Unsubscribe.first_byte(), body.len());
    out.extend_from_slice(&body);
}

fn request(version: ProtocolVersion, packet_id: u16, properties: &[u8]) -> Vec<u8> {
    let mut body = packet_id.to_be_bytes().to_vec();
    if version.is_5() {
        section(&mut body, properties);
    }
    body
}

/// A DISCONNECT. Below 5.0 only clients send it, without a reason.
pub fn disconnect(out: &mut Vec<u8>, version: ProtocolVersion, reason: ReasonCode, properties: &[u8]) {
    let first = PacketKind::Disconnect.first_byte();
    if !version.is_5() || (reason == ReasonCode::Success && properties.is_empty()) {
        return out.extend_from_slice(&[first, 0]);
    }
    if properties.is_empty() {
        return out.extend_from_slice(&[first, 1, reason.number()]);
    }
    header(out, first, 1 + section_len(properties));
    out.push(reason.number());
    section(out, properties);
}

pub fn pingreq(out: &mut Vec<u8>) {
    out.extend_from_slice(&[PacketKind::PingReq.first_byte(), 0]);
}

pub fn pingresp(out: &mut Vec<u8>) {
    out.extend_from_slice(&[PacketKind::PingResp.first_byte(), 0]);
}

/// What stands before the payload of a PUBLISH.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishHead<'a> {
    pub qos: QoS,
    pub dup: bool,
    pub retain: bool,
    /// Ignored with QoS 0.
    pub packet_id: u16,
    /// At most 65,535 bytes. May be empty with a topic alias that the other side knows.
    pub topic: &'a str,
    /// 0: none.
    pub topic_alias: u16,
    /// Seconds.
    pub expiry: Option<u32>,
    /// Other properties as bytes, without their length.
    pub forwarded: &'a [u8],
    /// Only servers send them.
    pub subscription_ids: &'a [u32],
}

impl PublishHead<'_> {
    /// Bytes of the properties, without their length.
    #[inline]
    fn properties_len(&self) -> usize {
        let ids = self.subscription_ids.iter();
        let ids: usize = ids.map(|id| 1 + VariableInteger::len_of(*id as usize)).sum();
        self.forwarded.len()
            + ids
            + if self.topic_alias > 0 { 3 } else { 0 }
            + if self.expiry.is_some() { 5 } else { 0 }
    }

    /// Bytes behind the fixed header.
    #[inline]
    fn remaining(&self, version: ProtocolVersion, payload_len: usize) -> usize {
        let id = if self.qos == QoS::AtMostOnce { 0 } else { 2 };
        let properties = match version.is_5() {
            true => {
                let len = self.properties_len();
                VariableInteger::len_of(len) + len
            }
            false => 0,
        };
        2 + self.topic.len() + id + properties + payload_len
    }

    /// Bytes of the whole packet.
    #[inline]
    pub fn packet_len(&self, version: ProtocolVersion, payload_len: usize) -> usize {
        let remaining = self.remaining(version, payload_len);
        1 + VariableInteger::len_of(remaining) + remaining
    }

    /// Appends everything before the payload, which has `payload_len` bytes.
    #[inline]
    pub fn write(&self, out: &mut Vec<u8>, version: ProtocolVersion, payload_len: usize) {
        let flags = u8::from(self.dup) << 3 | self.qos.number() << 1 | u8::from(self.retain);
        header(
            out,
            PacketKind::Publish.first_byte() | flags,
            self.remaining(version, payload_len),
        );
        string(out, self.topic);
        if self.qos != QoS::AtMostOnce {
            out.extend_from_slice(&self.packet_id.to_be_bytes());
        }
        if !version.is_5() {
            return;
        }
        variable(out, self.properties_len());
        if self.topic_alias > 0 {
            let [high, low] = self.topic_alias.to_be_bytes();
            out.extend_from_slice(&[PropertyId::TopicAlias as u8, high, low]);
        }
        if let Some(expiry) = self.expiry {
            out.push(PropertyId::MessageExpiryInterval as u8);
            out.extend_from_slice(&expiry.to_be_bytes());
        }
        out.extend_from_slice(self.forwarded);
        for id in self.subscription_ids {
            out.push(PropertyId::SubscriptionIdentifier as u8);
            variable(out, *id as usize);
        }
    }
}
