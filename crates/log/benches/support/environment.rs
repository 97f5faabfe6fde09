//! The environment of a benchmark: processor, memory, kernel, file system and device of its folder, version and commit.
//! Results mean nothing without these. Host names and paths are left out, so that the output can be published.
//!
//! Benchmarks of several crates and `xtask` include this file, so it uses the standard library only.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names and values in display order.
pub type Facts = Vec<(&'static str, String)>;

/// File systems in memory, where the cost of a sync means nothing.
const IN_MEMORY: [&str; 3] = ["tmpfs", "ramfs", "devtmpfs"];

/// Usually on a real disk; `THALWEG_BENCH_DIR` overrides it.
pub fn bench_folder() -> PathBuf {
    std::env::var_os("THALWEG_BENCH_DIR").map_or_else(
        || {
            let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
            home.join(".cache/thalweg/bench")
        },
        PathBuf::from,
    )
}

/// Why durable writes cannot be measured in this folder.
pub fn refused(folder: &Path) -> Option<String> {
    let mount = Mount::of(folder)?;
    IN_MEMORY.contains(&mount.kind.as_str()).then(|| {
        format!(
            "the benchmark's folder is on {}, which is memory: set THALWEG_BENCH_DIR to a folder on a disk",
            mount.kind
        )
    })
}

pub fn facts(folder: &Path) -> Facts {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let memory = read("/proc/meminfo");
    let kib: u64 = memory
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    let load = read("/proc/loadavg");
    let load: Vec<&str> = load.split_whitespace().take(3).collect();
    let (file_system, device) = match Mount::of(folder) {
        Some(mount) => (mount.kind.clone(), mount.device()),
        None => ("unknown".to_owned(), "unknown".to_owned()),
    };
    vec![
        ("cpu", model.map_or("unknown", |(_, name)| name).to_owned()),
        (
            "cores",
            std::thread::available_parallelism().map_or(0, usize::from).to_string(),
        ),
        ("memory", format!("{:.1} GiB", kib as f64 / f64::from(1 << 20))),
        ("os", std::env::consts::OS.to_owned()),
        ("arch", std::env::consts::ARCH.to_owned()),
        ("kernel", read("/proc/sys/kernel/osrelease").trim().to_owned()),
        ("file_system", file_system),
        ("device", device),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("commit", commit()),
        ("load", load.join(" ")),
    ]
}

/// One line per fact.
pub fn text(facts: &Facts) -> String {
    let lines: Vec<String> = facts
        .iter()
        .map(|(name, value)| format!("{name:<12} {value}"))
        .collect();
    lines.join("\n")
}

/// The commit of the sources, with `+` if there are uncommitted changes.
fn commit() -> String {
    // The path from compile time may be of another clone, if several share a target directory.
    let sources =
        std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from);
    let git = |words: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&sources).args(words).output().ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|files| !files.is_empty());
    match git(&["rev-parse", "--short=12", "HEAD"]) {
        Some(commit) => format!("{commit}{}", if changed { "+" } else { "" }),
        None => "unknown".to_owned(),
    }
}

struct Mount {
    kind: String,
    source: String,
}

impl Mount {
    /// The mount of a folder or of its nearest existing parent.
    fn of(folder: &Path) -> Option<Mount> {
        let real = folder.ancestors().find_map(|parent| parent.canonicalize().ok())?;
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mut found: Option<(usize, Mount)> = None;
        for line in mounts.lines() {
            // id, parent, major:minor, root, mount point, options, ..., "-", kind, source, options
            let (place, rest) = line.split_once(" - ")?;
            let (Some(point), mut rest) = (place.split(' ').nth(4), rest.split(' ')) else {
                continue;
            };
            let (Some(kind), Some(source)) = (rest.next(), rest.next()) else {
                continue;
            };
            // The deepest mount wins; of several at one place, the last.
            let depth = Path::new(point).components().count();
            if real.starts_with(point) && found.as_ref().is_none_or(|(best, _)| depth >= *best) {
                let (kind, source) = (kind.to_owned(), source.to_owned());
                found = Some((depth, Mount { kind, source }));
            }
        }
        found.map(|(_, mount)| mount)
    }

    /// The device name and its properties in the kernel: a write cache determines the cost of a sync.
    fn device(&self) -> String {
        let real = Path::new(&self.source).canonicalize().unwrap_or_default();
        let Some(name) = real.strip_prefix("/dev").ok().and_then(Path::to_str) else {
            return "none".to_owned();
        };
        let Ok(block) = Path::new("/sys/class/block").join(name).canonicalize() else {
            return name.to_owned();
        };
        let read = |path: &Path| {
            let text = std::fs::read_to_string(path).ok()?;
            Some(text.trim().to_owned()).filter(|text| !text.is_empty())
        };
        // A partition has no queue of its own; its disk does.
        let disk = if block.join("partition").exists() {
            block.parent().unwrap_or(&block)
        } else {
            &block
        };
        let sectors: f64 = read(&block.join("size")).and_then(|n| n.parse().ok()).unwrap_or(0.0);
        let mut text = format!("{name}, {:.0} GiB", sectors * 512.0 / f64::from(1 << 30));
        for fact in ["device/model", "queue/write_cache"] {
            if let Some(fact) = read(&disk.join(fact)) {
                text = format!("{text}, {fact}");
            }
        }
        let rotates = read(&disk.join("queue/rotational")).is_some_and(|flag| flag == "1");
        text + if rotates {
            ", rotating or not known"
        } else {
            ", not rotating"
        }
    }
}
