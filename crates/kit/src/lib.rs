//! Small utilities that many crates share.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod blocking;
pub mod files;
pub mod json_tokens;
pub mod time;
pub mod wire;
mod work_folder;

pub use work_folder::WorkFolder;
