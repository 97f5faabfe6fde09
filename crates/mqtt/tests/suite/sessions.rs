//! Stored sessions: what was acknowledged to a publisher reaches a subscriber that was away, whatever happens in between.

use std::time::Duration;

use thalweg_mqtt::MqttSettings;
use thalweg_mqtt_wire::{Packet, PacketKind, ProtocolVersion, QoS, ReasonCode};

use crate::support::{ConnectSpec, TestBroker, text};

#[test]
fn a_message_reaches_who_is_there() {
    let broker = TestBroker::start();
    broker.run(async {
        let mut subscriber = broker.client("s").await;
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let filter = format!("plant/+/{}", qos.number());
            assert_eq!(subscriber.subscribe(&filter, qos).await.number(), qos.number());
        }
        let mut publisher = broker.client("p").await;
        for granted in 0..3_u8 {
            for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
                let topic = format!("plant/a/{granted}");
                assert_eq!(publisher.publish(&topic, "21.5", qos).await, ReasonCode::Success);
                let message = subscriber.message().await;
                assert_eq!((message.topic(), text(&message)), (&*topic, "21.5".to_owned()));
                assert_eq!(message.qos.number(), qos.number().min(granted));
                match message.qos {
                    QoS::AtMostOnce => {}
                    QoS::AtLeastOnce => subscriber.ack(PacketKind::PubAck, message.packet_id).await,
                    QoS::ExactlyOnce => {
                        subscriber.ack(PacketKind::PubRec, message.packet_id).await;
                        assert!(matches!(subscriber.packet().await, Packet::PubRel(_)));
                        subscriber.ack(PacketKind::PubComp, message.packet_id).await;
                    }
                }
            }
        }
        assert_eq!(
            publisher.publish("elsewhere", "", QoS::AtLeastOnce).await,
            ReasonCode::NoMatchingSubscribers
        );
        subscriber.silence().await;
    });
}

#[test]
fn what_was_acknowledged_reaches_a_session_that_was_away_over_a_kill_and_a_power_cut() {
    for is_power_cut in [false, true] {
        let mut broker = TestBroker::start();
        broker.run(async {
            let mut subscriber = broker.stored_client("s").await;
            subscriber.subscribe("plant/#", QoS::AtLeastOnce).await;
            subscriber.disconnect().await;
            let mut publisher = broker.client("p").await;
            for n in 0..200 {
                let topic = format!("plant/{}", n % 7);
                assert_eq!(
                    publisher.publish(&topic, &n.to_string(), QoS::AtLeastOnce).await,
                    ReasonCode::Success
                );
                publisher.publish("elsewhere", "lost", QoS::AtLeastOnce).await;
            }
        });
        match is_power_cut {
            true => broker.cut_power(),
            false => broker.kill(),
        }
        broker.run(async {
            let (mut subscriber, connack) = broker
                .connect(&ConnectSpec {
                    client_id: "s",
                    ..ConnectSpec::stored()
                })
                .await;
            assert!(connack.session_present);
            for n in 0..200 {
                assert_eq!(subscriber.take().await, (format!("plant/{}", n % 7), n.to_string()));
            }
            subscriber.silence().await;
            // What comes now comes by itself.
            let mut publisher = broker.client("p").await;
            publisher.publish("plant/live", "now", QoS::AtLeastOnce).await;
            assert_eq!(subscriber.take().await.1, "now");
            subscriber.disconnect().await;
        });
    }
}

#[test]
fn what_was_not_acknowledged_comes_again_with_its_identifier_and_dup() {
    let mut broker = TestBroker::start();
    let sent = broker.run(async {
        let mut subscriber = broker.stored_client("s").await;
        subscriber.subscribe("a", QoS::AtLeastOnce).await;
        let mut publisher = broker.client("p").await;
        for n in 0..10 {
            publisher.publish("a", &n.to_string(), QoS::AtLeastOnce).await;
        }
        let mut sent = Vec::new();
        for n in 0..10 {
            let message = subscriber.message().await;
            assert_eq!((text(&message), message.dup), (n.to_string(), false));
            sent.push(message.packet_id);
        }
        // Out of order, and not all.
        for n in [3, 0, 7] {
            subscriber.ack(PacketKind::PubAck, sent[n]).await;
        }
        // An acknowledgement may wait for its record this long.
        tokio::time::sleep(MqttSettings::default().ack_flush + Duration::from_millis(200)).await;
        sent
    });
    let resumed = |broker: &TestBroker| {
        broker.run(async {
            let mut subscriber = broker.stored_client("s").await;
            for n in [1, 2, 4, 5, 6, 8, 9] {
                let message = subscriber.message().await;
                assert_eq!(
                    (text(&message), message.dup, message.packet_id),
                    (n.to_string(), true, sent[n])
                );
            }
            subscriber.silence().await;
        });
    };
    resumed(&broker);
    broker.kill();
    resumed(&broker);
    broker.cut_power();
    resumed(&broker);
}

#[test]
fn a_clean_start_begins_anew_and_expiry_0_ends_with_the_connection() {
    let mut broker = TestBroker::start();
    broker.run(async {
        let mut first = broker.stored_client("s").await;
        first.subscribe("a", QoS::AtLeastOnce).await;
        first.disconnect().await;
        let spec = ConnectSpec {
            client_id: "s",
            clean_start: true,
            ..ConnectSpec::stored()
        };
        let (second, connack) = broker.connect(&spec).await;
        assert!(!connack.session_present);
        let mut publisher = broker.client("p").await;
        assert_eq!(
            publisher.publish("a", "1", QoS::AtLeastOnce).await,
            ReasonCode::NoMatchingSubscribers
        );
        second.disconnect().await;
        let mut passing = broker.client("t").await;
        passing.subscribe("a", QoS::AtLeastOnce).await;
        passing.disconnect().await;
        assert_eq!(
            publisher.publish("a", "1", QoS::AtLeastOnce).await,
            ReasonCode::NoMatchingSubscribers
        );
    });
    broker.kill();
    broker.run(async {
        for (client_id, is_present) in [("s", true), ("t", false)] {
            let (_, connack) = broker
                .connect(&ConnectSpec {
                    client_id,
                    ..ConnectSpec::stored()
                })
                .await;
            assert_eq!(connack.session_present, is_present, "{client_id}");
        }
    });
}

#[test]
fn a_second_connection_takes_the_session_over_and_3_1_1_has_its_own_words() {
    let broker = TestBroker::start();
    broker.run(async {
        let mut first = broker.stored_client("s").await;
        first.subscribe("a", QoS::AtLeastOnce).await;
        let spec = ConnectSpec {
            version: ProtocolVersion::V3_1_1,
            client_id: "s",
            ..ConnectSpec::stored()
        };
        let (mut second, connack) = broker.connect(&spec).await;
        assert!(connack.session_present);
        let Some(Packet::Disconnect(told)) = first.end().await.pop() else {
            panic!("no DISCONNECT")
        };
        assert_eq!(told.reason, ReasonCode::SessionTakenOver);
        let mut publisher = broker.client("p").await;
        publisher.publish("a", "x", QoS::AtLeastOnce).await;
        assert_eq!(second.take().await.1, "x");
        // A session of 3.1.1 stays, too.
        second.disconnect().await;
        publisher.publish("a", "y", QoS::AtLeastOnce).await;
        let mut third = broker.stored_client("s").await;
        assert_eq!(third.take().await.1, "y");
    });
}

#[test]
fn a_subscriber_that_reads_slowly_holds_nobody_up_and_gets_everything() {
    let broker = TestBroker::with(MqttSettings {
        send_buffer: 16 << 10,
        ..MqttSettings::default()
    });
    broker.run(async {
        let (mut slow, _) = broker
            .connect(&ConnectSpec {
                client_id: "slow",
                receive_maximum: 5,
                ..ConnectSpec::stored()
            })
            .await;
        slow.subscribe("a", QoS::AtLeastOnce).await;
        let mut quick = broker.stored_client("quick").await;
        quick.subscribe("a", QoS::AtLeastOnce).await;
        let mut publisher = broker.client("p").await;
        for n in 0..300 {
            publisher.publish("a", &n.to_string(), QoS::AtLeastOnce).await;
            assert_eq!(quick.take().await.1, n.to_string());
        }
        let mut inflight = Vec::new();
        for n in 0..300 {
            let message = slow.message().await;
            assert_eq!(text(&message), n.to_string());
            inflight.push(message.packet_id);
            // No more than it takes are under way.
            if inflight.len() == 5 {
                if n < 10 {
                    slow.silence().await;
                }
                for id in inflight.drain(..) {
                    slow.ack(PacketKind::PubAck, id).await;
                }
            }
        }
        slow.silence().await;
    });
}

#[test]
fn a_slow_session_that_ends_with_its_connection_gets_everything_by_way_of_the_log() {
    let broker = TestBroker::with(MqttSettings {
        memory_queue: 2 << 10,
        ..MqttSettings::default()
    });
    broker.run(async {
        let spec = ConnectSpec {
            client_id: "slow",
            receive_maximum: 5,
            expiry: 0,
            clean_start: true,
            ..ConnectSpec::stored()
        };
        let (mut slow, _) = broker.connect(&spec).await;
        slow.subscribe("a/#", QoS::ExactlyOnce).await;
        let mut publisher = broker.client("p").await;
        let mut expected = Vec::new();
        let mut got = Vec::new();
        // Behind, caught up, and behind again.
        for round in 0..3 {
            for n in 0..300 {
                let payload = format!("{round}-{n}");
                publisher.publish("a/b", &payload, QoS::AtLeastOnce).await;
                expected.push(payload);
            }
            while got.len() < expected.len() {
                got.push(slow.take().await.1);
            }
            publisher.publish("a/live", "live", QoS::ExactlyOnce).await;
            assert_eq!(slow.take().await.1, "live");
        }
        assert_eq!(got, expected);
        slow.silence().await;
    });
}

#[test]
fn clients_that_fight_over_an_id_are_slowed() {
    let broker = TestBroker::start();
    broker.run(async {
        for (client_id, expiry, clean_start) in [("stored", 3600, false), ("passing", 0, true)] {
            let spec = ConnectSpec {
                client_id,
                expiry,
                clean_start,
                ..ConnectSpec::stored()
            };
            let mut clients = Vec::new();
            let mut times = Vec::new();
            for _ in 0..7 {
                let begin = std::time::Instant::now();
                clients.push(broker.connect(&spec).await.0);
                times.push(begin.elapsed() >= Duration::from_millis(900));
            }
            assert_eq!(times, [false, false, false, false, false, true, true]);
            clients.pop().unwrap().disconnect().await;
        }
    });
}
