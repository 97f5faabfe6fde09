//! A blocking MQTT client that says exactly what it is told, on the codec that the broker has, and a broker that runs alone.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::BytesMut;
use thalweg_mqtt_wire::encode::{self, ConnectRequest, PropertyWriter, PublishHead, WillRequest};
use thalweg_mqtt_wire::{
    ConnAck, DecodeContext, FixedHeader, Packet, PacketKind, PropertyId, ProtocolVersion, Publish, QoS, ReasonCode,
    Sender, SubscribeOptions,
};

use crate::process::Process;
use crate::thalweg::binary;
use crate::wait::{PATIENCE, eventually};

/// What a CONNECT says.
#[derive(Clone, Copy)]
pub struct MqttConnect<'a> {
    pub version: ProtocolVersion,
    pub client_id: &'a str,
    pub clean_start: bool,
    /// Seconds, in 5.0.
    pub session_expiry: u32,
    pub user_name: Option<&'a str>,
    pub password: Option<&'a str>,
    /// Topic and payload, QoS 1.
    pub will: Option<(&'a str, &'a str)>,
}

impl<'a> MqttConnect<'a> {
    /// 5.0, with a session that ends with the connection.
    pub fn fleeting(client_id: &'a str) -> MqttConnect<'a> {
        MqttConnect {
            version: ProtocolVersion::V5,
            client_id,
            clean_start: true,
            session_expiry: 0,
            user_name: None,
            password: None,
            will: None,
        }
    }

    /// 5.0, with a session that lasts an hour, and is resumed if it is there.
    pub fn stored(client_id: &'a str) -> MqttConnect<'a> {
        MqttConnect {
            clean_start: false,
            session_expiry: 3600,
            ..MqttConnect::fleeting(client_id)
        }
    }
}

pub struct MqttClient {
    socket: TcpStream,
    buffer: BytesMut,
    /// Packets that came before one that was waited for.
    aside: VecDeque<Packet>,
    version: ProtocolVersion,
    next_id: u16,
}

impl MqttClient {
    /// Connects, and expects that it is accepted.
    pub fn connect(address: &str, connect: &MqttConnect<'_>) -> Result<(MqttClient, ConnAck)> {
        let (client, connack) = MqttClient::try_connect(address, connect)?;
        ensure!(connack.reason == ReasonCode::Success, "refused: {:?}", connack.reason);
        Ok((client, connack))
    }

    /// Connects; the answer may be a refusal.
    pub fn try_connect(address: &str, connect: &MqttConnect<'_>) -> Result<(MqttClient, ConnAck)> {
        let socket = TcpStream::connect(address).with_context(|| format!("nobody listens at {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let mut client = MqttClient {
            socket,
            buffer: BytesMut::new(),
            aside: VecDeque::new(),
            version: connect.version,
            next_id: 0,
        };
        let mut properties = PropertyWriter::default();
        if connect.version.is_5() && connect.session_expiry > 0 {
            properties.number(PropertyId::SessionExpiryInterval, connect.session_expiry);
        }
        client.send(|out| {
            let request = ConnectRequest {
                version: connect.version,
                clean_start: connect.clean_start,
                keep_alive: 60,
                client_id: connect.client_id,
                user_name: connect.user_name,
                password: connect.password.map(str::as_bytes),
                will: connect.will.map(|(topic, payload)| WillRequest {
                    topic,
                    payload: payload.as_bytes(),
                    qos: QoS::AtLeastOnce,
                    retain: false,
                    properties: &[],
                }),
                properties: properties.bytes(),
            };
            encode::connect(out, &request);
        })?;
        match client.packet()? {
            Packet::ConnAck(connack) => Ok((client, *connack)),
            other => bail!("expected CONNACK, got {other:?}"),
        }
    }

    pub fn send(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        let mut out = Vec::new();
        write(&mut out);
        Ok(self.socket.write_all(&out)?)
    }

    /// The next packet; an error if the broker closes the connection before.
    pub fn packet(&mut self) -> Result<Packet> {
        match self.aside.pop_front() {
            Some(packet) => Ok(packet),
            None => self.arrival()?.context("the broker has closed the connection"),
        }
    }

    /// The next packet if one comes in this time.
    pub fn packet_within(&mut self, time: Duration) -> Result<Option<Packet>> {
        if let Some(packet) = self.aside.pop_front() {
            return Ok(Some(packet));
        }
        self.socket.set_read_timeout(Some(time))?;
        let packet = self.arrival();
        self.socket.set_read_timeout(Some(PATIENCE))?;
        match packet {
            Err(error) if is_timeout(&error) => Ok(None),
            packet => packet,
        }
    }

    /// All packets until the broker closes the connection.
    pub fn until_closed(&mut self) -> Result<Vec<Packet>> {
        let mut packets: Vec<Packet> = self.aside.drain(..).collect();
        while let Some(packet) = self.arrival()? {
            packets.push(packet);
        }
        Ok(packets)
    }

    /// `None` at the end of the connection.
    fn arrival(&mut self) -> Result<Option<Packet>> {
        loop {
            if let Some(packet) = self.whole_packet()? {
                return Ok(Some(packet));
            }
            let mut bytes = [0; 16 << 10];
            match self.socket.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(len) => self.buffer.extend_from_slice(bytes.get(..len).unwrap_or_default()),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn whole_packet(&mut self) -> Result<Option<Packet>> {
        let header = FixedHeader::parse(&self.buffer, usize::MAX);
        let header = header.map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let Some(header) = header.filter(|header| self.buffer.len() >= header.packet_len()) else {
            return Ok(None);
        };
        let packet = self.buffer.split_to(header.packet_len()).freeze();
        let context = DecodeContext {
            version: self.version,
            sender: Sender::Server,
            strict_utf8: false,
        };
        let packet = Packet::decode(packet, &header, context).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        Ok(Some(packet))
    }

    /// The first packet that fits; messages that come before it are kept for later.
    fn wait_for<T>(&mut self, what: &str, fits: impl Fn(&Packet) -> Option<T>) -> Result<T> {
        let mut before = VecDeque::new();
        let found = loop {
            let packet = self.packet().with_context(|| format!("no {what}"))?;
            match fits(&packet) {
                Some(found) => break found,
                None if matches!(packet, Packet::Publish(_)) => before.push_back(packet),
                None => bail!("expected {what}, got {packet:?}"),
            }
        };
        before
            .into_iter()
            .rev()
            .for_each(|packet| self.aside.push_front(packet));
        Ok(found)
    }

    fn id(&mut self) -> u16 {
        self.next_id = self.next_id.checked_add(1).unwrap_or(1);
        self.next_id
    }

    /// Subscribes; returns the code of the SUBACK.
    pub fn subscribe(&mut self, filter: &str, qos: QoS) -> Result<ReasonCode> {
        let (id, version) = (self.id(), self.version);
        let options = SubscribeOptions {
            qos,
            ..SubscribeOptions::default()
        };
        self.send(|out| encode::subscribe(out, version, id, &[], &[(filter, options)]))?;
        self.wait_for("SUBACK", |packet| match packet {
            Packet::SubAck(ack) if ack.packet_id == id => ack.codes.first().copied(),
            _ => None,
        })
    }

    /// Sends a PUBLISH under a packet identifier, and waits for nothing.
    pub fn publish_as(&mut self, id: u16, topic: &str, payload: &[u8], qos: QoS, retain: bool) -> Result<()> {
        let version = self.version;
        self.send(|out| {
            let head = PublishHead {
                qos,
                retain,
                packet_id: id,
                topic,
                ..PublishHead::default()
            };
            head.write(out, version, payload.len());
            out.extend_from_slice(payload);
        })
    }

    /// Publishes, and completes what the QoS asks for; returns the code of PUBACK or PUBREC.
    pub fn publish(&mut self, topic: &str, payload: &[u8], qos: QoS, retain: bool) -> Result<ReasonCode> {
        let id = if qos == QoS::AtMostOnce { 0 } else { self.id() };
        self.publish_as(id, topic, payload, qos, retain)?;
        match qos {
            QoS::AtMostOnce => Ok(ReasonCode::Success),
            QoS::AtLeastOnce => self.wait_for("PUBACK", |packet| match packet {
                Packet::PubAck(ack) if ack.packet_id == id => Some(ack.reason),
                _ => None,
            }),
            QoS::ExactlyOnce => {
                let reason = self.wait_for("PUBREC", |packet| match packet {
                    Packet::PubRec(ack) if ack.packet_id == id => Some(ack.reason),
                    _ => None,
                })?;
                if !reason.is_failure() {
                    self.ack(PacketKind::PubRel, id)?;
                    self.wait_for("PUBCOMP", |packet| match packet {
                        Packet::PubComp(ack) if ack.packet_id == id => Some(()),
                        _ => None,
                    })?;
                }
                Ok(reason)
            }
        }
    }

    pub fn ack(&mut self, kind: PacketKind, id: u16) -> Result<()> {
        let version = self.version;
        self.send(|out| encode::ack(out, version, kind, id, ReasonCode::Success, &[]))
    }

    /// The next message, acknowledged as its QoS asks for.
    pub fn message(&mut self) -> Result<Publish> {
        let Packet::Publish(publish) = self.packet()? else {
            bail!("expected PUBLISH");
        };
        let id = publish.packet_id;
        match publish.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.ack(PacketKind::PubAck, id)?,
            QoS::ExactlyOnce => {
                self.ack(PacketKind::PubRec, id)?;
                self.wait_for("PUBREL", |packet| match packet {
                    Packet::PubRel(ack) if ack.packet_id == id => Some(()),
                    _ => None,
                })?;
                self.ack(PacketKind::PubComp, id)?;
            }
        }
        Ok(publish)
    }

    /// Ends the connection with DISCONNECT.
    pub fn disconnect(mut self) -> Result<()> {
        let version = self.version;
        self.send(|out| encode::disconnect(out, version, ReasonCode::Success, &[]))?;
        self.until_closed().map(drop)
    }
}

fn is_timeout(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    matches!(kind, Some(ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// `thalweg mqtt serve` on a free port, with the data folder `data` in `folder`.
pub struct MqttServe {
    pub process: Process,
    pub address: String,
}

impl MqttServe {
    /// Starts and waits until it listens. `name` is unused in the folder.
    pub fn start(folder: &Path, name: &str) -> Result<MqttServe> {
        let command = &mut Command::new(binary());
        command.args(["mqtt", "serve", "--port", "0", "--data-dir", "data"]);
        let mut process = Process::start(name, folder, command.current_dir(folder))?;
        let address = eventually(|| {
            process.check_running()?;
            listener(&process.stderr(), "tcp")
        })?;
        Ok(MqttServe { process, address })
    }
}

/// The address of a listener in the log of a process.
pub fn listener(log: &str, kind: &str) -> Result<String> {
    let prefix = format!("mqtt listens on {kind} ");
    let rest = log.split(&prefix).nth(1).context("no listener yet")?;
    let address = rest.split(['"', ' ', '\n']).next().unwrap_or_default();
    ensure!(rest.len() > address.len(), "the line is not complete yet");
    Ok(address.to_owned())
}
