//! The section `log` of the configuration file: how the durable log commits, where it lies, and what it does about damage.

use std::path::{Path, PathBuf};
use std::time::Duration;

use thalweg_config::{Diagnostics, Fields, Node, Pos};
use thalweg_log::Durability;

use super::HOUR;
use super::read::{DURABILITIES, count, duration, size, word};

/// A publisher waits so long for others at most, whatever it is worth to them.
const LINGER_MAX: Duration = Duration::from_micros(50);
const DIRS_MAX: usize = 64;
const MIB: u64 = 1 << 20;
/// The largest submission, and so the largest block that is worth a name.
const COMMIT_BYTES_MAX: u64 = thalweg_log::SUBMISSION_BYTES_MAX as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogEngine {
    Embedded,
}

/// What a failed write or sync of the log does to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPoison {
    /// It ends, with code 74, so that a supervisor starts it again and recovery looks at the disk.
    Exit,
    /// It goes on serving what is committed.
    Stay,
}

/// What a start does about damage where data was synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryMode {
    Strict,
    /// The damaged records are given up.
    Skip,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogSettings {
    pub engine: LogEngine,
    /// Of queues that name none.
    pub durability: Durability,
    /// [`Durability::Interval`] syncs what is that old.
    pub interval: Duration,
    pub commit: CommitSettings,
    /// One writer each; empty: `log/` in `data_dir`.
    pub dirs: Vec<PathBuf>,
    /// With less space free, new messages are refused; `None`: the larger of 2 GiB and 5 % of the disk.
    pub min_free: Option<u64>,
    pub on_poison: OnPoison,
    /// All that is stored is read and checked once in that time; zero: never.
    pub scrub: Duration,
    pub recover: RecoveryMode,
    /// For moving, compacting and scrubbing together.
    pub io_bytes_per_second: u64,
    /// What waits for the disk or was just written, and indexes of files; and where the file says it.
    pub memory: Option<(u64, Pos)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommitSettings {
    /// Of one block.
    pub max_bytes: u64,
    /// The longest wait for a group; zero: never.
    pub linger: Duration,
    /// Files made ready in advance.
    pub spare: u32,
    /// Sealed files beyond which frames are moved out of them.
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

/// The names of later engines get an answer of their own: they stand in the documents.
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

/// The path of a folder without links, as far as it is there; the folders themselves are compared when they are opened.
fn real(dir: &Path) -> PathBuf {
    let absolute = || std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    dir.canonicalize().unwrap_or_else(|_| absolute())
}
