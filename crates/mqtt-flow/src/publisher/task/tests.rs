//! A broker whose every word is written here, at the other end of a socket.

use std::collections::VecDeque;
use std::sync::Arc;

use thalweg_flow::{OutputContext, WriteError};
use thalweg_mqtt_wire::encode::{self, PropertyWriter};
use thalweg_mqtt_wire::{
    Connect, DecodeContext, FixedHeader, Packet, PacketKind, PropertyId, ProtocolVersion, Publish, ReasonCode, Sender,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::super::Publisher;
use super::*;
use crate::options;
use crate::outgoing::OutgoingPublish;

struct ScriptedBroker {
    listener: TcpListener,
}

struct ScriptedConnection {
    stream: TcpStream,
    inbox: Vec<u8>,
    connect: Connect,
}

impl ScriptedBroker {
    async fn start() -> ScriptedBroker {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        ScriptedBroker { listener }
    }

    async fn open(&self, qos: u8, window: u16, write_timeout: Duration) -> (Publisher, OutputContext) {
        let yaml = format!("{{urls: [\"tcp://{}\"]}}", self.listener.local_addr().unwrap());
        let diagnostics = thalweg_config::Diagnostics::new("t.yaml");
        let node = thalweg_config::Node::parse(&yaml).unwrap();
        let broker = options::read(&mut thalweg_config::Fields::new(&node, &diagnostics));
        let dialer = Dialer::new(Arc::new(broker), "me".to_owned(), write_timeout);
        let options = PublisherOptions {
            window,
            qos: QoS::of(qos).unwrap(),
            write_timeout,
            needs_5: false,
        };
        let context = OutputContext::for_tests("mqtt");
        let opened = Publisher::open(dialer, options, context.component.clone(), context.connection.clone()).await;
        (opened.unwrap(), context)
    }

    async fn accept(&self, session_present: bool, properties: &PropertyWriter) -> ScriptedConnection {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let mut inbox = Vec::new();
        let connect = loop {
            stream.read_buf(&mut inbox).await.unwrap();
            if let Some(header) = FixedHeader::parse(&inbox, 1 << 20).unwrap()
                && header.packet_len() <= inbox.len()
            {
                let packet: Vec<u8> = inbox.drain(..header.packet_len()).collect();
                break Connect::decode(&packet.into(), &header, false).unwrap();
            }
        };
        let mut out = Vec::new();
        encode::connack(&mut out, session_present, ReasonCode::Success, properties.bytes());
        stream.write_all(&out).await.unwrap();
        ScriptedConnection { stream, inbox, connect }
    }
}

impl ScriptedConnection {
    async fn packet(&mut self) -> Packet {
        loop {
            if let Some(header) = FixedHeader::parse(&self.inbox, 1 << 24).unwrap()
                && header.packet_len() <= self.inbox.len()
            {
                let packet: Vec<u8> = self.inbox.drain(..header.packet_len()).collect();
                let context = DecodeContext {
                    version: ProtocolVersion::V5,
                    sender: Sender::Client,
                    strict_utf8: true,
                };
                return Packet::decode(packet.into(), &header, context).unwrap();
            }
            assert_ne!(
                self.stream.read_buf(&mut self.inbox).await.unwrap(),
                0,
                "the client has left"
            );
        }
    }

    async fn publish(&mut self) -> Publish {
        match self.packet().await {
            Packet::Publish(publish) => publish,
            other => panic!("{other:?}"),
        }
    }

    /// The payloads of the next PUBLISHes.
    async fn payloads(&mut self, count: usize) -> Vec<String> {
        let mut all = Vec::new();
        for _ in 0..count {
            all.push(String::from_utf8(self.publish().await.payload().to_vec()).unwrap());
        }
        all
    }

    async fn ack(&mut self, kind: PacketKind, packet_id: u16, reason: ReasonCode) {
        let mut out = Vec::new();
        encode::ack(&mut out, ProtocolVersion::V5, kind, packet_id, reason, &[]);
        self.stream.write_all(&out).await.unwrap();
    }

    async fn disconnect(mut self, reason: ReasonCode) {
        let mut out = Vec::new();
        encode::disconnect(&mut out, ProtocolVersion::V5, reason, &[]);
        self.stream.write_all(&out).await.unwrap();
        self.stream.shutdown().await.unwrap();
        let mut rest = Vec::new();
        let _ = self.stream.read_to_end(&mut rest).await;
    }
}

/// Longer than a busy machine takes.
const LONG: Duration = Duration::from_secs(60);

fn none() -> PropertyWriter {
    PropertyWriter::default()
}

fn messages(qos: u8, payloads: &[&str]) -> Vec<Result<OutgoingPublish, Rejection>> {
    let message = |payload: &&str| OutgoingPublish {
        topic: "a".into(),
        payload: payload.to_string().into(),
        qos: QoS::of(qos).unwrap(),
        retain: payload.starts_with("kept"),
        expiry: None,
        properties: bytes::Bytes::new(),
    };
    payloads.iter().map(|payload| Ok(message(payload))).collect()
}

/// The rejections of a write: index, reason and text.
fn refusals(result: Result<(), WriteError>) -> Vec<(usize, Option<DropReason>, String)> {
    match result {
        Ok(()) => Vec::new(),
        Err(WriteError::Some(all)) => {
            let all = all.into_iter();
            all.map(|one| (one.index, one.permanent, one.error)).collect()
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_lost_connection_repeats_what_was_not_acknowledged_in_its_order() {
    let broker = ScriptedBroker::start().await;
    let ((publisher, _context), mut first) =
        tokio::join!(broker.open(1, 3, LONG), async { broker.accept(false, &none()).await });
    let writes = [
        publisher.write(messages(1, &["1", "2"])),
        publisher.write(messages(1, &["3", "4", "5"])),
    ];
    assert_eq!(
        first.payloads(3).await,
        ["1", "2", "3"],
        "no more than three are in flight"
    );
    first
        .ack(PacketKind::PubAck, 1, ReasonCode::NoMatchingSubscribers)
        .await;
    assert_eq!(first.payloads(1).await, ["4"]);
    drop(first);
    let mut second = broker.accept(false, &none()).await;
    let mut acks: VecDeque<u16> = VecDeque::new();
    for expected in ["2", "3", "4", "5"] {
        if acks.len() == 3 {
            second
                .ack(PacketKind::PubAck, acks.pop_front().unwrap(), ReasonCode::Success)
                .await;
        }
        let publish = second.publish().await;
        assert_eq!((publish.payload(), publish.dup), (expected.as_bytes(), false));
        acks.push_back(publish.packet_id);
    }
    for id in acks {
        second.ack(PacketKind::PubAck, id, ReasonCode::Success).await;
    }
    for write in writes {
        write.await.unwrap();
    }
    let (closed, last) = tokio::join!(publisher.close(), second.packet());
    closed.unwrap();
    let Packet::Disconnect(last) = last else {
        panic!("{last:?}")
    };
    assert_eq!((last.reason, last.session_expiry), (ReasonCode::Success, Some(0)));
}

#[tokio::test]
async fn qos_2_goes_on_where_the_session_was() {
    let broker = ScriptedBroker::start().await;
    let ((publisher, _context), mut first) =
        tokio::join!(broker.open(2, 8, LONG), async { broker.accept(false, &none()).await });
    assert!(first.connect.clean_start && first.connect.session_expiry > 0);
    let write = publisher.write(messages(2, &["1", "2"]));
    assert_eq!(first.payloads(2).await, ["1", "2"]);
    first.ack(PacketKind::PubRec, 1, ReasonCode::Success).await;
    assert!(matches!(first.packet().await, Packet::PubRel(ack) if ack.packet_id == 1));
    drop(first);
    let mut second = broker.accept(true, &none()).await;
    assert!(!second.connect.clean_start);
    assert!(matches!(second.packet().await, Packet::PubRel(ack) if ack.packet_id == 1));
    let again = second.publish().await;
    assert_eq!((again.packet_id, again.dup, again.payload()), (2, true, &b"2"[..]));
    second
        .ack(PacketKind::PubComp, 1, ReasonCode::PacketIdentifierNotFound)
        .await;
    second.ack(PacketKind::PubRec, 2, ReasonCode::Success).await;
    assert!(matches!(second.packet().await, Packet::PubRel(ack) if ack.packet_id == 2));
    second.ack(PacketKind::PubComp, 2, ReasonCode::Success).await;
    write.await.unwrap();
}

#[tokio::test]
async fn four_codes_refuse_a_message_for_good_and_the_others_for_now() {
    let broker = ScriptedBroker::start().await;
    let ((publisher, context), mut first) =
        tokio::join!(broker.open(1, 8, LONG), async { broker.accept(false, &none()).await });
    let write = publisher.write(messages(1, &["1", "2", "3", "4", "5", "6"]));
    first.payloads(6).await;
    for (id, reason) in [
        (1, ReasonCode::NotAuthorized),
        (2, ReasonCode::QuotaExceeded),
        (3, ReasonCode::TopicNameInvalid),
        (4, ReasonCode::Success),
        (5, ReasonCode::PayloadFormatInvalid),
    ] {
        first.ack(PacketKind::PubAck, id, reason).await;
    }
    while context.connection.is_up() {
        tokio::task::yield_now().await;
    }
    // Nothing more is sent before all have an answer.
    let later = publisher.write(messages(1, &["7"]));
    first
        .ack(PacketKind::PubAck, 6, ReasonCode::ImplementationSpecificError)
        .await;
    let again = [first.publish().await, first.publish().await, first.publish().await];
    assert_eq!(
        again.each_ref().map(|publish| publish.payload().to_vec()),
        [b"2", b"6", b"7"]
    );
    let why = context.connection.why_not().unwrap();
    assert!(
        why.ends_with("the broker refuses a message of a: Quota exceeded (0x97)"),
        "{why}"
    );
    for publish in again {
        first
            .ack(PacketKind::PubAck, publish.packet_id, ReasonCode::Success)
            .await;
    }
    let refused = refusals(write.await);
    let reasons: Vec<_> = refused
        .iter()
        .map(|(index, reason, _)| (*index, reason.unwrap()))
        .collect();
    assert_eq!(
        reasons,
        [
            (0, DropReason::OutputRejected),
            (2, DropReason::InvalidTopic),
            (4, DropReason::InvalidPayload)
        ]
    );
    assert_eq!(refused[0].2, "the broker refuses a message of a: Not authorized (0x87)");
    later.await.unwrap();
    assert!(context.connection.is_up());
}

#[tokio::test]
async fn the_message_that_ends_each_connection_is_found_and_refused() {
    let broker = ScriptedBroker::start().await;
    let ((publisher, _context), mut connection) =
        tokio::join!(broker.open(1, 8, LONG), async { broker.accept(false, &none()).await });
    let write = publisher.write(messages(1, &["1", "bad", "3"]));
    assert_eq!(connection.payloads(3).await, ["1", "bad", "3"]);
    connection.disconnect(ReasonCode::PacketTooLarge).await;
    // Now each comes alone.
    let mut connection = broker.accept(false, &none()).await;
    let publish = connection.publish().await;
    assert_eq!(publish.payload(), b"1");
    connection
        .ack(PacketKind::PubAck, publish.packet_id, ReasonCode::Success)
        .await;
    assert_eq!(connection.payloads(1).await, ["bad"]);
    connection.disconnect(ReasonCode::PacketTooLarge).await;
    let mut connection = broker.accept(false, &none()).await;
    let publish = connection.publish().await;
    assert_eq!(publish.payload(), b"3");
    connection
        .ack(PacketKind::PubAck, publish.packet_id, ReasonCode::Success)
        .await;
    let refused = refusals(write.await);
    let expected = "the broker refuses a message of a: Packet too large (0x95)";
    assert_eq!(refused, [(1, Some(DropReason::TooLarge), expected.to_owned())]);
}

#[tokio::test]
async fn what_a_broker_has_said_it_does_not_take_is_not_sent() {
    let broker = ScriptedBroker::start().await;
    let mut limits = none();
    limits.number(PropertyId::MaximumPacketSize, 40);
    limits.byte(PropertyId::RetainAvailable, 0);
    limits.two(PropertyId::ReceiveMaximum, 1);
    let ((publisher, _context), mut connection) =
        tokio::join!(broker.open(1, 8, LONG), async { broker.accept(false, &limits).await });
    let write = publisher.write(messages(1, &["kept", &"x".repeat(40), "1", "2"]));
    for expected in ["1", "2"] {
        let publish = connection.publish().await;
        assert_eq!(publish.payload(), expected.as_bytes());
        connection
            .ack(PacketKind::PubAck, publish.packet_id, ReasonCode::Success)
            .await;
    }
    let refused = refusals(write.await);
    assert_eq!(
        refused,
        [
            (
                0,
                Some(DropReason::OutputRejected),
                "the broker keeps no retained messages".to_owned()
            ),
            (
                1,
                Some(DropReason::TooLarge),
                "a packet of 48 bytes exceeds what the broker takes (40)".to_owned()
            ),
        ]
    );
}

#[tokio::test]
async fn a_broker_that_acknowledges_nothing_is_left() {
    let broker = ScriptedBroker::start().await;
    let short = Duration::from_millis(50);
    let ((publisher, context), mut first) =
        tokio::join!(broker.open(1, 8, short), async { broker.accept(false, &none()).await });
    let write = publisher.write(messages(1, &["1"]));
    assert_eq!(first.payloads(1).await, ["1"]);
    let mut rest = Vec::new();
    first.stream.read_to_end(&mut rest).await.unwrap();
    let why = context.connection.why_not().unwrap();
    assert!(
        why.contains("the broker has acknowledged nothing for 0.05 s (write_timeout)"),
        "{why}"
    );
    let mut second = broker.accept(false, &none()).await;
    let publish = second.publish().await;
    second
        .ack(PacketKind::PubAck, publish.packet_id, ReasonCode::Success)
        .await;
    write.await.unwrap();
}

#[tokio::test]
async fn qos_0_is_confirmed_when_it_has_left() {
    let broker = ScriptedBroker::start().await;
    let ((publisher, _context), mut connection) =
        tokio::join!(broker.open(0, 1, LONG), async { broker.accept(false, &none()).await });
    publisher.write(messages(0, &["1", "2", "3"])).await.unwrap();
    assert_eq!(connection.payloads(3).await, ["1", "2", "3"]);
    assert!(publisher.write(Vec::new()).await.is_ok());
}

#[tokio::test]
async fn a_broker_with_a_lower_qos_is_not_used() {
    let broker = ScriptedBroker::start().await;
    let mut limits = none();
    limits.byte(PropertyId::MaximumQoS, 1);
    let dialled = async {
        let mut connection = broker.accept(false, &limits).await;
        connection.packet().await
    };
    let opening = async {
        let yaml = format!("{{urls: [\"tcp://{}\"]}}", broker.listener.local_addr().unwrap());
        let diagnostics = thalweg_config::Diagnostics::new("t.yaml");
        let node = thalweg_config::Node::parse(&yaml).unwrap();
        let options = options::read(&mut thalweg_config::Fields::new(&node, &diagnostics));
        let dialer = Dialer::new(Arc::new(options), "me".to_owned(), LONG);
        let options = PublisherOptions {
            window: 1,
            qos: QoS::ExactlyOnce,
            write_timeout: LONG,
            needs_5: false,
        };
        let context = OutputContext::for_tests("mqtt");
        Publisher::open(dialer, options, context.component.clone(), context.connection.clone()).await
    };
    let (opened, last) = tokio::join!(opening, dialled);
    let error = opened.err().unwrap();
    assert!(
        error.ends_with("the broker takes QoS 1 at most, and qos is 2; set qos: 1"),
        "{error}"
    );
    assert!(matches!(last, Packet::Disconnect(_)), "{last:?}");
}
