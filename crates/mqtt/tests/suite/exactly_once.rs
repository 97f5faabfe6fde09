//! QoS 2: each message once, over kills and power cuts between any two packets.

use thalweg_mqtt_wire::{Packet, PacketKind, QoS, ReasonCode};

use crate::support::{TestBroker, TestClient, text};

/// Between which packets the broker dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    Never,
    AfterPubRec,
    AfterPubComp,
}

#[test]
fn a_message_that_a_publisher_repeats_is_published_once() {
    for death in [Death::Never, Death::AfterPubRec, Death::AfterPubComp] {
        for is_power_cut in [false, true] {
            let mut broker = TestBroker::start();
            let die = |broker: &mut TestBroker, now: Death| match (death == now, is_power_cut) {
                (false, _) => {}
                (true, true) => broker.cut_power(),
                (true, false) => broker.kill(),
            };
            broker.run(async {
                let mut subscriber = broker.stored_client("s").await;
                subscriber.subscribe("a", QoS::ExactlyOnce).await;
                subscriber.disconnect().await;
                let mut publisher = broker.stored_client("p").await;
                publisher.publish_as(7, "a", "once", QoS::ExactlyOnce, false).await;
                assert!(matches!(publisher.packet().await, Packet::PubRec(_)));
            });
            die(&mut broker, Death::AfterPubRec);
            broker.run(async {
                let mut publisher = broker.stored_client("p").await;
                publisher.publish_as(7, "a", "once", QoS::ExactlyOnce, true).await;
                assert!(matches!(publisher.packet().await, Packet::PubRec(ack) if ack.packet_id == 7));
                publisher.ack(PacketKind::PubRel, 7).await;
                assert!(matches!(publisher.packet().await, Packet::PubComp(ack) if ack.reason == ReasonCode::Success));
            });
            die(&mut broker, Death::AfterPubComp);
            broker.run(async {
                let mut publisher = broker.stored_client("p").await;
                publisher.ack(PacketKind::PubRel, 7).await;
                let Packet::PubComp(ack) = publisher.packet().await else {
                    panic!()
                };
                assert_eq!(ack.reason, ReasonCode::PacketIdentifierNotFound);
                // The identifier is free: this is another message.
                publisher.publish_as(7, "a", "another", QoS::ExactlyOnce, false).await;
                assert!(matches!(publisher.packet().await, Packet::PubRec(_)));
                let mut subscriber = broker.stored_client("s").await;
                assert_eq!(subscriber.take().await.1, "once");
                assert_eq!(subscriber.take().await.1, "another");
                subscriber.silence().await;
            });
        }
    }
}

async fn publish(broker: &TestBroker, count: usize) {
    let mut publisher = broker.client("p").await;
    for n in 0..count {
        publisher.publish("a", &n.to_string(), QoS::ExactlyOnce).await;
    }
}

/// Sends PUBREC for a message, and waits for PUBREL.
async fn receive(client: &mut TestClient, id: u16) {
    client.ack(PacketKind::PubRec, id).await;
    client.pubrel(id).await;
}

#[test]
fn a_subscriber_gets_each_message_once_over_deaths_between_any_two_packets() {
    for is_live in [true, false] {
        for is_power_cut in [false, true] {
            let mut broker = TestBroker::start();
            let ids = broker.run(async {
                let mut subscriber = broker.stored_client("s").await;
                subscriber.subscribe("a", QoS::ExactlyOnce).await;
                if !is_live {
                    subscriber.disconnect().await;
                    publish(&broker, 4).await;
                    subscriber = broker.stored_client("s").await;
                } else {
                    publish(&broker, 4).await;
                }
                let mut ids = Vec::new();
                for n in 0..4 {
                    let message = subscriber.message().await;
                    assert_eq!((text(&message), message.dup), (n.to_string(), false));
                    ids.push(message.packet_id);
                }
                // 0 is complete, 1 is received, 2 and 3 are sent.
                receive(&mut subscriber, ids[0]).await;
                subscriber.ack(PacketKind::PubComp, ids[0]).await;
                receive(&mut subscriber, ids[1]).await;
                ids
            });
            match is_power_cut {
                true => broker.cut_power(),
                false => broker.kill(),
            }
            broker.run(async {
                let mut subscriber = broker.stored_client("s").await;
                // PUBCOMP of 0 is journaled: PUBREL may come again, the message may not.
                let mut first = subscriber.packet().await;
                if matches!(&first, Packet::PubRel(ack) if ack.packet_id == ids[0]) {
                    subscriber.ack(PacketKind::PubComp, ids[0]).await;
                    first = subscriber.packet().await;
                }
                assert!(
                    matches!(&first, Packet::PubRel(ack) if ack.packet_id == ids[1]),
                    "{first:?}"
                );
                subscriber.ack(PacketKind::PubComp, ids[1]).await;
                for n in [2, 3] {
                    let message = subscriber.message().await;
                    assert_eq!(
                        (text(&message), message.dup, message.packet_id),
                        (n.to_string(), true, ids[n])
                    );
                    receive(&mut subscriber, ids[n]).await;
                    subscriber.ack(PacketKind::PubComp, ids[n]).await;
                }
                subscriber.silence().await;
                let mut publisher = broker.client("p").await;
                publisher.publish("a", "next", QoS::ExactlyOnce).await;
                assert_eq!(subscriber.take().await.1, "next");
            });
        }
    }
}
