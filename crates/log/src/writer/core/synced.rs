//! What the writer syncs, and what it says of that outside of the blocks themselves: in the superblock and in marks.

use std::time::Instant;

use super::WriterCore;
use crate::error::{LogError, Result};
use crate::ids::Micros;
use crate::superblock::Superblock;
use crate::writer::group::CommitGroup;

impl WriterCore {
    /// Everything written so far is on disk when this returns. After an error nothing more is taken.
    pub fn sync(&mut self) -> Result<()> {
        if let Some(cause) = &self.poison {
            return Err(LogError::Poisoned { cause: cause.clone() });
        }
        let synced = self.sync_blocks();
        match &synced {
            Ok(()) => self.note_synced(),
            Err(error) => self.poison = Some(error.to_string().into()),
        }
        synced
    }

    fn sync_blocks(&mut self) -> Result<()> {
        let began = Instant::now();
        self.files.current().sync()?;
        self.measures.sync_us.observe_time(began.elapsed());
        self.synced = self.next.saturating_sub(1);
        self.note_in_superblock()
    }

    /// Says how far the log is synced, before anybody is told so. What is the first of a file is said for good: of a file that the
    /// superblock names something is missed if it is gone.
    pub(super) fn note_in_superblock(&mut self) -> Result<()> {
        let first = self.files.first();
        let newest = self.superblock.newest();
        if self.synced < first || self.synced <= newest.synced {
            return Ok(());
        }
        let enters = newest.synced < first || newest.file != self.files.current().number;
        let slot = self.superblock_slot();
        match enters {
            true => self.superblock.store(slot),
            false => self.superblock.note(slot),
        }
    }

    fn superblock_slot(&self) -> Superblock {
        let file = self.files.current();
        Superblock {
            log_id: self.log_id,
            file: file.number,
            file_bytes: file.size,
            first: self.files.first(),
            synced: self.synced,
            offsets: self.offsets,
            ..Superblock::default()
        }
    }

    /// There is time to say how far the log is synced so that a power cut does not take it back.
    pub fn rest(&mut self, now: Micros) {
        let slot = self.superblock_slot();
        let stored = self.mark(now).and_then(|()| self.superblock.store(slot));
        if let Err(error) = stored {
            self.poison.get_or_insert_with(|| error.to_string().into());
        }
    }

    /// The last that is written: everything is synced, and what a start finds must be all of it.
    pub fn close(&mut self, now: Micros) {
        // Failing, each of them poisons the log, and a start looks at what is there.
        let synced = self.sync().and_then(|()| match self.has_news() {
            true => self.mark(now).and_then(|()| self.sync()),
            false => Ok(()),
        });
        let closed = Superblock {
            closed: true,
            ..self.superblock_slot()
        };
        if let Err(error) = synced.and_then(|()| self.superblock.store(closed)) {
            self.poison.get_or_insert_with(|| error.to_string().into());
        }
    }

    /// A block without frames, which names the last synced sequence: so that recovery knows how far to insist.
    pub fn mark(&mut self, now: Micros) -> Result<()> {
        let written = self.write_mark(now);
        if let Err(error) = &written {
            self.give_up(&[], error);
        }
        written
    }

    fn write_mark(&mut self, now: Micros) -> Result<()> {
        if let Some(cause) = &self.poison {
            return Err(LogError::Poisoned { cause: cause.clone() });
        }
        let group = CommitGroup::default();
        // A file without room for it has its index to say it, once it is closed.
        match self.files.place_of_changes(group.block_len(), 0) {
            Some(place) => self.write(group, &place, now, false).map(drop),
            None => Ok(()),
        }
    }
}
