//! A broker that keeps to the standard at the other end, over connections that end at any moment.

use std::collections::{HashMap, HashSet};

use proptest::collection::vec;
use proptest::prelude::*;
use thalweg_mqtt_wire::{Packet, Sender};

use super::*;
use crate::incoming::tests::packets;

const V5: ProtocolVersion = ProtocolVersion::V5;

pub fn message(number: usize, qos: QoS) -> OutgoingPublish {
    OutgoingPublish {
        topic: "a".into(),
        payload: number.to_string().into(),
        qos,
        retain: false,
        expiry: None,
        properties: Bytes::new(),
    }
}

#[derive(Default)]
struct ModelBroker {
    /// Messages that reached a subscriber, in order.
    passed_on: Vec<usize>,
    /// QoS 2 identifiers that wait for PUBREL.
    waiting: HashMap<u16, usize>,
    /// What this broker has unanswered on the connection.
    unanswered: HashSet<u16>,
}

impl ModelBroker {
    fn hear(&mut self, packet: Packet, window: usize, out: &mut Vec<u8>) {
        match packet {
            Packet::Publish(publish) => {
                self.unanswered.insert(publish.packet_id);
                assert!(self.unanswered.len() <= window, "the receive maximum was exceeded");
                let number: usize = std::str::from_utf8(publish.payload()).unwrap().parse().unwrap();
                let kind = match publish.qos {
                    QoS::ExactlyOnce => {
                        if self.waiting.insert(publish.packet_id, number).is_none() {
                            self.passed_on.push(number);
                        }
                        PacketKind::PubRec
                    }
                    _ => {
                        self.passed_on.push(number);
                        self.unanswered.remove(&publish.packet_id);
                        PacketKind::PubAck
                    }
                };
                encode::ack(out, V5, kind, publish.packet_id, ReasonCode::Success, &[]);
            }
            Packet::PubRel(ack) => {
                self.unanswered.remove(&ack.packet_id);
                let reason = match self.waiting.remove(&ack.packet_id) {
                    Some(_) => ReasonCode::Success,
                    None => ReasonCode::PacketIdentifierNotFound,
                };
                encode::ack(out, V5, PacketKind::PubComp, ack.packet_id, reason, &[]);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send,
    /// The client's oldest bytes reach the broker.
    Reach,
    /// The broker's oldest bytes reach the client.
    Answer,
    /// The connection is lost; the broker keeps the session, or not.
    Lose {
        keeps: bool,
    },
}

fn step(loses_sessions: bool) -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Send),
        6 => Just(Step::Reach),
        6 => Just(Step::Answer),
        1 => any::<bool>().prop_map(move |keeps| Step::Lose { keeps: keeps || !loses_sessions }),
    ]
}

struct SessionRun {
    qos: QoS,
    messages: usize,
    window: usize,
    client: Outgoing<usize>,
    is_kept: bool,
    sent: usize,
    broker: ModelBroker,
    to_broker: VecDeque<Vec<u8>>,
    to_client: VecDeque<Vec<u8>>,
    settled: Vec<usize>,
}

impl SessionRun {
    fn step(&mut self, step: Step) {
        match step {
            Step::Send => {
                let mut out = Vec::new();
                if self.client.open() >= self.window {
                    return;
                }
                if !self.client.resend(self.is_kept, &mut out)
                    && self.sent < self.messages
                    && self.client.has_room(self.window)
                {
                    self.client.send(self.sent, message(self.sent, self.qos), &mut out);
                    self.sent += 1;
                }
                self.to_broker.push_back(out);
            }
            Step::Reach => {
                let mut bytes = self.to_broker.pop_front().unwrap_or_default();
                for packet in packets(&mut bytes, V5, Sender::Client) {
                    let mut out = Vec::new();
                    self.broker.hear(packet, self.window, &mut out);
                    self.to_client.push_back(out);
                }
            }
            Step::Answer => {
                let mut bytes = self.to_client.pop_front().unwrap_or_default();
                for packet in packets(&mut bytes, V5, Sender::Server) {
                    let mut out = Vec::new();
                    let settled = match packet {
                        Packet::PubAck(ack) => self.client.puback(ack.packet_id, ack.reason),
                        Packet::PubRec(ack) => self.client.pubrec(ack.packet_id, ack.reason, &mut out),
                        Packet::PubComp(ack) => self.client.pubcomp(ack.packet_id),
                        other => panic!("{other:?}"),
                    };
                    self.settled.extend(settled.map(|settled| settled.key));
                    if !out.is_empty() {
                        self.to_broker.push_back(out);
                    }
                }
            }
            Step::Lose { keeps } => {
                self.to_broker.clear();
                self.to_client.clear();
                self.broker.unanswered.clear();
                if !keeps {
                    self.broker.waiting.clear();
                }
                self.is_kept = keeps;
                self.client.begin(V5, keeps);
            }
        }
        let passed_on: HashSet<usize> = self.broker.passed_on.iter().copied().collect();
        assert!(self.settled.iter().all(|settled| passed_on.contains(settled)));
    }

    fn finish(mut self) -> Vec<usize> {
        for _ in 0..self.messages * 10 + 100 {
            self.step(Step::Send);
            self.step(Step::Reach);
            self.step(Step::Answer);
        }
        assert_eq!((self.client.unsettled(), self.client.open()), (0, 0));
        assert!(self.client.places.is_empty());
        let mut settled = self.settled.clone();
        settled.sort_unstable();
        assert_eq!(
            settled,
            (0..self.messages).collect::<Vec<_>>(),
            "each message is settled once"
        );
        self.broker.passed_on
    }
}

fn run(qos: QoS, messages: usize, window: usize) -> SessionRun {
    let mut client = Outgoing::default();
    client.begin(V5, false);
    SessionRun {
        qos,
        messages,
        window,
        client,
        is_kept: false,
        sent: 0,
        broker: ModelBroker::default(),
        to_broker: VecDeque::new(),
        to_client: VecDeque::new(),
        settled: Vec::new(),
    }
}

/// Without its repetitions.
fn first_times(all: &[usize]) -> Vec<usize> {
    let mut seen = HashSet::new();
    all.iter().copied().filter(|one| seen.insert(*one)).collect()
}

proptest! {
    #[test]
    fn messages_reach_the_broker_in_order_and_repeat_only_after_a_loss(
        exactly_once: bool, messages in 1..30_usize, window in 1..6_usize, steps in vec(step(true), 0..200),
    ) {
        let qos = if exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let mut run = run(qos, messages, window);
        steps.into_iter().for_each(|step| run.step(step));
        let passed_on = run.finish();
        assert_eq!(first_times(&passed_on), (0..messages).collect::<Vec<_>>());
    }

    #[test]
    fn with_qos_2_and_a_session_that_stays_each_message_is_passed_on_once(
        messages in 1..30_usize, window in 1..6_usize, steps in vec(step(false), 0..200),
    ) {
        let mut run = run(QoS::ExactlyOnce, messages, window);
        steps.into_iter().for_each(|step| run.step(step));
        assert_eq!(run.finish(), (0..messages).collect::<Vec<_>>());
    }
}

#[test]
fn identifiers_in_use_are_passed_over() {
    let mut client = Outgoing::default();
    client.begin(V5, false);
    let mut out = Vec::new();
    client.send(0, message(0, QoS::AtLeastOnce), &mut out);
    for number in 1..=65_535 {
        client.send(number, message(number, QoS::AtLeastOnce), &mut out);
        let id = client.last_id;
        assert!(id != 1 && id != 0, "{number}");
        assert_eq!(client.puback(id, ReasonCode::Success).unwrap().key, number);
        if !client.has_room(usize::MAX) {
            // The oldest message holds the place of all that were sent after it.
            assert_eq!(number, 65_535);
        }
    }
    assert_eq!(
        client.puback(1, ReasonCode::QuotaExceeded).unwrap().reason,
        ReasonCode::QuotaExceeded
    );
    assert!(client.has_room(1) && client.in_flight.is_empty());
    assert_eq!(client.puback(1, ReasonCode::Success), None);
}

#[test]
fn a_refused_qos_2_message_ends_with_its_pubrec() {
    let mut client = Outgoing::default();
    client.begin(V5, false);
    let mut out = Vec::new();
    client.send(0, message(0, QoS::ExactlyOnce), &mut out);
    out.clear();
    assert_eq!(client.puback(1, ReasonCode::Success), None);
    assert_eq!(client.pubcomp(1), None);
    let settled = client.pubrec(1, ReasonCode::NotAuthorized, &mut out).unwrap();
    assert_eq!((settled.reason, out.len()), (ReasonCode::NotAuthorized, 0));
    assert_eq!(client.pubrec(1, ReasonCode::Success, &mut out), None);
    assert_eq!(out, [0x62, 3, 0, 1, 0x92]);
}
