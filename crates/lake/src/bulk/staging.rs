//! Where a file's rows and its bad lines lie until it is read to its end: a folder that this process alone uses. One whose process
//! was killed is removed by the next that comes.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A lock without a folder is that of a process that is just making one, unless it is as old as this.
const LONE_LOCK_AGE: Duration = Duration::from_secs(3600);
const LOCK: &str = "lock";

/// A folder below `_thalweg/ingest` of the lake. It is removed when this is dropped.
pub(super) struct Staging {
    path: PathBuf,
    /// Taken before there is a folder, so that a folder without a taken lock is nobody's.
    lock: PathBuf,
    _held: File,
}

fn parent(lake: &Path) -> PathBuf {
    lake.join("_thalweg/ingest")
}

impl Staging {
    pub fn new(lake: &Path) -> io::Result<Staging> {
        let parent = parent(lake);
        std::fs::create_dir_all(&parent)?;
        let name = uuid::Uuid::new_v4().to_string();
        let lock = parent.join(&name).with_extension(LOCK);
        let held = File::create_new(&lock)?;
        held.lock()?;
        let path = parent.join(name);
        std::fs::create_dir(&path)?;
        Ok(Staging {
            path,
            lock,
            _held: held,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the folders of processes that have ended without that.
    pub fn sweep(lake: &Path) {
        let entries = std::fs::read_dir(parent(lake)).into_iter().flatten().flatten();
        for entry in entries {
            let path = entry.path();
            let is_lock = path.extension().is_some_and(|extension| extension == LOCK);
            let (folder, lock) = match is_lock {
                true if path.with_extension("").exists() || !is_old(&entry) => continue,
                true => (None, path),
                false => (Some(path.clone()), path.with_extension(LOCK)),
            };
            let held = match File::open(&lock) {
                Ok(file) => match file.try_lock() {
                    Ok(()) => Some(file),
                    Err(TryLockError::WouldBlock | TryLockError::Error(_)) => continue,
                },
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(_) => continue,
            };
            // What cannot be removed is tried again by the next one.
            if let Some(folder) = folder {
                let _ = std::fs::remove_dir_all(folder);
            }
            let _ = std::fs::remove_file(&lock);
            drop(held);
        }
    }
}

fn is_old(entry: &std::fs::DirEntry) -> bool {
    let modified = entry.metadata().and_then(|metadata| metadata.modified());
    modified.is_ok_and(|at| SystemTime::now().duration_since(at).unwrap_or_default() >= LONE_LOCK_AGE)
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        let _ = std::fs::remove_file(&self.lock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_process_left_is_removed_and_what_is_used_stays() {
        let lake = tempfile::tempdir().unwrap();
        let used = Staging::new(lake.path()).unwrap();
        std::fs::write(used.path().join("rows"), "x").unwrap();
        let killed = Staging::new(lake.path()).unwrap();
        let (path, lock) = (killed.path.clone(), killed.lock.clone());
        std::fs::write(path.join("rows"), "x").unwrap();
        // The lock goes with the process, the folder does not.
        drop(std::mem::ManuallyDrop::new(killed)._held.try_clone().unwrap());
        Staging::sweep(lake.path());
        assert!(path.exists(), "its lock is still held here");
        let lone = parent(lake.path()).join("lone.lock");
        File::create(&lone).unwrap();
        std::fs::remove_file(&lock).unwrap();
        Staging::sweep(lake.path());
        assert!(!path.exists() && lone.exists() && used.path().join("rows").exists());
        let used_path = used.path().to_owned();
        drop(used);
        assert!(!used_path.exists());
        Staging::sweep(&lake.path().join("nothing"));
    }
}
