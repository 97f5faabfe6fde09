//! The durable log and its queues, shared by all flows and servers of the process. It is opened first and closed last.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use thalweg_config::{Config, Diagnostics, Pos};
use thalweg_kit::blocking;
use thalweg_log::{Durability, EmbeddedLog, Log, LogStatus};
use thalweg_queue::settings::{LogSettings, QueuesSettings, RecoveryMode};
use thalweg_queue::{Queue, QueueError, Queues, QueuesOptions};
use thalweg_queue_flow::{SharedQueues, Webhooks};
use thalweg_telemetry::{Metrics, StatusSource};
use tokio::sync::OnceCell;

use crate::clock::WatchedClock;
use crate::log::{OpenLog, is_damage};
use crate::log_memory::LogMemory;

/// The log and the queues of the process.
#[derive(Default)]
pub(crate) struct QueueService {
    /// For the components of flows, and other users of the log.
    pub shared: Arc<SharedQueues>,
    opened: OnceCell<OpenQueues>,
}

/// The log of the queues, and the webhooks for their dead letters.
struct OpenQueues {
    log: Arc<OpenLog>,
    webhooks: Arc<Webhooks>,
}

/// The sections `log` and `queues`.
#[derive(Clone, Debug)]
pub(crate) struct LogAndQueuesSection {
    log: LogSettings,
    pub queues: QueuesSettings,
    /// Whether the file has one of them.
    given: bool,
    /// Memory for queues in memory; set when `memory.limit` is divided.
    pub memory_bytes: usize,
    /// Memory for dedup-ids, set likewise.
    pub dedup_bytes: usize,
    /// Memory for the state of groups, set likewise.
    pub state_bytes: usize,
    /// Memory for the log, set likewise.
    pub log_memory: LogMemory,
}

/// Reads the sections; mistakes go to the diagnostics.
pub(crate) fn section(config: &Config, diagnostics: &Diagnostics) -> LogAndQueuesSection {
    LogAndQueuesSection {
        log: LogSettings::read(config.log.as_ref(), diagnostics),
        queues: QueuesSettings::read(config.queues.as_ref(), diagnostics),
        given: config.log.is_some() || config.queues.is_some(),
        memory_bytes: 0,
        dedup_bytes: 0,
        state_bytes: 0,
        log_memory: LogMemory::default(),
    }
}

impl LogAndQueuesSection {
    pub fn is_given(&self) -> bool {
        self.given
    }

    pub fn disks(&self) -> usize {
        self.log.dirs.len().max(1)
    }

    /// Whether to continue without data that the log has lost.
    pub fn accepts_loss(&self) -> bool {
        self.log.recover == RecoveryMode::Skip
    }

    pub fn durability(&self) -> Durability {
        self.log.durability
    }

    pub fn memory_of_log(&self) -> Option<(u64, Pos)> {
        self.log.memory
    }

    /// Opens the log and the queues. At its start the log only checks what was not known to be synced, and queues read
    /// their own state: damage that they find is skipped, too, if `log.recover` is `skip`.
    async fn open(&self, data_dir: &Path) -> Result<(Arc<OpenLog>, Queues)> {
        let (log, queues) = self.open_both(data_dir).await?;
        if self.log.recover == RecoveryMode::Skip {
            log.pass_over_damage();
        }
        Ok((log, queues))
    }

    async fn open_both(&self, data_dir: &Path) -> Result<(Arc<OpenLog>, Queues)> {
        let log = Arc::new(OpenLog::open(&self.log, self.log_memory, data_dir).await?);
        let error = match self.open_queues(&log).await {
            Err(error) if self.log.recover == RecoveryMode::Skip && is_damage(&error) => error,
            opened => return Ok((log, opened?)),
        };
        tracing::warn!(
            error = format!("{error:#}"),
            "the log is being repaired and opened again"
        );
        let closing = log.clone();
        blocking::spawn(move || closing.close()).await?;
        drop(log);
        let log = Arc::new(OpenLog::open_without_damage(&self.log, self.log_memory, data_dir).await?);
        let queues = self.open_queues(&log).await?;
        Ok((log, queues))
    }

    async fn open_queues(&self, log: &OpenLog) -> Result<Queues> {
        let options = QueuesOptions {
            durability: self.log.durability,
            auto_create: self.queues.auto_create,
            memory_bytes: self.memory_bytes as u64,
            dedup_bytes: self.dedup_bytes as u64,
            state_bytes: self.state_bytes as u64,
        };
        let queues = Queues::open(log.log(), log.log().clock(), options).await?;
        let told = queues.clone();
        log.clock().tell(move || told.clock_was_set());
        Ok(queues)
    }
}

impl QueueService {
    /// Opens the log and the queues if the configuration needs them, and creates the declared queues.
    pub async fn start(&self, config: &Config, section: &LogAndQueuesSection, metrics: &Metrics) -> Result<()> {
        if !section.given && !self.shared.is_wanted() {
            return Ok(());
        }
        let (log, queues) = section.open(&config.data_dir).await?;
        let webhooks = Webhooks::new(metrics, thalweg_queue_api::message_json);
        queues.listen_for_dead_letters(webhooks.clone());
        declare(&queues, &section.queues).await?;
        let _ = self.opened.set(OpenQueues { log, webhooks });
        self.shared.open(queues);
        Ok(())
    }

    pub fn clock(&self) -> Option<&Arc<WatchedClock>> {
        self.opened.get().map(|opened| opened.log.clock())
    }

    /// The log of each disk.
    pub fn logs(&self) -> &[Arc<EmbeddedLog>] {
        self.opened.get().map_or(&[], |opened| opened.log.logs())
    }

    /// The combined log of all disks, and its default durability.
    pub fn log(&self, section: &LogAndQueuesSection) -> Option<(Arc<dyn Log>, Durability)> {
        let opened = self.opened.get()?;
        Some((opened.log.log(), section.log.durability))
    }

    pub fn queues(&self) -> Option<Queues> {
        self.shared.queues()
    }

    /// Stores pending data and closes the log. Gives up after the timeout.
    pub async fn stop(&self, timeout: Duration) {
        let Some(opened) = self.opened.get() else { return };
        opened.webhooks.stop();
        let closed = async {
            if let Some(queues) = self.queues() {
                queues.close().await;
            }
            let log = opened.log.clone();
            let _ = blocking::spawn(move || log.close()).await;
        };
        if tokio::time::timeout(timeout, closed).await.is_err() {
            tracing::warn!("the log could not be closed in time; the next start checks its end");
        }
    }
}

impl StatusSource for QueueService {
    fn not_ready(&self) -> Vec<String> {
        let Some(opened) = self.opened.get() else {
            return Vec::new();
        };
        match opened.log.status() {
            LogStatus::Healthy | LogStatus::Degraded(_) => Vec::new(),
            LogStatus::DiskFull(why) | LogStatus::Poisoned(why) => vec![why],
        }
    }

    fn degraded(&self) -> Vec<String> {
        let statuses = self.logs().iter().map(|log| log.status());
        statuses
            .filter_map(|status| match status {
                LogStatus::Degraded(why) => Some(why),
                LogStatus::Healthy | LogStatus::DiskFull(_) | LogStatus::Poisoned(_) => None,
            })
            .collect()
    }
}

/// Creates or changes queues as the file declares them. Returns what was done.
pub(crate) async fn declare(queues: &Queues, section: &QueuesSettings) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for (name, settings) in &section.list {
        let done = match queues.get(name) {
            Ok(queue) if *queue.settings() == *settings && has_groups(&queue) => continue,
            Ok(_) => queues.configure(name, settings.clone()).await.map(|()| "changed"),
            Err(_) => queues.create(name, settings.clone()).await.map(|_| "created"),
        };
        let done = done.map_err(|error: QueueError| anyhow::anyhow!("queue {name} of the configuration: {error}"))?;
        all.push(format!("queue {name} {done}"));
    }
    Ok(all)
}

/// Whether all groups in the queue's settings exist as declared groups.
fn has_groups(queue: &Queue) -> bool {
    let settings = queue.settings();
    let is_there = |name: &str| queue.group(name).is_ok_and(|group| group.is_declared());
    settings.groups.iter().all(|group| is_there(&group.name))
}
