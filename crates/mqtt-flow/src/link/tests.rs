use thalweg_mqtt_wire::QoS;
use thalweg_mqtt_wire::encode::PublishHead;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

use super::*;

/// Longer than a busy machine takes.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

fn link() -> (Link, DuplexStream) {
    let (own, broker) = tokio::io::duplex(1 << 10);
    (Link::new(Box::new(own), ProtocolVersion::V5, WRITE_TIMEOUT), broker)
}

async fn failure(link: &mut Link, reads: bool) -> String {
    loop {
        if let Err(error) = link.progress(reads).await {
            return error;
        }
    }
}

#[tokio::test]
async fn packets_come_out_as_they_were_sent_however_they_are_cut() {
    let (mut link, mut broker) = link();
    let mut bytes = Vec::new();
    for payload in ["", "a", &"b".repeat(5000)] {
        let head = PublishHead {
            topic: "t",
            qos: QoS::AtLeastOnce,
            packet_id: 1,
            ..PublishHead::default()
        };
        head.write(&mut bytes, ProtocolVersion::V5, payload.len());
        bytes.extend_from_slice(payload.as_bytes());
    }
    let sending = tokio::spawn(async move {
        for piece in bytes.chunks(7) {
            broker.write_all(piece).await.unwrap();
        }
        broker
    });
    let mut sizes = Vec::new();
    while sizes.len() < 3 {
        match link.buffered().unwrap() {
            Some(Packet::Publish(publish)) => sizes.push(publish.payload().len()),
            Some(other) => panic!("{other:?}"),
            None => link.progress(true).await.unwrap(),
        }
    }
    assert_eq!(sizes, [0, 1, 5000]);
    drop(sending.await.unwrap());
    assert_eq!(failure(&mut link, true).await, "the broker has closed the connection");
}

#[tokio::test]
async fn what_was_put_leaves_in_order_although_waits_are_given_up() {
    let (mut link, mut broker) = link();
    let sent: Vec<u8> = (0..100_000_u32).map(|n| n as u8).collect();
    let count = link.put(|out| out.extend_from_slice(&sent));
    let mut got = Vec::new();
    let mut piece = [0; 777];
    while got.len() < sent.len() {
        tokio::select! {
            biased;
            read = broker.read(&mut piece) => got.extend_from_slice(&piece[..read.unwrap()]),
            progress = link.progress(true) => progress.unwrap(),
        }
        if got.len() + (1 << 10) < sent.len() {
            assert!(!link.has_left(count));
        }
    }
    assert!(got == sent);
    while !link.has_left(count) {
        link.progress(true).await.unwrap();
    }
    assert!(link.is_flushed() && link.outbox.is_empty());
}

/// Times are short, and none is asserted.
#[tokio::test]
async fn a_ping_leaves_in_time_and_its_answer_is_waited_for() {
    let (mut link, mut broker) = link();
    link.set_keep_alive(Duration::from_millis(40));
    let mut ping = [0; 2];
    let answering = async {
        for _ in 0..3 {
            broker.read_exact(&mut ping).await.unwrap();
            assert_eq!(ping, [0xc0, 0]);
            broker.write_all(&[0xd0, 0]).await.unwrap();
        }
        std::future::pending::<()>().await;
    };
    let mut answers = 0;
    let reading = async {
        loop {
            match link.buffered() {
                Ok(Some(packet)) => {
                    assert_eq!(packet, Packet::PingResp);
                    answers += 1;
                }
                _ => {
                    if let Err(error) = link.progress(true).await {
                        return error;
                    }
                }
            }
        }
    };
    let error = tokio::select! {
        error = reading => error,
        () = answering => unreachable!(),
    };
    assert_eq!(
        error,
        "the broker has sent nothing for 0.03 s, and does not answer a ping"
    );
    assert_eq!(answers, 3);
}

/// While nothing is read, pings go on and their answers are not missed.
#[tokio::test]
async fn a_link_that_is_not_read_stays() {
    let (mut link, mut broker) = link();
    link.set_keep_alive(Duration::from_millis(8));
    let mut pings = [0; 20];
    tokio::select! {
        error = failure(&mut link, false) => panic!("{error}"),
        read = broker.read_exact(&mut pings) => drop(read.unwrap()),
    }
    assert_eq!(pings, [0xc0, 0].repeat(10).as_slice());
}

#[tokio::test]
async fn a_broker_that_takes_nothing_is_given_up() {
    let (own, _broker) = tokio::io::duplex(1 << 10);
    let mut link = Link::new(Box::new(own), ProtocolVersion::V5, Duration::from_millis(50));
    link.put(|out| out.resize(1 << 20, 0));
    assert_eq!(
        failure(&mut link, true).await,
        "the broker has taken no bytes for 0.05 s"
    );
}

#[tokio::test]
async fn a_broken_packet_is_answered_and_told() {
    let (mut link, mut broker) = link();
    broker.write_all(&[0x00, 0x00]).await.unwrap();
    link.progress(true).await.unwrap();
    let error = link.buffered().unwrap_err();
    assert_eq!(
        error,
        "the broker sent a packet that breaks the protocol: Malformed Packet: the packet type is 0"
    );
    link.flush_and_close().await;
    let mut said = Vec::new();
    broker.read_to_end(&mut said).await.unwrap();
    assert_eq!(said, [0xe0, 1, 0x81]);
}
