//! The PROXY header of a load balancer.

use std::time::Duration;

use thalweg_mqtt::{ListenerKind, MqttListenerSettings, MqttSettings};
use thalweg_mqtt_wire::ProtocolVersion;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::certificates::Certificates;
use super::{ListenerBroker, answer, connect_bytes, connected, echoes, listener, settings};

const V2_SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

fn headers() -> Vec<Vec<u8>> {
    let v2 = |command: u8, family: u8, rest: &[u8]| {
        let len = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [V2_SIGNATURE, &[command, family], &len, rest].concat()
    };
    let v4 = [10, 0, 0, 1, 10, 0, 0, 2, 0x10, 0x00, 0x07, 0x5b];
    // An extension: the name that the client asked for.
    let extended = [&v4[..], &[0x02, 0x00, 0x05], b"plant"].concat();
    let mut v6 = [0; 36];
    v6[15] = 1;
    vec![
        b"PROXY TCP4 10.0.0.1 10.0.0.2 4096 1883\r\n".to_vec(),
        b"PROXY TCP6 2001:db8::1 2001:db8::2 4096 1883\r\n".to_vec(),
        b"PROXY UNKNOWN\r\n".to_vec(),
        v2(0x21, 0x11, &v4),
        v2(0x21, 0x11, &extended),
        v2(0x21, 0x21, &v6),
        // A health check of the load balancer.
        v2(0x20, 0x00, &[]),
    ]
}

#[test]
fn clients_of_every_kind_connect_behind_a_header_that_comes_whole_or_in_pieces() {
    let certificates = Certificates::new();
    let behind = |kind: ListenerKind| MqttListenerSettings {
        proxy_protocol: true,
        ..certificates.listener(kind)
    };
    let broker = ListenerBroker::start(settings(), &ListenerKind::ALL.map(behind));
    broker.run(async {
        for header in headers() {
            for pieces in [header.chunks(1000), header.chunks(5)] {
                for (kind, address) in ListenerKind::ALL.into_iter().zip(&broker.addresses) {
                    let mut socket = TcpStream::connect(address).await.unwrap();
                    socket.set_nodelay(true).unwrap();
                    for piece in pieces.clone() {
                        socket.write_all(piece).await.unwrap();
                        tokio::task::yield_now().await;
                    }
                    let mut client = match kind {
                        ListenerKind::Tcp => connected(socket, "c").await,
                        ListenerKind::Tls => connected(certificates.over(socket, None).await.unwrap(), "c").await,
                        ListenerKind::Ws => connected(super::web::bytes(socket).await, "c").await,
                        ListenerKind::Wss => {
                            let stream = certificates.over(socket, None).await.unwrap();
                            connected(super::web::bytes(stream).await, "c").await
                        }
                    };
                    echoes(&mut client, "through").await;
                    client.disconnect().await;
                }
            }
        }
    });
}

#[test]
fn who_sends_no_header_or_half_of_one_is_closed() {
    let broker = ListenerBroker::start(
        MqttSettings {
            connect_timeout: Duration::from_millis(300),
            ..settings()
        },
        &[MqttListenerSettings {
            proxy_protocol: true,
            ..listener(ListenerKind::Tcp)
        }],
    );
    broker.run(async {
        let connect = connect_bytes(ProtocolVersion::V5, "c", 60);
        let garbage = |bytes: &[u8]| [bytes, &connect].concat();
        for bytes in [
            garbage(b""),
            garbage(b"PROXY TCP4 somewhere\r\n"),
            garbage(&[b'P'; 200]),
            garbage(&[V2_SIGNATURE, &[0x11, 0x11, 0, 0]].concat()),
            garbage(&[V2_SIGNATURE, &[0x21, 0x11, 0xff, 0xff]].concat()),
            // Half of one, and then silence.
            b"".to_vec(),
            b"PROXY TC".to_vec(),
            [V2_SIGNATURE, &[0x21, 0x11, 0, 12, 1]].concat(),
        ] {
            assert_eq!(answer(broker.addresses[0], &bytes).await, b"", "{bytes:?}");
        }
    });
}
