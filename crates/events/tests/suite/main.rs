//! The event store from outside, on disks that fail and machines whose clocks are set.

#![allow(clippy::unwrap_used)]

mod clock;
mod crash;
mod lives;
mod stored;
