//! One partition as its readers see it: what is committed, where it lies, and its newest frames in memory.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::commit_file::CommitFile;
use crate::durability::Durability;
use crate::error::{LogError, Result};
use crate::format::frame::FrameHeader;
use crate::ids::{Offset, PartitionId};
use crate::writer::group::Slot;

pub(crate) struct Partition {
    pub id: PartitionId,
    pub slot: Slot,
    pub durability: Durability,
    inner: Mutex<Inner>,
    grown: Notify,
}

/// What a partition holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    /// The oldest offset that can be read.
    pub first: Offset,
    /// The offset of the next record to be committed; everything before it can be read.
    pub next: Offset,
    /// Everything before it survives a power cut.
    pub synced: Offset,
}

#[derive(Default)]
struct Inner {
    bounds: Bounds,
    ranges: VecDeque<Range>,
    /// The newest frames, without a hole up to `bounds.next`.
    tail: VecDeque<Frame>,
}

/// The offsets of this partition that one file holds.
struct Range {
    file: Arc<CommitFile>,
    next: Offset,
}

/// A frame as it is on disk, its body checked.
#[derive(Clone, Debug)]
pub struct Frame {
    pub header: FrameHeader,
    pub body: Bytes,
}

impl Partition {
    pub fn new(id: PartitionId, slot: Slot, durability: Durability) -> Partition {
        Partition {
            id,
            slot,
            durability,
            inner: Mutex::default(),
            grown: Notify::new(),
        }
    }

    pub fn bounds(&self) -> Bounds {
        self.inner.lock().bounds
    }

    /// A frame was found on disk, or was committed just now and may be read; in the order of offsets.
    pub fn add(&self, file: &Arc<CommitFile>, header: &FrameHeader, body: Option<&Bytes>) {
        let mut inner = self.inner.lock();
        let next = header.next();
        inner.bounds.next = next;
        match inner.ranges.back_mut().filter(|range| range.file.number == file.number) {
            Some(range) => range.next = next,
            None => {
                if inner.ranges.is_empty() {
                    inner.bounds.first = header.base;
                }
                inner.ranges.push_back(Range {
                    file: file.clone(),
                    next,
                });
            }
        }
        if let Some(body) = body {
            inner.tail.push_back(Frame {
                header: *header,
                body: body.clone(),
            });
        }
        drop(inner);
        self.grown.notify_waiters();
    }

    /// Takes over what recovery has found of this partition, all of it synced.
    pub fn find_in(&self, files: &[Arc<CommitFile>]) {
        for file in files {
            for entry in file.entries(self.id, 0, usize::MAX) {
                self.add(file, &entry.header, None);
            }
        }
        self.set_synced(self.bounds().next);
    }

    pub fn set_synced(&self, synced: Offset) {
        self.inner.lock().bounds.synced = synced;
    }

    /// The oldest frame in memory is to be read from its file from now on.
    pub fn forget_oldest(&self) {
        self.inner.lock().tail.pop_front();
    }

    /// The frames that hold `from` and what follows it, as far as they are committed: about `bytes` of bodies, one
    /// frame at least. None if nothing is there yet. The first frame may begin before `from`.
    pub fn read(&self, from: Offset, bytes: usize) -> Result<Vec<Frame>> {
        let file = {
            let inner = self.inner.lock();
            let Bounds { first, next, .. } = inner.bounds;
            if from >= next {
                return Ok(Vec::new());
            }
            if from < first {
                return Err(LogError::Gap {
                    partition: self.id,
                    from,
                    to: first,
                });
            }
            if inner.tail.front().is_some_and(|frame| frame.header.base <= from) {
                return Ok(inner.newest(from, bytes));
            }
            let at = inner.ranges.partition_point(|range| range.next <= from);
            inner.ranges.get(at).map(|range| range.file.clone())
        };
        let Some(file) = file else {
            return Ok(Vec::new());
        };
        let entries = file.entries(self.id, from, bytes);
        let bounds = self.bounds();
        let committed = entries.iter().filter(|entry| entry.header.base < bounds.next);
        committed
            .map(|entry| {
                Ok(Frame {
                    header: entry.header,
                    body: file.body(entry)?,
                })
            })
            .collect()
    }

    /// Waits until there is something at `from`.
    pub async fn wait_for(&self, from: Offset) {
        loop {
            let grown = self.grown.notified();
            tokio::pin!(grown);
            grown.as_mut().enable();
            if self.bounds().next > from {
                return;
            }
            grown.await;
        }
    }
}

impl Inner {
    fn newest(&self, from: Offset, bytes: usize) -> Vec<Frame> {
        let start = self.tail.partition_point(|frame| frame.header.next() <= from);
        let mut sum = 0;
        let wanted = self.tail.iter().skip(start).take_while(|frame| {
            let first = sum == 0;
            sum += frame.body.len();
            first || sum <= bytes
        });
        wanted.cloned().collect()
    }
}
