//! A flow from its checked configuration to its end: `spec` reads and checks, `start` builds and wires, `stop` drains in
//! order (input, workers, output), `handle` tells the state.

mod handle;
mod spec;
mod start;

pub use handle::{FlowHandle, StopReport};
pub use spec::FlowSpec;
pub use start::{DeadLetterOutput, Flow, FlowEnvironment};
