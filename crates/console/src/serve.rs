//! Accepts connections and serves HTTP/1.1 and HTTP/2 on them until it is stopped.
//!
//! Every connection is a task with one of `connections_max` slots. If all are taken by clients that wait for an answer
//! or listen, a few additional connections are accepted for probes and the status page. A stop first lets running
//! requests finish, then, after `stop_grace`, cuts them off.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd as _;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderValue, Method, Response, StatusCode, Version, header};
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use thalweg_http::answer;
use thalweg_http::tls_server::ServerTls;
use thalweg_telemetry::{IntGauge, LogDecision, LogLimiter, OriginPolicy, OriginRefusal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::connection_slots::{ActiveRequest, ConnectionPermit, ConnectionSlots};
use crate::event_stream::{Handover, push};
use crate::guard::Peer;
use crate::http1_exchange;
use crate::http2_streams::{CloseReason, Http2Streams};
use crate::listener_metrics::ListenerMetrics;
use crate::options::RefusalFn;
use crate::refusal::ListenerErrorKind;
use crate::status::ConsoleState;
use crate::transport::{Protocol, RefusalEncoder, StallTimeouts, Transport, detect};
use crate::{HttpLimits, ResponseStyle, history, listen};

/// Below this prefix refusals are problems.
const API: &str = "/api/";

/// Additional connections when all slots are taken. One that sends no request at once is closed for the next.
const PASSING_MAX: usize = 32;

/// Time limits of an additional connection, and of the head of its request.
const PASSING_TIME: Duration = Duration::from_secs(10);
const PASSING_HEAD_TIME: Duration = Duration::from_secs(1);

/// Clients beyond the limit that get a refusal; further ones are closed without an answer.
const REFUSALS_MAX: usize = 64;

/// File descriptors above those of connections that are used for refusals.
const REFUSALS_BEYOND: u64 = 16;

const REFUSAL_TIME: Duration = Duration::from_secs(2);

/// A running listener. Dropping it stops it at once, [`RunningListener::stop`] gracefully.
pub struct RunningListener {
    address: SocketAddr,
    tls: bool,
    stop: CancellationToken,
    cut: DropGuard,
    tasks: TaskTracker,
    stop_grace: Duration,
    connections: IntGauge,
}

/// Everything needed for accepting connections.
pub struct HttpListener {
    pub listener: TcpListener,
    pub address: SocketAddr,
    pub tls: Option<Arc<ServerTls>>,
    pub router: Router,
    pub limits: HttpLimits,
    pub manners: ResponseStyle,
    pub meters: ListenerMetrics,
    /// Which origins may send requests.
    pub origins: Arc<OriginPolicy>,
    /// Its own slots, or those shared by several listeners.
    pub places: Arc<ConnectionSlots>,
    /// Set for a listener that records the history while it serves.
    pub state: Option<Arc<ConsoleState>>,
}

impl RunningListener {
    pub(crate) fn begin(listener: HttpListener) -> RunningListener {
        let (stop, cut, tasks) = (CancellationToken::new(), CancellationToken::new(), TaskTracker::new());
        let (address, tls) = (listener.address, listener.tls.is_some());
        let stop_grace = listener.limits.stop_grace;
        let connections = listener.meters.connections.clone();
        let refuse = listener
            .manners
            .refusal
            .map(|refusal| refuser(refusal, &listener.manners));
        let server = Arc::new(HttpServer {
            tls: listener.tls,
            router: listener.router,
            limits: listener.limits,
            manners: listener.manners,
            refuse,
            meters: listener.meters,
            origins: listener.origins,
            stop: stop.clone(),
            cut: cut.clone(),
            places: listener.places,
            passing: ConnectionSlots::passing(PASSING_MAX),
            refusals: Arc::new(Semaphore::new(REFUSALS_MAX)),
            log: LogLimiter::default(),
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
        RunningListener {
            address,
            tls,
            stop,
            cut: cut.drop_guard(),
            tasks,
            stop_grace,
            connections,
        }
    }

    /// The bound address, with the actual port for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the status page for a browser on this machine.
    pub fn url(&self) -> String {
        listen::local_url(self.address, self.tls)
    }

    /// Open connections of all listeners that were started together.
    pub fn connections(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let connections = self.connections.clone();
        move || u64::try_from(connections.get()).unwrap_or(0)
    }

    /// Accepts no more connections and closes existing ones when their request is answered; returns at once.
    pub fn close(&self) {
        self.stop.cancel();
    }

    /// Accepts no more connections, lets running requests finish within `stop_grace`, and returns when nothing runs.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        if timeout(self.stop_grace, self.tasks.wait()).await.is_err() {
            drop(self.cut);
            self.tasks.wait().await;
        }
    }
}

struct HttpServer {
    tls: Option<Arc<ServerTls>>,
    router: Router,
    limits: HttpLimits,
    manners: ResponseStyle,
    /// Builds the answers that the library would otherwise give by itself.
    refuse: Option<RefusalEncoder>,
    meters: ListenerMetrics,
    origins: Arc<OriginPolicy>,
    stop: CancellationToken,
    /// Ends connections that did not end by themselves.
    cut: CancellationToken,
    places: Arc<ConnectionSlots>,
    passing: Arc<ConnectionSlots>,
    refusals: Arc<Semaphore>,
    /// So that frequent clients do not fill the log.
    log: LogLimiter,
    tasks: TaskTracker,
}

impl HttpServer {
    async fn accept(self: Arc<HttpServer>, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                () = self.stop.cancelled() => return,
                () = self.cut.cancelled() => return,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => self.admit(stream, peer),
                Err(error) => {
                    if let LogDecision::Log { held_back } = self.log.check("accept", 1) {
                        tracing::warn!(%error, held_back, "the HTTP listener could not accept a connection; raise the limit of open files if this goes on");
                    }
                    // Usually out of file descriptors: retrying at once would only burn CPU.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    fn admit(self: &Arc<HttpServer>, stream: TcpStream, peer: SocketAddr) {
        let descriptor = u64::try_from(stream.as_raw_fd()).unwrap_or(0);
        let is_files = self.limits.descriptors_max.is_some_and(|max| descriptor >= max);
        // Descriptors reserved for files must not be used for many refusals either.
        let is_scarce = self
            .limits
            .descriptors_max
            .is_some_and(|max| descriptor >= max.saturating_add(REFUSALS_BEYOND));
        if let Some((held, left)) = self.places.take(is_files, &self.cut) {
            if let Some(why) = left {
                self.meters.made_room.with_label_values(&[why.as_str()]).inc();
            }
            return self.hold(stream, peer, held, false);
        }
        if !is_scarce
            && !self.origins.links.is_empty()
            && let Some((held, _)) = self.passing.take(false, &self.cut)
        {
            self.meters.passed.inc();
            self.tell_full(is_files);
            return self.hold(stream, peer, held, true);
        }
        self.meters.refused.inc();
        self.tell_full(is_files);
        if is_scarce {
            return;
        }
        if let Ok(permit) = self.refusals.clone().try_acquire_owned() {
            let text = match is_files {
                true => "as many connections are open as the limit of open files allows; try again later\n".to_owned(),
                false => full(self.places.most()),
            };
            let status = StatusCode::SERVICE_UNAVAILABLE;
            let own = self.refuse.as_ref().map(|refuse| refuse(status));
            let answer = own.unwrap_or_else(|| plain(status, &text));
            let encrypted = self.tls.is_some();
            self.tasks.spawn(async move {
                // Without a handshake, a TLS client could not read it.
                if !encrypted {
                    let _ = timeout(REFUSAL_TIME, refuse(stream, &answer)).await;
                }
                drop(permit);
            });
        }
    }

    /// Serves until either side ends the connection.
    fn hold(self: &Arc<HttpServer>, stream: TcpStream, peer: SocketAddr, held: ConnectionPermit, passes: bool) {
        let server = self.clone();
        self.tasks.spawn(async move {
            server.meters.connections.inc();
            let leave = held.place().leave.clone();
            let served = async {
                match passes {
                    false => server.serve(stream, peer, &held, passes).await,
                    true => timeout(PASSING_TIME, server.serve(stream, peer, &held, passes)).await?,
                }
            };
            let outcome = tokio::select! {
                outcome = served => outcome,
                () = leave.cancelled() => Ok(None),
            };
            match outcome {
                // In its own task, which is as small as a listening client.
                Ok(Some(stream)) => server.listen(stream, peer, held),
                other => {
                    told(peer, other.map(drop));
                    server.meters.connections.dec();
                }
            }
        });
    }

    fn listen(self: &Arc<HttpServer>, stream: EventStreamFuture, peer: SocketAddr, held: ConnectionPermit) {
        let meters = self.meters.connections.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                outcome = stream => told(peer, outcome),
                () = held.place().leave.cancelled() => {}
            }
            meters.dec();
        });
    }

    fn tell_full(&self, is_files: bool) {
        let connections_max = self.places.most();
        if let LogDecision::Log { held_back } = self.log.check("connections", 1) {
            tracing::warn!(
                connections_max,
                open = self.meters.connections.get(),
                held_back,
                "all connections are in use, and only probes are accepted{}",
                match is_files {
                    true => ": that is the limit of open files; raise it (ulimit -n)",
                    false => "; raise max_connections of the listener",
                }
            );
        }
    }

    async fn serve(
        self: &Arc<HttpServer>,
        stream: TcpStream,
        peer: SocketAddr,
        held: &ConnectionPermit,
        passes: bool,
    ) -> io::Result<Option<EventStreamFuture>> {
        stream.set_nodelay(true)?;
        let Some(tls) = &self.tls else {
            return self.speak(stream, peer, held, passes).await;
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
            // Boxed, so that a connection in the clear does not have the size of an encrypted one.
            Some(stream) => Box::pin(self.speak(stream, peer, held, passes)).await,
            None => Ok(None),
        }
    }

    /// Until the connection ends, or only an event stream is left of it.
    async fn speak<S>(
        self: &Arc<HttpServer>,
        mut stream: S,
        peer: SocketAddr,
        held: &ConnectionPermit,
        passes: bool,
    ) -> io::Result<Option<EventStreamFuture>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let header_timeout = match passes {
            true => PASSING_HEAD_TIME,
            false => self.limits.header_timeout,
        };
        let is_http1 = self.tls.is_none() && !self.limits.http2_in_clear;
        let detected = match is_http1 {
            true => Some((Protocol::Http1, Bytes::new())),
            false => tokio::select! {
                detected = timeout(header_timeout, detect(&mut stream)) => detected??,
                () = self.stop.cancelled() => None,
            },
        };
        let Some((protocol, first)) = detected else {
            return Ok(None);
        };
        let patience = StallTimeouts {
            write_stall_max: self.limits.write_stall_max,
            push_stall_max: self.limits.push_stall_max,
            request_stall_max: self.limits.request_stall_max,
        };
        // The transport knows neither streams nor their deadlines.
        let exchange = held.place().exchange.clone();
        let (refuse, request_stall_max) = match protocol {
            Protocol::Http1 => (self.refuse.clone(), patience.request_stall_max),
            Protocol::Http2 => (None, None),
        };
        let of_bytes = StallTimeouts {
            request_stall_max,
            ..patience
        };
        let io = TokioIo::new(Transport::new(stream, first, of_bytes, exchange.clone()).refusing(refuse));
        let router = TowerToHyperService::new(self.router.clone());
        let (server, requests) = (self.clone(), held.server());
        match protocol {
            Protocol::Http1 => {
                let handover = Handover::default();
                let taken = handover.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let (exchange, server, handover) = (exchange.clone(), server.clone(), handover.clone());
                    let version = request.version();
                    let is_first = requests.is_first() && *request.method() == Method::GET;
                    let (mut serving, receiving) = requests.begin(request.body().is_end_stream());
                    let form = server.form(&request);
                    let refused = server.refuses(&request, form, passes);
                    let waits = request.headers().contains_key(header::EXPECT);
                    let mut request = request
                        .map(|body| http1_exchange::Http1RequestBody::new(body, exchange.clone(), waits, receiving));
                    request.extensions_mut().insert(Peer(peer));
                    let answer = match refused {
                        Some(refused) => Err(refused),
                        None => Ok(router.call(request)),
                    };
                    async move {
                        let response = match answer {
                            Ok(answer) => server.answered(answer.await?, form, &mut serving),
                            Err(refused) => refused,
                        };
                        let mut response = exchange.read_on(server.signed(response)).await;
                        if passes {
                            let close = HeaderValue::from_static("close");
                            response.headers_mut().insert(header::CONNECTION, close);
                        }
                        let is_taken = is_first
                            && http1_exchange::is_push(&response)
                            && response
                                .headers()
                                .get(header::CONNECTION)
                                .is_none_or(|value| value != "close")
                            && !server.stop.is_cancelled();
                        let response = exchange.answer(response, Some(serving));
                        match is_taken {
                            true => handover.give(response, version).await,
                            false => Ok::<_, Infallible>(response),
                        }
                    }
                });
                let served = self.http1(io, service, header_timeout, &taken).await;
                if let Err(error) = &served {
                    self.count_unread(error);
                }
                let taken = served.map_err(io::Error::other)?;
                Ok(taken.map(|(io, (answer, version))| {
                    let listening: EventStreamFuture = Box::pin(push(io.into_inner(), answer, version));
                    listening
                }))
            }
            Protocol::Http2 => {
                let streams = Http2Streams::new(patience, header_timeout);
                let opened = streams.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let (stream, server) = (opened.open(), server.clone());
                    let (mut serving, receiving) = requests.begin(request.body().is_end_stream());
                    let form = server.form(&request);
                    let refused = server.refuses(&request, form, passes);
                    let mut request = request.map(|body| stream.request(body, receiving));
                    request.extensions_mut().insert(Peer(peer));
                    let answer = match refused {
                        Some(refused) => Err(refused),
                        None => Ok(router.call(request)),
                    };
                    async move {
                        let response = match answer {
                            Ok(answer) => server.answered(answer.await?, form, &mut serving),
                            Err(refused) => refused,
                        };
                        Ok::<_, Infallible>(stream.answer(server.signed(response), serving))
                    }
                });
                // Boxed like the encrypted ones: most connections are HTTP/1.
                Box::pin(self.http2(io, service, &streams)).await.map(|()| None)
            }
        }
    }

    fn form<B>(&self, request: &Request<B>) -> RefusalFormat {
        match self.manners.refusal {
            _ if request.uri().path().starts_with(API) => RefusalFormat::Problem,
            Some(refusal) => RefusalFormat::Json(refusal),
            None => RefusalFormat::Text,
        }
    }

    /// Refusals before any path sees the request.
    fn refuses<B>(&self, request: &Request<B>, form: RefusalFormat, passes: bool) -> Option<Response<Body>> {
        // The library does not check the size of data that is read together with the end of a head, so the whole head
        // is checked here.
        let is_http1 = request.version() < Version::HTTP_2;
        if let Some(refusal) = self.manners.refusal.filter(|_| is_http1)
            && head_bytes(request) > self.limits.header_bytes_max
        {
            return Some(head_too_large(refusal));
        }
        if passes && !self.origins.links.have(request.uri().path()) {
            let text = full(self.places.most());
            return Some(form.refusal(ListenerErrorKind::TooManyConnections, text.trim_end()));
        }
        let foreign = self.origins.judge(request, self.tls.is_some()).err()?;
        let kind = match foreign {
            OriginRefusal::Host(_) => ListenerErrorKind::BadRequest,
            _ => ListenerErrorKind::NotAuthorized,
        };
        let mut response = form.refusal(kind, &foreign.to_string());
        if kind == ListenerErrorKind::BadRequest && is_http1 {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        Some(response)
    }

    /// An event stream needs one of the stream slots.
    fn answered(
        &self,
        mut response: Response<Body>,
        form: RefusalFormat,
        serving: &mut ActiveRequest,
    ) -> Response<Body> {
        if !http1_exchange::is_push(&response) {
            return response;
        }
        if !serving.becomes_stream() {
            let most = self.places.streams_most();
            let text = format!("{most} event streams are open already, which is the limit; try again later");
            self.meters.refused.inc();
            if let LogDecision::Log { held_back } = self.log.check("streams", 1) {
                tracing::warn!(
                    streams_max = most,
                    held_back,
                    "the maximum number of event streams is open, and another one was refused; raise max_connections \
                     of the listener"
                );
            }
            return form.refusal(ListenerErrorKind::TooManyConnections, &text);
        }
        // A proxy in between would buffer events.
        let no = HeaderValue::from_static("no");
        response.headers_mut().insert("x-accel-buffering", no);
        response
    }

    fn signed(&self, mut response: Response<Body>) -> Response<Body> {
        self.meters.answered(response.status());
        if let Some(server) = self.manners.server.clone() {
            response.headers_mut().insert(header::SERVER, server);
        }
        response
    }

    /// Counts answers of the library before there is a request.
    fn count_unread(&self, error: &hyper::Error) {
        if error.is_parse_too_large() {
            self.meters.answered(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
        } else if error.is_parse() {
            self.meters.answered(StatusCode::BAD_REQUEST);
        }
    }

    /// Returns the socket with the answer if that was handed over.
    async fn http1<I, S>(
        &self,
        io: I,
        service: S,
        header_timeout: Duration,
        taken: &Handover,
    ) -> hyper::Result<Option<(I, (Response<Body>, Version))>>
    where
        I: hyper::rt::Read + hyper::rt::Write + Unpin + Send + 'static,
        S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Unpin + Send + 'static,
        S::Future: Send,
    {
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(self.limits.header_bytes_max)
            .serve_connection(io, service);
        let taken = tokio::select! {
            outcome = &mut connection => return outcome.map(|()| None),
            taken = taken.taken() => taken,
            () = self.stop.cancelled() => {
                Pin::new(&mut connection).graceful_shutdown();
                tokio::select! {
                    outcome = &mut connection => return outcome.map(|()| None),
                    taken = taken.taken() => taken,
                }
            }
        };
        Ok(Some((connection.into_parts().io, taken)))
    }

    async fn http2<I, S>(&self, io: I, service: S, streams: &Http2Streams) -> io::Result<()>
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
                CloseReason::Stalled(how) => return Err(io::Error::new(io::ErrorKind::TimedOut, how)),
                CloseReason::Idle => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            },
        }
        .map_err(io::Error::other)
    }
}

/// An event stream in progress.
type EventStreamFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

fn told(peer: SocketAddr, outcome: io::Result<()>) {
    if let Err(error) = outcome {
        tracing::debug!(%peer, %error, "an HTTP connection ended early");
    }
}

/// The original size, except for white space.
fn head_bytes<B>(request: &Request<B>) -> usize {
    let headers = request.headers().iter();
    let headers: usize = headers
        .map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len())
        .sum();
    let uri = request.uri().path_and_query().map_or(1, |path| path.as_str().len());
    request.method().as_str().len() + uri + "  HTTP/1.1\r\n\r\n".len() + headers
}

fn head_too_large(refusal: RefusalFn) -> Response<Body> {
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    let mut response = Response::new(Body::from(refusal(status, None)));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(answer::JSON));
    headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// In the form used by the component that serves the path.
#[derive(Clone, Copy)]
enum RefusalFormat {
    Problem,
    Json(RefusalFn),
    Text,
}

impl RefusalFormat {
    fn refusal(self, kind: ListenerErrorKind, text: &str) -> Response<Body> {
        let facts = kind.facts();
        let (media_type, body) = match self {
            RefusalFormat::Problem => (answer::PROBLEM_JSON, answer::problem(facts, text).to_string()),
            RefusalFormat::Json(refusal) => (answer::JSON, refusal(answer::status(facts), Some(text))),
            RefusalFormat::Text => (answer::TEXT, format!("{text}\n")),
        };
        answer::refusal(facts, media_type, body)
    }
}

fn full(connections_max: usize) -> String {
    format!("{connections_max} connections are open already, which is the limit; try again later\n")
}

/// Builds complete answers from a component's JSON, for refusals that only the listener sees.
fn refuser(refusal: RefusalFn, manners: &ResponseStyle) -> RefusalEncoder {
    let server = manners.server.as_ref().and_then(|server| server.to_str().ok());
    let server = server.map_or_else(String::new, |server| format!("server: {server}\r\n"));
    Arc::new(move |status| {
        // A long URI is treated like any other part of the head.
        let status = match status {
            StatusCode::URI_TOO_LONG => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            other => other,
        };
        let more = match status {
            StatusCode::SERVICE_UNAVAILABLE => format!("{server}retry-after: 1\r\n"),
            _ => server.clone(),
        };
        whole(status, answer::JSON, &more, &refusal(status, None))
    })
}

fn plain(status: StatusCode, text: &str) -> Bytes {
    whole(status, answer::TEXT, "retry-after: 5\r\n", text)
}

/// The bytes of an answer after which the connection is closed.
fn whole(status: StatusCode, kind: &str, headers: &str, text: &str) -> Bytes {
    let len = text.len();
    Bytes::from(format!(
        "HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len}\r\nconnection: close\r\n{headers}\r\n{text}"
    ))
}

/// Answers without reading the request. Then reads until the client has closed, because closing with unread bytes would
/// discard the answer.
async fn refuse(mut stream: TcpStream, answer: &[u8]) -> io::Result<()> {
    stream.write_all(answer).await?;
    stream.shutdown().await?;
    let mut ignored = [0; 1024];
    while stream.read(&mut ignored).await? > 0 {}
    Ok(())
}
