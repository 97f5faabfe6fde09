//! Small things that every crate needs and none owns.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod blocking;
pub mod files;
mod work_folder;

pub use work_folder::WorkFolder;
