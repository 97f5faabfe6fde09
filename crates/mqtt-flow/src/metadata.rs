//! The metadata of received messages. What many messages have in common is a map that they share, which later stages recognise
//! by its address; the packet identifier and the correlation data belong to one message, and lie on top.
//!
//! Messages with other properties of their own, such as user properties, share a map from the second time on that the same
//! properties come: a map for each would only fill the memory of later stages.

use std::borrow::Cow;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use thalweg_mqtt_wire::{PropertyId, PropertyValue, Publish, QoS};
use thalweg_record::{CacheLimits, MetaMap, Metadata, Remembered, Text};
use xxhash_rust::xxh3::xxh3_64;

const TOPIC: &str = "mqtt_topic";
const QOS: &str = "mqtt_qos";
const RETAINED: &str = "mqtt_retained";
const DUPLICATE: &str = "mqtt_duplicate";
const MESSAGE_ID: &str = "mqtt_message_id";
const CONTENT_TYPE: &str = "mqtt_content_type";
const RESPONSE_TOPIC: &str = "mqtt_response_topic";
const CORRELATION_DATA: &str = "mqtt_correlation_data";
const USER: &str = "mqtt_user_";

/// Limit of the maps with their keys.
const BYTES_MAX: usize = 64 << 20;
/// Overhead of an entry, besides its texts: in vectors and in the metadata.
const ENTRY_BYTES: usize = 400;
/// Longer keys never get a shared map, so that a few messages do not evict all others.
const KEY_BYTES_MAX: usize = 32 << 10;
/// Sets of properties that are remembered as seen.
const SEEN_MAX: usize = 1 << 17;

/// Makes the metadata of messages.
pub struct SharedMaps {
    /// By their content.
    maps: Remembered<Box<[u8]>, Arc<MetaMap>>,
    /// Hashes of contents with properties that came at least once.
    seen: Remembered<u64, ()>,
    /// Scratch buffer: the content of a message's map.
    key: Vec<u8>,
}

impl Default for SharedMaps {
    fn default() -> SharedMaps {
        SharedMaps {
            maps: Remembered::within(CacheLimits::bytes(BYTES_MAX)),
            seen: Remembered::within(CacheLimits::entries(SEEN_MAX)),
            key: Vec::new(),
        }
    }
}

impl SharedMaps {
    pub fn metadata(&mut self, publish: &Publish) -> Metadata {
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        let flags = publish.qos.number() << 2 | u8::from(publish.retain) << 1 | u8::from(publish.dup);
        key.push(flags);
        key.extend_from_slice(&(publish.topic().len() as u32).to_le_bytes());
        key.extend_from_slice(publish.topic().as_bytes());
        let bare = key.len();
        shared_properties(publish).for_each(|property| key.extend_from_slice(property));
        let mut extra = Vec::new();
        if key.len() > bare && !self.is_shared(&key) {
            key.truncate(bare);
            extra = entries(publish).collect();
        }
        let map = self.map(&key, bare, publish);
        self.key = key;
        let mut meta = Metadata::shared(map);
        add_own(&mut meta, publish, extra);
        meta
    }

    /// Whether messages with these properties share a map.
    fn is_shared(&mut self, key: &[u8]) -> bool {
        if key.len() > KEY_BYTES_MAX {
            return false;
        }
        if self.maps.get(key).is_some() {
            return true;
        }
        let hash = xxh3_64(key);
        let came_before = self.seen.get(&hash).is_some();
        if !came_before {
            self.seen.insert(hash, (), 0);
        }
        came_before
    }

    fn map(&mut self, key: &[u8], bare: usize, publish: &Publish) -> Arc<MetaMap> {
        if let Some(known) = self.maps.get(key) {
            return known.clone();
        }
        let truth = |is: bool| Text::new_static(if is { "true" } else { "false" });
        let mut all = vec![
            (Text::new_static(TOPIC), Text::from(publish.topic())),
            (Text::new_static(QOS), Text::new_static(qos(publish.qos))),
            (Text::new_static(RETAINED), truth(publish.retain)),
            (Text::new_static(DUPLICATE), truth(publish.dup)),
        ];
        if publish.qos == QoS::AtMostOnce {
            all.push((Text::new_static(MESSAGE_ID), Text::new_static("0")));
        }
        if key.len() > bare {
            // Names of user properties have a prefix, so they replace none of the others.
            all.extend(entries(publish));
        }
        let map = Arc::new(MetaMap::new(all, Some(xxh3_64(publish.topic().as_bytes()))));
        self.maps.insert(
            key.into(),
            map.clone(),
            ENTRY_BYTES + 2 * key.len() + map.memory_bytes(),
        );
        map
    }
}

fn qos(qos: QoS) -> &'static str {
    match qos {
        QoS::AtMostOnce => "0",
        QoS::AtLeastOnce => "1",
        QoS::ExactlyOnce => "2",
    }
}

/// The bytes of the properties that several messages may have in common.
fn shared_properties(publish: &Publish) -> impl Iterator<Item = &[u8]> {
    let is_shared = |id| {
        matches!(
            id,
            PropertyId::ContentType | PropertyId::ResponseTopic | PropertyId::UserProperty
        )
    };
    let properties = publish.properties();
    properties
        .filter(move |property| is_shared(property.id))
        .map(|property| property.bytes)
}

/// The metadata of these properties.
fn entries(publish: &Publish) -> impl Iterator<Item = (Text, Text)> {
    publish.properties().filter_map(|property| {
        Some(match (property.id, property.value) {
            (PropertyId::ContentType, PropertyValue::Text(text)) => (Text::new_static(CONTENT_TYPE), text.into()),
            (PropertyId::ResponseTopic, PropertyValue::Text(text)) => (Text::new_static(RESPONSE_TOPIC), text.into()),
            (PropertyId::UserProperty, PropertyValue::Pair(name, value)) => {
                (Text::from(format!("{USER}{name}")), value.into())
            }
            _ => return None,
        })
    })
}

/// Adds the metadata of this message alone. Correlation data that are no UTF-8 become base64.
fn add_own(meta: &mut Metadata, publish: &Publish, extra: Vec<(Text, Text)>) {
    if !extra.is_empty() {
        meta.set_all(extra);
    }
    let found = publish
        .properties()
        .find(|property| property.id == PropertyId::CorrelationData);
    if let Some(PropertyValue::Binary(data)) = found.map(|property| property.value) {
        let text = match std::str::from_utf8(data) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(STANDARD.encode(data)),
        };
        meta.set(Text::new_static(CORRELATION_DATA), Text::from(&*text));
    }
    if publish.qos != QoS::AtMostOnce {
        meta.set(Text::new_static(MESSAGE_ID), Text::from(publish.packet_id.to_string()));
    }
}

#[cfg(test)]
mod tests {
    use thalweg_mqtt_wire::encode::{PropertyWriter, PublishHead};
    use thalweg_mqtt_wire::{DecodeContext, FixedHeader, Packet, ProtocolVersion, Sender};

    use super::*;

    fn publish(head: PublishHead<'_>, properties: &PropertyWriter) -> Publish {
        let mut bytes = Vec::new();
        let head = PublishHead {
            forwarded: properties.bytes(),
            ..head
        };
        head.write(&mut bytes, ProtocolVersion::V5, 0);
        let header = FixedHeader::parse(&bytes, usize::MAX).unwrap().unwrap();
        let context = DecodeContext {
            version: ProtocolVersion::V5,
            sender: Sender::Server,
            strict_utf8: false,
        };
        match Packet::decode(bytes.into(), &header, context).unwrap() {
            Packet::Publish(publish) => publish,
            other => panic!("{other:?}"),
        }
    }

    fn head(topic: &str, packet_id: u16) -> PublishHead<'_> {
        PublishHead {
            topic,
            packet_id,
            qos: if packet_id > 0 {
                QoS::AtLeastOnce
            } else {
                QoS::AtMostOnce
            },
            ..PublishHead::default()
        }
    }

    fn shown(meta: &Metadata) -> String {
        let all: Vec<String> = meta.iter().map(|(name, value)| format!("{name}={value}")).collect();
        all.join(" ")
    }

    #[test]
    fn messages_of_a_topic_share_one_map() {
        let (mut maps, none) = (SharedMaps::default(), PropertyWriter::default());
        let [one, two, other] = [("a/b", 1), ("a/b", 2), ("a/c", 3)].map(|(topic, id)| {
            let publish = publish(head(topic, id), &none);
            maps.metadata(&publish)
        });
        assert!(Arc::ptr_eq(one.shared_map(), two.shared_map()));
        assert!(!Arc::ptr_eq(one.shared_map(), other.shared_map()));
        assert_eq!(
            shown(&one),
            "mqtt_duplicate=false mqtt_message_id=1 mqtt_qos=1 mqtt_retained=false mqtt_topic=a/b"
        );
        assert_eq!(two.get("mqtt_message_id").as_deref(), Some("2"));
        assert_eq!(one.shared_map().series(), two.shared_map().series());
        assert_ne!(one.shared_map().series(), other.shared_map().series());
    }

    #[test]
    fn messages_of_qos_0_have_nothing_of_their_own() {
        let (mut maps, none) = (SharedMaps::default(), PropertyWriter::default());
        let retained = PublishHead {
            retain: true,
            ..head("a", 0)
        };
        let meta = maps.metadata(&publish(retained, &none));
        assert!(!meta.is_changed());
        assert_eq!(
            shown(&meta),
            "mqtt_duplicate=false mqtt_message_id=0 mqtt_qos=0 mqtt_retained=true mqtt_topic=a"
        );
    }

    #[test]
    fn properties_share_a_map_from_their_second_time_on() {
        let mut maps = SharedMaps::default();
        let mut properties = PropertyWriter::default();
        properties.text(PropertyId::ContentType, "text/plain");
        properties.text(PropertyId::ResponseTopic, "r");
        properties.put(PropertyId::CorrelationData, PropertyValue::Binary(b"c-1"));
        properties.user("unit", "bar").user("unit", "psi").user("", "e");
        let publish = publish(head("a", 0), &properties);
        let all = [(); 3].map(|()| maps.metadata(&publish));
        let expected = "mqtt_content_type=text/plain mqtt_correlation_data=c-1 mqtt_duplicate=false mqtt_message_id=0 \
                        mqtt_qos=0 mqtt_response_topic=r mqtt_retained=false mqtt_topic=a mqtt_user_=e mqtt_user_unit=psi";
        for meta in &all {
            assert_eq!(shown(meta), expected);
        }
        let [first, second, third] = all;
        assert!(!Arc::ptr_eq(first.shared_map(), second.shared_map()));
        assert!(Arc::ptr_eq(second.shared_map(), third.shared_map()));
        assert_eq!(third.changes().len(), 1, "only the correlation data are its own");
        assert_eq!(first.shared_map().series(), second.shared_map().series());
    }

    #[test]
    fn correlation_data_that_are_no_text_become_base64() {
        let mut properties = PropertyWriter::default();
        properties.put(PropertyId::CorrelationData, PropertyValue::Binary(b"\xff\x00"));
        let meta = SharedMaps::default().metadata(&publish(head("a", 0), &properties));
        assert_eq!(meta.get("mqtt_correlation_data").as_deref(), Some("/wA="));
    }
}
