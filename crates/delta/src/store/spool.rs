//! Local copies of files of an object store.
//!
//! A merge reads every byte of its inputs, but not in file order, and rollups read the same files repeatedly. So files
//! are copied once, sequentially and a piece at a time, and stay until others need the space. Rejected option: read
//! ranges on demand. It needs a request per page of each column, and transfers the same bytes in the end.
//! Copies use at most `lake.spool`, and leave enough disk space free for the log. They can always be fetched again:
//! each process has its own folder for them, which is removed with the process, and commands beside it have theirs.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use object_store::{ObjectStore, ObjectStoreExt as _};
use parking_lot::Mutex;
use thalweg_kit::{WorkFolder, files};

use super::fault::generic;
use super::rate_limiter::RateLimiter;
use super::{DiskFault, StorePath};

/// The size of reads and writes. It meets the minimum part size of object stores (5 MiB on S3).
pub const PART_BYTES: usize = 8 << 20;

/// See the module.
#[derive(Debug)]
pub struct Spool {
    /// The parent of the folders of all processes.
    parent: PathBuf,
    /// The folder of this process, created on first use.
    own: OnceLock<WorkFolder>,
    making_own: Mutex<()>,
    /// The limit of all copies, in bytes.
    limit: u64,
    /// Disk space that stays free, in bytes.
    free_min: u64,
    state: Mutex<SpoolState>,
}

#[derive(Debug, Default)]
struct SpoolState {
    /// By their path in the folder.
    files: HashMap<String, SpooledFile>,
    /// Includes unfinished copies.
    used: u64,
    clock: u64,
}

#[derive(Debug)]
struct SpooledFile {
    bytes: u64,
    last_used: u64,
    readers: usize,
}

/// A file that can be read on this machine while this exists.
#[derive(Debug)]
pub struct LocalFile {
    path: PathBuf,
    /// Pins the copy.
    _reader: Option<SpoolPin>,
}

impl LocalFile {
    /// A file that is not a copy.
    pub fn own(path: PathBuf) -> LocalFile {
        LocalFile { path, _reader: None }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Keeps a copy from being evicted.
#[derive(Debug)]
struct SpoolPin {
    spool: Arc<Spool>,
    name: String,
}

impl Drop for SpoolPin {
    fn drop(&mut self) {
        if let Some(copy) = self.spool.state.lock().files.get_mut(&self.name) {
            copy.readers = copy.readers.saturating_sub(1);
        }
    }
}

/// Space reserved for an unfinished copy. Dropping it removes the temporary file.
struct SpoolReservation<'a> {
    spool: &'a Spool,
    bytes: u64,
    staged: PathBuf,
}

impl Drop for SpoolReservation<'_> {
    fn drop(&mut self) {
        self.spool.state.lock().used -= self.bytes;
        // A finished copy was renamed, so this does nothing.
        let _ = std::fs::remove_file(&self.staged);
    }
}

impl Spool {
    /// `parent` is created with the first copy.
    pub fn new(parent: &Path, limit: u64, free_min: u64) -> Spool {
        Spool {
            parent: parent.to_owned(),
            own: OnceLock::new(),
            making_own: Mutex::default(),
            limit,
            free_min,
            state: Mutex::default(),
        }
    }

    /// The folder of the copies; before the first copy, its parent.
    pub fn folder(&self) -> &Path {
        self.own.get().map_or(&self.parent, WorkFolder::path)
    }

    /// The folder of this process, created if it is missing. Removes the folders of processes that have ended.
    fn own_folder(&self) -> object_store::Result<&Path> {
        let _one_at_a_time = self.making_own.lock();
        if self.own.get().is_none() {
            WorkFolder::sweep(&self.parent);
            let made = WorkFolder::new(&self.parent);
            let made = made.map_err(|error| generic(DiskFault::io("create", &self.parent, error)))?;
            let _ = self.own.set(made);
        }
        Ok(self.folder())
    }

    /// The limit for the inputs of one job, in bytes: its outputs need as much.
    pub fn room(&self) -> u64 {
        self.limit / 2
    }

    /// Fetches a copy of a file of this size. The name must identify the content for good.
    pub async fn fetch(
        self: &Arc<Spool>,
        store: &dyn ObjectStore,
        from: &StorePath,
        name: &str,
        bytes: u64,
        pace: &RateLimiter,
    ) -> object_store::Result<LocalFile> {
        if let Some(known) = self.known(name) {
            return Ok(known);
        }
        let path = self.own_folder()?.join(name);
        let reserved = self.reserve(&path, bytes)?;
        let written = |action, error| generic(DiskFault::io(action, &reserved.staged, error));
        let mut file = create(&reserved.staged).map_err(|error| written("create", error))?;
        let mut begin = 0;
        while begin < bytes {
            let end = bytes.min(begin + PART_BYTES as u64);
            let piece = store.get_range(from, begin..end).await?;
            if piece.len() as u64 != end - begin {
                let torn = std::io::Error::other("it is shorter than its table states");
                return Err(generic(DiskFault::io("copy", &path, torn)));
            }
            tokio::time::sleep(pace.pause(piece.len())).await;
            file.write_all(&piece).map_err(|error| written("write", error))?;
            begin = end;
        }
        std::fs::rename(&reserved.staged, &path).map_err(|error| written("name", error))?;
        Ok(self.add(name, bytes))
    }

    /// Creates a file that is written here, then uploaded, and stays as a copy.
    pub fn begin(self: &Arc<Spool>, name: &str) -> object_store::Result<SpoolWriter> {
        let path = self.own_folder()?.join(name);
        self.reserve(&path, 0)?;
        let file = create(&path).map_err(|error| generic(DiskFault::io("create", &path, error)))?;
        Ok(SpoolWriter {
            local: self.add(name, 0),
            spool: self.clone(),
            name: name.to_owned(),
            file,
            is_kept: false,
        })
    }

    fn known(self: &Arc<Spool>, name: &str) -> Option<LocalFile> {
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        let copy = state.files.get_mut(name)?;
        copy.last_used = now;
        copy.readers += 1;
        drop(state);
        Some(self.read(name))
    }

    fn add(self: &Arc<Spool>, name: &str, bytes: u64) -> LocalFile {
        let mut state = self.state.lock();
        state.clock += 1;
        state.used += bytes;
        let copy = SpooledFile {
            bytes,
            last_used: state.clock,
            readers: 1,
        };
        state.files.insert(name.to_owned(), copy);
        drop(state);
        self.read(name)
    }

    fn read(self: &Arc<Spool>, name: &str) -> LocalFile {
        LocalFile {
            path: self.folder().join(name),
            _reader: Some(SpoolPin {
                spool: self.clone(),
                name: name.to_owned(),
            }),
        }
    }

    fn reserve(&self, path: &Path, bytes: u64) -> object_store::Result<SpoolReservation<'_>> {
        let mut state = self.state.lock();
        let has_room = self.make_room(&mut state, bytes);
        let free = free_bytes(self.folder());
        if !has_room || free.is_some_and(|free| free < bytes.saturating_add(self.free_min)) {
            return Err(generic(DiskFault::NoRoom {
                path: self.parent.clone(),
                needed: bytes,
                limit: self.limit.min(free.unwrap_or(u64::MAX).saturating_sub(self.free_min)),
            }));
        }
        state.used += bytes;
        let mut staged = path.as_os_str().to_owned();
        staged.push(".part");
        Ok(SpoolReservation {
            spool: self,
            bytes,
            staged: staged.into(),
        })
    }

    /// Evicts unpinned copies, the least recently used first. Returns whether there is enough space.
    fn make_room(&self, state: &mut SpoolState, bytes: u64) -> bool {
        while state.used.saturating_add(bytes) > self.limit {
            let unread = state.files.iter().filter(|(_, copy)| copy.readers == 0);
            let Some(oldest) = unread
                .min_by_key(|(_, copy)| copy.last_used)
                .map(|(name, _)| name.clone())
            else {
                return false;
            };
            let _ = std::fs::remove_file(self.folder().join(&oldest));
            let freed = state.files.remove(&oldest).map_or(0, |copy| copy.bytes);
            state.used -= freed;
        }
        true
    }

    fn grew(&self, name: &str, bytes: u64) {
        let mut state = self.state.lock();
        // The inputs have their space, and the output is about as large. It is not failed for a slight excess.
        let _ = self.make_room(&mut state, bytes);
        if let Some(copy) = state.files.get_mut(name) {
            copy.bytes += bytes;
            state.used += bytes;
        }
    }

    fn forget(&self, name: &str) {
        let mut state = self.state.lock();
        if let Some(copy) = state.files.remove(name) {
            state.used -= copy.bytes;
        }
        drop(state);
        let _ = std::fs::remove_file(self.folder().join(name));
    }
}

/// See [`Spool::begin`]. Dropping it before [`SpoolWriter::keep`] removes the file.
#[derive(Debug)]
pub struct SpoolWriter {
    local: LocalFile,
    spool: Arc<Spool>,
    name: String,
    file: File,
    is_kept: bool,
}

impl Drop for SpoolWriter {
    fn drop(&mut self) {
        if !self.is_kept {
            self.spool.forget(&self.name);
        }
    }
}

impl SpoolWriter {
    pub fn write(&mut self, bytes: &[u8]) -> object_store::Result<()> {
        self.spool.grew(&self.name, bytes.len() as u64);
        let written = self.file.write_all(bytes);
        written.map_err(|error| generic(DiskFault::io("write", self.local.path(), error)))
    }

    pub fn path(&self) -> &Path {
        self.local.path()
    }

    /// The file is complete and uploaded.
    pub fn keep(&mut self) {
        self.is_kept = true;
    }
}

fn create(path: &Path) -> std::io::Result<File> {
    if let Some(parent) = path.parent() {
        files::create_folders(parent)?;
    }
    files::private().write(true).create(true).truncate(true).open(path)
}

/// The free space on the disk of a folder, or of its nearest existing parent.
fn free_bytes(folder: &Path) -> Option<u64> {
    let there = folder.ancestors().find(|path| path.is_dir())?;
    let disk = rustix::fs::statvfs(there).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

#[cfg(test)]
mod tests;
