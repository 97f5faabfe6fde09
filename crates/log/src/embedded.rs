//! The log on one disk: opened, appended to, read, closed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;
use tokio::sync::oneshot;

use crate::commit_file::CommitFile;
use crate::disk::Disk;
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::format::frame::Kind;
use crate::ids::{Offset, PartitionId};
use crate::partition::{Bounds, Frame, Partition};
use crate::records::Unit;
use crate::recovery::{Report, recover};
use crate::writer::core::{Core, Resume, Submission};
use crate::writer::files::{Files, MadeAtOnce, Spares as _};
use crate::writer::group::Part;
use crate::writer::thread::{Pace, Writer};

#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Bytes of a commit file, and of the very first one.
    pub file_bytes: u64,
    pub first_file_bytes: u64,
    /// A block takes submissions up to so many bytes; a larger one fills a block alone.
    pub commit_bytes_max: usize,
    /// The longest wait for a group to become as large as the last one; zero: never.
    pub linger: Duration,
    /// [`Durability::Interval`] syncs what is that old.
    pub interval: Duration,
    /// Bytes that may wait for the writer.
    pub waiting_bytes_max: usize,
    /// Bytes of newest frames that are read from memory.
    pub tail_bytes_max: usize,
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            file_bytes: 128 << 20,
            first_file_bytes: 16 << 20,
            commit_bytes_max: 1 << 20,
            linger: Duration::from_micros(50),
            interval: Duration::from_millis(50),
            waiting_bytes_max: 64 << 20,
            tail_bytes_max: 64 << 20,
        }
    }
}

/// What an append came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Appended {
    /// Of the first record of each part, in the order of the parts.
    pub offsets: Vec<Offset>,
    /// What holds for all of it by now.
    pub durability: Durability,
}

pub struct EmbeddedLog {
    writer: Writer,
    partitions: RwLock<HashMap<PartitionId, Arc<Partition>>>,
    /// Of all partitions found at the start and not opened yet.
    found: Vec<Arc<CommitFile>>,
    report: Report,
}

impl EmbeddedLog {
    /// Opens the log of a disk, after looking at all that was not known to be synced. Blocks. `log_id` names a new log;
    /// one that exists keeps its own.
    pub fn open(disk: Arc<dyn Disk>, log_id: u64, options: &LogOptions) -> Result<EmbeddedLog> {
        let found = recover(disk.as_ref())?;
        let mut spares = MadeAtOnce {
            disk,
            ready: found.spares.into(),
            next_number: found.next_number,
            size: options.file_bytes,
        };
        let (current, end) = match found.files.last() {
            Some(file) => (file.clone(), found.end),
            None if spares.ready.is_empty() => {
                let first = CommitFile::make(spares.disk.as_ref(), spares.next_number, options.first_file_bytes)?;
                spares.next_number += 1;
                (Arc::new(first), Some(0))
            }
            None => (Arc::new(spares.take()?), Some(0)),
        };
        let log_id = found.log_id.unwrap_or(log_id);
        let resume = Resume {
            files: Files::new(current, end, found.first, log_id, Box::new(spares)),
            log_id,
            next: found.next,
            synced: found.next - 1,
        };
        let pace = Pace {
            linger: options.linger,
            interval: options.interval,
            waiting_bytes_max: options.waiting_bytes_max,
        };
        let core = Core::new(resume, options.commit_bytes_max, options.tail_bytes_max);
        let writer = Writer::start(core, pace).map_err(LogError::io("cannot start the thread of", "the log"))?;
        Ok(EmbeddedLog {
            writer,
            partitions: RwLock::default(),
            found: found.files,
            report: found.report,
        })
    }

    pub fn report(&self) -> Report {
        self.report
    }

    /// Opens a partition, an empty one if it has no records.
    pub fn open_partition(&self, id: PartitionId, durability: Durability) -> Result<()> {
        let mut partitions = self.partitions.write();
        if partitions.contains_key(&id) {
            return Err(LogError::PartitionExists(id));
        }
        let partition = Arc::new(Partition::new(id, partitions.len(), durability));
        partition.find_in(&self.found);
        // In the order of slots, which the lock above keeps.
        self.writer.add_partition(partition.clone());
        partitions.insert(id, partition);
        Ok(())
    }

    /// Stores the records of a unit together or not at all. Returns once the strongest durability among its partitions
    /// holds for all of it; records can be read from then on. Waits while the disk cannot keep up.
    pub async fn append(&self, unit: Unit) -> Result<Appended> {
        let bytes = unit.check()?;
        let mut durability = Durability::Os;
        let mut parts = Vec::with_capacity(unit.parts.len());
        {
            let partitions = self.partitions.read();
            for (id, records) in unit.parts {
                let partition = partitions.get(&id).ok_or(LogError::NoPartition(id))?;
                durability = strongest(durability, partition.durability);
                parts.push(Part {
                    slot: partition.slot,
                    partition: id,
                    kind: Kind::Data,
                    flags: records.flags,
                    records: records.count,
                    base_time: records.base_time,
                    max_time: records.max_time,
                    epoch: 0,
                    body: records.into(),
                });
            }
        }
        let (done, answer) = oneshot::channel();
        let submission = Submission {
            parts,
            durability,
            bytes,
            done,
        };
        self.writer.submit(submission).await?;
        let offsets = answer.await.unwrap_or(Err(LogError::Closed))?;
        Ok(Appended { offsets, durability })
    }

    pub fn bounds(&self, id: PartitionId) -> Result<Bounds> {
        Ok(self.partition(id)?.bounds())
    }

    /// Frames with the records from `from` on, about `bytes` of them and one frame at least; none if there is nothing
    /// yet. Blocks if they have to be read from the disk.
    pub fn read(&self, id: PartitionId, from: Offset, bytes: usize) -> Result<Vec<Frame>> {
        self.partition(id)?.read(from, bytes)
    }

    /// Waits until a record at `from` can be read.
    pub async fn wait_for(&self, id: PartitionId, from: Offset) -> Result<()> {
        let partition = self.partition(id)?;
        partition.wait_for(from).await;
        Ok(())
    }

    /// Commits and syncs all that was submitted. Blocks.
    pub fn close(&self) {
        self.writer.close();
    }

    fn partition(&self, id: PartitionId) -> Result<Arc<Partition>> {
        self.partitions
            .read()
            .get(&id)
            .cloned()
            .ok_or(LogError::NoPartition(id))
    }
}

/// The one that promises more.
fn strongest(one: Durability, other: Durability) -> Durability {
    let strength = |durability| match durability {
        Durability::Memory => 0,
        Durability::Os => 1,
        Durability::Interval => 2,
        Durability::Fsync => 3,
    };
    if strength(other) > strength(one) { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Folder;
    use crate::format::record::{RecordRef, records};
    use crate::records::Records;

    fn open(folder: &std::path::Path) -> EmbeddedLog {
        let options = LogOptions {
            file_bytes: 4 << 20,
            first_file_bytes: 1 << 20,
            ..LogOptions::default()
        };
        let log = EmbeddedLog::open(Arc::new(Folder::open(folder).unwrap()), 7, &options).unwrap();
        for (n, durability) in [Durability::Fsync, Durability::Os].into_iter().enumerate() {
            log.open_partition(PartitionId::new(1, n as u32), durability).unwrap();
        }
        log
    }

    fn one(value: &[u8]) -> Records {
        let mut records = Records::new();
        records.push(&RecordRef::of(1, value)).unwrap();
        records
    }

    fn values(log: &EmbeddedLog, id: PartitionId) -> Vec<Vec<u8>> {
        let (mut values, mut from) = (Vec::new(), 0);
        loop {
            let frames = log.read(id, from, 100_000).unwrap();
            let Some(last) = frames.last() else {
                return values;
            };
            from = last.header.next();
            for frame in &frames {
                values.extend(records(&frame.body).map(|record| record.unwrap().value.to_vec()));
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_many_publishers_append_is_there_after_a_restart_in_each_ones_order() {
        let folder = tempfile::tempdir().unwrap();
        let log = Arc::new(open(folder.path()));
        let publishers: Vec<_> = (0..16u8)
            .map(|publisher| {
                let log = log.clone();
                tokio::spawn(async move {
                    let id = PartitionId::new(1, u32::from(publisher % 2));
                    let mut last = None;
                    for n in 0..200u16 {
                        let value = [&[publisher][..], &n.to_le_bytes(), &[publisher; 250]].concat();
                        let appended = log.append(Unit::of(id, one(&value))).await.unwrap();
                        assert!(Some(appended.offsets[0]) > last);
                        last = Some(appended.offsets[0]);
                    }
                })
            })
            .collect();
        for publisher in publishers {
            publisher.await.unwrap();
        }
        log.close();
        assert!(matches!(
            log.append(Unit::of(PartitionId::new(1, 0), one(b"late"))).await,
            Err(LogError::Closed)
        ));
        drop(log);
        let log = open(folder.path());
        assert_eq!(log.report().torn_bytes, 0);
        for n in 0..2 {
            let all = values(&log, PartitionId::new(1, n));
            assert_eq!(all.len(), 8 * 200);
            for publisher in (0..16).filter(|p| u32::from(p % 2) == n) {
                let own = all.iter().filter(|value| value[0] == publisher);
                let order: Vec<u16> = own.map(|value| u16::from_le_bytes([value[1], value[2]])).collect();
                assert_eq!(order, (0..200).collect::<Vec<_>>());
            }
        }
    }

    #[tokio::test]
    async fn a_reader_waits_for_what_is_to_come() {
        let folder = tempfile::tempdir().unwrap();
        let log = Arc::new(open(folder.path()));
        let id = PartitionId::new(1, 0);
        assert!(log.read(id, 0, 1000).unwrap().is_empty());
        let (waiting, writing) = (log.clone(), log.clone());
        let reader = tokio::spawn(async move {
            waiting.wait_for(id, 1).await.unwrap();
            values(&waiting, id)
        });
        writing.append(Unit::of(id, one(b"a"))).await.unwrap();
        writing.append(Unit::of(id, one(b"b"))).await.unwrap();
        assert_eq!(reader.await.unwrap(), [b"a", b"b"]);
    }

    #[tokio::test]
    async fn a_unit_of_two_partitions_has_the_stronger_durability() {
        let folder = tempfile::tempdir().unwrap();
        let log = open(folder.path());
        let unit = Unit::of(PartitionId::new(1, 1), one(b"a")).and(PartitionId::new(1, 0), one(b"b"));
        let appended = log.append(unit).await.unwrap();
        assert_eq!(
            appended,
            Appended {
                offsets: vec![0, 0],
                durability: Durability::Fsync
            }
        );
        let missing = log.append(Unit::of(PartitionId::new(9, 9), one(b"a"))).await;
        assert_eq!(missing.unwrap_err().to_string(), "partition 9/9 does not exist");
    }

    #[tokio::test]
    async fn what_is_too_large_is_refused_before_it_is_anywhere() {
        let mut records = Records::new();
        let long_key = vec![0; 70_000];
        let record = RecordRef {
            key: Some(&long_key),
            ..RecordRef::of(1, b"")
        };
        assert_eq!(
            records.push(&record).unwrap_err().to_string(),
            "a key of 70000 is more than 65536"
        );
        let half = vec![0; 17 << 20];
        records.push(&RecordRef::of(1, &half)).unwrap();
        assert!(records.push(&RecordRef::of(1, &half)).is_err());
        assert_eq!(records.len(), 1);
    }
}
