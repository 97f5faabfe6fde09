//! How much waits for sessions, and what the metrics say of it.

use thalweg_mqtt::{MqttSettings, SessionOverflow};
use thalweg_mqtt_wire::QoS;
use thalweg_telemetry::Metrics;

use crate::support::TestBroker;

async fn publish(broker: &TestBroker, count: usize, size: usize) {
    let mut publisher = broker.client("p").await;
    for n in 0..count {
        let payload = format!("{n} {}", "x".repeat(size));
        publisher.publish("a", &payload, QoS::AtLeastOnce).await;
    }
}

async fn numbers(broker: &TestBroker) -> Vec<usize> {
    let mut subscriber = broker.stored_client("s").await;
    let mut got = Vec::new();
    while let Some((_, payload)) = subscriber.take_if_any().await {
        got.push(payload.split(' ').next().unwrap().parse().unwrap());
    }
    got
}

/// The value of a metric with these labels.
fn metric(metrics: &Metrics, line: &str) -> u64 {
    let text = metrics.text();
    let found = text
        .lines()
        .find_map(|text| text.strip_prefix(line)?.trim().parse::<f64>().ok());
    found.unwrap_or_else(|| panic!("{line} is missing in {text}")) as u64
}

#[test]
fn a_session_has_so_many_messages_waiting_and_the_others_are_counted() {
    for overflow in [SessionOverflow::DropOldest, SessionOverflow::DropNewest] {
        let settings = MqttSettings {
            max_queued: 20,
            overflow,
            ..MqttSettings::default()
        };
        let mut broker = TestBroker::with(settings);
        broker.run(async {
            let mut subscriber = broker.stored_client("s").await;
            subscriber.subscribe("a", QoS::AtLeastOnce).await;
            subscriber.disconnect().await;
            publish(&broker, 50, 0).await;
        });
        broker.kill();
        let metrics = Metrics::new(false);
        broker.broker().register(&metrics);
        broker.run(async {
            let expected: Vec<usize> = match overflow {
                SessionOverflow::DropOldest => (30..50).collect(),
                SessionOverflow::DropNewest => (0..20).collect(),
            };
            assert_eq!(numbers(&broker).await, expected, "{overflow:?}");
            // From now on there is room again.
            publish(&broker, 5, 0).await;
            assert_eq!(numbers(&broker).await, [0, 1, 2, 3, 4]);
        });
        assert_eq!(
            metric(&metrics, "mqtt_publish_dropped_total{reason=\"session_full\"}"),
            30
        );
        assert_eq!(metric(&metrics, "mqtt_publish_total{qos=\"1\",direction=\"in\"}"), 5);
        assert_eq!(metric(&metrics, "mqtt_publish_total{qos=\"1\",direction=\"out\"}"), 25);
        assert_eq!(
            metric(&metrics, "mqtt_sessions{state=\"disconnected\"}")
                + metric(&metrics, "mqtt_sessions{state=\"connected\"}"),
            1
        );
        assert_eq!(metric(&metrics, "mqtt_subscriptions{kind=\"plain\"}"), 1);
        assert_eq!(
            metric(&metrics, "mqtt_packets_total{type=\"PUBACK\",direction=\"in\"}"),
            25
        );
    }
}

#[test]
fn all_messages_together_take_so_many_bytes() {
    let settings = MqttSettings {
        store_bytes: 200_000,
        ..MqttSettings::default()
    };
    let broker = TestBroker::with(settings);
    let metrics = Metrics::new(false);
    broker.broker().register(&metrics);
    broker.run(async {
        let mut subscriber = broker.stored_client("s").await;
        subscriber.subscribe("a", QoS::AtLeastOnce).await;
        subscriber.disconnect().await;
        publish(&broker, 500, 1000).await;
        broker.broker().maintain_now().await;
        let got = numbers(&broker).await;
        // About 200 messages of 1,000 bytes are left, the newest.
        assert!((150..=200).contains(&got.len()), "{}", got.len());
        assert!(
            got.windows(2).all(|pair| pair[0] + 1 == pair[1]) && got.last() == Some(&499),
            "{got:?}"
        );
        let dropped = metric(&metrics, "mqtt_publish_dropped_total{reason=\"store_full\"}");
        assert_eq!(dropped as usize + got.len(), 500);
        // What is read is needed no more.
        tokio::time::sleep(MqttSettings::default().ack_flush * 2).await;
        broker.broker().maintain_now().await;
        assert_eq!(metric(&metrics, "mqtt_store_messages"), 0);
    });
}

#[test]
fn sessions_are_written_anew_and_what_came_before_is_removed() {
    let mut broker = TestBroker::start();
    broker.run(async {
        for round in 0..3 {
            for n in 0..30 {
                let mut client = broker.stored_client(&format!("c{n}")).await;
                client.subscribe(&format!("f/{round}/{n}"), QoS::ExactlyOnce).await;
                client.subscribe("$share/g/shared", QoS::AtLeastOnce).await;
                client.disconnect().await;
            }
            let before = broker.broker().session_records().unwrap();
            broker.broker().checkpoint_now().await;
            let after = broker.broker().session_records().unwrap();
            assert!(after < before && after <= 4 * 30 + 10, "{before} {after}");
        }
        let mut publisher = broker.client("p").await;
        for n in 0..30 {
            publisher.publish(&format!("f/1/{n}"), "x", QoS::ExactlyOnce).await;
            publisher.publish("shared", "y", QoS::AtLeastOnce).await;
        }
    });
    broker.cut_power();
    broker.run(async {
        let mut shared = 0;
        for n in 0..30 {
            let mut client = broker.stored_client(&format!("c{n}")).await;
            let mut own = 0;
            while let Some((topic, _)) = client.take_if_any().await {
                match topic == "shared" {
                    true => shared += 1,
                    false => own += 1,
                }
            }
            assert_eq!(own, 1, "{n}");
        }
        assert_eq!(shared, 30);
    });
}
