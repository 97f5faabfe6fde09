//! Tracks how far tables have consumed their queues, so that the log can be trimmed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use thalweg_log::Offset;
use thalweg_queue::{Group, Queue};
use tokio::sync::Notify;

/// Tables commit more often than the log needs to know.
const PAUSE: Duration = Duration::from_secs(1);

pub(crate) struct CommittedOffsets {
    /// By partition.
    offsets: Vec<AtomicU64>,
    news: Notify,
}

impl CommittedOffsets {
    pub fn new(partitions: usize) -> Arc<CommittedOffsets> {
        Arc::new(CommittedOffsets {
            offsets: (0..partitions).map(|_| AtomicU64::new(0)).collect(),
            news: Notify::new(),
        })
    }

    /// Records that everything before the offset is committed in the table.
    pub fn up_to(&self, partition: u32, offset: Offset) {
        if let Some(known) = self.offsets.get(partition as usize) {
            known.fetch_max(offset, Ordering::AcqRel);
            self.news.notify_one();
        }
    }

    /// Commits the recorded offsets for the group. An offset that it does not reach is recorded again after the next
    /// start.
    pub async fn commit(self: Arc<CommittedOffsets>, queue: Arc<Queue>, group: Arc<Group>) {
        let mut committed = vec![0; self.offsets.len()];
        loop {
            self.news.notified().await;
            for (partition, (offset, committed)) in (0..).zip(self.offsets.iter().zip(&mut committed)) {
                let offset = offset.load(Ordering::Acquire);
                if offset <= *committed {
                    continue;
                }
                match queue.commit(&group, partition, offset).await {
                    Ok(()) => *committed = offset,
                    Err(error) => {
                        tracing::debug!(queue = %queue.name(), partition, %error, "the committed offset cannot be stored, so the log is not trimmed");
                    }
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
