//! One writer per disk: it gathers what all partitions were given, commits it together and wakes who waits for it.

pub(crate) mod core;
pub(crate) mod files;
pub(crate) mod group;
mod inbox;
pub(crate) mod slots;
pub(crate) mod thread;

#[cfg(test)]
mod crash_tests;
