//! The durable log and the queues on it, which all flows and faces of the process share: opened before anything else moves,
//! closed after everything else has stopped.

mod input;
mod output;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use thalweg_config::{Config, Diagnostics};
use thalweg_flow::Registry;
use thalweg_log::disk::Folder;
use thalweg_log::{EmbeddedLog, LogError, LogOptions, LogStatus};
use thalweg_queue::settings::{LogSettings, OnPoison, QueuesSettings};
use thalweg_queue::{QueueError, Queues, QueuesOptions, SystemClock};
use thalweg_telemetry::StatusSource;
use tokio::sync::OnceCell;

/// Nothing is acknowledged any more, and a restart has to look at the disk.
const EXIT_POISONED: i32 = 74;
/// What was stored is damaged.
pub const EXIT_CORRUPT: u8 = 65;

/// A poisoned log is found out so soon, also when nobody appends.
const LOOK: Duration = Duration::from_millis(250);

/// The log and the queues of the process.
#[derive(Default)]
pub(crate) struct Store {
    /// A component asks for queues.
    wanted: AtomicBool,
    opened: OnceCell<Opened>,
}

struct Opened {
    log: Arc<EmbeddedLog>,
    queues: Queues,
}

/// The sections `log` and `queues`.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    log: LogSettings,
    queues: QueuesSettings,
    /// Either of them is in the file.
    given: bool,
}

/// Reads the sections; mistakes go to the diagnostics.
pub(crate) fn section(config: &Config, diagnostics: &Diagnostics) -> Section {
    let log = LogSettings::read(config.log.as_ref(), diagnostics);
    if let (Some(node), true) = (&config.log, log.dirs.len() > 1) {
        diagnostics.error(node, "log.dirs: this version writes to one disk; name one folder");
    }
    Section {
        log,
        queues: QueuesSettings::read(config.queues.as_ref(), diagnostics),
        given: config.log.is_some() || config.queues.is_some(),
    }
}

impl Store {
    /// Opens log and queues if anything in the configuration has use for them, and makes what it declares.
    pub async fn start(&self, config: &Config, section: &Section) -> Result<()> {
        if !section.given && !self.wanted.load(Ordering::Acquire) {
            return Ok(());
        }
        let own = section.log.dirs.first().cloned();
        let folder = own.unwrap_or_else(|| config.data_dir.join("log"));
        let options = options(&section.log, &folder);
        let opened = tokio::task::spawn_blocking(move || open(&folder, &options)).await;
        let log = Arc::new(opened.context("the log was not opened")??);
        let report = log.report();
        if report.torn_bytes > 0 {
            tracing::warn!(
                bytes = report.torn_bytes,
                last_block = report.last_sequence,
                "the last write before the stop was cut off; it had not been acknowledged"
            );
        }
        let options = QueuesOptions {
            durability: section.log.durability,
            auto_create: section.queues.auto_create,
        };
        let queues = Queues::open(log.clone(), Arc::new(SystemClock), options).await?;
        declare(&queues, &section.queues).await?;
        watch(&log, section.log.on_poison);
        let _ = self.opened.set(Opened { log, queues });
        Ok(())
    }

    pub fn queues(&self) -> Option<Queues> {
        self.opened.get().map(|opened| opened.queues.clone())
    }

    /// Stores what was not, and closes the log. What it cannot do in time is given up.
    pub async fn stop(&self, timeout: Duration) {
        let Some(opened) = self.opened.get() else { return };
        let closed = async {
            opened.queues.close().await;
            let log = opened.log.clone();
            let _ = tokio::task::spawn_blocking(move || log.close()).await;
        };
        if tokio::time::timeout(timeout, closed).await.is_err() {
            tracing::warn!("the log could not be closed in time; the next start looks at its end");
        }
    }
}

impl StatusSource for Store {
    fn not_ready(&self) -> Vec<String> {
        let Some(opened) = self.opened.get() else {
            return Vec::new();
        };
        match opened.log.status() {
            LogStatus::Healthy | LogStatus::Degraded(_) => Vec::new(),
            LogStatus::DiskFull(why) | LogStatus::Poisoned(why) => vec![why],
        }
    }
}

fn options(settings: &LogSettings, folder: &std::path::Path) -> LogOptions {
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
        ..LogOptions::default()
    }
}

fn open(folder: &PathBuf, options: &LogOptions) -> Result<EmbeddedLog> {
    let shown = folder.display();
    let disk = Folder::open(folder).with_context(|| {
        format!("cannot make the folder of the log, {shown}; set log.dirs to one that can be written")
    })?;
    let mut id = [0; 8];
    getrandom::fill(&mut id).context("the system gives no random numbers")?;
    Ok(EmbeddedLog::open(Arc::new(disk), u64::from_le_bytes(id), options)?)
}

/// Makes the queues of the file, or changes those that are there into what it says.
async fn declare(queues: &Queues, section: &QueuesSettings) -> Result<()> {
    for (name, settings) in &section.list {
        let done = match queues.get(name) {
            Ok(queue) if *queue.settings() == *settings => Ok(()),
            Ok(_) => queues.configure(name, settings.clone()).await,
            Err(_) => queues.create(name, settings.clone()).await.map(drop),
        };
        done.map_err(|error: QueueError| anyhow::anyhow!("queue {name} of the configuration: {error}"))?;
    }
    Ok(())
}

/// Ends the process when the log is poisoned, if it is set to: only a new one knows what is on the disk.
fn watch(log: &Arc<EmbeddedLog>, on_poison: OnPoison) {
    let log = Arc::downgrade(log);
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(status) = log.upgrade().map(|log| log.status()) else {
                return;
            };
            let LogStatus::Poisoned(cause) = status else {
                continue;
            };
            tracing::error!(%cause, "a write or a sync has failed; nothing more is acknowledged until a restart has looked at the disk");
            if on_poison == OnPoison::Exit {
                std::process::exit(EXIT_POISONED);
            }
            return;
        }
    });
}

/// The exit code for an error of the start, if it has one of its own.
pub fn exit_code(error: &anyhow::Error) -> Option<u8> {
    let of_log = |error: &LogError| matches!(error, LogError::Corrupt { .. } | LogError::Missing { .. });
    error.chain().find_map(|cause| {
        let log = cause.downcast_ref::<LogError>().is_some_and(of_log);
        let queue = matches!(cause.downcast_ref::<QueueError>(), Some(QueueError::Log(error)) if of_log(error));
        (log || queue).then_some(EXIT_CORRUPT)
    })
}

pub(crate) fn register(registry: &mut Registry, store: &Arc<Store>) {
    input::register(registry, store.clone());
    output::register(registry, store.clone());
}

/// A component of the configuration uses queues.
fn want(store: &Store) {
    store.wanted.store(true, Ordering::Release);
}
