//! The signals of telemetry, each of which has a table of its own.

use thalweg_columns::tables::{LOGS, METRICS, TRACES, TableSpec};

/// What a request or an entry carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    Logs,
    Metrics,
    Traces,
}

impl Signal {
    pub const ALL: [Signal; 3] = [Signal::Logs, Signal::Metrics, Signal::Traces];

    /// In metrics, paths, options and texts; also the name of its table.
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
