//! Wills: a message of a client whose connection breaks.

use std::time::Duration;

use thalweg_mqtt_wire::{ProtocolVersion, QoS};

use crate::support::{ConnectSpec, TestBroker, WillSpec};

fn will(delay: u32) -> Option<WillSpec<'static>> {
    Some(WillSpec {
        topic: "wills",
        payload: "gone",
        qos: QoS::AtLeastOnce,
        retain: false,
        delay,
    })
}

#[test]
fn a_will_is_sent_when_the_connection_breaks_and_not_after_disconnect() {
    let broker = TestBroker::start();
    broker.run(async {
        let mut subscriber = broker.client("s").await;
        subscriber.subscribe("wills", QoS::AtLeastOnce).await;
        for version in [ProtocolVersion::V5, ProtocolVersion::V3_1_1] {
            for expiry in [0, 100] {
                let clean_start = expiry == 0;
                let spec = ConnectSpec {
                    version,
                    client_id: "w",
                    expiry,
                    clean_start,
                    will: will(0),
                    ..ConnectSpec::stored()
                };
                let (client, _) = broker.connect(&spec).await;
                client.break_off();
                assert_eq!(subscriber.take().await, ("wills".to_owned(), "gone".to_owned()));
                let (client, _) = broker.connect(&spec).await;
                client.disconnect().await;
                subscriber.silence().await;
            }
        }
    });
}

#[test]
fn a_delayed_will_waits_is_cancelled_by_a_resume_and_sent_by_a_clean_start() {
    let broker = TestBroker::start();
    broker.run(async {
        let mut subscriber = broker.client("s").await;
        subscriber.subscribe("wills", QoS::AtLeastOnce).await;
        let spec = ConnectSpec {
            client_id: "w",
            will: will(1),
            ..ConnectSpec::stored()
        };
        broker.connect(&spec).await.0.break_off();
        subscriber.silence().await;
        assert_eq!(subscriber.take().await.1, "gone");
        // Resumed in time.
        broker.connect(&spec).await.0.break_off();
        let (client, connack) = broker.connect(&ConnectSpec { will: None, ..spec }).await;
        assert!(connack.session_present);
        tokio::time::sleep(Duration::from_millis(1200)).await;
        subscriber.silence().await;
        client.disconnect().await;
        // The session ends before the delay does.
        let long = ConnectSpec {
            will: will(1000),
            ..spec
        };
        broker.connect(&long).await.0.break_off();
        let (client, _) = broker
            .connect(&ConnectSpec {
                clean_start: true,
                will: None,
                ..spec
            })
            .await;
        assert_eq!(subscriber.take().await.1, "gone");
        client.disconnect().await;
        let brief = ConnectSpec { expiry: 1, ..long };
        broker.connect(&brief).await.0.break_off();
        assert_eq!(subscriber.take().await.1, "gone");
        // It is taken over: by a resume with a delay nothing is sent, by a clean start it is.
        let (_first, _) = broker.connect(&long).await;
        let (_second, _) = broker.connect(&long).await;
        subscriber.silence().await;
        let (_third, _) = broker
            .connect(&ConnectSpec {
                clean_start: true,
                ..long
            })
            .await;
        assert_eq!(subscriber.take().await.1, "gone");
    });
}

#[test]
fn a_will_is_sent_after_a_crash_of_the_broker_unless_its_client_comes_back() {
    let mut broker = TestBroker::start();
    broker.run(async {
        let mut subscriber = broker.stored_client("s").await;
        subscriber.subscribe("#", QoS::AtLeastOnce).await;
        for client_id in ["stored", "back", "passing", "passing-back"] {
            let is_passing = client_id.starts_with("passing");
            let will = WillSpec {
                topic: client_id,
                ..will(0).unwrap()
            };
            let spec = ConnectSpec {
                client_id,
                expiry: if is_passing { 0 } else { 100 },
                will: Some(will),
                ..ConnectSpec::stored()
            };
            std::mem::forget(broker.connect(&spec).await);
        }
    });
    broker.kill();
    broker.run(async {
        let mut subscriber = broker.stored_client("s").await;
        for (client_id, is_present) in [("back", true), ("passing-back", false)] {
            let (client, connack) = broker
                .connect(&ConnectSpec {
                    client_id,
                    ..ConnectSpec::stored()
                })
                .await;
            assert_eq!(connack.session_present, is_present, "{client_id}");
            client.disconnect().await;
        }
        let mut topics = vec![subscriber.take().await.0, subscriber.take().await.0];
        topics.sort();
        assert_eq!(topics, ["passing", "stored"]);
        subscriber.silence().await;
    });
}
