//! Start and stop of a simulator: a listening server, its statistics listener and its ticker, as one value. Shutdown is
//! in reverse order of the start, and dropping the value stops everything without waiting.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use opcua::types::{AttributeId, DataValue, DateTime};
use opcua_server::{Server, ServerHandle};
use thalweg_kit::{blocking, files, threads};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::proxy::FaultProxy;
use crate::space::PlcAddressSpace;
use crate::ticker::{Ticker, TickerEvent, TickerSender};
use crate::{SimulatorError, SimulatorOptions, SimulatorStats, http, server};

const BACKLOG: u32 = 1_024;
const START_POLL: Duration = Duration::from_millis(2);
/// Connections that do not close within this time are abandoned.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

/// A running simulator.
pub struct Simulator {
    endpoint: String,
    stats_url: String,
    is_exposed: bool,
    reporter: ControlHandle,
    space: Arc<PlcAddressSpace>,
    server: ServerHandle,
    running: JoinHandle<Result<(), String>>,
    helpers: JoinSet<()>,
    ticker: Option<threads::JoinHandle<()>>,
    cancel: CancellationToken,
}

/// Requests statistics from the ticker, and starts held changes.
#[derive(Clone)]
pub(crate) struct ControlHandle {
    events: TickerSender,
    space: Arc<PlcAddressSpace>,
    front: Option<FaultProxy>,
}

/// Starts a simulator and returns once it accepts connections.
pub async fn start(options: SimulatorOptions) -> Result<Simulator, SimulatorError> {
    options.validate()?;
    let public = listen(&options.host, options.port, "OPC UA").await?;
    let port = local_port(&public, "OPC UA")?;
    let is_exposed = public.local_addr().is_ok_and(|address| !address.ip().is_loopback());
    let stats = listen_for_stats(&options, port).await?;
    let stats_port = local_port(&stats, "statistics")?;
    let host = announced_host(&options.host);

    let (events, inbox) = TickerSender::new();
    let space = Arc::new(PlcAddressSpace::new(&options));
    let (server, handle) = build(&options, &host, port, &space, &events).await?;
    let cancel = CancellationToken::new();
    let mut helpers = JoinSet::new();

    let (running, front) = if options.needs_front() {
        let inner = listen("127.0.0.1", 0, "the server behind the front").await?;
        let target = inner
            .local_addr()
            .map_err(|source| listen_error("127.0.0.1:0", "OPC UA", source))?;
        let running = run(server, &handle, inner).await?;
        // Endpoints must name the public port, not the one the server itself listens on.
        handle.info().port.store(port, Ordering::Relaxed);
        let front = FaultProxy::new(target, Duration::from_millis(options.latency));
        let drop_every = (options.drop_every > 0.0).then(|| Duration::from_secs_f64(options.drop_every));
        helpers.spawn(front.clone().run(public, drop_every, cancel.clone()));
        (running, Some(front))
    } else {
        (run(server, &handle, public).await?, None)
    };

    let cache = Arc::clone(handle.subscriptions());
    let ticker = Ticker::spawn(Arc::clone(&space), options.seed, cache, inbox)
        .map_err(|error| SimulatorError::Server(error.to_string()))?;
    let reporter = ControlHandle {
        events,
        space: Arc::clone(&space),
        front,
    };
    helpers.spawn(http::serve(stats, reporter.clone(), cancel.clone()));

    let endpoint = format!("opc.tcp://{host}:{port}/");
    let stats_url = format!("http://{host}:{stats_port}/sim/stats");
    info!(endpoint, stats_url, "simulator listening");
    Ok(Simulator {
        endpoint,
        stats_url,
        is_exposed,
        reporter,
        space,
        server: handle,
        running,
        helpers,
        ticker: Some(ticker),
        cancel,
    })
}

/// The library creates its certificate here if it has none, which takes a second of CPU time.
async fn build(
    options: &SimulatorOptions,
    host: &str,
    port: u16,
    space: &Arc<PlcAddressSpace>,
    events: &TickerSender,
) -> Result<(Server, ServerHandle), SimulatorError> {
    // The library writes a private key into this folder, so it is created with restricted permissions.
    files::create_folders(&options.pki_dir).map_err(|source| SimulatorError::Pki {
        path: options.pki_dir.clone(),
        source,
    })?;
    let (copy, host, space, events) = (options.clone(), host.to_owned(), Arc::clone(space), events.clone());
    let built = blocking::spawn(move || server::builder(&copy, &host, port, &space, &events).build());
    let (server, handle) = built
        .await
        .map_err(|error| SimulatorError::Server(error.to_string()))?
        .map_err(SimulatorError::Server)?;
    if options.secure && handle.info().server_certificate.is_none() {
        return Err(SimulatorError::Certificate(options.pki_dir.clone()));
    }
    Ok((server, handle))
}

/// Runs the server and returns once it accepts connections, which it shows by storing its port.
async fn run(
    server: Server,
    handle: &ServerHandle,
    listener: TcpListener,
) -> Result<JoinHandle<Result<(), String>>, SimulatorError> {
    let running = tokio::spawn(server.run_with(listener));
    while handle.info().port.load(Ordering::Relaxed) == 0 {
        if running.is_finished() {
            let reason = running
                .await
                .map_err(|error| SimulatorError::Server(error.to_string()))?;
            return Err(SimulatorError::Server(
                reason.err().unwrap_or_else(|| "it ended at once".to_owned()),
            ));
        }
        tokio::time::sleep(START_POLL).await;
    }
    Ok(running)
}

async fn listen(host: &str, port: u16, purpose: &'static str) -> Result<TcpListener, SimulatorError> {
    let fail = |source| listen_error(&format!("{host}:{port}"), purpose, source);
    let mut resolved = tokio::net::lookup_host((host, port)).await.map_err(fail)?;
    let target = resolved
        .next()
        .ok_or_else(|| fail(std::io::Error::other("the host has no address")))?;
    bind(target).map_err(fail)
}

/// Accepted connections inherit `nodelay`, so small responses are sent immediately.
fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    socket.set_reuseaddr(true)?;
    socket.set_nodelay(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn listen_for_stats(options: &SimulatorOptions, port: u16) -> Result<TcpListener, SimulatorError> {
    const PURPOSE: &str = "statistics";
    if options.http_port != 0 {
        return listen(&options.host, options.http_port, PURPOSE).await;
    }
    match listen(&options.host, port.wrapping_add(1), PURPOSE).await {
        Ok(listener) => Ok(listener),
        Err(_) => listen(&options.host, 0, PURPOSE).await,
    }
}

fn listen_error(address: &str, purpose: &'static str, source: std::io::Error) -> SimulatorError {
    SimulatorError::Listen {
        address: address.to_owned(),
        purpose,
        source,
    }
}

fn local_port(listener: &TcpListener, purpose: &'static str) -> Result<u16, SimulatorError> {
    let address = listener
        .local_addr()
        .map_err(|source| listen_error("?", purpose, source))?;
    Ok(address.port())
}

/// Returns the host name for an unspecified address, because clients cannot connect to that address.
fn announced_host(host: &str) -> String {
    match host.parse::<IpAddr>() {
        Ok(address) if address.is_unspecified() => std::fs::read_to_string("/proc/sys/kernel/hostname")
            .map(|name| name.trim().to_owned())
            .ok()
            .filter(|name| !name.is_empty())
            .unwrap_or_else(|| Ipv4Addr::LOCALHOST.to_string()),
        Ok(IpAddr::V6(address)) => format!("[{address}]"),
        _ => host.to_owned(),
    }
}

impl ControlHandle {
    pub(crate) fn let_go(&self) -> bool {
        self.space.let_go()
    }

    /// `None` once the simulator has stopped.
    pub(crate) async fn stats(&self) -> Option<SimulatorStats> {
        let (reply, answer) = oneshot::channel();
        self.events.send(TickerEvent::Report(reply));
        let stats = answer.await.ok()?;
        Some(SimulatorStats {
            front: self.front.as_ref().map(FaultProxy::stats),
            ..stats
        })
    }
}

impl Simulator {
    /// `opc.tcp://host:port/`
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Whether other hosts can reach the simulator.
    pub fn is_exposed(&self) -> bool {
        self.is_exposed
    }

    /// `http://host:port/sim/stats`
    pub fn stats_url(&self) -> &str {
        &self.stats_url
    }

    /// The line that a parent process reads to learn both addresses.
    pub fn ready_line(&self) -> String {
        format!("listening {} stats {}", self.endpoint, self.stats_url)
    }

    /// The current statistics; `None` after the simulator has ended.
    pub async fn stats(&self) -> Option<SimulatorStats> {
        self.reporter.stats().await
    }

    /// Cuts all connections now and returns how many were open. Needs one of the options `cuttable`, `drop_every` and
    /// `latency`; without them it returns 0.
    pub fn cut_connections(&self) -> u64 {
        self.reporter.front.as_ref().map_or(0, FaultProxy::cut)
    }

    /// Makes Read, Browse and CreateMonitoredItems refuse a node (such as `ns=3;s=FastUInt1`) with BadNodeIdUnknown, or
    /// serves it again. Its folder still lists it, and its items continue. Returns false if there is no such node.
    pub fn hide(&self, node: &str, hide: bool) -> bool {
        self.space.hide(node, hide)
    }

    /// Gives a writable node (such as `ns=3;s=TypesWritableDouble`) a value with a status, or a status alone, and reports
    /// it to its monitored items. Returns false if there is no such node.
    pub fn set(&self, node: &str, value: DataValue) -> bool {
        let Some(id) = self.space.put(node, &value) else {
            return false;
        };
        let reported = DataValue {
            server_timestamp: Some(DateTime::now()),
            ..value
        };
        let reported = std::iter::once((reported, &id, AttributeId::Value));
        self.server.subscriptions().notify_data_change(reported);
        true
    }

    /// With the option `hold`: starts the changes. Returns false if they have already started.
    pub fn let_go(&self) -> bool {
        self.space.let_go()
    }

    /// Waits until the server ends by itself, which it does only on a fault.
    pub async fn wait(&mut self) -> Result<(), SimulatorError> {
        match (&mut self.running).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(reason)) => Err(SimulatorError::Server(reason)),
            Err(error) => Err(SimulatorError::Server(error.to_string())),
        }
    }

    /// Closes all connections and stops.
    pub async fn shutdown(mut self) {
        self.stop();
        if !self.running.is_finished() {
            let _ = tokio::time::timeout(SHUTDOWN_PATIENCE, &mut self.running).await;
        }
        self.running.abort();
        let _ = tokio::time::timeout(SHUTDOWN_PATIENCE, async {
            while self.helpers.join_next().await.is_some() {}
        })
        .await;
        if let Some(ticker) = self.ticker.take() {
            let _ = blocking::spawn(move || ticker.join()).await;
        }
    }

    fn stop(&self) {
        self.server.cancel();
        self.cancel.cancel();
        self.reporter.events.send(TickerEvent::Stop);
    }
}

impl Drop for Simulator {
    fn drop(&mut self) {
        self.stop();
        self.running.abort();
    }
}
