//! A full disk: what must be stored is refused with a code, everything else goes on, and nothing that was promised is lost.

use thalweg_log::disk::Disk as _;
use thalweg_mqtt_wire::{Packet, PacketKind, ProtocolVersion, QoS, ReasonCode};

use crate::support::{ConnectSpec, TestBroker, text};

#[test]
fn what_must_be_stored_is_refused_and_all_else_goes_on_until_there_is_room_again() {
    let mut broker = TestBroker::start();
    broker.run(async {
        let mut stored = broker.stored_client("stored").await;
        stored.subscribe("a/#", QoS::ExactlyOnce).await;
        let mut live = broker.client("live").await;
        live.subscribe("live", QoS::ExactlyOnce).await;
        let mut publisher = broker.stored_client("p").await;
        for n in 0..3 {
            publisher.publish("a/b", &n.to_string(), QoS::AtLeastOnce).await;
        }
        publisher.publish("a/b", "3", QoS::ExactlyOnce).await;
        let (mut old, _) = broker
            .connect(&ConnectSpec {
                version: ProtocolVersion::V3_1_1,
                client_id: "old",
                ..ConnectSpec::stored()
            })
            .await;
        // The log looks at its disk once a second.
        let space = broker.disk.space().unwrap();
        broker
            .disk
            .set_capacity(space.total_bytes - space.free_bytes + (1 << 19));
        let mut refused = ReasonCode::Success;
        let mut more = Vec::new();
        for n in 4.. {
            refused = publisher.publish("a/b", &n.to_string(), QoS::AtLeastOnce).await;
            if refused.is_failure() {
                break;
            }
            more.push(n.to_string());
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        assert_eq!(refused, ReasonCode::QuotaExceeded);
        // QoS 2 is refused in PUBREC, which frees its identifier.
        publisher
            .publish_as(900, "a/b", "refused", QoS::ExactlyOnce, false)
            .await;
        let Packet::PubRec(ack) = publisher.packet().await else {
            panic!("no PUBREC")
        };
        assert_eq!((ack.packet_id, ack.reason), (900, ReasonCode::QuotaExceeded));
        // 3.1.1 has no code: it is not acknowledged.
        old.publish_as(1, "a/b", "refused", QoS::AtLeastOnce, false).await;
        assert!(old.end().await.is_empty());
        let (_, connack) = broker
            .connect(&ConnectSpec {
                client_id: "new",
                ..ConnectSpec::stored()
            })
            .await;
        assert_eq!(connack.reason, ReasonCode::QuotaExceeded);
        assert_eq!(
            publisher.subscribe("b", QoS::AtLeastOnce).await,
            ReasonCode::QuotaExceeded
        );
        assert_eq!(publisher.retain("r", "x").await, ReasonCode::QuotaExceeded);
        assert_eq!(publisher.retain("r", "").await, ReasonCode::NoMatchingSubscribers);
        // What is not stored goes on.
        assert_eq!(
            publisher.publish("live", "x", QoS::AtLeastOnce).await,
            ReasonCode::Success
        );
        assert_eq!(live.take().await.1, "x");
        // Acknowledgements go on: state is taken as long as there is any space.
        let mut got = Vec::new();
        for _ in 0..4 + more.len() {
            got.push(stored.take().await.1);
        }
        let expected: Vec<String> = (0..4).map(|n| n.to_string()).chain(more.clone()).collect();
        assert_eq!(got, expected);
        broker.disk.set_capacity(1 << 30);
        let mut code = ReasonCode::QuotaExceeded;
        for _ in 0..100 {
            code = publisher.publish("a/b", "again", QoS::AtLeastOnce).await;
            if !code.is_failure() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        assert_eq!(code, ReasonCode::Success);
        let message = stored.message().await;
        assert_eq!(text(&message), "again");
        stored.ack(PacketKind::PubAck, message.packet_id).await;
        stored.silence().await;
        stored.disconnect().await;
        publisher.publish("a/b", "later", QoS::ExactlyOnce).await;
    });
    broker.kill();
    broker.run(async {
        let mut stored = broker.stored_client("stored").await;
        assert_eq!(stored.take().await.1, "later");
        stored.silence().await;
    });
}
