//! The memory of this process, as the kernel and as the allocator count it.

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

/// Bytes that are not those of files: the program's own pages, of which more are read as more of its functions are used, are not
/// among them.
pub fn anonymous() -> usize {
    status("RssAnon")
}

/// Resident bytes, at most, since [`forget_peak`].
pub fn peak() -> usize {
    status("VmHWM")
}

pub fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").unwrap();
}

/// Bytes that were asked for and are not freed.
pub fn live() -> usize {
    epoch::advance().unwrap();
    stats::allocated::read().unwrap()
}
