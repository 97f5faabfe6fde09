//! Where a file's rows and its bad lines lie until it is read to its end: a folder that this process alone uses. One whose process
//! was killed is removed by the next that comes. Who lives is told by file locks alone, which end with their process: a clock that
//! is set takes nobody's folder away.

use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use thalweg_kit::files;

const LOCK: &str = "lock";
/// So often a new lock is taken for one of a process that has ended, at most: each time somebody has to come between two steps.
const ATTEMPTS_MAX: usize = 100;

/// A folder below `_thalweg/ingest` of the lake. It is removed when this is dropped.
pub(super) struct Staging {
    path: PathBuf,
    /// Held before there is a folder, so that a folder or a lock that nobody holds is nobody's.
    lock: PathBuf,
    _held: File,
}

fn parent(lake: &Path) -> PathBuf {
    lake.join("_thalweg/ingest")
}

impl Staging {
    pub fn new(lake: &Path) -> io::Result<Staging> {
        let parent = parent(lake);
        files::create_folders(&parent)?;
        let (name, lock, held) = new_lock(&parent)?;
        let path = parent.join(name);
        files::create_folder(&path)?;
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
                true if path.with_extension("").exists() => continue,
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

/// A lock with a name of its own, which is held. Before it is held somebody may take it for one of a process that has ended, and
/// remove it; then another one is made.
fn new_lock(parent: &Path) -> io::Result<(String, PathBuf, File)> {
    for _ in 0..ATTEMPTS_MAX {
        let name = uuid::Uuid::new_v4().to_string();
        let lock = parent.join(&name).with_extension(LOCK);
        let held = files::private().read(true).write(true).create_new(true).open(&lock)?;
        held.lock()?;
        if is_at(&held, &lock) {
            return Ok((name, lock, held));
        }
    }
    Err(io::Error::other("others remove each lock before it is taken"))
}

fn is_at(file: &File, path: &Path) -> bool {
    let (file, there) = (file.metadata(), std::fs::metadata(path));
    matches!((file, there), (Ok(file), Ok(there)) if (file.dev(), file.ino()) == (there.dev(), there.ino()))
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
        let _ = std::fs::remove_file(&self.lock);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, SystemTime};

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
        assert!(!path.exists() && !lone.exists() && used.path().join("rows").exists());
        let used_path = used.path().to_owned();
        drop(used);
        assert!(!used_path.exists());
        Staging::sweep(&lake.path().join("nothing"));
    }

    /// As a lock looks to whoever comes after the clock was set forward by days, before its folder is made.
    #[test]
    fn a_lock_that_is_held_stays_whatever_the_clock_says_of_it() {
        let lake = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(parent(lake.path())).unwrap();
        let (_, lock, held) = new_lock(&parent(lake.path())).unwrap();
        for at in [SystemTime::UNIX_EPOCH, SystemTime::now() + Duration::from_hours(999)] {
            held.set_modified(at).unwrap();
            Staging::sweep(lake.path());
            assert!(lock.exists());
        }
        drop(held);
        Staging::sweep(lake.path());
        assert!(!lock.exists(), "however young it is");
    }

    #[test]
    fn who_begins_while_others_sweep_keeps_what_is_his() {
        let lake = tempfile::tempdir().unwrap();
        let begun = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while begun.load(Ordering::SeqCst) < 400 {
                        Staging::sweep(lake.path());
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while begun.fetch_add(1, Ordering::SeqCst) < 400 {
                        let own = Staging::new(lake.path()).unwrap();
                        std::fs::write(own.path().join("rows"), "x").unwrap();
                        Staging::sweep(lake.path());
                        assert!(own.path().join("rows").exists() && own.lock.exists());
                    }
                });
            }
        });
    }
}
