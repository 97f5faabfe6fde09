//! The event store over HTTP, as clients of EventoDB speak to it.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod args;
mod auth;
mod import;
mod problem;
mod rpc;
mod subscribe;
mod subscribe_persistent;
mod write;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response, StatusCode};
use axum::routing::any;
use thalweg_events::{Health, Store, Subscriptions};
use thalweg_telemetry::Metrics;

use auth::Need;
use problem::Problem;

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
}

pub struct Server {
    store: Arc<dyn Store>,
    options: EventsApiOptions,
    metrics: Arc<Metrics>,
    subscriptions: Subscriptions,
    /// Open ones, as `sys.health` tells them.
    pub connections: AtomicU64,
}

impl Server {
    pub fn new(store: Arc<dyn Store>, options: EventsApiOptions, metrics: Arc<Metrics>) -> Arc<Server> {
        Arc::new(Server {
            store,
            options,
            metrics,
            subscriptions: Subscriptions::default(),
            connections: AtomicU64::new(0),
        })
    }

    /// What it takes to administer namespaces.
    fn admin(&self) -> Need {
        match self.options.open_admin {
            true => Need::Read,
            false => Need::Admin,
        }
    }

    /// All paths of a server of its own.
    pub fn router(self: &Arc<Server>) -> Router {
        let (rpc, subscribe, import) = (self.clone(), self.clone(), self.clone());
        let (ready, metrics) = (self.clone(), self.clone());
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
            .route("/health", any(|| async { json("{\"status\":\"ok\"}\n".to_owned()) }))
            .route("/version", any(move || async move { json(version.clone()) }))
            .route("/ready", any(move || async move { ready.ready() }))
            .route("/metrics", any(move || async move { metrics.of_metrics() }))
            .fallback(|| async { Problem::new(StatusCode::NOT_FOUND, "NOT_FOUND", "Endpoint not found").answer() })
    }

    fn of_metrics(&self) -> Response<Body> {
        of_type("text/plain; version=0.0.4; charset=utf-8", self.metrics.text())
    }

    fn ready(&self) -> Response<Body> {
        match self.store.health() {
            Health::Healthy => json("{\"status\":\"ready\"}\n".to_owned()),
            Health::ReadOnly(why) => Problem::new(StatusCode::SERVICE_UNAVAILABLE, "UNAVAILABLE", why).answer(),
        }
    }
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
