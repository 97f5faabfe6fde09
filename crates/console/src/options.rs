//! What the console needs to know from outside, with the limits on what clients can hold.

use std::time::Duration;

use axum::http::{HeaderValue, StatusCode};
use thalweg_config::{AuthConfig, HttpConfig};

use crate::Logins;

/// Filled by whoever starts the console.
#[derive(Clone)]
pub struct ConsoleOptions {
    pub http: HttpConfig,
    pub auth: AuthConfig,
    /// Those of `auth` and of `http.basic_auth`, where other listeners have them, too.
    pub logins: Option<Logins>,
    /// As `/version` tells them.
    pub version: String,
    pub built: String,
    /// Shown by `/debug/config/…`.
    pub config: ConfigText,
    pub limits: HttpLimits,
    pub manners: ResponseStyle,
}

/// The effective configuration, with secrets masked already.
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
    /// Open connections. One more is told so with status 503 and closed.
    pub connections_max: usize,
    /// Connections take no file descriptor from this one on: what is left is for files. The system gives the lowest that is
    /// free, so it holds however many files are open. `None`: they take any.
    pub descriptors_max: Option<u64>,
    /// Request line and headers of one request; more is status 431.
    pub header_bytes_max: usize,
    /// From the opening of a connection, or the end of the last response on it, to the end of the next headers. A connection
    /// of HTTP/2 without requests is closed after it.
    pub header_timeout: Duration,
    /// Request body; more is status 413. Beyond what any path takes: paths have limits of their own, and say what they are of.
    pub body_bytes_max: usize,
    /// So long a client may keep a request waiting for its body, in all …
    pub body_grace: Duration,
    /// … but as many bytes give it a second back, up to `body_grace`; slower, or silent for longer, is status 408.
    pub body_bytes_per_second_min: u64,
    /// How long a client may send nothing of a request that it has begun, head or body, before its connection is closed;
    /// `None`: only the other limits hold.
    pub request_stall_max: Option<Duration>,
    /// How long a client may take nothing of a response that is ready for it.
    pub write_stall_max: Duration,
    /// The same of a stream of events.
    pub push_stall_max: Duration,
    /// Whether HTTP/2 is spoken without TLS, too.
    pub http2_in_clear: bool,
    pub tls_handshake_timeout: Duration,
    /// Requests at the same time on one HTTP/2 connection.
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

/// What a listener says by itself.
#[derive(Clone, Debug, Default)]
pub struct ResponseStyle {
    /// The header `Server` of every answer.
    pub server: Option<HeaderValue>,
    /// JSON in place of a sentence for what is refused before any path sees it.
    pub refusal: Option<RefusalFn>,
}

/// Makes JSON of a status, and of what is to be said of it if that is known.
pub type RefusalFn = fn(StatusCode, Option<&str>) -> String;
