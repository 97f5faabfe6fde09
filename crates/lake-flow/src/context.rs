//! What the tables of a process depend on: its log, its queues, and the location of the lake.

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

/// Each partition has a thread, and more than this many bring no gain on any machine.
const PARTITIONS_MAX: usize = 4;
/// Tables that may be open at the same time. Each has memtables, rows being committed, and files being written.
const TABLES_MAX: usize = 5;
/// Memory parts for the tag dictionaries.
const TAGS_PARTS: usize = 6;
/// One more part is for requests that wait to become rows.
const MEMORY_PARTS: usize = 3 * TABLES_MAX + TAGS_PARTS + 1;

/// What tables depend on.
pub struct LakeContext {
    pub queues: Queues,
    pub log: Arc<dyn Log>,
    /// The default durability of the log.
    pub durability: Durability,
    /// Whether to continue without entries that the log has lost.
    pub accept_loss: bool,
    /// The ends of the log partitions before anything was appended in this run.
    pub log_ends: BTreeMap<PartitionId, Offset>,
    pub site: LakeStorage,
    pub metrics: LakeMetrics,
    pub options: LakeOptions,
    pub entries: EntryLimits,
    /// Limits for messages that become records of OTLP tables.
    pub records: SignalBatchLimits,
}

/// The current ends of all log partitions.
pub fn ends_of(log: &dyn Log) -> BTreeMap<PartitionId, Offset> {
    let ends = log
        .partitions()
        .into_iter()
        .filter_map(|id| Some((id, log.bounds(id).ok()?.next)));
    ends.collect()
}

impl LakeContext {
    /// The memory for requests that wait to become rows, and for the memtables of a table.
    pub(crate) fn memory_part(&self) -> usize {
        self.options.memory_bytes / MEMORY_PARTS
    }

    /// Opens a queue that feeds a table, and creates it if it does not exist.
    pub(crate) async fn queue(&self, name: &str) -> Result<Arc<Queue>, QueueError> {
        if let Ok(queue) = self.queues.get(name) {
            return Ok(queue);
        }
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let settings = QueueSettings {
            partitions: u32::try_from(cores.min(PARTITIONS_MAX)).unwrap_or(1),
            // Entries for tables have to be in the log.
            durability: (self.durability == Durability::Memory).then_some(Durability::Os),
            ..QueueSettings::of_lake()
        };
        self.queues.create(name, settings).await
    }

    pub(crate) fn handoffs(&self, queue: &Arc<Queue>, room: &Arc<HandoffBudget>) -> Arc<HandoffQueue> {
        // If the end of a partition is unknown, all its entries are read from the log.
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

    /// The write options of a table that `partitions` partitions feed.
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
