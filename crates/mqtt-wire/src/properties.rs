//! Properties of MQTT 5.0 (standard 2.2.2). A section is checked once, in one pass, and stays bytes.

use bytes::Bytes;

use crate::reader::{DecodeError, WireReader, WireResult};
use crate::topic;

/// Where properties stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum PropertyPlace {
    Connect = 1 << 0,
    ConnAck = 1 << 1,
    /// PUBLISH of a client.
    Publish = 1 << 2,
    /// PUBLISH of a server, which may have subscription identifiers.
    Delivery = 1 << 3,
    Will = 1 << 4,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK.
    Ack = 1 << 5,
    Subscribe = 1 << 6,
    Unsubscribe = 1 << 7,
    /// DISCONNECT of a client.
    ClientDisconnect = 1 << 8,
    /// DISCONNECT of a server.
    ServerDisconnect = 1 << 9,
    Auth = 1 << 10,
}

use PropertyPlace as Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PropertyType {
    /// A byte that is 0 or 1.
    Flag,
    Two,
    Four,
    Variable,
    Text,
    Binary,
    Pair,
}

macro_rules! properties {
    ($($name:ident = $id:literal, $kind:ident, $places:expr;)*) => {
        /// What a property is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum PropertyId {
            $($name = $id,)*
        }

        impl PropertyId {
            /// All identifiers in ascending order.
            pub const ALL: &[PropertyId] = &[$(PropertyId::$name,)*];

            /// `None` for a number that the standard does not define.
            #[inline]
            pub fn of(number: u8) -> Option<PropertyId> {
                match number {
                    $($id => Some(PropertyId::$name),)*
                    _ => None,
                }
            }

            #[inline]
            fn kind(self) -> PropertyType {
                match self {
                    $(PropertyId::$name => PropertyType::$kind,)*
                }
            }

            /// The places that it may stand in, a bit each.
            #[inline]
            fn places(self) -> u16 {
                match self {
                    $(PropertyId::$name => $places,)*
                }
            }
        }
    };
}

const MESSAGE: u16 = Place::Publish as u16 | Place::Delivery as u16 | Place::Will as u16;
const HANDSHAKE: u16 = Place::Connect as u16 | Place::ConnAck as u16;
const DISCONNECTS: u16 = Place::ClientDisconnect as u16 | Place::ServerDisconnect as u16;

properties! {
    PayloadFormatIndicator = 0x01, Flag, MESSAGE;
    MessageExpiryInterval = 0x02, Four, MESSAGE;
    ContentType = 0x03, Text, MESSAGE;
    ResponseTopic = 0x08, Text, MESSAGE;
    CorrelationData = 0x09, Binary, MESSAGE;
    SubscriptionIdentifier = 0x0b, Variable, Place::Subscribe as u16 | Place::Delivery as u16;
    SessionExpiryInterval = 0x11, Four, HANDSHAKE | Place::ClientDisconnect as u16;
    AssignedClientIdentifier = 0x12, Text, Place::ConnAck as u16;
    ServerKeepAlive = 0x13, Two, Place::ConnAck as u16;
    AuthenticationMethod = 0x15, Text, HANDSHAKE | Place::Auth as u16;
    AuthenticationData = 0x16, Binary, HANDSHAKE | Place::Auth as u16;
    RequestProblemInformation = 0x17, Flag, Place::Connect as u16;
    WillDelayInterval = 0x18, Four, Place::Will as u16;
    RequestResponseInformation = 0x19, Flag, Place::Connect as u16;
    ResponseInformation = 0x1a, Text, Place::ConnAck as u16;
    ServerReference = 0x1c, Text, Place::ConnAck as u16 | Place::ServerDisconnect as u16;
    ReasonString = 0x1f, Text, Place::ConnAck as u16 | Place::Ack as u16 | DISCONNECTS | Place::Auth as u16;
    ReceiveMaximum = 0x21, Two, HANDSHAKE;
    TopicAliasMaximum = 0x22, Two, HANDSHAKE;
    TopicAlias = 0x23, Two, Place::Publish as u16 | Place::Delivery as u16;
    MaximumQoS = 0x24, Flag, Place::ConnAck as u16;
    RetainAvailable = 0x25, Flag, Place::ConnAck as u16;
    UserProperty = 0x26, Pair, u16::MAX;
    MaximumPacketSize = 0x27, Four, HANDSHAKE;
    WildcardSubscriptionAvailable = 0x28, Flag, Place::ConnAck as u16;
    SubscriptionIdentifiersAvailable = 0x29, Flag, Place::ConnAck as u16;
    SharedSubscriptionAvailable = 0x2a, Flag, Place::ConnAck as u16;
}

impl PropertyId {
    /// Whether it may stand more than once in one section.
    #[inline]
    fn is_repeatable(self, place: PropertyPlace) -> bool {
        match self {
            PropertyId::UserProperty => true,
            PropertyId::SubscriptionIdentifier => place == Place::Delivery,
            _ => false,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyValue<'a> {
    Byte(u8),
    Two(u16),
    /// Four bytes, or a variable byte integer.
    Number(u32),
    Text(&'a str),
    Binary(&'a [u8]),
    Pair(&'a str, &'a str),
}

impl<'a> PropertyValue<'a> {
    /// A number of any size; 0 for other values.
    #[inline]
    pub fn number(self) -> u32 {
        match self {
            PropertyValue::Byte(number) => number.into(),
            PropertyValue::Two(number) => number.into(),
            PropertyValue::Number(number) => number,
            _ => 0,
        }
    }

    /// A text; empty for other values.
    #[inline]
    pub fn text(self) -> &'a str {
        match self {
            PropertyValue::Text(text) => text,
            _ => "",
        }
    }
}

/// A property within its section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property<'a> {
    pub id: PropertyId,
    pub value: PropertyValue<'a>,
    /// Its bytes, with the identifier.
    pub bytes: &'a [u8],
}

/// Reads the next property of a section.
#[inline]
fn next<'a>(reader: &mut WireReader<'a>) -> WireResult<Property<'a>> {
    let from = reader.rest();
    let start = reader.position();
    let Some(id) = PropertyId::of(reader.byte()?) else {
        return Err(DecodeError::malformed("a property is unknown"));
    };
    let value = match id.kind() {
        PropertyType::Flag => PropertyValue::Byte(reader.byte()?),
        PropertyType::Two => PropertyValue::Two(reader.two()?),
        PropertyType::Four => PropertyValue::Number(reader.four()?),
        PropertyType::Variable => PropertyValue::Number(reader.variable()?),
        PropertyType::Text => PropertyValue::Text(reader.string()?),
        PropertyType::Binary => PropertyValue::Binary(reader.binary()?),
        PropertyType::Pair => {
            let name = reader.string()?;
            PropertyValue::Pair(name, reader.string()?)
        }
    };
    let bytes = from.get(..reader.position() - start).unwrap_or_default();
    Ok(Property { id, value, bytes })
}

/// Reads a section with its length, checks it, and passes each property to `see`. Returns where the section stands in the
/// reader's bytes, without its length.
pub fn read(
    reader: &mut WireReader<'_>,
    place: PropertyPlace,
    strict: bool,
    mut see: impl FnMut(&Property<'_>),
) -> WireResult<(usize, usize)> {
    let len = reader.variable()? as usize;
    let start = reader.position();
    let section = reader.take(len)?;
    let mut inner = WireReader::new(section, 0, strict);
    let mut seen = 0_u64;
    while !inner.is_at_end() {
        let property = next(&mut inner)?;
        check(&property, place)?;
        let bit = 1 << (property.id as u8);
        if seen & bit != 0 && !property.id.is_repeatable(place) {
            return Err(DecodeError::protocol("a property stands twice"));
        }
        seen |= bit;
        see(&property);
    }
    let has = |id: PropertyId| seen & (1 << (id as u8)) != 0;
    if has(PropertyId::AuthenticationData) && !has(PropertyId::AuthenticationMethod) {
        return Err(DecodeError::protocol("authentication data without a method"));
    }
    Ok((start, start + len))
}

/// Checks that a property may stand in this place with this value.
#[inline]
fn check(property: &Property<'_>, place: PropertyPlace) -> WireResult<()> {
    if property.id.places() & place as u16 == 0 {
        // The one property that the standard makes a protocol error [MQTT-3.3.4-6].
        return Err(match (property.id, place) {
            (PropertyId::SubscriptionIdentifier, Place::Publish) => {
                DecodeError::protocol("a client's PUBLISH has a subscription identifier")
            }
            _ => DecodeError::malformed("a property does not belong to this packet"),
        });
    }
    match (property.id, property.value) {
        (_, PropertyValue::Byte(2..)) => Err(DecodeError::protocol("a property is not 0 or 1")),
        (
            PropertyId::ReceiveMaximum | PropertyId::MaximumPacketSize | PropertyId::SubscriptionIdentifier,
            PropertyValue::Two(0) | PropertyValue::Number(0),
        ) => Err(DecodeError::protocol("a property is 0 that must not be")),
        (PropertyId::ResponseTopic, PropertyValue::Text(text)) if !topic::is_name(text) => Err(DecodeError::protocol(
            "the response topic is empty or contains a wildcard",
        )),
        _ => Ok(()),
    }
}

/// A checked section, without its length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Properties(Bytes);

impl Properties {
    /// The section must come from [`read`].
    pub fn of_checked(section: Bytes) -> Properties {
        Properties(section)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The properties in order.
    pub fn iter(&self) -> impl Iterator<Item = Property<'_>> {
        each(&self.0)
    }

    pub fn get(&self, id: PropertyId) -> Option<PropertyValue<'_>> {
        self.iter()
            .find(|property| property.id == id)
            .map(|property| property.value)
    }

    /// The names and values of user properties in order.
    pub fn user(&self) -> impl Iterator<Item = (&str, &str)> {
        user(&self.0)
    }
}

/// The properties of a checked section in order.
pub fn each(section: &[u8]) -> impl Iterator<Item = Property<'_>> {
    let mut reader = WireReader::new(section, 0, false);
    std::iter::from_fn(move || match reader.is_at_end() {
        true => None,
        false => next(&mut reader).ok(),
    })
}

/// The user properties of a checked section in order.
pub fn user(section: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    each(section).filter_map(|property| match property.value {
        PropertyValue::Pair(name, value) => Some((name, value)),
        _ => None,
    })
}
