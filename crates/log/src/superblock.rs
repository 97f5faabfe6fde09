//! The file `superblock` of a log has three slots, of which the newest is valid. Two are written alternately and
//! synced, so that one of them is always whole: when the log is created, opened and closed, and before anything in a
//! new commit file is acknowledged. The third is written after each sync of a commit and is not synced itself. It
//! survives a killed process; after a power cut it may be some seconds old, which makes it a lower bound.

use std::sync::Arc;

use crate::disk::{Disk, DiskFile};
use crate::error::{LogError, Result};
use crate::file;
use crate::file_pool::is_full;
use crate::format::PAGE;
use crate::format::newer::NewerVersion;
use crate::format::superblock::LEN;
pub(crate) use crate::format::superblock::Superblock;

pub(crate) const NAME: &str = "superblock";

/// Slots that are written alternately and synced.
const SYNCED_SLOTS: u64 = 2;
const SLOTS: u64 = SYNCED_SLOTS + 1;
const FILE_BYTES: u64 = SLOTS * PAGE as u64;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredSuperblock {
    /// The valid slot; `None` if all are damaged.
    pub newest: Option<Superblock>,
    /// Positions of unreadable slots.
    pub damaged: Vec<u64>,
    /// Position and version of a slot that a newer program wrote.
    pub newer: Option<(u64, NewerVersion)>,
    /// The index of the synced slot that is damaged or older than the other.
    older: u64,
}

/// The superblock file of an open log.
pub(crate) struct SuperblockFile {
    place: SuperblockBacking,
    newest: Superblock,
    /// The synced slot to write next, modulo their number.
    turn: u64,
}

enum SuperblockBacking {
    File(Arc<dyn DiskFile>),
    /// There was no space to create the file; every store retries it. Until then the log has no superblock, or an older
    /// one, which is a lower bound.
    Pending(Arc<dyn Disk>),
}

/// `None` if there is no such file: the log is new, or was written by a program without superblocks.
pub(crate) fn read(disk: &dyn Disk, names: &[String]) -> Result<Option<StoredSuperblock>> {
    if !names.iter().any(|name| name == NAME) {
        return Ok(None);
    }
    let file = disk.open(NAME).map_err(LogError::io("cannot open", NAME))?;
    let mut found = StoredSuperblock::default();
    let mut generations = Vec::with_capacity(SLOTS as usize);
    for at in (0..SLOTS).map(|slot| slot * PAGE as u64) {
        let mut bytes = vec![0; LEN];
        let len = file
            .read_at(&mut bytes, at)
            .map_err(LogError::io("cannot read", NAME))?;
        bytes.truncate(len);
        found.newer = found.newer.or_else(|| Some((at, Superblock::newer(&bytes)?)));
        let slot = Superblock::decode(&bytes);
        generations.push(slot.map(|slot| slot.generation));
        found.newest = found.newest.into_iter().chain(slot).max_by_key(|slot| slot.generation);
        if slot.is_none() {
            found.damaged.push(at);
        }
    }
    found.older = u64::from(generations.first() > generations.get(1));
    Ok(Some(found))
}

impl SuperblockFile {
    /// Creates the file, replacing an existing one. Durable when it returns.
    pub fn make(disk: &dyn Disk, slot: Superblock) -> Result<SuperblockFile> {
        let unfinished = "new-superblock";
        if disk
            .names()
            .is_ok_and(|names| names.iter().any(|name| name == unfinished))
        {
            disk.remove(unfinished)
                .map_err(LogError::io("cannot remove", unfinished))?;
        }
        let file = disk.create(unfinished).map_err(LogError::io("cannot make", NAME))?;
        let mut bytes = Vec::with_capacity(FILE_BYTES as usize);
        for n in 1..=SLOTS as usize {
            bytes.extend(slot.encode());
            bytes.resize(n * PAGE, 0);
        }
        let written = file.write_at(&bytes, 0).and_then(|()| file.sync());
        if let Err(error) = written {
            // Free the space; if that fails too, the next start does it.
            let _ = disk.remove(unfinished);
            return Err(LogError::fatal("cannot write", NAME)(error));
        }
        file::rename(disk, unfinished, NAME)?;
        Ok(SuperblockFile {
            place: SuperblockBacking::File(file),
            newest: slot,
            turn: 0,
        })
    }

    /// Like `make`, but tolerates a full disk, which must not prevent opening a log from which space can be freed.
    pub fn make_if_room(disk: &Arc<dyn Disk>, slot: Superblock) -> Result<SuperblockFile> {
        match SuperblockFile::make(disk.as_ref(), slot) {
            Err(error) if is_for_room(&error) => {
                tracing::warn!(
                    %error,
                    "the disk is full: until space is freed, a start cannot tell whether the newest file of the log is \
                     complete"
                );
                Ok(SuperblockFile {
                    place: SuperblockBacking::Pending(disk.clone()),
                    newest: slot,
                    turn: 0,
                })
            }
            made => made,
        }
    }

    /// `None` if no slot can be read.
    pub fn open(disk: &dyn Disk, found: &StoredSuperblock) -> Result<Option<SuperblockFile>> {
        let Some(newest) = found.newest else {
            return Ok(None);
        };
        let file = disk.open(NAME).map_err(LogError::io("cannot open", NAME))?;
        Ok(Some(SuperblockFile {
            place: SuperblockBacking::File(file),
            newest,
            turn: found.older,
        }))
    }

    pub fn newest(&self) -> &Superblock {
        &self.newest
    }

    /// Stores a slot so that it survives a power cut.
    pub fn store(&mut self, slot: Superblock) -> Result<()> {
        let slot = self.next(slot);
        let file = match &self.place {
            SuperblockBacking::File(file) => file,
            SuperblockBacking::Pending(disk) => {
                match SuperblockFile::make(disk.as_ref(), slot) {
                    Err(error) if is_for_room(&error) => self.newest = slot,
                    made => *self = made?,
                }
                return Ok(());
            }
        };
        let at = self.turn % SYNCED_SLOTS * PAGE as u64;
        let written = file.write_and_sync(&slot.encode(), at);
        written.map_err(LogError::io("cannot write and sync", NAME))?;
        (self.newest, self.turn) = (slot, self.turn + 1);
        Ok(())
    }

    /// Stores a slot so that it survives a killed process; a power cut may lose it.
    pub fn note(&mut self, slot: Superblock) -> Result<()> {
        let slot = self.next(slot);
        if let SuperblockBacking::File(file) = &self.place {
            let written = file.write_at(&slot.encode(), SYNCED_SLOTS * PAGE as u64);
            written.map_err(LogError::io("cannot write", NAME))?;
        }
        self.newest = slot;
        Ok(())
    }

    fn next(&self, slot: Superblock) -> Superblock {
        Superblock {
            generation: self.newest.generation + 1,
            ..slot
        }
    }
}

/// Whether the disk was full.
fn is_for_room(error: &LogError) -> bool {
    matches!(error, LogError::Io { error, .. } if is_full(error))
}
