//! Shared by the tests: queues on a log in a folder, and short names for user calls and checks.

mod calls;
mod disks;
mod machine;
mod place;
mod settings;
mod views;

pub use calls::*;
pub use disks::*;
pub use machine::*;
pub use place::*;
pub use settings::*;
pub use views::*;
