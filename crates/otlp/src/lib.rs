//! Receivers of OpenTelemetry data, over gRPC and HTTP.
//!
//! A request is read within limits, looked over once without making a value of it, and appended to the log as it came. It is
//! answered when the log has it on disk: what becomes of it in tables is not waited for, and can be had again from the log.
//!
//! Paths only: whoever has a listener serves them.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod body;
mod drain_rate;
mod grpc;
mod http;
mod metrics;
mod receiver;
mod refusal;
mod reply;

use std::time::Duration;

use axum::http::HeaderMap;
use thalweg_lake::entry::BoxFuture;
use thalweg_lake::otlp::validate::OtlpRecordLimits;

pub use grpc::{fuzz as fuzz_frames, router as grpc_router};
pub use http::router as http_router;
pub use receiver::OtlpReceiver;

/// What senders may send.
#[derive(Clone, Debug)]
pub struct ReceiverOptions {
    /// Of a request as it is sent.
    pub body_bytes_max: usize,
    /// The same when it is decompressed.
    pub decoded_bytes_max: usize,
    /// How many times as large a request may become by that.
    pub ratio_max: usize,
    /// Of zstd.
    pub zstd_window_max: usize,
    pub walk: OtlpRecordLimits,
    /// Of all requests that are not stored yet.
    pub inflight_bytes_max: usize,
    pub requests_max: usize,
    /// A request has to be there within this time.
    pub body_timeout: Duration,
}

impl Default for ReceiverOptions {
    fn default() -> ReceiverOptions {
        ReceiverOptions {
            body_bytes_max: 16 << 20,
            decoded_bytes_max: 64 << 20,
            ratio_max: 1000,
            zstd_window_max: 8 << 20,
            walk: OtlpRecordLimits::default(),
            inflight_bytes_max: 256 << 20,
            requests_max: 4096,
            body_timeout: Duration::from_secs(30),
        }
    }
}

/// Why somebody may not send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionError {
    /// He has to come again.
    Busy,
    NotAuthenticated(String),
    NotAuthorized(String),
}

/// Who may send.
pub trait Admission: Send + Sync {
    fn admit<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, Result<(), AdmissionError>>;
}
