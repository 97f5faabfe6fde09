//! What an operator sets for a listener.

use std::path::PathBuf;

use thalweg_mqtt_wire::ProtocolVersion;

/// A listener of the broker (`mqtt.listeners[]`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MqttListenerSettings {
    pub kind: ListenerKind,
    /// `host:port`; port 0 takes a free one.
    pub address: String,
    /// PEM, of `tls` and `wss`. Read again when they change.
    pub cert_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    pub client_auth: ClientAuth,
    /// Whose certificates clients may have.
    pub client_ca_file: Option<PathBuf>,
    /// Certificates of clients that are revoked, in PEM.
    pub crl_file: Option<PathBuf>,
    pub identity: CertificateIdentity,
    /// Of `ws` and `wss`.
    pub path: String,
    /// Origins of pages that may connect to `ws` and `wss`. Empty: those of the same host; `*`: all.
    pub origins: Vec<String>,
    /// Each connection begins with a PROXY header, version 1 or 2, whose source address counts for limits and logs.
    pub proxy_protocol: bool,
    /// The most connections of this listener. 0: only the broker's limit.
    pub max_connections: usize,
    /// Others are refused as unsupported.
    pub versions: Vec<ProtocolVersion>,
}

impl MqttListenerSettings {
    /// A listener with the defaults of all other settings.
    pub fn new(kind: ListenerKind, address: impl Into<String>) -> MqttListenerSettings {
        MqttListenerSettings {
            kind,
            address: address.into(),
            cert_file: None,
            key_file: None,
            client_auth: ClientAuth::None,
            client_ca_file: None,
            crl_file: None,
            identity: CertificateIdentity::CommonName,
            path: "/mqtt".to_owned(),
            origins: Vec::new(),
            proxy_protocol: false,
            max_connections: 0,
            versions: vec![ProtocolVersion::V3_1, ProtocolVersion::V3_1_1, ProtocolVersion::V5],
        }
    }
}

/// What a listener's connections carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ListenerKind {
    Tcp,
    Tls,
    /// WebSocket.
    Ws,
    /// WebSocket over TLS.
    Wss,
}

impl ListenerKind {
    pub const ALL: [ListenerKind; 4] = [
        ListenerKind::Tcp,
        ListenerKind::Tls,
        ListenerKind::Ws,
        ListenerKind::Wss,
    ];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            ListenerKind::Tcp => "tcp",
            ListenerKind::Tls => "tls",
            ListenerKind::Ws => "ws",
            ListenerKind::Wss => "wss",
        }
    }

    pub fn has_tls(self) -> bool {
        matches!(self, ListenerKind::Tls | ListenerKind::Wss)
    }

    pub fn is_websocket(self) -> bool {
        matches!(self, ListenerKind::Ws | ListenerKind::Wss)
    }
}

/// Whether clients show certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientAuth {
    None,
    Optional,
    Required,
}

impl ClientAuth {
    pub const ALL: [ClientAuth; 3] = [ClientAuth::None, ClientAuth::Optional, ClientAuth::Required];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            ClientAuth::None => "none",
            ClientAuth::Optional => "optional",
            ClientAuth::Required => "required",
        }
    }
}

/// What of a client's certificate is its user name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CertificateIdentity {
    /// The common name of its subject.
    CommonName,
    /// The first URI of its subject alternative names.
    Uri,
    /// Nothing: the certificate only admits the client.
    None,
}

impl CertificateIdentity {
    pub const ALL: [CertificateIdentity; 3] = [
        CertificateIdentity::CommonName,
        CertificateIdentity::Uri,
        CertificateIdentity::None,
    ];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            CertificateIdentity::CommonName => "cn",
            CertificateIdentity::Uri => "uri",
            CertificateIdentity::None => "none",
        }
    }
}
