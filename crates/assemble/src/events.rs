//! `thalweg events serve`: the event store as a process of its own.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use thalweg_console::{Console, Limits, Manners, Running};
use thalweg_events::{
    DEFAULT, EmbeddedStore, EventsError, EventsOptions, NewNamespace, NewToken, Scopes, Store, Token, new_token,
};
use thalweg_events_api::{EventsApiOptions, Server, refusal};
use thalweg_log::disk::Ram;
use thalweg_log::{Durability, EmbeddedLog, Log, LogOptions};
use thalweg_queue::settings::{LogSettings, OnPoison, Recover};
use thalweg_telemetry::{Metrics, register_process_metrics};
use tokio::net::TcpListener;

use crate::data_dir::DataDir;
use crate::log::OpenLog;
use crate::log_memory::LogMemory;

/// What the server is started with.
#[derive(Clone, Debug)]
pub struct ServeEvents {
    pub port: u16,
    /// `None`: nothing is kept, and everybody may do everything.
    pub data_dir: Option<PathBuf>,
    /// Of the namespace `default`.
    pub token: Option<String>,
    pub durability: Durability,
    pub sync_interval: Duration,
    pub recover_skip: bool,
    pub stay_when_poisoned: bool,
    pub min_free: Option<u64>,
    pub memory: u64,
    pub message_bytes_max: usize,
    pub open_admin: bool,
    /// Also other machines may do everything.
    pub insecure: bool,
}

/// While it runs.
pub struct EventsServer {
    server: Arc<Server>,
    listeners: Vec<Running>,
    log: Kept,
    /// Of the namespace `default`, if it was made now.
    pub new_token: Option<String>,
    pub address: SocketAddr,
}

enum Kept {
    InMemory(Arc<EmbeddedLog>),
    OnDisk(OpenLog, DataDir),
}

/// Connections at most, if the system allows so many files.
const CONNECTIONS_MAX: usize = 65_536;
/// What running requests may take when the server stops, once all that was being stored is.
const STOP_GRACE: Duration = Duration::from_millis(50);
/// So long what is being stored is waited for.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// A client that sends nothing of what it has begun, or takes nothing of what it gets, or asks for nothing.
const REQUEST_STALL: Duration = Duration::from_secs(30);
const IDLE_MAX: Duration = Duration::from_secs(120);
/// In memory: small files, because none of them is ever recycled while its messages are there.
const RAM_FILE: u64 = 16 << 20;

impl EventsServer {
    /// The port is taken before anything is opened or made. Must be called on a runtime.
    pub async fn start(options: &ServeEvents) -> Result<EventsServer> {
        let token = options.token.as_deref().map(given_token).transpose()?;
        let test_mode = options.data_dir.is_none();
        let listeners = bind(options.port, test_mode && !options.insecure).await?;
        let address = listeners.first().context("no listener")?.local_addr()?;
        // It answers from here on that it lives, and that the store is being recovered.
        let metrics = Arc::new(Metrics::new(false));
        register_process_metrics(&metrics);
        let server = Server::starting(api_options(options, test_mode), metrics.clone());
        let manners = Manners {
            server: format!("Thalweg/{}", env!("CARGO_PKG_VERSION")).parse().ok(),
            refusal: Some(refusal),
        };
        let listeners = Console::serve(listeners, &server.router(), limits(), &manners, &metrics)?;
        if let Some(first) = listeners.first() {
            server.count_connections(first.connections());
        }
        let (log, kept) = match &options.data_dir {
            None => {
                let log = Arc::new(in_memory(options)?);
                (log.clone() as Arc<dyn Log>, Kept::InMemory(log))
            }
            Some(folder) => {
                let held = DataDir::take(folder).map_err(|error| match folder.join("LOCK").exists() {
                    true => error.context("data directory is in use"),
                    false => error,
                })?;
                let memory = LogMemory::of(usize::try_from(options.memory / 4).unwrap_or(usize::MAX), 1);
                let log = OpenLog::open(&log_settings(options), memory, folder).await?;
                (log.log(), Kept::OnDisk(log, held))
            }
        };
        let settings = EventsOptions {
            durability: if test_mode { Durability::Os } else { options.durability },
            in_memory: test_mode,
        };
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(log, settings).await?);
        let new_token = make_default(store.as_ref(), token).await?;
        tracing::info!(
            backend = store.backend(),
            durability = store.durability(),
            %address,
            "the event store is open"
        );
        server.open(store);
        Ok(EventsServer {
            server,
            listeners,
            log: kept,
            new_token,
            address,
        })
    }

    /// Ends subscriptions, answers what is being committed, refuses the rest, and closes. All listeners at the same time.
    pub async fn stop(self) {
        self.server.stop();
        self.listeners.iter().for_each(Running::close);
        let _ = tokio::time::timeout(SETTLE_MAX, self.server.settled()).await;
        futures::future::join_all(self.listeners.into_iter().map(Running::stop)).await;
        let close = move || match self.log {
            Kept::InMemory(log) => log.close(),
            Kept::OnDisk(log, _held) => log.close(),
        };
        let _ = tokio::task::spawn_blocking(close).await;
    }
}

fn api_options(options: &ServeEvents, test_mode: bool) -> EventsApiOptions {
    EventsApiOptions {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        test_mode,
        open_admin: options.open_admin,
        message_bytes_max: options.message_bytes_max,
        memory_bytes: usize::try_from(options.memory / 4).unwrap_or(usize::MAX),
        ..EventsApiOptions::default()
    }
}

fn limits() -> Limits {
    Limits {
        connections_max: CONNECTIONS_MAX,
        header_timeout: IDLE_MAX,
        request_stall_max: Some(REQUEST_STALL),
        write_stall_max: IDLE_MAX,
        http2_in_clear: false,
        stop_grace: STOP_GRACE,
        ..Limits::default()
    }
}

fn given_token(text: &str) -> Result<Token> {
    let token = Token::parse(text)?;
    match token.namespace() {
        DEFAULT => Ok(token),
        other => bail!("provided token is for namespace '{other}', expected '{DEFAULT}'"),
    }
}

/// On all addresses, or on this machine's own.
async fn bind(port: u16, own_only: bool) -> Result<Vec<TcpListener>> {
    let (six, four) = match own_only {
        true => (Ipv6Addr::LOCALHOST, Ipv4Addr::LOCALHOST),
        false => (Ipv6Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED),
    };
    let taken = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AddrInUse => anyhow::anyhow!("cannot listen on port {port}: address already in use"),
        _ => anyhow::anyhow!("cannot listen on port {port}: {error}"),
    };
    if !own_only {
        // Takes both kinds, where the machine has both.
        return match TcpListener::bind((six, port)).await {
            Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
                Ok(vec![TcpListener::bind((four, port)).await.map_err(taken)?])
            }
            bound => Ok(vec![bound.map_err(taken)?]),
        };
    }
    let first = TcpListener::bind((four, port)).await.map_err(taken)?;
    let port = first.local_addr()?.port();
    match TcpListener::bind((six, port)).await {
        Ok(second) => Ok(vec![first, second]),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => Err(taken(error)),
        Err(_) => Ok(vec![first]),
    }
}

fn log_settings(options: &ServeEvents) -> LogSettings {
    LogSettings {
        durability: options.durability,
        interval: options.sync_interval,
        min_free: options.min_free,
        on_poison: match options.stay_when_poisoned {
            true => OnPoison::Stay,
            false => OnPoison::Exit,
        },
        recover: match options.recover_skip {
            true => Recover::Skip,
            false => Recover::Strict,
        },
        ..LogSettings::default()
    }
}

fn in_memory(options: &ServeEvents) -> Result<EmbeddedLog> {
    let settings = LogOptions {
        folder: "memory".to_owned(),
        file_bytes: RAM_FILE,
        first_file_bytes: RAM_FILE,
        spare: 1,
        files_max: usize::MAX,
        min_free_bytes: Some(2 * RAM_FILE),
        linger: Duration::ZERO,
        // What is in memory is read from there.
        tail_bytes_max: 0,
        scrub: Duration::ZERO,
        ..LogOptions::default()
    };
    let disk = Arc::new(Ram::new(options.memory));
    Ok(EmbeddedLog::open(disk, 1, &settings)?)
}

/// The namespace that always exists, and its token. Returns the token's text if it was made now.
async fn make_default(store: &dyn Store, given: Option<Token>) -> Result<Option<String>> {
    match store.namespace(DEFAULT).await {
        Ok(_) => {
            if let Some(token) = given {
                let token = NewToken {
                    digest: *token.digest(),
                    scopes: Scopes::ALL,
                    description: "Given at the start".to_owned(),
                    expires_at: None,
                };
                store.create_token(DEFAULT, token).await?;
            }
            Ok(None)
        }
        Err(EventsError::NamespaceNotFound(_)) => {
            let (token, text) = match given {
                Some(token) => (token, None),
                None => {
                    let (token, text) = new_token(DEFAULT)?;
                    (token, Some(text))
                }
            };
            let new = NewNamespace {
                name: DEFAULT.to_owned(),
                description: "Default namespace".to_owned(),
                metadata: None,
                digest: *token.digest(),
                scopes: Scopes::ALL,
            };
            store.create(new).await?;
            Ok(text)
        }
        Err(error) => Err(error.into()),
    }
}
