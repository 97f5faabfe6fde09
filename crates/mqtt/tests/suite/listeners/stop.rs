//! The end of a broker, as its clients see it.

use std::time::{Duration, Instant};

use thalweg_mqtt::{ListenerKind, MqttSettings};
use thalweg_mqtt_wire::{Packet, PropertyId, ProtocolVersion, QoS, ReasonCode};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::certificates::Certificates;
use super::web::{self, BINARY, CLOSE, FINAL, frame, read_frame};
use super::{
    ListenerBroker, STOP_TIME, closed, connect_bytes, connected, disconnect_code, listener, passing_in, settings,
};
use crate::support::{ConnectSpec, TestClient, WillSpec};

#[test]
fn clients_of_5_0_are_told_and_others_are_closed_on_every_kind_of_listener() {
    for reference in [None, Some("other.example:1883")] {
        let certificates = Certificates::new();
        let mut broker = ListenerBroker::start(
            MqttSettings {
                server_reference: reference.map(str::to_owned),
                ..settings()
            },
            &ListenerKind::ALL.map(|kind| certificates.listener(kind)),
        );
        let (mut clients, mut old, mut silent, mut web) = broker.run(async {
            let open = async |at: usize| TcpStream::connect(broker.addresses[at]).await.unwrap();
            let tls = async |at: usize| certificates.over(open(at).await, None).await.unwrap();
            let clients = vec![
                connected(open(0).await, "tcp").await,
                connected(tls(1).await, "tls").await,
                connected(web::bytes(open(2).await).await, "ws").await,
                connected(web::bytes(tls(3).await).await, "wss").await,
            ];
            let mut old = broker.open(ProtocolVersion::V3_1_1).await;
            old.connect(&passing_in(ProtocolVersion::V3_1_1, "old")).await;
            let mut web = open(2).await;
            web::open(&mut web).await;
            let connect = connect_bytes(ProtocolVersion::V3_1_1, "web", 60);
            web.write_all(&frame(FINAL | BINARY, &connect)).await.unwrap();
            read_frame(&mut web).await.unwrap();
            (clients, old, open(0).await, web)
        });
        let begin = Instant::now();
        broker.begin_stop();
        broker.run(async {
            for client in &mut clients {
                let packets = client.end().await;
                let code = match reference {
                    None => ReasonCode::ServerShuttingDown,
                    Some(_) => ReasonCode::UseAnotherServer,
                };
                assert_eq!(disconnect_code(&packets), Some(code));
                let [Packet::Disconnect(disconnect)] = &packets[..] else {
                    panic!("{packets:?}")
                };
                let told = disconnect.properties.get(PropertyId::ServerReference);
                assert_eq!(told.map(|value| value.text()), reference);
            }
            assert_eq!(old.end().await, []);
            assert_eq!(closed(&mut silent).await, b"");
            // Going away.
            assert_eq!(
                read_frame(&mut web).await,
                Some((FINAL | CLOSE, 1001_u16.to_be_bytes().to_vec()))
            );
        });
        drop((clients, old, silent, web));
        broker.stopped();
        assert!(begin.elapsed() < STOP_TIME, "nobody kept it waiting");
        broker.run(async {
            for address in &broker.addresses {
                assert!(TcpStream::connect(address).await.is_err(), "nobody is accepted");
            }
        });
    }
}

#[test]
fn what_was_received_is_committed_and_answered_before_the_end_and_sessions_are_kept() {
    let mut broker = ListenerBroker::tcp(settings());
    let mut publisher = broker.run(async {
        let mut subscriber = broker.open(ProtocolVersion::V5).await;
        let spec = ConnectSpec {
            client_id: "stored",
            ..ConnectSpec::stored()
        };
        subscriber.connect(&spec).await;
        subscriber.subscribe("t", QoS::AtLeastOnce).await;
        subscriber.disconnect().await;
        broker.open(ProtocolVersion::V5).await
    });
    let acknowledged = broker.run(async {
        publisher.connect(&passing_in(ProtocolVersion::V5, "p")).await;
        for id in 1..=500 {
            publisher
                .publish_as(id, "t", &id.to_string(), QoS::AtLeastOnce, false)
                .await;
        }
        // Some are committed, others are on their way.
        publisher.packet().await;
        1
    });
    broker.begin_stop();
    let packets = broker.run(publisher.end());
    assert_eq!(disconnect_code(&packets), Some(ReasonCode::ServerShuttingDown));
    let acknowledged = acknowledged
        + packets
            .iter()
            .filter(|packet| matches!(packet, Packet::PubAck(_)))
            .count();
    assert_eq!(acknowledged, packets.len(), "nothing else came");
    broker.stopped();
    let broker = broker.again(&[listener(ListenerKind::Tcp)]);
    broker.run(async {
        let mut subscriber = broker.open(ProtocolVersion::V5).await;
        let spec = ConnectSpec {
            client_id: "stored",
            ..ConnectSpec::stored()
        };
        assert!(subscriber.connect(&spec).await.session_present);
        for id in 1..=acknowledged {
            assert_eq!(subscriber.take().await.1, id.to_string());
        }
    });
}

#[test]
fn a_will_is_not_sent_by_a_stop_but_after_the_next_start() {
    let mut broker = ListenerBroker::tcp(settings());
    let (client, subscriber) = broker.run(async {
        let mut subscriber = broker.open(ProtocolVersion::V5).await;
        let stored = ConnectSpec {
            client_id: "s",
            ..ConnectSpec::stored()
        };
        subscriber.connect(&stored).await;
        subscriber.subscribe("wills", QoS::AtLeastOnce).await;
        let mut client = broker.open(ProtocolVersion::V5).await;
        let will = WillSpec {
            topic: "wills",
            payload: "gone",
            qos: QoS::AtLeastOnce,
            retain: false,
            delay: 0,
        };
        let spec = ConnectSpec {
            client_id: "w",
            will: Some(will),
            ..ConnectSpec::stored()
        };
        client.connect(&spec).await;
        (client, subscriber)
    });
    broker.begin_stop();
    broker.run(async {
        for mut client in [client, subscriber] {
            let packets = client.end().await;
            assert!(matches!(&packets[..], [Packet::Disconnect(_)]), "{packets:?}");
        }
    });
    broker.stopped();
    let broker = broker.again(&[listener(ListenerKind::Tcp)]);
    broker.run(async {
        let mut subscriber = broker.open(ProtocolVersion::V5).await;
        let stored = ConnectSpec {
            client_id: "s",
            ..ConnectSpec::stored()
        };
        assert!(subscriber.connect(&stored).await.session_present);
        subscriber.silence().await;
        assert_eq!(subscriber.take().await.1, "gone");
    });
}

#[test]
fn a_client_that_does_not_read_cannot_keep_the_broker_from_stopping() {
    let mut broker = ListenerBroker::tcp(settings());
    let _held = broker.run(async {
        let mut slow = TcpStream::connect(broker.addresses[0]).await.unwrap();
        slow.write_all(&connect_bytes(ProtocolVersion::V5, "slow", 0))
            .await
            .unwrap();
        slow.write_all(b"\x82\x07\x00\x01\x00\x00\x01t\x00").await.unwrap();
        let mut publisher: TestClient = broker.open(ProtocolVersion::V5).await;
        publisher.connect(&passing_in(ProtocolVersion::V5, "p")).await;
        for _ in 0..200 {
            publisher.publish("t", &"x".repeat(100_000), QoS::AtMostOnce).await;
        }
        publisher.publish("t", "last", QoS::AtLeastOnce).await;
        slow
    });
    let begin = Instant::now();
    broker.begin_stop();
    broker.stopped();
    assert!(
        begin.elapsed() < STOP_TIME + Duration::from_secs(5),
        "{:?}",
        begin.elapsed()
    );
}
