//! PUBLISH (standard 3.3), received and sent.

use std::ops::Range;

use bytes::Bytes;

use crate::encode::PublishHead;
use crate::properties::{self, Property, PropertyId, PropertyPlace};
use crate::reader::{DecodeError, WireReader, WireResult};
use crate::{DecodeContext, FixedHeader, QoS, ReasonCode, Sender};

/// A received PUBLISH: positions in a buffer that other packets may share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Publish {
    packet: Bytes,
    pub qos: QoS,
    pub dup: bool,
    pub retain: bool,
    /// 0 with QoS 0.
    pub packet_id: u16,
    /// 0: none.
    pub topic_alias: u16,
    /// Seconds that the message may still wait.
    pub expiry: Option<u32>,
    /// Payload Format Indicator is 1: the payload says that it is UTF-8.
    pub is_text: bool,
    topic: Span,
    /// All properties.
    properties: Span,
    /// The properties but topic alias and expiry stand in one piece here. `None`: they do not.
    forwarded: Option<Span>,
    payload_at: u32,
}

/// A range in a packet, which has less than 4 GiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    #[inline]
    fn of(start: usize, end: usize) -> Span {
        Span {
            start: start as u32,
            end: end as u32,
        }
    }

    #[inline]
    fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}

impl Publish {
    /// Reads a whole packet, of which `header` is the fixed header.
    #[inline]
    pub fn decode(packet: Bytes, header: &FixedHeader, context: DecodeContext) -> WireResult<Publish> {
        let mut reader = WireReader::new(&packet, header.len, context.strict_utf8);
        let name = reader.string()?;
        let topic = Span::of(reader.position() - name.len(), reader.position());
        if memchr::memchr2(b'+', b'#', name.as_bytes()).is_some() {
            return Err(DecodeError::malformed("the topic name contains a wildcard"));
        }
        let is_unnamed = name.is_empty();
        let qos = header.qos();
        let packet_id = match qos {
            QoS::AtMostOnce => 0,
            _ => reader.packet_id()?,
        };
        let mut section = PublishSection::default();
        if context.version.is_5() {
            section.read(&mut reader, context)?;
        }
        if is_unnamed && section.topic_alias == 0 {
            return Err(DecodeError::protocol(
                "the topic name is empty and there is no topic alias",
            ));
        }
        let payload_at = reader.position() as u32;
        Ok(Publish {
            qos,
            dup: header.dup(),
            retain: header.retain(),
            packet_id,
            topic_alias: section.topic_alias,
            expiry: section.expiry,
            is_text: section.is_text,
            topic,
            properties: section.all,
            forwarded: section.forwarded(),
            payload_at,
            packet,
        })
    }

    /// The topic name; empty if only the topic alias says it.
    #[inline]
    pub fn topic(&self) -> &str {
        // It was checked before, which is cheap to repeat for so few bytes.
        std::str::from_utf8(self.part(self.topic)).unwrap_or_default()
    }

    #[inline]
    pub fn payload(&self) -> &[u8] {
        self.packet.get(self.payload_at as usize..).unwrap_or_default()
    }

    /// The payload, which shares the received buffer.
    #[inline]
    pub fn payload_bytes(&self) -> Bytes {
        self.packet.slice(self.payload_at as usize..)
    }

    /// All properties in order.
    pub fn properties(&self) -> impl Iterator<Item = Property<'_>> {
        properties::each(self.part(self.properties))
    }

    /// The properties that every subscriber gets unchanged [MQTT-3.3.2-4, -15, -16, -17, -18, -20], as bytes: all but topic
    /// alias, expiry and subscription identifiers.
    #[inline]
    pub fn forwarded(&self) -> std::borrow::Cow<'_, [u8]> {
        match self.forwarded {
            Some(span) => self.part(span).into(),
            None => {
                let kept = self.properties().filter(|property| is_forwarded(property.id));
                kept.flat_map(|property| property.bytes.iter().copied()).collect()
            }
        }
    }

    #[inline]
    fn part(&self, span: Span) -> &[u8] {
        self.packet.get(span.range()).unwrap_or_default()
    }

    /// Bytes of the packet.
    #[inline]
    pub fn len(&self) -> usize {
        self.packet.len()
    }

    /// Whether the packet has no bytes, which none has that was decoded.
    pub fn is_empty(&self) -> bool {
        self.packet.is_empty()
    }
}

impl Publish {
    /// For [`crate::fuzz`].
    pub(crate) fn check_written_again(&self, context: DecodeContext) {
        let forwarded = self.forwarded();
        let subscriptions = self.properties();
        let subscriptions = subscriptions.filter(|property| property.id == PropertyId::SubscriptionIdentifier);
        let subscription_ids: Vec<u32> = subscriptions.map(|property| property.value.number()).collect();
        let head = PublishHead {
            qos: self.qos,
            dup: self.dup,
            retain: self.retain,
            packet_id: self.packet_id,
            topic: self.topic(),
            topic_alias: self.topic_alias,
            expiry: self.expiry,
            forwarded: &forwarded,
            subscription_ids: &subscription_ids,
        };
        let mut bytes = Vec::new();
        head.write(&mut bytes, context.version, self.payload().len());
        bytes.extend_from_slice(self.payload());
        let header = FixedHeader::parse(&bytes, usize::MAX);
        let Ok(Some(header)) = header else {
            panic!("{header:?} of {self:?}")
        };
        let again = Publish::decode(bytes.into(), &header, context);
        let is_same = again.as_ref().is_ok_and(|again| {
            (again.qos, again.dup, again.retain, again.packet_id) == (self.qos, self.dup, self.retain, self.packet_id)
                && (again.topic(), again.payload()) == (self.topic(), self.payload())
                && (again.topic_alias, again.expiry, again.is_text) == (self.topic_alias, self.expiry, self.is_text)
                && again.forwarded() == forwarded
        });
        assert!(is_same, "{again:?} of {self:?}");
    }
}

#[inline]
fn is_forwarded(id: PropertyId) -> bool {
    !matches!(
        id,
        PropertyId::TopicAlias | PropertyId::MessageExpiryInterval | PropertyId::SubscriptionIdentifier
    )
}

#[derive(Default)]
struct PublishSection {
    all: Span,
    topic_alias: u16,
    expiry: Option<u32>,
    is_text: bool,
    /// Bytes of what is not passed on: at the front of the section, and at its end.
    front: u32,
    back: u32,
    has_forwarded: bool,
    /// What is not passed on stands between what is.
    is_split: bool,
}

impl PublishSection {
    #[inline]
    fn read(&mut self, reader: &mut WireReader<'_>, context: DecodeContext) -> WireResult<()> {
        let place = match context.sender {
            Sender::Client => PropertyPlace::Publish,
            Sender::Server => PropertyPlace::Delivery,
        };
        let mut has_alias = false;
        let (start, end) = properties::read(reader, place, context.strict_utf8, |property| {
            let len = property.bytes.len() as u32;
            match is_forwarded(property.id) {
                true => {
                    self.is_split |= self.back > 0;
                    self.has_forwarded = true;
                }
                false if self.has_forwarded => self.back += len,
                false => self.front += len,
            }
            match property.id {
                PropertyId::TopicAlias => (self.topic_alias, has_alias) = (property.value.number() as u16, true),
                PropertyId::MessageExpiryInterval => self.expiry = Some(property.value.number()),
                PropertyId::PayloadFormatIndicator => self.is_text = property.value.number() == 1,
                _ => {}
            }
        })?;
        self.all = Span::of(start, end);
        match has_alias && self.topic_alias == 0 {
            true => Err(DecodeError {
                code: ReasonCode::TopicAliasInvalid,
                what: "the topic alias is 0",
            }),
            false => Ok(()),
        }
    }

    /// Where all that is passed on stands in one piece.
    #[inline]
    fn forwarded(&self) -> Option<Span> {
        (!self.is_split).then_some(Span {
            start: self.all.start + self.front,
            end: self.all.end - self.back,
        })
    }
}
