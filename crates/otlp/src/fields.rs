//! The fields of OTLP messages that the server reads, under their names in the OTLP definition.

use thalweg_kit::wire::{FieldKey, bytes, fields, fixed32, fixed64, number};

macro_rules! messages {
    ($($(#[$doc:meta])* $message:ident { $($name:ident = $kind:ident $number:literal,)* })*) => {
        $($(#[$doc])* pub mod $message {
            use super::*;
            $(pub const $name: FieldKey = $kind($number);)*
            /// All fields of the message.
            pub const KNOWN: u64 = fields(&[$($name),*]);
        })*
    };
}

messages! {
    /// An export request of any signal. Files contain the same message.
    request { GROUPS = bytes 1, }
    /// `ResourceLogs`, `ResourceMetrics`, `ResourceSpans`.
    group { RESOURCE = bytes 1, SCOPES = bytes 2, SCHEMA_URL = bytes 3, }
    resource { ATTRIBUTES = bytes 1, DROPPED = number 2, }
    /// `ScopeLogs`, `ScopeMetrics`, `ScopeSpans`.
    scoped { SCOPE = bytes 1, RECORDS = bytes 2, SCHEMA_URL = bytes 3, }
    scope { NAME = bytes 1, VERSION = bytes 2, ATTRIBUTES = bytes 3, DROPPED = number 4, }
    pair { NAME = bytes 1, VALUE = bytes 2, }
    any {
        TEXT = bytes 1, BOOL = number 2, INT = number 3, DOUBLE = fixed64 4, LIST = bytes 5, MAP = bytes 6, BYTES = bytes 7,
    }
    list { VALUES = bytes 1, }
    map { PAIRS = bytes 1, }
    log {
        TIME = fixed64 1, SEVERITY_NUMBER = number 2, SEVERITY_TEXT = bytes 3, BODY = bytes 5, ATTRIBUTES = bytes 6,
        DROPPED = number 7, FLAGS = fixed32 8, TRACE_ID = bytes 9, SPAN_ID = bytes 10, OBSERVED_TIME = fixed64 11,
        EVENT_NAME = bytes 12,
    }
    span {
        TRACE_ID = bytes 1, SPAN_ID = bytes 2, TRACE_STATE = bytes 3, PARENT_SPAN_ID = bytes 4, NAME = bytes 5, KIND = number 6,
        START = fixed64 7, END = fixed64 8, ATTRIBUTES = bytes 9, DROPPED_ATTRIBUTES = number 10, EVENTS = bytes 11,
        DROPPED_EVENTS = number 12, LINKS = bytes 13, DROPPED_LINKS = number 14, STATUS = bytes 15, FLAGS = fixed32 16,
    }
    event { TIME = fixed64 1, NAME = bytes 2, ATTRIBUTES = bytes 3, DROPPED = number 4, }
    link {
        TRACE_ID = bytes 1, SPAN_ID = bytes 2, TRACE_STATE = bytes 3, ATTRIBUTES = bytes 4, DROPPED = number 5, FLAGS = fixed32 6,
    }
    status { MESSAGE = bytes 2, CODE = number 3, }
    metric {
        NAME = bytes 1, DESCRIPTION = bytes 2, UNIT = bytes 3, GAUGE = bytes 5, SUM = bytes 7, HISTOGRAM = bytes 9,
        EXPONENTIAL_HISTOGRAM = bytes 10, SUMMARY = bytes 11, METADATA = bytes 12,
    }
    /// The fields that the five kinds of metric data share.
    data { POINTS = bytes 1, TEMPORALITY = number 2, IS_MONOTONIC = number 3, }
    number_point {
        START = fixed64 2, TIME = fixed64 3, DOUBLE = fixed64 4, EXEMPLARS = bytes 5, INT = fixed64 6, ATTRIBUTES = bytes 7,
        FLAGS = number 8,
    }
    histogram_point {
        START = fixed64 2, TIME = fixed64 3, COUNT = fixed64 4, SUM = fixed64 5, BUCKETS = bytes 6, BOUNDS = bytes 7,
        EXEMPLARS = bytes 8, ATTRIBUTES = bytes 9, FLAGS = number 10, MIN = fixed64 11, MAX = fixed64 12,
    }
    exponential_point {
        ATTRIBUTES = bytes 1, START = fixed64 2, TIME = fixed64 3, COUNT = fixed64 4, SUM = fixed64 5, SCALE = number 6,
        ZERO_COUNT = fixed64 7, POSITIVE = bytes 8, NEGATIVE = bytes 9, FLAGS = number 10, EXEMPLARS = bytes 11, MIN = fixed64 12,
        MAX = fixed64 13, ZERO_THRESHOLD = fixed64 14,
    }
    buckets { OFFSET = number 1, COUNTS = bytes 2, }
    summary_point {
        START = fixed64 2, TIME = fixed64 3, COUNT = fixed64 4, SUM = fixed64 5, QUANTILES = bytes 6, ATTRIBUTES = bytes 7,
        FLAGS = number 8,
    }
    quantile { QUANTILE = fixed64 1, VALUE = fixed64 2, }
    exemplar {
        TIME = fixed64 2, DOUBLE = fixed64 3, SPAN_ID = bytes 4, TRACE_ID = bytes 5, INT = fixed64 6, ATTRIBUTES = bytes 7,
    }
}

/// Keys of repeated numbers that the sender did not pack.
pub mod unpacked {
    use super::*;

    pub const BUCKETS: FieldKey = fixed64(6);
    pub const BOUNDS: FieldKey = fixed64(7);
    pub const COUNTS: FieldKey = number(2);
}

/// Keys of fields that OTLP had before version 1. What they hold would be lost, so a request with one is refused.
pub mod before_version_1 {
    use super::*;

    /// Of a group: `instrumentation_library_logs`, `…_metrics`, `…_spans`.
    pub const LIBRARY_SCOPES: FieldKey = bytes(1000);
    /// Of a metric.
    pub const INT_GAUGE: FieldKey = bytes(4);
    pub const INT_SUM: FieldKey = bytes(6);
    pub const INT_HISTOGRAM: FieldKey = bytes(8);
    /// Of points that are not exponential: their attributes.
    pub const LABELS: FieldKey = bytes(1);
}
