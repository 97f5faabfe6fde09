//! The file `superblock` of a log: three slots, of which the newest counts. Two are written in turn and synced, so that one of
//! them is whole at any time: when the log is made, opened and closed, and before anything in a new commit file is acknowledged.
//! The third is written after each sync of a commit and not synced itself. A killed process leaves it as it was; after a power
//! cut it may be some seconds old, and says less than could be said.

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

/// Written and synced, in turn.
const SYNCED_SLOTS: u64 = 2;
const SLOTS: u64 = SYNCED_SLOTS + 1;
const FILE_BYTES: u64 = SLOTS * PAGE as u64;

/// What was read of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredSuperblock {
    /// The slot that counts; `None` if all are damaged.
    pub newest: Option<Superblock>,
    /// Positions of slots that cannot be read.
    pub damaged: Vec<u64>,
    /// A slot that a newer program wrote, and where.
    pub newer: Option<(u64, NewerVersion)>,
    /// The synced slot that is damaged or older than the other.
    older: u64,
}

/// The file of a log that is open.
pub(crate) struct SuperblockFile {
    place: SuperblockBacking,
    newest: Superblock,
    /// Of the synced slots, which comes next.
    turn: u64,
}

enum SuperblockBacking {
    File(Arc<dyn DiskFile>),
    /// There was no room to make it, which is tried again whenever it would be synced. Until then the log is like one of a version
    /// that had none, or has an older one, which says less than could be said.
    Pending(Arc<dyn Disk>),
}

/// `None` if there is no such file: the log is new, or was written by a program that had none.
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
    /// Takes the place of whatever file of this name there is. Durable when it returns.
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
            // What it had taken is given back; if that fails too, the next start does it.
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

    /// The same on a disk that may be full: that is no reason not to open a log from which space can be freed.
    pub fn make_if_room(disk: &Arc<dyn Disk>, slot: Superblock) -> Result<SuperblockFile> {
        match SuperblockFile::make(disk.as_ref(), slot) {
            Err(error) if is_for_room(&error) => {
                tracing::warn!(
                    %error,
                    "the disk is full: until some space is free, a start cannot tell whether the newest file of the log is whole"
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

    /// `None` if nothing of it can be read.
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

    /// Whatever is cut off or killed after this returns, this is what the log says of itself.
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

    /// The same for a process that is killed; a power cut may take it back.
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

/// Whether there was no room on the disk.
fn is_for_room(error: &LogError) -> bool {
    matches!(error, LogError::Io { error, .. } if is_full(error))
}
