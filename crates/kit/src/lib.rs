//! Small utilities that many crates share.
#![cfg_attr(test, allow(clippy::unwrap_used))]
#![cfg_attr(not(test), warn(clippy::disallowed_methods, clippy::disallowed_types))]

pub mod backoff;
pub mod blocking;
pub mod byte_budget;
pub mod channel;
pub mod clock;
pub mod error_facts;
pub mod files;
pub mod histogram;
pub mod json_tokens;
pub mod random;
pub mod re2;
pub mod simulation;
pub mod threads;
pub mod time;
pub mod varint;
pub mod wire;
mod work_folder;

pub use work_folder::WorkFolder;
