//! Support for end-to-end tests: the real binary as a process, real servers, and inspection of both.
//!
//! Every test has its own folder, ports chosen by the system, and processes that end with it.

pub mod api;
pub mod disk;
pub mod grpc;
pub mod mqtt;
pub mod postgres;
pub mod process;
pub mod proxy;
pub mod receiver;
pub mod servers;
pub mod soak;
pub mod thalweg;
pub mod wait;

pub use api::Api;
pub use disk::Disk;
pub use grpc::Grpc;
pub use mqtt::{MqttClient, MqttConnect, MqttServe};
pub use process::Process;
pub use receiver::Receiver;
pub use thalweg::{Balance, Thalweg};
pub use wait::{eventually, eventually_within};

use std::path::PathBuf;

/// A file beside the tests, by its path from their package. Cargo passes the folder at each run; the value at build time may be
/// another clone, if several share a target directory.
pub fn beside(path: &str) -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.join(path)
}
