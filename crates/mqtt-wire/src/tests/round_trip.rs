use proptest::prelude::*;

use super::*;
use crate::encode::{self, ConnectRequest, PropertyWriter, PublishHead, WillRequest};
use crate::reason::allowed;
use crate::subscribe::RetainHandling;
use crate::{
    Ack, Disconnect, PacketKind, Properties, Property, PropertyId, PropertyPlace, PropertyValue, QoS, SubscribeOptions,
};

fn text() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec!['a', 'b', '/', '$', 'ä', '\u{feff}', '😀', ' ']),
        0..8,
    )
    .prop_map(|letters| letters.into_iter().collect())
}

fn topic() -> impl Strategy<Value = String> {
    text().prop_map(|text| format!("t{text}"))
}

fn qos() -> impl Strategy<Value = QoS> {
    prop::sample::select(vec![QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce])
}

fn version() -> impl Strategy<Value = ProtocolVersion> {
    prop::sample::select(VERSIONS.to_vec())
}

#[derive(Clone, Debug)]
enum Value {
    Number(u32),
    Text(String),
    Pair(String, String),
}

/// A property that may stand in a place, with a value that it may have.
fn property(place: PropertyPlace) -> impl Strategy<Value = (PropertyId, Value)> {
    let may_stand = |id: &PropertyId| {
        let mut one = PropertyWriter::default();
        put(&mut one, *id, &sample(*id));
        let mut section = vec![one.bytes().len() as u8];
        section.extend_from_slice(one.bytes());
        let mut reader = crate::reader::WireReader::new(&section, 0, false);
        let result = crate::properties::read(&mut reader, place, false, |_| {});
        // It needs the method, which stands beside it at random.
        result.is_ok() && *id != PropertyId::AuthenticationData
    };
    let ids: Vec<PropertyId> = PropertyId::ALL.iter().copied().filter(may_stand).collect();
    (prop::sample::select(ids), 1..=1_u32, text(), text()).prop_map(|(id, number, first, second)| {
        let value = match sample(id) {
            Value::Number(_) => Value::Number(number),
            Value::Text(_) if id == PropertyId::ResponseTopic => Value::Text(format!("r{first}")),
            Value::Text(_) => Value::Text(first),
            Value::Pair(..) => Value::Pair(first, second),
        };
        (id, value)
    })
}

fn sample(id: PropertyId) -> Value {
    use PropertyId::*;
    match id {
        ContentType
        | ResponseTopic
        | CorrelationData
        | AssignedClientIdentifier
        | AuthenticationMethod
        | AuthenticationData
        | ResponseInformation
        | ServerReference
        | ReasonString => Value::Text("t".into()),
        UserProperty => Value::Pair(String::new(), String::new()),
        _ => Value::Number(1),
    }
}

fn put(writer: &mut PropertyWriter, id: PropertyId, value: &Value) {
    use PropertyId::*;
    match (id, value) {
        (CorrelationData | AuthenticationData, Value::Text(text)) => {
            writer.put(id, PropertyValue::Binary(text.as_bytes()))
        }
        (_, Value::Text(text)) => writer.text(id, text),
        (_, Value::Pair(name, value)) => writer.user(name, value),
        (ServerKeepAlive | ReceiveMaximum | TopicAliasMaximum | TopicAlias, Value::Number(number)) => {
            writer.two(id, *number as u16)
        }
        (
            MessageExpiryInterval
            | SubscriptionIdentifier
            | SessionExpiryInterval
            | WillDelayInterval
            | MaximumPacketSize,
            Value::Number(number),
        ) => writer.number(id, *number),
        (_, Value::Number(number)) => writer.byte(id, *number as u8),
    };
}

/// Properties in any order, each but user properties once.
fn section(place: PropertyPlace) -> impl Strategy<Value = PropertyWriter> {
    prop::collection::vec(property(place), 0..6).prop_map(|properties| {
        let (mut writer, mut seen) = (PropertyWriter::default(), Vec::new());
        for (id, value) in properties {
            if id == PropertyId::UserProperty || !seen.contains(&id) {
                put(&mut writer, id, &value);
                seen.push(id);
            }
        }
        writer
    })
}

fn bytes_of(properties: &Properties) -> Vec<u8> {
    properties.bytes().to_vec()
}

/// Decoding each part of a packet, and the packet with any byte changed, does not panic.
fn endure(bytes: &[u8], version: ProtocolVersion, sender: Sender, at: usize, change: u8) {
    let mut changed = bytes.to_vec();
    let at = at % changed.len();
    changed[at] ^= change;
    for bytes in [&bytes[..at], &changed] {
        if let Ok(Some(header)) = FixedHeader::parse(bytes, MAX) {
            let whole = &bytes[..bytes.len().min(header.packet_len())];
            let shared = Bytes::copy_from_slice(whole);
            let _ = crate::Connect::decode(&shared, &header, true);
            if let Ok(Packet::Publish(publish)) = Packet::decode(shared, &header, context(version, sender)) {
                let _ = (publish.topic(), publish.forwarded().len(), publish.payload().len());
            }
        }
    }
}

proptest! {
    #[test]
    fn a_publish(
        version in version(), qos in qos(), flags in any::<[bool; 2]>(), id in 1..=u16::MAX, topic in topic(),
        properties in section(PropertyPlace::Publish), payload in prop::collection::vec(any::<u8>(), 0..300),
        damage in any::<(usize, u8)>(),
    ) {
        let [dup, retain] = flags;
        let dup = dup && qos != QoS::AtMostOnce;
        let properties = if version.is_5() { properties } else { PropertyWriter::default() };
        // The client's own bytes, in its order.
        let head = PublishHead { qos, dup, retain, packet_id: id, topic: &topic, forwarded: properties.bytes(), ..PublishHead::default() };
        let mut bytes = Vec::new();
        head.write(&mut bytes, version, payload.len());
        bytes.extend_from_slice(&payload);
        prop_assert_eq!(bytes.len(), head.packet_len(version, payload.len()));
        let Packet::Publish(publish) = decode(&bytes, version, Sender::Client).unwrap() else { panic!() };
        prop_assert_eq!((publish.qos, publish.dup, publish.retain), (qos, dup, retain));
        prop_assert_eq!(publish.packet_id, if qos == QoS::AtMostOnce { 0 } else { id });
        prop_assert_eq!(publish.topic(), topic.as_str());
        prop_assert_eq!(publish.payload(), &payload[..]);
        prop_assert_eq!(&publish.payload_bytes()[..], &payload[..]);
        let sent: Vec<Property<'_>> = crate::properties::each(properties.bytes()).collect();
        let received: Vec<Property<'_>> = publish.properties().collect();
        prop_assert_eq!(&received, &sent);
        // On its way to a subscriber.
        let number = |id| sent.iter().find(|property| property.id == id).map(|property| property.value.number());
        prop_assert_eq!(publish.expiry, number(PropertyId::MessageExpiryInterval));
        prop_assert_eq!(u32::from(publish.topic_alias), number(PropertyId::TopicAlias).unwrap_or(0));
        prop_assert_eq!(publish.is_text, number(PropertyId::PayloadFormatIndicator) == Some(1));
        let forwarded = publish.forwarded();
        let head = PublishHead {
            qos, topic: &topic, packet_id: id, forwarded: &forwarded, expiry: publish.expiry, subscription_ids: &[1, 200, 1],
            topic_alias: 7, ..PublishHead::default()
        };
        let mut out = Vec::new();
        head.write(&mut out, version, payload.len());
        out.extend_from_slice(&payload);
        let Packet::Publish(delivered) = decode(&out, version, Sender::Server).unwrap() else { panic!() };
        prop_assert_eq!((delivered.topic(), delivered.payload()), (topic.as_str(), &payload[..]));
        prop_assert_eq!((delivered.expiry, delivered.is_text), (publish.expiry, publish.is_text));
        prop_assert_eq!(delivered.forwarded(), forwarded);
        if version.is_5() {
            let ids = delivered.properties().filter(|property| property.id == PropertyId::SubscriptionIdentifier);
            prop_assert_eq!(ids.map(|property| property.value.number()).collect::<Vec<_>>(), vec![1, 200, 1]);
            prop_assert_eq!(delivered.topic_alias, 7);
            prop_assert_eq!(decode(&out, version, Sender::Client), Err(ReasonCode::ProtocolError));
        }
        endure(&bytes, version, Sender::Client, damage.0, damage.1);
        endure(&out, version, Sender::Server, damage.0, damage.1);
    }

    #[test]
    fn acknowledgements(
        version in version(), id in 1..=u16::MAX, code in any::<prop::sample::Index>(), properties in section(PropertyPlace::Ack),
        is_client in any::<bool>(), damage in any::<(usize, u8)>(),
    ) {
        for (kind, codes) in [
            (PacketKind::PubAck, allowed::PUBACK),
            (PacketKind::PubRec, allowed::PUBACK),
            (PacketKind::PubRel, allowed::PUBREL),
            (PacketKind::PubComp, allowed::PUBREL),
        ] {
            let reason = *code.get(codes);
            let mut bytes = Vec::new();
            encode::ack(&mut bytes, version, kind, id, reason, properties.bytes());
            let sender = if is_client { Sender::Client } else { Sender::Server };
            let packet = decode(&bytes, version, sender).unwrap();
            let (Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack)) = packet else { panic!() };
            let Ack { packet_id, reason: read, properties: section } = ack;
            prop_assert_eq!(packet_id, id);
            if version.is_5() {
                prop_assert_eq!((read, bytes_of(&section)), (reason, properties.bytes().to_vec()));
            } else {
                prop_assert_eq!((read, section.is_empty()), (ReasonCode::Success, true));
            }
            endure(&bytes, version, sender, damage.0, damage.1);
        }
    }

    #[test]
    fn subscriptions(
        version in version(), id in 1..=u16::MAX, properties in section(PropertyPlace::Subscribe),
        other in section(PropertyPlace::Unsubscribe),
        filters in prop::collection::vec((topic(), qos(), any::<[bool; 2]>(), 0..3_usize), 1..5), damage in any::<(usize, u8)>(),
    ) {
        let handling = [RetainHandling::Always, RetainHandling::IfNew, RetainHandling::Never];
        let filters: Vec<(String, SubscribeOptions)> = filters.into_iter().map(|(topic, qos, [no_local, keep], at)| {
            let options = match version.is_5() {
                true => SubscribeOptions { qos, no_local, retain_as_published: keep, retain_handling: handling[at] },
                false => SubscribeOptions { qos, ..SubscribeOptions::default() },
            };
            (format!("+/{topic}/#"), options)
        }).collect();
        let borrowed: Vec<(&str, SubscribeOptions)> = filters.iter().map(|(filter, options)| (filter.as_str(), *options)).collect();
        let mut bytes = Vec::new();
        encode::subscribe(&mut bytes, version, id, properties.bytes(), &borrowed);
        let Packet::Subscribe(subscribe) = decode(&bytes, version, Sender::Client).unwrap() else { panic!() };
        prop_assert_eq!(subscribe.packet_id, id);
        prop_assert_eq!(subscribe.filters().collect::<Vec<_>>(), borrowed.clone());
        if version.is_5() {
            prop_assert_eq!(bytes_of(&subscribe.properties), properties.bytes().to_vec());
            let id = subscribe.properties.get(PropertyId::SubscriptionIdentifier).map_or(0, PropertyValue::number);
            prop_assert_eq!(subscribe.subscription_id, id);
        }
        endure(&bytes, version, Sender::Client, damage.0, damage.1);

        let names: Vec<&str> = borrowed.iter().map(|(filter, _)| *filter).collect();
        let mut bytes = Vec::new();
        encode::unsubscribe(&mut bytes, version, id, other.bytes(), &names);
        let Packet::Unsubscribe(unsubscribe) = decode(&bytes, version, Sender::Client).unwrap() else { panic!() };
        prop_assert_eq!((unsubscribe.packet_id, unsubscribe.filters().collect::<Vec<_>>()), (id, names));
        endure(&bytes, version, Sender::Client, damage.0, damage.1);
    }

    #[test]
    fn answers_to_subscriptions(
        version in version(), id in 1..=u16::MAX, codes in prop::collection::vec(any::<prop::sample::Index>(), 1..5),
        properties in section(PropertyPlace::Ack), damage in any::<(usize, u8)>(),
    ) {
        let of = |allowed: &'static [ReasonCode]| codes.iter().map(|code| *code.get(allowed)).collect::<Vec<_>>();
        let granted = of(allowed::SUBACK);
        let mut bytes = Vec::new();
        encode::suback(&mut bytes, version, id, properties.bytes(), &granted);
        let Packet::SubAck(suback) = decode(&bytes, version, Sender::Server).unwrap() else { panic!() };
        let expected: Vec<ReasonCode> = granted.iter().map(|code| match version.is_5() || !code.is_failure() {
            true => *code,
            false => ReasonCode::UnspecifiedError,
        }).collect();
        prop_assert_eq!((suback.packet_id, suback.codes), (id, expected));
        endure(&bytes, version, Sender::Server, damage.0, damage.1);
        let ended = of(allowed::UNSUBACK);
        let mut bytes = Vec::new();
        encode::unsuback(&mut bytes, version, id, properties.bytes(), &ended);
        let Packet::UnsubAck(unsuback) = decode(&bytes, version, Sender::Server).unwrap() else { panic!() };
        let expected = if version.is_5() { ended } else { Vec::new() };
        prop_assert_eq!((unsuback.packet_id, unsuback.codes), (id, expected));
        endure(&bytes, version, Sender::Server, damage.0, damage.1);
    }

    #[test]
    fn a_disconnect(
        number in any::<u8>(), client in section(PropertyPlace::ClientDisconnect), server in section(PropertyPlace::ServerDisconnect),
        damage in any::<(usize, u8)>(),
    ) {
        let v5 = ProtocolVersion::V5;
        for (sender, properties, is_allowed) in [
            (Sender::Client, &client, allowed::disconnect_of_client as fn(ReasonCode) -> bool),
            (Sender::Server, &server, allowed::disconnect_of_server),
        ] {
            let reason = ReasonCode::of(number).filter(|code| is_allowed(*code));
            let mut bytes = Vec::new();
            encode::disconnect(&mut bytes, v5, reason.unwrap_or(ReasonCode::Success), properties.bytes());
            let Packet::Disconnect(Disconnect { reason: read, session_expiry, properties: section }) = decode(&bytes, v5, sender).unwrap() else { panic!() };
            prop_assert_eq!(read, reason.unwrap_or(ReasonCode::Success));
            prop_assert_eq!(section.get(PropertyId::SessionExpiryInterval).map(PropertyValue::number), session_expiry);
            prop_assert_eq!(bytes_of(&section), properties.bytes().to_vec());
            if reason.is_none() {
                prop_assert_eq!(decode(&[0xe0, 1, number], v5, sender), Err(ReasonCode::MalformedPacket));
            }
            endure(&bytes, v5, sender, damage.0, damage.1);
        }
    }

    #[test]
    fn a_connect(
        version in version(), clean_start in any::<bool>(), keep_alive in any::<u16>(), client_id in text(),
        user_name in prop::option::of(text()), password in prop::option::of(prop::collection::vec(any::<u8>(), 0..9)),
        will in prop::option::of((topic(), qos(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..9), section(PropertyPlace::Will))),
        properties in section(PropertyPlace::Connect), damage in any::<(usize, u8)>(),
    ) {
        let password = password.filter(|_| version.is_5() || user_name.is_some());
        let client_id = if version == ProtocolVersion::V3_1 { "id".to_owned() } else { client_id };
        let request = ConnectRequest {
            version, clean_start, keep_alive, client_id: &client_id,
            user_name: user_name.as_deref(), password: password.as_deref(),
            will: will.as_ref().map(|(topic, qos, retain, payload, properties)| WillRequest {
                topic, payload, qos: *qos, retain: *retain, properties: properties.bytes(),
            }),
            properties: properties.bytes(),
        };
        let mut bytes = Vec::new();
        encode::connect(&mut bytes, &request);
        let connect = decode_connect(&bytes).unwrap();
        prop_assert_eq!((connect.version, connect.clean_start, connect.keep_alive), (version, clean_start, keep_alive));
        prop_assert_eq!(connect.client_id, Ok(client_id.clone()));
        prop_assert_eq!((connect.user_name, connect.password.map(|bytes| bytes.to_vec())), (user_name.clone(), password.clone()));
        match (connect.will, &will) {
            (Some(read), Some((topic, qos, retain, payload, properties))) => {
                prop_assert_eq!((&read.topic, read.qos, read.retain, &read.payload[..]), (topic, *qos, *retain, &payload[..]));
                if version.is_5() {
                    prop_assert_eq!(bytes_of(&read.properties), properties.bytes().to_vec());
                    let delay = read.properties.get(PropertyId::WillDelayInterval).map_or(0, PropertyValue::number);
                    prop_assert_eq!(read.delay, delay);
                }
            }
            (None, None) => {}
            other => panic!("{other:?}"),
        }
        if version.is_5() {
            prop_assert_eq!(bytes_of(&connect.properties), properties.bytes().to_vec());
        }
        endure(&bytes, version, Sender::Client, damage.0, damage.1);
    }

    #[test]
    fn a_connack(session_present in any::<bool>(), code in any::<prop::sample::Index>(), properties in section(PropertyPlace::ConnAck), damage in any::<(usize, u8)>()) {
        let reason = *code.get(allowed::CONNACK);
        let mut bytes = Vec::new();
        encode::connack(&mut bytes, session_present, reason, properties.bytes());
        let Packet::ConnAck(connack) = decode(&bytes, ProtocolVersion::V5, Sender::Server).unwrap() else { panic!() };
        prop_assert_eq!((connack.session_present, connack.reason), (session_present, reason));
        prop_assert_eq!(bytes_of(&connack.properties), properties.bytes().to_vec());
        endure(&bytes, ProtocolVersion::V5, Sender::Server, damage.0, damage.1);
        if let Some(code) = reason.connack_v3() {
            let mut bytes = Vec::new();
            encode::connack_v3(&mut bytes, session_present, code);
            let Packet::ConnAck(connack) = decode(&bytes, ProtocolVersion::V3_1_1, Sender::Server).unwrap() else { panic!() };
            prop_assert_eq!(connack.reason.connack_v3(), Some(code));
        }
    }

    /// Anything at all.
    #[test]
    fn bytes_of_any_kind(version in version(), is_client in any::<bool>(), bytes in prop::collection::vec(any::<u8>(), 1..80), damage in any::<(usize, u8)>()) {
        let sender = if is_client { Sender::Client } else { Sender::Server };
        endure(&bytes, version, sender, damage.0, damage.1);
        let kind = PacketKind::ALL[damage.0 % 15].0;
        endure(&packet(kind.first_byte(), &bytes), version, sender, damage.0, 0);
    }
}
