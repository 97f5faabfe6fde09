//! Retained messages: the newest of each topic, for everybody who subscribes later.

use std::collections::BTreeMap;

use thalweg_mqtt::MqttSettings;
use thalweg_mqtt_wire::subscribe::RetainHandling;
use thalweg_mqtt_wire::{PacketKind, QoS, ReasonCode, SubscribeOptions};

use crate::support::{TestBroker, TestClient, text};

/// All retained messages that a subscription brings, acknowledged.
async fn retained(client: &mut TestClient, filter: &str, qos: QoS, count: usize) -> BTreeMap<String, String> {
    client.subscribe(filter, qos).await;
    let mut found = BTreeMap::new();
    for _ in 0..count {
        let message = client.message().await;
        assert!(message.retain);
        if message.qos == QoS::AtLeastOnce {
            client.ack(PacketKind::PubAck, message.packet_id).await;
        }
        found.insert(message.topic().to_owned(), text(&message));
    }
    client.silence().await;
    found
}

#[test]
fn the_newest_message_of_each_topic_is_kept_over_a_kill_and_a_power_cut_until_it_is_removed() {
    let mut broker = TestBroker::start();
    broker.run(async {
        let mut publisher = broker.client("p").await;
        for round in 0..3 {
            for n in 0..300 {
                // Some are too large for memory.
                let payload = format!("{round} {}", "x".repeat(n * 4));
                publisher.retain(&format!("plant/{n}"), &payload).await;
            }
        }
        for n in (0..300).step_by(3) {
            assert_eq!(publisher.retain(&format!("plant/{n}"), "").await, ReasonCode::Success);
        }
    });
    for death in 0..3 {
        match death {
            0 => {}
            1 => broker.kill(),
            _ => broker.cut_power(),
        }
        broker.run(async {
            for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
                let mut client = broker.client("s").await;
                let found = retained(&mut client, "plant/+", qos, 200).await;
                assert_eq!(found.len(), 200);
                for (topic, payload) in found {
                    let n: usize = topic.strip_prefix("plant/").unwrap().parse().unwrap();
                    assert!(!n.is_multiple_of(3));
                    assert_eq!(payload, format!("2 {}", "x".repeat(n * 4)));
                }
            }
        });
    }
}

#[test]
fn who_is_there_gets_a_live_message_and_retain_handling_says_who_gets_the_retained_one() {
    let broker = TestBroker::start();
    broker.run(async {
        let mut live = broker.client("live").await;
        live.subscribe("a", QoS::AtMostOnce).await;
        let keeps = SubscribeOptions {
            retain_as_published: true,
            ..SubscribeOptions::default()
        };
        let mut keeping = broker.client("keeping").await;
        keeping.subscribe_with("a", keeps).await;
        let mut publisher = broker.client("p").await;
        assert_eq!(publisher.retain("a", "1").await, ReasonCode::Success);
        assert!(!live.message().await.retain);
        assert!(keeping.message().await.retain);
        // 0: always; 1: if the subscription is new; 2: never.
        let with = |retain_handling| SubscribeOptions {
            retain_handling,
            ..SubscribeOptions::default()
        };
        live.subscribe_with("a", with(RetainHandling::Always)).await;
        assert!(live.message().await.retain);
        live.subscribe_with("a", with(RetainHandling::IfNew)).await;
        live.silence().await;
        live.subscribe_with("+", with(RetainHandling::IfNew)).await;
        assert!(live.message().await.retain);
        live.subscribe_with("#", with(RetainHandling::Never)).await;
        live.silence().await;
    });
}

#[test]
fn a_new_topic_beyond_the_limit_is_refused_and_known_ones_and_removals_are_not() {
    let broker = TestBroker::with(MqttSettings {
        retained_messages: 2,
        ..MqttSettings::default()
    });
    broker.run(async {
        let mut publisher = broker.client("p").await;
        assert_eq!(publisher.retain("a", "1").await, ReasonCode::Success);
        assert_eq!(publisher.retain("b", "1").await, ReasonCode::Success);
        assert_eq!(publisher.retain("c", "1").await, ReasonCode::QuotaExceeded);
        assert_eq!(publisher.retain("b", "2").await, ReasonCode::Success);
        assert_eq!(publisher.retain("a", "").await, ReasonCode::Success);
        assert_eq!(publisher.retain("c", "2").await, ReasonCode::Success);
        let mut client = broker.client("s").await;
        let found = retained(&mut client, "#", QoS::AtMostOnce, 2).await;
        assert_eq!(
            found,
            BTreeMap::from([("b".to_owned(), "2".to_owned()), ("c".to_owned(), "2".to_owned())])
        );
    });
}

#[test]
fn retained_messages_that_are_not_acknowledged_come_again_and_those_of_qos_2_once() {
    let mut broker = TestBroker::start();
    let (one, two) = broker.run(async {
        let mut publisher = broker.client("p").await;
        publisher.retain("one", "1").await;
        let mut client = broker.stored_client("s").await;
        client.subscribe("one", QoS::AtLeastOnce).await;
        let one = client.message().await.packet_id;
        publisher.publish_as(9, "two", "2", QoS::ExactlyOnce, false).await;
        publisher.packet().await;
        publisher.ack(PacketKind::PubRel, 9).await;
        publisher.packet().await;
        let version = thalweg_mqtt_wire::ProtocolVersion::V5;
        publisher
            .send(|out| {
                let head = thalweg_mqtt_wire::encode::PublishHead {
                    qos: QoS::ExactlyOnce,
                    retain: true,
                    packet_id: 10,
                    topic: "two",
                    ..Default::default()
                };
                head.write(out, version, 1);
                out.push(b'2');
            })
            .await;
        publisher.packet().await;
        client.subscribe("two", QoS::ExactlyOnce).await;
        let two = client.message().await;
        assert_eq!((two.qos, two.retain), (QoS::ExactlyOnce, true));
        client.ack(PacketKind::PubRec, two.packet_id).await;
        client.pubrel(two.packet_id).await;
        tokio::time::sleep(MqttSettings::default().ack_flush * 2).await;
        (one, two.packet_id)
    });
    broker.kill();
    broker.run(async {
        let mut client = broker.stored_client("s").await;
        let message = client.message().await;
        assert_eq!(
            (message.packet_id, message.dup, text(&message)),
            (one, true, "1".to_owned())
        );
        client.ack(PacketKind::PubAck, one).await;
        client.pubrel(two).await;
        client.ack(PacketKind::PubComp, two).await;
        client.silence().await;
    });
}
