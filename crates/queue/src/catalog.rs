//! The catalogue of queues and groups, stored in a partition of the log. Each change is one record, whose key is the
//! queue's name and whose value is the whole entry as JSON. An empty value means that the queue is removed. Now and
//! then the catalogue is rewritten as a checkpoint, whose records contain many queues each.
//!
//! Before the first partition of a queue is created, its number is stored as used, with a mark. The mark stays until
//! the queue exists or its last partition is removed. So a start finds and removes what a crash left half created or
//! half removed, and no number is ever used twice. `catalog/contents.rs` defines the marks and what holds when records
//! are lost.

mod contents;
mod entry;

use std::collections::BTreeMap;

use serde_json::Value;
use smol_str::SmolStr;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::RecordRef;
use thalweg_log::{Durability, Log, LogError, Micros, PartitionId, Records, WriteBatch};
use tokio::sync::Mutex;

use crate::error::{QueueError, Result};
use crate::identity::IDS;
use contents::CatalogContents;
pub(crate) use contents::CleanupMark;
pub(crate) use entry::{GroupEntry, QueueEntry};

/// The catalogue's partition.
pub(crate) const CATALOG: PartitionId = PartitionId::new(1, 0);
/// The lowest queue number.
pub(crate) const FIRST_ID: u32 = 16;
/// Queue numbers are below this, because the bits above distinguish kinds of partitions.
const NUMBERS: u32 = IDS;

/// Key of the record with the next queue number.
const NEXT_ID: &str = "";
/// Key of a record with many queues: a JSON object keyed by name.
const MANY: &str = "/";
/// First character of the keys of marks. No queue name begins with it.
const MARK: char = '/';
/// Key of the record with the last epoch used.
const EPOCH: &str = "/epoch";
/// Epochs follow the seconds since 1970 up to here.
const EPOCH_BY_TIME_MAX: i64 = 1 << 31;
/// The catalogue is rewritten when it has this many more records than queues.
const SURPLUS: usize = 1000;
/// Queues per record of a checkpoint.
const TOGETHER: usize = 100;
/// A larger checkpoint is not written, because it does not fit into a frame; the records of all changes remain.
const WHOLE_MAX: usize = 24 << 20;

pub(crate) struct Catalog {
    state: Mutex<CatalogContents>,
    /// Records lost to damage.
    lost: u64,
}

impl Catalog {
    /// Reads the catalogue, or creates an empty one.
    pub async fn open(log: &dyn Log) -> Result<Catalog> {
        let mut state = CatalogContents::from(FIRST_ID);
        match make(log).await {
            // Its first record creates it once there is room.
            Err(error @ LogError::DiskFull { .. }) => {
                tracing::error!(%error, "there is no disk space for the catalogue of queues")
            }
            made => {
                made?;
                state.read(log)?;
            }
        }
        Ok(Catalog {
            lost: state.lost,
            state: Mutex::new(state),
        })
    }

    /// Number of records lost to damage. If it is not zero, the catalogue may be out of date.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    pub async fn all(&self) -> Vec<(SmolStr, QueueEntry)> {
        let state = self.state.lock().await;
        state
            .queues
            .iter()
            .map(|(name, entry)| (name.clone(), entry.clone()))
            .collect()
    }

    /// Numbers that may have leftover partitions but no queue, and why.
    pub async fn marks(&self) -> BTreeMap<u32, CleanupMark> {
        self.state.lock().await.marks.clone()
    }

    /// Makes sure that no number up to `id` is assigned, because partitions with it exist.
    pub async fn skip(&self, id: u32) {
        let mut state = self.state.lock().await;
        state.next_id = state.next_id.max(id.saturating_add(1));
    }

    /// Assigns a number to a new queue. It was never used before, and it is marked until the queue is put. The change
    /// is durable on return.
    pub async fn begin(&self, log: &dyn Log, mark: CleanupMark, now: Micros) -> Result<u32> {
        let mut state = self.state.lock().await;
        let id = state.next_id;
        if id >= NUMBERS {
            return Err(QueueError::QuotaExceeded {
                what: "queues that were ever created",
                limit: u64::from(NUMBERS),
            });
        }
        let changes = [(NEXT_ID.to_owned(), (id + 1).to_string()), mark_of(id, Some(mark))];
        // The number is used even if the outcome of the write is unknown.
        state.next_id = id + 1;
        state.change(log, &changes, now).await?;
        state.marks.insert(id, mark);
        Ok(id)
    }

    /// A new epoch for leases, higher than any before. It is not below the time in seconds, so it does not repeat even
    /// if damage destroys the record of the last one. It must be stored before a lease uses it.
    pub async fn next_epoch(&self, now: Micros) -> u32 {
        let mut state = self.state.lock().await;
        let by_time = u32::try_from((now / 1_000_000).clamp(0, EPOCH_BY_TIME_MAX)).unwrap_or_default();
        state.epoch = state.epoch.saturating_add(1).max(by_time);
        state.epoch
    }

    /// Stores that all epochs up to the last one are used. The change is durable on return.
    pub async fn store_epoch(&self, log: &dyn Log, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        let epoch = (EPOCH.to_owned(), state.epoch.to_string());
        state.change_freeing(log, &[epoch], now).await?;
        state.write_all_by_and_by(log, now).await;
        Ok(())
    }

    /// Removes the mark of a number that has no queue and no partitions any more. The change is durable on return.
    pub async fn finish(&self, log: &dyn Log, id: u32, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        state.change_freeing(log, &[mark_of(id, None)], now).await?;
        state.marks.remove(&id);
        Ok(())
    }

    /// Marks the partitions of a number without a queue for removal. The change is durable on return.
    pub async fn mark_removing(&self, log: &dyn Log, id: u32, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        state.mark_removing(log, id, now).await
    }

    /// Stores the entry of a queue. The change is durable on return.
    pub async fn put(&self, log: &dyn Log, name: &SmolStr, entry: QueueEntry, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        let changes = state.changes_of(name, &entry);
        state.change(log, &changes, now).await?;
        state.put(name.clone(), entry);
        state.write_all_by_and_by(log, now).await;
        Ok(())
    }

    /// Like `put`, for a change that may free space.
    pub async fn put_freeing(&self, log: &dyn Log, name: &SmolStr, entry: QueueEntry, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        let changes = state.changes_of(name, &entry);
        state.change_freeing(log, &changes, now).await?;
        state.put(name.clone(), entry);
        state.write_all_by_and_by(log, now).await;
        Ok(())
    }

    /// Moves a queue to another number, under which all of its messages are stored; the partitions under the old number
    /// may be removed. This is one frame, because a crash between two would leave the messages stored twice. The change
    /// is durable on return.
    pub async fn renumber(
        &self,
        log: &dyn Log,
        name: &SmolStr,
        entry: QueueEntry,
        old: u32,
        now: Micros,
    ) -> Result<()> {
        let mut state = self.state.lock().await;
        let mut changes = state.changes_of(name, &entry);
        changes.push(mark_of(old, Some(CleanupMark::Removing)));
        // Removing the old partitions frees space.
        state.change_freeing(log, &changes, now).await?;
        state.put(name.clone(), entry);
        state.marks.insert(old, CleanupMark::Removing);
        Ok(())
    }

    /// Removes a queue and marks its number until its partitions are removed. The mark is written first, in a frame of
    /// its own, so that damage to one of the two frames does not bring the queue back. The queue is durably removed
    /// once the mark is stored; removing the name is only tidying.
    pub async fn remove(&self, log: &dyn Log, name: &SmolStr, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        let Some(id) = state.queues.get(name).map(|entry| entry.id) else {
            return Ok(());
        };
        state.mark_removing(log, id, now).await?;
        state.unname(name);
        let gone = (name.to_string(), String::new());
        if let Err(error) = state.change_freeing(log, &[gone], now).await {
            tracing::warn!(
                queue = %name, %error,
                "the name of a removed queue stays in the catalogue until the next start"
            );
        }
        state.write_all_by_and_by(log, now).await;
        Ok(())
    }

    /// Rewrites the catalogue as a checkpoint.
    pub async fn write_whole(&self, log: &dyn Log, now: Micros) {
        self.state.lock().await.write_whole(log, now).await;
    }
}

/// Creates the partition if it does not exist.
async fn make(log: &dyn Log) -> thalweg_log::Result<()> {
    match log.bounds(CATALOG) {
        Err(LogError::NoPartition(_)) => log.create(CATALOG, Durability::Fsync).await,
        known => known.map(drop),
    }
}

fn mark_of(id: u32, mark: Option<CleanupMark>) -> (String, String) {
    (format!("{MARK}{id}"), CleanupMark::text(mark).to_owned())
}

fn unit_of(changes: &[(String, String)], now: Micros) -> Result<WriteBatch> {
    let mut records = Records::new();
    for (key, value) in changes {
        push(&mut records, key, value, now)?;
    }
    Ok(WriteBatch::default().and_of(FrameKind::State, CATALOG, records))
}

fn push(records: &mut Records, key: &str, value: &str, now: Micros) -> Result<()> {
    records.push(&RecordRef {
        key: Some(key.as_bytes()),
        ..RecordRef::of(now, value.as_bytes())
    })?;
    Ok(())
}

impl CatalogContents {
    async fn mark_removing(&mut self, log: &dyn Log, id: u32, now: Micros) -> Result<()> {
        self.change_freeing(log, &[mark_of(id, Some(CleanupMark::Removing))], now)
            .await?;
        self.marks.insert(id, CleanupMark::Removing);
        Ok(())
    }

    /// The entry of a queue, plus the removal of its number's mark.
    fn changes_of(&self, name: &SmolStr, entry: &QueueEntry) -> Vec<(String, String)> {
        let mut changes = vec![(name.to_string(), entry.to_json().to_string())];
        changes.extend(self.marks.contains_key(&entry.id).then(|| mark_of(entry.id, None)));
        changes
    }

    async fn change(&mut self, log: &dyn Log, changes: &[(String, String)], now: Micros) -> Result<()> {
        let unit = unit_of(changes, now)?;
        make(log).await?;
        log.append(unit).await?;
        self.records += changes.len();
        Ok(())
    }

    /// Applies a change that frees space; it is accepted on a full disk too.
    async fn change_freeing(&mut self, log: &dyn Log, changes: &[(String, String)], now: Micros) -> Result<()> {
        let unit = unit_of(changes, now)?.freeing();
        make(log).await?;
        log.append(unit).await?;
        self.records += changes.len();
        Ok(())
    }

    async fn write_all_by_and_by(&mut self, log: &dyn Log, now: Micros) {
        if self.records > self.queues.len() + SURPLUS {
            self.write_whole(log, now).await;
        }
    }

    /// An error is only logged, because the changes are already stored.
    async fn write_whole(&mut self, log: &dyn Log, now: Micros) {
        if let Err(error) = self.write_all(log, now).await {
            tracing::warn!(%error, "the checkpoint of the catalogue of queues cannot be written");
        }
        self.records = 0;
    }

    async fn write_all(&self, log: &dyn Log, now: Micros) -> Result<()> {
        let mut all = Records::new();
        let mut bytes = 0;
        push(&mut all, NEXT_ID, &self.next_id.to_string(), now)?;
        push(&mut all, EPOCH, &self.epoch.to_string(), now)?;
        for (id, mark) in &self.marks {
            let (key, value) = mark_of(*id, Some(*mark));
            push(&mut all, &key, &value, now)?;
        }
        let queues: Vec<(&SmolStr, &QueueEntry)> = self.queues.iter().collect();
        for some in queues.chunks(TOGETHER) {
            let many = some.iter().map(|(name, entry)| (name.to_string(), entry.to_json()));
            let text = Value::Object(many.collect()).to_string();
            bytes += text.len();
            if bytes > WHOLE_MAX {
                return Ok(());
            }
            push(&mut all, MANY, &text, now)?;
        }
        log.append(WriteBatch::default().and_of(FrameKind::Checkpoint, CATALOG, all))
            .await?;
        Ok(())
    }
}

fn damaged(found: &str) -> QueueError {
    QueueError::Log(LogError::Corrupt {
        file: "the catalogue of queues".to_owned(),
        position: 0,
        expected: None,
        found: found.to_owned(),
    })
}
