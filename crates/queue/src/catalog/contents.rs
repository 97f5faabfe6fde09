//! What the records of the catalogue come to, also where some of them are lost.
//!
//! Frames go in, in their order, and the stretches between them that cannot be read any more; out come the queues, and the
//! marks under which a start may remove partitions. A name that is not there proves nothing behind a loss, so only marks name
//! what may go:
//!
//! | record | says | lost to damage |
//! |---|---|---|
//! | mark `making` | nothing was stored under the number yet | the queue's entry follows, or nothing was made |
//! | mark `copying` | what is under the number is an unfinished copy of what is elsewhere | as with `making` |
//! | mark `1` in a checkpoint of version 1 | either is not there: one being made, one being removed | as with `making` |
//! | entry of a queue | it is there; ends `making` and `copying` | such a mark before the loss counts no more |
//! | mark `removing`, in a frame of its own | the queue is removed, whatever entry says otherwise | the name goes with the next record |
//! | empty entry | the name is gone | the mark before it says so too |
//! | mark taken back, without an entry | no partition is left under the number | there are no partitions to be found |

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

/// Why partitions under a number may go at a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CleanupMark {
    /// The queue is being made: nothing was stored under its number.
    Making,
    /// Messages of a queue with another number are being copied here; they are still there.
    Copying,
    /// Version 1 was making the queue, or removing it.
    Unfinished,
    /// The queue was removed.
    Removing,
}

/// What version 1 wrote for a queue that was being made, and for one that was being removed.
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

/// What the catalogue says up to some record.
#[derive(Default)]
pub(super) struct CatalogContents {
    pub queues: BTreeMap<SmolStr, QueueEntry>,
    names: BTreeMap<u32, SmolStr>,
    pub marks: BTreeMap<u32, CleanupMark>,
    pub next_id: u32,
    /// The last that was given.
    pub epoch: u32,
    /// Since the last checkpoint.
    pub records: usize,
    /// Records that damage took.
    pub lost: u64,
    /// Numbers of queues that the frame at hand has put, and taken the names of.
    put: BTreeSet<u32>,
    unnamed: BTreeSet<u32>,
    /// That frame says what there is, not what has changed.
    is_checkpoint: bool,
}

impl CatalogContents {
    pub fn from(first_id: u32) -> CatalogContents {
        CatalogContents {
            next_id: first_id,
            ..CatalogContents::default()
        }
    }

    /// Reads the partition from its last checkpoint that is whole.
    pub fn read(&mut self, log: &dyn Log) -> Result<()> {
        let mut from = match log.last_checkpoint(CATALOG)? {
            Some(checkpoint) => checkpoint,
            // Only a checkpoint lets go of what stands before it.
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

    /// So many records are lost: a queue may have been made with any of them, under the next number.
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
        let name = std::str::from_utf8(key).map_err(|_| damaged("a queue has a name that is no text"))?;
        let text = std::str::from_utf8(value).map_err(|_| damaged("what is kept of a queue is no text"))?;
        if name == NEXT_ID {
            let next: u32 = text
                .parse()
                .map_err(|_| damaged("the number of the next queue is none"))?;
            self.next_id = self.next_id.max(next);
            return Ok(());
        }
        if name == MANY {
            let many: serde_json::Map<String, Value> =
                serde_json::from_str(text).map_err(|_| damaged("what is kept of many queues cannot be read"))?;
            for (name, entry) in many {
                self.apply(name.as_bytes(), entry.to_string().as_bytes())?;
            }
            return Ok(());
        }
        if name == EPOCH {
            let epoch: u32 = text.parse().map_err(|_| damaged("the epoch of leases is none"))?;
            self.epoch = self.epoch.max(epoch);
            return Ok(());
        }
        if let Some(id) = name.strip_prefix(MARK) {
            let id = id
                .parse()
                .map_err(|_| damaged("an unfinished queue has a number that is none"))?;
            self.apply_mark(id, text);
            return Ok(());
        }
        if text.is_empty() {
            let id = self.unname(name);
            self.unnamed.extend(id);
            return Ok(());
        }
        let entry = QueueEntry::from_json(text).ok_or_else(|| damaged("what is kept of a queue cannot be read"))?;
        self.put(SmolStr::new(name), entry);
        Ok(())
    }

    fn apply_mark(&mut self, id: u32, text: &str) {
        let mark = match text {
            "" => None,
            "making" => Some(CleanupMark::Making),
            "copying" => Some(CleanupMark::Copying),
            // Version 1 took a name away in the frame with the mark.
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

    /// The number that the name stood for.
    pub fn unname(&mut self, name: &str) -> Option<u32> {
        let id = self.queues.remove(name)?.id;
        self.names.remove(&id);
        Some(id)
    }
}
