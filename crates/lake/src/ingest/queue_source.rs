//! The source of a table: the partitions of a queue in the log.

use std::sync::Arc;

use thalweg_log::{Log, Offset, PartitionId};

use super::handoff::HandoffQueue;
use crate::codes::LakeCode;
use crate::commit::CommittedOffset;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::Snapshot;

/// Called with the committed offset of a partition: everything before it is durably in the table.
pub type OffsetCommitListener = dyn Fn(u32, Offset) + Send + Sync;

/// A log queue whose entries become rows of one table.
#[derive(Clone)]
pub struct QueueSource {
    /// The name of the queue.
    pub queue: String,
    pub log: Arc<dyn Log>,
    /// The queue's partitions.
    pub partitions: Vec<PartitionId>,
    pub taken: Arc<OffsetCommitListener>,
    /// Handoffs of requests that need not be read from the log.
    pub handoffs: Option<Arc<HandoffQueue>>,
}

/// Offsets that the log lacks, but the table needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OffsetGap {
    pub from: Offset,
    pub to: Offset,
}

/// Where consumption of a partition begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartOffset {
    At(Offset),
    /// The log ended before the table's committed offset.
    Lost(TruncatedLog),
    Missing(OffsetGap),
}

/// The table has entries that the log has lost. Only synced entries are consumed, so no power cut causes this, whatever
/// the durability of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TruncatedLog {
    /// Where the log ended before the first append; from here on it has entries that the table lacks.
    pub log_end: Offset,
    pub table_has: Offset,
}

impl QueueSource {
    /// The application name of a partition.
    pub(super) fn application(&self, partition: usize) -> String {
        format!("thalweg/{:016x}/{}/{partition}", self.log.id(), self.queue)
    }

    pub(super) fn taken_of(&self, offsets: &[Offset]) -> Vec<CommittedOffset> {
        let of = |(partition, offset): (usize, &Offset)| CommittedOffset {
            application: self.application(partition),
            offset: i64::try_from(*offset).unwrap_or(i64::MAX),
            is_last: false,
        };
        offsets.iter().enumerate().map(of).collect()
    }

    /// Where the table continues in a partition whose log offsets begin at `first` and ended at `end`.
    pub(super) fn begin(&self, partition: usize, table: Option<&Snapshot>, first: Offset, end: Offset) -> StartOffset {
        let known = table.and_then(|table| table.transactions.get(&self.application(partition)));
        let Some(known) = known.and_then(|offset| Offset::try_from(*offset).ok()) else {
            return StartOffset::At(first);
        };
        match known {
            known if known > end => StartOffset::Lost(TruncatedLog {
                log_end: end,
                table_has: known,
            }),
            known if known < first => StartOffset::Missing(OffsetGap { from: known, to: first }),
            known => StartOffset::At(known),
        }
    }

    pub(super) fn gap_text(&self, table: &TableSpec, partition: usize, missing: OffsetGap) -> String {
        let (code, OffsetGap { from, to }) = (LakeCode::Gap, missing);
        format!(
            "{code}: the log does not have the entries {from} to {} of {}, partition {partition}, that the table {} \
             needs; restore the files of the log, or start once with `log: {{recover: skip}}` to continue without them",
            to.saturating_sub(1),
            self.queue,
            table.name
        )
    }

    pub(super) fn passed_over(&self, table: &TableSpec, partition: usize, missing: OffsetGap) {
        let OffsetGap { from, to } = missing;
        tracing::warn!(
            table = table.name,
            queue = self.queue,
            partition,
            from,
            to,
            "entries that the log does not have are skipped, as configured"
        );
    }
}
