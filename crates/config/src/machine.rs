//! The memory of the machine that this process may use.

use std::fs;

/// Assumed if the system does not report its memory.
const UNKNOWN_BYTES: u64 = 4 << 30;

/// Bytes of memory: those of the machine, or of the control group if that allows less.
pub fn memory_bytes() -> u64 {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total(&text));
    let group = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .iter()
    .filter_map(|path| fs::read_to_string(path).ok())
    .find_map(|text| text.trim().parse().ok());
    smaller(machine, group)
}

fn smaller(machine: Option<u64>, group: Option<u64>) -> u64 {
    let machine = machine.unwrap_or(UNKNOWN_BYTES);
    // A control group without a limit reads as a number near 2^63 or as `max`.
    machine.min(group.filter(|&limit| limit > 0).unwrap_or(u64::MAX))
}

/// `MemTotal:       16314000 kB`
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smaller_of_machine_and_control_group_counts() {
        let text = "MemTotal:       16314000 kB\nMemFree:  1 kB\n";
        assert_eq!(total(text), Some(16_314_000 * 1024));
        assert_eq!(total("nothing"), None);
        assert_eq!(smaller(Some(8 << 30), Some(2 << 30)), 2 << 30);
        assert_eq!(smaller(Some(8 << 30), Some(u64::MAX >> 1)), 8 << 30);
        assert_eq!(smaller(None, None), UNKNOWN_BYTES);
        assert!(memory_bytes() > 0);
    }
}
