//! What the benchmark counts with: allocations, CPU time, writes and syncs of the disk, a histogram of latencies.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use thalweg_log::disk::{Disk, DiskFile, Space};

struct Counting;

pub static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system allocator unchanged; a counter is all that is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Of all threads of this process.
pub fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Where the logs go. Memory is no disk.
pub fn folder() -> PathBuf {
    let folder = std::env::var_os("THALWEG_BENCH_DIR").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cache/thalweg/bench"),
        PathBuf::from,
    );
    std::fs::create_dir_all(&folder).unwrap();
    const TMPFS: i64 = 0x0102_1994;
    let kind = rustix::fs::statfs(&folder).unwrap().f_type as i64;
    assert_ne!(kind, TMPFS, "{} is in memory: set THALWEG_BENCH_DIR", folder.display());
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
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease");
    let threads = std::thread::available_parallelism().map_or(0, usize::from);
    let model = model.trim_start_matches([' ', '\t', ':']);
    println!(
        "{threads} x {model}, Linux {}, load {}, {}",
        kernel.trim(),
        read("/proc/loadavg").trim(),
        folder().display()
    );
}

/// A disk whose writes and syncs are counted.
pub struct Counted {
    disk: Arc<dyn Disk>,
    pub renames: AtomicU64,
    pub syncs: Arc<AtomicU64>,
    pub written: Arc<AtomicU64>,
}

struct CountedFile {
    file: Arc<dyn DiskFile>,
    syncs: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl Counted {
    pub fn new(disk: Arc<dyn Disk>) -> Counted {
        Counted {
            disk,
            renames: AtomicU64::new(0),
            syncs: Arc::default(),
            written: Arc::default(),
        }
    }

    fn counted(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(CountedFile {
            file,
            syncs: self.syncs.clone(),
            written: self.written.clone(),
        })
    }
}

impl Disk for Counted {
    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.counted(self.disk.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.counted(self.disk.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.renames.fetch_add(1, Relaxed);
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }

    fn space(&self) -> io::Result<Space> {
        self.disk.space()
    }
}

impl DiskFile for CountedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.written.fetch_add(bytes.len() as u64, Relaxed);
        self.file.write_at(bytes, at)
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buf, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Relaxed);
        self.file.sync()
    }

    fn write_and_sync(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.written.fetch_add(bytes.len() as u64, Relaxed);
        self.syncs.fetch_add(1, Relaxed);
        self.file.write_and_sync(bytes, at)
    }
}

/// Buckets per doubling: a value is known to 3 %.
const PARTS: u64 = 32;

/// Counts of nanoseconds in buckets that grow with them; recording allocates nothing.
pub struct Histogram {
    counts: Vec<u64>,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram {
            counts: vec![0; 64 * PARTS as usize],
            max: 0,
        }
    }
}

impl Histogram {
    pub fn record(&mut self, value: Duration) {
        let value = value.as_nanos() as u64;
        self.max = self.max.max(value);
        let doublings = value.max(PARTS).ilog2() - PARTS.ilog2();
        let bucket = u64::from(doublings) * PARTS + (value >> doublings);
        self.counts[bucket as usize] += 1;
    }

    pub fn add(&mut self, other: &Histogram) {
        self.max = self.max.max(other.max);
        for (own, more) in self.counts.iter_mut().zip(&other.counts) {
            *own += more;
        }
    }

    /// The upper end of the bucket below which `part` of the values lie.
    pub fn quantile(&self, part: f64) -> Duration {
        let all: u64 = self.counts.iter().sum();
        let mut rest = (all as f64 * part).ceil() as u64;
        for (bucket, count) in self.counts.iter().enumerate() {
            rest = rest.saturating_sub(*count);
            if rest == 0 {
                let bucket = bucket as u64;
                let doublings = (bucket / PARTS).saturating_sub(1);
                let end = (bucket - doublings * PARTS + 1) << doublings;
                return Duration::from_nanos(end.min(self.max));
            }
        }
        Duration::from_nanos(self.max)
    }
}
