//! Limits of connections, each reached once.

use std::time::Duration;

use thalweg_mqtt::{ListenerKind, MqttListenerSettings, MqttSettings, RateLimit};
use thalweg_mqtt_wire::{ProtocolVersion, QoS, ReasonCode};
use tokio::net::TcpStream;

use super::{ListenerBroker, closed, connected, echoes, listener, passing_in, settings};
use crate::support::TestClient;

/// What clients of both versions are told. Then the connection is closed.
async fn refused(broker: &ListenerBroker, listener: usize, code: ReasonCode) {
    for (version, code) in [
        (ProtocolVersion::V5, code),
        // Code 3.
        (ProtocolVersion::V3_1_1, ReasonCode::ServerUnavailable),
    ] {
        let mut client = TestClient::open(broker.addresses[listener], version).await;
        let connack = client.connect(&passing_in(version, "refused")).await;
        assert_eq!((connack.reason, connack.session_present), (code, false));
        assert_eq!(client.end().await, []);
    }
}

#[test]
fn the_oldest_connection_without_connect_gives_way_and_clients_do_not() {
    let broker = ListenerBroker::tcp(MqttSettings {
        connecting: 3,
        ..settings()
    });
    broker.run(async {
        let mut client = connected(TcpStream::connect(broker.addresses[0]).await.unwrap(), "early").await;
        let mut silent = Vec::new();
        for _ in 0..3 {
            silent.push(TcpStream::connect(broker.addresses[0]).await.unwrap());
            // So that the broker accepts them in this order.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let late = TcpStream::connect(broker.addresses[0]).await.unwrap();
        assert_eq!(closed(&mut silent[0]).await, b"");
        let mut late = connected(late, "late").await;
        // There is room again, and nobody else was closed.
        let mut second = connected(silent.remove(1), "second").await;
        for client in [&mut client, &mut late, &mut second] {
            client.silence().await;
        }
        echoes(&mut client, "still there").await;
    });
}

#[test]
fn clients_beyond_the_limit_of_a_listener_and_of_all_are_told_so() {
    let small = MqttListenerSettings {
        max_connections: 1,
        ..listener(ListenerKind::Tcp)
    };
    let broker = ListenerBroker::start(
        MqttSettings {
            connections: 2,
            ..settings()
        },
        &[small, listener(ListenerKind::Tcp)],
    );
    broker.run(async {
        let open = async |listener: usize| TcpStream::connect(broker.addresses[listener]).await.unwrap();
        let first = connected(open(0).await, "first").await;
        refused(&broker, 0, ReasonCode::QuotaExceeded).await;
        let mut second = connected(open(1).await, "second").await;
        refused(&broker, 1, ReasonCode::QuotaExceeded).await;
        second.silence().await;
        first.disconnect().await;
        // The place is free a moment after the connection is closed.
        let mut third = loop {
            let mut client = TestClient::over(open(0).await, ProtocolVersion::V5);
            match client.connect(&passing_in(ProtocolVersion::V5, "third")).await.reason {
                ReasonCode::Success => break client,
                code => assert_eq!(code, ReasonCode::QuotaExceeded),
            }
        };
        third.subscribe("t", QoS::AtMostOnce).await;
        second.publish("t", "x", QoS::AtMostOnce).await;
        assert_eq!(third.take().await.1, "x");
    });
}

#[test]
fn an_address_that_connects_too_often_is_told_so_and_others_are_not() {
    let behind = MqttListenerSettings {
        proxy_protocol: true,
        ..listener(ListenerKind::Tcp)
    };
    let broker = ListenerBroker::start(
        MqttSettings {
            connect_rate: Some(RateLimit {
                per_second: 0.01,
                burst: 2,
            }),
            ..settings()
        },
        &[listener(ListenerKind::Tcp), behind],
    );
    broker.run(async {
        let open = async |listener: usize| TcpStream::connect(broker.addresses[listener]).await.unwrap();
        let _one = connected(open(0).await, "one").await;
        // Without CONNECT nothing is counted.
        drop(open(0).await);
        let _two = connected(open(0).await, "two").await;
        refused(&broker, 0, ReasonCode::ConnectionRateExceeded).await;
        for source in ["10.0.0.1", "10.0.0.2"] {
            let mut codes = Vec::new();
            for _ in 0..3 {
                use tokio::io::AsyncWriteExt as _;
                let mut socket = open(1).await;
                let header = format!("PROXY TCP4 {source} 10.0.0.9 4000 1883\r\n");
                socket.write_all(header.as_bytes()).await.unwrap();
                let mut client = TestClient::over(socket, ProtocolVersion::V5);
                codes.push(client.connect(&passing_in(ProtocolVersion::V5, source)).await.reason);
            }
            let (ok, refused) = (ReasonCode::Success, ReasonCode::ConnectionRateExceeded);
            assert_eq!(codes, [ok, ok, refused], "{source}");
        }
    });
}

#[test]
fn connections_leave_descriptors_for_files() {
    use std::os::fd::AsRawFd as _;
    let broker = ListenerBroker::tcp(settings());
    broker.run(async {
        let engine = crate::support::open_broker(thalweg_log::disk::sim::SimDisk::new(1, 1 << 26), settings()).await;
        let mut server = thalweg_mqtt::MqttServer::bind(engine, &[listener(ListenerKind::Tcp)])
            .await
            .unwrap();
        let address = server.addresses()[0];
        // The descriptors of this process that are above it are those of the connections.
        let here = TcpStream::connect(broker.addresses[0]).await.unwrap();
        server.set_descriptors_max(u64::try_from(here.as_raw_fd()).unwrap() / 2);
        tokio::spawn(server.serve(std::future::pending(), Duration::ZERO));
        let mut socket = TcpStream::connect(address).await.unwrap();
        assert_eq!(closed(&mut socket).await, b"");
    });
}
