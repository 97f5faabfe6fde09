//! An OPC UA server that simulates a PLC: any number of changing and static nodes, faults on demand, and exact counts
//! of what it did, so that a collector can be measured and checked against it. `start` takes plain `SimulatorOptions`
//! and returns a running `Simulator`; the address space, values and faults are deterministic for a seed.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

mod error;
mod http;
mod manager;
mod options;
mod proxy;
mod server;
mod simulator;
mod space;
mod standard;
mod stats;
mod ticker;

pub use error::SimulatorError;
pub use options::{SimulatorOptions, ValueType};
pub use simulator::{Simulator, start};
pub use stats::{GroupStats, ProxyStats, SimulatorStats, StatsByGroup, ValueCounts};
