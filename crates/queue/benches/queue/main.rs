//! The cost of queues, in one process: the operations that the reference system measures, under its names, and
//! realistic variants beside them. `cargo xtask bench queue` runs it. Alone it prints a table; with `--json` it prints
//! one row per line and the table on stderr. A word selects the rows whose name contains it.
//!
//! Rows with the reference's names do what its benchmarks do: in memory, no background work, one message per partition
//! and claim, payloads by reference. One op is one call, as there; `moved` is the number of messages that really moved
//! per op. CPU time is that of all threads.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a benchmark"
)]

mod deep;
mod disk;
mod durable;
#[path = "../../../log/benches/support/environment.rs"]
mod environment;
mod harness;
#[path = "../../../log/benches/support/histogram.rs"]
mod histogram;
mod memory;
mod reference;

use harness::Session;

#[global_allocator]
static ALLOCATOR: thalweg_telemetry::alloc::CountingAllocator<tikv_jemallocator::Jemalloc> =
    thalweg_telemetry::alloc::CountingAllocator(tikv_jemallocator::Jemalloc);

fn main() {
    let session = Session::parse();
    if session.is_alone {
        deep::run(&session);
        return;
    }
    session.head();
    // Checked before minutes have passed.
    if disk::NAMES.iter().any(|name| session.wants(name)) || durable::is_wanted(&session) || deep::is_wanted(&session) {
        std::fs::create_dir_all(&session.folder).unwrap();
        if let Some(refused) = environment::refused(&session.folder) {
            session.refuse(&refused);
        }
    }
    reference::run(&session);
    memory::run(&session);
    disk::run(&session);
    durable::run(&session);
    deep::run(&session);
    memory::compare(&session);
    durable::compare(&session);
}
