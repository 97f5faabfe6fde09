//! Packets byte by byte: what is valid is answered, and what is not ends its connection with the code that the standard gives it.

use thalweg_mqtt::MqttSettings;
use thalweg_mqtt_wire::{Packet, ProtocolVersion, ReasonCode};

use crate::support::{ConnectSpec, TestBroker, TestClient};

/// What must come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// Exactly these bytes, and the connection stays.
    Bytes(&'static [u8]),
    /// DISCONNECT with this code in 5.0, in 3.1.1 only the end of the connection.
    End(ReasonCode),
    /// The end of the connection without any packet.
    Close,
}

use Answer::{Bytes, Close, End};
use ReasonCode::{MalformedPacket, ProtocolError};

type Row = (&'static str, &'static [u8], Answer);

const NOTHING: Answer = Bytes(&[]);

/// Of both versions.
const BOTH: &[Row] = &[
    ("PINGREQ", &[0xc0, 0], Bytes(&[0xd0, 0])),
    ("PINGREQ with a body", &[0xc0, 1, 0], End(MalformedPacket)),
    ("PINGREQ with flags", &[0xc1, 0], End(MalformedPacket)),
    ("type 0", &[0x00, 0], End(MalformedPacket)),
    (
        "a length of five bytes",
        &[0xc0, 0x80, 0x80, 0x80, 0x80, 1],
        End(MalformedPacket),
    ),
    ("CONNACK of a client", &[0x20, 2, 0, 0], End(ProtocolError)),
    ("PINGRESP of a client", &[0xd0, 0], End(ProtocolError)),
    ("PUBLISH with QoS 3", &[0x36, 5, 0, 1, b'a', 0, 1], End(MalformedPacket)),
    (
        "PUBLISH with DUP and QoS 0",
        &[0x38, 3, 0, 1, b'a'],
        End(MalformedPacket),
    ),
    (
        "PUBLISH with a topic that is cut off",
        &[0x30, 3, 0, 5, b'a'],
        End(MalformedPacket),
    ),
    ("PUBLISH without a topic length", &[0x30, 1, 0], End(MalformedPacket)),
    ("PUBACK of an unknown identifier", &[0x40, 2, 0, 9], NOTHING),
    ("PUBCOMP of an unknown identifier", &[0x70, 2, 0, 9], NOTHING),
    ("PUBREL with wrong flags", &[0x60, 2, 0, 9], End(MalformedPacket)),
    ("PUBACK with identifier 0", &[0x40, 2, 0, 0], End(ProtocolError)),
    ("PUBREC that is cut off", &[0x50, 1, 0], End(MalformedPacket)),
    (
        "SUBSCRIBE with wrong flags",
        &[0x80, 6, 0, 1, 0, 1, b'a', 0],
        End(MalformedPacket),
    ),
    (
        "UNSUBSCRIBE with wrong flags",
        &[0xa0, 5, 0, 1, 0, 1, b'a'],
        End(MalformedPacket),
    ),
    ("DISCONNECT", &[0xe0, 0], Close),
    ("DISCONNECT with flags", &[0xe1, 0], End(MalformedPacket)),
];

/// Of 3.1.1.
const V3: &[Row] = &[
    (
        "PUBLISH with QoS 1",
        &[0x32, 5, 0, 1, b'a', 0, 7],
        Bytes(&[0x40, 2, 0, 7]),
    ),
    (
        "PUBLISH with QoS 2",
        &[0x34, 5, 0, 1, b'a', 0, 7],
        Bytes(&[0x50, 2, 0, 7]),
    ),
    (
        "PUBLISH with QoS 2 twice",
        &[0x34, 5, 0, 1, b'a', 0, 7, 0x3c, 5, 0, 1, b'a', 0, 7],
        Bytes(&[0x50, 2, 0, 7, 0x50, 2, 0, 7]),
    ),
    (
        "PUBREL of an unknown identifier",
        &[0x62, 2, 0, 9],
        Bytes(&[0x70, 2, 0, 9]),
    ),
    (
        "PUBREC of an unknown identifier",
        &[0x50, 2, 0, 9],
        Bytes(&[0x62, 2, 0, 9]),
    ),
    (
        "a length that is longer than needed",
        &[0xc0, 0x80, 0],
        Bytes(&[0xd0, 0]),
    ),
    (
        "PUBLISH with identifier 0",
        &[0x32, 5, 0, 1, b'a', 0, 0],
        End(ProtocolError),
    ),
    ("PUBLISH with an empty topic", &[0x30, 2, 0, 0], End(ProtocolError)),
    ("PUBLISH with a wildcard", &[0x30, 3, 0, 1, b'#'], End(MalformedPacket)),
    ("PUBLISH with U+0000", &[0x30, 3, 0, 1, 0], End(MalformedPacket)),
    (
        "PUBLISH with a surrogate",
        &[0x30, 5, 0, 3, 0xed, 0xa0, 0x80],
        End(MalformedPacket),
    ),
    ("SUBSCRIBE", &[0x82, 6, 0, 1, 0, 1, b'a', 1], Bytes(&[0x90, 3, 0, 1, 1])),
    (
        "SUBSCRIBE of two filters",
        &[0x82, 10, 0, 1, 0, 1, b'a', 2, 0, 1, b'b', 0],
        Bytes(&[0x90, 4, 0, 1, 2, 0]),
    ),
    (
        "SUBSCRIBE with QoS 3",
        &[0x82, 6, 0, 1, 0, 1, b'a', 3],
        End(MalformedPacket),
    ),
    (
        "SUBSCRIBE with a reserved bit",
        &[0x82, 6, 0, 1, 0, 1, b'a', 4],
        End(MalformedPacket),
    ),
    ("SUBSCRIBE without filters", &[0x82, 2, 0, 1], End(ProtocolError)),
    (
        "SUBSCRIBE of a shared filter without a name",
        &[
            0x82, 14, 0, 1, 0, 9, b'$', b's', b'h', b'a', b'r', b'e', b'/', b'/', b'a', 1,
        ],
        Bytes(&[0x90, 3, 0, 1, 0x80]),
    ),
    (
        "SUBSCRIBE with # in the middle",
        &[0x82, 8, 0, 1, 0, 3, b'#', b'/', b'a', 0],
        End(MalformedPacket),
    ),
    (
        "SUBSCRIBE with + within a level",
        &[0x82, 7, 0, 1, 0, 2, b'a', b'+', 0],
        End(MalformedPacket),
    ),
    ("UNSUBSCRIBE", &[0xa2, 5, 0, 1, 0, 1, b'z'], Bytes(&[0xb0, 2, 0, 1])),
    ("UNSUBSCRIBE without filters", &[0xa2, 2, 0, 1], End(ProtocolError)),
    ("AUTH", &[0xf0, 0], End(ProtocolError)),
    ("DISCONNECT with a body", &[0xe0, 1, 0], End(MalformedPacket)),
];

/// Of 5.0.
const V5: &[Row] = &[
    (
        "PUBLISH with QoS 1 for nobody",
        &[0x32, 6, 0, 1, b'a', 0, 7, 0],
        Bytes(&[0x40, 3, 0, 7, 0x10]),
    ),
    (
        "PUBLISH with QoS 2 for nobody",
        &[0x34, 6, 0, 1, b'a', 0, 7, 0],
        Bytes(&[0x50, 3, 0, 7, 0x10]),
    ),
    (
        "PUBREL of an unknown identifier",
        &[0x62, 2, 0, 9],
        Bytes(&[0x70, 3, 0, 9, 0x92]),
    ),
    (
        "PUBREC of an unknown identifier",
        &[0x50, 2, 0, 9],
        Bytes(&[0x62, 3, 0, 9, 0x92]),
    ),
    (
        "PUBREC that fails, of an unknown identifier",
        &[0x50, 3, 0, 9, 0x80],
        Bytes(&[0x62, 3, 0, 9, 0x92]),
    ),
    (
        "PUBACK with an unknown code",
        &[0x40, 3, 0, 9, 0x55],
        End(MalformedPacket),
    ),
    (
        "PUBACK with a code of PUBREL",
        &[0x40, 3, 0, 9, 0x92],
        End(MalformedPacket),
    ),
    (
        "a length that is longer than needed",
        &[0xc0, 0x80, 0],
        End(MalformedPacket),
    ),
    (
        "PUBLISH with an empty topic and no alias",
        &[0x30, 3, 0, 0, 0],
        End(ProtocolError),
    ),
    (
        "PUBLISH with an unknown alias",
        &[0x30, 6, 0, 0, 3, 0x23, 0, 1],
        End(ProtocolError),
    ),
    (
        "PUBLISH with alias 0",
        &[0x30, 7, 0, 1, b'a', 3, 0x23, 0, 0],
        End(ReasonCode::TopicAliasInvalid),
    ),
    (
        "PUBLISH with an alias over the maximum",
        &[0x30, 7, 0, 1, b'a', 3, 0x23, 0, 65],
        End(ReasonCode::TopicAliasInvalid),
    ),
    (
        "PUBLISH with an alias, then by it",
        &[
            0x32, 9, 0, 1, b'a', 0, 1, 3, 0x23, 0, 2, 0x32, 8, 0, 0, 0, 2, 3, 0x23, 0, 2,
        ],
        Bytes(&[0x40, 3, 0, 1, 0x10, 0x40, 3, 0, 2, 0x10]),
    ),
    (
        "PUBLISH with an alias twice",
        &[0x30, 10, 0, 1, b'a', 6, 0x23, 0, 1, 0x23, 0, 1],
        End(ProtocolError),
    ),
    (
        "PUBLISH with a subscription identifier",
        &[0x30, 6, 0, 1, b'a', 2, 0x0b, 1],
        End(ProtocolError),
    ),
    (
        "PUBLISH with an unknown property",
        &[0x30, 6, 0, 1, b'a', 2, 0x7f, 1],
        End(MalformedPacket),
    ),
    (
        "PUBLISH with a property of CONNECT",
        &[0x30, 7, 0, 1, b'a', 3, 0x21, 0, 1],
        End(MalformedPacket),
    ),
    (
        "PUBLISH with format 2",
        &[0x30, 6, 0, 1, b'a', 2, 0x01, 2],
        End(ProtocolError),
    ),
    (
        "PUBLISH with properties that are cut off",
        &[0x30, 5, 0, 1, b'a', 9, 0x01],
        End(MalformedPacket),
    ),
    (
        "PUBLISH with a response topic with a wildcard",
        &[0x30, 8, 0, 1, b'a', 4, 0x08, 0, 1, b'+'],
        End(ProtocolError),
    ),
    (
        "PUBLISH to $SYS",
        &[0x32, 9, 0, 4, b'$', b'S', b'Y', b'S', 0, 7, 0],
        Bytes(&[0x40, 3, 0, 7, 0x87]),
    ),
    (
        "SUBSCRIBE",
        &[0x82, 7, 0, 1, 0, 0, 1, b'a', 1],
        Bytes(&[0x90, 4, 0, 1, 0, 1]),
    ),
    (
        "SUBSCRIBE with Retain Handling 3",
        &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x30],
        End(MalformedPacket),
    ),
    (
        "SUBSCRIBE with reserved bits",
        &[0x82, 7, 0, 1, 0, 0, 1, b'a', 0x40],
        End(MalformedPacket),
    ),
    (
        "SUBSCRIBE with identifier 0",
        &[0x82, 9, 0, 1, 2, 0x0b, 0, 0, 1, b'a', 0],
        End(ProtocolError),
    ),
    (
        "SUBSCRIBE with two identifiers",
        &[0x82, 11, 0, 1, 4, 0x0b, 1, 0x0b, 2, 0, 1, b'a', 0],
        End(ProtocolError),
    ),
    (
        "SUBSCRIBE with No Local on a shared filter",
        &[
            0x82, 16, 0, 1, 0, 0, 10, b'$', b's', b'h', b'a', b'r', b'e', b'/', b'g', b'/', b'a', 4,
        ],
        End(ProtocolError),
    ),
    ("SUBSCRIBE without filters", &[0x82, 3, 0, 1, 0], End(ProtocolError)),
    (
        "UNSUBSCRIBE of what is not there",
        &[0xa2, 6, 0, 1, 0, 0, 1, b'z'],
        Bytes(&[0xb0, 4, 0, 1, 0, 0x11]),
    ),
    ("AUTH", &[0xf0, 0], End(ProtocolError)),
    ("DISCONNECT with the will", &[0xe0, 1, 4], Close),
    (
        "DISCONNECT with a code of servers",
        &[0xe0, 1, 0x8e],
        End(MalformedPacket),
    ),
    ("DISCONNECT with an expiry", &[0xe0, 7, 0, 5, 0x11, 0, 0, 0, 9], Close),
];

async fn answered(client: &mut TestClient, (name, _, answer): &Row, version: ProtocolVersion) {
    match answer {
        Bytes(expected) => {
            let mut got = Vec::new();
            while let Some(bytes) = client.bytes_if_any(expected.len() - got.len()).await {
                got.extend(bytes);
            }
            assert_eq!(got, *expected, "{name} in {version:?}");
        }
        Close => assert_eq!(client.end().await, [], "{name} in {version:?}"),
        End(code) => match (client.end().await.as_slice(), version) {
            ([Packet::Disconnect(told)], ProtocolVersion::V5) => assert_eq!(told.reason, *code, "{name}"),
            ([], ProtocolVersion::V3_1_1) => {}
            (packets, _) => panic!("{name} in {version:?}: {packets:?}"),
        },
    }
}

#[test]
fn each_packet_is_answered_or_ends_its_connection_and_no_other() {
    let broker = TestBroker::start();
    broker.run(async {
        let mut witness = broker.client("witness").await;
        let versions = [(ProtocolVersion::V3_1_1, V3), (ProtocolVersion::V5, V5)];
        for (version, own) in versions {
            for row in BOTH.iter().chain(own) {
                let spec = ConnectSpec {
                    version,
                    client_id: "c",
                    clean_start: true,
                    ..ConnectSpec::stored()
                };
                let (mut client, _) = broker.connect(&spec).await;
                client.send(|out| out.extend_from_slice(row.1)).await;
                answered(&mut client, row, version).await;
            }
        }
        // Byte by byte it is the same.
        for row in BOTH.iter().chain(V5) {
            let spec = ConnectSpec {
                client_id: "c",
                clean_start: true,
                ..ConnectSpec::stored()
            };
            let (mut client, _) = broker.connect(&spec).await;
            for byte in row.1 {
                client.send(|out| out.push(*byte)).await;
                tokio::task::yield_now().await;
            }
            answered(&mut client, row, ProtocolVersion::V5).await;
        }
        witness.publish("a", "x", thalweg_mqtt_wire::QoS::AtLeastOnce).await;
    });
}

#[test]
fn limits_of_the_broker_end_a_connection_with_their_codes() {
    let settings = MqttSettings {
        receive_maximum: 2,
        max_qos: thalweg_mqtt_wire::QoS::AtLeastOnce,
        retain_available: false,
        max_packet_size: 16 << 10,
        max_topic_levels: 3,
        check_payload_format: true,
        ..MqttSettings::default()
    };
    let rows: &[Row] = &[
        (
            "QoS 2",
            &[0x34, 6, 0, 1, b'a', 0, 7, 0],
            End(ReasonCode::QoSNotSupported),
        ),
        ("retain", &[0x31, 4, 0, 1, b'a', 0], End(ReasonCode::RetainNotSupported)),
        (
            "a large packet",
            &[0x30, 0x81, 0x80, 0x04],
            End(ReasonCode::PacketTooLarge),
        ),
        (
            "too many levels",
            &[0x32, 12, 0, 7, b'a', b'/', b'b', b'/', b'c', b'/', b'd', 0, 7, 0],
            Bytes(&[0x40, 3, 0, 7, 0x90]),
        ),
        (
            "a payload that is no text",
            &[0x32, 9, 0, 1, b'a', 0, 7, 2, 0x01, 1, 0xff],
            Bytes(&[0x40, 3, 0, 7, 0x99]),
        ),
        (
            "a text",
            &[0x32, 9, 0, 1, b'a', 0, 7, 2, 0x01, 1, b'x'],
            Bytes(&[0x40, 3, 0, 7, 0x10]),
        ),
    ];
    let broker = TestBroker::with(settings);
    broker.run(async {
        for row in rows {
            let (mut client, connack) = broker
                .connect(&ConnectSpec {
                    client_id: "c",
                    clean_start: true,
                    ..ConnectSpec::stored()
                })
                .await;
            assert_eq!(connack.reason, ReasonCode::Success);
            client.send(|out| out.extend_from_slice(row.1)).await;
            answered(&mut client, row, ProtocolVersion::V5).await;
        }
    });
}
