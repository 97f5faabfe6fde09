//! What end-to-end tests need: the real binary as a process, real servers at the other end, and eyes to look at both.
//!
//! Every test has a folder of its own, ports that the system chose, and processes that die with it.

pub mod api;
pub mod disk;
pub mod grpc;
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
pub use process::Process;
pub use receiver::Receiver;
pub use thalweg::{Balance, Thalweg};
pub use wait::{eventually, eventually_within};

use std::path::PathBuf;

/// A file that stands beside the tests, by its path from their package. Cargo says at each run where that is; what it said at
/// the build may be another clone, where several share a target directory.
pub fn beside(path: &str) -> PathBuf {
    let own = std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    own.join(path)
}
