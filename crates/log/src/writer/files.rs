//! The commit files of one disk as the writer uses them: the current file, and the next one when it is full.

use std::sync::Arc;

use super::group::BlockFrame;
use crate::error::{LogError, Result};
use crate::file::LogFile;
use crate::file_pool::{FilePool, FilePurpose};
use crate::format::PAGE;
use crate::format::footer::{self, FileKind, TrailerFields};
use crate::ids::Sequence;
use crate::index::FrameEntry;

/// This fraction of each file is reserved for changes of partitions.
const KEPT_PART: u64 = 64;

pub(crate) struct CommitFiles {
    current: Arc<LogFile>,
    /// The end of the last block in the current file; `None` if the file is closed.
    end: Option<u64>,
    first: Sequence,
    log_id: u64,
    pool: Arc<FilePool>,
}

/// The position of a block.
pub(crate) struct BlockPosition {
    pub file: Arc<LogFile>,
    pub at: u64,
}

impl CommitFiles {
    /// Continues after the last block that was found. `first` is the first sequence of `current`.
    pub fn new(
        current: Arc<LogFile>,
        end: Option<u64>,
        first: Sequence,
        log_id: u64,
        pool: Arc<FilePool>,
    ) -> CommitFiles {
        CommitFiles {
            current,
            end,
            first,
            log_id,
            pool,
        }
    }

    pub fn current(&self) -> &Arc<LogFile> {
        &self.current
    }

    /// The sequence of the first block of the current file, whether or not it has been written.
    pub fn first(&self) -> Sequence {
        self.first
    }

    /// Whether the current file must not be written any more.
    pub fn is_retired(&self) -> bool {
        self.pool.is_retired(self.current.number)
    }

    /// Whether the current file is empty.
    pub fn is_fresh(&self) -> bool {
        self.end == Some(0)
    }

    /// Signals that a partition has released a file.
    pub fn freed(&self) {
        self.pool.wake();
    }

    /// The position for a block of this size; `None` if the file is full.
    pub fn place(&self, len: usize, frames: usize) -> Option<BlockPosition> {
        self.place_within(len, frames, self.current.size.saturating_sub(self.kept()))
    }

    /// Like `place`, but may use the reserve for changes of partitions, which make other files free when no new one can
    /// be created.
    pub fn place_of_changes(&self, len: usize, frames: usize) -> Option<BlockPosition> {
        // The table snapshot, which comes first, needs a file that is not full.
        self.place_within(len, frames, self.current.size)
            .filter(|place| place.at > 0)
    }

    fn place_within(&self, len: usize, frames: usize, size: u64) -> Option<BlockPosition> {
        let footer = self.footer_with(frames);
        let at = self.end.filter(|end| end + len as u64 + footer <= size)?;
        Some(BlockPosition {
            file: self.current.clone(),
            at,
        })
    }

    fn kept(&self) -> u64 {
        (self.current.size / KEPT_PART).max(PAGE as u64)
    }

    /// The size of the index at the end of the file with `frames` more frames.
    fn footer_with(&self, frames: usize) -> u64 {
        let (known, partitions) = self.current.counts();
        footer::footer_len(known + frames, partitions + frames)
    }

    /// Switches to the next file. The full file is synced and gets its index. `next` is the sequence of the first block
    /// in the new file; `synced` is raised.
    pub fn roll(&mut self, purpose: FilePurpose, next: Sequence, synced: &mut Sequence) -> Result<()> {
        let ready = self.pool.take(purpose)?;
        self.seal(next, synced)?;
        let full = std::mem::replace(&mut self.current, Arc::new(ready));
        (self.end, self.first) = (Some(0), next);
        self.pool.seal(full);
        Ok(())
    }

    /// The error for a block that does not fit into the rest of the current file.
    pub fn too_large(&self, len: usize, frames: usize) -> LogError {
        let taken = self.kept() + self.footer_with(frames) + self.end.unwrap_or(0);
        LogError::TooLarge {
            what: "a block",
            size: len,
            limit: self.current.size.saturating_sub(taken) as usize,
        }
    }

    fn seal(&self, next: Sequence, synced: &mut Sequence) -> Result<()> {
        let last = next.saturating_sub(1);
        if *synced < last {
            self.current.sync()?;
            *synced = last;
        }
        let Some(end) = self.end.filter(|end| *end > 0) else {
            return Ok(());
        };
        self.current.write_footer(&TrailerFields {
            kind: FileKind::Commit,
            file: self.current.number,
            first: self.first,
            last,
            synced: *synced,
            end,
            log_id: self.log_id,
        })
    }

    /// Records that the block was written at its position.
    pub fn written(&mut self, place: &BlockPosition, len: usize, frames: &[BlockFrame]) {
        self.end = Some(place.at + len as u64);
        place.file.add(frames.iter().map(|frame| FrameEntry {
            header: frame.header,
            body_at: place.at + u64::from(frame.body_at),
        }));
    }
}
