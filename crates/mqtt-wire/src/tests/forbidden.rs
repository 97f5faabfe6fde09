use super::*;
use crate::{PacketKind, PropertyId, PropertyPlace};

const V3: ProtocolVersion = ProtocolVersion::V3_1_1;
const V5: ProtocolVersion = ProtocolVersion::V5;
const MALFORMED: ReasonCode = ReasonCode::MalformedPacket;
const PROTOCOL: ReasonCode = ReasonCode::ProtocolError;

/// Packets of a client and the code that each is refused with.
#[test]
fn packets_of_clients() {
    for (what, version, bytes, code) in [
        ("PINGREQ with a body", V5, &[0xc0, 1, 0][..], MALFORMED),
        ("CONNACK", V5, &[0x20, 3, 0, 0, 0], PROTOCOL),
        ("SUBACK", V5, &[0x90, 4, 0, 1, 0, 0], PROTOCOL),
        ("UNSUBACK", V3, &[0xb0, 2, 0, 1], PROTOCOL),
        ("PINGRESP", V3, &[0xd0, 0], PROTOCOL),
        ("second CONNECT", V5, &[0x10, 0], PROTOCOL),
        ("AUTH", V5, &[0xf0, 0], PROTOCOL),
        ("AUTH below 5.0", V3, &[0xf0, 0], MALFORMED),
        ("padded length", V5, &[0xc0, 0x80, 0], MALFORMED),
        ("PUBLISH without topic", V5, &[0x30, 0], MALFORMED),
        (
            "PUBLISH that ends in its topic",
            V3,
            &[0x30, 4, 0, 3, b'a', b'b'],
            MALFORMED,
        ),
        ("PUBLISH with + in the topic", V3, &[0x30, 3, 0, 1, b'+'], MALFORMED),
        (
            "PUBLISH with # in the topic",
            V5,
            &[0x30, 5, 0, 2, b'a', b'#', 0],
            MALFORMED,
        ),
        ("PUBLISH without id", V5, &[0x32, 3, 0, 1, b't'], MALFORMED),
        ("PUBLISH with id 0", V5, &[0x32, 6, 0, 1, b't', 0, 0, 0], PROTOCOL),
        ("PUBLISH without topic and alias", V5, &[0x30, 3, 0, 0, 0], PROTOCOL),
        ("PUBLISH without topic below 5.0", V3, &[0x30, 2, 0, 0], PROTOCOL),
        ("PUBLISH without properties", V5, &[0x30, 3, 0, 1, b't'], MALFORMED),
        (
            "PUBLISH with alias 0",
            V5,
            &[0x30, 7, 0, 1, b't', 3, 0x23, 0, 0],
            ReasonCode::TopicAliasInvalid,
        ),
        (
            "PUBLISH with two aliases",
            V5,
            &[0x30, 10, 0, 1, b't', 6, 0x23, 0, 1, 0x23, 0, 1],
            PROTOCOL,
        ),
        (
            "PUBLISH with a subscription identifier",
            V5,
            &[0x30, 6, 0, 1, b't', 2, 0x0b, 1],
            PROTOCOL,
        ),
        (
            "PUBLISH with payload format 2",
            V5,
            &[0x30, 6, 0, 1, b't', 2, 0x01, 2],
            PROTOCOL,
        ),
        (
            "PUBLISH with a wildcard in the response topic",
            V5,
            &[0x30, 8, 0, 1, b't', 4, 0x08, 0, 1, b'#'],
            PROTOCOL,
        ),
        (
            "PUBLISH with an empty response topic",
            V5,
            &[0x30, 7, 0, 1, b't', 3, 0x08, 0, 0],
            PROTOCOL,
        ),
        (
            "PUBLISH with a reason string",
            V5,
            &[0x30, 7, 0, 1, b't', 3, 0x1f, 0, 0],
            MALFORMED,
        ),
        (
            "PUBLISH whose properties are cut off",
            V5,
            &[0x30, 6, 0, 1, b't', 9, 0x01, 1],
            MALFORMED,
        ),
        (
            "PUBLISH whose property is cut off",
            V5,
            &[0x30, 6, 0, 1, b't', 2, 0x02, 1],
            MALFORMED,
        ),
        (
            "PUBLISH with a padded property length",
            V5,
            &[0x30, 5, 0, 1, b't', 0x80, 0],
            MALFORMED,
        ),
        ("PUBACK without id", V5, &[0x40, 1, 0], MALFORMED),
        ("PUBACK with id 0", V5, &[0x40, 2, 0, 0], PROTOCOL),
        ("PUBACK with an unknown code", V5, &[0x40, 3, 0, 1, 0x7f], MALFORMED),
        ("PUBACK with a code of others", V5, &[0x40, 3, 0, 1, 0x92], MALFORMED),
        ("PUBACK with a body below 5.0", V3, &[0x40, 3, 0, 1, 0], MALFORMED),
        ("PUBACK with bytes behind", V5, &[0x40, 5, 0, 1, 0, 0, 0], MALFORMED),
        ("PUBREL with a code of others", V5, &[0x62, 3, 0, 1, 0x80], MALFORMED),
        (
            "PUBREL with a wrong property",
            V5,
            &[0x62, 6, 0, 1, 0, 2, 0x01, 1],
            MALFORMED,
        ),
        ("SUBSCRIBE without filter", V5, &[0x82, 3, 0, 1, 0], PROTOCOL),
        ("SUBSCRIBE without filter below 5.0", V3, &[0x82, 2, 0, 1], PROTOCOL),
        ("SUBSCRIBE with id 0", V3, &[0x82, 6, 0, 0, 0, 1, b'a', 0], PROTOCOL),
        (
            "SUBSCRIBE with QoS 3",
            V5,
            &[0x82, 7, 0, 1, 0, 0, 1, b'a', 3],
            MALFORMED,
        ),
        (
            "SUBSCRIBE with Retain Handling 3",
            V5,
            &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x30],
            MALFORMED,
        ),
        (
            "SUBSCRIBE with bit 6",
            V5,
            &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x40],
            MALFORMED,
        ),
        (
            "SUBSCRIBE with bit 7",
            V5,
            &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x80],
            MALFORMED,
        ),
        (
            "SUBSCRIBE with options of 5.0 below it",
            V3,
            &[0x82, 6, 0, 1, 0, 1, b'a', 4],
            MALFORMED,
        ),
        (
            "SUBSCRIBE without options",
            V5,
            &[0x82, 6, 0, 1, 0, 0, 1, b'a'],
            MALFORMED,
        ),
        (
            "SUBSCRIBE with an empty filter",
            V5,
            &[0x82, 6, 0, 1, 0, 0, 0, 0],
            MALFORMED,
        ),
        (
            "SUBSCRIBE with an ill-formed filter",
            V5,
            &[0x82, 8, 0, 1, 0, 0, 2, b'a', b'#', 0],
            MALFORMED,
        ),
        (
            "SUBSCRIBE with identifier 0",
            V5,
            &[0x82, 9, 0, 1, 2, 0x0b, 0, 0, 1, b'a', 0],
            PROTOCOL,
        ),
        (
            "SUBSCRIBE with two identifiers",
            V5,
            &[0x82, 11, 0, 1, 4, 0x0b, 1, 0x0b, 2, 0, 1, b'a', 0],
            PROTOCOL,
        ),
        (
            "SUBSCRIBE with No Local and shared",
            V5,
            &[
                0x82, 16, 0, 1, 0, 0, 10, b'$', b's', b'h', b'a', b'r', b'e', b'/', b'g', b'/', b'a', 4,
            ],
            PROTOCOL,
        ),
        ("UNSUBSCRIBE without filter", V5, &[0xa2, 3, 0, 1, 0], PROTOCOL),
        ("UNSUBSCRIBE with id 0", V3, &[0xa2, 5, 0, 0, 0, 1, b'a'], PROTOCOL),
        (
            "UNSUBSCRIBE with an ill-formed filter",
            V3,
            &[0xa2, 6, 0, 1, 0, 2, b'+', b'a'],
            MALFORMED,
        ),
        ("DISCONNECT with a code of servers", V5, &[0xe0, 1, 0x8b], MALFORMED),
        ("DISCONNECT with an unknown code", V5, &[0xe0, 1, 0x05], MALFORMED),
        ("DISCONNECT with a body below 5.0", V3, &[0xe0, 1, 0], MALFORMED),
        ("DISCONNECT with bytes behind", V5, &[0xe0, 3, 0, 0, 0], MALFORMED),
        (
            "DISCONNECT with a server reference",
            V5,
            &[0xe0, 5, 0, 3, 0x1c, 0, 0],
            MALFORMED,
        ),
    ] {
        assert_eq!(decode(bytes, version, Sender::Client), Err(code), "{what}");
    }
}

#[test]
fn short_forms_are_read() {
    for first in [0x40, 0x50, 0x62, 0x70] {
        for bytes in [&[first, 2, 1, 2][..], &[first, 3, 1, 2, 0], &[first, 4, 1, 2, 0, 0]] {
            let packet = decode(bytes, V5, Sender::Client).unwrap();
            let (Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubRel(ack) | Packet::PubComp(ack)) = packet
            else {
                panic!("{packet:?}")
            };
            assert_eq!((ack.packet_id, ack.reason), (258, ReasonCode::Success));
        }
    }
    for (version, bytes) in [
        (V3, &[0xe0, 0][..]),
        (V5, &[0xe0, 0]),
        (V5, &[0xe0, 1, 0]),
        (V5, &[0xe0, 2, 0, 0]),
        // 3.1.1 allows lengths that are longer than needed.
        (V3, &[0xe0, 0x80, 0]),
    ] {
        let Ok(Packet::Disconnect(disconnect)) = decode(bytes, version, Sender::Client) else {
            panic!("{bytes:?}")
        };
        assert_eq!(disconnect.reason, ReasonCode::Success);
    }
    assert_eq!(decode(&[0xc0, 0], V5, Sender::Client), Ok(Packet::PingReq));
    assert_eq!(decode(&[0xd0, 0], V5, Sender::Server), Ok(Packet::PingResp));
    assert_eq!(decode(&[0xe0, 0], V3, Sender::Server), Err(PROTOCOL));
}

/// Each property in each place, once and twice: only the places of the standard's table 2-4 take it.
#[test]
fn each_property_has_its_places() {
    use PropertyPlace::*;
    const ACKS: &[PropertyPlace] = &[ConnAck, Ack, ClientDisconnect, ServerDisconnect, Auth];
    let places = |id: PropertyId| -> &'static [PropertyPlace] {
        match id as u8 {
            0x01 | 0x02 | 0x03 | 0x08 | 0x09 => &[Publish, Delivery, Will],
            0x0b => &[Subscribe, Delivery],
            0x11 => &[Connect, ConnAck, ClientDisconnect],
            0x12 | 0x13 | 0x1a | 0x24 | 0x25 | 0x28 | 0x29 | 0x2a => &[ConnAck],
            0x15 | 0x16 => &[Connect, ConnAck, Auth],
            0x17 | 0x19 => &[Connect],
            0x18 => &[Will],
            0x1c => &[ConnAck, ServerDisconnect],
            0x1f => ACKS,
            0x21 | 0x22 | 0x27 => &[Connect, ConnAck],
            0x23 => &[Publish, Delivery],
            _ => &[
                Connect,
                ConnAck,
                Publish,
                Delivery,
                Will,
                Ack,
                Subscribe,
                Unsubscribe,
                ClientDisconnect,
                ServerDisconnect,
                Auth,
            ],
        }
    };
    let all = places(PropertyId::UserProperty);
    let read = |bytes: &[u8], place| {
        let section = [&[bytes.len() as u8], bytes].concat();
        let mut reader = crate::reader::WireReader::new(&section, 0, false);
        crate::properties::read(&mut reader, place, false, |_| {}).map_err(|error| error.code)
    };
    assert_eq!(PropertyId::ALL.len(), 27);
    for id in PropertyId::ALL {
        let number = *id as u8;
        assert_eq!(PropertyId::of(number), Some(*id));
        let value: &[u8] = match number {
            0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28..=0x2a | 0x0b => &[1],
            0x02 | 0x11 | 0x18 | 0x27 => &[0, 0, 0, 1],
            0x13 | 0x21 | 0x22 | 0x23 => &[0, 1],
            0x26 => &[0, 1, b'a', 0, 1, b'b'],
            _ => &[0, 1, b'a'],
        };
        let method: &[u8] = if number == 0x16 { &[0x15, 0, 0] } else { &[] };
        let once = [&[number], value, method].concat();
        let twice = [&[number], value, &[number], value, method].concat();
        for place in all {
            let is_allowed = places(*id).contains(place);
            assert_eq!(read(&once, *place).is_ok(), is_allowed, "{id:?} {place:?}");
            let may_repeat = *id == PropertyId::UserProperty || (number == 0x0b && *place == Delivery);
            assert_eq!(
                read(&twice, *place).is_ok(),
                is_allowed && may_repeat,
                "{id:?} {place:?}"
            );
            if is_allowed {
                for cut in 1..=value.len() {
                    assert_eq!(
                        read(&[&[number], &value[..cut - 1]].concat(), *place),
                        Err(MALFORMED),
                        "{id:?}"
                    );
                }
                if !may_repeat {
                    assert_eq!(read(&twice, *place), Err(PROTOCOL), "{id:?}");
                }
            }
        }
    }
    for unknown in (0..=255_u8).filter(|number| PropertyId::of(*number).is_none()) {
        assert_eq!(read(&[unknown, 1], Connect), Err(MALFORMED));
    }
}

#[test]
fn codes_have_the_names_of_the_standard() {
    let known: Vec<u8> = (0..=255_u8)
        .filter(|number| ReasonCode::of(*number).is_some())
        .collect();
    assert_eq!(known.len(), 43);
    for number in known {
        let code = ReasonCode::of(number).unwrap();
        assert_eq!((code.number(), code.is_failure()), (number, number >= 0x80));
        assert!(!code.name().is_empty());
    }
    assert_eq!(PacketKind::Unsubscribe.name(), "UNSUBSCRIBE");
}
