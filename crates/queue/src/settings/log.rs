//! The section `log` of the configuration file: how the durable log commits, where it is stored, and how it handles
//! damage.

use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_config::{Diagnostics, Fields, Node, Pos};
use thalweg_log::Durability;

use super::HOUR;
use super::read::{DURABILITIES, count, duration, size, word};

/// The longest time that a publisher waits for others, whatever the gain.
const LINGER_MAX: Duration = Duration::from_micros(50);
const DIRS_MAX: usize = 64;
const MIB: u64 = 1 << 20;
/// The largest submission, and so the largest useful block.
const COMMIT_BYTES_MAX: u64 = thalweg_log::SUBMISSION_BYTES_MAX as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEngine {
    Embedded,
}

/// What a failed write or sync of the log does to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPoison {
    /// The process exits with code 74, so that a supervisor restarts it and recovery checks the disk.
    Exit,
    /// The process continues to serve what is committed.
    Stay,
}

/// How a start handles damage to synced data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryMode {
    Strict,
    /// The damaged records are given up.
    Skip,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    pub engine: LogEngine,
    /// Default durability of queues.
    pub durability: Durability,
    /// Sync interval of [`Durability::Interval`].
    pub interval: Duration,
    pub commit: CommitSettings,
    /// One writer per folder; empty: `log/` in `data_dir`.
    pub dirs: Vec<PathBuf>,
    /// With less free space, new messages are refused; `None`: the larger of 2 GiB and 5 % of the disk.
    pub min_free: Option<u64>,
    pub on_poison: OnPoison,
    /// All stored data is read and checked once in this time; zero: never.
    pub scrub: Duration,
    pub recover: RecoveryMode,
    /// Shared by moving, compaction and scrubbing.
    pub io_bytes_per_second: u64,
    /// For data waiting for the disk or just written, and indexes of files; with its position in the file.
    pub memory: Option<(u64, Pos)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitSettings {
    /// Maximum size of one block.
    pub max_bytes: u64,
    /// The longest wait for a group; zero: never.
    pub linger: Duration,
    /// Files prepared in advance.
    pub spare: u32,
    /// With more sealed files than this, frames are moved out of them.
    pub max_files: u32,
}

impl Default for LogSettings {
    fn default() -> LogSettings {
        LogSettings {
            engine: LogEngine::Embedded,
            durability: Durability::Fsync,
            interval: Duration::from_millis(50),
            commit: CommitSettings {
                max_bytes: MIB,
                linger: Duration::from_micros(50),
                spare: 4,
                max_files: 64,
            },
            dirs: Vec::new(),
            min_free: None,
            on_poison: OnPoison::Exit,
            scrub: 7 * 24 * HOUR,
            recover: RecoveryMode::Strict,
            io_bytes_per_second: 64 * MIB,
            memory: None,
        }
    }
}

impl LogSettings {
    /// `None` is a file without the section. Mistakes go to the diagnostics.
    pub fn read(node: Option<&Node>, diags: &Diagnostics) -> LogSettings {
        let default = LogSettings::default();
        let empty = Node::empty_map();
        let mut f = Fields::new(node.unwrap_or(&empty), diags);
        let settings = LogSettings {
            engine: engine(&mut f),
            durability: f
                .one_of("durability", &DURABILITIES, default.durability.name())
                .parse()
                .unwrap_or(default.durability),
            interval: duration(
                &mut f,
                "interval",
                default.interval,
                Duration::from_millis(1)..=Duration::from_secs(60),
            ),
            commit: default.commit.read(f.fields("commit")),
            dirs: dirs(&mut f),
            min_free: f.opt_size("min_free"),
            on_poison: word(&mut f, "on_poison", &OnPoison::ALL, default.on_poison, OnPoison::name),
            scrub: duration(&mut f, "scrub", default.scrub, Duration::ZERO..=365 * 24 * HOUR),
            recover: word(
                &mut f,
                "recover",
                &RecoveryMode::ALL,
                default.recover,
                RecoveryMode::name,
            ),
            io_bytes_per_second: size(
                &mut f,
                "io_bytes_per_second",
                default.io_bytes_per_second,
                MIB..=u64::MAX,
            ),
            memory: f.opt_size("memory").map(|bytes| (bytes, f.pos_of("memory"))),
        };
        f.finish();
        settings
    }
}

impl CommitSettings {
    fn read(self, mut f: Fields<'_>) -> CommitSettings {
        let settings = CommitSettings {
            max_bytes: size(&mut f, "max_bytes", self.max_bytes, 4096..=COMMIT_BYTES_MAX),
            linger: duration(&mut f, "linger", self.linger, Duration::ZERO..=LINGER_MAX),
            spare: count(&mut f, "spare", self.spare, 1..=64),
            max_files: count(&mut f, "max_files", self.max_files, 2..=10_000),
        };
        f.finish();
        settings
    }
}

impl OnPoison {
    const ALL: [OnPoison; 2] = [OnPoison::Exit, OnPoison::Stay];

    fn name(self) -> &'static str {
        match self {
            OnPoison::Exit => "exit",
            OnPoison::Stay => "stay",
        }
    }
}

impl RecoveryMode {
    const ALL: [RecoveryMode; 2] = [RecoveryMode::Strict, RecoveryMode::Skip];

    fn name(self) -> &'static str {
        match self {
            RecoveryMode::Strict => "strict",
            RecoveryMode::Skip => "skip",
        }
    }
}

/// The names of later engines have their own error, because the documents mention them.
fn engine(f: &mut Fields<'_>) -> LogEngine {
    let name = f.one_of("engine", &["embedded", "jetstream", "kafka"], "embedded");
    if name != "embedded" {
        f.error(
            "engine",
            format!("{name} is not in this version, which has only embedded; write embedded"),
        );
    }
    LogEngine::Embedded
}

fn dirs(f: &mut Fields<'_>) -> Vec<PathBuf> {
    let dirs: Vec<PathBuf> = f.string_list("dirs").into_iter().map(PathBuf::from).collect();
    if dirs.len() > DIRS_MAX {
        f.error(
            "dirs",
            format!("a log has at most {DIRS_MAX} folders, one for each disk"),
        );
    }
    for (index, dir) in dirs.iter().enumerate() {
        if dir.as_os_str().is_empty() {
            f.error("dirs", "a folder must have a name");
        } else if dirs.iter().take(index).any(|other| real(other) == real(dir)) {
            f.error("dirs", format!("{} is given twice; each is one disk", dir.display()));
        }
    }
    dirs
}

/// The path of a folder with links resolved, as far as it exists; the folders themselves are compared when they are
/// opened.
fn real(dir: &Path) -> PathBuf {
    let absolute = || std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    dir.canonicalize().unwrap_or_else(|_| absolute())
}
