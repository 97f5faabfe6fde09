//! The other end is tungstenite's own WebSocket.

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::DuplexStream;
use tungstenite::protocol::frame::Frame;
use tungstenite::protocol::frame::coding::{Data, OpCode};
use tungstenite::protocol::{Role, WebSocket};

use super::frames;
use super::*;

fn written(frame: Frame, out: &mut Vec<u8>) {
    frame.format(out).unwrap();
}

/// What a server may send: a message of several frames, a ping, or a pong.
#[derive(Clone, Debug)]
enum Sent {
    Message(Vec<Vec<u8>>),
    Ping(Vec<u8>),
    Pong,
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        4 => vec(vec(any::<u8>(), 0..300), 1..4).prop_map(Sent::Message),
        1 => vec(any::<u8>(), 0..125).prop_map(Sent::Ping),
        1 => Just(Sent::Pong),
    ]
}

proptest! {
    #[test]
    fn payloads_come_out_as_one_stream_however_they_are_cut(all in vec(sent(), 0..20), piece in 1..200_usize) {
        let (mut bytes, mut expected, mut ping) = (Vec::new(), Vec::new(), None);
        for one in all {
            match one {
                Sent::Message(parts) => {
                    let count = parts.len();
                    for (n, part) in parts.into_iter().enumerate() {
                        expected.extend_from_slice(&part);
                        let kind = if n == 0 { Data::Binary } else { Data::Continue };
                        written(Frame::message(part, OpCode::Data(kind), n + 1 == count), &mut bytes);
                        // Control frames may stand between the parts of a message.
                        written(Frame::pong(Vec::new()), &mut bytes);
                    }
                }
                Sent::Ping(payload) => {
                    ping = Some(payload.clone());
                    written(Frame::ping(payload), &mut bytes);
                }
                Sent::Pong => written(Frame::pong(vec![1]), &mut bytes),
            }
        }
        let (mut frames, mut data) = (ServerFrames::default(), BytesMut::new());
        for piece in bytes.chunks(piece) {
            frames.decode(piece, &mut data).unwrap();
        }
        prop_assert_eq!(&data[..], &expected[..]);
        prop_assert_eq!(frames.ping(), ping);
    }

    #[test]
    fn any_bytes_are_frames_or_refused(bytes in vec(any::<u8>(), 0..400)) {
        frames::fuzz(&bytes);
    }

    #[test]
    fn frames_of_the_client_are_read_by_others(payload in vec(any::<u8>(), 0..70_000), mask: [u8; 4]) {
        let mut out = Vec::new();
        frames::data(&payload, mask, &mut out);
        frames::close(mask, &mut out);
        let mut server = WebSocket::from_raw_socket(std::io::Cursor::new(out), Role::Server, None);
        prop_assert_eq!(server.read().unwrap().into_data().to_vec(), payload);
        prop_assert!(server.read().unwrap().is_close());
    }
}

#[test]
fn what_breaks_the_protocol_is_refused() {
    for (bytes, told) in [
        (&[0x82, 0x81, 1, 2, 3, 4, 5][..], "masked, or has an extension"),
        (&[0xc2, 0x01, 1], "masked, or has an extension"),
        (&[0x81, 0x01, 65], "is text"),
        (&[0x80, 0x01, 65], "out of order"),
        (&[0x02, 0x01, 65, 0x82, 0x01, 65], "out of order"),
        (&[0x89, 0x7e, 0, 126], "out of order"),
        (&[0x09, 0x00], "out of order"),
        (&[0x83, 0x00], "unknown header"),
    ] {
        let error = ServerFrames::default().decode(bytes, &mut BytesMut::new()).unwrap_err();
        assert!(error.contains(told), "{bytes:x?}: {error}");
    }
}

/// Makes an answer of the accept key that belongs to the request.
type AnswerOf = fn(&str) -> String;

/// Reads the request, and answers it.
async fn answered(answer: AnswerOf) -> (Result<WebSocketTransport, String>, DuplexStream, String) {
    let (own, mut server) = tokio::io::duplex(1 << 10);
    let serving = async {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            server.read_buf(&mut request).await.unwrap();
        }
        let request = String::from_utf8(request).unwrap();
        let key = request
            .lines()
            .find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "))
            .unwrap();
        let answer = answer(&derive_accept_key(key.as_bytes()));
        // A client that has read enough may be gone.
        let _ = server.write_all(answer.as_bytes()).await;
        request
    };
    let (opened, request) = tokio::join!(open(Box::new(own), "broker:8083", "/mqtt?a=b"), serving);
    (opened, server, request)
}

fn agreed(accept: &str) -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: WebSocket\r\nconnection: keep-alive, Upgrade\r\n\
         sec-websocket-accept: {accept}\r\nsec-websocket-protocol: mqtt\r\n\r\n"
    )
}

#[tokio::test]
async fn a_server_must_agree_to_mqtt() {
    let (opened, _server, request) = answered(agreed).await;
    assert!(opened.is_ok());
    let start = "GET /mqtt?a=b HTTP/1.1\r\nHost: broker:8083\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n";
    assert!(
        request.starts_with(start) && request.contains("Sec-WebSocket-Protocol: mqtt\r\n"),
        "{request}"
    );
    let refusals: [(AnswerOf, &str); 4] = [
        (
            |_| "HTTP/1.1 404 Not Found\r\n\r\n".to_owned(),
            "the server answers the WebSocket request with 404 Not Found; check the path of the URL",
        ),
        (
            |accept| agreed(accept).replace("sec-websocket-protocol: mqtt\r\n", ""),
            "there is a WebSocket, but not for MQTT; check the path of the URL",
        ),
        (
            |_| agreed("wrong"),
            "the answer to the WebSocket request breaks its protocol",
        ),
        (
            |_| format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(20_000)),
            "the answer to the WebSocket request is too long",
        ),
    ];
    for (answer, expected) in refusals {
        let (opened, ..) = answered(answer).await;
        assert_eq!(opened.err().unwrap(), expected);
    }
}

#[tokio::test]
async fn bytes_go_both_ways_pings_are_answered_and_a_close_ends_it() {
    // A frame comes with the answer.
    let (opened, mut server, _) = answered(|accept| agreed(accept) + "\u{2}\u{1}a").await;
    let mut client = opened.unwrap_or_else(|error| panic!("{error}"));
    let mut frames = Vec::new();
    written(Frame::ping(b"p".to_vec()), &mut frames);
    written(
        Frame::message(b"bc".to_vec(), OpCode::Data(Data::Continue), true),
        &mut frames,
    );
    server.write_all(&frames).await.unwrap();
    let mut got = [0; 3];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"abc");
    let sent: Vec<u8> = (0..200_000_u32).map(|n| n as u8).collect();
    let sending = async {
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
        client
    };
    let reading = async {
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        all
    };
    let (mut client, all) = tokio::join!(sending, async {
        tokio::select! {
            all = reading => all,
            () = tokio::time::sleep(std::time::Duration::from_secs(60)) => panic!("the end does not come"),
        }
    });
    let mut read = WebSocket::from_raw_socket(std::io::Cursor::new(all), Role::Server, None);
    let mut data = Vec::new();
    let mut has_pong = false;
    loop {
        let message = read.read().unwrap();
        has_pong |= message.is_pong();
        match message.is_binary() {
            true => data.extend_from_slice(&message.into_data()),
            false if message.is_close() => break,
            false => {}
        }
    }
    assert!(data == sent && has_pong);
    // The server has ended: there is nothing more to read.
    drop(server);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).await.unwrap();
    assert!(rest.is_empty());
}
