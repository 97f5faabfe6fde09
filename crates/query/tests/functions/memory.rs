//! The memory of this process as the kernel and the allocator count it.

use std::fs;

use tikv_jemalloc_ctl::{epoch, stats};

fn status(name: &str) -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let kib: usize = line
        .trim_matches([':', '\t', ' '])
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib << 10
}

/// Anonymous memory. File-backed pages are left out: the process reads more pages of its binary as it uses more
/// functions.
pub fn anonymous() -> usize {
    status("RssAnon")
}

/// Peak of resident bytes since [`forget_peak`].
pub fn peak() -> usize {
    status("VmHWM")
}

pub fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// Bytes allocated and not freed.
pub fn live() -> usize {
    epoch::advance().unwrap();
    stats::allocated::read().unwrap()
}
