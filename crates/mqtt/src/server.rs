//! The listeners of one broker: all addresses are bound first, then all are served until the broker stops.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::broker::Broker;
use crate::listener::{MqttListenerSettings, serve_tcp};

/// Why a listener cannot be opened: its place in the configuration, and the cure.
#[derive(Debug, thiserror::Error)]
pub enum MqttBindError {
    #[error("mqtt.listeners[{index}].address: {address} is in use; end the process that has it, or choose another port")]
    InUse { index: usize, address: String },
    #[error("mqtt.listeners[{index}].address: cannot listen on {address}: {error}; correct the host and the port")]
    Address {
        index: usize,
        address: String,
        error: io::Error,
    },
    #[error("mqtt.listeners[{index}].kind: {kind} is not served; use tcp")]
    Kind { index: usize, kind: &'static str },
}

/// The bound listeners of a broker.
pub struct MqttServer {
    broker: Arc<Broker>,
    listeners: Vec<TcpListener>,
    addresses: Vec<SocketAddr>,
}

impl MqttServer {
    /// Binds all addresses. Nobody is served yet.
    pub async fn bind(broker: Arc<Broker>, settings: &[MqttListenerSettings]) -> Result<MqttServer, MqttBindError> {
        let (mut listeners, mut addresses) = (Vec::new(), Vec::new());
        for (index, settings) in settings.iter().enumerate() {
            if settings.kind.has_tls() || settings.kind.is_websocket() {
                let kind = settings.kind.name();
                return Err(MqttBindError::Kind { index, kind });
            }
            let address = settings.address.clone();
            let failed = |error: io::Error| match error.kind() {
                io::ErrorKind::AddrInUse => MqttBindError::InUse {
                    index,
                    address: settings.address.clone(),
                },
                _ => MqttBindError::Address {
                    index,
                    address: settings.address.clone(),
                    error,
                },
            };
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            addresses.push(listener.local_addr().map_err(failed)?);
            listeners.push(listener);
        }
        Ok(MqttServer {
            broker,
            listeners,
            addresses,
        })
    }

    /// The bound addresses in the order of the settings, with the actual port for port 0.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.addresses.clone()
    }

    /// Serves clients until `shutdown` is ready, then ends their connections, all within `timeout`.
    pub async fn serve(self, shutdown: impl Future<Output = ()>, timeout: Duration) {
        let mut tasks = JoinSet::new();
        for listener in self.listeners {
            tasks.spawn(serve_tcp(self.broker.clone(), listener));
        }
        shutdown.await;
        let _ = tokio::time::timeout(timeout, tasks.shutdown()).await;
    }
}
