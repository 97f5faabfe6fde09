//! A message as it is stored and delivered: one buffer that the log, all sessions and all connections share.

use std::ops::Range;

use bytes::Bytes;
use thalweg_kit::time::Micros;
use thalweg_kit::varint;
use thalweg_mqtt_wire::QoS;

use crate::bytes_codec::{RecordFields, put_bytes};

/// The first byte of a stored message. A newer format has a higher one.
pub const FORMAT: u8 = 1;

const RETAIN: u8 = 1 << 2;
const HAS_EXPIRY: u8 = 1 << 3;
const KNOWN: u8 = 0x03 | RETAIN | HAS_EXPIRY;

/// What a message is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageParts<'a> {
    pub topic: &'a str,
    pub qos: QoS,
    pub retain: bool,
    /// The client id of who published it; empty for the broker itself.
    pub publisher: &'a str,
    /// Wall-clock time after which it is sent no more.
    pub expires: Option<Micros>,
    /// Properties that every subscriber gets unchanged, as bytes.
    pub properties: &'a [u8],
    pub payload: &'a [u8],
}

/// A message, cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The stored form.
    record: Bytes,
    qos: QoS,
    retain: bool,
    expires: Option<Micros>,
    publisher: (u32, u32),
    topic: (u32, u32),
    properties: (u32, u32),
    payload_at: u32,
}

fn range((start, end): (u32, u32)) -> Range<usize> {
    start as usize..end as usize
}

impl Message {
    /// Copies the parts into one buffer, which is what [`record`](Message::record) returns.
    pub fn new(parts: &MessageParts<'_>) -> Message {
        let texts = parts.topic.len() + parts.publisher.len() + parts.properties.len();
        let mut record = Vec::with_capacity(texts + parts.payload.len() + 10 + 3 * varint::LEN_MAX);
        let flags = parts.qos.number()
            | if parts.retain { RETAIN } else { 0 }
            | if parts.expires.is_some() { HAS_EXPIRY } else { 0 };
        record.extend_from_slice(&[FORMAT, flags]);
        if let Some(expires) = parts.expires {
            record.extend_from_slice(&expires.to_be_bytes());
        }
        let mut put = |bytes: &[u8]| {
            put_bytes(&mut record, bytes);
            ((record.len() - bytes.len()) as u32, record.len() as u32)
        };
        let publisher = put(parts.publisher.as_bytes());
        let topic = put(parts.topic.as_bytes());
        let properties = put(parts.properties);
        let payload_at = record.len() as u32;
        record.extend_from_slice(parts.payload);
        Message {
            record: record.into(),
            qos: parts.qos,
            retain: parts.retain,
            expires: parts.expires,
            publisher,
            topic,
            properties,
            payload_at,
        }
    }

    /// Reads the stored form, which is shared. `None`: these bytes are no message of this format.
    pub fn decode(record: Bytes) -> Option<Message> {
        let mut fields = RecordFields::new(&record);
        if fields.byte()? != FORMAT {
            return None;
        }
        let flags = fields.byte()?;
        let qos = QoS::of(flags & 0x03).filter(|_| flags & !KNOWN == 0)?;
        let expires = match flags & HAS_EXPIRY != 0 {
            true => Some(fields.time()?),
            false => None,
        };
        let mut part = |is_text: bool| {
            let bytes = fields.bytes()?;
            let end = fields.position() as u32;
            let is_valid = !is_text || std::str::from_utf8(bytes).is_ok();
            is_valid.then_some((end - bytes.len() as u32, end))
        };
        let (publisher, topic, properties) = (part(true)?, part(true)?, part(false)?);
        let payload_at = fields.position() as u32;
        Some(Message {
            qos,
            retain: flags & RETAIN != 0,
            expires,
            publisher,
            topic,
            properties,
            payload_at,
            record,
        })
    }

    /// The stored form.
    pub fn record(&self) -> &Bytes {
        &self.record
    }

    pub fn qos(&self) -> QoS {
        self.qos
    }

    /// The retain flag as it was published.
    pub fn retain(&self) -> bool {
        self.retain
    }

    pub fn expires(&self) -> Option<Micros> {
        self.expires
    }

    /// Whole seconds that are left at `now`, wall-clock time; rounded up. `Err`: it has expired.
    pub fn remaining_expiry(&self, now: Micros) -> Result<Option<u32>, MessageExpired> {
        match self.expires {
            None => Ok(None),
            Some(expires) if expires <= now => Err(MessageExpired),
            Some(expires) => Ok(Some(
                ((expires - now + 999_999) / 1_000_000).min(i64::from(u32::MAX)) as u32
            )),
        }
    }

    pub fn topic(&self) -> &str {
        self.text(self.topic)
    }

    pub fn publisher(&self) -> &str {
        self.text(self.publisher)
    }

    pub fn properties(&self) -> &[u8] {
        self.record.get(range(self.properties)).unwrap_or_default()
    }

    pub fn payload(&self) -> &[u8] {
        self.record.get(self.payload_at as usize..).unwrap_or_default()
    }

    /// The payload, which shares the buffer.
    pub fn payload_bytes(&self) -> Bytes {
        self.record.slice(self.payload_at as usize..)
    }

    /// Approximate memory in bytes.
    pub fn bytes(&self) -> usize {
        self.record.len() + size_of::<Message>()
    }

    fn text(&self, span: (u32, u32)) -> &str {
        let bytes = self.record.get(range(span)).unwrap_or_default();
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// The time of a message is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageExpired;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_stored_is_read_the_same_and_damage_is_no_message(
            topic in "[a-z/ä]{1,40}", publisher in "[a-z]{0,30}", qos in 0..3_u8, retain: bool,
            expires in prop::option::of(any::<i64>()), properties in prop::collection::vec(any::<u8>(), 0..40),
            payload in prop::collection::vec(any::<u8>(), 0..300), cut in 0..500_usize,
        ) {
            let parts = MessageParts {
                topic: &topic, qos: QoS::of(qos).unwrap(), retain, publisher: &publisher, expires,
                properties: &properties, payload: &payload,
            };
            let message = Message::new(&parts);
            let again = Message::decode(message.record().clone()).unwrap();
            prop_assert_eq!(&again, &message);
            prop_assert_eq!((again.topic(), again.publisher(), again.qos(), again.retain()), (&*topic, &*publisher, parts.qos, retain));
            prop_assert_eq!((again.properties(), again.payload(), again.expires()), (&*properties, &*payload, expires));
            let head = message.record().len() - payload.len();
            if cut < head {
                prop_assert_eq!(Message::decode(message.record().slice(..cut)), None);
            }
        }
    }

    #[test]
    fn what_is_left_of_an_expiry_is_rounded_up_and_never_zero() {
        let of = |expires| {
            Message::new(&MessageParts {
                topic: "a",
                expires,
                ..MessageParts::default()
            })
        };
        assert_eq!(of(None).remaining_expiry(i64::MAX), Ok(None));
        assert_eq!(of(Some(10_000_000)).remaining_expiry(1), Ok(Some(10)));
        assert_eq!(of(Some(10_000_000)).remaining_expiry(9_999_999), Ok(Some(1)));
        assert_eq!(of(Some(10_000_000)).remaining_expiry(10_000_000), Err(MessageExpired));
    }
}
