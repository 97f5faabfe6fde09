//! A broker on a simulated disk, and a client that says exactly what it is told.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use thalweg_config::AuthConfig;
use thalweg_http::auth::Logins;
use thalweg_log::disk::sim::SimDisk;
use thalweg_log::{EmbeddedLog, Log, LogOptions};
use thalweg_mqtt::{Broker, BrokerEnvironment, MqttSettings, serve_tcp};
use thalweg_mqtt_wire::encode::{self, ConnectRequest, PropertyWriter, PublishHead, WillRequest};
use thalweg_mqtt_wire::{
    ConnAck, DecodeContext, FixedHeader, Packet, PacketKind, PropertyId, ProtocolVersion, Publish, QoS, ReasonCode,
    Sender, SubscribeOptions,
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

/// How long anything may take that must happen.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long nothing must happen.
const SILENCE: Duration = Duration::from_millis(150);
/// The same for what would come at once.
const QUICK_SILENCE: Duration = Duration::from_millis(20);

/// A broker, and the disk that outlives it.
pub struct TestBroker {
    pub disk: SimDisk,
    settings: MqttSettings,
    auth: AuthConfig,
    running: Option<RunningBroker>,
}

struct RunningBroker {
    broker: Arc<Broker>,
    runtime: Runtime,
    address: SocketAddr,
}

/// A broker on what the disk has.
pub async fn open_broker(disk: SimDisk, settings: MqttSettings) -> Arc<Broker> {
    open_broker_with(disk, settings, BrokerEnvironment::default()).await
}

async fn open_broker_with(disk: SimDisk, settings: MqttSettings, environment: BrokerEnvironment) -> Arc<Broker> {
    let options = LogOptions {
        folder: "log".to_owned(),
        file_bytes: 4 << 20,
        first_file_bytes: 4 << 20,
        spare: 1,
        min_free_bytes: Some(1 << 20),
        scrub: Duration::ZERO,
        ..LogOptions::default()
    };
    let log: Arc<dyn Log> = Arc::new(EmbeddedLog::open(Arc::new(disk), 1, &options).unwrap());
    Broker::open_with(log, settings, environment).await.unwrap()
}

impl TestBroker {
    pub fn start() -> TestBroker {
        TestBroker::with(MqttSettings::default())
    }

    pub fn with(settings: MqttSettings) -> TestBroker {
        let mut broker = TestBroker {
            disk: SimDisk::new(1, 1 << 30),
            settings,
            auth: AuthConfig::default(),
            running: None,
        };
        broker.start_again();
        broker
    }

    /// A broker on a disk whose faults follow a seed.
    pub fn start_on(seed: u64) -> TestBroker {
        let mut broker = TestBroker {
            disk: SimDisk::new(seed, 1 << 30),
            settings: MqttSettings::default(),
            auth: AuthConfig::default(),
            running: None,
        };
        broker.start_again();
        broker
    }

    /// A broker with logins.
    pub fn with_logins(settings: MqttSettings, auth: AuthConfig) -> TestBroker {
        let mut broker = TestBroker {
            disk: SimDisk::new(1, 1 << 30),
            settings,
            auth,
            running: None,
        };
        broker.start_again();
        broker
    }

    fn start_again(&mut self) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let (disk, settings, auth) = (self.disk.clone(), self.settings.clone(), self.auth.clone());
        let (broker, address) = runtime.block_on(async move {
            let logins = Logins::load(&auth, None).unwrap().authorizer();
            let environment = BrokerEnvironment {
                logins,
                ..BrokerEnvironment::default()
            };
            let broker = open_broker_with(disk, settings, environment).await;
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            tokio::spawn(serve_tcp(broker.clone(), listener));
            (broker, address)
        });
        self.running = Some(RunningBroker {
            broker,
            runtime,
            address,
        });
    }

    /// Ends the process as kill -9 does: what was written stays, what was in memory is gone.
    pub fn kill(&mut self) {
        self.disk.kill();
        drop(self.running.take());
        self.start_again();
    }

    /// Takes the power away: what was not synced is gone, too.
    pub fn cut_power(&mut self) {
        self.disk.power_cut();
        drop(self.running.take());
        self.start_again();
    }

    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        self.running.as_ref().unwrap().runtime.block_on(future)
    }

    pub fn broker(&self) -> &Arc<Broker> {
        &self.running.as_ref().unwrap().broker
    }

    pub fn address(&self) -> SocketAddr {
        self.running.as_ref().unwrap().address
    }

    /// A client of 5.0 whose session lasts an hour.
    pub async fn stored_client(&self, client_id: &str) -> TestClient {
        let (client, connack) = self
            .connect(&ConnectSpec {
                client_id,
                ..ConnectSpec::stored()
            })
            .await;
        assert_eq!(connack.reason, ReasonCode::Success);
        client
    }

    /// A client of 5.0 whose session ends with its connection.
    pub async fn client(&self, client_id: &str) -> TestClient {
        let spec = ConnectSpec {
            client_id,
            clean_start: true,
            expiry: 0,
            ..ConnectSpec::stored()
        };
        self.connect(&spec).await.0
    }

    pub async fn connect(&self, spec: &ConnectSpec<'_>) -> (TestClient, ConnAck) {
        let mut client = TestClient::open(self.address(), spec.version).await;
        let connack = client.connect(spec).await;
        (client, connack)
    }
}

/// What a CONNECT says.
#[derive(Clone, Copy)]
pub struct ConnectSpec<'a> {
    pub version: ProtocolVersion,
    pub client_id: &'a str,
    pub clean_start: bool,
    pub expiry: u32,
    pub receive_maximum: u16,
    pub will: Option<WillSpec<'a>>,
    /// User name and password.
    pub login: Option<(&'a str, &'a str)>,
}

#[derive(Clone, Copy)]
pub struct WillSpec<'a> {
    pub topic: &'a str,
    pub payload: &'a str,
    pub qos: QoS,
    pub retain: bool,
    /// Seconds.
    pub delay: u32,
}

impl ConnectSpec<'_> {
    pub fn stored() -> ConnectSpec<'static> {
        ConnectSpec {
            version: ProtocolVersion::V5,
            client_id: "",
            clean_start: false,
            expiry: 3600,
            receive_maximum: 0,
            will: None,
            login: None,
        }
    }
}

/// What a client speaks through.
pub trait TestStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> TestStream for S {}

pub struct TestClient {
    socket: Box<dyn TestStream>,
    buffer: BytesMut,
    /// Packets that came before one that was waited for.
    aside: VecDeque<Packet>,
    version: ProtocolVersion,
    next_id: u16,
}

impl TestClient {
    pub async fn open(address: SocketAddr, version: ProtocolVersion) -> TestClient {
        TestClient::over(TcpStream::connect(address).await.unwrap(), version)
    }

    /// Sends CONNECT. Returns the answer.
    pub async fn connect(&mut self, spec: &ConnectSpec<'_>) -> ConnAck {
        self.send_connect(spec).await;
        match self.packet().await {
            Packet::ConnAck(connack) => *connack,
            other => panic!("{other:?}"),
        }
    }

    pub async fn send_connect(&mut self, spec: &ConnectSpec<'_>) {
        let mut properties = PropertyWriter::default();
        if spec.version.is_5() {
            properties.number(PropertyId::SessionExpiryInterval, spec.expiry);
            if spec.receive_maximum > 0 {
                properties.two(PropertyId::ReceiveMaximum, spec.receive_maximum);
            }
        }
        let mut will_properties = PropertyWriter::default();
        if let Some(will) = spec.will.filter(|will| will.delay > 0) {
            will_properties.number(PropertyId::WillDelayInterval, will.delay);
        }
        let will = spec.will.map(|will| WillRequest {
            topic: will.topic,
            payload: will.payload.as_bytes(),
            qos: will.qos,
            retain: will.retain,
            properties: will_properties.bytes(),
        });
        self.send(|out| {
            encode::connect(
                out,
                &ConnectRequest {
                    version: spec.version,
                    clean_start: spec.clean_start,
                    keep_alive: 60,
                    client_id: spec.client_id,
                    user_name: spec.login.map(|(name, _)| name),
                    password: spec.login.map(|(_, password)| password.as_bytes()),
                    will,
                    properties: properties.bytes(),
                },
            );
        })
        .await;
    }

    pub fn over(socket: impl TestStream + 'static, version: ProtocolVersion) -> TestClient {
        TestClient {
            socket: Box::new(socket),
            buffer: BytesMut::new(),
            aside: VecDeque::new(),
            version,
            next_id: 0,
        }
    }

    pub async fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        write(&mut out);
        self.socket.write_all(&out).await.unwrap();
    }

    /// The next packet.
    pub async fn packet(&mut self) -> Packet {
        match self.aside.pop_front() {
            Some(packet) => packet,
            None => self.arrival().await,
        }
    }

    /// The PUBREL of a message. Messages that come before it are next.
    pub async fn pubrel(&mut self, id: u16) {
        let mut aside = Vec::new();
        loop {
            match self.packet().await {
                Packet::PubRel(ack) => {
                    assert_eq!((ack.packet_id, ack.reason), (id, ReasonCode::Success));
                    break;
                }
                packet => aside.push(packet),
            }
        }
        aside.into_iter().rev().for_each(|packet| self.aside.push_front(packet));
    }

    async fn arrival(&mut self) -> Packet {
        tokio::time::timeout(PATIENCE, self.read())
            .await
            .expect("no packet came")
            .expect("the broker closed the connection")
    }

    /// Waits for the end of the connection; returns the packets before it.
    pub async fn end(&mut self) -> Vec<Packet> {
        let mut packets = Vec::new();
        let ended = async {
            while let Some(packet) = self.read().await {
                packets.push(packet);
            }
        };
        tokio::time::timeout(PATIENCE, ended)
            .await
            .expect("the broker does not close the connection");
        packets
    }

    /// Nothing comes.
    pub async fn silence(&mut self) {
        assert!(self.aside.is_empty(), "{:?}", self.aside);
        if let Ok(packet) = tokio::time::timeout(SILENCE, self.read()).await {
            panic!("{packet:?}");
        }
    }

    async fn read(&mut self) -> Option<Packet> {
        loop {
            if let Some(header) = FixedHeader::parse(&self.buffer, usize::MAX).unwrap()
                && self.buffer.len() >= header.packet_len()
            {
                let packet = self.buffer.split_to(header.packet_len()).freeze();
                let context = DecodeContext {
                    version: self.version,
                    sender: Sender::Server,
                    strict_utf8: false,
                };
                return Some(Packet::decode(packet, &header, context).unwrap());
            }
            if self.socket.read_buf(&mut self.buffer).await.unwrap_or(0) == 0 {
                return None;
            }
        }
    }

    fn id(&mut self) -> u16 {
        self.next_id += 1;
        self.next_id
    }

    pub async fn subscribe(&mut self, filter: &str, qos: QoS) -> ReasonCode {
        self.subscribe_with(
            filter,
            SubscribeOptions {
                qos,
                ..SubscribeOptions::default()
            },
        )
        .await
    }

    pub async fn subscribe_with(&mut self, filter: &str, options: SubscribeOptions) -> ReasonCode {
        let (id, version) = (self.id(), self.version);
        self.send(|out| encode::subscribe(out, version, id, &[], &[(filter, options)]))
            .await;
        let Packet::SubAck(suback) = self.packet().await else {
            panic!("no SUBACK");
        };
        assert_eq!((suback.packet_id, suback.codes.len()), (id, 1));
        suback.codes[0]
    }

    pub async fn publish_as(&mut self, id: u16, topic: &str, payload: &str, qos: QoS, dup: bool) {
        let version = self.version;
        self.send(|out| {
            let head = PublishHead {
                qos,
                dup,
                packet_id: id,
                topic,
                ..PublishHead::default()
            };
            head.write(out, version, payload.len());
            out.extend_from_slice(payload.as_bytes());
        })
        .await;
    }

    /// Publishes a retained message with QoS 1. Returns the code.
    pub async fn retain(&mut self, topic: &str, payload: &str) -> ReasonCode {
        let (id, version) = (self.id(), self.version);
        self.send(|out| {
            let head = PublishHead {
                qos: QoS::AtLeastOnce,
                retain: true,
                packet_id: id,
                topic,
                ..PublishHead::default()
            };
            head.write(out, version, payload.len());
            out.extend_from_slice(payload.as_bytes());
        })
        .await;
        match self.packet().await {
            Packet::PubAck(ack) => ack.reason,
            other => panic!("{other:?}"),
        }
    }

    /// Closes the connection without DISCONNECT.
    pub fn break_off(self) {
        drop(self.socket);
    }

    /// Publishes, and completes what the QoS asks for.
    pub async fn publish(&mut self, topic: &str, payload: &str, qos: QoS) -> ReasonCode {
        let id = self.id();
        self.publish_as(id, topic, payload, qos, false).await;
        match qos {
            QoS::AtMostOnce => ReasonCode::Success,
            QoS::AtLeastOnce => {
                let Packet::PubAck(ack) = self.packet().await else {
                    panic!("no PUBACK")
                };
                assert_eq!(ack.packet_id, id);
                ack.reason
            }
            QoS::ExactlyOnce => {
                let Packet::PubRec(ack) = self.packet().await else {
                    panic!("no PUBREC")
                };
                assert_eq!(ack.packet_id, id);
                self.ack(PacketKind::PubRel, id).await;
                let Packet::PubComp(done) = self.packet().await else {
                    panic!("no PUBCOMP")
                };
                assert_eq!((done.packet_id, done.reason), (id, ReasonCode::Success));
                ack.reason
            }
        }
    }

    pub async fn ack(&mut self, kind: PacketKind, id: u16) {
        let version = self.version;
        self.send(|out| encode::ack(out, version, kind, id, ReasonCode::Success, &[]))
            .await;
    }

    /// The next packet, which must be a PUBLISH. It is not acknowledged.
    pub async fn message(&mut self) -> Publish {
        match self.packet().await {
            Packet::Publish(publish) => publish,
            other => panic!("{other:?}"),
        }
    }

    /// The next message, with everything that its QoS asks for.
    pub async fn take(&mut self) -> (String, String) {
        let publish = self.message().await;
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.ack(PacketKind::PubAck, publish.packet_id).await,
            QoS::ExactlyOnce => {
                self.ack(PacketKind::PubRec, publish.packet_id).await;
                self.pubrel(publish.packet_id).await;
                self.ack(PacketKind::PubComp, publish.packet_id).await;
            }
        }
        (publish.topic().to_owned(), text(&publish))
    }

    /// Bytes as they come: at least one if so many are expected, else none before it is clear that none come.
    pub async fn bytes_if_any(&mut self, expected: usize) -> Option<Vec<u8>> {
        if self.buffer.is_empty() {
            let patience = if expected > 0 { PATIENCE } else { QUICK_SILENCE };
            let read = tokio::time::timeout(patience, self.socket.read_buf(&mut self.buffer)).await;
            read.ok()?.unwrap();
        }
        let bytes = self.buffer.split().to_vec();
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Whether a packet comes before it is clear that none does.
    pub async fn has_packet(&mut self) -> bool {
        if self.aside.is_empty()
            && let Ok(Some(packet)) = tokio::time::timeout(SILENCE, self.read()).await
        {
            self.aside.push_back(packet);
        }
        !self.aside.is_empty()
    }

    /// The next message, if one comes before it is clear that none does.
    pub async fn take_if_any(&mut self) -> Option<(String, String)> {
        if self.aside.is_empty() {
            let packet = tokio::time::timeout(SILENCE, self.read()).await.ok()??;
            self.aside.push_back(packet);
        }
        Some(self.take().await)
    }

    pub async fn disconnect(mut self) {
        let version = self.version;
        self.send(|out| encode::disconnect(out, version, ReasonCode::Success, &[]))
            .await;
        self.end().await;
    }
}

pub fn text(publish: &Publish) -> String {
    String::from_utf8(publish.payload().to_vec()).unwrap()
}
