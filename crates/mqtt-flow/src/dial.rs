//! Makes connections: tries the brokers in turn, and MQTT 3.1.1 with those that do not speak 5.0. A broker is asked for 5.0
//! first, because only its answers say why a message was refused.

use std::sync::Arc;
use std::time::Duration;

use thalweg_kit::blocking;
use thalweg_mqtt_wire::encode::{self, ConnectRequest, PropertyWriter, WillRequest};
use thalweg_mqtt_wire::{
    ConnAck, DecodeContext, Packet, PacketKind, PropertyId, ProtocolVersion, QoS, ReasonCode, Sender,
};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::broker_url::BrokerUrl;
use crate::link::{Link, PACKET_BYTES_MAX, Transport};
use crate::options::BrokerOptions;
use crate::websocket;

/// What a connection asks for beyond what all have in common.
#[derive(Clone, Copy, Debug)]
pub struct SessionRequest {
    /// The broker forgets an earlier session.
    pub clean_start: bool,
    /// A broker other than the one of the last connection forgets it in any case: it knows nothing of what was in flight there,
    /// and may know something older.
    pub clean_elsewhere: bool,
    /// The session outlives the connection; in 5.0 by this number of seconds.
    pub expiry: u32,
    /// Of 3.1.1: the session is not kept.
    pub clean_session: bool,
    /// Unacknowledged messages that the client takes; 0: not said.
    pub receive_maximum: u16,
}

/// A connection with what the broker has said of it.
pub struct Dialled {
    pub link: Link,
    pub session_present: bool,
    /// Unacknowledged messages that the broker takes.
    pub receive_maximum: u16,
    pub maximum_qos: QoS,
    pub retain_available: bool,
    pub packet_bytes_max: usize,
    pub url: BrokerUrl,
    /// The last connection was to the same broker.
    pub is_same_broker: bool,
}

/// Why a connection could not be made.
#[derive(Debug)]
enum DialError {
    /// The broker does not speak this version of the protocol, and says so.
    Version(String),
    /// It ended the connection without an answer, as brokers do that do not know the version.
    NoAnswer,
    Other(String),
}

/// Makes the connections of one component.
pub struct Dialer {
    options: Arc<BrokerOptions>,
    client_id: String,
    write_timeout: Duration,
    /// The broker to try first, and for each whether it has refused 5.0.
    next: usize,
    speaks_only_3: Vec<bool>,
    /// The broker of the last connection.
    last: Option<usize>,
}

impl Dialer {
    pub fn new(options: Arc<BrokerOptions>, client_id: String, write_timeout: Duration) -> Dialer {
        let speaks_only_3 = vec![options.version != ProtocolVersion::V5; options.urls.len()];
        Dialer {
            options,
            client_id,
            write_timeout,
            next: 0,
            speaks_only_3,
            last: None,
        }
    }

    /// Tries each broker once, beginning with the one that was connected last. The error is one sentence about all.
    pub async fn dial(&mut self, request: SessionRequest) -> Result<Dialled, String> {
        let mut errors = Vec::new();
        for _ in 0..self.options.urls.len() {
            match self.dial_next(request).await {
                Ok(dialled) => {
                    self.last = Some(self.next);
                    return Ok(dialled);
                }
                Err(error) => errors.push(error),
            }
            self.next = (self.next + 1) % self.options.urls.len().max(1);
        }
        Err(errors.join("; "))
    }

    /// The connection did not last, or its broker refuses what is asked of it: another one is tried first.
    pub fn avoid_this_one(&mut self) {
        self.next = (self.next + 1) % self.options.urls.len().max(1);
    }

    async fn dial_next(&mut self, request: SessionRequest) -> Result<Dialled, String> {
        let Some(url) = self.options.urls.get(self.next).cloned() else {
            return Err("no broker is set".to_owned());
        };
        let only_3 = self.speaks_only_3.get(self.next).copied().unwrap_or_default();
        let first = match only_3 {
            true => ProtocolVersion::V3_1_1,
            false => ProtocolVersion::V5,
        };
        let failed = match self.attempt(&url, first, request).await {
            Ok(dialled) => return Ok(dialled),
            Err(failed) => failed,
        };
        let is_refused = matches!(failed, DialError::Version(_));
        if only_3 || matches!(failed, DialError::Other(_)) {
            return Err(failed.told(&url));
        }
        let dialled = self.attempt(&url, ProtocolVersion::V3_1_1, request).await;
        // The close may have had another reason, so 5.0 is tried again after the next loss.
        if is_refused && let Some(speaks_only_3) = self.speaks_only_3.get_mut(self.next) {
            *speaks_only_3 = true;
        }
        dialled.map_err(|failed| failed.told(&url))
    }

    async fn attempt(
        &self,
        url: &BrokerUrl,
        version: ProtocolVersion,
        request: SessionRequest,
    ) -> Result<Dialled, DialError> {
        let limit = self.options.connect_timeout;
        let attempt = async {
            let transport = self.transport(url).await.map_err(DialError::Other)?;
            let mut link = Link::new(transport, version, self.write_timeout);
            link.put(|out| self.connect(version, request, out));
            let ack = connack(&mut link, version).await?;
            self.accepted(link, ack, url)
        };
        match timeout(limit, attempt).await {
            Ok(done) => done,
            Err(_) => {
                let seconds = limit.as_secs_f64();
                Err(DialError::Other(format!(
                    "there is no answer within connect_timeout ({seconds} s)"
                )))
            }
        }
    }

    async fn transport(&self, url: &BrokerUrl) -> Result<Box<dyn Transport>, String> {
        let stream = TcpStream::connect((url.host.as_str(), url.port))
            .await
            .map_err(|error| error.to_string())?;
        // Acknowledgements are small, and each is waited for.
        let _ = stream.set_nodelay(true);
        let transport: Box<dyn Transport> = match url.is_encrypted || self.options.tls.is_everywhere {
            true => Box::new(self.encrypted(url, stream).await?),
            false => Box::new(stream),
        };
        match &url.path {
            Some(path) => Ok(Box::new(websocket::open(transport, &url.authority(), path).await?)),
            None => Ok(transport),
        }
    }

    async fn encrypted(&self, url: &BrokerUrl, stream: TcpStream) -> Result<TlsStream<TcpStream>, String> {
        let options = self.options.clone();
        let config = blocking::spawn(move || options.tls.client()?.config().map_err(|error| format!("{error:#}")));
        let config = config.await.map_err(|error| error.to_string())??;
        let host = ServerName::try_from(url.host.clone()).map_err(|error| error.to_string())?;
        let stream = TlsConnector::from(config).connect(host, stream).await;
        stream.map_err(|error| format!("TLS failed: {error}"))
    }

    fn connect(&self, version: ProtocolVersion, request: SessionRequest, out: &mut Vec<u8>) {
        let options = &self.options;
        let mut properties = PropertyWriter::default();
        if version.is_5() {
            if request.expiry > 0 {
                properties.number(PropertyId::SessionExpiryInterval, request.expiry);
            }
            if request.receive_maximum > 0 {
                properties.two(PropertyId::ReceiveMaximum, request.receive_maximum);
            }
        }
        let connect = ConnectRequest {
            version,
            clean_start: match version.is_5() {
                true => request.clean_start || (request.clean_elsewhere && self.last != Some(self.next)),
                false => request.clean_session,
            },
            keep_alive: options.keep_alive,
            client_id: &self.client_id,
            user_name: Some(options.user.as_str()).filter(|user| !user.is_empty()),
            password: Some(options.password.as_bytes()).filter(|password| !password.is_empty()),
            will: options.will.as_ref().map(|will| WillRequest {
                topic: &will.topic,
                payload: will.payload.as_bytes(),
                qos: will.qos,
                retain: will.retained,
                properties: &[],
            }),
            properties: properties.bytes(),
        };
        encode::connect(out, &connect);
    }

    fn accepted(&self, mut link: Link, ack: ConnAck, url: &BrokerUrl) -> Result<Dialled, DialError> {
        if ack.reason.is_failure() {
            let why = refused("the broker refuses the connection", ack.reason, &ack.properties);
            return Err(match ack.reason {
                ReasonCode::UnsupportedProtocolVersion => DialError::Version(why),
                _ => DialError::Other(why),
            });
        }
        let number = |id| ack.properties.get(id).map(|value| value.number());
        let keep_alive = number(PropertyId::ServerKeepAlive).unwrap_or(self.options.keep_alive.into());
        link.set_keep_alive(Duration::from_secs(keep_alive.into()));
        let receive_maximum = number(PropertyId::ReceiveMaximum).and_then(|number| u16::try_from(number).ok());
        let maximum_qos = number(PropertyId::MaximumQoS).and_then(|number| u8::try_from(number).ok());
        let packet_bytes_max = number(PropertyId::MaximumPacketSize).map_or(PACKET_BYTES_MAX, |max| max as usize);
        Ok(Dialled {
            link,
            session_present: ack.session_present,
            receive_maximum: receive_maximum.unwrap_or(u16::MAX),
            maximum_qos: maximum_qos.and_then(QoS::of).unwrap_or(QoS::ExactlyOnce),
            retain_available: number(PropertyId::RetainAvailable) != Some(0),
            packet_bytes_max: packet_bytes_max.min(PACKET_BYTES_MAX),
            url: url.clone(),
            is_same_broker: self.last == Some(self.next),
        })
    }
}

impl DialError {
    fn told(self, url: &BrokerUrl) -> String {
        match self {
            DialError::NoAnswer => format!(
                "{url}: the broker closes the connection without an answer; check that the port is the one for MQTT and whether it wants TLS"
            ),
            DialError::Version(why) | DialError::Other(why) => format!("{url}: {why}"),
        }
    }
}

/// A refusal with the code, and with what the broker adds to it.
pub fn refused(what: &str, reason: ReasonCode, properties: &thalweg_mqtt_wire::Properties) -> String {
    let number = reason.number();
    let added = properties
        .get(PropertyId::ReasonString)
        .map(|value| value.text())
        .unwrap_or_default();
    let added = if added.is_empty() {
        String::new()
    } else {
        format!(": {added}")
    };
    format!("{what}: {} (0x{number:02x}){added}", reason.name())
}

/// Sends the CONNECT and reads the answer to it. A broker that does not know the version may answer in the form of its own.
async fn connack(link: &mut Link, version: ProtocolVersion) -> Result<ConnAck, DialError> {
    loop {
        if let Some((header, packet)) = link.first_packet().map_err(DialError::Other)? {
            if header.kind != PacketKind::ConnAck {
                return Err(DialError::Other(format!(
                    "the broker answers CONNECT with {}",
                    header.kind.name()
                )));
            }
            let version = if header.remaining == 2 {
                ProtocolVersion::V3_1_1
            } else {
                version
            };
            let context = DecodeContext {
                version,
                sender: Sender::Server,
                strict_utf8: false,
            };
            return match Packet::decode(packet, &header, context) {
                Ok(Packet::ConnAck(ack)) => Ok(*ack),
                Ok(_) => Err(DialError::NoAnswer),
                Err(error) => Err(DialError::Other(format!(
                    "the CONNACK of the broker breaks the protocol: {error}"
                ))),
            };
        }
        // A reset counts like a close.
        if link.progress(true).await.is_err() {
            return Err(DialError::NoAnswer);
        }
    }
}

#[cfg(test)]
mod tests;
