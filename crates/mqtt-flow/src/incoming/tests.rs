//! A broker that keeps to the standard at the other end, over connections that end at any moment.

use std::collections::{HashMap, HashSet, VecDeque};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;
use thalweg_mqtt_wire::{DecodeContext, FixedHeader, Packet, Sender};

use super::*;

/// What is on its way to the client.
#[derive(Clone, Copy, Debug)]
enum FromBroker {
    Publish { packet_id: u16, dup: bool, message: usize },
    PubRel(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokerStage {
    Sent,
    Released,
}

/// Sends the messages in order, a window at a time, and keeps them until they are acknowledged.
struct ModelBroker {
    qos: QoS,
    messages: usize,
    sent: usize,
    window: usize,
    next_id: u16,
    in_flight: Vec<(u16, usize, BrokerStage)>,
    to_client: VecDeque<FromBroker>,
    acknowledged: Vec<usize>,
}

const IDS: u16 = 5;

impl ModelBroker {
    fn send(&mut self) {
        while self.sent < self.messages && self.in_flight.len() < self.window {
            let used: HashSet<u16> = self.in_flight.iter().map(|(id, ..)| *id).collect();
            while used.contains(&self.next_id) {
                self.next_id = self.next_id % IDS + 1;
            }
            let (packet_id, message) = (self.next_id, self.sent);
            self.next_id = self.next_id % IDS + 1;
            self.in_flight.push((packet_id, message, BrokerStage::Sent));
            self.sent += 1;
            let dup = false;
            self.to_client.push_back(FromBroker::Publish {
                packet_id,
                dup,
                message,
            });
        }
    }

    fn reconnect(&mut self) {
        self.to_client.clear();
        for (packet_id, message, stage) in self.in_flight.clone() {
            self.to_client.push_back(match stage {
                BrokerStage::Sent => FromBroker::Publish {
                    packet_id,
                    dup: true,
                    message,
                },
                BrokerStage::Released => FromBroker::PubRel(packet_id),
            });
        }
    }

    fn hear(&mut self, packet: Packet) {
        let place = |broker: &ModelBroker, id: u16| broker.in_flight.iter().position(|(known, ..)| *known == id);
        match packet {
            Packet::PubAck(ack) => {
                let place = place(self, ack.packet_id).expect("a PUBACK is of a message that waits for it");
                assert_eq!(self.qos, QoS::AtLeastOnce);
                self.acknowledged.push(self.in_flight.remove(place).1);
            }
            Packet::PubRec(ack) => {
                let place = place(self, ack.packet_id).expect("a PUBREC is of a message that waits for it");
                if self.in_flight[place].2 == BrokerStage::Sent {
                    self.acknowledged.push(self.in_flight[place].1);
                }
                self.in_flight[place].2 = BrokerStage::Released;
                self.to_client.push_back(FromBroker::PubRel(ack.packet_id));
            }
            Packet::PubComp(ack) => {
                // One was lost with the connection, so the PUBREL came twice.
                if let Some(place) = place(self, ack.packet_id) {
                    self.in_flight.remove(place);
                }
            }
            other => panic!("{other:?}"),
        }
    }
}

pub fn packets(bytes: &mut Vec<u8>, version: ProtocolVersion, sender: Sender) -> Vec<Packet> {
    let mut rest = Bytes::from(std::mem::take(bytes));
    let mut found = Vec::new();
    while !rest.is_empty() {
        let header = FixedHeader::parse(&rest, usize::MAX).unwrap().unwrap();
        let context = DecodeContext {
            version,
            sender,
            strict_utf8: false,
        };
        found.push(Packet::decode(rest.split_to(header.packet_len()), &header, context).unwrap());
    }
    found
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The next packet reaches the client.
    Receive,
    /// The flow confirms one of its messages.
    Confirm(usize),
    /// The client's oldest bytes reach the broker.
    Answer,
    Lose,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => Just(Step::Receive),
        4 => any::<usize>().prop_map(Step::Confirm),
        4 => Just(Step::Answer),
        1 => Just(Step::Lose),
    ]
}

/// A run of a session: a broker, the machine, and the flow behind it.
struct SessionRun {
    broker: ModelBroker,
    client: Incoming,
    to_broker: VecDeque<Vec<u8>>,
    /// Messages that the flow has not confirmed.
    in_flow: Vec<(DeliveryNumber, usize)>,
    confirmed: HashSet<usize>,
    delivered: HashMap<usize, usize>,
}

impl SessionRun {
    fn new(qos: QoS, messages: usize, window: usize) -> SessionRun {
        let mut client = Incoming::default();
        client.begin(ProtocolVersion::V5, false);
        SessionRun {
            broker: ModelBroker {
                qos,
                messages,
                sent: 0,
                window,
                next_id: 1,
                in_flight: Vec::new(),
                to_client: VecDeque::new(),
                acknowledged: Vec::new(),
            },
            client,
            to_broker: VecDeque::new(),
            in_flow: Vec::new(),
            confirmed: HashSet::new(),
            delivered: HashMap::new(),
        }
    }

    fn step(&mut self, step: Step) {
        self.broker.send();
        let mut out = Vec::new();
        match step {
            Step::Receive => match self.broker.to_client.pop_front() {
                Some(FromBroker::Publish {
                    packet_id,
                    dup,
                    message,
                }) => {
                    let received = self.client.publish(self.broker.qos, packet_id, dup, &mut out);
                    if let Received::New(number) = received {
                        self.in_flow.push((number.unwrap(), message));
                        *self.delivered.entry(message).or_default() += 1;
                    }
                }
                Some(FromBroker::PubRel(id)) => self.client.release(id, &mut out),
                None => {}
            },
            Step::Confirm(which) if !self.in_flow.is_empty() => {
                let (number, message) = self.in_flow.remove(which % self.in_flow.len());
                self.confirmed.insert(message);
                self.client.confirm([number], &mut out);
            }
            Step::Answer => {
                if let Some(mut bytes) = self.to_broker.pop_front() {
                    for packet in packets(&mut bytes, ProtocolVersion::V5, Sender::Client) {
                        self.broker.hear(packet);
                    }
                }
            }
            Step::Lose => {
                self.to_broker.clear();
                self.broker.reconnect();
                self.client.begin(ProtocolVersion::V5, true);
            }
            Step::Confirm(_) => {}
        }
        if !out.is_empty() {
            self.to_broker.push_back(out);
        }
        let told: HashSet<usize> = self.broker.acknowledged.iter().copied().collect();
        assert!(
            told.is_subset(&self.confirmed),
            "a message was acknowledged before the flow confirmed it"
        );
        let known = self.client.deliveries.len();
        assert!(known <= usize::from(IDS) && self.client.released.len() <= usize::from(IDS));
    }

    fn finish(&mut self) {
        for _ in 0..self.broker.messages * 20 + 100 {
            self.step(Step::Receive);
            self.step(Step::Confirm(0));
            self.step(Step::Answer);
        }
        assert_eq!(self.broker.sent, self.broker.messages);
        assert!(self.broker.in_flight.is_empty(), "{:?}", self.broker.in_flight);
        assert!(self.client.deliveries.is_empty() && self.client.released.is_empty());
        assert_eq!((self.client.open(), self.client.by_packet_id.len()), (0, 0));
        let in_order: Vec<usize> = (0..self.broker.messages).collect();
        let mut acknowledged = self.broker.acknowledged.clone();
        acknowledged.sort_unstable();
        assert_eq!(acknowledged, in_order);
        let times = |message: &usize| self.delivered.get(message).copied().unwrap_or_default();
        match self.broker.qos {
            QoS::ExactlyOnce => assert!(in_order.iter().all(|message| times(message) == 1)),
            _ => assert!(in_order.iter().all(|message| times(message) >= 1)),
        }
    }
}

proptest! {
    #[test]
    fn a_session_loses_nothing_and_acknowledges_what_the_flow_confirmed(
        exactly_once: bool, messages in 1..30_usize, window in 1..5_usize, steps in vec(step(), 0..200),
    ) {
        let qos = if exactly_once { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
        let mut run = SessionRun::new(qos, messages, window);
        steps.into_iter().for_each(|step| run.step(step));
        run.finish();
    }
}

fn client() -> Incoming {
    let mut client = Incoming::default();
    client.begin(ProtocolVersion::V5, false);
    client
}

fn new(received: Received) -> DeliveryNumber {
    match received {
        Received::New(Some(number)) => number,
        other => panic!("{other:?}"),
    }
}

const PUBACK: u8 = 0x40;
const PUBREC: u8 = 0x50;
const PUBCOMP: u8 = 0x70;

#[test]
fn acknowledgements_keep_the_order_of_their_messages() {
    let (mut client, mut out) = (client(), Vec::new());
    let first = new(client.publish(QoS::AtLeastOnce, 7, false, &mut out));
    let second = new(client.publish(QoS::ExactlyOnce, 8, false, &mut out));
    let third = new(client.publish(QoS::AtLeastOnce, 9, false, &mut out));
    client.confirm([third, second], &mut out);
    assert_eq!((out.as_slice(), client.open()), (&[][..], 3));
    client.confirm([first], &mut out);
    assert_eq!(out, [PUBACK, 2, 0, 7, PUBREC, 2, 0, 8, PUBACK, 2, 0, 9]);
    out.clear();
    client.release(8, &mut out);
    client.release(8, &mut out);
    assert_eq!(out, [PUBCOMP, 2, 0, 8, PUBCOMP, 3, 0, 8, 0x92]);
}

#[test]
fn qos_0_needs_no_confirmation() {
    let (mut client, mut out) = (client(), Vec::new());
    assert_eq!(client.publish(QoS::AtMostOnce, 0, false, &mut out), Received::New(None));
    assert_eq!((client.open(), out.len()), (0, 0));
}

#[test]
fn a_message_of_a_lost_connection_is_acknowledged_when_it_comes_again() {
    let (mut client, mut out) = (client(), Vec::new());
    let number = new(client.publish(QoS::AtLeastOnce, 7, false, &mut out));
    client.begin(ProtocolVersion::V5, true);
    client.confirm([number], &mut out);
    assert!(out.is_empty(), "the broker has not sent it on this connection");
    assert_eq!(client.publish(QoS::AtLeastOnce, 7, true, &mut out), Received::Known);
    assert_eq!(out, [PUBACK, 2, 0, 7]);
}

#[test]
fn a_broker_without_the_session_has_forgotten_everything() {
    let (mut client, mut out) = (client(), Vec::new());
    let number = new(client.publish(QoS::ExactlyOnce, 7, false, &mut out));
    client.begin(ProtocolVersion::V3_1_1, false);
    client.confirm([number], &mut out);
    assert!(out.is_empty());
    new(client.publish(QoS::ExactlyOnce, 7, false, &mut out));
}

#[test]
fn another_message_with_an_identifier_that_is_open_is_new() {
    let (mut client, mut out) = (client(), Vec::new());
    let old = new(client.publish(QoS::AtLeastOnce, 7, false, &mut out));
    client.begin(ProtocolVersion::V5, true);
    let newer = new(client.publish(QoS::AtLeastOnce, 7, false, &mut out));
    client.confirm([old], &mut out);
    assert!(out.is_empty());
    client.confirm([newer], &mut out);
    assert_eq!(out, [PUBACK, 2, 0, 7]);
}

#[test]
fn a_qos_2_message_that_comes_twice_enters_once() {
    let (mut client, mut out) = (client(), Vec::new());
    let number = new(client.publish(QoS::ExactlyOnce, 7, false, &mut out));
    assert_eq!(client.publish(QoS::ExactlyOnce, 7, true, &mut out), Received::Known);
    assert!(out.is_empty());
    client.confirm([number], &mut out);
    assert_eq!(client.publish(QoS::ExactlyOnce, 7, true, &mut out), Received::Known);
    assert_eq!(out, [PUBREC, 2, 0, 7, PUBREC, 2, 0, 7]);
}
