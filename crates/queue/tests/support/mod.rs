//! What several test programs need: queues on a log in a folder, and short names for what users do and look at.

#![allow(dead_code, unused_imports, reason = "each test program uses some of it")]

mod calls;
mod place;
mod settings;
mod views;

pub use calls::*;
pub use place::*;
pub use settings::*;
pub use views::*;
