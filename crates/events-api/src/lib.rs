//! The event store over HTTP, as clients of EventoDB speak to it. Requests come in, and answers or streams of events go
//! out; what is stored, and in which order, is the store's alone.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod auth;
mod backup;
mod body;
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
use axum::http::{HeaderValue, Method, Response, StatusCode};
use axum::routing::any;
use thalweg_events::{Health, Store, Subscriptions};
use thalweg_telemetry::Metrics;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use auth::RequiredScope;
use memory::MemoryBudget;
use metrics::ApiMetrics;
use problem::{Problem, Result};
use subscribe::NamespaceTailers;

pub use mounted::routes_within;

/// How a server answers.
#[derive(Clone, Debug)]
pub struct EventsApiOptions {
    /// As `/version` and `sys.version` tell it: three numbers.
    pub version: String,
    /// Every caller may do everything, in the namespace that its token names.
    pub test_mode: bool,
    /// Any valid token administers all namespaces.
    pub open_admin: bool,
    pub message_bytes_max: usize,
    /// Bytes that all requests together may take while they are read and done; reading waits for a share of them. The
    /// largest request goes through alone, whatever this is.
    pub memory_bytes: usize,
    /// So long nothing is told to a subscriber before it is told that the connection stands.
    pub heartbeat: Duration,
    /// Newest messages of a namespace that are kept for all of its subscribers, and their bytes. Whoever is farther behind
    /// reads from the store.
    pub recent_messages: usize,
    pub recent_bytes: usize,
    /// What is counted of appends, reads, imports and subscriptions has the namespace as a label: of a thousand of them, and
    /// of the others together as `/others`.
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
            heartbeat: Duration::from_secs(15),
            recent_messages: 4096,
            recent_bytes: 4 << 20,
            metrics_per_namespace: false,
        }
    }
}

/// What all requests share.
pub struct EventsApiServer {
    /// Empty until it is recovered.
    store: OnceLock<Arc<dyn Store>>,
    options: EventsApiOptions,
    metrics: Arc<Metrics>,
    meters: Arc<ApiMetrics>,
    feeds: NamespaceTailers,
    memory: Arc<MemoryBudget>,
    stopping: CancellationToken,
    /// Calls and imports that the store is doing something for.
    running: TaskTracker,
    connections: OnceLock<Arc<dyn Fn() -> u64 + Send + Sync>>,
    subscriptions: Arc<Subscriptions>,
}

impl EventsApiServer {
    /// Of a store that is open.
    pub fn new(store: Arc<dyn Store>, options: EventsApiOptions, metrics: Arc<Metrics>) -> Arc<EventsApiServer> {
        let server = EventsApiServer::starting(options, metrics);
        server.open(store);
        server
    }

    /// Until [`EventsApiServer::open`] it answers that the store is recovering.
    pub fn starting(options: EventsApiOptions, metrics: Arc<Metrics>) -> Arc<EventsApiServer> {
        let meters = ApiMetrics::register(&metrics, options.metrics_per_namespace);
        Arc::new(EventsApiServer {
            store: OnceLock::new(),
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

    /// From now on calls are done. A second store is ignored.
    pub fn open(self: &Arc<EventsApiServer>, store: Arc<dyn Store>) {
        if self.store.set(store.clone()).is_ok() {
            store_metrics::register(self, &store);
        }
    }

    /// Who knows how many connections are open, as `sys.health` tells it.
    pub fn count_connections(self: &Arc<EventsApiServer>, count: impl Fn() -> u64 + Send + Sync + 'static) {
        let count: Arc<dyn Fn() -> u64 + Send + Sync> = Arc::new(count);
        if self.connections.set(count.clone()).is_ok() {
            self.metrics.tell("thalweg_events_connections", move |to| {
                to.gauge("thalweg_events_connections", "Open connections.", &[], count() as f64);
            });
        }
    }

    /// Ends all subscriptions, their bodies properly, and refuses from now on what the store has not begun to do.
    pub fn stop(&self) {
        self.stopping.cancel();
        self.running.close();
    }

    /// After [`EventsApiServer::stop`]: returns when everything that was being stored is, and can be answered.
    pub async fn settled(&self) {
        self.running.wait().await;
    }

    fn store(&self) -> Result<&Arc<dyn Store>> {
        let recovering = || Problem::unavailable("The store is recovering");
        self.store.get().ok_or_else(recovering)
    }

    fn must_go_on(&self) -> Result<()> {
        match self.stopping.is_cancelled() {
            true => Err(Problem::stopping()),
            false => Ok(()),
        }
    }

    /// What it takes to administer namespaces.
    fn admin(&self) -> RequiredScope {
        match self.options.open_admin {
            true => RequiredScope::Nothing,
            false => RequiredScope::Admin,
        }
    }

    fn refuse(&self, problem: &Problem) -> Response<Body> {
        self.meters.refused(problem.code);
        problem.answer()
    }

    /// Whose tokens are looked at; where everybody is let in, one in the address proves nothing.
    pub fn tokens_in_address(&self) -> Vec<String> {
        match self.options.test_mode {
            true => Vec::new(),
            false => ["/rpc", "/subscribe", "/import", backup::PATH]
                .map(str::to_owned)
                .to_vec(),
        }
    }

    /// A subscription hands messages out, and a backup holds up what would free their space.
    pub fn acting_reads(&self) -> Vec<String> {
        ["/subscribe", backup::PATH].map(str::to_owned).to_vec()
    }

    /// All paths of a server of its own.
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
            .route("/metrics", any(move || async move { metrics.of_metrics().await }))
            .fallback(move || async move {
                let problem = Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "Endpoint not found");
                unknown.refuse(&problem)
            })
    }

    /// Made aside: whoever asks for `/ready` or `/health` does not wait for it.
    async fn of_metrics(&self) -> Response<Body> {
        match self.metrics.text_aside().await {
            Some(text) => of_type("text/plain; version=0.0.4; charset=utf-8", text),
            None => Problem::unavailable("The metrics could not be made").answer(),
        }
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

/// At the level at which faults are looked for. The address is not told: a token may stand in it.
fn log_answer(method: &Method, path: &'static str, response: &Response<Body>) {
    tracing::debug!(%method, path, status = response.status().as_u16(), "a request is answered");
}

/// What a listener says in place of a path, when it refuses a request by itself.
pub fn refusal(status: StatusCode, text: Option<&str>) -> String {
    let problem = match status {
        StatusCode::FORBIDDEN => Problem::new(status, "AUTH_UNAUTHORIZED", text.unwrap_or("Not authorized")),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE => Problem::invalid("Request header too large"),
        StatusCode::SERVICE_UNAVAILABLE => Problem::unavailable("Too many connections"),
        _ => Problem::invalid(text.unwrap_or("Malformed HTTP request")),
    };
    Problem { status, ..problem }.text()
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

/// Of a query, decoded as forms are; what is not encoded is taken as it is.
fn query_value(query: Option<&str>, name: &str) -> Option<String> {
    let mut pairs = url::form_urlencoded::parse(query?.as_bytes());
    pairs.find(|(key, _)| key == name).map(|(_, value)| value.into_owned())
}
