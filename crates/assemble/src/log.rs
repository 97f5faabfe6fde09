//! The durable log of a process: its folders, each on a disk of its own, who else may use them, and what becomes of the process
//! when one of them fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use thalweg_log::disk::{Disk, Folder};
use thalweg_log::{Disks, EmbeddedLog, Log, LogError, LogOptions, LogStatus};
use thalweg_queue::QueueError;
use thalweg_queue::settings::{LogSettings, OnPoison, Recover};

use crate::data_dir::DataDir;

/// Nothing is acknowledged any more, and a restart has to look at the disk.
const EXIT_POISONED: u8 = 74;
/// What was stored is damaged.
const EXIT_CORRUPT: u8 = 65;

pub(crate) struct OpenLog {
    disks: Arc<Disks>,
    /// Of folders that are not in the data folder, whose lock would cover them. Let go last.
    _locks: Vec<DataDir>,
}

impl OpenLog {
    /// Opens the log in the folders that the settings name, else in `log/` of the data folder. From then on the process ends
    /// when it fails, if it is set to.
    pub async fn open(settings: &LogSettings, data_dir: &Path) -> Result<OpenLog> {
        let folders = match settings.dirs.is_empty() {
            true => vec![data_dir.join("log")],
            false => settings.dirs.clone(),
        };
        let (options, data_dir) = (settings.clone(), data_dir.to_owned());
        let runtime = tokio::runtime::Handle::current();
        let opened = tokio::task::spawn_blocking(move || open(&folders, &options, &data_dir, &runtime)).await;
        let opened = opened.context("the log was not opened")??;
        for log in opened.disks.logs() {
            tell(log);
            watch(log, settings.on_poison);
        }
        Ok(opened)
    }

    /// As those see it who store in it.
    pub fn log(&self) -> Arc<dyn Log> {
        self.disks.clone().into_log()
    }

    /// That of each disk.
    pub fn logs(&self) -> &[Arc<EmbeddedLog>] {
        self.disks.logs()
    }

    pub fn status(&self) -> LogStatus {
        Log::status(self.disks.as_ref())
    }

    /// Commits and syncs all that was submitted. Blocks.
    pub fn close(&self) {
        // The disks have nothing to wait for each other for.
        std::thread::scope(|scope| {
            for log in self.disks.logs() {
                scope.spawn(|| log.close());
            }
        });
    }
}

fn open(
    folders: &[PathBuf],
    settings: &LogSettings,
    data_dir: &Path,
    runtime: &tokio::runtime::Handle,
) -> Result<OpenLog> {
    let (mut disks, mut locks) = (Vec::new(), Vec::new());
    for folder in folders {
        let shown = folder.display();
        let disk = Folder::open(folder).with_context(|| {
            format!("cannot make the folder of the log, {shown}; set log.dirs to one that can be written")
        })?;
        if !is_within(folder, data_dir) {
            locks.push(DataDir::take_log(folder)?);
        }
        disks.push((Arc::new(disk) as Arc<dyn Disk>, options(settings, folder)));
    }
    let mut id = [0; 8];
    getrandom::fill(&mut id).context("the system gives no random numbers")?;
    let opened = runtime.block_on(Disks::open(disks, u64::from_le_bytes(id), thalweg_queue::together))?;
    Ok(OpenLog {
        disks: Arc::new(opened),
        _locks: locks,
    })
}

/// Both are there.
fn is_within(folder: &Path, around: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(folder).starts_with(real(around))
}

fn options(settings: &LogSettings, folder: &Path) -> LogOptions {
    LogOptions {
        folder: folder.display().to_string(),
        spare: settings.commit.spare as usize,
        files_max: settings.commit.max_files as usize,
        min_free_bytes: settings.min_free,
        commit_bytes_max: usize::try_from(settings.commit.max_bytes).unwrap_or(usize::MAX),
        linger: settings.commit.linger,
        interval: settings.interval,
        io_bytes_per_second: settings.io_bytes_per_second,
        scrub: settings.scrub,
        recover_skip: settings.recover == Recover::Skip,
        ..LogOptions::default()
    }
}

/// What the start found.
fn tell(log: &EmbeddedLog) {
    let report = log.report();
    if report.torn_bytes > 0 {
        tracing::warn!(
            folder = log.folder(),
            bytes = report.torn_bytes,
            last_block = report.last_sequence,
            "behind the last whole block something was cut off; in mode `fsync` none of it had been acknowledged"
        );
    } else {
        tracing::info!(
            folder = log.folder(),
            last_block = report.last_sequence,
            "the log is open"
        );
    }
    if report.given_up > 0 {
        tracing::error!(
            folder = log.folder(),
            records = report.given_up,
            "damaged records were given up, as log.recover is set to skip; the damaged bytes are kept beside the log"
        );
    }
}

/// Ends the process when the log is poisoned, if it is set to: only a new one knows what is on the disk.
fn watch(log: &EmbeddedLog, on_poison: OnPoison) {
    let (poisoned, folder) = (log.poisoned(), log.folder().to_owned());
    tokio::spawn(async move {
        let Some(cause) = poisoned.await else { return };
        tracing::error!(
            %folder, %cause,
            "a write or a sync has failed; nothing more is acknowledged until a restart has looked at the disk"
        );
        if on_poison == OnPoison::Exit {
            std::process::exit(EXIT_POISONED.into());
        }
    });
}

/// The exit code for an error of the start, if it has one of its own.
pub fn exit_code(error: &anyhow::Error) -> Option<u8> {
    let of_log = |error: &LogError| match error {
        LogError::Corrupt { .. } | LogError::Missing { .. } => Some(EXIT_CORRUPT),
        LogError::Poisoned { .. } => Some(EXIT_POISONED),
        _ => None,
    };
    error.chain().find_map(|cause| {
        let log = cause.downcast_ref::<LogError>();
        let queue = match cause.downcast_ref::<QueueError>() {
            Some(QueueError::Log(error)) => Some(error),
            _ => None,
        };
        log.or(queue).and_then(of_log)
    })
}
