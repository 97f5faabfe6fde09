//! What the tables of a process stand on: its log, the queues in it, and where the lake is.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_delta::store::LakeStorage;
use thalweg_lake::LakeMetrics;
use thalweg_lake::ingest::{EntryLimits, HandoffBudget, HandoffQueue, IngestOptions, QueueSource};
use thalweg_log::{Durability, Log, Offset, PartitionId};
use thalweg_queue::settings::QueueSettings;
use thalweg_queue::{Queue, QueueError, Queues};

use crate::committed_offsets::CommittedOffsets;
use crate::options::LakeOptions;
use crate::signal_batch::SignalBatchLimits;

/// More partitions than that have no use on a machine of any size: each is a thread.
const PARTITIONS_MAX: usize = 4;
/// Tables that may be open at the same time. Each has rows that grow, rows that are committed, and files that are made of them.
const TABLES_MAX: usize = 5;
/// Some are for what is remembered of tags.
const TAGS_PARTS: usize = 6;
/// One part more is for requests that wait to become rows.
const MEMORY_PARTS: usize = 3 * TABLES_MAX + TAGS_PARTS + 1;

/// What tables stand on.
pub struct LakeContext {
    pub queues: Queues,
    pub log: Arc<dyn Log>,
    /// The usual one of the log.
    pub durability: Durability,
    /// What the log has lost is given up.
    pub accept_loss: bool,
    /// Where it ended before anything was appended to it.
    pub log_ends: BTreeMap<PartitionId, Offset>,
    pub site: LakeStorage,
    pub metrics: LakeMetrics,
    pub options: LakeOptions,
    pub entries: EntryLimits,
    /// Of messages that are records of OTLP tables.
    pub records: SignalBatchLimits,
}

/// Where a log ends now.
pub fn ends_of(log: &dyn Log) -> BTreeMap<PartitionId, Offset> {
    let ends = log
        .partitions()
        .into_iter()
        .filter_map(|id| Some((id, log.bounds(id).ok()?.next)));
    ends.collect()
}

impl LakeContext {
    /// Requests that wait to become rows may have so much, and the rows of a table that grow.
    pub(crate) fn memory_part(&self) -> usize {
        self.options.memory_bytes / MEMORY_PARTS
    }

    /// A queue that feeds a table. It is made if it is not there.
    pub(crate) async fn queue(&self, name: &str) -> Result<Arc<Queue>, QueueError> {
        if let Ok(queue) = self.queues.get(name) {
            return Ok(queue);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let settings = QueueSettings {
            partitions: u32::try_from(cores.min(PARTITIONS_MAX)).unwrap_or(1),
            // What tables are fed from has to be in the log.
            durability: (self.durability == Durability::Memory).then_some(Durability::Os),
            ..QueueSettings::of_lake()
        };
        self.queues.create(name, settings).await
    }

    pub(crate) fn handoffs(&self, queue: &Arc<Queue>, room: &Arc<HandoffBudget>) -> Arc<HandoffQueue> {
        // Of a partition whose end nobody knows everything is read from the log.
        let end = |id| self.log.bounds(id).map_or(Offset::MAX, |bounds| bounds.next);
        let ends: Vec<Offset> = queue.data_ids().into_iter().map(end).collect();
        HandoffQueue::new(room.clone(), &ends)
    }

    pub(crate) fn feed(
        &self,
        queue: &Arc<Queue>,
        taken: &Arc<CommittedOffsets>,
        handoffs: &Arc<HandoffQueue>,
    ) -> QueueSource {
        let taken = taken.clone();
        QueueSource {
            handoffs: Some(handoffs.clone()),
            queue: queue.name().to_string(),
            log: self.log.clone(),
            partitions: queue.data_ids(),
            taken: Arc::new(move |partition, offset| taken.up_to(partition, offset)),
        }
    }

    /// How a table is written that so many partitions feed.
    pub(crate) fn ingest_options(&self, partitions: usize) -> IngestOptions {
        let options = &self.options;
        let of_tags = self.memory_part() * TAGS_PARTS;
        IngestOptions {
            flush_bytes: options.flush_bytes.min(self.memory_part()).max(1),
            flush_interval: options.flush_interval,
            files: options.files.clone(),
            entries: EntryLimits {
                remembered_bytes: of_tags / partitions.max(1),
                ..self.entries
            },
            accept_gap: self.accept_loss,
            log_ends: self.log_ends.clone(),
            ..IngestOptions::default()
        }
    }
}
