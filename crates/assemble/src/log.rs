//! The durable log of a process: its folders, each on its own disk, their locks, and the reaction to a failed disk.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use thalweg_events::EventsError;
use thalweg_events::backup::BackupError;
use thalweg_kit::{blocking, random, threads};
use thalweg_lake::OpenError as TableError;
use thalweg_lake_flow::TableOpenError;
use thalweg_log::clock::LogClock;
use thalweg_log::disk::{Disk, FolderDisk};
use thalweg_log::{EmbeddedLog, Log, LogError, LogOptions, LogStatus, MultiDiskLog};
use thalweg_queue::QueueError;
use thalweg_queue::settings::{LogSettings, OnPoison, RecoveryMode};

use crate::clock::WatchedClock;
use crate::data_dir::DataDir;
use crate::log_memory::LogMemory;

/// Nothing is acknowledged any more, and a restart has to check the disk.
const EXIT_POISONED: u8 = 74;
/// Time for refusals of a poisoned log to reach their clients.
const ANSWERED: Duration = Duration::from_millis(200);
/// Stored data is damaged.
const EXIT_CORRUPT: u8 = 65;

pub(crate) struct OpenLog {
    disks: Arc<MultiDiskLog>,
    clock: Arc<WatchedClock>,
    /// Each folder has its own lock, also in the data folder: another process may list it in its `log.dirs`. Released
    /// last.
    _locks: Vec<DataDir>,
}

impl OpenLog {
    /// Opens the log in the configured folders, or else in `log/` of the data folder. If configured so, the process
    /// exits when the log fails.
    pub async fn open(settings: &LogSettings, memory: LogMemory, data_dir: &Path) -> Result<OpenLog> {
        OpenLog::open_after((settings, memory), data_dir, |_| Ok(())).await
    }

    /// Like `open`, after damage was found where the log itself does not look at its start: the damaged records are
    /// dropped first.
    pub async fn open_without_damage(settings: &LogSettings, memory: LogMemory, data_dir: &Path) -> Result<OpenLog> {
        OpenLog::open_after((settings, memory), data_dir, give_up_damage).await
    }

    async fn open_after(
        (settings, memory): (&LogSettings, LogMemory),
        data_dir: &Path,
        prepare: fn(&FolderDisk) -> Result<()>,
    ) -> Result<OpenLog> {
        let folders = match settings.dirs.is_empty() {
            true => vec![data_dir.join("log")],
            false => settings.dirs.clone(),
        };
        let (options, data_dir) = (settings.clone(), data_dir.to_owned());
        let runtime = tokio::runtime::Handle::current();
        let opened = blocking::spawn(move || open(&folders, (&options, memory), &data_dir, (prepare, &runtime))).await;
        let opened = opened.context("the log was not opened")??;
        opened.clock.watch(opened.log());
        for log in opened.disks.logs() {
            tell(log);
            watch(log, settings.on_poison);
        }
        Ok(opened)
    }

    /// The log as its users see it.
    pub fn log(&self) -> Arc<dyn Log> {
        self.disks.clone().into_log()
    }

    /// The clock of the log.
    pub fn clock(&self) -> &Arc<WatchedClock> {
        &self.clock
    }

    /// The log of each disk.
    pub fn logs(&self) -> &[Arc<EmbeddedLog>] {
        self.disks.logs()
    }

    /// Skips damage that is found after the start, and reports it.
    pub fn pass_over_damage(&self) {
        self.logs().iter().for_each(|log| log.pass_over_damage());
    }

    pub fn status(&self) -> LogStatus {
        Log::status(self.disks.as_ref())
    }

    /// Commits and syncs everything that was submitted. Blocks.
    pub fn close(&self) {
        // The disks are independent of each other.
        std::thread::scope(|scope| {
            for log in self.disks.logs() {
                // Without a thread, the disks are closed one after the other.
                if threads::spawn_scoped(scope, "log-close", || log.close()).is_err() {
                    log.close();
                }
            }
        });
    }
}

fn open(
    folders: &[PathBuf],
    (settings, memory): (&LogSettings, LogMemory),
    data_dir: &Path,
    (prepare, runtime): (fn(&FolderDisk) -> Result<()>, &tokio::runtime::Handle),
) -> Result<OpenLog> {
    let clock = Arc::new(LogClock::default());
    let (mut disks, mut locks) = (Vec::new(), Vec::new());
    let mut taken: Vec<(&Path, (u64, u64))> = Vec::new();
    for folder in folders {
        let shown = folder.display();
        let disk = FolderDisk::open(folder)
            .with_context(|| format!("cannot create the log folder {shown}; set log.dirs to a writable folder"))?;
        let node = node(folder)?;
        if let Some((other, _)) = taken.iter().find(|(_, taken)| *taken == node) {
            bail!(
                "{shown} and {} are the same folder; each folder in log.dirs must be a disk of its own",
                other.display()
            );
        }
        taken.push((folder, node));
        // A log directly in the data folder is covered by its lock, which this process holds.
        if node != self::node(data_dir)? {
            locks.push(DataDir::take_log(folder)?);
        }
        prepare(&disk)?;
        disks.push((
            Arc::new(disk) as Arc<dyn Disk>,
            options(settings, memory, folder, &clock),
        ));
    }
    let mut id = [0; 8];
    random::fill(&mut id).context("the system provides no random numbers")?;
    let opened = Arc::new(threads::block_on(
        runtime,
        MultiDiskLog::open(disks, u64::from_le_bytes(id), thalweg_queue::together),
    )?);
    let clock = threads::block_on(runtime, WatchedClock::resume(clock, opened.as_ref()))?;
    Ok(OpenLog {
        disks: opened,
        clock: Arc::new(clock),
        _locks: locks,
    })
}

fn give_up_damage(disk: &FolderDisk) -> Result<()> {
    let repaired = thalweg_log::repair(disk, true, &mut |_, _| {})?;
    tell_given_up(&disk.path().display().to_string(), repaired.before.lost_records());
    Ok(())
}

fn tell_given_up(folder: &str, records: u64) {
    if records > 0 {
        tracing::error!(
            folder,
            records,
            "damaged records were skipped, as log.recover is set to skip; the damaged bytes are kept beside the log"
        );
    }
}

/// Identifies a folder independently of its path.
fn node(folder: &Path) -> Result<(u64, u64)> {
    let found = folder.metadata();
    let found = found.with_context(|| format!("cannot look at {}", folder.display()))?;
    Ok((found.dev(), found.ino()))
}

fn options(settings: &LogSettings, memory: LogMemory, folder: &Path, clock: &Arc<LogClock>) -> LogOptions {
    LogOptions {
        clock: clock.clone(),
        folder: folder.display().to_string(),
        spare: settings.commit.spare as usize,
        files_max: settings.commit.max_files as usize,
        min_free_bytes: settings.min_free,
        commit_bytes_max: usize::try_from(settings.commit.max_bytes).unwrap_or(usize::MAX),
        linger: settings.commit.linger,
        interval: settings.interval,
        waiting_bytes_max: memory.waiting,
        tail_bytes_max: memory.tail,
        index_bytes_max: memory.index,
        io_bytes_per_second: settings.io_bytes_per_second,
        scrub: settings.scrub,
        recover_skip: settings.recover == RecoveryMode::Skip,
        ..LogOptions::default()
    }
}

/// Logs the findings of the start.
fn tell(log: &EmbeddedLog) {
    let report = log.report();
    if report.torn_bytes > 0 {
        tracing::warn!(
            folder = log.folder(),
            bytes = report.torn_bytes,
            last_block = report.last_sequence,
            "a torn write after the last whole block was cut off; in mode `fsync` none of it had been acknowledged"
        );
    } else {
        tracing::info!(
            folder = log.folder(),
            last_block = report.last_sequence,
            was_closed = report.was_closed,
            "the log is open"
        );
    }
    if report.short_spares > 0 {
        tracing::warn!(
            folder = log.folder(),
            files = report.short_spares,
            "spare files were too short and were removed; they contained nothing"
        );
    }
    tell_given_up(log.folder(), report.given_up);
}

/// If configured so, exits when the log is poisoned: only a new process can tell what is on the disk.
fn watch(log: &EmbeddedLog, on_poison: OnPoison) {
    let (poisoned, folder) = (log.poisoned(), log.folder().to_owned());
    tokio::spawn(async move {
        let Some(cause) = poisoned.await else { return };
        tracing::error!(
            %folder, %cause,
            "a write or a sync failed; nothing more is acknowledged until a restart has checked the disk"
        );
        if on_poison == OnPoison::Exit {
            // Clients that wait for unstored data get their refusal first.
            tokio::time::sleep(ANSWERED).await;
            std::process::exit(EXIT_POISONED.into());
        }
    });
}

/// The exit code of a start error, if it has a specific one.
pub fn exit_code(error: &anyhow::Error) -> Option<u8> {
    let of_events = |cause: &(dyn std::error::Error + 'static)| {
        matches!(cause.downcast_ref::<EventsError>(), Some(EventsError::Damaged(_)))
    };
    let of_backup = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<BackupError>().is_some_and(BackupError::is_damage)
    };
    let of_lake = |cause: &(dyn std::error::Error + 'static)| {
        let table = match cause.downcast_ref::<TableOpenError>() {
            Some(TableOpenError::Table(error)) => Some(error),
            _ => cause.downcast_ref::<TableError>(),
        };
        matches!(table, Some(TableError::Lost { .. }))
    };
    if error
        .chain()
        .any(|cause| of_events(cause) || of_backup(cause) || of_lake(cause))
    {
        return Some(EXIT_CORRUPT);
    }
    match of_log(error)? {
        LogError::Corrupt { .. } | LogError::Missing { .. } | LogError::Foreign { .. } | LogError::Misnamed { .. } => {
            Some(EXIT_CORRUPT)
        }
        LogError::Poisoned { .. } => Some(EXIT_POISONED),
        _ => None,
    }
}

/// Whether stored data is damaged.
pub(crate) fn is_damage(error: &anyhow::Error) -> bool {
    matches!(of_log(error), Some(LogError::Corrupt { .. } | LogError::Missing { .. }))
}

/// The log error behind an error, if there is one.
fn of_log(error: &anyhow::Error) -> Option<&LogError> {
    error.chain().find_map(|cause| {
        let queue = match cause.downcast_ref::<QueueError>() {
            Some(QueueError::Log(error)) => Some(error),
            _ => None,
        };
        let events = match cause.downcast_ref::<EventsError>() {
            Some(EventsError::Storage(error)) => Some(error.as_ref()),
            _ => None,
        };
        cause.downcast_ref::<LogError>().or(queue).or(events)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn small(dirs: &[PathBuf]) -> LogSettings {
        let mut settings = LogSettings {
            dirs: dirs.to_vec(),
            min_free: Some(0),
            ..LogSettings::default()
        };
        settings.commit.spare = 1;
        settings
    }

    async fn refusal(dirs: &[PathBuf], data_dir: &Path) -> String {
        let opened = OpenLog::open(&small(dirs), LogMemory::of(0, 1), data_dir).await;
        opened.err().map_or_else(String::new, |error| format!("{error:#}"))
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_log_that_one_process_writes_is_nobody_elses_whatever_data_folder_they_have() {
        let folder = tempfile::tempdir().unwrap();
        let (own, other) = (folder.path().join("own"), folder.path().join("other"));
        std::fs::create_dir_all(&other).unwrap();
        let _own = DataDir::take(&own).unwrap();
        let _other = DataDir::take(&other).unwrap();
        let log = OpenLog::open(&small(&[]), LogMemory::of(0, 1), &own).await.unwrap();
        let why = refusal(&[own.join("log")], &other).await;
        let holder = format!("is in use by process {}", std::process::id());
        assert!(why.contains(&holder) && why.contains("log.dirs"), "{why}");
        drop(log);
        OpenLog::open(&small(&[own.join("log")]), LogMemory::of(0, 1), &other)
            .await
            .unwrap();
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_folder_that_is_named_by_two_paths_is_not_two_disks() {
        let folder = tempfile::tempdir().unwrap();
        let (real, linked) = (folder.path().join("log"), folder.path().join("link"));
        std::fs::create_dir_all(&real).unwrap();
        std::os::unix::fs::symlink(&real, &linked).unwrap();
        let why = refusal(&[real, linked], folder.path()).await;
        assert!(why.contains("are the same folder"), "{why}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_log_right_in_the_data_folder_is_opened_by_whoever_holds_that() {
        let folder = tempfile::tempdir().unwrap();
        let _held = DataDir::take(folder.path()).unwrap();
        OpenLog::open(&small(&[folder.path().to_owned()]), LogMemory::of(0, 1), folder.path())
            .await
            .unwrap();
    }
}
