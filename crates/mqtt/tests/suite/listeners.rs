//! The listeners of a broker, spoken to over real sockets.

mod accepting;
mod certificates;
mod limits;
mod proxy;
mod stop;
mod tls;
mod web;
mod websocket;

use std::net::SocketAddr;
use std::time::Duration;

use thalweg_log::disk::sim::SimDisk;
use thalweg_mqtt::{ListenerKind, MqttListenerSettings, MqttServer, MqttSettings};
use thalweg_mqtt_wire::{Packet, ProtocolVersion, QoS, ReasonCode};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::support::{ConnectSpec, TestClient, TestStream, open_broker};

/// How long anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// What a broker has for its stop.
const STOP_TIME: Duration = Duration::from_secs(10);

/// A broker with its listeners.
pub struct ListenerBroker {
    runtime: Runtime,
    pub disk: SimDisk,
    settings: MqttSettings,
    pub addresses: Vec<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    served: Option<JoinHandle<()>>,
}

/// What a test changes, and who may connect.
pub fn settings() -> MqttSettings {
    MqttSettings {
        anonymous: true,
        ..MqttSettings::default()
    }
}

/// A listener on a free port.
pub fn listener(kind: ListenerKind) -> MqttListenerSettings {
    MqttListenerSettings::new(kind, "127.0.0.1:0")
}

impl ListenerBroker {
    pub fn start(settings: MqttSettings, listeners: &[MqttListenerSettings]) -> ListenerBroker {
        ListenerBroker::on(SimDisk::new(1, 1 << 30), settings, listeners)
    }

    /// A broker with one listener for TCP.
    pub fn tcp(settings: MqttSettings) -> ListenerBroker {
        ListenerBroker::start(settings, &[listener(ListenerKind::Tcp)])
    }

    fn on(disk: SimDisk, settings: MqttSettings, listeners: &[MqttListenerSettings]) -> ListenerBroker {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (stop, stopped) = oneshot::channel();
        let opening = open_broker(disk.clone(), settings.clone());
        let (addresses, served) = runtime.block_on(async {
            let broker = opening.await;
            let server = MqttServer::bind(broker.clone(), listeners).await.unwrap();
            let addresses = server.addresses();
            let served = tokio::spawn(async move {
                server.serve(async { drop(stopped.await) }, STOP_TIME).await;
                broker.shut_down().await;
            });
            (addresses, served)
        });
        ListenerBroker {
            runtime,
            disk,
            settings,
            addresses,
            stop: Some(stop),
            served: Some(served),
        }
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Begins the stop.
    pub fn begin_stop(&mut self) {
        drop(self.stop.take());
    }

    /// Waits for the end of the stop.
    pub fn stopped(&mut self) {
        let served = self.served.take().unwrap();
        self.runtime
            .block_on(async { tokio::time::timeout(2 * STOP_TIME, served).await })
            .expect("the broker does not stop")
            .unwrap();
    }

    /// The next process on the same disk.
    pub fn again(self, listeners: &[MqttListenerSettings]) -> ListenerBroker {
        let (disk, settings) = (self.disk.clone(), self.settings.clone());
        drop(self);
        disk.kill();
        ListenerBroker::on(disk, settings, listeners)
    }

    pub async fn open(&self, version: ProtocolVersion) -> TestClient {
        TestClient::open(self.addresses[0], version).await
    }
}

/// A CONNECT of a client whose session ends with its connection.
pub fn passing(client_id: &str) -> ConnectSpec<'_> {
    ConnectSpec {
        client_id,
        clean_start: true,
        expiry: 0,
        ..ConnectSpec::stored()
    }
}

pub fn passing_in(version: ProtocolVersion, client_id: &str) -> ConnectSpec<'_> {
    ConnectSpec {
        version,
        ..passing(client_id)
    }
}

/// Connects a client through a stream.
pub async fn connected(stream: impl TestStream + 'static, client_id: &str) -> TestClient {
    let mut client = TestClient::over(stream, ProtocolVersion::V5);
    assert_eq!(client.connect(&passing(client_id)).await.reason, ReasonCode::Success);
    client
}

/// A client gets its own message through the broker.
pub async fn echoes(client: &mut TestClient, payload: &str) {
    client.subscribe("echo", QoS::AtLeastOnce).await;
    client.publish_as(100, "echo", payload, QoS::AtLeastOnce, false).await;
    let mut came = Vec::new();
    for _ in 0..2 {
        match client.packet().await {
            Packet::PubAck(ack) => assert_eq!(ack.packet_id, 100),
            Packet::Publish(publish) => {
                client
                    .ack(thalweg_mqtt_wire::PacketKind::PubAck, publish.packet_id)
                    .await;
                came.push(crate::support::text(&publish));
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(came == [payload], "{} bytes", came[0].len());
}

/// Waits until the broker closes the connection. Returns what came before.
pub async fn closed(stream: &mut (impl AsyncRead + Unpin)) -> Vec<u8> {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut bytes)).await;
    // A reset is an end, too.
    let _ = read.expect("the broker does not close the connection");
    bytes
}

/// The answer to bytes on a connection of their own.
pub async fn answer(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    closed(&mut socket).await
}

/// The bytes of a CONNECT.
pub fn connect_bytes(version: ProtocolVersion, client_id: &str, keep_alive: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let request = thalweg_mqtt_wire::encode::ConnectRequest {
        version,
        clean_start: true,
        keep_alive,
        client_id,
        user_name: None,
        password: None,
        will: None,
        properties: &[],
    };
    thalweg_mqtt_wire::encode::connect(&mut bytes, &request);
    bytes
}

/// The code of the DISCONNECT that a connection ends with.
pub fn disconnect_code(packets: &[Packet]) -> Option<ReasonCode> {
    match packets.last() {
        Some(Packet::Disconnect(disconnect)) => Some(disconnect.reason),
        _ => None,
    }
}
