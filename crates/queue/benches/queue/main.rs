//! What queues cost, in one process: the operations that the reference system measures, under its names, and the honest
//! variants beside them. `cargo xtask bench queue` runs it; alone it prints a table, with `--json` one row per line.
//!
//! Rows with the reference's names do what its benchmarks do: in memory, nothing in the background, one message per
//! partition and claim, payloads by reference. One op is one call, as there; `moved` says how many messages really moved
//! per op. CPU time is that of all threads.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark")]

mod durable;
mod harness;
mod memory;
mod reference;

use harness::Options;

#[global_allocator]
static ALLOCATOR: thalweg_telemetry::alloc::Counting<tikv_jemallocator::Jemalloc> =
    thalweg_telemetry::alloc::Counting(tikv_jemallocator::Jemalloc);

fn main() {
    let options = Options::parse();
    harness::head(&options);
    reference::run(&options);
    memory::run(&options);
    durable::run(&options);
}
