//! The listeners of one broker: all addresses are bound and all files are read first, then all are served until the broker stops.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thalweg_http::ProtectionError;
use thalweg_http::tls_server::{ServerTls, TlsFiles, TlsListener, TlsNames};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::Broker;
use crate::listener::{ClientAuth, ConnectionLimits, ListenerContext, ListenerKind, MqttListenerSettings};

/// Why a listener cannot be opened: its place in the configuration, and the cure.
#[derive(Debug, thiserror::Error)]
pub enum MqttBindError {
    #[error(
        "mqtt.listeners[{index}].address: {address} is in use; end the process that has it, or choose another port"
    )]
    InUse { index: usize, address: String },
    #[error("mqtt.listeners[{index}].address: cannot listen on {address}: {error}; correct the host and the port")]
    Address {
        index: usize,
        address: String,
        error: io::Error,
    },
    /// The text of the error begins with the setting.
    #[error("mqtt.listeners[{index}].{error}")]
    Tls { index: usize, error: ProtectionError },
    #[error("mqtt.listeners[{index}].{key}: {problem}")]
    Setting {
        index: usize,
        key: &'static str,
        problem: &'static str,
    },
}

/// The bound listeners of a broker.
pub struct MqttServer {
    broker: Arc<Broker>,
    limits: Arc<ConnectionLimits>,
    listeners: Vec<(TcpListener, ListenerContext)>,
    addresses: Vec<SocketAddr>,
}

impl MqttServer {
    /// Checks the settings of a listener and reads its files, as `bind` does. Nothing is bound.
    pub fn verify(index: usize, settings: &MqttListenerSettings) -> Result<(), MqttBindError> {
        MqttServer::tls(index, settings).map(drop)
    }

    fn tls(index: usize, settings: &MqttListenerSettings) -> Result<Option<Arc<ServerTls>>, MqttBindError> {
        check(settings).map_err(|(key, problem)| MqttBindError::Setting { index, key, problem })?;
        tls_of(settings).map_err(|error| MqttBindError::Tls { index, error })
    }

    /// Binds all addresses and reads all certificates. Nobody is served yet.
    pub async fn bind(broker: Arc<Broker>, settings: &[MqttListenerSettings]) -> Result<MqttServer, MqttBindError> {
        let limits = ConnectionLimits::new(&broker.settings);
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for (index, settings) in settings.iter().enumerate() {
            let tls = MqttServer::tls(index, settings)?;
            let failed = |error: io::Error| {
                let address = settings.address.clone();
                match error.kind() {
                    io::ErrorKind::AddrInUse => MqttBindError::InUse { index, address },
                    _ => MqttBindError::Address { index, address, error },
                }
            };
            let listener = TcpListener::bind(&settings.address).await.map_err(failed)?;
            let address = listener.local_addr().map_err(failed)?;
            addresses.push(address);
            let context = ListenerContext::new(broker.clone(), limits.clone(), settings.clone(), address, tls);
            listeners.push((listener, context));
        }
        Ok(MqttServer {
            broker,
            limits,
            listeners,
            addresses,
        })
    }

    /// Connections use file descriptors below this number, so that there are always enough for the files of the log.
    pub fn set_descriptors_max(&mut self, max: u64) {
        for (_, context) in &mut self.listeners {
            context.set_descriptors_max(max);
        }
    }

    /// The bound addresses in the order of the settings, with the actual port for port 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Serves clients until `shutdown` is ready. Then nobody new is accepted; what clients have sent is committed and answered,
    /// they are told that the broker stops, and their connections are closed: all of it within `timeout`. Sessions are kept.
    pub async fn serve(self, shutdown: impl Future<Output = ()>, timeout: Duration) {
        let tasks = TaskTracker::new();
        let stop = ListenerStop {
            limits: self.limits,
            accepting: CancellationToken::new(),
        };
        for (listener, context) in self.listeners {
            let accept = Arc::new(context).accept(listener, tasks.clone(), stop.accepting.clone());
            tasks.spawn(accept);
        }
        tasks.close();
        shutdown.await;
        stop.begin(timeout);
        let ended = async {
            tasks.wait().await;
            self.broker.journal.settled().await;
        };
        if tokio::time::timeout(timeout, ended).await.is_err() {
            tracing::warn!("the MQTT broker did not commit everything within the time for its stop");
        }
    }
}

/// Ends all connections, at the latest when it is dropped.
struct ListenerStop {
    limits: Arc<ConnectionLimits>,
    accepting: CancellationToken,
}

impl ListenerStop {
    fn begin(&self, timeout: Duration) {
        self.accepting.cancel();
        self.limits.stop(timeout);
    }
}

impl Drop for ListenerStop {
    fn drop(&mut self) {
        self.begin(Duration::ZERO);
    }
}

/// The names of the files in the settings of a listener.
const NAMES: TlsNames = TlsNames {
    cert: "cert_file",
    key: "key_file",
    client_ca: "client_ca_file",
};

fn tls_of(settings: &MqttListenerSettings) -> Result<Option<Arc<ServerTls>>, ProtectionError> {
    let (true, Some(cert), Some(key)) = (settings.kind.has_tls(), &settings.cert_file, &settings.key_file) else {
        return Ok(None);
    };
    let has_clients = settings.client_auth != ClientAuth::None;
    let files = TlsFiles {
        cert: cert.clone(),
        key: key.clone(),
        client_ca: settings.client_ca_file.clone().filter(|_| has_clients),
        names: NAMES,
    };
    let listener = TlsListener {
        name: "the MQTT listener",
        protocols: match settings.kind {
            // Browsers offer this one.
            ListenerKind::Wss => &[b"http/1.1", b"mqtt"],
            _ => &[b"mqtt"],
        },
        needs_client_certificate: settings.client_auth == ClientAuth::Required,
        crl: settings.crl_file.clone().filter(|_| has_clients),
        has_tickets: true,
    };
    ServerTls::open_for(files, listener).map(|tls| Some(Arc::new(tls)))
}

/// The setting that is wrong, and the cure.
fn check(settings: &MqttListenerSettings) -> Result<(), (&'static str, &'static str)> {
    if settings.kind.has_tls() && settings.cert_file.is_none() {
        return Err(("cert_file", "TLS needs a certificate; name its PEM file"));
    }
    if settings.kind.has_tls() && settings.key_file.is_none() {
        return Err(("key_file", "TLS needs the key of the certificate; name its PEM file"));
    }
    if settings.client_auth != ClientAuth::None && !settings.kind.has_tls() {
        return Err((
            "client_auth",
            "only tls and wss have client certificates; change kind, or set it to none",
        ));
    }
    if settings.client_auth != ClientAuth::None && settings.client_ca_file.is_none() {
        return Err((
            "client_ca_file",
            "client_auth needs the certificate of who signs clients; name its PEM file",
        ));
    }
    if settings.client_auth == ClientAuth::None && settings.crl_file.is_some() {
        return Err((
            "crl_file",
            "without client_auth no client has a certificate; set client_auth, or remove it",
        ));
    }
    if settings.kind.is_websocket() && !settings.path.starts_with('/') {
        return Err(("path", "a path begins with /"));
    }
    if settings.versions.is_empty() {
        return Err(("versions", "name at least one of 3.1, 3.1.1 and 5.0"));
    }
    Ok(())
}
