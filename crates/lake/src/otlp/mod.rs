//! OTLP, from the bytes of a request to rows: the look at a request before it is stored, and the decoder.
//!
//! Both read the same bytes with the same rules. What one of them takes the other takes, so a request that was stored can be
//! decoded whenever it is read from the log.

pub mod decode;
pub mod fields;
pub mod json;
pub mod validate;
pub mod wire;

/// What a request carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Signal {
    Logs,
    Metrics,
    Traces,
}

impl Signal {
    pub const ALL: [Signal; 3] = [Signal::Logs, Signal::Metrics, Signal::Traces];

    pub fn name(self) -> &'static str {
        match self {
            Signal::Logs => "logs",
            Signal::Metrics => "metrics",
            Signal::Traces => "traces",
        }
    }
}
