//! A commit file: blocks of all partitions of a disk, read where they were written. Filled with zeros before its first
//! use, so that syncing a block changes no metadata, and given its name then, so that moving on to it costs nothing.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::RwLock;

use crate::disk::{Disk, DiskFile};
use crate::error::{LogError, Result};
use crate::format::footer::{self, Bounds};
use crate::ids::{Offset, PartitionId};
use crate::index::{Entry, FileIndex};

/// Zeros are written in pieces of this.
const FILL: usize = 1 << 20;

pub(crate) struct CommitFile {
    pub number: u64,
    pub name: String,
    /// Bytes, all of them written at least once.
    pub size: u64,
    file: Arc<dyn DiskFile>,
    index: RwLock<FileIndex>,
}

pub(crate) fn name_of(number: u64) -> String {
    format!("commit-{number:016}.log")
}

pub(crate) fn number_of(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("commit-")?.strip_suffix(".log")?;
    (digits.len() == 16).then(|| digits.parse().ok()).flatten()
}

/// What is being filled is no commit file yet; one that is found at the start is of no use to anybody.
pub(crate) fn is_unfinished(name: &str) -> bool {
    name.starts_with("new-")
}

impl CommitFile {
    fn of(number: u64, size: u64, file: Arc<dyn DiskFile>) -> CommitFile {
        CommitFile {
            number,
            name: name_of(number),
            size,
            file,
            index: RwLock::default(),
        }
    }

    pub fn open(disk: &dyn Disk, number: u64) -> Result<CommitFile> {
        let name = name_of(number);
        let file = disk.open(&name).map_err(LogError::io("cannot open", &name))?;
        let size = file.len().map_err(LogError::io("cannot look at", &name))?;
        Ok(CommitFile::of(number, size, file))
    }

    /// A new file of zeros. Durable, name and all, when it is returned.
    pub fn make(disk: &dyn Disk, number: u64, size: u64) -> Result<CommitFile> {
        let (unfinished, name) = (format!("new-{number:016}"), name_of(number));
        let filled = || {
            let file = disk.create(&unfinished)?;
            let zeros = vec![0; FILL];
            let mut at = 0;
            while at < size {
                let piece = zeros.get(..(size - at) as usize).unwrap_or(&zeros);
                file.write_at(piece, at)?;
                at += piece.len() as u64;
            }
            file.sync()?;
            disk.rename(&unfinished, &name)?;
            disk.sync_names()?;
            Ok(file)
        };
        let file = filled().map_err(|error| {
            // What it had taken is given back; if that fails too, the next start does it.
            let _ = disk.remove(&unfinished);
            LogError::io("cannot make", &name)(error)
        })?;
        Ok(CommitFile::of(number, size, file))
    }

    pub fn write(&self, bytes: &[u8], at: u64) -> Result<()> {
        self.file
            .write_at(bytes, at)
            .map_err(LogError::io("cannot write", &self.name))
    }

    pub fn sync(&self) -> Result<()> {
        self.file.sync().map_err(LogError::io("cannot sync", &self.name))
    }

    /// As many bytes as there are, up to `len`.
    pub fn read(&self, at: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let found = self
            .file
            .read_at(&mut bytes, at)
            .map_err(LogError::io("cannot read", &self.name))?;
        bytes.truncate(found);
        Ok(bytes)
    }

    pub fn set_index(&self, index: FileIndex) {
        *self.index.write() = index;
    }

    pub fn add(&self, entries: impl Iterator<Item = Entry>) {
        let mut index = self.index.write();
        entries.for_each(|entry| index.push(entry));
    }

    /// Forgets the frames that are not part of the log after all.
    pub fn retain(&self, keep: impl Fn(&Entry) -> bool) {
        self.index.write().retain(keep);
    }

    pub fn frames(&self) -> usize {
        self.index.read().frames()
    }

    /// Frames of a partition that hold `from` or what follows, together about `bytes` of bodies, one at least.
    pub fn entries(&self, partition: PartitionId, from: Offset, bytes: usize) -> Vec<Entry> {
        let index = self.index.read();
        let mut sum = 0;
        let wanted = index.from(partition, from).iter().take_while(|entry| {
            let first = sum == 0;
            sum += entry.header.body_len as usize;
            first || sum <= bytes
        });
        wanted.copied().collect()
    }

    /// The body of a frame, as it was written or not at all.
    pub fn body(&self, entry: &Entry) -> Result<Bytes> {
        let body = self.read(entry.body_at, entry.header.body_len as usize)?;
        if body.len() != entry.header.body_len as usize || crc32c::crc32c(&body) != entry.header.body_crc {
            return Err(LogError::Corrupt {
                file: self.name.clone(),
                position: entry.body_at,
                expected: 0,
                found: format!("the body of a frame of partition {} is damaged", entry.header.partition),
            });
        }
        Ok(body.into())
    }

    /// Writes the index behind the last block, so that a start need not look at the blocks. Not synced: an index that
    /// did not make it is made anew.
    pub fn write_footer(&self, bounds: &Bounds) -> Result<()> {
        let bytes = footer::encode(&self.index.read(), bounds);
        self.write(&bytes, self.size - bytes.len() as u64)
    }
}
