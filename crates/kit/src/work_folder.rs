//! Folders that a process needs only while it runs: rows of a file that is being read, spilled query data, copies of
//! remote files. Each has a file lock beside it, which the kernel releases when the process ends. Later processes
//! remove the folders whose lock is free. Only the lock proves that a process is alive: process ids mean nothing in
//! another container, and clocks can be set.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

use crate::{files, random};

const LOCK: &str = "lock";
/// The most locks that are created when a sweep removes each of them before it is locked.
const ATTEMPTS_MAX: usize = 100;

/// A folder of this process alone. Dropping it removes the folder.
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
    /// Locked before the folder exists, so a folder or a lock file that is not locked is a leftover.
    lock: PathBuf,
    _held: File,
}

impl WorkFolder {
    /// Creates a folder in `parent`, which is created if it is missing.
    pub fn new(parent: &Path) -> io::Result<WorkFolder> {
        files::create_folders(parent)?;
        let (name, lock, held) = new_lock(parent)?;
        let path = parent.join(name);
        files::create_folder(&path)?;
        Ok(WorkFolder {
            path,
            lock,
            _held: held,
        })
    }

    /// Creates one in the machine's temporary folder, below a folder that only this user can read. Removes those that
    /// killed processes of this user left there.
    pub fn temporary() -> io::Result<WorkFolder> {
        let user = rustix::process::geteuid().as_raw();
        let parent = std::env::temp_dir().join(format!("thalweg-{user}"));
        take_private(&parent)?;
        WorkFolder::sweep(&parent);
        WorkFolder::new(&parent)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the folders in `parent` of processes that have ended.
    pub fn sweep(parent: &Path) {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_lock = path.extension().is_some_and(|extension| extension == LOCK);
            let (folder, lock) = match is_lock {
                true if path.with_extension("").exists() => continue,
                true => (None, path),
                false => (Some(path.clone()), path.with_extension(LOCK)),
            };
            let held = match File::open(&lock) {
                Ok(file) => match file.try_lock() {
                    Ok(()) => Some(file),
                    // A file system without locks cannot say which processes have ended.
                    Err(TryLockError::WouldBlock | TryLockError::Error(_)) => continue,
                },
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(_) => continue,
            };
            // The next sweep tries again what cannot be removed.
            if let Some(folder) = folder {
                let _ = std::fs::remove_dir_all(folder);
            }
            let _ = std::fs::remove_file(&lock);
            drop(held);
        }
    }
}

/// Creates a folder that only this user can use, or checks that an existing one is such. Everybody can create folders
/// in the temporary folder.
fn take_private(path: &Path) -> io::Result<()> {
    let others = || {
        let shown = path.display();
        io::Error::other(format!(
            "{shown} is not a folder of this user; remove it, or set TMPDIR to a folder of your own"
        ))
    };
    match files::create_folder(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = rustix::fs::open(path, flags, Mode::empty()).map_err(|_| others())?;
    if rustix::fs::fstat(&folder)?.st_uid != rustix::process::geteuid().as_raw() {
        return Err(others());
    }
    Ok(rustix::fs::fchmod(&folder, Mode::RWXU)?)
}

/// Creates and locks a lock file of a new name. A sweep may mistake it for a leftover and remove it before it is
/// locked; then another one is made.
fn new_lock(parent: &Path) -> io::Result<(String, PathBuf, File)> {
    for _ in 0..ATTEMPTS_MAX {
        let name = random::uuid().to_string();
        let lock = parent.join(&name).with_extension(LOCK);
        let held = files::private().read(true).write(true).create_new(true).open(&lock)?;
        held.lock()?;
        if is_at(&held, &lock) {
            return Ok((name, lock, held));
        }
    }
    Err(io::Error::other(
        "other processes remove each lock file before it is locked",
    ))
}

fn is_at(file: &File, path: &Path) -> bool {
    let (file, there) = (file.metadata(), std::fs::metadata(path));
    matches!((file, there), (Ok(file), Ok(there)) if (file.dev(), file.ino()) == (there.dev(), there.ino()))
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        let _ = std::fs::remove_file(&self.lock);
    }
}

#[cfg(test)]
mod tests;
