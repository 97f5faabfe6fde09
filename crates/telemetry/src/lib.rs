//! What a running Thalweg tells about itself: metrics, logs, allocations, the state that the console draws, and the
//! trait by which components add HTTP routes to the one listener.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod alloc;
mod aside;
mod families;
mod http;
mod limiter;
pub mod logging;
mod metrics;
mod origin;
mod process;
mod status;
mod timing;

pub use aside::aside;
pub use families::{Distribution, Families, Labels};
pub use http::{Access, HttpRoutes, Mount};
pub use limiter::{LogLimiter, Verdict};
pub use metrics::{ComponentId, Metrics};
pub use origin::{ActingReads, Foreign, Links, Names, Origins, host_of};
pub use process::{cpu_time, register_process_metrics, resident_bytes};
pub use prometheus::{IntCounter, IntGauge};
pub use status::{BalanceStatus, Detail, FlowStatus, NodeKind, NodeStatus, StatusBoard, StatusSource, TableStatus};
pub use timing::Timing;
