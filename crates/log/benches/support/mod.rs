//! Counters and folders for the benchmarks.

mod counted;
mod environment;
mod histogram;

use std::path::{Path, PathBuf};

pub use counted::Counted;
pub use histogram::Histogram;

#[global_allocator]
static ALLOCATOR: thalweg_telemetry::alloc::CountingAllocator<tikv_jemallocator::Jemalloc> =
    thalweg_telemetry::alloc::CountingAllocator(tikv_jemallocator::Jemalloc);

/// The folder for the logs. A file system in memory is refused.
pub fn folder() -> PathBuf {
    let folder = environment::bench_folder();
    std::fs::create_dir_all(&folder).unwrap();
    if let Some(refused) = environment::refused(&folder) {
        panic!("{refused}");
    }
    folder
}

/// Drops the files from the page cache, as far as they are written to disk.
pub fn forget(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        if let Ok(file) = std::fs::File::open(entry.path()) {
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
    }
}

pub fn print_environment() {
    println!("{}", environment::text(&environment::facts(&folder())));
}
