//! Sockets: accepts connections and moves bytes between them and their clients.

mod connection;
mod identity;
mod limits;
mod open;
mod proxy_header;
mod rate_table;
mod settings;
mod transport;
mod websocket;

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use thalweg_http::tls_server::ServerTls;
use thalweg_telemetry::{LogDecision, LogLimiter};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::broker::Broker;
pub(crate) use identity::PeerIdentity;
pub(crate) use limits::{ConnectionLimits, ListenerCount};
use open::OpenError;
pub use settings::{CertificateIdentity, ClientAuth, ListenerKind, MqttListenerSettings};
use websocket::{OriginRule, UpgradeRule};

/// How long a listener waits after it could not accept a connection, usually because there are no file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Everything that the connections of a listener share.
pub(crate) struct ListenerContext {
    pub broker: Arc<Broker>,
    pub limits: Arc<ConnectionLimits>,
    pub settings: MqttListenerSettings,
    address: SocketAddr,
    tls: Option<Arc<ServerTls>>,
    /// Of WebSocket.
    upgrade: Option<UpgradeRule>,
    count: Arc<ListenerCount>,
    /// Connections use descriptors below this number, so that there are enough for files.
    descriptors_max: Option<u64>,
    log: LogLimiter,
}

impl ListenerContext {
    pub fn new(
        broker: Arc<Broker>,
        limits: Arc<ConnectionLimits>,
        settings: MqttListenerSettings,
        address: SocketAddr,
        tls: Option<Arc<ServerTls>>,
    ) -> ListenerContext {
        let upgrade = settings.kind.is_websocket().then(|| UpgradeRule {
            path: settings.path.clone(),
            origins: OriginRule::new(&settings.origins, address),
        });
        ListenerContext {
            broker,
            limits,
            count: ListenerCount::new(settings.max_connections),
            settings,
            address,
            tls,
            upgrade,
            descriptors_max: None,
            log: LogLimiter::default(),
        }
    }

    pub fn set_descriptors_max(&mut self, max: u64) {
        self.descriptors_max = Some(max);
    }

    /// Accepts connections until `stop`.
    pub async fn accept(self: Arc<Self>, listener: TcpListener, tasks: TaskTracker, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            let (socket, peer) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    self.warn("accept", |address, held_back| {
                        tracing::warn!(%address, %error, held_back, "the MQTT listener could not accept a connection; raise the limit of open files if this goes on");
                    });
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let descriptor = u64::try_from(socket.as_raw_fd()).unwrap_or(0);
            if self.descriptors_max.is_some_and(|max| descriptor >= max) {
                self.warn("descriptors", |address, held_back| {
                    tracing::warn!(%address, held_back, "the MQTT listener has closed a new connection: as many are open as the limit of open files allows; raise it (ulimit -n)");
                });
                continue;
            }
            tasks.spawn(connection::serve_connection(self.clone(), socket, peer));
        }
    }

    fn tell_displaced(&self, peer: SocketAddr) {
        self.warn("connecting", |address, held_back| {
            tracing::warn!(%address, %peer, held_back, "a connection without CONNECT was closed: there are more than mqtt.limits.connecting");
        });
    }

    fn tell_failed(&self, peer: SocketAddr, error: &OpenError) {
        match error {
            OpenError::Io(_) | OpenError::Closed => {
                tracing::debug!(%peer, "a connection ended before its CONNECT: {error}")
            }
            OpenError::Proxy(_) | OpenError::Tls(_) | OpenError::WebSocket(_) | OpenError::NoConnect => {
                self.warn(error.kind(), |address, held_back| {
                    tracing::info!(%address, %peer, held_back, "an MQTT connection was refused: {error}");
                });
            }
        }
    }

    /// Writes a line, so seldom that clients cannot fill the log.
    fn warn(&self, kind: &'static str, write: impl FnOnce(SocketAddr, u64)) {
        if let LogDecision::Log { held_back } = self.log.check(kind, 1) {
            write(self.address, held_back);
        }
    }
}

/// Serves clients that connect over TCP, for ever.
pub async fn serve_tcp(broker: Arc<Broker>, listener: TcpListener) -> io::Result<()> {
    let address = listener.local_addr()?;
    let limits = ConnectionLimits::new(&broker.settings);
    let settings = MqttListenerSettings::new(ListenerKind::Tcp, address.to_string());
    let context = ListenerContext::new(broker, limits, settings, address, None);
    Arc::new(context)
        .accept(listener, TaskTracker::new(), CancellationToken::new())
        .await;
    Ok(())
}

/// Reads bytes as a PROXY header.
#[doc(hidden)]
pub fn fuzz_proxy_header(data: &[u8]) {
    proxy_header::fuzz(data);
}

/// Reads bytes as WebSocket frames of a client.
#[doc(hidden)]
pub fn fuzz_websocket(data: &[u8]) {
    websocket::fuzz(data);
}
