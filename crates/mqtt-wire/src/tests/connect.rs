use super::*;
use crate::{ProtocolVersion, QoS};

const ID: &[u8] = &[0, 1, b'c'];

/// A CONNECT of a level, flags, and what stands behind the keep alive.
fn connect(name: &[u8], level: u8, flags: u8, rest: &[u8]) -> Vec<u8> {
    let mut body = vec![0, name.len() as u8];
    body.extend_from_slice(name);
    body.extend_from_slice(&[level, flags, 0, 60]);
    body.extend_from_slice(rest);
    packet(0x10, &body)
}

fn v5(flags: u8, properties: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut all = vec![properties.len() as u8];
    all.extend_from_slice(properties);
    all.extend_from_slice(rest);
    connect(b"MQTT", 5, flags, &all)
}

fn refused(bytes: &[u8]) -> ConnectRefusal {
    decode_connect(bytes).unwrap_err()
}

fn code(bytes: &[u8]) -> (ProtocolVersion, ReasonCode) {
    match refused(bytes) {
        ConnectRefusal::Code(version, error) => (version, error.code),
        other => panic!("{other:?}"),
    }
}

#[test]
fn versions_are_told_by_name_and_level() {
    for (name, level, version) in [
        (&b"MQTT"[..], 4, ProtocolVersion::V3_1_1),
        (b"MQIsdp", 3, ProtocolVersion::V3_1),
    ] {
        let connect = decode_connect(&connect(name, level, 2, ID)).unwrap();
        assert_eq!(
            (connect.version, connect.clean_start, connect.keep_alive),
            (version, true, 60)
        );
        assert_eq!(connect.client_id, Ok("c".to_owned()));
        assert_eq!(connect.version.level(), level);
    }
    assert_eq!(decode_connect(&v5(0, &[], ID)).unwrap().version, ProtocolVersion::V5);
    for level in [0, 1, 2, 3, 6, 7, 0x83, 0x84, 0x85, 255] {
        assert_eq!(refused(&connect(b"MQTT", level, 2, ID)), ConnectRefusal::Level(level));
    }
    for (name, level) in [
        (&b"MQTX"[..], 4),
        (b"mqtt", 5),
        (b"", 4),
        (b"MQIsdp", 4),
        (b"MQIsdp", 5),
    ] {
        assert!(
            matches!(refused(&connect(name, level, 2, ID)), ConnectRefusal::Silent(_)),
            "{name:?}"
        );
    }
    for cut in 0..7 {
        let body = &[0, 4, b'M', b'Q', b'T', b'T', 4][..cut];
        assert!(
            matches!(refused(&packet(0x10, body)), ConnectRefusal::Silent(_)),
            "{cut}"
        );
    }
}

#[test]
fn flags_and_fields_must_agree() {
    const TOPIC: &[u8] = &[0, 1, b't'];
    const PAYLOAD: &[u8] = &[0, 2, b'p', b'q'];
    let malformed = ReasonCode::MalformedPacket;
    for (what, flags, rest) in [
        ("reserved flag", 0x03, ID.to_vec()),
        ("Will QoS 3", 0x1e, [ID, TOPIC, PAYLOAD].concat()),
        ("Will QoS without Will", 0x0a, ID.to_vec()),
        ("Will Retain without Will", 0x22, ID.to_vec()),
        ("Will without fields", 0x06, ID.to_vec()),
        ("Will without payload", 0x06, [ID, TOPIC].concat()),
        ("user name flag without one", 0x82, ID.to_vec()),
        ("password flag without one", 0xc2, [ID, TOPIC].concat()),
        ("a field too many", 0x02, [ID, TOPIC].concat()),
        ("no client id", 0x02, Vec::new()),
        ("user name is not UTF-8", 0x82, [ID, &[0, 1, 0xff]].concat()),
        ("user name with U+0000", 0x82, [ID, &[0, 1, 0]].concat()),
    ] {
        let three = connect(b"MQTT", 4, flags, &rest);
        assert_eq!(code(&three), (ProtocolVersion::V3_1_1, malformed), "{what}");
        let rest = match rest.get(3..) {
            // The will's properties.
            Some(behind) if flags & 4 != 0 => [ID, &[0], behind].concat(),
            _ => rest,
        };
        assert_eq!(code(&v5(flags, &[], &rest)), (ProtocolVersion::V5, malformed), "{what}");
    }
    // A password without a user name is legal in 5.0 alone.
    let rest = [ID, PAYLOAD].concat();
    assert_eq!(code(&connect(b"MQTT", 4, 0x42, &rest)).1, malformed);
    let connect5 = decode_connect(&v5(0x42, &[], &rest)).unwrap();
    assert_eq!(
        (connect5.user_name, connect5.password.as_deref()),
        (None, Some(&b"pq"[..]))
    );
    // The properties are missing.
    assert_eq!(code(&connect(b"MQTT", 5, 2, &[])).1, malformed);
    // The length is longer than needed: only 5.0 forbids it.
    let padded = |bytes: &[u8]| [&bytes[..1], &[bytes[1] | 0x80, 0], &bytes[2..]].concat();
    assert!(decode_connect(&padded(&connect(b"MQTT", 4, 2, ID))).is_ok());
    assert_eq!(code(&padded(&v5(2, &[], ID))).1, malformed);
}

#[test]
fn wills_are_read_with_their_properties() {
    let will = [0, 1, b't', 0, 2, b'p', b'q'];
    let three = decode_connect(&connect(b"MQTT", 4, 0x36, &[ID, &will].concat()))
        .unwrap()
        .will
        .unwrap();
    assert_eq!((three.topic.as_str(), &three.payload[..]), ("t", &b"pq"[..]));
    assert_eq!((three.qos, three.retain, three.delay), (QoS::ExactlyOnce, true, 0));
    let five = v5(0x0e, &[], &[ID, &[7, 0x18, 0, 0, 0, 9, 0x01, 1], &will].concat());
    let five = decode_connect(&five).unwrap().will.unwrap();
    assert_eq!((five.qos, five.retain, five.delay), (QoS::AtLeastOnce, false, 9));
    for topic in [&[0, 0][..], &[0, 1, b'+'], &[0, 3, b'a', b'/', b'#']] {
        let rest = [ID, topic, &[0, 0]].concat();
        assert_eq!(code(&connect(b"MQTT", 4, 6, &rest)).1, ReasonCode::TopicNameInvalid);
    }
}

#[test]
fn client_ids_that_are_no_strings_are_left_to_the_server() {
    for wrong in [&[0, 1, 0xff][..], &[0, 1, 0], &[0, 3, 0xed, 0xa0, 0x80]] {
        let client_id = decode_connect(&v5(2, &[], wrong)).unwrap().client_id;
        assert_eq!(client_id.unwrap_err().code, ReasonCode::ClientIdentifierNotValid);
    }
    for (len, is_right) in [(0, false), (1, true), (23, true), (24, false)] {
        let id = [&[0, len][..], &vec![b'x'; len.into()]].concat();
        let old = decode_connect(&connect(b"MQIsdp", 3, 2, &id)).unwrap();
        assert_eq!(old.client_id.is_ok(), is_right, "{len}");
        assert!(decode_connect(&connect(b"MQTT", 4, 2, &id)).unwrap().client_id.is_ok());
    }
}

#[test]
fn properties_are_read() {
    let properties = [
        0x11, 0, 0, 1, 0, 0x21, 0, 5, 0x27, 0, 0, 2, 0, 0x22, 0, 9, 0x19, 1, 0x17, 0, 0x26, 0, 1, b'a', 0, 1, b'b',
        0x26, 0, 1, b'a', 0, 0,
    ];
    let connect = decode_connect(&v5(2, &properties, ID)).unwrap();
    assert_eq!((connect.session_expiry, connect.receive_maximum), (256, 5));
    assert_eq!(
        (connect.maximum_packet_size, connect.topic_alias_maximum),
        (Some(512), 9)
    );
    assert_eq!(
        (
            connect.request_response_information,
            connect.request_problem_information
        ),
        (true, false)
    );
    assert_eq!(connect.properties.user().collect::<Vec<_>>(), [("a", "b"), ("a", "")]);
    let plain = decode_connect(&v5(2, &[], ID)).unwrap();
    assert_eq!(
        (plain.session_expiry, plain.receive_maximum, plain.maximum_packet_size),
        (0, 65_535, None)
    );
    assert_eq!(
        (plain.request_response_information, plain.request_problem_information),
        (false, true)
    );
    let protocol = ReasonCode::ProtocolError;
    for (wrong, expected) in [
        (&[0x21, 0, 0][..], protocol),
        (&[0x27, 0, 0, 0, 0], protocol),
        (&[0x17, 2], protocol),
        (&[0x19, 2], protocol),
        (&[0x11, 0, 0, 0, 1, 0x11, 0, 0, 0, 1], protocol),
        (&[0x21, 0, 1, 0x21, 0, 2], protocol),
        (&[0x16, 0, 1, 1], protocol),
        (&[0x24, 1], ReasonCode::MalformedPacket),
        (&[0x7f, 1], ReasonCode::MalformedPacket),
        (&[0x11, 0, 0], ReasonCode::MalformedPacket),
        (&[0x26, 0, 1, 0xff, 0, 0], ReasonCode::MalformedPacket),
        (&[0x26, 0, 1, b'a', 0, 1, 0], ReasonCode::MalformedPacket),
    ] {
        assert_eq!(code(&v5(2, wrong, ID)).1, expected, "{wrong:02x?}");
    }
    assert!(
        decode_connect(&v5(2, &[0x15, 0, 1, b'm', 0x16, 0, 1, 1], ID))
            .unwrap()
            .has_authentication_method
    );
}
