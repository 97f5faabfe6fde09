//! Observability of a running Thalweg: metrics, logs, allocation counts, the state that the console shows, and the
//! trait by which components add HTTP routes to the listener.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod alloc;
mod families;
mod http;
mod limiter;
mod log_file;
pub mod logging;
mod metric_doc;
mod metric_names;
mod metrics;
mod offload;
mod origin;
mod process;
mod status;
mod timing;

pub use families::{Distribution, Labels, MetricFamilies};
pub use http::{Access, HttpRoutes, Mount};
pub use limiter::{LogDecision, LogLimiter};
pub use log_file::{LogFile, LogFileError, LogFileOptions, LogRotation};
pub use metric_doc::{COMPONENT_LABELS, MetricDoc, MetricGroup, MetricKind};
pub use metric_names::{KEPT_NAMES, KeptNames, PARTS};
pub use metrics::{ComponentId, Metrics};
pub use offload::aside;
pub use origin::{ActingPaths, HostNames, LinkablePaths, OriginPolicy, OriginRefusal, host_of};
pub use process::{METRICS, cpu_time, register_process_metrics, resident_bytes};
pub use prometheus::{GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec};
pub use status::{
    BalanceStatus, FlowStatus, NodeKind, NodeStatus, StatusBoard, StatusDetail, StatusSource, TableStatus,
};
pub use timing::Timing;
