//! The event store from outside, on disks that fail.

#![allow(clippy::unwrap_used)]

mod crash;
