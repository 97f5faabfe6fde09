//! Brokers that answer as they are told, and tell which versions were asked for.

use thalweg_mqtt_wire::{Connect, FixedHeader};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::*;
use crate::options;

type Answer = fn(&Connect) -> Option<Vec<u8>>;

/// Answers each CONNECT; `None` closes the connection.
async fn broker(answer: Answer) -> (String, mpsc::UnboundedReceiver<Connect>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let (tell, told) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = Vec::new();
            let header = loop {
                stream.read_buf(&mut bytes).await.unwrap();
                match FixedHeader::parse(&bytes, 1 << 20).unwrap() {
                    Some(header) if header.packet_len() <= bytes.len() => break header,
                    _ => {}
                }
            };
            let connect = Connect::decode(&bytes.into(), &header, false).unwrap();
            let answer = answer(&connect);
            let _ = tell.send(connect);
            if let Some(answer) = answer {
                stream.write_all(&answer).await.unwrap();
                // The connection stays until the client ends it.
                let mut rest = Vec::new();
                tokio::spawn(async move { stream.read_to_end(&mut rest).await });
            }
        }
    });
    (url, told)
}

fn dialer(urls: &[&str], more: &str) -> Dialer {
    let yaml = format!("{{urls: [\"{}\"], {more}}}", urls.join("\", \""));
    let diagnostics = thalweg_config::Diagnostics::new("t.yaml");
    let node = thalweg_config::Node::parse(&yaml).unwrap();
    let options = options::read(&mut thalweg_config::Fields::new(&node, &diagnostics));
    assert!(!diagnostics.has_errors(), "{diagnostics}");
    Dialer::new(Arc::new(options), "me".to_owned(), Duration::from_secs(60))
}

const REQUEST: SessionRequest = SessionRequest {
    clean_start: false,
    clean_elsewhere: false,
    expiry: 3600,
    clean_session: false,
    receive_maximum: 7,
};

fn is_5(connect: &Connect) -> bool {
    connect.version == ProtocolVersion::V5
}

fn accept_3(connect: &Connect) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    match is_5(connect) {
        true => encode::connack_v3(&mut out, false, 1),
        false => encode::connack_v3(&mut out, true, 0),
    }
    Some(out)
}

#[tokio::test]
async fn a_connection_says_who_it_is_and_hears_what_the_broker_takes() {
    let (url, mut told) = broker(|_| {
        let mut properties = PropertyWriter::default();
        properties.two(PropertyId::ReceiveMaximum, 9);
        properties.byte(PropertyId::MaximumQoS, 1);
        properties.byte(PropertyId::RetainAvailable, 0);
        properties.number(PropertyId::MaximumPacketSize, 1000);
        let mut out = Vec::new();
        encode::connack(&mut out, true, ReasonCode::Success, properties.bytes());
        Some(out)
    })
    .await;
    let more = "user: u, password: p, keepalive: 9, will: {enabled: true, topic: w, payload: gone, qos: 1}";
    let dialled = dialer(&[&url], more)
        .dial(REQUEST)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((dialled.receive_maximum, dialled.maximum_qos), (9, QoS::AtLeastOnce));
    assert_eq!((dialled.packet_bytes_max, dialled.retain_available), (1000, false));
    assert!(dialled.session_present);
    let connect = told.recv().await.unwrap();
    assert_eq!(
        (connect.session_expiry, connect.receive_maximum, connect.keep_alive),
        (3600, 7, 9)
    );
    assert_eq!(
        (connect.client_id.as_deref(), connect.user_name.as_deref()),
        (Ok("me"), Some("u"))
    );
    assert_eq!(connect.password.as_deref(), Some(&b"p"[..]));
    let will = connect.will.unwrap();
    assert_eq!(
        (will.topic.as_str(), &*will.payload, will.qos),
        ("w", &b"gone"[..], QoS::AtLeastOnce)
    );
    assert!(!connect.clean_start);
}

#[tokio::test]
async fn a_broker_that_does_not_speak_5_is_asked_for_3_1_1() {
    let refuse_5: Answer = |connect| {
        let mut out = Vec::new();
        if !is_5(connect) {
            return accept_3(connect);
        }
        encode::connack(&mut out, false, ReasonCode::UnsupportedProtocolVersion, &[]);
        Some(out)
    };
    let close: Answer = |connect| if is_5(connect) { None } else { accept_3(connect) };
    // Only a broker that says so is not asked again.
    for (answer, asked_again) in [(accept_3 as Answer, false), (refuse_5, false), (close, true)] {
        let (url, mut told) = broker(answer).await;
        let mut dialer = dialer(&[&url], "");
        for is_first in [true, false] {
            let dialled = dialer.dial(REQUEST).await.unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(dialled.link.version(), ProtocolVersion::V3_1_1);
            if is_first || asked_again {
                assert!(is_5(&told.recv().await.unwrap()));
            }
            let connect = told.recv().await.unwrap();
            assert!(!is_5(&connect) && !connect.clean_start);
        }
    }
}

#[tokio::test]
async fn version_3_1_1_is_all_that_is_tried_if_it_is_set() {
    let (url, mut told) = broker(|_| None).await;
    let error = dialer(&[&url], "version: 3.1.1").dial(REQUEST).await.err().unwrap();
    assert_eq!(
        error,
        format!(
            "{url}: the broker closes the connection without an answer; check that the port is the one for MQTT and whether it wants TLS"
        )
    );
    assert!(!is_5(&told.recv().await.unwrap()));
    assert!(told.try_recv().is_err());
}

#[tokio::test]
async fn brokers_are_tried_in_turn_and_each_says_why_not() {
    let (refusing, _refused) = broker(|_| {
        let mut properties = PropertyWriter::default();
        properties.text(PropertyId::ReasonString, "go away");
        let mut out = Vec::new();
        encode::connack(&mut out, false, ReasonCode::NotAuthorized, properties.bytes());
        Some(out)
    })
    .await;
    let gone = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("tcp://{}", listener.local_addr().unwrap())
    };
    let (good, mut told) = broker(accept_3).await;
    let error = dialer(&[&refusing, &gone], "").dial(REQUEST).await.err().unwrap();
    let refused = format!("{refusing}: the broker refuses the connection: Not authorized (0x87): go away; {gone}: ");
    assert!(error.starts_with(&refused), "{error}");
    let mut dialer = dialer(&[&refusing, &gone, &good], "");
    for _ in 0..2 {
        let dialled = dialer.dial(REQUEST).await.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(dialled.url.to_string(), good);
    }
    // The one that was connected last comes first: it was asked for 5.0 once, and twice for 3.1.1.
    let mut asked = 0;
    while told.try_recv().is_ok() {
        asked += 1;
    }
    assert_eq!(asked, 3);
}

#[tokio::test]
async fn another_broker_than_the_last_forgets_the_session_if_it_shall() {
    let accept: Answer = |_| {
        let mut out = Vec::new();
        encode::connack(&mut out, true, ReasonCode::Success, &[]);
        Some(out)
    };
    let ((one, mut told_one), (two, mut told_two)) = (broker(accept).await, broker(accept).await);
    let mut dialer = dialer(&[&one, &two], "");
    let request = SessionRequest {
        clean_elsewhere: true,
        ..REQUEST
    };
    let mut same = Vec::new();
    for turn in 0..4 {
        if turn == 2 {
            dialer.avoid_this_one();
        }
        let dialled = dialer.dial(request).await.unwrap_or_else(|error| panic!("{error}"));
        same.push(dialled.is_same_broker);
    }
    assert_eq!(same, [false, true, false, true]);
    let mut clean = Vec::new();
    for told in [&mut told_one, &mut told_two] {
        for _ in 0..2 {
            clean.push(told.recv().await.unwrap().clean_start);
        }
    }
    assert_eq!(clean, [true, false, true, false]);
}

#[tokio::test]
async fn a_broker_that_says_nothing_is_not_waited_for_longer_than_is_set() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let error = dialer(&[&url], "connect_timeout: 50ms")
        .dial(REQUEST)
        .await
        .err()
        .unwrap();
    assert_eq!(
        error,
        format!("{url}: there is no answer within connect_timeout (0.05 s)")
    );
}
