//! Accepts connections and serves HTTP/1.1 and HTTP/2 on them until told to stop.
//!
//! Every connection is a task that holds one of `connections_max` permits; stopping first lets running requests finish,
//! then, after `stop_grace`, cuts them off.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::Response;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus::{IntCounter, IntGauge};
use thalweg_telemetry::{LogLimiter, Metrics, Verdict};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::guard::Peer;
use crate::status::State;
use crate::tls::Tls;
use crate::transport::{Protocol, Transport, detect};
use crate::{Limits, history, listen};

/// Clients beyond the limit that are told so; more than these are closed without a word.
const REFUSALS_MAX: usize = 64;

const REFUSAL_TIME: Duration = Duration::from_secs(2);

/// A listener that serves. Dropping it stops it at once, [`Running::stop`] with care.
pub struct Running {
    address: SocketAddr,
    tls: bool,
    stop: CancellationToken,
    cut: DropGuard,
    tasks: TaskTracker,
    stop_grace: Duration,
}

/// Everything that accepting needs.
pub struct Listener {
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub tls: Option<Arc<Tls>>,
    pub router: Router,
    pub limits: Limits,
    pub meters: Meters,
    /// Whose past is recorded while it serves.
    pub state: Option<Arc<State>>,
}

impl Running {
    pub(crate) fn begin(listener: Listener) -> Running {
        let (stop, cut, tasks) = (CancellationToken::new(), CancellationToken::new(), TaskTracker::new());
        let (address, tls) = (listener.address, listener.tls.is_some());
        let stop_grace = listener.limits.stop_grace;
        let server = Arc::new(Server {
            tls: listener.tls,
            router: listener.router,
            limits: listener.limits,
            meters: listener.meters,
            stop: stop.clone(),
            cut: cut.clone(),
            connections: Arc::new(Semaphore::new(listener.limits.connections_max)),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            tasks: tasks.clone(),
        });
        tasks.spawn(server.accept(listener.listener));
        if let Some(state) = listener.state {
            let (stopped, cut_off) = (stop.clone(), cut.clone());
            tasks.spawn(async move {
                tokio::select! {
                    () = history::record(&state) => {}
                    () = stopped.cancelled() => {}
                    () = cut_off.cancelled() => {}
                }
            });
        }
        Running {
            address,
            tls,
            stop,
            cut: cut.drop_guard(),
            tasks,
            stop_grace,
        }
    }

    /// What was bound, with the port that was chosen for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where a browser on this machine finds the status page.
    pub fn url(&self) -> String {
        listen::local_url(self.address, self.tls)
    }

    /// Accepts nothing more, lets running requests finish within `stop_grace`, and returns when nothing runs.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        if timeout(self.stop_grace, self.tasks.wait()).await.is_err() {
            drop(self.cut);
            self.tasks.wait().await;
        }
    }
}

/// Counts of the listener.
#[derive(Clone)]
pub struct Meters {
    connections: IntGauge,
    refused: IntCounter,
}

impl Meters {
    pub fn register(metrics: &Metrics) -> Meters {
        let connections = IntGauge::new("thalweg_http_connections", "Open connections of the HTTP listener.");
        let refused = IntCounter::new(
            "thalweg_http_connections_refused_total",
            "Connections closed because there were too many.",
        );
        let valid = "the name is a valid constant";
        let meters = Meters {
            connections: connections.expect(valid),
            refused: refused.expect(valid),
        };
        metrics.register(meters.connections.clone());
        metrics.register(meters.refused.clone());
        meters
    }
}

struct Server {
    tls: Option<Arc<Tls>>,
    router: Router,
    limits: Limits,
    meters: Meters,
    stop: CancellationToken,
    /// Ends connections that did not end by themselves.
    cut: CancellationToken,
    connections: Arc<Semaphore>,
    refusals: Arc<Semaphore>,
    tasks: TaskTracker,
}

impl Server {
    async fn accept(self: Arc<Server>, listener: TcpListener) {
        let log = LogLimiter::default();
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.cut.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer, &log),
                Err(error) => {
                    if let Verdict::Log { held_back } = log.check("accept", 1) {
                        tracing::warn!(%error, held_back, "the HTTP listener could not accept a connection; raise the limit of open files if this goes on");
                    }
                    // Usually out of file descriptors: trying at once again would only burn the processor.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn admit(self: &Arc<Server>, stream: TcpStream, peer: SocketAddr, log: &LogLimiter) {
        let server = self.clone();
        if let Ok(permit) = self.connections.clone().try_acquire_owned() {
            self.tasks.spawn(async move {
                server.meters.connections.inc();
                tokio::select! {
                    outcome = server.serve(stream, peer) => {
                        if let Err(error) = outcome {
                            tracing::debug!(%peer, %error, "an HTTP connection ended early");
                        }
                    }
                    () = server.cut.cancelled() => {}
                }
                server.meters.connections.dec();
                drop(permit);
            });
            return;
        }
        self.meters.refused.inc();
        let connections_max = self.limits.connections_max;
        if let Verdict::Log { held_back } = log.check("connections", 1) {
            tracing::warn!(
                connections_max,
                held_back,
                "a connection was refused because too many are open"
            );
        }
        if let Ok(permit) = self.refusals.clone().try_acquire_owned() {
            let text = format!("{connections_max} connections are open already, which is the limit; try again later\n");
            let encrypted = self.tls.is_some();
            self.tasks.spawn(async move {
                // Without a handshake, a client of TLS could not read it.
                if !encrypted {
                    let _ = timeout(REFUSAL_TIME, refuse(stream, "503 Service Unavailable", &text)).await;
                }
                drop(permit);
            });
        }
    }

    async fn serve(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            return self.speak(stream, peer).await;
        };
        let handshake = async {
            let mut first = [0; 1];
            stream.peek(&mut first).await?;
            if first[0].is_ascii_uppercase() {
                let text = "this port speaks HTTPS only; begin the address with https://\n";
                refuse(stream, "400 Bad Request", text).await?;
                return Ok(None);
            }
            tls.acceptor().accept(stream).await.map(Some)
        };
        match timeout(self.limits.tls_handshake_timeout, handshake).await?? {
            Some(stream) => self.speak(stream, peer).await,
            None => Ok(()),
        }
    }

    async fn speak<S>(&self, mut stream: S, peer: SocketAddr) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let detected = tokio::select! {
            detected = timeout(self.limits.header_timeout, detect(&mut stream)) => detected??,
            () = self.stop.cancelled() => None,
        };
        let Some((protocol, first)) = detected else {
            return Ok(());
        };
        let io = TokioIo::new(Transport::new(stream, first, self.limits.write_stall_max));
        let router = TowerToHyperService::new(self.router.clone());
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Peer(peer));
            router.call(request)
        });
        match protocol {
            Protocol::Http1 => self.http1(io, service).await,
            Protocol::Http2 => self.http2(io, service).await,
        }
        .map_err(io::Error::other)
    }

    async fn http1<I, S>(&self, io: I, service: S) -> hyper::Result<()>
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Send + 'static,
        S::Future: Send,
    {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_timeout)
            .max_buf_size(self.limits.header_bytes_max)
            .serve_connection(io, service)
            .with_upgrades();
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            outcome = connection.as_mut() => outcome,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    }

    async fn http2<I, S>(&self, io: I, service: S) -> hyper::Result<()>
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Send + 'static,
        S::Future: Send + 'static,
    {
        let header_bytes_max = u32::try_from(self.limits.header_bytes_max).unwrap_or(u32::MAX);
        let connection = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .max_concurrent_streams(self.limits.http2_streams_max)
            .max_header_list_size(header_bytes_max)
            .keep_alive_interval(self.limits.header_timeout)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            outcome = connection.as_mut() => outcome,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    }
}

/// Answers without looking at the request. Reads on until the client has closed, because closing with bytes unread would
/// take the answer away from it.
async fn refuse(mut stream: TcpStream, status: &str, text: &str) -> io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: {}\r\nconnection: close\r\nretry-after: 5\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await?;
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}
