//! `thalweg events serve`: the event store as a separate process.

mod in_process;
mod offline;
mod opening;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use thalweg_config::{ListenerNames, Protection, exposure};
use thalweg_console::{Console, HttpLimits, ResponseStyle, RunningListener};
use thalweg_events_api::{EventsApiOptions, EventsApiServer, refusal};
use thalweg_http::tls_server::{ServerTls, TlsFiles};
use thalweg_log::Durability;
use thalweg_queue::settings::{LogSettings, OnPoison, RecoveryMode};
use thalweg_telemetry::{ActingPaths, HostNames, LinkablePaths, Metrics, OriginPolicy, register_process_metrics};
use tokio::net::TcpListener;

use crate::open_files::for_connections;
pub(crate) use opening::RecoveryOptions;
use opening::{OpenEventStore, TokenDestination, given_token, make_default};

pub(crate) use in_process::{EventsSection, EventsService, section};
pub use offline::{restore_events, verify_events};
pub use opening::GeneratedToken;

/// The options of the server.
#[derive(Clone, Debug)]
pub struct EventsServerOptions {
    pub port: u16,
    /// An address or a name of this machine; the loopback addresses if absent.
    pub address: Option<String>,
    /// Sites whose pages may send requests without tokens.
    pub allowed_origins: Vec<String>,
    /// The file for the token of a new store, if none is given and there is no terminal; a file in the data folder if
    /// absent.
    pub token_out: Option<PathBuf>,
    /// Open connections; `None`: as many as the limit of open files allows.
    pub max_connections: Option<usize>,
    pub place: EventsStorage,
    /// All requests are allowed without tokens.
    pub test_mode: bool,
    /// For the namespace `default`.
    pub token: Option<String>,
    pub durability: Durability,
    pub sync_interval: Duration,
    pub recover_skip: bool,
    pub stay_when_poisoned: bool,
    pub min_free: Option<u64>,
    pub memory: u64,
    pub message_bytes_max: usize,
    pub open_admin: bool,
    pub metrics_per_namespace: bool,
    /// Allows other hosts without TLS, and in test mode without tokens.
    pub insecure: bool,
    pub tls: Option<TlsFiles>,
}

/// Where messages are stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventsStorage {
    /// In memory only; they are lost with the process.
    Memory,
    /// In `log/` of this folder.
    Folder(PathBuf),
    /// `postgres://…`
    Postgres(String),
}

/// A running server.
pub struct EventsServer {
    server: Arc<EventsApiServer>,
    listeners: Vec<RunningListener>,
    opened: OpenEventStore,
    tls: Option<Arc<ServerTls>>,
    /// The token of the namespace `default`, if it was created now.
    pub new_token: Option<GeneratedToken>,
    pub address: SocketAddr,
}

/// The most connections, if the limit of open files allows them.
pub(crate) const CONNECTIONS_MAX: usize = 65_536;
/// Grace for running requests at a stop, once all pending writes are stored.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// How long a stop waits for pending writes.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// Limits for a client that stops sending a request or reading an answer, and for an idle one.
const REQUEST_STALL: Duration = Duration::from_secs(30);
const IDLE_MAX: Duration = Duration::from_secs(120);

impl EventsServer {
    /// Binds the port before anything is opened or created. Must be called on a tokio runtime.
    pub async fn start(options: &EventsServerOptions) -> Result<EventsServer> {
        let token = options.token.as_deref().map(given_token).transpose()?;
        let tls = options.tls.clone().map(ServerTls::open).transpose()?.map(Arc::new);
        let listeners = bind(options).await?;
        let address = listeners.first().context("no listener")?.local_addr()?;
        // From here on it answers that it is alive and that the store is being recovered.
        let metrics = Arc::new(Metrics::new(false));
        register_process_metrics(&metrics);
        let server = EventsApiServer::starting(api_options(options), metrics.clone());
        let listeners = Console::serve(
            tls.clone(),
            listeners,
            &server.router(),
            limits(options),
            &manners(),
            origins(options, &server),
            &metrics,
        )?;
        if let Some(first) = listeners.first() {
            server.count_connections(first.connections());
        }
        let opened = OpenEventStore::open(options).await?;
        crate::metrics::register_logs(&metrics, opened.logs());
        if let Some(clock) = opened.clock() {
            crate::metrics::register_clock(&metrics, clock);
        }
        let store = opened.store.clone();
        let to = match options.test_mode {
            // The token opens nothing that is not open anyway.
            true => TokenDestination::Terminal,
            false => TokenDestination::seen(options.token_out.clone().or_else(|| match &options.place {
                EventsStorage::Folder(folder) => Some(TokenDestination::file_in(folder)),
                EventsStorage::Memory | EventsStorage::Postgres(_) => None,
            })),
        };
        let new_token = make_default(store.as_ref(), token, &to).await?;
        server.open(store.clone());
        // Clients may call it once they read this.
        tracing::info!(
            backend = store.backend(),
            durability = store.durability(),
            tls = tls.is_some(),
            %address,
            "the event store is open"
        );
        Ok(EventsServer {
            server,
            listeners,
            opened,
            tls,
            new_token,
            address,
        })
    }

    /// Reads the TLS files again. Invalid files leave the old ones in force.
    pub fn reload(&self) {
        let Some(tls) = &self.tls else { return };
        match tls.reload() {
            Ok(()) => tracing::info!("the certificate was read again"),
            Err(error) => tracing::warn!(%error, "the old certificate stays in force"),
        }
    }

    /// Ends subscriptions, answers pending writes, refuses other requests, and closes all listeners in parallel.
    pub async fn stop(self) {
        self.server.stop();
        self.listeners.iter().for_each(RunningListener::close);
        let _ = tokio::time::timeout(SETTLE_MAX, self.server.settled()).await;
        futures::future::join_all(self.listeners.into_iter().map(RunningListener::stop)).await;
        self.opened.close().await;
    }
}

fn api_options(options: &EventsServerOptions) -> EventsApiOptions {
    EventsApiOptions {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        test_mode: options.test_mode,
        open_admin: options.open_admin,
        message_bytes_max: options.message_bytes_max,
        memory_bytes: usize::try_from(options.memory / 4).unwrap_or(usize::MAX),
        metrics_per_namespace: options.metrics_per_namespace,
        ..EventsApiOptions::default()
    }
}

/// The response style that clients of the event store expect of any listener.
pub(crate) fn manners() -> ResponseStyle {
    ResponseStyle {
        server: format!("Thalweg/{}", env!("CARGO_PKG_VERSION")).parse().ok(),
        refusal: Some(refusal),
    }
}

/// Without tokens, pages of other sites must not reach it.
fn origins(options: &EventsServerOptions, server: &EventsApiServer) -> OriginPolicy {
    OriginPolicy {
        allowed: options.allowed_origins.clone(),
        links: LinkablePaths::new(["/health", "/ready", "/version", "/metrics"]),
        acting: ActingPaths::new(server.acting_reads()),
        tokens_in_address: server.tokens_in_address(),
        names: match options.test_mode && !options.insecure {
            true => HostNames::Own,
            false => HostNames::Any,
        },
        own_name: options.address.as_ref().map(|name| name.to_ascii_lowercase()),
        setting: "--allow-origin".to_owned(),
    }
}

/// How long a client may be silent.
pub(crate) fn patience(limits: &mut HttpLimits) {
    limits.header_timeout = IDLE_MAX;
    limits.request_stall_max = Some(REQUEST_STALL);
    limits.write_stall_max = IDLE_MAX;
}

fn limits(options: &EventsServerOptions) -> HttpLimits {
    let wanted = options.max_connections;
    let share = for_connections(wanted.unwrap_or(CONNECTIONS_MAX), wanted.map(|_| "--max-connections"));
    let mut limits = HttpLimits {
        connections_max: share.connections_max,
        descriptors_max: Some(share.descriptors_max),
        http2_in_clear: false,
        stop_grace: STOP_GRACE,
        ..HttpLimits::default()
    };
    patience(&mut limits);
    limits
}

/// Binds the loopback addresses unless another one is given. The exposure rule of all listeners applies to the bound
/// address.
async fn bind(options: &EventsServerOptions) -> Result<Vec<TcpListener>> {
    let port = options.port;
    let Some(host) = &options.address else {
        let first = listen("localhost", port, (Ipv4Addr::LOCALHOST, port)).await?;
        let port = first.local_addr()?.port();
        return match TcpListener::bind((Ipv6Addr::LOCALHOST, port)).await {
            Ok(second) => Ok(vec![first, second]),
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(cannot_listen("localhost", port, error)),
            // The machine has no IPv6.
            Err(_) => Ok(vec![first]),
        };
    };
    let host = host.trim_matches(['[', ']']);
    let listener = listen(host, port, (host, port)).await?;
    let bound = listener.local_addr()?;
    let protection = Protection {
        has_tls: options.tls.is_some(),
        has_login: !options.test_mode || options.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some()),
        is_insecure: options.insecure,
    };
    exposure(bound.ip(), protection).map_err(|exposed| {
        let names = ListenerNames {
            address: "--address".to_owned(),
            tls: "--tls-cert and --tls-key".to_owned(),
            login: "tokens (no --test-mode)".to_owned(),
            insecure: "--insecure".to_owned(),
        };
        anyhow::anyhow!(exposed.explain(bound, &names))
    })?;
    Ok(vec![listener])
}

async fn listen(shown: &str, port: u16, address: impl tokio::net::ToSocketAddrs) -> Result<TcpListener> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|error| cannot_listen(shown, port, error))
}

fn cannot_listen(shown: &str, port: u16, error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow::anyhow!("cannot listen on port {port}: address already in use"),
        _ => anyhow::anyhow!("cannot listen on {shown} port {port}: {error}"),
    }
}

fn log_settings(options: &EventsServerOptions) -> LogSettings {
    LogSettings {
        durability: options.durability,
        interval: options.sync_interval,
        min_free: options.min_free,
        on_poison: match options.stay_when_poisoned {
            true => OnPoison::Stay,
            false => OnPoison::Exit,
        },
        recover: match options.recover_skip {
            true => RecoveryMode::Skip,
            false => RecoveryMode::Strict,
        },
        ..LogSettings::default()
    }
}
