//! The row of commit files of one disk: the one that is written, and those made ready for when it is full.

use std::collections::VecDeque;
use std::sync::Arc;

use super::group::BlockFrame;
use crate::commit_file::CommitFile;
use crate::disk::Disk;
use crate::error::{LogError, Result};
use crate::format::footer::{self, Bounds};
use crate::ids::Sequence;
use crate::index::Entry;

/// Where new commit files come from. They have the numbers behind those in use, in order.
pub(crate) trait Spares: Send {
    /// The next one; waits for it if it is being made. `DiskFull` if there is no room for one.
    fn take(&mut self) -> Result<CommitFile>;
}

/// Made when it is needed, by whoever needs it. For tests and simulation, where nothing waits.
pub(crate) struct MadeAtOnce {
    pub disk: Arc<dyn Disk>,
    pub ready: VecDeque<CommitFile>,
    pub next_number: u64,
    pub size: u64,
}

impl Spares for MadeAtOnce {
    fn take(&mut self) -> Result<CommitFile> {
        if let Some(file) = self.ready.pop_front() {
            return Ok(file);
        }
        let file = CommitFile::make(self.disk.as_ref(), self.next_number, self.size)?;
        self.next_number += 1;
        Ok(file)
    }
}

pub(crate) struct Files {
    current: Arc<CommitFile>,
    /// Behind the last block of the current file; `None` if it takes nothing more and has its index.
    end: Option<u64>,
    first: Sequence,
    log_id: u64,
    spares: Box<dyn Spares>,
}

/// Where a block goes.
pub(crate) struct Place {
    pub file: Arc<CommitFile>,
    pub at: u64,
}

impl Files {
    /// Goes on behind the last block that was found. `first` is the first sequence of `current`.
    pub fn new(
        current: Arc<CommitFile>,
        end: Option<u64>,
        first: Sequence,
        log_id: u64,
        spares: Box<dyn Spares>,
    ) -> Files {
        Files {
            current,
            end,
            first,
            log_id,
            spares,
        }
    }

    pub fn current(&self) -> &Arc<CommitFile> {
        &self.current
    }

    /// Room for a block of `len` bytes and `frames` frames. The current file is left behind when it has none, after a
    /// sync: so all blocks before those of the current file are on disk, whatever the durability asked for.
    pub fn place(&mut self, len: usize, frames: usize, next: Sequence, synced: &mut Sequence) -> Result<Place> {
        if !self.fits(len, frames) {
            let ready = self.spares.take()?;
            self.seal(next, synced)?;
            (self.current, self.end, self.first) = (Arc::new(ready), Some(0), next);
        }
        match self.end.filter(|_| self.fits(len, frames)) {
            Some(at) => Ok(Place {
                file: self.current.clone(),
                at,
            }),
            None => Err(LogError::TooLarge {
                what: "a block",
                size: len,
                limit: self.current.size as usize,
            }),
        }
    }

    fn fits(&self, len: usize, frames: usize) -> bool {
        let footer = footer::footer_len(self.current.frames() + frames);
        self.end
            .is_some_and(|end| end + len as u64 + footer <= self.current.size)
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
        self.current.write_footer(&Bounds {
            file: self.current.number,
            first: self.first,
            last,
            synced: *synced,
            end,
            log_id: self.log_id,
        })
    }

    /// The block was written where it was placed.
    pub fn written(&mut self, place: &Place, len: usize, frames: &[BlockFrame]) {
        self.end = Some(place.at + len as u64);
        place.file.add(frames.iter().map(|frame| Entry {
            header: frame.header,
            body_at: place.at + u64::from(frame.body_at),
        }));
    }
}
