//! Which queues and groups there are, kept in a partition of the log: a record for each change, with the queue's name as its
//! key and all there is to say of it as JSON; an empty value for a queue that is gone. Now and then all of it is written anew
//! as a checkpoint, whose records hold many queues each.
//!
//! A number is kept as given before the first partition of a queue is made under it, and with a mark until the queue is
//! there or its last partition is removed: so what a crash leaves half made or half removed is found and removed, and no
//! number is ever given twice. What the marks say, and what holds where records are lost, is in `catalog/contents.rs`.

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
use crate::queue::IDS;
use contents::CatalogContents;
pub(crate) use contents::CleanupMark;
pub(crate) use entry::{GroupEntry, QueueEntry};

/// The partition of the catalogue.
pub(crate) const CATALOG: PartitionId = PartitionId::new(1, 0);
/// Queues have numbers from here on.
pub(crate) const FIRST_ID: u32 = 16;
/// Less than this: the bits above tell kinds of partitions apart.
const NUMBERS: u32 = IDS;

/// The record that says which number the next queue gets.
const NEXT_ID: &str = "";
/// The key of many queues in one record: an object of names.
const MANY: &str = "/";
/// Keys of marks of numbers: no name begins so.
const MARK: char = '/';
/// The record with the last epoch that was given.
const EPOCH: &str = "/epoch";
/// Epochs follow the seconds since 1970 up to here.
const EPOCH_BY_TIME_MAX: i64 = 1 << 31;
/// It is written anew when it has so many records more than queues.
const SURPLUS: usize = 1000;
/// Queues of one record of a checkpoint.
const TOGETHER: usize = 100;
/// A checkpoint that would be larger is not written, as it does not fit into a frame; the records of all changes stay.
const WHOLE_MAX: usize = 24 << 20;

pub(crate) struct Catalog {
    state: Mutex<CatalogContents>,
    /// Records that damage has taken from it.
    lost: u64,
}

impl Catalog {
    /// Reads it, or makes an empty one.
    pub async fn open(log: &dyn Log) -> Result<Catalog> {
        let mut state = CatalogContents::from(FIRST_ID);
        match make(log).await {
            // With its first record it is, when there is room.
            Err(error @ LogError::DiskFull { .. }) => {
                tracing::error!(%error, "there is no room for a catalogue of queues")
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

    /// Records that damage has taken from it: what it says may be out of date.
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

    /// Numbers under which partitions may be left that no queue has, and why.
    pub async fn marks(&self) -> BTreeMap<u32, CleanupMark> {
        self.state.lock().await.marks.clone()
    }

    /// Gives no number up to this one: partitions have it.
    pub async fn skip(&self, id: u32) {
        let mut state = self.state.lock().await;
        state.next_id = state.next_id.max(id.saturating_add(1));
    }

    /// The number of a new queue, never given before, with a mark until the queue is put. Durable when it returns.
    pub async fn begin(&self, log: &dyn Log, mark: CleanupMark, now: Micros) -> Result<u32> {
        let mut state = self.state.lock().await;
        let id = state.next_id;
        if id >= NUMBERS {
            return Err(QueueError::QuotaExceeded {
                what: "queues that were ever made",
                limit: u64::from(NUMBERS),
            });
        }
        let changes = [(NEXT_ID.to_owned(), (id + 1).to_string()), mark_of(id, Some(mark))];
        // Also if nobody learns what became of it.
        state.next_id = id + 1;
        state.change(log, &changes, now).await?;
        state.marks.insert(id, mark);
        Ok(id)
    }

    /// An epoch for leases, higher than any before. It is not below the time in seconds: even if damage takes the last one
    /// that was given, it does not come again. To be stored before a lease is made in it.
    pub async fn next_epoch(&self, now: Micros) -> u32 {
        let mut state = self.state.lock().await;
        let by_time = u32::try_from((now / 1_000_000).clamp(0, EPOCH_BY_TIME_MAX)).unwrap_or_default();
        state.epoch = state.epoch.saturating_add(1).max(by_time);
        state.epoch
    }

    /// Keeps that all epochs up to the last one are given. Durable when it returns.
    pub async fn store_epoch(&self, log: &dyn Log, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        let epoch = (EPOCH.to_owned(), state.epoch.to_string());
        state.change_freeing(log, &[epoch], now).await?;
        state.write_all_by_and_by(log, now).await;
        Ok(())
    }

    /// No partition is left under the number of a queue that is not there. Durable when it returns.
    pub async fn finish(&self, log: &dyn Log, id: u32, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        state.change_freeing(log, &[mark_of(id, None)], now).await?;
        state.marks.remove(&id);
        Ok(())
    }

    /// The partitions under a number that no queue has may go from now on. Durable when it returns.
    pub async fn mark_removing(&self, log: &dyn Log, id: u32, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        state.mark_removing(log, id, now).await
    }

    /// Keeps what is said of a queue. Durable when it returns.
    pub async fn put(&self, log: &dyn Log, name: &SmolStr, entry: QueueEntry, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        let changes = state.changes_of(name, &entry);
        state.change(log, &changes, now).await?;
        state.put(name.clone(), entry);
        state.write_all_by_and_by(log, now).await;
        Ok(())
    }

    /// The same of a change by which space may become free.
    pub async fn put_freeing(&self, log: &dyn Log, name: &SmolStr, entry: QueueEntry, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        let changes = state.changes_of(name, &entry);
        state.change_freeing(log, &changes, now).await?;
        state.put(name.clone(), entry);
        state.write_all_by_and_by(log, now).await;
        Ok(())
    }

    /// A queue has another number from now on, under which all of its messages are; its partitions under the old one may go.
    /// One frame, or a crash in between would find the messages twice. Durable when it returns.
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
        // The old partitions make room.
        state.change_freeing(log, &changes, now).await?;
        state.put(name.clone(), entry);
        state.marks.insert(old, CleanupMark::Removing);
        Ok(())
    }

    /// A queue is gone; its number is marked until its partitions are. The mark goes first, in a frame of its own: damage to
    /// one of the two frames does not bring the queue back. With the mark it is gone, and durable; that the name goes too is
    /// only tidy.
    pub async fn remove(&self, log: &dyn Log, name: &SmolStr, now: Micros) -> Result<()> {
        let mut state = self.state.lock().await;
        let Some(id) = state.queues.get(name).map(|entry| entry.id) else {
            return Ok(());
        };
        state.mark_removing(log, id, now).await?;
        state.unname(name);
        let gone = (name.to_string(), String::new());
        if let Err(error) = state.change_freeing(log, &[gone], now).await {
            tracing::warn!(queue = %name, %error, "the name of a queue that is gone stays in the catalogue until the next start");
        }
        state.write_all_by_and_by(log, now).await;
        Ok(())
    }

    /// Writes all of it as a checkpoint.
    pub async fn write_whole(&self, log: &dyn Log, now: Micros) {
        self.state.lock().await.write_whole(log, now).await;
    }
}

/// The partition, if it is not there.
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

    /// The entry of a queue, which ends the mark of its number.
    fn changes_of(&self, name: &SmolStr, entry: &QueueEntry) -> Vec<(String, String)> {
        let mut changes = vec![(name.to_string(), entry.to_json().to_string())];
        changes.extend(self.marks.contains_key(&entry.id).then(|| mark_of(entry.id, None)));
        changes
    }

    async fn change(&mut self, log: &dyn Log, changes: &[(String, String)], now: Micros) -> Result<()> {
        let unit = unit_of(changes, now)?;
        make(log).await?;
        log.append(unit, None).await?;
        self.records += changes.len();
        Ok(())
    }

    /// One by which space becomes free: it is taken on a full disk, too.
    async fn change_freeing(&mut self, log: &dyn Log, changes: &[(String, String)], now: Micros) -> Result<()> {
        let unit = unit_of(changes, now)?.freeing();
        make(log).await?;
        log.append(unit, None).await?;
        self.records += changes.len();
        Ok(())
    }

    async fn write_all_by_and_by(&mut self, log: &dyn Log, now: Micros) {
        if self.records > self.queues.len() + SURPLUS {
            self.write_whole(log, now).await;
        }
    }

    /// What has changed is kept already, so an error is only told.
    async fn write_whole(&mut self, log: &dyn Log, now: Micros) {
        if let Err(error) = self.write_all(log, now).await {
            tracing::warn!(%error, "the catalogue of queues cannot be written as a whole");
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
        log.append(WriteBatch::default().and_of(FrameKind::Checkpoint, CATALOG, all), None)
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
