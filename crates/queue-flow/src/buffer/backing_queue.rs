//! The queue behind a buffer. It is found or created when the flow starts, and its messages are counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use thalweg_flow::Component;
use thalweg_log::format::record::Properties;
use thalweg_queue::hash::partition_of;
use thalweg_queue::message::Message as Record;
use thalweg_queue::settings::{GroupMode, GroupSettings, MESSAGE_BYTES_MAX, Overflow, QueueSettings};
use thalweg_queue::{Group, Queue, QueueError, Queues};
use tokio::sync::{Notify, OnceCell};

use super::QueueBufferOptions;
use crate::SharedQueues;

/// The only group of a buffer's queue.
const GROUP: &str = "flow";
/// How long one write blocks inside the queue before it is repeated.
const BLOCK: Duration = Duration::from_secs(3600);
/// Records at the end of a partition that are searched for a parcel.
const LOOKED_AT: u64 = 100;

const MESSAGES: &str = "messages";
const BEFORE: &str = "before";

/// Shared by the reader and the writer of a buffer.
pub(super) struct BackingQueue {
    store: Arc<SharedQueues>,
    pub options: QueueBufferOptions,
    pub component: Component,
    opened: OnceCell<OpenBackingQueue>,
}

pub(super) struct OpenBackingQueue {
    pub queue: Arc<Queue>,
    pub group: Arc<Group>,
    /// A key for each partition, which makes the queue select it.
    pub keys: Vec<Bytes>,
    /// By partition.
    pub ends: Vec<PartitionCounters>,
    /// Messages in the queue at the start.
    pub found: u64,
    /// Messages in the queue now.
    depth: AtomicU64,
    /// Notified when there are fewer.
    pub room: Notify,
}

/// Messages stored in a partition since it was last empty at a start.
pub(super) struct PartitionCounters {
    /// At the start, the messages before the oldest uncommitted one.
    pub from: u64,
    /// Including all messages stored or being stored.
    pub to: AtomicU64,
}

impl OpenBackingQueue {
    pub fn depth(&self) -> u64 {
        self.depth.load(Ordering::Acquire)
    }

    pub fn stored(&self, messages: u64) {
        self.depth.fetch_add(messages, Ordering::AcqRel);
    }

    pub fn done(&self, messages: u64) {
        let less = |depth: u64| Some(depth.saturating_sub(messages));
        let _ = self.depth.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        self.room.notify_waiters();
    }
}

/// The label of a parcel, stored in its properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ParcelLabel {
    /// Messages in the parcel.
    pub messages: u64,
    /// Messages in its partition before it.
    pub before: u64,
}

impl ParcelLabel {
    pub fn properties(self) -> Properties {
        let texts = [(MESSAGES, self.messages.to_string()), (BEFORE, self.before.to_string())];
        texts.into_iter().collect()
    }

    /// Returns `None` if the record was not stored by a flow.
    pub fn of(record: &Record) -> Option<ParcelLabel> {
        let properties = record.properties.as_ref();
        let number = |name| properties.get(name)?.parse().ok();
        Some(ParcelLabel {
            messages: number(MESSAGES)?,
            before: number(BEFORE)?,
        })
    }

    pub fn after(self) -> u64 {
        self.before.saturating_add(self.messages)
    }
}

impl BackingQueue {
    pub fn new(store: Arc<SharedQueues>, options: QueueBufferOptions, component: Component) -> BackingQueue {
        BackingQueue {
            store,
            options,
            component,
            opened: OnceCell::new(),
        }
    }

    /// The first caller finds or creates the queue.
    pub async fn opened(&self) -> Result<&OpenBackingQueue, String> {
        let open = || async {
            let queues = self.store.queues().ok_or("the log is not open yet")?;
            self.open(&queues).await.map_err(|error| error.to_string())
        };
        self.opened.get_or_try_init(open).await
    }

    pub fn known(&self) -> Option<&OpenBackingQueue> {
        self.opened.get()
    }

    async fn open(&self, queues: &Queues) -> Result<OpenBackingQueue, QueueError> {
        let queue = self.queue(queues).await?;
        let group = queue.group(GROUP)?;
        let stats = queue.stats();
        let positions = stats.groups.iter().find(|group| group.name == GROUP);
        let positions = positions.map(|group| group.positions.clone()).unwrap_or_default();
        let (mut ends, mut found) = (Vec::new(), 0);
        for (partition, (first, next)) in (0..).zip(&stats.partitions) {
            let from = positions.get(ends.len()).copied().unwrap_or_default().max(*first);
            let (oldest, newest) = match from < *next {
                true => (
                    oldest_label(&queue, partition, from, *next).await?,
                    newest_label(&queue, partition, from, *next).await?,
                ),
                false => (None, None),
            };
            let from = oldest.map_or(0, |label| label.before);
            let to = newest.map_or(0, ParcelLabel::after).max(from);
            found += to - from;
            ends.push(PartitionCounters {
                from,
                to: AtomicU64::new(to),
            });
        }
        let partitions = queue.partition_count();
        Ok(OpenBackingQueue {
            group,
            keys: (0..partitions).map(|partition| key_of(partition, partitions)).collect(),
            ends,
            found,
            depth: AtomicU64::new(found),
            room: Notify::new(),
            queue,
        })
    }

    /// Returns the queue with the settings of the flow, as far as its messages allow.
    async fn queue(&self, queues: &Queues) -> Result<Arc<Queue>, QueueError> {
        let name = &self.options.name;
        let wanted = self.settings();
        let queue = match queues.get(name) {
            Err(QueueError::QueueNotFound { .. }) => return queues.create(name, wanted).await,
            found => found?,
        };
        let there = queue.settings();
        if *there == wanted {
            return Ok(queue);
        }
        let Err(refused) = queues.configure(name, wanted.clone()).await else {
            return Ok(queue);
        };
        if queue.depth() == 0 {
            queues.remove(name, false).await?;
            return queues.create(name, wanted).await;
        }
        tracing::warn!(
            component = self.component.title(),
            "the buffer {name} has messages, so its partitions and its durability change only at a start that finds it \
             empty: {refused}"
        );
        let kept = QueueSettings {
            partitions: there.partitions,
            durability: Some(queue.durability()),
            ..wanted
        };
        queues.configure(name, kept).await?;
        Ok(queue)
    }

    fn settings(&self) -> QueueSettings {
        let options = &self.options;
        let mut settings = QueueSettings {
            partitions: options.partitions,
            durability: options.durability,
            max_message_size: MESSAGE_BYTES_MAX,
            // A record contains many messages, so the flow counts them itself.
            max_depth: 0,
            max_bytes: options.max_bytes,
            overflow: Overflow::Block,
            block_timeout: BLOCK,
            ttl: Duration::ZERO,
            claim_batch: options.claim_batch,
            groups: vec![GroupSettings::new(GROUP, GroupMode::Stream)],
            ..QueueSettings::default()
        };
        settings.dlq.enabled = false;
        settings
    }
}

/// The label of the oldest labelled record.
async fn oldest_label(
    queue: &Arc<Queue>,
    partition: u32,
    from: u64,
    next: u64,
) -> Result<Option<ParcelLabel>, QueueError> {
    let count = (next - from).min(LOOKED_AT) as usize;
    let first = queue.browse(Some(partition), Some(from), 1).await?;
    if let Some(label) = first.first().and_then(|(_, record)| ParcelLabel::of(record)) {
        return Ok(Some(label));
    }
    let more = queue.browse(Some(partition), Some(from), count).await?;
    Ok(more.iter().find_map(|(_, record)| ParcelLabel::of(record)))
}

/// The label of the newest labelled record.
async fn newest_label(
    queue: &Arc<Queue>,
    partition: u32,
    from: u64,
    next: u64,
) -> Result<Option<ParcelLabel>, QueueError> {
    let last = queue.browse(Some(partition), Some(next - 1), 1).await?;
    if let Some(label) = last.first().and_then(|(_, record)| ParcelLabel::of(record)) {
        return Ok(Some(label));
    }
    let from = from.max(next.saturating_sub(LOOKED_AT));
    let more = queue.browse(Some(partition), Some(from), LOOKED_AT as usize).await?;
    Ok(more.iter().rev().find_map(|(_, record)| ParcelLabel::of(record)))
}

/// A short key that selects the partition: the first one found by trying.
fn key_of(partition: u32, partitions: u32) -> Bytes {
    let mut keys = (0..=u32::MAX).map(|n| {
        let bytes = n.to_le_bytes();
        let length = 4 - (n.leading_zeros() / 8) as usize;
        Bytes::copy_from_slice(bytes.get(..length.max(1)).unwrap_or_default())
    });
    let found = keys.find(|key| partition_of(key, partitions) == partition);
    found.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_has_a_short_key() {
        for partitions in [1, 2, 10, 999, 1000] {
            for partition in 0..partitions {
                let key = key_of(partition, partitions);
                assert_eq!(partition_of(&key, partitions), partition);
                assert!((1..=3).contains(&key.len()), "{key:?}");
            }
        }
    }
}
