//! SUBSCRIBE and UNSUBSCRIBE (standard 3.8, 3.10). A packet may hold very many filters, so they stay where they are.

use bytes::Bytes;

use crate::properties::{self, Properties, PropertyId, PropertyPlace};
use crate::reader::{DecodeError, WireReader, WireResult};
use crate::{DecodeContext, FixedHeader, ProtocolVersion, QoS, topic};

/// When retained messages are sent for a new subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RetainHandling {
    #[default]
    Always,
    /// Only if the subscription did not exist.
    IfNew,
    Never,
}

/// The options of one subscription.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SubscribeOptions {
    pub qos: QoS,
    /// The client's own messages are not sent to it.
    pub no_local: bool,
    /// Messages keep their Retain flag.
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
}

impl SubscribeOptions {
    fn of(byte: u8, version: ProtocolVersion) -> WireResult<SubscribeOptions> {
        let Some(qos) = QoS::of(byte & 3) else {
            return Err(DecodeError::malformed("the requested QoS is 3"));
        };
        let reserved = if version.is_5() { 0xc0 } else { 0xfc };
        if byte & reserved != 0 {
            return Err(DecodeError::malformed(
                "a reserved bit of the subscription options is set",
            ));
        }
        let retain_handling = match byte >> 4 & 3 {
            0 => RetainHandling::Always,
            1 => RetainHandling::IfNew,
            2 => RetainHandling::Never,
            _ => return Err(DecodeError::malformed("Retain Handling is 3")),
        };
        Ok(SubscribeOptions {
            qos,
            no_local: byte & 4 != 0,
            retain_as_published: byte & 8 != 0,
            retain_handling,
        })
    }

    /// The byte of SUBSCRIBE.
    pub fn byte(self) -> u8 {
        let handling = match self.retain_handling {
            RetainHandling::Always => 0,
            RetainHandling::IfNew => 1,
            RetainHandling::Never => 2,
        };
        self.qos.number() | u8::from(self.no_local) << 2 | u8::from(self.retain_as_published) << 3 | handling << 4
    }
}

/// A received SUBSCRIBE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscribe {
    pub packet_id: u16,
    /// 0: none.
    pub subscription_id: u32,
    pub properties: Properties,
    version: ProtocolVersion,
    filters: Bytes,
}

impl Subscribe {
    /// Reads a whole packet, of which `header` is the fixed header.
    pub fn decode(packet: &Bytes, header: &FixedHeader, context: DecodeContext) -> WireResult<Subscribe> {
        let mut reader = WireReader::new(packet, header.len, context.strict_utf8);
        let packet_id = reader.packet_id()?;
        let mut subscription_id = 0;
        let properties = section(packet, &mut reader, context, PropertyPlace::Subscribe, |property| {
            if property.id == PropertyId::SubscriptionIdentifier {
                subscription_id = property.value.number();
            }
        })?;
        let filters = packet.slice(reader.position()..);
        if reader.is_at_end() {
            return Err(DecodeError::protocol("SUBSCRIBE has no filter"));
        }
        while !reader.is_at_end() {
            let filter = filter(&mut reader)?;
            let options = SubscribeOptions::of(reader.byte()?, context.version)?;
            // [MQTT-3.8.3-4]
            if options.no_local && filter.starts_with("$share/") {
                return Err(DecodeError::protocol("No Local on a shared subscription"));
            }
        }
        Ok(Subscribe {
            packet_id,
            subscription_id,
            properties,
            version: context.version,
            filters,
        })
    }

    /// The filters in order, with their options.
    pub fn filters(&self) -> impl Iterator<Item = (&str, SubscribeOptions)> {
        let mut reader = WireReader::new(&self.filters, 0, false);
        std::iter::from_fn(move || {
            let filter = reader.string().ok()?;
            let options = SubscribeOptions::of(reader.byte().ok()?, self.version).ok()?;
            Some((filter, options))
        })
    }
}

/// A received UNSUBSCRIBE.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsubscribe {
    pub packet_id: u16,
    pub properties: Properties,
    filters: Bytes,
}

impl Unsubscribe {
    /// Reads a whole packet, of which `header` is the fixed header.
    pub fn decode(packet: &Bytes, header: &FixedHeader, context: DecodeContext) -> WireResult<Unsubscribe> {
        let mut reader = WireReader::new(packet, header.len, context.strict_utf8);
        let packet_id = reader.packet_id()?;
        let properties = section(packet, &mut reader, context, PropertyPlace::Unsubscribe, |_| {})?;
        let filters = packet.slice(reader.position()..);
        if reader.is_at_end() {
            return Err(DecodeError::protocol("UNSUBSCRIBE has no filter"));
        }
        while !reader.is_at_end() {
            filter(&mut reader)?;
        }
        Ok(Unsubscribe {
            packet_id,
            properties,
            filters,
        })
    }

    /// The filters in order.
    pub fn filters(&self) -> impl Iterator<Item = &str> {
        let mut reader = WireReader::new(&self.filters, 0, false);
        std::iter::from_fn(move || reader.string().ok())
    }
}

/// Reads the properties of a packet; there are none below 5.0.
pub(crate) fn section(
    packet: &Bytes,
    reader: &mut WireReader<'_>,
    context: DecodeContext,
    place: PropertyPlace,
    see: impl FnMut(&properties::Property<'_>),
) -> WireResult<Properties> {
    if !context.version.is_5() {
        return Ok(Properties::default());
    }
    let (start, end) = properties::read(reader, place, context.strict_utf8, see)?;
    Ok(match start == end {
        true => Properties::default(),
        false => Properties::of_checked(packet.slice(start..end)),
    })
}

fn filter<'a>(reader: &mut WireReader<'a>) -> WireResult<&'a str> {
    let filter = reader.string()?;
    match topic::is_filter(filter) {
        true => Ok(filter),
        false => Err(DecodeError::malformed("a topic filter is ill-formed")),
    }
}
