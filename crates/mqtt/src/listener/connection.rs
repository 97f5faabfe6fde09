//! One connection: moves bytes between its transport and its client until either of them ends it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use thalweg_kit::clock;
use thalweg_mqtt_wire::encode::PropertyWriter;
use thalweg_mqtt_wire::{Connect, ConnectRefusal, FixedHeader, PropertyId, ProtocolVersion, ReasonCode, encode};
use tokio::net::TcpStream;
use tokio::time::Instant;
use tungstenite::protocol::frame::coding::CloseCode;

use super::ListenerContext;
use super::limits::ConnectedEntry;
use super::open::{OpenConnection, open};
use super::transport::{EncodedEvent, Transport, try_read};
use crate::client::{ClientConnection, ConnectRequest, accept};
use crate::outbox::{ConnectionEnd, Outbox, OutboxDuty};

/// How long a client may take for the last bytes that are sent to it, and to close the connection.
const LAST_WRITE: Duration = Duration::from_secs(5);

/// Serves a connection from its first byte to its last.
pub(super) async fn serve_connection(context: Arc<ListenerContext>, socket: TcpStream, peer: SocketAddr) {
    let connecting = context.limits.begin();
    let timeout = context.broker.settings.connect_timeout;
    // In a box that is gone when the client is connected, so that what an idle connection costs is small.
    let opening = Box::pin(tokio::time::timeout(timeout, open(context.clone(), socket, peer)));
    let opened = tokio::select! {
        biased;
        () = connecting.gives_way() => return context.tell_displaced(peer),
        opened = opening => opened,
    };
    let opened = match opened {
        Ok(Ok(opened)) => opened,
        Ok(Err(error)) => return context.tell_failed(peer, &error),
        Err(_) => return tracing::debug!(%peer, "no complete CONNECT came within mqtt.connect_timeout"),
    };
    let OpenConnection {
        transport,
        buffer,
        connect,
        peer,
    } = opened;
    let socket = transport.shared_socket();
    let outbox = Arc::new(Outbox::new(socket, context.broker.settings.send_buffer));
    let (connect, entry) = admit(&context, connect, peer.source, &outbox);
    let request = ConnectRequest {
        broker: context.broker.clone(),
        outbox: outbox.clone(),
        peer,
    };
    let mut connection = SocketConnection {
        context,
        transport,
        outbox,
        buffer,
    };
    let Some(_entry) = entry else {
        // It still counts as one without CONNECT, so those who are refused cannot hold many connections.
        Box::pin(accept(request, connect)).await;
        let finish = connection.finish(LastWords::Refusal, None);
        tokio::select! {
            () = connecting.gives_way() => {}
            () = finish => {}
        }
        return;
    };
    drop(connecting);
    let Some(mut client) = Box::pin(accept(request, connect)).await else {
        return connection.finish(LastWords::Refusal, None).await;
    };
    let version = client.version();
    let last = connection.serve_client(&mut client).await;
    client.leave();
    drop(client);
    connection.finish(last, Some(version)).await;
}

/// Counts the client of a CONNECT, or turns it into a refusal.
fn admit(
    context: &ListenerContext,
    connect: Result<Connect, ConnectRefusal>,
    source: SocketAddr,
    outbox: &Arc<Outbox>,
) -> (Result<Connect, ConnectRefusal>, Option<ConnectedEntry>) {
    let connect = match connect {
        Ok(connect) => connect,
        Err(refusal) => return (Err(refusal), None),
    };
    let version = connect.version;
    if !context.settings.versions.contains(&version) {
        return (Err(ConnectRefusal::Level(version.level())), None);
    }
    match context.limits.admit(&context.count, source.ip(), outbox) {
        Ok(entry) => (Ok(connect), Some(entry)),
        Err(error) => {
            tracing::debug!(%source, "a client is refused: {}", error.what);
            (Err(ConnectRefusal::Code(version, error)), None)
        }
    }
}

struct SocketConnection {
    context: Arc<ListenerContext>,
    transport: Transport,
    outbox: Arc<Outbox>,
    /// What was read of packets that are not complete.
    buffer: BytesMut,
}

/// How a connection ends.
enum LastWords {
    /// The client has closed it, or the network has.
    None,
    /// CONNACK with a code, which is in the outbox.
    Refusal,
    /// DISCONNECT with a code and a sentence, in 5.0.
    Code(ReasonCode, String),
    /// The broker stops.
    Stop,
}

impl From<ConnectionEnd> for LastWords {
    fn from(end: ConnectionEnd) -> LastWords {
        match end {
            ConnectionEnd::Code(code, sentence) => LastWords::Code(code, sentence),
            ConnectionEnd::Closed => LastWords::None,
        }
    }
}

enum SocketEvent {
    Outbox,
    Writable(io::Result<()>),
    Readable(io::Result<()>),
    Encoded(io::Result<EncodedEvent>),
    Silence,
}

impl SocketConnection {
    /// Handles packets until the connection ends.
    async fn serve_client(&mut self, client: &mut ClientConnection) -> LastWords {
        // Half as much again as the client has promised [MQTT-3.1.2-22].
        let patience = Duration::from_millis(u64::from(client.keep_alive) * 1500);
        let mut last_packet = clock::tokio_now();
        loop {
            let handled = self.packets(client);
            client.flush();
            match handled {
                Ok(0) => {}
                Ok(_) => last_packet = clock::tokio_now(),
                Err(end) => return end.into(),
            }
            let is_blocked = match self.outbox.duty() {
                OutboxDuty::End(end) => return end.into(),
                OutboxDuty::Stop => return self.stop(client).await,
                OutboxDuty::WaitForSocket => true,
                OutboxDuty::Write => {
                    self.begin_write();
                    false
                }
                OutboxDuty::Nothing => false,
            };
            let silent_at = (!patience.is_zero()).then(|| last_packet + patience);
            match self.event(client, is_blocked, silent_at).await {
                SocketEvent::Outbox => {}
                SocketEvent::Writable(Ok(())) => {
                    if self.outbox.unblocked() {
                        client.has_room();
                    }
                }
                SocketEvent::Encoded(Ok(EncodedEvent::Written)) => client.has_room(),
                SocketEvent::Readable(Ok(())) => {
                    if let Transport::Plain(socket) = &self.transport
                        && matches!(try_read(socket, &mut self.buffer), Ok(0) | Err(_))
                    {
                        return LastWords::None;
                    }
                }
                SocketEvent::Encoded(Ok(EncodedEvent::Read(len))) if len > 0 => {}
                SocketEvent::Writable(Err(_)) | SocketEvent::Readable(Err(_)) | SocketEvent::Encoded(_) => {
                    return LastWords::None;
                }
                SocketEvent::Silence => {
                    let sentence = "no packet came for one and a half times the keep alive".to_owned();
                    return LastWords::Code(ReasonCode::KeepAliveTimeout, sentence);
                }
            }
        }
    }

    /// Waits for something to do.
    async fn event(&mut self, client: &ClientConnection, is_blocked: bool, silent_at: Option<Instant>) -> SocketEvent {
        let silence = async {
            match silent_at {
                None => std::future::pending().await,
                Some(at) => tokio::time::sleep_until(at).await,
            }
        };
        match &mut self.transport {
            Transport::Plain(socket) => {
                let readable = async {
                    client.may_read().await;
                    socket.readable().await
                };
                tokio::select! {
                    biased;
                    () = self.outbox.changed() => SocketEvent::Outbox,
                    writable = socket.writable(), if is_blocked => SocketEvent::Writable(writable),
                    readable = readable => SocketEvent::Readable(readable),
                    () = silence => SocketEvent::Silence,
                }
            }
            Transport::Encoded(stream) => {
                let mut may_read = std::pin::pin!(client.may_read());
                let mut reads = false;
                let buffer = &mut self.buffer;
                let moved = std::future::poll_fn(|cx| {
                    reads = reads || may_read.as_mut().poll(cx).is_ready();
                    stream.poll(cx, buffer, reads)
                });
                tokio::select! {
                    biased;
                    () = self.outbox.changed() => SocketEvent::Outbox,
                    moved = moved => SocketEvent::Encoded(moved),
                    () = silence => SocketEvent::Silence,
                }
            }
        }
    }

    /// Takes what waits, if what was taken before is written.
    fn begin_write(&mut self) {
        if let Transport::Encoded(stream) = &mut self.transport
            && stream.is_ready()
        {
            stream.send(self.outbox.take());
        }
    }

    /// Handles all packets that are complete. Returns their number.
    fn packets(&mut self, client: &mut ClientConnection) -> Result<usize, ConnectionEnd> {
        let mut count = 0;
        let max = self.context.broker.settings.max_packet_size;
        while let Some(header) = FixedHeader::parse(&self.buffer, max)? {
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

    /// The broker stops: what the client has sent is answered before it is told.
    async fn stop(&self, client: &mut ClientConnection) -> LastWords {
        let deadline = self.context.limits.deadline(LAST_WRITE);
        if tokio::time::timeout_at(deadline, client.settled()).await.is_err() {
            tracing::debug!("the broker stops before all that a client has sent was committed");
        }
        client.flush();
        client.stop();
        LastWords::Stop
    }

    /// Sends what is left, and why the connection ends.
    async fn finish(&mut self, last: LastWords, version: Option<ProtocolVersion>) {
        let ended = match &last {
            LastWords::Code(code, _) => Some(*code),
            LastWords::Stop => Some(ReasonCode::ServerShuttingDown),
            LastWords::None | LastWords::Refusal => None,
        };
        if let Some(code) = ended {
            self.context.broker.counters.ended.add(code.number().into(), 1);
        }
        let mut bytes = self.outbox.close();
        if let Some(version) = version.filter(|version| version.is_5()) {
            self.append_disconnect(&last, version, &mut bytes);
        }
        let code = match last {
            LastWords::Stop => CloseCode::Away,
            LastWords::None | LastWords::Refusal | LastWords::Code(..) => CloseCode::Normal,
        };
        let waits = !matches!(last, LastWords::None) || self.transport.must_close();
        let deadline = self.context.limits.deadline(LAST_WRITE);
        let written = async {
            self.transport.write_last(bytes, code).await?;
            match waits {
                true => self.transport.shut_down().await,
                false => Ok(()),
            }
        };
        let _: Result<io::Result<()>, _> = tokio::time::timeout_at(deadline, written).await;
    }

    fn append_disconnect(&self, last: &LastWords, version: ProtocolVersion, bytes: &mut Vec<u8>) {
        let mut properties = PropertyWriter::default();
        let code = match (last, &self.context.broker.settings.server_reference) {
            (LastWords::None | LastWords::Refusal, _) => return,
            (LastWords::Code(code, sentence), _) => {
                properties.text(PropertyId::ReasonString, sentence);
                *code
            }
            (LastWords::Stop, None) => {
                properties.text(PropertyId::ReasonString, "the broker stops");
                ReasonCode::ServerShuttingDown
            }
            (LastWords::Stop, Some(reference)) => {
                properties.text(
                    PropertyId::ReasonString,
                    "the broker stops; use the server that it names",
                );
                properties.text(PropertyId::ServerReference, reference);
                ReasonCode::UseAnotherServer
            }
        };
        encode::disconnect(bytes, version, code, properties.bytes());
    }
}
