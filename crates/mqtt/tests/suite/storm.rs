//! Random packets of three clients, valid and broken: the broker goes on, and a client that behaves is served.

use std::time::Duration;

use thalweg_kit::simulation::Random;
use thalweg_mqtt_wire::encode::{self, ConnectRequest, PropertyWriter, PublishHead};
use thalweg_mqtt_wire::{PacketKind, PropertyId, ProtocolVersion, QoS, ReasonCode, SubscribeOptions};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::TestBroker;

const TOPICS: [&str; 5] = ["a", "a/b", "c", "$SYS/x", "a/b/c"];
const FILTERS: [&str; 7] = ["a", "a/#", "+/b", "#", "$share/g/a/#", "$share/g", "c"];

fn pick<T: Copy>(random: &mut Random, all: &[T]) -> T {
    all[random.below(all.len() as u64) as usize]
}

fn qos(random: &mut Random) -> QoS {
    QoS::of(random.below(3) as u8).unwrap()
}

/// A packet that a client may send, or nearly.
fn packet(random: &mut Random, version: ProtocolVersion, out: &mut Vec<u8>) {
    let id = 1 + random.below(12) as u16;
    let mut properties = PropertyWriter::default();
    match random.below(14) {
        0..5 => {
            let head = PublishHead {
                qos: qos(random),
                dup: random.one_in(8),
                retain: random.one_in(4),
                packet_id: id,
                topic: pick(random, &TOPICS),
                topic_alias: if version.is_5() && random.one_in(4) {
                    random.below(70) as u16
                } else {
                    0
                },
                expiry: random.one_in(5).then(|| random.below(3) as u32),
                ..PublishHead::default()
            };
            let payload = vec![b'x'; random.below(300) as usize];
            // DUP with QoS 0 is malformed, and may come, too.
            head.write(out, version, payload.len());
            out.extend_from_slice(&payload);
        }
        5..8 => {
            let kind = pick(
                random,
                &[
                    PacketKind::PubAck,
                    PacketKind::PubRec,
                    PacketKind::PubRel,
                    PacketKind::PubComp,
                ],
            );
            let reason = if random.one_in(5) {
                ReasonCode::UnspecifiedError
            } else {
                ReasonCode::Success
            };
            let reason = if matches!(kind, PacketKind::PubRel | PacketKind::PubComp) {
                ReasonCode::Success
            } else {
                reason
            };
            encode::ack(out, version, kind, id, reason, &[]);
        }
        8..11 => {
            let options = SubscribeOptions {
                qos: qos(random),
                no_local: random.one_in(6),
                ..SubscribeOptions::default()
            };
            encode::subscribe(out, version, id, &[], &[(pick(random, &FILTERS), options)]);
        }
        11 => encode::unsubscribe(out, version, id, &[], &[pick(random, &FILTERS)]),
        12 => encode::pingreq(out),
        _ => {
            if version.is_5() && random.one_in(2) {
                properties.number(PropertyId::SessionExpiryInterval, random.below(3) as u32);
            }
            encode::disconnect(out, version, ReasonCode::Success, properties.bytes());
        }
    }
}

fn connect(random: &mut Random, client_id: &str, version: ProtocolVersion, out: &mut Vec<u8>) {
    let mut properties = PropertyWriter::default();
    if version.is_5() {
        properties.number(PropertyId::SessionExpiryInterval, pick(random, &[0, 1, 100]));
        properties.two(PropertyId::ReceiveMaximum, pick(random, &[1, 3, 100]));
        if random.one_in(3) {
            properties.number(PropertyId::MaximumPacketSize, pick(random, &[60, 200]));
        }
    }
    let will = random.one_in(2).then(|| encode::WillRequest {
        topic: pick(random, &TOPICS),
        payload: b"gone",
        qos: qos(random),
        retain: random.one_in(3),
        properties: &[],
    });
    let request = ConnectRequest {
        version,
        clean_start: random.one_in(4),
        keep_alive: pick(random, &[0, 1, 100]),
        client_id,
        user_name: None,
        password: None,
        will,
        properties: properties.bytes(),
    };
    encode::connect(out, &request);
}

/// One connection after the other.
async fn storm(broker: &TestBroker, client_id: &str, seed: u64) {
    let mut random = Random::new(seed);
    for _ in 0..12 {
        let version = pick(
            &mut random,
            &[ProtocolVersion::V3_1_1, ProtocolVersion::V5, ProtocolVersion::V5],
        );
        let mut socket = TcpStream::connect(broker.address()).await.unwrap();
        let mut bytes = Vec::new();
        connect(&mut random, client_id, version, &mut bytes);
        for _ in 0..random.below(60) {
            let start = bytes.len();
            packet(&mut random, version, &mut bytes);
            // Now and then something is wrong with it.
            match random.below(40) {
                0 => {
                    let at = start + random.below((bytes.len() - start) as u64) as usize;
                    bytes[at] ^= 1 << random.below(8);
                }
                1 => bytes.truncate(bytes.len() - 1),
                _ => {}
            }
        }
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (some, more) = rest.split_at(rest.len().min(1 + random.below(200) as usize));
            if socket.write_all(some).await.is_err() {
                break;
            }
            rest = more;
            // What comes is read now and then.
            let mut buffer = [0; 4096];
            let _ = tokio::time::timeout(Duration::from_millis(random.below(3)), socket.read(&mut buffer)).await;
        }
        let mut buffer = [0; 4096];
        let _ = tokio::time::timeout(Duration::from_millis(random.below(20)), socket.read(&mut buffer)).await;
    }
}

#[test]
fn a_storm_of_packets_leaves_the_broker_as_it_should_be() {
    let seeds = std::env::var("THALWEG_MQTT_STORMS").map_or(4, |seeds| seeds.parse().unwrap());
    for seed in 1..=seeds {
        let mut broker = TestBroker::start();
        for life in 0..2 {
            broker.run(async {
                let storms = (0..3_u64).map(|n| {
                    let broker = &broker;
                    async move { storm(broker, &format!("c{n}"), seed * 100 + life * 10 + n).await }
                });
                futures::future::join_all(storms).await;
                // Somebody who behaves is served.
                let mut witness = broker.client("witness").await;
                witness.subscribe("w", QoS::ExactlyOnce).await;
                for n in 0..20 {
                    let qos = [QoS::AtLeastOnce, QoS::ExactlyOnce][n % 2];
                    let mut publisher = broker.client("publisher").await;
                    assert_eq!(
                        publisher.publish("w", &n.to_string(), qos).await,
                        ReasonCode::Success,
                        "seed {seed}"
                    );
                    assert_eq!(witness.take().await.1, n.to_string(), "seed {seed}");
                }
            });
            broker.kill();
        }
    }
}
