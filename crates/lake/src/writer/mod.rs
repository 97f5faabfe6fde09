//! Writes a table: batches of messages in, Delta commits out, in the order in which batches were appended.
//!
//! Two threads work on a table. One turns messages into rows of the growing generation; the other takes a sealed
//! generation, writes its files and commits them. An append ends when the commit that holds its rows is durable. While
//! a commit waits for the disk, the next generation grows up to its limit, then batches wait as messages, and their
//! senders with them: memory is bounded and nothing is dropped. The writer knows nothing of who sends.

mod commit;
mod cook;
mod shared;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_record::{Message, Ticks};
use thalweg_telemetry::{StatusSource, TableStatus};
use tokio::sync::oneshot;

use crate::attributes::Promotion;
use crate::commit::Committer;
use crate::error::{AppendError, OpenError};
use crate::metrics::{GaugeSource, LakeMetrics, TableGauges};
use crate::opening;
use crate::store::SyncedStore;
use crate::tags::{self, FileOptions, RowRules};
use shared::{Pending, Shared};

/// A commit lag of so many flush intervals means that data does not flow.
const LAG_INTERVALS_MAX: u32 = 5;
/// The same, where the interval is very short.
const LAG_MIN: Duration = Duration::from_secs(10);
const TROUBLE_MAX: Duration = Duration::from_secs(60);

/// How a table is written (`lake.*`).
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// Arrow memory after which a flush starts.
    pub flush_bytes: usize,
    /// Age of the oldest row at which a flush starts.
    pub flush_interval: Duration,
    /// The pause between two commits that only hurry asked for.
    pub hurry_pause: Duration,
    /// What buffers and encoding may take together.
    pub memory_bytes: usize,
    pub promotion: Promotion,
    pub rules: RowRules,
    pub files: FileOptions,
    /// Commits between two checkpoints.
    pub checkpoint_interval: i64,
}

impl Default for WriterOptions {
    fn default() -> WriterOptions {
        WriterOptions {
            flush_bytes: 64 << 20,
            flush_interval: Duration::from_secs(2),
            hurry_pause: Duration::from_millis(50),
            memory_bytes: 768 << 20,
            promotion: Promotion::default(),
            rules: RowRules::default(),
            files: FileOptions::default(),
            checkpoint_interval: 100,
        }
    }
}

impl WriterOptions {
    /// Two generations, the files made of one of them, and messages without an answer share the memory.
    fn generation_bytes(&self) -> usize {
        self.flush_bytes.min(self.memory_bytes / 4).max(1)
    }

    /// Bytes of messages without an answer at which [`TagsWriter::has_room`] says no.
    fn waiting_bytes(&self) -> usize {
        (self.memory_bytes / 4).max(1)
    }
}

/// The writer of the table `tags`. Clones write the same table; it stops when the last one goes.
#[derive(Clone)]
pub struct TagsWriter {
    handle: Arc<Handle>,
}

struct Handle {
    shared: Arc<Shared>,
    closed: tokio::sync::watch::Receiver<bool>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Nobody can hear of a commit any more, so trying again has no end and no use.
        self.shared.abandon();
    }
}

impl TagsWriter {
    /// Opens the table `tags` in a lake folder, and creates both if they do not exist. Only one process may write a
    /// table; the caller sees to that. Must be called on a tokio runtime.
    pub async fn open(
        lake: PathBuf,
        store: SyncedStore,
        metrics: LakeMetrics,
        options: WriterOptions,
    ) -> Result<TagsWriter, OpenError> {
        let lake = std::path::absolute(&lake).unwrap_or(lake);
        let path = lake.join(tags::schema::TABLE);
        let columns = tags::schema::schema();
        let (log, found) = opening::open(&lake, tags::schema::TABLE, &[tags::schema::DATE], &columns, store).await?;
        let snapshot = match found {
            Some(snapshot) => snapshot,
            None => opening::create(&log, &[tags::schema::DATE], &columns, &metrics).await?,
        };

        let (closed_sender, closed) = tokio::sync::watch::channel(false);
        let shared = Arc::new(Shared::new(options.generation_bytes(), &options, metrics.clone()));
        let committer = Committer::new(
            log,
            snapshot,
            options.promotion.clone(),
            shared.health.clone(),
            metrics.clone(),
            options.checkpoint_interval,
            tokio::runtime::Handle::current(),
        );
        let thread_error = |source| OpenError::Thread {
            path: path.clone(),
            source,
        };
        let (cook_shared, committing, measured) = (shared.clone(), shared.clone(), metrics.clone());
        let thread = std::thread::Builder::new().name("lake-rows".to_owned());
        thread
            .spawn(move || cook::run(&cook_shared, options.rules))
            .map_err(thread_error)?;
        let thread = std::thread::Builder::new().name("lake-commit".to_owned());
        thread
            .spawn(move || {
                commit::run(committer, &committing, options.files, &measured);
                // Nobody may be left to hear it.
                let _ = closed_sender.send(true);
            })
            .map_err(thread_error)?;
        let source: Arc<dyn GaugeSource> = shared.clone();
        metrics.watch(Arc::downgrade(&source));
        Ok(TagsWriter {
            handle: Arc::new(Handle { shared, closed }),
        })
    }

    /// Appends messages of a source (its label, else its path), as far as they do not name their own. The place of the rows in the order of the table is fixed
    /// by this call, not by polling. The future ends when the rows are durable and visible to every reader; if it is
    /// dropped the rows are written all the same.
    pub fn append(
        &self,
        source: &Arc<str>,
        messages: Arc<Vec<Message>>,
        arrival: Ticks,
    ) -> impl Future<Output = Result<(), AppendError>> + Send + use<> {
        let (done, outcome) = oneshot::channel();
        let shared = self.handle.shared.clone();
        let arrival = arrival.unix_nanos().unwrap_or(0);
        let held = shared.hold(&messages);
        shared.push(Pending {
            held,
            source: source.clone(),
            messages,
            arrival,
            done,
            since: Instant::now(),
        });
        async move {
            match outcome.await {
                Ok(outcome) => outcome,
                // Whoever dropped the sender has said why, or has ended.
                Err(_) => Err(shared.failure().unwrap_or(AppendError::Stopped)),
            }
        }
    }

    /// Whether the messages that wait for their answer leave room for more. Nothing is refused when they do not: senders
    /// that ask keep their next batch to themselves until an append has ended.
    pub fn has_room(&self) -> bool {
        self.handle.shared.has_room()
    }

    /// Bytes that the writer holds: messages without an answer, and their rows.
    pub fn buffer_bytes(&self) -> u64 {
        self.handle.shared.buffer_bytes()
    }

    /// Senders are blocked until their rows are committed: commit what there is now.
    pub fn hurry(&self) {
        self.handle.shared.hurry();
    }

    /// Commits what was appended and stops. Appends after this end with [`AppendError::Stopped`].
    pub async fn close(&self) {
        self.handle.shared.close();
        let mut closed = self.handle.closed.clone();
        // An error means that the thread is gone, which is as closed as it gets.
        let _ = closed.wait_for(|closed| *closed).await;
    }

    /// Gives up what is not committed: the appends that wait end with [`AppendError::Stopped`].
    pub fn abandon(&self) {
        self.handle.shared.abandon();
    }

    pub fn status(&self) -> WriterStatus {
        self.handle.shared.status()
    }
}

/// One look at a table that is being written.
#[derive(Clone, Debug)]
pub struct WriterStatus {
    pub rows: u64,
    pub files: u64,
    pub bytes: u64,
    pub version: i64,
    /// Rows accepted and not yet committed.
    pub buffered_rows: u64,
    pub last_commit_unix_ms: Option<i64>,
    /// Age of the oldest row that is not committed.
    pub lag: Duration,
    /// What keeps the table from taking data, in one sentence, and for how long.
    pub trouble: Option<(String, Duration)>,
}

impl StatusSource for TagsWriter {
    fn tables(&self) -> Vec<TableStatus> {
        let status = self.status();
        vec![TableStatus {
            name: tags::schema::TABLE.to_owned(),
            rows: status.rows,
            files: status.files,
            bytes: status.bytes,
            version: status.version,
            buffered_rows: status.buffered_rows,
            last_commit_unix_ms: status.last_commit_unix_ms,
            failed: status.trouble.map(|(text, _)| text),
        }]
    }

    fn not_ready(&self) -> Vec<String> {
        let status = self.status();
        let lag_max = (self.handle.shared.flush_interval() * LAG_INTERVALS_MAX).max(LAG_MIN);
        match status.trouble {
            Some((text, since)) if since > TROUBLE_MAX || self.handle.shared.failure().is_some() => vec![text],
            trouble if status.lag > lag_max => {
                let cause = trouble.map(|(text, _)| format!(": {text}")).unwrap_or_default();
                vec![format!(
                    "rows of the table tags wait for their commit since {:.0} s{cause}",
                    status.lag.as_secs_f64()
                )]
            }
            _ => Vec::new(),
        }
    }
}

impl GaugeSource for Shared {
    fn gauges(&self) -> TableGauges {
        self.table_gauges(tags::schema::TABLE)
    }
}

#[cfg(test)]
mod tests;
