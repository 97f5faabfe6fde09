//! Clients that go on over deaths of the broker at random moments: nothing acknowledged is lost, QoS 2 is exactly once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use thalweg_kit::simulation::Random;
use thalweg_mqtt_wire::{Packet, PacketKind, QoS, ReasonCode};

use crate::support::{ConnectSpec, TestBroker, TestClient, text};

/// A client that publishes one message after the other, and what it knows of them.
#[derive(Default)]
struct Publisher {
    next: u32,
    /// Identifiers in use: the message, and whether PUBREC has come.
    unfinished: BTreeMap<u16, (String, QoS, bool)>,
    acknowledged: BTreeSet<String>,
}

/// A client that receives, and what it knows of packet identifiers of QoS 2.
#[derive(Default)]
struct Subscriber {
    received: BTreeSet<u16>,
    messages: BTreeMap<String, u32>,
    has_subscribed: bool,
}

fn spec(client_id: &str) -> ConnectSpec<'_> {
    ConnectSpec {
        client_id,
        receive_maximum: 20,
        ..ConnectSpec::stored()
    }
}

async fn publish(broker: &TestBroker, name: &str, state: Arc<Mutex<Publisher>>) {
    let (mut client, connack) = broker.connect(&spec(name)).await;
    if connack.reason != ReasonCode::Success {
        return;
    }
    let again: Vec<_> = state.lock().unwrap().unfinished.clone().into_iter().collect();
    for (id, (payload, qos, is_received)) in again {
        match is_received {
            true => client.ack(PacketKind::PubRel, id).await,
            false => client.publish_as(id, "load/a", &payload, qos, true).await,
        }
    }
    loop {
        while let Some((id, payload, qos)) = begin(name, &state) {
            client.publish_as(id, "load/a", &payload, qos, false).await;
        }
        match client.packet().await {
            Packet::PubAck(ack) => {
                let mut state = state.lock().unwrap();
                if let Some((payload, ..)) = state.unfinished.remove(&ack.packet_id)
                    && !ack.reason.is_failure()
                {
                    state.acknowledged.insert(payload);
                }
            }
            Packet::PubRec(ack) => {
                {
                    let mut state = state.lock().unwrap();
                    let Some((payload, _, is_received)) = state.unfinished.get_mut(&ack.packet_id) else {
                        continue;
                    };
                    if ack.reason.is_failure() {
                        state.unfinished.remove(&ack.packet_id);
                        continue;
                    }
                    *is_received = true;
                    let payload = payload.clone();
                    state.acknowledged.insert(payload);
                }
                client.ack(PacketKind::PubRel, ack.packet_id).await;
            }
            Packet::PubComp(ack) => {
                state.lock().unwrap().unfinished.remove(&ack.packet_id);
            }
            _ => return,
        }
    }
}

/// The next message, if fewer are unfinished than there may be.
fn begin(name: &str, state: &Mutex<Publisher>) -> Option<(u16, String, QoS)> {
    let mut state = state.lock().unwrap();
    if state.unfinished.len() >= 8 {
        return None;
    }
    state.next += 1;
    let qos = if state.next.is_multiple_of(2) {
        QoS::ExactlyOnce
    } else {
        QoS::AtLeastOnce
    };
    let payload = format!("{name} {} {}", state.next, qos.number());
    let id = (1..).find(|id| !state.unfinished.contains_key(id)).unwrap();
    state.unfinished.insert(id, (payload.clone(), qos, false));
    Some((id, payload, qos))
}

async fn receive(broker: &TestBroker, name: &str, filter: &str, state: Arc<Mutex<Subscriber>>) {
    let (mut client, connack) = broker.connect(&spec(name)).await;
    if connack.reason != ReasonCode::Success {
        return;
    }
    let had_subscribed = state.lock().unwrap().has_subscribed;
    assert!(
        connack.session_present || !had_subscribed,
        "{name} has lost its session"
    );
    if !had_subscribed {
        if client.subscribe(filter, QoS::ExactlyOnce).await.is_failure() {
            return;
        }
        state.lock().unwrap().has_subscribed = true;
    }
    loop {
        take(&mut client, &state).await;
    }
}

/// Takes one packet as a client must that keeps its state.
async fn take(client: &mut TestClient, state: &Mutex<Subscriber>) {
    match client.packet().await {
        Packet::Publish(publish) => {
            let (id, payload) = (publish.packet_id, text(&publish));
            let is_new = {
                let mut state = state.lock().unwrap();
                let is_new = publish.qos != QoS::ExactlyOnce || state.received.insert(id);
                if is_new {
                    *state.messages.entry(payload).or_default() += 1;
                }
                is_new
            };
            assert!(is_new || publish.dup, "an identifier is used twice");
            let kind = if publish.qos == QoS::ExactlyOnce {
                PacketKind::PubRec
            } else {
                PacketKind::PubAck
            };
            client.ack(kind, id).await;
        }
        Packet::PubRel(ack) => {
            state.lock().unwrap().received.remove(&ack.packet_id);
            client.ack(PacketKind::PubComp, ack.packet_id).await;
        }
        // The broker says goodbye.
        Packet::Disconnect(_) => std::future::pending().await,
        other => panic!("{other:?}"),
    }
}

#[test]
fn clients_that_go_on_over_deaths_of_the_broker_lose_nothing_and_get_qos_2_once() {
    let seeds = std::env::var("THALWEG_MQTT_SEEDS").map_or(2, |seeds| seeds.parse().unwrap());
    for seed in 1..=seeds {
        run(seed);
    }
}

fn run(seed: u64) {
    let mut random = Random::new(seed);
    let mut broker = TestBroker::start_on(seed);
    let publishers: Vec<Arc<Mutex<Publisher>>> = (0..3).map(|_| Arc::default()).collect();
    let subscribers: Vec<(String, &str, Arc<Mutex<Subscriber>>)> = [
        ("plain", "load/+"),
        ("overlapping", "load/#"),
        ("shared-1", "$share/g/load/a"),
        ("shared-2", "$share/g/load/a"),
    ]
    .into_iter()
    .map(|(name, filter)| (name.to_owned(), filter, Arc::default()))
    .collect();
    // Who subscribes later misses what came before.
    broker.run(async {
        for (name, filter, state) in &subscribers {
            let session = receive(&broker, name, filter, state.clone());
            let _ = tokio::time::timeout(Duration::from_millis(100), session).await;
            assert!(state.lock().unwrap().has_subscribed);
        }
    });
    for _ in 0..12 {
        let life = Duration::from_millis(20 + random.below(120));
        broker.run(async {
            let publishing = publishers.iter().enumerate().map(|(n, state)| {
                let name = format!("publisher-{n}");
                let broker = &broker;
                async move { publish(broker, &name, state.clone()).await }
            });
            // Some are away in some lives.
            let away = random.below(subscribers.len() as u64 + 1) as usize;
            let there = subscribers.iter().enumerate().filter(|(n, _)| *n != away);
            let receiving = there.map(|(_, (name, filter, state))| receive(&broker, name, filter, state.clone()));
            let all = futures::future::join(
                futures::future::join_all(publishing),
                futures::future::join_all(receiving),
            );
            let _ = tokio::time::timeout(life, all).await;
        });
        match random.one_in(2) {
            true => broker.kill(),
            false => broker.cut_power(),
        }
    }
    finish(&broker, &publishers, &subscribers);
}

/// Lets everybody finish, and compares.
fn finish(
    broker: &TestBroker,
    publishers: &[Arc<Mutex<Publisher>>],
    subscribers: &[(String, &str, Arc<Mutex<Subscriber>>)],
) {
    let mut acknowledged = BTreeSet::new();
    for publisher in publishers {
        acknowledged.extend(publisher.lock().unwrap().acknowledged.iter().cloned());
    }
    broker.run(async {
        let mut clients = Vec::new();
        for (name, _, state) in subscribers {
            clients.push((broker.connect(&spec(name)).await.0, state));
        }
        // Until nothing comes to anybody.
        let mut is_quiet = false;
        while !is_quiet {
            is_quiet = true;
            for (client, state) in &mut clients {
                while client.has_packet().await {
                    take(client, state).await;
                    is_quiet = false;
                }
            }
        }
    });
    let mut shared = BTreeMap::<String, u32>::new();
    for (name, _, state) in subscribers {
        let state = state.lock().unwrap();
        if name.starts_with("shared") {
            for (payload, count) in &state.messages {
                *shared.entry(payload.clone()).or_default() += count;
            }
            continue;
        }
        check(name, &acknowledged, &state.messages);
    }
    check("the group", &acknowledged, &shared);
    assert!(acknowledged.len() > 50, "{}", acknowledged.len());
}

fn check(name: &str, acknowledged: &BTreeSet<String>, messages: &BTreeMap<String, u32>) {
    let lost: Vec<_> = acknowledged
        .iter()
        .filter(|payload| !messages.contains_key(*payload))
        .collect();
    assert!(lost.is_empty(), "{name} has lost {lost:?}");
    let twice: Vec<_> = messages
        .iter()
        .filter(|(payload, count)| payload.ends_with(" 2") && **count != 1)
        .collect();
    assert!(twice.is_empty(), "{name} got {twice:?} more than once");
}
