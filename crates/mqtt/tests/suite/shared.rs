//! Shared subscriptions: each message reaches one member of the group, whoever comes, goes and crashes.

use std::collections::BTreeMap;
use std::time::Duration;

use thalweg_mqtt::MqttSettings;
use thalweg_mqtt_wire::{PacketKind, QoS, ReasonCode, encode};

use crate::support::{ConnectSpec, TestBroker, TestClient, text};

/// All messages that come without a pause, acknowledged.
async fn drain(client: &mut TestClient, expected: usize) -> Vec<String> {
    let mut got = Vec::new();
    for _ in 0..expected {
        got.push(client.take().await.1);
    }
    got
}

#[test]
fn each_message_goes_to_one_member_in_turn_and_to_everybody_else_as_well() {
    let broker = TestBroker::start();
    broker.run(async {
        let mut members = Vec::new();
        for n in 0..3 {
            let mut member = broker.client(&format!("m{n}")).await;
            assert_eq!(
                member.subscribe("$share/g/a/+", QoS::AtLeastOnce).await,
                ReasonCode::GrantedQoS1
            );
            members.push(member);
        }
        let mut other_group = broker.client("o").await;
        other_group.subscribe("$share/h/a/+", QoS::AtLeastOnce).await;
        let mut plain = broker.client("plain").await;
        plain.subscribe("a/#", QoS::AtLeastOnce).await;
        let mut publisher = broker.client("p").await;
        for n in 0..30 {
            publisher.publish("a/b", &n.to_string(), QoS::AtLeastOnce).await;
        }
        let expected: Vec<String> = (0..30).map(|n| n.to_string()).collect();
        assert_eq!(drain(&mut plain, 30).await, expected);
        assert_eq!(drain(&mut other_group, 30).await, expected);
        let mut all = Vec::new();
        for member in &mut members {
            let got = drain(member, 10).await;
            assert!(got.is_sorted_by_key(|text| text.parse::<u32>().unwrap()));
            all.extend(got);
            member.silence().await;
        }
        all.sort_by_key(|text| text.parse::<u32>().unwrap());
        assert_eq!(all, expected);
        for wrong in ["$share/g", "$share//a", "$share/+/a"] {
            assert_eq!(
                plain.subscribe(wrong, QoS::AtLeastOnce).await,
                ReasonCode::TopicFilterInvalid,
                "{wrong}"
            );
        }
    });
}

#[test]
fn a_group_without_members_that_are_there_waits_over_a_kill_and_gets_everything_once() {
    for qos in [QoS::AtLeastOnce, QoS::ExactlyOnce] {
        let mut broker = TestBroker::start();
        broker.run(async {
            for n in 0..2 {
                let mut member = broker.stored_client(&format!("m{n}")).await;
                member.subscribe("$share/g/a", qos).await;
                member.disconnect().await;
            }
            let mut publisher = broker.client("p").await;
            for n in 0..100 {
                publisher.publish("a", &n.to_string(), qos).await;
            }
        });
        let mut got = BTreeMap::<String, usize>::new();
        for round in 0..4 {
            broker.run(async {
                let spec = ConnectSpec {
                    client_id: if round % 2 == 0 { "m0" } else { "m1" },
                    receive_maximum: 10,
                    ..ConnectSpec::stored()
                };
                let (mut member, connack) = broker.connect(&spec).await;
                assert!(connack.session_present);
                for _ in 0..20 {
                    *got.entry(member.take().await.1).or_default() += 1;
                }
                // Acknowledgements may wait for their record this long.
                tokio::time::sleep(MqttSettings::default().ack_flush + Duration::from_millis(100)).await;
                member.break_off();
            });
            broker.kill();
        }
        // What a member had when it died comes back to it or, with QoS 1, to another one.
        broker.run(async {
            let mut members = [broker.stored_client("m0").await, broker.stored_client("m1").await];
            for member in &mut members {
                while let Some(message) = member.take_if_any().await {
                    *got.entry(message.1).or_default() += 1;
                }
            }
        });
        assert_eq!(got.len(), 100);
        if qos == QoS::ExactlyOnce {
            assert!(got.values().all(|count| *count == 1), "{got:?}");
        }
    }
}

#[test]
fn what_a_member_has_not_acknowledged_goes_to_another_when_its_session_ends() {
    for is_stored in [false, true] {
        let broker = TestBroker::start();
        broker.run(async {
            let expiry = if is_stored { 3600 } else { 0 };
            let spec = ConnectSpec {
                client_id: "one",
                expiry,
                clean_start: true,
                ..ConnectSpec::stored()
            };
            let (mut one, _) = broker.connect(&spec).await;
            one.subscribe("$share/g/a", QoS::AtLeastOnce).await;
            let mut publisher = broker.client("p").await;
            for n in 0..5 {
                publisher.publish("a", &n.to_string(), QoS::AtLeastOnce).await;
            }
            let mut ids = Vec::new();
            for _ in 0..5 {
                ids.push(one.message().await.packet_id);
            }
            one.ack(PacketKind::PubAck, ids[2]).await;
            let (mut other, _) = broker
                .connect(&ConnectSpec {
                    client_id: "other",
                    ..spec
                })
                .await;
            other.subscribe("$share/g/a", QoS::AtLeastOnce).await;
            other.silence().await;
            if is_stored {
                // As long as it may come back, they are its own.
                one.break_off();
                other.silence().await;
                let (clean, _) = broker
                    .connect(&ConnectSpec {
                        client_id: "one",
                        expiry: 0,
                        clean_start: true,
                        ..spec
                    })
                    .await;
                clean.disconnect().await;
            } else {
                one.break_off();
            }
            let mut got = drain(&mut other, 4).await;
            got.sort();
            assert_eq!(got, ["0", "1", "3", "4"]);
            other.silence().await;
        });
    }
}

#[test]
fn a_member_without_room_is_passed_over_and_the_group_waits_in_the_log() {
    let broker = TestBroker::start();
    broker.run(async {
        let spec = ConnectSpec {
            client_id: "narrow",
            receive_maximum: 2,
            ..ConnectSpec::stored()
        };
        let (mut narrow, _) = broker.connect(&spec).await;
        narrow.subscribe("$share/g/a", QoS::AtLeastOnce).await;
        let mut publisher = broker.client("p").await;
        for n in 0..50 {
            publisher.publish("a", &n.to_string(), QoS::AtLeastOnce).await;
        }
        let first = narrow.message().await;
        let second = narrow.message().await;
        narrow.silence().await;
        // A second member takes what the first one has no room for.
        let mut wide = broker.stored_client("wide").await;
        wide.subscribe("$share/g/a", QoS::AtLeastOnce).await;
        let mut got = drain(&mut wide, 48).await;
        got.extend([text(&first), text(&second)]);
        got.sort_by_key(|text| text.parse::<u32>().unwrap());
        assert_eq!(got, (0..50).map(|n| n.to_string()).collect::<Vec<_>>());
        wide.silence().await;
        // Who refuses a message ends it for the group [MQTT-4.8.2-6].
        narrow
            .send(|out| {
                let version = thalweg_mqtt_wire::ProtocolVersion::V5;
                for id in [first.packet_id, second.packet_id] {
                    encode::ack(out, version, PacketKind::PubAck, id, ReasonCode::NotAuthorized, &[]);
                }
            })
            .await;
        wide.silence().await;
        narrow.silence().await;
    });
}
