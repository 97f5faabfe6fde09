//! The event store through its public interface, on failing disks and machines with settable clocks.

#![allow(clippy::unwrap_used)]

mod clock;
mod crash;
mod lives;
mod stored;
