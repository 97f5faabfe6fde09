//! Why a request is refused, as HTTP and gRPC report it. Everything but the text follows from the kind of the refusal.
//!
//! A permanent refusal never has a status that makes senders retry. A temporary one says after what time to retry.

use std::time::Duration;

use thalweg_lake::ImportCode;
use thalweg_lake::entry::AppendRefused;

use crate::AdmissionError;
use crate::inflate::InflateError;

/// The shortest and the longest pause that senders are asked for.
const RETRY_MIN: Duration = Duration::from_secs(1);
const RETRY_MAX: Duration = Duration::from_secs(30);

thalweg_kit::error_kinds! {
    /// The kinds of refusals, with their statuses in HTTP. The order is that of the statuses.
    pub enum OtlpErrorKind {
        Malformed = ImportCode::OtlpMalformed.as_str(), 400, Never,
            "The request is not the OTLP that its headers declare, or ended early; repair the sender.";
        AllRejected = "otlp.all_rejected", 400, Never,
            "Every record exceeds a limit or is invalid; the message lists the reasons.";
        NotAuthenticated = "not_authenticated", 401, Never,
            "The request has no valid credentials; send a token of `auth.tokens` or a user of `auth.users_file`.";
        NotAuthorized = "not_authorized", 403, Never,
            "The login lacks the role to write; add it in `auth`.";
        Method = "otlp.method", 404, Never,
            "There is no such gRPC method; send to the OTLP services of logs, metrics and traces.";
        Timeout = "otlp.timeout", 408, Later,
            "The request did not arrive within `ingest.body_timeout`; send smaller batches, or raise it.";
        TooLarge = "otlp.too_large", 413, Never,
            "The request exceeds `ingest.max_body_bytes` or `ingest.inflight_bytes`; send smaller batches.";
        DecodedTooLarge = ImportCode::DecodedTooLarge.as_str(), 413, Never,
            "The request decompresses beyond `ingest.max_decoded_bytes` or `ingest.max_ratio`; send smaller batches.";
        ZstdWindow = ImportCode::ZstdWindow.as_str(), 413, Never,
            "The window of the zstd data exceeds `ingest.zstd_window`; compress with a smaller one.";
        MediaType = "otlp.media_type", 415, Never,
            "The type is neither protobuf nor JSON; correct the header `Content-Type`.";
        Encoding = "otlp.encoding", 415, Never,
            "The compression is unknown; send gzip, zstd or none.";
        Pressure = "otlp.pressure", 429, Computed,
            "Too many requests wait to be stored, or too many passwords to be checked; send again after the pause.";
        LogPoisoned = "log_poisoned", 503, After(10),
            "A write to the log failed, and the log accepts nothing more; restart the process, which checks the log.";
        DiskFull = "disk_full", 503, After(10),
            "The disk of the log is full; free some space.";
        Stopping = "stopping", 503, After(10),
            "The process stops; send again when it has restarted.";
        Unavailable = "unavailable", 503, After(10),
            "The log did not store the request; the message says why; send again.";
    }
}

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

impl GrpcCode {
    /// As in the specification of gRPC.
    pub fn name(self) -> &'static str {
        match self {
            GrpcCode::InvalidArgument => "INVALID_ARGUMENT",
            GrpcCode::DeadlineExceeded => "DEADLINE_EXCEEDED",
            GrpcCode::PermissionDenied => "PERMISSION_DENIED",
            GrpcCode::ResourceExhausted => "RESOURCE_EXHAUSTED",
            GrpcCode::Unimplemented => "UNIMPLEMENTED",
            GrpcCode::Unavailable => "UNAVAILABLE",
            GrpcCode::Unauthenticated => "UNAUTHENTICATED",
        }
    }
}

impl OtlpErrorKind {
    /// The status in gRPC.
    pub fn grpc(self) -> GrpcCode {
        match self {
            OtlpErrorKind::Malformed | OtlpErrorKind::AllRejected => GrpcCode::InvalidArgument,
            OtlpErrorKind::NotAuthenticated => GrpcCode::Unauthenticated,
            OtlpErrorKind::NotAuthorized => GrpcCode::PermissionDenied,
            OtlpErrorKind::Method | OtlpErrorKind::MediaType | OtlpErrorKind::Encoding => GrpcCode::Unimplemented,
            OtlpErrorKind::Timeout => GrpcCode::DeadlineExceeded,
            OtlpErrorKind::TooLarge
            | OtlpErrorKind::DecodedTooLarge
            | OtlpErrorKind::ZstdWindow
            | OtlpErrorKind::Pressure => GrpcCode::ResourceExhausted,
            OtlpErrorKind::LogPoisoned
            | OtlpErrorKind::DiskFull
            | OtlpErrorKind::Stopping
            | OtlpErrorKind::Unavailable => GrpcCode::Unavailable,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: OtlpErrorKind,
    pub text: String,
    /// The pause that the sender is asked for.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    fn new(kind: OtlpErrorKind, text: impl Into<String>) -> Refusal {
        Refusal {
            kind,
            text: text.into(),
            retry_after: kind.facts().retry.after(),
        }
    }

    /// The reason, for programs.
    pub fn code(&self) -> &'static str {
        self.kind.facts().code
    }

    pub fn malformed(text: impl Into<String>) -> Refusal {
        Refusal::new(OtlpErrorKind::Malformed, text)
    }

    pub fn all_rejected(text: String) -> Refusal {
        Refusal::new(OtlpErrorKind::AllRejected, text)
    }

    pub fn media_type(text: String) -> Refusal {
        Refusal::new(OtlpErrorKind::MediaType, text)
    }

    pub fn encoding(text: String) -> Refusal {
        Refusal::new(OtlpErrorKind::Encoding, text)
    }

    pub fn too_large(limit: usize) -> Refusal {
        let text = format!("the request has more than {limit} bytes (ingest.max_body_bytes); send smaller batches");
        Refusal::new(OtlpErrorKind::TooLarge, text)
    }

    /// The request can never fit, so a retry would not help.
    pub fn too_large_for_all(limit: usize) -> Refusal {
        let text = format!(
            "the request takes more than the {limit} bytes of all requests that are not stored yet \
             (ingest.inflight_bytes); send smaller batches"
        );
        Refusal::new(OtlpErrorKind::TooLarge, text)
    }

    pub fn too_slow(limit: Duration) -> Refusal {
        let text = format!("the request did not arrive within {limit:?} (ingest.body_timeout)");
        Refusal::new(OtlpErrorKind::Timeout, text)
    }

    pub fn pressure(pause: Duration) -> Refusal {
        let text = "too many requests are waiting to be stored; try again";
        Refusal {
            retry_after: Some(pause.clamp(RETRY_MIN, RETRY_MAX)),
            ..Refusal::new(OtlpErrorKind::Pressure, text)
        }
    }

    pub fn unknown_method(path: &str) -> Refusal {
        Refusal::new(OtlpErrorKind::Method, format!("there is no method {path}"))
    }
}

impl From<InflateError> for Refusal {
    fn from(error: InflateError) -> Refusal {
        let text = format!("the request: {error}");
        match error {
            InflateError::Malformed(..) => Refusal::malformed(error.to_string()),
            InflateError::TooLarge(_) => {
                Refusal::new(OtlpErrorKind::DecodedTooLarge, text + " (ingest.max_decoded_bytes)")
            }
            InflateError::Ratio(_) => Refusal::new(OtlpErrorKind::DecodedTooLarge, text + " (ingest.max_ratio)"),
            InflateError::Window(_) => Refusal::new(OtlpErrorKind::ZstdWindow, text + " (ingest.zstd_window)"),
        }
    }
}

impl From<AppendRefused> for Refusal {
    fn from(refused: AppendRefused) -> Refusal {
        match refused {
            AppendRefused::Poisoned(text) => Refusal::new(OtlpErrorKind::LogPoisoned, text),
            AppendRefused::DiskFull(text) => Refusal::new(OtlpErrorKind::DiskFull, text),
            AppendRefused::Stopping => Refusal::new(OtlpErrorKind::Stopping, "the process stops"),
            // The receiver knows the drain rate and computes a better pause.
            AppendRefused::Pressure => Refusal::pressure(RETRY_MIN),
            AppendRefused::Other(text) => Refusal::new(OtlpErrorKind::Unavailable, text),
        }
    }
}

impl From<AdmissionError> for Refusal {
    fn from(denied: AdmissionError) -> Refusal {
        match denied {
            AdmissionError::Busy => Refusal::pressure(Duration::from_secs(1)),
            AdmissionError::NotAuthenticated(text) => Refusal::new(OtlpErrorKind::NotAuthenticated, text),
            AdmissionError::NotAuthorized(text) => Refusal::new(OtlpErrorKind::NotAuthorized, text),
        }
    }
}
