//! One writer per disk. It gathers the submissions of all partitions, commits them together and wakes the waiters.

pub(crate) mod core;
pub(crate) mod files;
pub(crate) mod group;
mod inbox;
pub(crate) mod slots;
pub(crate) mod thread;

#[cfg(test)]
mod crash_tests;
