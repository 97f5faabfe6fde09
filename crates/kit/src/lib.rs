//! Small things that every crate needs and none owns.
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod files;
pub mod long;
mod work_folder;

pub use work_folder::WorkFolder;
