//! The durable log and the queues on it, which all flows and faces of the process share: opened before anything else moves,
//! closed after everything else has stopped.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use thalweg_config::{Config, Diagnostics, Pos};
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
    /// For the components of flows, and whoever else has use for the log.
    pub shared: Arc<SharedQueues>,
    opened: OnceCell<OpenQueues>,
}

/// The log that the queues stand on, and who hears of their dead letters.
struct OpenQueues {
    log: Arc<OpenLog>,
    webhooks: Arc<Webhooks>,
}

/// The sections `log` and `queues`.
#[derive(Clone, Debug)]
pub(crate) struct LogAndQueuesSection {
    log: LogSettings,
    pub queues: QueuesSettings,
    /// Either of them is in the file.
    given: bool,
    /// What queues in memory may keep together; the share of `memory.limit` is known last.
    pub memory_bytes: usize,
    /// Likewise what dedup-ids may take.
    pub dedup_bytes: usize,
    /// Likewise what groups may know of messages in hand.
    pub state_bytes: usize,
    /// Likewise what the log may.
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

    /// What the log has lost is given up.
    pub fn accepts_loss(&self) -> bool {
        self.log.recover == RecoveryMode::Skip
    }

    pub fn memory_of_log(&self) -> Option<(u64, Pos)> {
        self.log.memory
    }

    /// The log looks at its start only at what was not known to be synced, and queues read their own state: damage that they
    /// meet there is given up too, if damage is to be.
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
        tracing::warn!(error = format!("{error:#}"), "the log is repaired and opened again");
        let closing = log.clone();
        tokio::task::spawn_blocking(move || closing.close()).await?;
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
    /// Opens log and queues if anything in the configuration has use for them, and makes what it declares.
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

    /// The log of all disks together, and the durability that is usual in it.
    pub fn log(&self, section: &LogAndQueuesSection) -> Option<(Arc<dyn Log>, Durability)> {
        let opened = self.opened.get()?;
        Some((opened.log.log(), section.log.durability))
    }

    pub fn queues(&self) -> Option<Queues> {
        self.shared.queues()
    }

    /// Stores what was not, and closes the log. What it cannot do in time is given up.
    pub async fn stop(&self, timeout: Duration) {
        let Some(opened) = self.opened.get() else { return };
        opened.webhooks.stop();
        let closed = async {
            if let Some(queues) = self.queues() {
                queues.close().await;
            }
            let log = opened.log.clone();
            let _ = tokio::task::spawn_blocking(move || log.close()).await;
        };
        if tokio::time::timeout(timeout, closed).await.is_err() {
            tracing::warn!("the log could not be closed in time; the next start looks at its end");
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

/// Makes the queues of the file, or changes those that are there into what it says. Returns what was done.
pub(crate) async fn declare(queues: &Queues, section: &QueuesSettings) -> Result<Vec<String>> {
    let mut all = Vec::new();
    for (name, settings) in &section.list {
        let done = match queues.get(name) {
            Ok(queue) if *queue.settings() == *settings && has_groups(&queue) => continue,
            Ok(_) => queues.configure(name, settings.clone()).await.map(|()| "changed"),
            Err(_) => queues.create(name, settings.clone()).await.map(|_| "made"),
        };
        let done = done.map_err(|error: QueueError| anyhow::anyhow!("queue {name} of the configuration: {error}"))?;
        all.push(format!("queue {name} {done}"));
    }
    Ok(all)
}

/// Whether all groups that its settings declare are there as declared ones.
fn has_groups(queue: &Queue) -> bool {
    let settings = queue.settings();
    let is_there = |name: &str| queue.group(name).is_ok_and(|group| group.is_declared());
    settings.groups.iter().all(|group| is_there(&group.name))
}
