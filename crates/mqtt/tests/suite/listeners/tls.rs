//! TLS and the certificates of clients.

use std::net::SocketAddr;
use std::time::Duration;

use thalweg_mqtt::{ClientAuth, ListenerKind, MqttListenerSettings, MqttSettings};
use thalweg_mqtt_wire::ProtocolVersion;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::certificates::Certificates;
use super::{ListenerBroker, answer, closed, connect_bytes, connected, echoes, settings};

/// Whether a client with this certificate gets a CONNACK.
async fn is_served(certificates: &Certificates, address: SocketAddr, client: Option<&str>) -> bool {
    let socket = TcpStream::connect(address).await.unwrap();
    let Ok(mut stream) = certificates.over(socket, client).await else {
        return false;
    };
    // TLS 1.3 tells a client of its certificate after the handshake.
    let connect = connect_bytes(ProtocolVersion::V5, "c", 60);
    if stream.write_all(&connect).await.is_err() {
        return false;
    }
    let _ = stream.write_all(&[0xe0, 0x00]).await;
    closed(&mut stream).await.first() == Some(&0x20)
}

#[test]
fn clients_speak_through_tls_in_packets_of_any_size() {
    let certificates = Certificates::new();
    let broker = ListenerBroker::start(settings(), &[certificates.listener(ListenerKind::Tls)]);
    broker.run(async {
        let socket = TcpStream::connect(broker.addresses[0]).await.unwrap();
        let mut client = connected(certificates.over(socket, None).await.unwrap(), "c").await;
        for len in [0, 100, 20_000, 900_000] {
            echoes(&mut client, &"x".repeat(len)).await;
        }
        client.disconnect().await;
    });
}

#[test]
fn mqtt_is_agreed_on_and_what_is_no_tls_is_closed() {
    let certificates = Certificates::new();
    let broker = ListenerBroker::start(
        MqttSettings {
            connect_timeout: Duration::from_secs(1),
            ..settings()
        },
        &[
            certificates.listener(ListenerKind::Tls),
            certificates.listener(ListenerKind::Wss),
        ],
    );
    broker.run(async {
        let with = async |listener: usize, protocols: &[&str]| {
            let socket = TcpStream::connect(broker.addresses[listener]).await.unwrap();
            certificates.with(socket, "ca", None, protocols).await
        };
        let agreed = with(0, &["x-other", "mqtt"]).await.unwrap();
        assert_eq!(agreed.get_ref().1.alpn_protocol(), Some(&b"mqtt"[..]));
        let agreed = with(1, &["h2", "http/1.1"]).await.unwrap();
        assert_eq!(agreed.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(with(0, &[]).await.unwrap().get_ref().1.alpn_protocol(), None);
        assert!(with(0, &["h2"]).await.is_err());
        // Plain MQTT gets an alert of TLS and no packet.
        let plain = answer(broker.addresses[0], &connect_bytes(ProtocolVersion::V5, "c", 60)).await;
        assert_ne!(plain.first(), Some(&0x20), "{plain:?}");
        // Half a handshake, and then silence.
        assert_eq!(answer(broker.addresses[0], b"\x16\x03\x01\x02\x00\x01").await, b"");
    });
}

#[test]
fn certificates_of_clients_are_asked_for_and_verified() {
    let certificates = Certificates::new();
    certificates.make("device", Some("ca"));
    certificates.make("stranger", None);
    let auth = |client_auth: ClientAuth| MqttListenerSettings {
        client_auth,
        client_ca_file: Some(certificates.file("ca.crt")),
        ..certificates.listener(ListenerKind::Tls)
    };
    let broker = ListenerBroker::start(settings(), &ClientAuth::ALL.map(auth));
    broker.run(async {
        for (auth, address) in ClientAuth::ALL.into_iter().zip(&broker.addresses) {
            for (client, served) in [
                (Some("device"), true),
                (None, auth != ClientAuth::Required),
                // Nobody asks for it without `client_auth`.
                (Some("stranger"), auth == ClientAuth::None),
            ] {
                assert_eq!(
                    is_served(&certificates, *address, client).await,
                    served,
                    "{auth:?} {client:?}"
                );
            }
        }
    });
}

#[test]
fn a_revoked_certificate_is_refused_and_the_list_is_read_again_when_it_changes() {
    let certificates = Certificates::new();
    for name in ["good", "bad", "later"] {
        certificates.make(name, Some("ca"));
    }
    certificates.revoke(&["bad"]);
    let broker = ListenerBroker::start(
        settings(),
        &[MqttListenerSettings {
            client_auth: ClientAuth::Required,
            client_ca_file: Some(certificates.file("ca.crt")),
            crl_file: Some(certificates.file("crl")),
            ..certificates.listener(ListenerKind::Tls)
        }],
    );
    broker.run(async {
        let served = async |name: &str| is_served(&certificates, broker.addresses[0], Some(name)).await;
        assert!(served("good").await && served("later").await);
        assert!(!served("bad").await);
        certificates.revoke(&["bad", "later"]);
        // Files are looked at once per second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert!(served("good").await);
        assert!(!served("later").await && !served("bad").await);
    });
}

#[test]
fn a_renewed_certificate_is_used_for_new_connections_and_a_broken_one_changes_nothing() {
    let certificates = Certificates::new();
    certificates.make("other-ca", None);
    certificates.make("renewed", Some("other-ca"));
    let broker = ListenerBroker::start(settings(), &[certificates.listener(ListenerKind::Tls)]);
    broker.run(async {
        let with = async |ca: &str| {
            let socket = TcpStream::connect(broker.addresses[0]).await.unwrap();
            certificates.with(socket, ca, None, &[]).await
        };
        let mut before = connected(with("ca").await.unwrap(), "before").await;
        std::fs::write(certificates.file("server.crt"), "broken").unwrap();
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert!(with("ca").await.is_ok());
        for end in ["key", "crt"] {
            let (from, to) = (format!("renewed.{end}"), format!("server.{end}"));
            std::fs::copy(certificates.file(&from), certificates.file(&to)).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(1100)).await;
        assert!(with("ca").await.is_err());
        let mut after = connected(with("other-ca").await.unwrap(), "after").await;
        echoes(&mut after, "new").await;
        after.disconnect().await;
        echoes(&mut before, "old").await;
    });
}
