//! Tests of a log through its public interface. A single binary, because each one costs a link.

#![allow(clippy::unwrap_used)]

mod commits;
mod damage;
mod failing_disk;
mod full_disk;
mod lives;
mod partitions;
mod rolls;
mod stored;
mod support;
