//! The HTTP listener of the process: health, metrics, profiles, the status page, and the paths of other components.
//!
//! The inputs are a [`StatusBoard`], the metrics and the components' [`HttpRoutes`]; the output is a
//! [`RunningListener`]. Nothing is served before its [`Access`](thalweg_telemetry::Access) was checked, and every
//! resource that a client can hold (connections, bytes, time) has a limit.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod body;
mod bound_listener;
mod chunked_body;
mod connection_slots;
mod cors;
mod debug;
mod error;
mod event_stream;
mod guard;
mod health;
mod history;
mod http1_exchange;
mod http2_streams;
mod listen;
mod listener_metrics;
mod options;
mod page;
mod refusal;
mod revocation;
mod routes;
mod serve;
mod status;
mod transport;
mod verify;

use std::io;
use std::sync::Arc;

use axum::Router;
use thalweg_http::auth::Logins;
use thalweg_http::tls_server::ServerTls;
use thalweg_telemetry::{HttpRoutes, Metrics, OriginPolicy, StatusBoard};
use tokio::net::TcpListener;

use listener_metrics::{HTTP_LISTENER, ListenerMetrics};

pub use bound_listener::BoundListener;
pub use error::StartError;
pub use listener_metrics::{INGEST_LISTENERS, ListenerMetricDocs, METRICS};
pub use options::{ConfigText, ConsoleOptions, HttpLimits, RefusalFn, ResponseStyle};
pub use refusal::ListenerErrorKind;
pub use serve::RunningListener;
pub use verify::{ConfigLocation, VerifyError, verify};

/// The HTTP side of a process.
pub struct Console;

impl Console {
    /// Binds the address and serves until [`RunningListener::stop`]. Must be called on a tokio runtime.
    pub async fn start(
        options: ConsoleOptions,
        metrics: Arc<Metrics>,
        board: StatusBoard,
        routes: Vec<Arc<dyn HttpRoutes>>,
    ) -> Result<RunningListener, StartError> {
        let logins = match &options.logins {
            Some(logins) => logins.clone(),
            None => Logins::load(&options.auth, options.http.basic_auth.as_ref())?,
        };
        let credentials = logins.credentials();
        let tls = ServerTls::of_http(&options.http)?.map(Arc::new);
        let (listener, address) = listen::bind("http", &options.http.address).await?;
        let trust = listen::trust(&options.http, address, credentials.is_some(), tls.is_some())?;
        let origins = Arc::new(routes::origins(&options.http, &routes)?);
        let guard = guard::AccessGuard::new(credentials, trust, origins.clone());
        let state = status::ConsoleState::new(&options, board, metrics, &routes)?;
        let router = routes::build(&options, &state, guard, &routes)?;
        let meters = ListenerMetrics::register(&HTTP_LISTENER, &state.metrics);
        Ok(RunningListener::begin(serve::HttpListener {
            listener,
            address,
            tls,
            router,
            limits: options.limits,
            manners: options.manners,
            meters,
            origins,
            places: connection_slots::ConnectionSlots::new(options.limits.connections_max),
            state: Some(state),
        }))
    }

    /// Serves paths without a console; they authorize requests themselves. The listeners are already bound; each has
    /// the limits.
    pub fn serve(
        tls: Option<Arc<ServerTls>>,
        listeners: Vec<TcpListener>,
        router: &Router,
        limits: HttpLimits,
        manners: &ResponseStyle,
        origins: OriginPolicy,
        metrics: &Metrics,
    ) -> io::Result<Vec<RunningListener>> {
        let meters = ListenerMetrics::register(&HTTP_LISTENER, metrics);
        let (origins, places) = (
            Arc::new(origins),
            connection_slots::ConnectionSlots::new(limits.connections_max),
        );
        let router = cors::around(router.clone(), &origins.allowed);
        let begin = |listener: TcpListener| {
            Ok(RunningListener::begin(serve::HttpListener {
                address: listener.local_addr()?,
                listener,
                tls: tls.clone(),
                router: router.clone(),
                limits,
                manners: manners.clone(),
                meters: meters.clone(),
                origins: origins.clone(),
                places: places.clone(),
                state: None,
            }))
        };
        listeners.into_iter().map(begin).collect()
    }

    /// Serves paths on several listeners, which share their metrics.
    pub fn serve_doors(
        docs: &ListenerMetricDocs,
        doors: Vec<(BoundListener, Router)>,
        limits: HttpLimits,
        metrics: &Metrics,
    ) -> Vec<RunningListener> {
        let meters = ListenerMetrics::register(docs, metrics);
        let begin = |(door, router): (BoundListener, Router)| {
            RunningListener::begin(serve::HttpListener {
                listener: door.listener,
                address: door.address,
                tls: door.tls,
                router: cors::around(router, &door.origins.allowed),
                limits,
                manners: ResponseStyle::default(),
                meters: meters.clone(),
                origins: door.origins,
                places: connection_slots::ConnectionSlots::new(limits.connections_max.min(door.connections_max)),
                state: None,
            })
        };
        doors.into_iter().map(begin).collect()
    }
}
