//! MQTT over WebSocket.

use std::time::Duration;

use thalweg_mqtt::{ListenerKind, MqttListenerSettings, MqttSettings};
use thalweg_mqtt_wire::ProtocolVersion;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::certificates::Certificates;
use super::web::{self, BINARY, CLOSE, CONTINUE, FINAL, PING, PONG, REQUEST, TEXT, frame, read_frame};
use super::{ListenerBroker, answer, closed, connect_bytes, connected, echoes, listener, settings};

fn ws() -> ListenerBroker {
    ListenerBroker::start(settings(), &[listener(ListenerKind::Ws)])
}

/// The code of a close frame, which ends the connection.
async fn close_code(stream: &mut TcpStream) -> u16 {
    let code = match read_frame(stream).await {
        Some((first, payload)) if first == FINAL | CLOSE => u16::from_be_bytes([payload[0], payload[1]]),
        other => panic!("{other:?}"),
    };
    assert_eq!(closed(stream).await, b"");
    code
}

#[test]
fn clients_speak_through_websocket_with_and_without_tls_in_packets_of_any_size() {
    let certificates = Certificates::new();
    let broker = ListenerBroker::start(
        settings(),
        &[listener(ListenerKind::Ws), certificates.listener(ListenerKind::Wss)],
    );
    broker.run(async {
        let plain = TcpStream::connect(broker.addresses[0]).await.unwrap();
        let secret = TcpStream::connect(broker.addresses[1]).await.unwrap();
        let secret = certificates.over(secret, None).await.unwrap();
        let mut plain = connected(web::bytes(plain).await, "plain").await;
        let mut secret = connected(web::bytes(secret).await, "secret").await;
        for client in [&mut plain, &mut secret] {
            for len in [0, 100, 20_000, 900_000] {
                echoes(client, &"x".repeat(len)).await;
            }
            client.send(|out| out.extend([0xe0, 0x00])).await;
            client.end().await;
        }
    });
}

#[test]
fn requests_that_do_not_fit_are_refused_with_the_cure() {
    let listed = MqttListenerSettings {
        path: "/broker".to_owned(),
        origins: vec!["https://plant.example".to_owned()],
        ..listener(ListenerKind::Ws)
    };
    let broker = ListenerBroker::start(settings(), &[listener(ListenerKind::Ws), listed]);
    broker.run(async {
        for (listener, from, to, status, part) in [
            (0, "/mqtt", "/", "404 Not Found", "MQTT is at /mqtt"),
            (1, "", "", "404 Not Found", "MQTT is at /broker"),
            (0, "Protocol: mqtt", "Protocol: chat", "400 Bad Request", "offer mqtt"),
            (
                0,
                "Upgrade: websocket",
                "Upgrade: other",
                "400 Bad Request",
                "no WebSocket request",
            ),
            (
                0,
                "\r\n\r\n",
                "\r\nOrigin: https://evil.example\r\n\r\n",
                "403 Forbidden",
                "pages of https://evil.example may not connect",
            ),
        ] {
            let request = REQUEST.replace(from, to);
            let text = String::from_utf8(answer(broker.addresses[listener], request.as_bytes()).await).unwrap();
            assert!(text.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{text}");
            assert!(text.contains(part), "{text}");
        }
        let ours = REQUEST
            .replace("/mqtt", "/broker")
            .replace("\r\n\r\n", "\r\nOrigin: https://plant.example\r\n\r\n");
        let mut socket = TcpStream::connect(broker.addresses[1]).await.unwrap();
        let head = web::request(&mut socket, &ours).await;
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        // A head without end is not collected for ever.
        let endless = format!("GET /mqtt HTTP/1.1\r\nx: {}", "y".repeat(20 << 10));
        assert_eq!(answer(broker.addresses[0], endless.as_bytes()).await, b"");
    });
}

#[test]
fn packets_span_and_share_frames_and_pings_are_answered() {
    let broker = ws();
    broker.run(async {
        let mut socket = TcpStream::connect(broker.addresses[0]).await.unwrap();
        socket.set_nodelay(true).unwrap();
        web::open(&mut socket).await;
        let connect = connect_bytes(ProtocolVersion::V3_1_1, "c", 60);
        // The packet is in a message of three frames, with a ping between them.
        for bytes in [
            frame(BINARY, &connect[..5]),
            frame(FINAL | PING, b"there?"),
            frame(CONTINUE, &connect[5..6]),
            frame(FINAL | CONTINUE, &connect[6..]),
        ] {
            // Each comes in two pieces.
            for piece in bytes.chunks(bytes.len() / 2 + 1) {
                socket.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        assert_eq!(read_frame(&mut socket).await, Some((FINAL | PONG, b"there?".to_vec())));
        assert_eq!(
            read_frame(&mut socket).await,
            Some((FINAL | BINARY, vec![0x20, 2, 0, 0]))
        );
        // Three packets in one frame, the last of them goes on in another one.
        let pings = [0xc0, 0x00, 0xc0, 0x00, 0xc0];
        socket.write_all(&frame(FINAL | BINARY, &pings)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        socket.write_all(&frame(FINAL | BINARY, &[0x00])).await.unwrap();
        let mut answers = Vec::new();
        while answers.len() < 6 {
            answers.extend(read_frame(&mut socket).await.unwrap().1);
        }
        assert_eq!(answers, [0xd0, 0x00, 0xd0, 0x00, 0xd0, 0x00]);
        // A pong that nobody asked for is nothing; a close is answered.
        socket.write_all(&frame(FINAL | PONG, b"")).await.unwrap();
        socket
            .write_all(&frame(FINAL | CLOSE, &1001_u16.to_be_bytes()))
            .await
            .unwrap();
        assert_eq!(close_code(&mut socket).await, 1001);
    });
}

#[test]
fn text_and_broken_frames_end_the_connection_with_their_code_before_and_after_connect() {
    let broker = ws();
    broker.run(async {
        let mut unmasked = frame(FINAL | BINARY, b"x");
        unmasked[1] &= 0x7f;
        for (bytes, code) in [
            (frame(FINAL | TEXT, b"hello"), 1003),
            (unmasked, 1002),
            (frame(FINAL | CONTINUE, b"x"), 1002),
            (frame(FINAL | BINARY | 0x40, b"x"), 1002),
            (frame(FINAL | PING, &[0; 126]), 1002),
            (frame(FINAL | CLOSE, b""), 1000),
        ] {
            for is_connected in [false, true] {
                let mut socket = TcpStream::connect(broker.addresses[0]).await.unwrap();
                web::open(&mut socket).await;
                if is_connected {
                    let connect = connect_bytes(ProtocolVersion::V5, "c", 60);
                    socket.write_all(&frame(FINAL | BINARY, &connect)).await.unwrap();
                    assert_eq!(read_frame(&mut socket).await.unwrap().1[0], 0x20);
                }
                socket.write_all(&bytes).await.unwrap();
                assert_eq!(close_code(&mut socket).await, code, "{bytes:?}");
            }
        }
    });
}

#[test]
fn a_packet_that_breaks_a_rule_gets_disconnect_and_then_a_close_frame() {
    let broker = ws();
    broker.run(async {
        let mut socket = TcpStream::connect(broker.addresses[0]).await.unwrap();
        web::open(&mut socket).await;
        let connect = connect_bytes(ProtocolVersion::V5, "c", 60);
        socket.write_all(&frame(FINAL | BINARY, &connect)).await.unwrap();
        assert_eq!(read_frame(&mut socket).await.unwrap().1[0], 0x20);
        // 64 MiB are announced within a frame that has as many; 100 bytes of it come.
        let mut large = vec![FINAL | BINARY, 0x80 | 127];
        large.extend((64_u64 << 20).to_be_bytes());
        large.extend([0, 0, 0, 0, 0x30, 0x80, 0x80, 0x80, 0x20]);
        large.extend([0; 100]);
        socket.write_all(&large).await.unwrap();
        let (first, packet) = read_frame(&mut socket).await.unwrap();
        assert_eq!((first, packet[0], packet[2]), (FINAL | BINARY, 0xe0, 0x95));
        assert_eq!(close_code(&mut socket).await, 1000);
    });
}

#[test]
fn a_websocket_without_connect_is_closed_in_time() {
    let broker = ListenerBroker::start(
        MqttSettings {
            connect_timeout: Duration::from_millis(300),
            ..settings()
        },
        &[listener(ListenerKind::Ws)],
    );
    broker.run(async {
        assert_eq!(answer(broker.addresses[0], &REQUEST.as_bytes()[..50]).await, b"");
        let mut socket = TcpStream::connect(broker.addresses[0]).await.unwrap();
        web::open(&mut socket).await;
        socket.write_all(&frame(FINAL | PING, b"")).await.unwrap();
        assert_eq!(closed(&mut socket).await, [FINAL | PONG, 0]);
    });
}
