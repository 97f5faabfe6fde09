//! Accepts connections and serves HTTP/1.1 and HTTP/2 on them until told to stop.
//!
//! Every connection is a task that holds one of `connections_max` permits; stopping first lets running requests finish,
//! then, after `stop_grace`, cuts them off.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderValue, Response, StatusCode, Version, header};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus::{IntCounter, IntGauge};
use thalweg_telemetry::{Foreign, LogLimiter, Metrics, Origins, Verdict};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::exchange::{self, Exchange};
use crate::guard::Peer;
use crate::options::Refusal;
use crate::refusal::problem;
use crate::status::State;
use crate::streams::{Close, Streams};
use crate::tls::Tls;
use crate::transport::{Patience, Protocol, Refuse, Transport, detect};
use crate::{Limits, Manners, history, listen};

/// Below it refusals are problems.
const API: &str = "/api/";

/// Clients beyond the limit that are told so; more than these are closed without a word.
const REFUSALS_MAX: usize = 64;

/// Descriptors above those of connections that are used to say so.
const REFUSALS_BEYOND: u64 = 16;

const REFUSAL_TIME: Duration = Duration::from_secs(2);

/// A listener that serves. Dropping it stops it at once, [`Running::stop`] with care.
pub struct Running {
    address: SocketAddr,
    tls: bool,
    stop: CancellationToken,
    cut: DropGuard,
    tasks: TaskTracker,
    stop_grace: Duration,
    connections: IntGauge,
}

/// Everything that accepting needs.
pub struct Listener {
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub tls: Option<Arc<Tls>>,
    pub router: Router,
    pub limits: Limits,
    pub manners: Manners,
    pub meters: Meters,
    /// Whose pages may send requests.
    pub origins: Arc<Origins>,
    /// Whose past is recorded while it serves.
    pub state: Option<Arc<State>>,
}

impl Running {
    pub(crate) fn begin(listener: Listener) -> Running {
        let (stop, cut, tasks) = (CancellationToken::new(), CancellationToken::new(), TaskTracker::new());
        let (address, tls) = (listener.address, listener.tls.is_some());
        let stop_grace = listener.limits.stop_grace;
        let connections = listener.meters.connections.clone();
        let refuse = listener
            .manners
            .refusal
            .map(|refusal| refuser(refusal, &listener.manners));
        let server = Arc::new(Server {
            tls: listener.tls,
            router: listener.router,
            limits: listener.limits,
            manners: listener.manners,
            refuse,
            meters: listener.meters,
            origins: listener.origins,
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
            connections,
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

    /// Open connections of all listeners that were begun together.
    pub fn connections(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let connections = self.connections.clone();
        move || u64::try_from(connections.get()).unwrap_or(0)
    }

    /// Accepts nothing more and closes connections when their request is answered; returns at once.
    pub fn close(&self) {
        self.stop.cancel();
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
        Meters::named("thalweg_http", metrics)
    }

    /// Of listeners that are counted by themselves.
    pub fn named(name: &'static str, metrics: &Metrics) -> Meters {
        let connections = IntGauge::new(format!("{name}_connections"), "Open connections of the listener.");
        let refused = IntCounter::new(
            format!("{name}_connections_refused_total"),
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
    manners: Manners,
    /// Makes the answers that the protocol would give by itself.
    refuse: Option<Refuse>,
    meters: Meters,
    origins: Arc<Origins>,
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
        let descriptor = u64::try_from(stream.as_raw_fd()).unwrap_or(0);
        let is_files = self.limits.descriptors_max.is_some_and(|max| descriptor >= max);
        let permit = (!is_files).then(|| self.connections.clone().try_acquire_owned().ok());
        if let Some(permit) = permit.flatten() {
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
                open = self.meters.connections.get(),
                held_back,
                "a connection was refused because too many are open{}",
                match is_files {
                    true => " for the limit of open files; raise it (ulimit -n)",
                    false => "",
                }
            );
        }
        // Nor may many words be said with what is kept for files.
        let is_scarce = self
            .limits
            .descriptors_max
            .is_some_and(|max| descriptor >= max.saturating_add(REFUSALS_BEYOND));
        if is_scarce {
            return;
        }
        if let Ok(permit) = self.refusals.clone().try_acquire_owned() {
            let text = match is_files {
                true => "as many connections are open as the limit of open files allows; try again later\n".to_owned(),
                false => {
                    format!("{connections_max} connections are open already, which is the limit; try again later\n")
                }
            };
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let own = self.refuse.as_ref().map(|refuse| refuse(status));
            let answer = own.unwrap_or_else(|| plain(status, &text));
            let encrypted = self.tls.is_some();
            self.tasks.spawn(async move {
                // Without a handshake, a client of TLS could not read it.
                if !encrypted {
                    let _ = timeout(REFUSAL_TIME, refuse(stream, &answer)).await;
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
                refuse(stream, &plain(StatusCode::BAD_REQUEST, text)).await?;
                return Ok(None);
            }
            tls.acceptor().accept(stream).await.map(Some)
        };
        match timeout(self.limits.tls_handshake_timeout, handshake).await?? {
            // On its own, so that a connection in the clear does not have the room of an encrypted one.
            Some(stream) => Box::pin(self.speak(stream, peer)).await,
            None => Ok(()),
        }
    }

    async fn speak<S>(&self, mut stream: S, peer: SocketAddr) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let is_http1 = self.tls.is_none() && !self.limits.http2_in_clear;
        let detected = match is_http1 {
            true => Some((Protocol::Http1, Bytes::new())),
            false => tokio::select! {
                detected = timeout(self.limits.header_timeout, detect(&mut stream)) => detected??,
                () = self.stop.cancelled() => None,
            },
        };
        let Some((protocol, first)) = detected else {
            return Ok(());
        };
        let patience = Patience {
            write_stall_max: self.limits.write_stall_max,
            push_stall_max: self.limits.push_stall_max,
            request_stall_max: self.limits.request_stall_max,
        };
        // It knows nothing of streams, nor of what is due on them.
        let exchange = Arc::new(Exchange::default());
        let (refuse, request_stall_max) = match protocol {
            Protocol::Http1 => (self.refuse.clone(), patience.request_stall_max),
            Protocol::Http2 => (None, None),
        };
        let of_bytes = Patience {
            request_stall_max,
            ..patience
        };
        let io = TokioIo::new(Transport::new(stream, first, of_bytes, exchange.clone()).refusing(refuse));
        let router = TowerToHyperService::new(self.router.clone());
        let server = self.manners.server.clone();
        // What is read at once with the end of a head is not looked at for its size, so that of the whole is.
        let (refusal, head_bytes_max) = (self.manners.refusal, self.limits.header_bytes_max);
        let (origins, is_encrypted) = (self.origins.clone(), self.tls.is_some());
        match protocol {
            Protocol::Http1 => {
                let service = service_fn(move |request: Request<Incoming>| {
                    let (exchange, server) = (exchange.clone(), server.clone());
                    let too_large = refusal.filter(|_| head_bytes(&request) > head_bytes_max);
                    let foreign = || cross_site(origins.judge(&request, is_encrypted).err()?, &request, refusal);
                    let refused = too_large.map(head_too_large).or_else(foreign);
                    let waits = request.headers().contains_key(header::EXPECT);
                    let mut request = request.map(|body| exchange::Incoming::new(body, exchange.clone(), waits));
                    request.extensions_mut().insert(Peer(peer));
                    let answer = match refused {
                        Some(refused) => Err(refused),
                        None => Ok(router.call(request)),
                    };
                    async move {
                        let response = match answer {
                            Ok(answer) => answer.await?,
                            Err(refused) => refused,
                        };
                        let response = exchange.read_on(signed(response, server)).await;
                        Ok::<_, Infallible>(exchange.answer(response))
                    }
                });
                self.http1(io, service).await.map_err(io::Error::other)
            }
            Protocol::Http2 => {
                let streams = Streams::new(patience, self.limits.header_timeout);
                let opened = streams.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let (stream, server) = (opened.open(), server.clone());
                    let foreign = || cross_site(origins.judge(&request, is_encrypted).err()?, &request, refusal);
                    let refused = foreign();
                    let mut request = request.map(|body| stream.request(body));
                    request.extensions_mut().insert(Peer(peer));
                    let answer = match refused {
                        Some(refused) => Err(refused),
                        None => Ok(router.call(request)),
                    };
                    async move {
                        let response = match answer {
                            Ok(answer) => answer.await?,
                            Err(refused) => refused,
                        };
                        Ok::<_, Infallible>(stream.answer(signed(response, server)))
                    }
                });
                // As with the encrypted ones: most connections speak HTTP/1.
                Box::pin(self.http2(io, service, &streams)).await
            }
        }
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

    async fn http2<I, S>(&self, io: I, service: S, streams: &Streams) -> io::Result<()>
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
            close = streams.closed() => match close {
                Close::Stalled(how) => return Err(io::Error::new(io::ErrorKind::TimedOut, how)),
                Close::Idle => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            },
        }
        .map_err(io::Error::other)
    }
}

/// As they came, but for white space.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let headers = request.headers().iter();
    let headers: usize = headers
        .map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len())
        .sum();
    let uri = request.uri().path_and_query().map_or(1, |path| path.as_str().len());
    request.method().as_str().len() + uri + "  HTTP/1.1\r\n\r\n".len() + headers
}

fn head_too_large(refusal: Refusal) -> Response<Body> {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let mut response = Response::new(Body::from(refusal(status, None)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// A refusal of what a page of another site may have sent, as what serves the path answers.
fn cross_site<B>(foreign: Foreign, request: &Request<B>, refusal: Option<Refusal>) -> Option<Response<Body>> {
    let (status, code) = match foreign {
        Foreign::Host(_) => (StatusCode::BAD_REQUEST, "bad_request"),
        _ => (StatusCode::FORBIDDEN, "not_authorized"),
    };
    let (path, text) = (request.uri().path(), foreign.to_string());
    let (kind, body) = match refusal {
        _ if path.starts_with(API) => ("application/problem+json", problem(status, code, &text)),
        Some(refusal) => ("application/json", refusal(status, Some(&text))),
        None => ("text/plain; charset=utf-8", format!("{text}\n")),
    };
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    if status == StatusCode::BAD_REQUEST && request.version() < Version::HTTP_2 {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    Some(response)
}

fn signed(mut response: Response<Body>, server: Option<HeaderValue>) -> Response<Body> {
    if let Some(server) = server {
        response.headers_mut().insert(header::SERVER, server);
    }
    response
}

/// Makes whole answers of the JSON that a component has for what nobody but the listener sees.
fn refuser(refusal: Refusal, manners: &Manners) -> Refuse {
    let server = manners.server.as_ref().and_then(|server| server.to_str().ok());
    let server = server.map_or_else(String::new, |server| format!("server: {server}\r\n"));
    Arc::new(move |status| {
        // A long address is a part of the head as any other.
        let status = match status {
            StatusCode::URI_TOO_LONG => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            other => other,
        };
        let more = match status {
            StatusCode::SERVICE_UNAVAILABLE => format!("{server}retry-after: 1\r\n"),
            _ => server.clone(),
        };
        whole(status, "application/json", &more, &refusal(status, None))
    })
}

fn plain(status: StatusCode, text: &str) -> Bytes {
    whole(status, "text/plain; charset=utf-8", "retry-after: 5\r\n", text)
}

/// An answer as its bytes, after which the connection is closed.
fn whole(status: StatusCode, kind: &str, headers: &str, text: &str) -> Bytes {
    let len = text.len();
    Bytes::from(format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len}\r\nconnection: close\r\n{headers}\r\n{text}"
    ))
}

/// Answers without looking at the request. Reads on until the client has closed, because closing with bytes unread would
/// take the answer away from it.
async fn refuse(mut stream: TcpStream, answer: &[u8]) -> io::Result<()> {
    stream.write_all(answer).await?;
    stream.shutdown().await?;
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}
