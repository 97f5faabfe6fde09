//! Measures the cost of a record on its way from the bytes of a request to a table:
//! `cargo bench --profile release -p thalweg-otlp [-- PART OF A NAME] [--quick] [--input FILE]`.
//!
//! `decode_*` makes rows in memory, without fingerprints and series ids; `decode_fingerprint_*` includes them.
//! `full_chain_*` reads log entries and ends when they are committed to a Delta table on disk, sorted, in Parquet with
//! zstd 1, synced. `full_chain_logs_one_core` and `_two_cores` do the same with all threads on that many cores.
//! `parquet_read_*` reads time, service and two more columns of such files. `*_gz` begins with gzip; `*_wide` has forty
//! columns. `sketch_*` and `rollup_*` have no tables: their records are values, encoded sketches and points. A run
//! fails if its rows are not as many as its records.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used)]

#[allow(dead_code, reason = "other programs use what is not used here")]
#[path = "../../../log/benches/support/environment.rs"]
mod environment;
mod generator;
mod harness;
mod rows;
mod sketches;

use thalweg_telemetry::alloc::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator<tikv_jemallocator::Jemalloc> = CountingAllocator(tikv_jemallocator::Jemalloc);

fn main() {
    let session = harness::Session::parse();
    std::fs::create_dir_all(&session.folder).unwrap();
    session.print_head();
    rows::run(&session);
    sketches::run(&session);
}
