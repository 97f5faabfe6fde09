//! Why a request is refused, as HTTP and gRPC report it.
//!
//! A permanent refusal never has a status that makes senders retry. A temporary one says after what time to retry.

use std::time::Duration;

use crate::inflate::InflateError;
use axum::http::StatusCode;
use thalweg_lake::entry::AppendRefused;

use crate::AdmissionError;

/// The pause that senders are asked for when the log accepts nothing; between [`RETRY_MIN`] and [`RETRY_MAX`].
const RETRY_LATER: Duration = Duration::from_secs(10);
pub const RETRY_MIN: Duration = Duration::from_secs(1);
pub const RETRY_MAX: Duration = Duration::from_secs(30);

/// gRPC status codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrpcCode {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Unavailable = 14,
    Unauthenticated = 16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: StatusCode,
    pub grpc: GrpcCode,
    /// The reason, for programs.
    pub code: &'static str,
    pub text: String,
    pub retry_after: Option<Duration>,
}

impl Refusal {
    fn new(status: StatusCode, grpc: GrpcCode, code: &'static str, text: impl Into<String>) -> Refusal {
        Refusal {
            status,
            grpc,
            code,
            text: text.into(),
            retry_after: None,
        }
    }

    fn after(self, pause: Duration) -> Refusal {
        Refusal {
            retry_after: Some(pause.clamp(RETRY_MIN, RETRY_MAX)),
            ..self
        }
    }

    pub fn malformed(text: impl Into<String>) -> Refusal {
        Refusal::new(
            StatusCode::BAD_REQUEST,
            GrpcCode::InvalidArgument,
            "otlp.malformed",
            text,
        )
    }

    pub fn all_rejected(text: String) -> Refusal {
        Refusal::new(
            StatusCode::BAD_REQUEST,
            GrpcCode::InvalidArgument,
            "otlp.all_rejected",
            text,
        )
    }

    pub fn media_type(text: String) -> Refusal {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Refusal::new(status, GrpcCode::Unimplemented, "otlp.media_type", text)
    }

    pub fn encoding(text: String) -> Refusal {
        let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        Refusal::new(status, GrpcCode::Unimplemented, "otlp.encoding", text)
    }

    pub fn too_large(limit: usize) -> Refusal {
        let text = format!("the request has more than {limit} bytes (ingest.max_body_bytes); send smaller batches");
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Refusal::new(status, GrpcCode::ResourceExhausted, "otlp.too_large", text)
    }

    /// The request can never fit, so a retry would not help.
    pub fn too_large_for_all(limit: usize) -> Refusal {
        let text = format!(
            "the request takes more than the {limit} bytes of all requests that are not stored yet \
             (ingest.inflight_bytes); send smaller batches"
        );
        let status = StatusCode::PAYLOAD_TOO_LARGE;
        Refusal::new(status, GrpcCode::ResourceExhausted, "otlp.too_large", text)
    }

    pub fn too_slow(limit: Duration) -> Refusal {
        let text = format!("the request did not arrive within {limit:?} (ingest.body_timeout)");
        let status = StatusCode::REQUEST_TIMEOUT;
        Refusal::new(status, GrpcCode::DeadlineExceeded, "otlp.timeout", text)
    }

    pub fn pressure(pause: Duration) -> Refusal {
        let text = "too many requests are waiting to be stored; try again";
        let status = StatusCode::TOO_MANY_REQUESTS;
        Refusal::new(status, GrpcCode::ResourceExhausted, "otlp.pressure", text).after(pause)
    }

    pub fn unknown_method(path: &str) -> Refusal {
        let text = format!("there is no method {path}");
        Refusal::new(StatusCode::NOT_FOUND, GrpcCode::Unimplemented, "otlp.method", text)
    }
}

impl From<InflateError> for Refusal {
    fn from(error: InflateError) -> Refusal {
        let large = |code, text| Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, GrpcCode::ResourceExhausted, code, text);
        let text = format!("the request: {error}");
        match error {
            InflateError::Malformed(..) => Refusal::malformed(error.to_string()),
            InflateError::TooLarge(_) => large("otlp.decoded_too_large", text + " (ingest.max_decoded_bytes)"),
            InflateError::Ratio(_) => large("otlp.decoded_too_large", text + " (ingest.max_ratio)"),
            InflateError::Window(_) => large("otlp.zstd_window", text + " (ingest.zstd_window)"),
        }
    }
}

impl From<AppendRefused> for Refusal {
    fn from(refused: AppendRefused) -> Refusal {
        let unavailable = |code, text| {
            let refusal = Refusal::new(StatusCode::SERVICE_UNAVAILABLE, GrpcCode::Unavailable, code, text);
            refusal.after(RETRY_LATER)
        };
        match refused {
            AppendRefused::Poisoned(text) => unavailable("log_poisoned", text),
            AppendRefused::DiskFull(text) => unavailable("disk_full", text),
            AppendRefused::Stopping => unavailable("stopping", "the process stops".to_owned()),
            // The receiver knows the drain rate and computes a better pause.
            AppendRefused::Pressure => Refusal::pressure(RETRY_MIN),
            AppendRefused::Other(text) => unavailable("unavailable", text),
        }
    }
}

impl From<AdmissionError> for Refusal {
    fn from(denied: AdmissionError) -> Refusal {
        match denied {
            AdmissionError::Busy => Refusal::pressure(Duration::from_secs(1)),
            AdmissionError::NotAuthenticated(text) => Refusal::new(
                StatusCode::UNAUTHORIZED,
                GrpcCode::Unauthenticated,
                "not_authenticated",
                text,
            ),
            AdmissionError::NotAuthorized(text) => Refusal::new(
                StatusCode::FORBIDDEN,
                GrpcCode::PermissionDenied,
                "not_authorized",
                text,
            ),
        }
    }
}
