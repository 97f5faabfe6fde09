//! Syncing, and how the synced sequence is recorded outside of the blocks: in the superblock and in mark blocks.

use thalweg_kit::clock;

use super::WriterCore;
use crate::error::{LogError, Result};
use crate::ids::Micros;
use crate::superblock::Superblock;
use crate::writer::group::CommitGroup;

impl WriterCore {
    /// Syncs everything written so far. After an error the log refuses all writes.
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
        let began = clock::now();
        self.files.current().sync()?;
        self.measures.sync_us.observe_time(began.elapsed());
        self.synced = self.next.saturating_sub(1);
        self.note_in_superblock()
    }

    /// Records the synced sequence in the superblock before it is acknowledged. The first entry for a file is stored
    /// durably: once the superblock names a file, a start detects that the file is missing.
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

    /// Records the synced sequence durably while the writer is idle.
    pub fn rest(&mut self, now: Micros) {
        let slot = self.superblock_slot();
        let stored = self.mark(now).and_then(|()| self.superblock.store(slot));
        if let Err(error) = stored {
            self.poison.get_or_insert_with(|| error.to_string().into());
        }
    }

    /// The last writes before closing: everything is synced, and a start must find all of it.
    pub fn close(&mut self, now: Micros) {
        // A failure poisons the log, and the next start checks what is on the disk.
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

    /// Writes a block without frames that names the last synced sequence, so that recovery knows which blocks must be
    /// whole.
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
        // If a file has no room for it, its index will name the sequence when the file is closed.
        match self.files.place_of_changes(group.block_len(), 0) {
            Some(place) => self.write(group, &place, now, false).map(drop),
            None => Ok(()),
        }
    }
}
