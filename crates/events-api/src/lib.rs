//! The HTTP API of the event store, compatible with clients of EventoDB. It turns requests into responses or event
//! streams; the store alone decides what is stored and in which order.

#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod args;
mod auth;
mod backup;
mod body;
mod error_kind;
#[doc(hidden)]
pub mod fuzz;
mod import;
mod json_text;
mod memory;
mod metrics;
mod mounted;
mod problem;
mod rpc;
mod store_metrics;
mod subscribe;
mod subscribe_persistent;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use axum::routing::any;
use thalweg_events::{Health, Store, Subscriptions};
use thalweg_http::compression::{ContentCoding, accepted_coding};
use thalweg_telemetry::{MetricGroup, Metrics};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use auth::RequiredScope;
use memory::MemoryBudget;
use metrics::{API_METRICS, ApiMetrics, CONNECTIONS};
use problem::{Problem, Result};
use subscribe::NamespaceTailers;

pub use error_kind::EventsApiErrorKind;
pub use mounted::routes_within;

/// What an event server exports.
pub const METRICS: &[MetricGroup] = &[
    API_METRICS,
    store_metrics::STORE_METRICS,
    store_metrics::SUBSCRIPTION_METRICS,
];

/// The options of a server.
#[derive(Clone, Debug)]
pub struct EventsApiOptions {
    /// The version that `/version` and `sys.version` return: three numbers.
    pub version: String,
    /// Every caller may do everything in the namespace that its token names.
    pub test_mode: bool,
    /// Any valid token administers all namespaces.
    pub open_admin: bool,
    pub message_bytes_max: usize,
    /// The memory budget, in bytes, of all requests together while they are read and processed. A request that finds no
    /// room waits for some, and after a while is refused. The largest request always fits alone, whatever the budget.
    pub memory_bytes: usize,
    /// How long requests wait for a store that is being opened.
    pub opening_patience: Duration,
    /// A subscription that is idle for this long gets a heartbeat.
    pub heartbeat: Duration,
    /// The newest messages of a namespace, and their bytes, that are cached for all its subscribers. A subscriber that
    /// is farther behind reads from the store.
    pub recent_messages: usize,
    pub recent_bytes: usize,
    /// Metrics of appends, reads, imports and subscriptions have the namespace as a label: up to 1000 namespaces, and
    /// the rest together as `/others`.
    pub metrics_per_namespace: bool,
}

impl Default for EventsApiOptions {
    fn default() -> EventsApiOptions {
        EventsApiOptions {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            test_mode: false,
            open_admin: false,
            message_bytes_max: 16 << 20,
            memory_bytes: 512 << 20,
            opening_patience: Duration::from_secs(10),
            heartbeat: Duration::from_secs(15),
            recent_messages: 4096,
            recent_bytes: 4 << 20,
            metrics_per_namespace: false,
        }
    }
}

/// The state that all requests share.
pub struct EventsApiServer {
    /// Empty until the store is recovered.
    store: OnceLock<Arc<dyn Store>>,
    /// Cancelled when there is a store.
    opened: CancellationToken,
    options: EventsApiOptions,
    metrics: Arc<Metrics>,
    meters: Arc<ApiMetrics>,
    feeds: NamespaceTailers,
    memory: Arc<MemoryBudget>,
    stopping: CancellationToken,
    /// Calls and imports for which the store is working.
    running: TaskTracker,
    connections: OnceLock<Arc<dyn Fn() -> u64 + Send + Sync>>,
    subscriptions: Arc<Subscriptions>,
}

impl EventsApiServer {
    /// A server for an open store.
    pub fn new(store: Arc<dyn Store>, options: EventsApiOptions, metrics: Arc<Metrics>) -> Arc<EventsApiServer> {
        let server = EventsApiServer::starting(options, metrics);
        server.open(store);
        server
    }

    /// Requests wait for [`EventsApiServer::open`]. Those that wait for too long are refused: the store is recovering.
    pub fn starting(options: EventsApiOptions, metrics: Arc<Metrics>) -> Arc<EventsApiServer> {
        let meters = ApiMetrics::register(&metrics, options.metrics_per_namespace);
        Arc::new(EventsApiServer {
            store: OnceLock::new(),
            opened: CancellationToken::new(),
            feeds: NamespaceTailers::new(&options),
            memory: Arc::new(MemoryBudget::new(options.memory_bytes, options.message_bytes_max)),
            options,
            metrics,
            meters,
            stopping: CancellationToken::new(),
            running: TaskTracker::new(),
            connections: OnceLock::new(),
            subscriptions: Arc::default(),
        })
    }

    /// Calls are processed from now on, those that wait first. A second store is ignored.
    pub fn open(self: &Arc<EventsApiServer>, store: Arc<dyn Store>) {
        if self.store.set(store.clone()).is_ok() {
            store_metrics::register(self, &store);
            self.opened.cancel();
        }
    }

    /// Sets the source of the connection count that `sys.health` returns.
    pub fn count_connections(self: &Arc<EventsApiServer>, count: impl Fn() -> u64 + Send + Sync + 'static) {
        let count: Arc<dyn Fn() -> u64 + Send + Sync> = Arc::new(count);
        if self.connections.set(count.clone()).is_ok() {
            self.metrics
                .tell(&CONNECTIONS, move |to| to.gauge(&CONNECTIONS, &[], count() as f64));
        }
    }

    /// Ends all subscriptions cleanly and refuses from now on what the store has not begun.
    pub fn stop(&self) {
        self.stopping.cancel();
        self.running.close();
    }

    /// After [`EventsApiServer::stop`]: returns when everything that was being stored is stored and can be answered.
    pub async fn settled(&self) {
        self.running.wait().await;
    }

    fn store(&self) -> Result<&Arc<dyn Store>> {
        let recovering = || Problem::unavailable("The store is recovering");
        self.store.get().ok_or_else(recovering)
    }

    /// The store, as soon as it is open. Clients may call once the server says that it lives, which is earlier.
    async fn opened_store(&self) -> Result<&Arc<dyn Store>> {
        if self.store.get().is_none() {
            tokio::select! {
                () = self.opened.cancelled() => {}
                () = self.stopping.cancelled() => return Err(Problem::stopping()),
                () = tokio::time::sleep(self.options.opening_patience) => {}
            }
        }
        self.store()
    }

    fn must_go_on(&self) -> Result<()> {
        match self.stopping.is_cancelled() {
            true => Err(Problem::stopping()),
            false => Ok(()),
        }
    }

    /// The scope that administering namespaces requires.
    fn admin(&self) -> RequiredScope {
        match self.options.open_admin {
            true => RequiredScope::Nothing,
            false => RequiredScope::Admin,
        }
    }

    fn refuse(&self, problem: &Problem) -> Response<Body> {
        self.meters.refused(problem.code());
        problem.answer()
    }

    /// Paths whose token in the address is checked. In test mode every caller is admitted, so such a token proves
    /// nothing.
    pub fn tokens_in_address(&self) -> Vec<String> {
        match self.options.test_mode {
            true => Vec::new(),
            false => ["/rpc", "/subscribe", "/import", backup::PATH]
                .map(str::to_owned)
                .to_vec(),
        }
    }

    /// Reads with side effects: a subscription leases messages, and a backup delays freeing space.
    pub fn acting_reads(&self) -> Vec<String> {
        ["/subscribe", backup::PATH].map(str::to_owned).to_vec()
    }

    /// All paths of a standalone server.
    pub fn router(self: &Arc<EventsApiServer>) -> Router {
        let (rpc, subscribe, import, backup) = (self.clone(), self.clone(), self.clone(), self.clone());
        let (ready, metrics, unknown) = (self.clone(), self.clone(), self.clone());
        let version = format!("{{\"version\":\"{}\"}}\n", self.options.version);
        Router::new()
            .route("/rpc", any(move |request: Request| rpc::answer(rpc.clone(), request)))
            .route(
                "/subscribe",
                any(move |request: Request| subscribe::answer(subscribe.clone(), request)),
            )
            .route(
                "/import",
                any(move |request: Request| import::answer(import.clone(), request)),
            )
            .route(
                backup::PATH,
                any(move |request: Request| backup::answer(backup.clone(), request)),
            )
            .route("/health", any(|| async { json("{\"status\":\"ok\"}\n".to_owned()) }))
            .route("/version", any(move || async move { json(version.clone()) }))
            .route("/ready", any(move || async move { ready.ready() }))
            .route(
                "/metrics",
                any(move |headers: HeaderMap| async move { metrics.of_metrics(&headers).await }),
            )
            .fallback(move || async move {
                let problem = Problem::new(EventsApiErrorKind::NotFound, "Endpoint not found");
                unknown.refuse(&problem)
            })
    }

    /// Rendered on another thread, so that `/ready` and `/health` do not wait for it.
    async fn of_metrics(&self, headers: &HeaderMap) -> Response<Body> {
        match self.metrics.text_aside().await {
            Some(text) => {
                let text = of_type("text/plain; version=0.0.4; charset=utf-8", text);
                self.encoded(accepted_coding(headers), text)
            }
            None => Problem::unavailable("The metrics could not be rendered").answer(),
        }
    }

    /// The response in the coding that the client accepts.
    fn encoded(&self, accepted: Option<ContentCoding>, response: Response<Body>) -> Response<Body> {
        self.memory.encoder.encode(accepted, response)
    }

    fn ready(&self) -> Response<Body> {
        let health = self.must_go_on().and_then(|()| Ok(self.store()?.health()));
        match health {
            Ok(Health::Healthy) => json("{\"status\":\"ready\"}\n".to_owned()),
            Ok(Health::ReadOnly(why)) => Problem::unavailable(why).answer(),
            Err(problem) => problem.answer(),
        }
    }
}

/// At debug level. The address is not logged: it may contain a token.
fn log_answer(method: &Method, path: &'static str, response: &Response<Body>) {
    tracing::debug!(%method, path, status = response.status().as_u16(), "request answered");
}

/// The body that a listener sends when it refuses a request by itself.
pub fn refusal(status: StatusCode, text: Option<&str>) -> String {
    let problem = match status {
        StatusCode::FORBIDDEN => Problem::new(EventsApiErrorKind::AuthUnauthorized, text.unwrap_or("Not authorized")),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Problem::invalid("Request header too large"),
        StatusCode::SERVICE_UNAVAILABLE => Problem::unavailable("Too many connections"),
        _ => Problem::invalid(text.unwrap_or("Malformed HTTP request")),
    };
    problem.text()
}

fn json(text: String) -> Response<Body> {
    of_type("application/json", text)
}

fn of_type(kind: &'static str, text: String) -> Response<Body> {
    let mut response = Response::new(Body::from(text));
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A query value, decoded like a form; unencoded text is accepted as it is.
fn query_value(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = url::form_urlencoded::parse(query?.as_bytes());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}
