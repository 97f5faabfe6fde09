//! What comes before and with CONNECT.

use std::time::{Duration, Instant};

use thalweg_mqtt::{ListenerKind, MqttBindError, MqttListenerSettings, MqttServer, MqttSettings};
use thalweg_mqtt_wire::{ProtocolVersion, ReasonCode};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::{
    ListenerBroker, answer, closed, connect_bytes, connected, disconnect_code, echoes, listener, passing, passing_in,
    settings,
};
use crate::support::TestClient;

#[test]
fn who_does_not_complete_connect_in_time_is_closed_without_an_answer() {
    let timeout = Duration::from_millis(400);
    let broker = ListenerBroker::tcp(MqttSettings {
        connect_timeout: timeout,
        ..settings()
    });
    broker.run(async {
        let begin = Instant::now();
        let connect = connect_bytes(ProtocolVersion::V5, "slow", 60);
        assert_eq!(answer(broker.addresses[0], b"").await, b"");
        assert_eq!(answer(broker.addresses[0], &connect[..connect.len() - 1]).await, b"");
        assert!(begin.elapsed() >= 2 * timeout, "{:?}", begin.elapsed());
        // Byte by byte does not help.
        let mut socket = TcpStream::connect(broker.addresses[0]).await.unwrap();
        let begin = Instant::now();
        for byte in &connect {
            if socket.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(closed(&mut socket).await, b"");
        assert!(begin.elapsed() >= timeout);
        // In pieces, but in time.
        let mut socket = TcpStream::connect(broker.addresses[0]).await.unwrap();
        socket.write_all(&connect[..3]).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        socket.write_all(&connect[3..]).await.unwrap();
        let mut client = TestClient::over(socket, ProtocolVersion::V5);
        assert!(matches!(
            client.packet().await,
            thalweg_mqtt_wire::Packet::ConnAck(connack) if connack.reason == ReasonCode::Success
        ));
        echoes(&mut client, "in time").await;
    });
}

#[test]
fn another_first_packet_is_closed_at_once_and_so_is_one_that_announces_too_much() {
    let broker = ListenerBroker::tcp(settings());
    broker.run(async {
        let begin = Instant::now();
        for bytes in [
            &b"GET / HTTP/1.1\r\n\r\n"[..],
            b"\xc0\x00",
            b"\x00",
            // CONNECT of 64 MiB.
            b"\x10\x80\x80\x80\x20",
            // Of 257 KiB.
            b"\x10\x80\x88\x10",
            // Another protocol.
            b"\x10\x0a\x00\x04QTTM\x04\x02\x00\x0a",
        ] {
            assert_eq!(answer(broker.addresses[0], bytes).await, b"", "{bytes:?}");
        }
        assert!(begin.elapsed() < Duration::from_secs(9), "{:?}", begin.elapsed());
    });
}

#[test]
fn what_is_announced_and_never_sent_is_refused_or_times_out() {
    let broker = ListenerBroker::tcp(settings());
    broker.run(async {
        let mut client = broker.open(ProtocolVersion::V5).await;
        client.connect(&passing("announces")).await;
        // A PUBLISH of 64 MiB.
        client.send(|out| out.extend(b"\x30\x80\x80\x80\x20")).await;
        assert_eq!(disconnect_code(&client.end().await), Some(ReasonCode::PacketTooLarge));
        // One that is allowed and comes byte by byte: such bytes are no sign of life.
        let mut socket = TcpStream::connect(broker.addresses[0]).await.unwrap();
        socket
            .write_all(&connect_bytes(ProtocolVersion::V5, "trickles", 1))
            .await
            .unwrap();
        socket.write_all(b"\x30\xff\xff\x0f\x00\x01t\x00").await.unwrap();
        let (mut reader, mut writer) = socket.into_split();
        let trickle = tokio::spawn(async move {
            while writer.write_all(b"x").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        });
        let answer = closed(&mut reader).await;
        trickle.abort();
        assert_eq!(answer[0], 0x20);
        let code = ReasonCode::KeepAliveTimeout.number();
        let end = answer.windows(3).any(|bytes| bytes[0] == 0xe0 && bytes[2] == code);
        assert!(end, "{answer:?}");
    });
}

#[test]
fn a_listener_serves_only_its_versions() {
    let only = |versions: &[ProtocolVersion]| MqttListenerSettings {
        versions: versions.to_vec(),
        ..listener(ListenerKind::Tcp)
    };
    let broker = ListenerBroker::start(
        settings(),
        &[only(&[ProtocolVersion::V5]), only(&[ProtocolVersion::V3_1_1])],
    );
    broker.run(async {
        let [new, old] = broker.addresses[..] else {
            panic!("two listeners")
        };
        for (address, version, served) in [
            (new, ProtocolVersion::V5, true),
            (new, ProtocolVersion::V3_1_1, false),
            (new, ProtocolVersion::V3_1, false),
            (old, ProtocolVersion::V3_1_1, true),
            (old, ProtocolVersion::V3_1, false),
            (old, ProtocolVersion::V5, false),
        ] {
            let mut client = TestClient::open(address, version).await;
            let reason = client.connect(&passing_in(version, "v")).await.reason;
            match served {
                true => assert_eq!(reason, ReasonCode::Success),
                false => {
                    assert_eq!(reason, ReasonCode::UnsupportedProtocolVersion, "{version:?}");
                    assert_eq!(client.end().await, []);
                }
            }
        }
    });
}

#[test]
fn several_listeners_are_one_broker_and_each_of_their_errors_names_its_place_and_cure() {
    let broker = ListenerBroker::start(settings(), &[listener(ListenerKind::Tcp), listener(ListenerKind::Tcp)]);
    broker.run(async {
        let one = TcpStream::connect(broker.addresses[0]).await.unwrap();
        let other = TcpStream::connect(broker.addresses[1]).await.unwrap();
        let (mut one, mut other) = (connected(one, "one").await, connected(other, "other").await);
        other.subscribe("t", thalweg_mqtt_wire::QoS::AtMostOnce).await;
        one.publish("t", "hello", thalweg_mqtt_wire::QoS::AtMostOnce).await;
        assert_eq!(other.take().await.1, "hello");

        let disk = thalweg_log::disk::sim::SimDisk::new(1, 1 << 26);
        let engine = crate::support::open_broker(disk, settings()).await;
        let taken = MqttListenerSettings {
            address: broker.addresses[0].to_string(),
            ..listener(ListenerKind::Tcp)
        };
        let fails = async |settings: MqttListenerSettings| -> MqttBindError {
            let all = [listener(ListenerKind::Tcp), settings];
            let error = MqttServer::bind(engine.clone(), &all).await.err().unwrap();
            assert!(error.to_string().starts_with("mqtt.listeners[1]."), "{error}");
            error
        };
        let error = fails(taken).await.to_string();
        assert!(
            error.contains(&format!("{} is in use; end the process", broker.addresses[0])),
            "{error}"
        );
        let nowhere = MqttListenerSettings {
            address: "nowhere".to_owned(),
            ..listener(ListenerKind::Tcp)
        };
        let error = fails(nowhere).await.to_string();
        assert!(error.contains("address: cannot listen on nowhere: "), "{error}");
        for (settings, key) in [
            (listener(ListenerKind::Tls), "cert_file: "),
            (
                MqttListenerSettings {
                    cert_file: Some("c".into()),
                    ..listener(ListenerKind::Wss)
                },
                "key_file: ",
            ),
            (
                MqttListenerSettings {
                    cert_file: Some("/nowhere/c".into()),
                    key_file: Some("/nowhere/k".into()),
                    ..listener(ListenerKind::Tls)
                },
                "cert_file: cannot read /nowhere/c: ",
            ),
            (
                MqttListenerSettings {
                    path: "mqtt".to_owned(),
                    ..listener(ListenerKind::Ws)
                },
                "path: ",
            ),
            (
                MqttListenerSettings {
                    versions: Vec::new(),
                    ..listener(ListenerKind::Tcp)
                },
                "versions: ",
            ),
            (
                MqttListenerSettings {
                    client_auth: thalweg_mqtt::ClientAuth::Required,
                    ..listener(ListenerKind::Tcp)
                },
                "client_auth: ",
            ),
        ] {
            let error = fails(settings).await.to_string();
            assert!(error["mqtt.listeners[1].".len()..].starts_with(key), "{error}");
        }
    });
}
