//! Receivers of OpenTelemetry data over gRPC and HTTP.
//!
//! A receiver reads a request within limits, validates it in one pass without building values, and appends it unchanged
//! to the log. It answers when the log has synced the entry. It does not wait for rows in tables, because those can be
//! rebuilt from the log.
//!
//! The crate provides routes only; the caller serves them on its listeners.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod bulk_requests;
pub mod decode;
mod drain_rate;
mod entry_decoder;
pub mod fields;
mod grpc;
mod http;
pub mod inflate;
pub mod json;
mod metrics;
#[cfg(test)]
#[allow(dead_code, reason = "an integration test uses what is not used here")]
mod proto;
mod receiver;
mod refusal;
mod reply;
pub mod validate;

use std::time::Duration;

use axum::http::HeaderMap;
use thalweg_columns::rows::record_limits::RecordLimits;
use thalweg_lake::entry::BoxFuture;

pub use bulk_requests::OtlpBulkRequests;
pub use entry_decoder::entry_decoder;
pub use grpc::{fuzz as fuzz_frames, router as grpc_router};
pub use http::router as http_router;
pub use metrics::METRICS;
pub use receiver::OtlpReceiver;
pub use refusal::{GrpcCode, OtlpErrorKind};

/// Limits for senders.
#[derive(Clone, Debug)]
pub struct ReceiverOptions {
    /// Size of a request as it is sent.
    pub body_bytes_max: usize,
    /// Size of a request after decompression.
    pub decoded_bytes_max: usize,
    /// The highest ratio of decompressed to compressed size.
    pub ratio_max: usize,
    /// The largest zstd window in bytes.
    pub zstd_window_max: usize,
    pub walk: RecordLimits,
    /// Limit for all requests that are not stored yet.
    pub inflight_bytes_max: usize,
    pub requests_max: usize,
    /// A request has to arrive completely within this time.
    pub body_timeout: Duration,
}

impl Default for ReceiverOptions {
    fn default() -> ReceiverOptions {
        ReceiverOptions {
            body_bytes_max: 16 << 20,
            decoded_bytes_max: 64 << 20,
            ratio_max: 1000,
            zstd_window_max: 8 << 20,
            walk: RecordLimits::default(),
            inflight_bytes_max: 256 << 20,
            requests_max: 4096,
            body_timeout: Duration::from_secs(30),
        }
    }
}

/// Why a sender is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmissionError {
    /// The sender has to retry later.
    Busy,
    NotAuthenticated(String),
    NotAuthorized(String),
}

/// Decides who may send.
pub trait Admission: Send + Sync {
    fn admit<'a>(&'a self, headers: &'a HeaderMap) -> BoxFuture<'a, Result<(), AdmissionError>>;
}
