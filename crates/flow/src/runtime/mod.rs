//! A flow from its checked configuration to its end: `spec` reads and checks, `start` builds and wires, `buffer` keeps
//! messages across a restart, `stop` drains in order (input, workers, output), `handle` reports the state,
//! `dead_letter` writes the failed messages of all flows.

mod buffer;
mod dead_letter;
mod handle;
mod spec;
mod start;
mod stop;

pub use dead_letter::DeadLetterOutput;
pub use handle::{FlowHandle, StopReport};
pub(crate) use handle::{GraphNodes, NodeCounters, NodeDetails};
pub use spec::FlowSpec;
pub use start::{Flow, FlowEnvironment};
