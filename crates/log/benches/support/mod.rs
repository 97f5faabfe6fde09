//! What the benchmark counts with, and where its logs go.

mod counted;
mod environment;
mod histogram;

use std::path::{Path, PathBuf};

pub use counted::Counted;
pub use histogram::Histogram;

#[global_allocator]
static ALLOCATOR: thalweg_telemetry::alloc::CountingAllocator<tikv_jemallocator::Jemalloc> =
    thalweg_telemetry::alloc::CountingAllocator(tikv_jemallocator::Jemalloc);

/// Where the logs go. Memory is no disk.
pub fn folder() -> PathBuf {
    let folder = environment::bench_folder();
    std::fs::create_dir_all(&folder).unwrap();
    if let Some(refused) = environment::refused(&folder) {
        panic!("{refused}");
    }
    folder
}

/// Files that are read next are read from the disk, as far as they are written there.
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
