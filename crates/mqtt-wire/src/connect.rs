//! CONNECT (standard 3.1). Its errors differ from those of other packets: some are answered in the form of another version,
//! some not at all.

use bytes::Bytes;

use crate::properties::{self, Properties, PropertyId, PropertyPlace};
use crate::reader::{DecodeError, WireReader, WireResult};
use crate::{FixedHeader, ProtocolVersion, QoS, ReasonCode, topic, utf8};

/// The fields of a CONNECT.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connect {
    pub version: ProtocolVersion,
    /// Clean Start of 5.0, Clean Session of 3.1.1.
    pub clean_start: bool,
    /// Seconds; 0 is off.
    pub keep_alive: u16,
    /// `Err`: it is no string of the standard.
    pub client_id: Result<String, DecodeError>,
    pub will: Option<Will>,
    pub user_name: Option<String>,
    pub password: Option<Bytes>,
    /// Seconds that the session outlives its connection; `u32::MAX` is for ever. 0 in 3.1.1, where Clean Session decides.
    pub session_expiry: u32,
    /// Unacknowledged QoS 1 and 2 messages that the client takes.
    pub receive_maximum: u16,
    /// `None`: packets of any size.
    pub maximum_packet_size: Option<u32>,
    pub topic_alias_maximum: u16,
    pub request_problem_information: bool,
    pub request_response_information: bool,
    pub has_authentication_method: bool,
    pub properties: Properties,
}

/// The message that is published when a connection ends without DISCONNECT 0x00.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Will {
    pub topic: String,
    pub payload: Bytes,
    pub qos: QoS,
    pub retain: bool,
    /// Seconds.
    pub delay: u32,
    /// As sent, with the delay.
    pub properties: Properties,
}

/// How a CONNECT is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectRefusal {
    /// The connection is closed without an answer: this is not MQTT.
    Silent(&'static str),
    /// The level is not served. Below 5, and with bit 7 set, the answer has the form of 3.1.1, else that of 5.0.
    Level(u8),
    /// With the code in 5.0. 3.1 and 3.1.1 have an answer for some codes, see [`ReasonCode::connack_v3`].
    Code(ProtocolVersion, DecodeError),
}

/// The most bytes of a client id in 3.1.
const CLIENT_ID_3_1_MAX: usize = 23;
const USER_NAME: u8 = 0x80;
const PASSWORD: u8 = 0x40;
const WILL_RETAIN: u8 = 0x20;
const WILL_QOS: u8 = 0x18;
const WILL: u8 = 0x04;
const CLEAN_START: u8 = 0x02;
const RESERVED: u8 = 0x01;

impl Connect {
    /// Reads a whole CONNECT packet, of which `header` is the fixed header.
    pub fn decode(packet: &Bytes, header: &FixedHeader, strict_utf8: bool) -> Result<Connect, ConnectRefusal> {
        let mut reader = WireReader::new(packet, header.len, strict_utf8);
        let version = version(&mut reader)?;
        let code = |error| ConnectRefusal::Code(version, error);
        if header.is_padded && version.is_5() {
            return Err(code(DecodeError::malformed(
                "the remaining length is longer than needed",
            )));
        }
        fields(packet, reader, version, strict_utf8).map_err(code)
    }
}

fn version(reader: &mut WireReader<'_>) -> Result<ProtocolVersion, ConnectRefusal> {
    let name = reader.binary();
    let name = name.map_err(|_| ConnectRefusal::Silent("CONNECT ends within the protocol name"))?;
    if !matches!(name, b"MQTT" | b"MQIsdp") {
        return Err(ConnectRefusal::Silent("the protocol name is not MQTT"));
    }
    let level = reader.byte();
    let level = level.map_err(|_| ConnectRefusal::Silent("CONNECT ends before the protocol level"))?;
    match (name, level) {
        (b"MQIsdp", 3) => Ok(ProtocolVersion::V3_1),
        (b"MQIsdp", _) => Err(ConnectRefusal::Silent("the protocol name is not MQTT")),
        (_, 4) => Ok(ProtocolVersion::V3_1_1),
        (_, 5) => Ok(ProtocolVersion::V5),
        _ => Err(ConnectRefusal::Level(level)),
    }
}

fn fields(packet: &Bytes, mut reader: WireReader<'_>, version: ProtocolVersion, strict: bool) -> WireResult<Connect> {
    let flags = reader.byte()?;
    check_flags(flags, version)?;
    let keep_alive = reader.two()?;
    let mut connect = Connect {
        version,
        clean_start: flags & CLEAN_START != 0,
        keep_alive,
        client_id: Ok(String::new()),
        will: None,
        user_name: None,
        password: None,
        session_expiry: 0,
        receive_maximum: u16::MAX,
        maximum_packet_size: None,
        topic_alias_maximum: 0,
        request_problem_information: true,
        request_response_information: false,
        has_authentication_method: false,
        properties: Properties::default(),
    };
    if version.is_5() {
        let (start, end) = properties::read(&mut reader, PropertyPlace::Connect, strict, |property| {
            let number = property.value.number();
            match property.id {
                PropertyId::SessionExpiryInterval => connect.session_expiry = number,
                PropertyId::ReceiveMaximum => connect.receive_maximum = number as u16,
                PropertyId::MaximumPacketSize => connect.maximum_packet_size = Some(number),
                PropertyId::TopicAliasMaximum => connect.topic_alias_maximum = number as u16,
                PropertyId::RequestProblemInformation => connect.request_problem_information = number == 1,
                PropertyId::RequestResponseInformation => connect.request_response_information = number == 1,
                PropertyId::AuthenticationMethod => connect.has_authentication_method = true,
                _ => {}
            }
        })?;
        connect.properties = Properties::of_checked(packet.slice(start..end));
    }
    connect.client_id = client_id(reader.binary()?, version, strict);
    if flags & WILL != 0 {
        connect.will = Some(will(packet, &mut reader, flags, version, strict)?);
    }
    if flags & USER_NAME != 0 {
        connect.user_name = Some(reader.string()?.to_owned());
    }
    if flags & PASSWORD != 0 {
        connect.password = Some(packet.slice_ref(reader.binary()?));
    }
    reader.end()?;
    Ok(connect)
}

fn check_flags(flags: u8, version: ProtocolVersion) -> WireResult<()> {
    if flags & RESERVED != 0 {
        return Err(DecodeError::malformed("the reserved connect flag is set"));
    }
    if flags & WILL_QOS == WILL_QOS {
        return Err(DecodeError::malformed("the Will QoS is 3"));
    }
    if flags & WILL == 0 && flags & (WILL_QOS | WILL_RETAIN) != 0 {
        return Err(DecodeError::malformed(
            "Will QoS or Will Retain is set without the Will Flag",
        ));
    }
    if flags & PASSWORD != 0 && flags & USER_NAME == 0 && !version.is_5() {
        return Err(DecodeError::malformed("a password without a user name"));
    }
    Ok(())
}

fn client_id(bytes: &[u8], version: ProtocolVersion, strict: bool) -> Result<String, DecodeError> {
    let invalid = |what| DecodeError {
        code: ReasonCode::ClientIdentifierNotValid,
        what,
    };
    let text = utf8::checked(bytes, strict).map_err(|error| invalid(error.what))?;
    match version == ProtocolVersion::V3_1 && !(1..=CLIENT_ID_3_1_MAX).contains(&bytes.len()) {
        true => Err(invalid("the client id of MQTT 3.1 must have 1 to 23 bytes")),
        false => Ok(text.to_owned()),
    }
}

fn will(
    packet: &Bytes,
    reader: &mut WireReader<'_>,
    flags: u8,
    version: ProtocolVersion,
    strict: bool,
) -> WireResult<Will> {
    let (mut delay, mut section) = (0, Properties::default());
    if version.is_5() {
        let (start, end) = properties::read(reader, PropertyPlace::Will, strict, |property| {
            if property.id == PropertyId::WillDelayInterval {
                delay = property.value.number();
            }
        })?;
        section = Properties::of_checked(packet.slice(start..end));
    }
    let topic = reader.string()?;
    let payload = packet.slice_ref(reader.binary()?);
    if !topic::is_name(topic) {
        return Err(DecodeError {
            code: ReasonCode::TopicNameInvalid,
            what: "the Will topic is empty or contains a wildcard",
        });
    }
    Ok(Will {
        topic: topic.to_owned(),
        payload,
        qos: QoS::of((flags & WILL_QOS) >> 3).unwrap_or_default(),
        retain: flags & WILL_RETAIN != 0,
        delay,
        properties: section,
    })
}
