//! What feeds a table: the partitions of a queue in the log.

use std::sync::Arc;

use thalweg_log::{Log, Offset, PartitionId};

use super::handoff::HandoffQueue;
use crate::commit::CommittedOffset;
use thalweg_columns::tables::TableSpec;
use thalweg_delta::Snapshot;

/// Told how far a partition was taken: everything before the offset is in the table for good.
pub type OffsetCommitListener = dyn Fn(u32, Offset) + Send + Sync;

/// A queue of the log whose entries become rows of one table.
#[derive(Clone)]
pub struct QueueSource {
    /// The name of the queue.
    pub queue: String,
    pub log: Arc<dyn Log>,
    /// The queue's partitions.
    pub partitions: Vec<PartitionId>,
    pub taken: Arc<OffsetCommitListener>,
    /// Requests that need not be read from the log, if somebody hands them over.
    pub handoffs: Option<Arc<HandoffQueue>>,
}

/// What the log does not have any more, or never had, although the table lacks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OffsetGap {
    pub from: Offset,
    pub to: Offset,
}

/// Where a partition is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StartOffset {
    At(Offset),
    /// The log ended before what the table has.
    Lost(TruncatedLog),
    Missing(OffsetGap),
}

/// A table has what the log has lost. It takes only what is synced, so no power cut does this, whatever a partition promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TruncatedLog {
    /// Where the log ended before anything was appended behind that; from there on it has what the table lacks.
    pub log_end: Offset,
    pub table_has: Offset,
}

impl QueueSource {
    /// How tables name a partition.
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

    /// Where the table goes on in a partition, of which the log has offsets from `first` on, and ended at `end`.
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
        let OffsetGap { from, to } = missing;
        format!(
            "lake.gap: the log does not have the entries {from} to {} of {}, partition {partition}, that the table {} lacks; \
             bring back the files of the log, or start once with `log: {{recover: skip}}` to go on without them",
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
            "entries that the log does not have are passed over, as was asked for"
        );
    }
}
