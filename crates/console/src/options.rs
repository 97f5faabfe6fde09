//! Options of the console, including the limits on what clients can hold.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode};
use thalweg_config::{AuthConfig, HttpConfig};
use thalweg_http::auth::Logins;

/// Filled by the caller that starts the console.
#[derive(Clone)]
pub struct ConsoleOptions {
    pub http: HttpConfig,
    pub auth: AuthConfig,
    /// The logins of `auth` and of `http.basic_auth`, if other listeners share them.
    pub logins: Option<Logins>,
    /// As `/version` shows it.
    pub version: String,
    pub built: String,
    /// Shown by `/debug/config/…`.
    pub config: ConfigText,
    pub limits: HttpLimits,
    pub manners: ResponseStyle,
}

/// The effective configuration, with secrets already masked.
#[derive(Clone, Debug, Default)]
pub struct ConfigText {
    pub json: String,
    pub yaml: String,
}

impl ConsoleOptions {
    pub fn new(http: HttpConfig, auth: AuthConfig) -> ConsoleOptions {
        ConsoleOptions {
            http,
            auth,
            logins: None,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            built: String::new(),
            config: ConfigText::default(),
            limits: HttpLimits::default(),
            manners: ResponseStyle::default(),
        }
    }
}

/// What one client, and all of them together, can hold.
#[derive(Clone, Copy, Debug)]
pub struct HttpLimits {
    /// Open connections. A further one gets status 503 and is closed.
    pub connections_max: usize,
    /// Connections use only file descriptors below this; the rest is for files. The system assigns the lowest free one,
    /// so the limit holds however many files are open. `None`: no limit.
    pub descriptors_max: Option<u64>,
    /// Request line and headers of one request; more is status 431.
    pub header_bytes_max: usize,
    /// From the opening of a connection, or the end of the last response on it, to the end of the next headers. An
    /// HTTP/2 connection without requests is closed after it.
    pub header_timeout: Duration,
    /// Request body; more is status 413. This is above the limit of any path; paths have their own limits with their
    /// own errors.
    pub body_bytes_max: usize,
    /// How long a client may keep a request waiting for its body in total …
    pub body_grace: Duration,
    /// … but this many bytes give a second back, up to `body_grace`; a slower client, or a longer silence, gets status
    /// 408.
    pub body_bytes_per_second_min: u64,
    /// How long a client may send nothing of a request that it has started, head or body, before its connection is
    /// closed; `None`: only the other limits apply.
    pub request_stall_max: Option<Duration>,
    /// How long a client may read nothing of a pending response.
    pub write_stall_max: Duration,
    /// The same for an event stream.
    pub push_stall_max: Duration,
    /// Whether HTTP/2 is also supported without TLS.
    pub http2_in_clear: bool,
    pub tls_handshake_timeout: Duration,
    /// Concurrent requests on one HTTP/2 connection.
    pub http2_streams_max: u32,
    /// How long running requests may take after [`RunningListener::stop`](crate::RunningListener::stop).
    pub stop_grace: Duration,
}

impl Default for HttpLimits {
    fn default() -> HttpLimits {
        HttpLimits {
            connections_max: 1024,
            descriptors_max: None,
            header_bytes_max: 64 << 10,
            header_timeout: Duration::from_secs(30),
            body_bytes_max: 32 << 20,
            body_grace: Duration::from_secs(20),
            body_bytes_per_second_min: 8 << 10,
            request_stall_max: None,
            write_stall_max: Duration::from_secs(60),
            push_stall_max: Duration::from_secs(5 * 60),
            http2_in_clear: true,
            tls_handshake_timeout: Duration::from_secs(10),
            http2_streams_max: 128,
            stop_grace: Duration::from_secs(5),
        }
    }
}

/// Answers of the listener itself.
#[derive(Clone, Debug, Default)]
pub struct ResponseStyle {
    /// The header `Server` of every answer.
    pub server: Option<HeaderValue>,
    /// JSON in place of a sentence for requests that are refused before any path sees them.
    pub refusal: Option<RefusalFn>,
}

/// Builds JSON from a status, and a text if there is one.
pub type RefusalFn = fn(StatusCode, Option<&str>) -> String;
