//! The telemetry signals. Each has its own table.

use thalweg_columns::tables::{LOGS, METRICS, TRACES, TableSpec};

/// The content of a request or an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    Logs,
    Metrics,
    Traces,
}

impl Signal {
    pub const ALL: [Signal; 3] = [Signal::Logs, Signal::Metrics, Signal::Traces];

    /// The name in metrics, paths, options and messages; also that of its table.
    pub fn name(self) -> &'static str {
        match self {
            Signal::Logs => "logs",
            Signal::Metrics => "metrics",
            Signal::Traces => "traces",
        }
    }

    pub fn table(self) -> &'static TableSpec {
        match self {
            Signal::Logs => &LOGS,
            Signal::Metrics => &METRICS,
            Signal::Traces => &TRACES,
        }
    }
}
