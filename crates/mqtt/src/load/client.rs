//! A client of a load.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Buf as _, BytesMut};
use thalweg_mqtt_wire::encode::{self, ConnectRequest, PropertyWriter, PublishHead};
use thalweg_mqtt_wire::{
    DecodeContext, FixedHeader, Packet, PacketKind, PropertyId, ProtocolVersion, QoS, ReasonCode, Sender,
    SubscribeOptions,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{LoadError, LoadRow, LoadSpec, LoadState};

const CONTEXT: DecodeContext = DecodeContext {
    version: ProtocolVersion::V5,
    sender: Sender::Server,
    strict_utf8: false,
};
const READ_BYTES: usize = 64 << 10;
/// The time of a publish is at the front of its payload.
const TIME_BYTES: usize = 8;

pub(super) struct LoadClient {
    socket: TcpStream,
    buffer: BytesMut,
    out: Vec<u8>,
    address: std::net::SocketAddr,
    topic: String,
    is_stored: bool,
}

impl LoadClient {
    pub async fn connect(
        row: &LoadRow,
        spec: &LoadSpec,
        number: usize,
        is_subscriber: bool,
    ) -> Result<LoadClient, LoadError> {
        let address = spec.address;
        let io = |error| LoadError::Io { address, error };
        let socket = TcpStream::connect(address).await.map_err(io)?;
        socket.set_nodelay(true).map_err(io)?;
        let is_stored = row.is_stored && is_subscriber;
        let mut client = LoadClient {
            socket,
            buffer: BytesMut::new(),
            out: Vec::new(),
            address,
            topic: row.topic(number),
            is_stored,
        };
        let mut properties = PropertyWriter::default();
        if is_stored {
            properties.number(PropertyId::SessionExpiryInterval, 600);
        }
        let role = if is_subscriber { "s" } else { "p" };
        let client_id = format!("load-{}-{role}{number}", row.name);
        encode::connect(
            &mut client.out,
            &ConnectRequest {
                version: ProtocolVersion::V5,
                clean_start: true,
                keep_alive: 0,
                client_id: &client_id,
                user_name: None,
                password: None,
                will: None,
                properties: properties.bytes(),
            },
        );
        client.flush().await?;
        match client.next().await? {
            Some(Packet::ConnAck(connack)) if connack.reason == ReasonCode::Success => Ok(client),
            other => Err(LoadError::Refused(
                address,
                format!("CONNECT was answered by {other:?}"),
            )),
        }
    }

    pub async fn subscribe(&mut self, row: &LoadRow) -> Result<(), LoadError> {
        let options = SubscribeOptions {
            qos: row.qos,
            ..SubscribeOptions::default()
        };
        encode::subscribe(&mut self.out, ProtocolVersion::V5, 1, &[], &[(&row.filter(), options)]);
        self.flush().await?;
        match self.next().await? {
            Some(Packet::SubAck(suback)) if !suback.codes.iter().any(|code| code.is_failure()) => Ok(()),
            other => Err(LoadError::Refused(
                self.address,
                format!("SUBSCRIBE was answered by {other:?}"),
            )),
        }
    }

    /// Publishes as fast as the messages under way allow, until the run is over.
    pub async fn publish(mut self, state: Arc<LoadState>, row: LoadRow, size: usize) -> Result<(), LoadError> {
        let mut payload = vec![b'x'; size.max(TIME_BYTES)];
        match row.qos {
            QoS::AtMostOnce => self.publish_at_most_once(&state, &mut payload).await,
            qos => self.publish_acknowledged(&state, &row, qos, &mut payload).await,
        }
    }

    async fn publish_at_most_once(&mut self, state: &LoadState, payload: &mut [u8]) -> Result<(), LoadError> {
        let mut stop = state.stop.subscribe();
        while !state.is_over.load(Ordering::Relaxed) {
            let permit = tokio::select! {
                permit = state.outstanding.acquire() => permit,
                _ = stop.changed() => return Ok(()),
            };
            let Ok(permit) = permit else { return Ok(()) };
            permit.forget();
            let mut count = 1;
            // All that may be under way now, in one write.
            while count < 256
                && let Ok(permit) = state.outstanding.try_acquire()
            {
                permit.forget();
                count += 1;
            }
            for _ in 0..count {
                self.put(state.nanos(), 0, QoS::AtMostOnce, payload);
            }
            state.published.fetch_add(count, Ordering::Relaxed);
            self.flush().await?;
        }
        Ok(())
    }

    async fn publish_acknowledged(
        &mut self,
        state: &LoadState,
        row: &LoadRow,
        qos: QoS,
        payload: &mut [u8],
    ) -> Result<(), LoadError> {
        let mut stop = state.stop.subscribe();
        for id in 1..=row.outstanding as u16 {
            self.put(state.nanos(), id, qos, payload);
        }
        loop {
            self.flush().await?;
            let read = tokio::select! {
                read = self.read() => read?,
                _ = stop.changed() => return Ok(()),
            };
            if !read {
                return Err(LoadError::Refused(self.address, "it closed the connection".to_owned()));
            }
            while let Some(packet) = self.packet()? {
                let id = match packet {
                    Packet::PubAck(ack) => ack.packet_id,
                    Packet::PubRec(ack) => {
                        encode::ack(
                            &mut self.out,
                            ProtocolVersion::V5,
                            PacketKind::PubRel,
                            ack.packet_id,
                            ReasonCode::Success,
                            &[],
                        );
                        continue;
                    }
                    Packet::PubComp(ack) => ack.packet_id,
                    _ => continue,
                };
                state.published.fetch_add(1, Ordering::Relaxed);
                self.put(state.nanos(), id, qos, payload);
            }
        }
    }

    fn put(&mut self, nanos: u64, packet_id: u16, qos: QoS, payload: &mut [u8]) {
        if let Some(time) = payload.first_chunk_mut::<TIME_BYTES>() {
            *time = nanos.to_be_bytes();
        }
        let head = PublishHead {
            qos,
            packet_id,
            topic: &self.topic,
            ..PublishHead::default()
        };
        head.write(&mut self.out, ProtocolVersion::V5, payload.len());
        self.out.extend_from_slice(payload);
    }

    /// Receives until the run is over, and acknowledges everything.
    pub async fn receive(mut self, state: Arc<LoadState>) -> Result<(), LoadError> {
        let mut stop = state.stop.subscribe();
        let mut times = Vec::new();
        loop {
            let read = tokio::select! {
                read = self.read() => read?,
                _ = stop.changed() => break,
            };
            if !read {
                break;
            }
            times.clear();
            while let Some(packet) = self.packet()? {
                match packet {
                    Packet::Publish(publish) => {
                        if let Some(time) = publish.payload().first_chunk() {
                            times.push(u64::from_be_bytes(*time));
                        }
                        let kind = match publish.qos {
                            QoS::AtMostOnce => continue,
                            QoS::AtLeastOnce => PacketKind::PubAck,
                            QoS::ExactlyOnce => PacketKind::PubRec,
                        };
                        encode::ack(
                            &mut self.out,
                            ProtocolVersion::V5,
                            kind,
                            publish.packet_id,
                            ReasonCode::Success,
                            &[],
                        );
                    }
                    Packet::PubRel(ack) => {
                        encode::ack(
                            &mut self.out,
                            ProtocolVersion::V5,
                            PacketKind::PubComp,
                            ack.packet_id,
                            ReasonCode::Success,
                            &[],
                        );
                    }
                    _ => {}
                }
            }
            if !times.is_empty() {
                state.delivered(&times);
            }
            self.flush().await?;
        }
        if self.is_stored {
            // The session ends with the run.
            let mut properties = PropertyWriter::default();
            properties.number(PropertyId::SessionExpiryInterval, 0);
            encode::disconnect(
                &mut self.out,
                ProtocolVersion::V5,
                ReasonCode::Success,
                properties.bytes(),
            );
            // The broker may have gone.
            let _ = self.flush().await;
        }
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), LoadError> {
        if !self.out.is_empty() {
            let written = self.socket.write_all(&self.out).await;
            written.map_err(|error| LoadError::Io {
                address: self.address,
                error,
            })?;
            self.out.clear();
        }
        Ok(())
    }

    /// Reads what has come. `false`: the connection has ended.
    async fn read(&mut self) -> Result<bool, LoadError> {
        self.buffer.reserve(READ_BYTES);
        let read = self.socket.read_buf(&mut self.buffer).await;
        let read = read.map_err(|error| LoadError::Io {
            address: self.address,
            error,
        })?;
        Ok(read > 0)
    }

    fn packet(&mut self) -> Result<Option<Packet>, LoadError> {
        let wrong = |error: thalweg_mqtt_wire::DecodeError| LoadError::Refused(self.address, error.to_string());
        let Some(header) = FixedHeader::parse(&self.buffer, usize::MAX).map_err(wrong)? else {
            return Ok(None);
        };
        if self.buffer.remaining() < header.packet_len() {
            return Ok(None);
        }
        let packet = self.buffer.split_to(header.packet_len()).freeze();
        Packet::decode(packet, &header, CONTEXT).map(Some).map_err(wrong)
    }

    async fn next(&mut self) -> Result<Option<Packet>, LoadError> {
        loop {
            if let Some(packet) = self.packet()? {
                return Ok(Some(packet));
            }
            if !self.read().await? {
                return Ok(None);
            }
        }
    }
}
