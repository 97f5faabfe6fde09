//! Replays the records of the catalogue, also when some of them are lost.
//!
//! The input is the frames in order, and the unreadable gaps between them. The output is the queues, and the marks that
//! allow a start to remove partitions. After a loss, a missing name proves nothing, so only a mark allows removal:
//!
//! | record | meaning | if it is lost to damage |
//! |---|---|---|
//! | mark `making` | nothing was stored under the number yet | the queue's entry follows, or nothing was created |
//! | mark `copying` | the number has an unfinished copy of data stored elsewhere | as with `making` |
//! | mark `1` in a checkpoint of version 1 | the queue was being created or removed | as with `making` |
//! | entry of a queue | the queue exists; ends `making` and `copying` | such a mark before the loss is ignored |
//! | mark `removing`, in its own frame | the queue is removed, even with an entry | the next record removes the name |
//! | empty entry | the name is removed | the mark before it means the same |
//! | mark removed, without an entry | no partition is left under the number | no partitions are found |

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use smol_str::SmolStr;
use thalweg_log::Offset;
use thalweg_log::format::frame::FrameKind;
use thalweg_log::format::record::records;
use thalweg_log::{Log, LogError, ReadOptions};

use super::{CATALOG, EPOCH, MANY, MARK, NEXT_ID, NUMBERS, QueueEntry, damaged};
use crate::error::Result;

const READ_BYTES: usize = 1 << 20;

/// Why a start may remove the partitions of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CleanupMark {
    /// The queue is being created: nothing was stored under its number.
    Making,
    /// Messages are being copied here from a queue with another number, which still has them.
    Copying,
    /// Version 1 was creating or removing the queue.
    Unfinished,
    /// The queue was removed.
    Removing,
}

/// The mark that version 1 wrote for a queue being created and for one being removed.
const UNFINISHED: &str = "1";

impl CleanupMark {
    pub fn text(mark: Option<CleanupMark>) -> &'static str {
        match mark {
            None => "",
            Some(CleanupMark::Making) => "making",
            Some(CleanupMark::Copying) => "copying",
            Some(CleanupMark::Unfinished) => UNFINISHED,
            Some(CleanupMark::Removing) => "removing",
        }
    }
}

/// The state of the catalogue up to some record.
#[derive(Default)]
pub(super) struct CatalogContents {
    pub queues: BTreeMap<SmolStr, QueueEntry>,
    names: BTreeMap<u32, SmolStr>,
    pub marks: BTreeMap<u32, CleanupMark>,
    pub next_id: u32,
    /// The last epoch used.
    pub epoch: u32,
    /// Since the last checkpoint.
    pub records: usize,
    /// Records lost to damage.
    pub lost: u64,
    /// Numbers of queues that the current frame has put, and whose names it has removed.
    put: BTreeSet<u32>,
    unnamed: BTreeSet<u32>,
    /// The current frame is a full snapshot, not a change.
    is_checkpoint: bool,
}

impl CatalogContents {
    pub fn from(first_id: u32) -> CatalogContents {
        CatalogContents {
            next_id: first_id,
            ..CatalogContents::default()
        }
    }

    /// Reads the partition from its last intact checkpoint.
    pub fn read(&mut self, log: &dyn Log) -> Result<()> {
        let mut from = match log.last_checkpoint(CATALOG)? {
            Some(checkpoint) => checkpoint,
            // Only a checkpoint releases the records before it.
            None => {
                let first = log.bounds(CATALOG)?.first;
                self.lose(first);
                first
            }
        };
        loop {
            let want = ReadOptions {
                bytes: READ_BYTES,
                synced: false,
            };
            let frames = match log.read(CATALOG, from, want) {
                Err(LogError::Gap { to, .. }) => {
                    self.lose(to.saturating_sub(from));
                    from = to;
                    continue;
                }
                frames => frames?,
            };
            if frames.is_empty() {
                return Ok(());
            }
            for frame in &frames {
                let begins = match frame.header.kind {
                    FrameKind::Gap => frame.header.next(),
                    _ => frame.header.base,
                };
                self.lose(begins.saturating_sub(from));
                self.take_frame(frame.header.kind, &frame.body)?;
                from = frame.header.next();
            }
        }
    }

    /// Accounts for lost records: each of them may have created a queue, which used the next number.
    fn lose(&mut self, count: Offset) {
        if count == 0 {
            return;
        }
        self.lost = self.lost.saturating_add(count);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.next_id = self.next_id.saturating_add(count).min(NUMBERS / 2).max(self.next_id);
        self.epoch = self.epoch.saturating_add(count);
        self.marks.retain(|_, mark| *mark == CleanupMark::Removing);
    }

    fn take_frame(&mut self, kind: FrameKind, body: &[u8]) -> Result<()> {
        self.is_checkpoint = kind == FrameKind::Checkpoint;
        self.put.clear();
        self.unnamed.clear();
        for record in records(body) {
            let record = record.map_err(|_| damaged("a record of the catalogue of queues cannot be read"))?;
            self.apply(record.key.unwrap_or_default(), record.value)?;
        }
        Ok(())
    }

    fn apply(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.records += 1;
        let name = std::str::from_utf8(key).map_err(|_| damaged("the name of a queue is not UTF-8"))?;
        let text = std::str::from_utf8(value).map_err(|_| damaged("the entry of a queue is not UTF-8"))?;
        if name == NEXT_ID {
            let next: u32 = text
                .parse()
                .map_err(|_| damaged("the number of the next queue is invalid"))?;
            self.next_id = self.next_id.max(next);
            return Ok(());
        }
        if name == MANY {
            let many: serde_json::Map<String, Value> =
                serde_json::from_str(text).map_err(|_| damaged("the entries of many queues cannot be read"))?;
            for (name, entry) in many {
                self.apply(name.as_bytes(), entry.to_string().as_bytes())?;
            }
            return Ok(());
        }
        if name == EPOCH {
            let epoch: u32 = text.parse().map_err(|_| damaged("the epoch of leases is invalid"))?;
            self.epoch = self.epoch.max(epoch);
            return Ok(());
        }
        if let Some(id) = name.strip_prefix(MARK) {
            let id = id
                .parse()
                .map_err(|_| damaged("an unfinished queue has an invalid number"))?;
            self.apply_mark(id, text);
            return Ok(());
        }
        if text.is_empty() {
            let id = self.unname(name);
            self.unnamed.extend(id);
            return Ok(());
        }
        let entry = QueueEntry::from_json(text).ok_or_else(|| damaged("the entry of a queue cannot be read"))?;
        self.put(SmolStr::new(name), entry);
        Ok(())
    }

    fn apply_mark(&mut self, id: u32, text: &str) {
        let mark = match text {
            "" => None,
            "making" => Some(CleanupMark::Making),
            "copying" => Some(CleanupMark::Copying),
            // Version 1 removed the name in the same frame as the mark.
            UNFINISHED if self.unnamed.contains(&id) => Some(CleanupMark::Removing),
            UNFINISHED if self.is_checkpoint => Some(CleanupMark::Unfinished),
            UNFINISHED => Some(CleanupMark::Making),
            _ => Some(CleanupMark::Removing),
        };
        match mark {
            Some(mark) => self.marks.insert(id, mark),
            None => self.marks.remove(&id),
        };
        let is_over = mark == Some(CleanupMark::Removing) || (mark.is_none() && !self.put.contains(&id));
        if is_over && let Some(name) = self.names.get(&id).cloned() {
            self.unname(&name);
        }
    }

    pub fn put(&mut self, name: SmolStr, entry: QueueEntry) {
        let id = entry.id;
        self.next_id = self.next_id.max(id.saturating_add(1));
        self.marks.remove(&id);
        self.put.insert(id);
        self.unname(&name);
        self.names.insert(id, name.clone());
        self.queues.insert(name, entry);
    }

    /// Removes the name and returns the number of its queue.
    pub fn unname(&mut self, name: &str) -> Option<u32> {
        let id = self.queues.remove(name)?.id;
        self.names.remove(&id);
        Some(id)
    }
}
