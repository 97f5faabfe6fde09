//! Sockets: accepts connections and moves bytes between them and their clients.

mod settings;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use thalweg_kit::clock;
use thalweg_mqtt_wire::encode::PropertyWriter;
use thalweg_mqtt_wire::{Connect, FixedHeader, PacketKind, PropertyId, ProtocolVersion, ReasonCode, encode};
use tokio::net::{TcpListener, TcpStream};

use crate::broker::Broker;
use crate::client::{ClientConnection, ConnectRequest, accept};
use crate::outbox::{ConnectionEnd, Outbox, OutboxDuty};

pub use settings::{CertificateIdentity, ClientAuth, ListenerKind, MqttListenerSettings};

/// Bytes that are read at a time.
const READ_BYTES: usize = 16 << 10;
/// A CONNECT is at most this large.
const CONNECT_MAX: usize = 256 << 10;
/// How long a client may take for the last bytes that are sent to it.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Serves clients that connect over TCP, for ever.
pub async fn serve_tcp(broker: Arc<Broker>, listener: TcpListener) -> io::Result<()> {
    loop {
        let (socket, _) = listener.accept().await?;
        let broker = broker.clone();
        tokio::spawn(async move { serve_socket(broker, socket).await });
    }
}

async fn serve_socket(broker: Arc<Broker>, socket: TcpStream) {
    // Answers are written together, so nothing is gained by waiting for more.
    let _ = socket.set_nodelay(true);
    let socket = Arc::new(socket);
    let outbox = Arc::new(Outbox::new(Some(socket.clone()), broker.settings.send_buffer));
    let mut connection = SocketConnection {
        broker,
        socket,
        outbox,
        buffer: BytesMut::new(),
    };
    let (end, version) = connection.serve().await;
    connection.finish(end, version).await;
}

struct SocketConnection {
    broker: Arc<Broker>,
    socket: Arc<TcpStream>,
    outbox: Arc<Outbox>,
    /// What was read of packets that are not whole.
    buffer: BytesMut,
}

impl SocketConnection {
    async fn serve(&mut self) -> (ConnectionEnd, Option<ProtocolVersion>) {
        let timeout = self.broker.settings.connect_timeout;
        let Ok(Some((packet, header))) = tokio::time::timeout(timeout, self.first_packet()).await else {
            return (ConnectionEnd::Closed, None);
        };
        let connect = Connect::decode(&packet, &header, self.broker.settings.strict_utf8);
        let request = ConnectRequest {
            broker: self.broker.clone(),
            outbox: self.outbox.clone(),
        };
        let Some(mut client) = accept(request, connect).await else {
            return (ConnectionEnd::Closed, None);
        };
        let version = client.version();
        let end = self.serve_client(&mut client).await;
        client.leave();
        (end, Some(version))
    }

    /// The first packet, if it is a CONNECT.
    async fn first_packet(&mut self) -> Option<(Bytes, FixedHeader)> {
        let max = CONNECT_MAX.min(self.broker.settings.max_packet_size);
        loop {
            if let Some(first) = self.buffer.first()
                && PacketKind::of(*first) != Some(PacketKind::Connect)
            {
                return None;
            }
            if let Some(header) = FixedHeader::parse(&self.buffer, max).ok()?
                && self.buffer.len() >= header.packet_len()
            {
                return Some((self.buffer.split_to(header.packet_len()).freeze(), header));
            }
            if self.read().await.ok()? == 0 {
                return None;
            }
        }
    }

    /// Handles packets until the connection ends.
    async fn serve_client(&mut self, client: &mut ClientConnection) -> ConnectionEnd {
        // Half as much again as the client has promised [MQTT-3.1.2-22].
        let patience = Duration::from_millis(u64::from(client.keep_alive) * 1500);
        let mut last_packet = clock::tokio_now();
        loop {
            let handled = self.packets(client);
            client.flush();
            match handled {
                Ok(0) => {}
                Ok(_) => last_packet = clock::tokio_now(),
                Err(end) => return end,
            }
            let is_blocked = match self.outbox.duty() {
                OutboxDuty::End(end) => return end,
                OutboxDuty::WaitForSocket => true,
                OutboxDuty::Write | OutboxDuty::Nothing => false,
            };
            let silence = async {
                match patience.is_zero() {
                    true => std::future::pending().await,
                    false => tokio::time::sleep_until(last_packet + patience).await,
                }
            };
            let readable = async {
                client.may_read().await;
                self.socket.readable().await
            };
            let event = tokio::select! {
                biased;
                () = self.outbox.changed() => SocketEvent::Outbox,
                writable = self.socket.writable(), if is_blocked => SocketEvent::Writable(writable),
                readable = readable => SocketEvent::Readable(readable),
                () = silence => SocketEvent::Silence,
            };
            match event {
                SocketEvent::Outbox => {}
                SocketEvent::Writable(Ok(())) => {
                    self.outbox.unblocked();
                }
                SocketEvent::Readable(Ok(())) => match self.try_read() {
                    Ok(0) | Err(_) => return ConnectionEnd::Closed,
                    Ok(_) => {}
                },
                SocketEvent::Writable(Err(_)) | SocketEvent::Readable(Err(_)) => return ConnectionEnd::Closed,
                SocketEvent::Silence => {
                    let sentence = "no packet came for one and a half times the keep alive".to_owned();
                    return ConnectionEnd::Code(ReasonCode::KeepAliveTimeout, sentence);
                }
            }
        }
    }

    /// Handles all packets that are whole. Returns their number.
    fn packets(&mut self, client: &mut ClientConnection) -> Result<usize, ConnectionEnd> {
        let mut count = 0;
        while let Some(header) = FixedHeader::parse(&self.buffer, self.broker.settings.max_packet_size)? {
            if self.buffer.len() < header.packet_len() {
                break;
            }
            let packet = self.buffer.split_to(header.packet_len()).freeze();
            client.packet(packet, &header)?;
            count += 1;
        }
        if self.buffer.is_empty() {
            // An idle connection holds no buffer.
            self.buffer = BytesMut::new();
        }
        Ok(count)
    }

    /// Reads what has come. 0: the client has closed the connection. Nothing may have come after all, which counts as 1.
    fn try_read(&mut self) -> io::Result<usize> {
        self.buffer.reserve(READ_BYTES);
        match self.socket.try_read_buf(&mut self.buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(1),
            read => read,
        }
    }

    /// Waits for bytes.
    async fn read(&mut self) -> io::Result<usize> {
        self.socket.readable().await?;
        self.try_read()
    }

    /// Sends what is left, and why the connection ends.
    async fn finish(&self, end: ConnectionEnd, version: Option<ProtocolVersion>) {
        let mut last = self.outbox.take();
        if let (ConnectionEnd::Code(code, sentence), Some(version)) = (&end, version)
            && version.is_5()
        {
            let mut properties = PropertyWriter::default();
            properties.text(PropertyId::ReasonString, sentence);
            encode::disconnect(&mut last, version, *code, properties.bytes());
        }
        let written = async {
            let mut rest = last.as_slice();
            while !rest.is_empty() {
                self.socket.writable().await?;
                match self.socket.try_write(rest) {
                    Ok(len) => rest = rest.get(len..).unwrap_or_default(),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        let _: Result<io::Result<()>, _> = tokio::time::timeout(LAST_WRITE, written).await;
    }
}

enum SocketEvent {
    Outbox,
    Writable(io::Result<()>),
    Readable(io::Result<()>),
    Silence,
}
