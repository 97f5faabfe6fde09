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
/// After this fraction of the first file spare files are made. The rest of it is written meanwhile.
const UNSPARED_PART: u64 = 4;
/// This fraction of each file is left to settles and changes of partitions as long as there is no spare file.
const SETTLES_PART: u64 = 4;

pub(crate) struct CommitFiles {
    current: Arc<LogFile>,
    /// The end of the last block in the current file; `None` if the file is closed.
    end: Option<u64>,
    first: Sequence,
    log_id: u64,
    pool: Arc<FilePool>,
    /// Whether the pool has been told that the writer has come so far that spare files are needed.
    is_spared: bool,
    /// Whether a spare file is ready, and messages may therefore fill the current file.
    may_fill: bool,
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
        let mut files = CommitFiles {
            current,
            end,
            first,
            log_id,
            pool,
            is_spared: false,
            may_fill: false,
        };
        files.need_spares();
        files
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

    /// Tells the pool once that a part of the current file is written, or all of it.
    fn need_spares(&mut self) {
        let is_begun = self.end.is_none_or(|end| end >= self.current.size / UNSPARED_PART);
        if is_begun && !std::mem::replace(&mut self.is_spared, true) {
            self.pool.need_spares();
        }
    }

    /// Waits for a spare file if without one this block would take what is left to settles. A disk that becomes full
    /// before there is a spare file is found out here.
    pub fn leave_to_settles(&mut self, purpose: FilePurpose, place: &BlockPosition, len: usize) -> Result<()> {
        let left = self.current.size / SETTLES_PART;
        if purpose != FilePurpose::Messages || self.may_fill || place.at + len as u64 + left <= self.current.size {
            return Ok(());
        }
        self.pool.wait_for_spare(purpose)?;
        self.may_fill = true;
        Ok(())
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
        // Messages have left a spare file there.
        self.may_fill = purpose == FilePurpose::Messages;
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
        self.need_spares();
        place.file.add(frames.iter().map(|frame| FrameEntry {
            header: frame.header,
            body_at: place.at + u64::from(frame.body_at),
        }));
    }
}
