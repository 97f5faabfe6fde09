//! The data folder. One process holds it at a time and writes its process id and address to `LOCK`.
//!
//! The lock is a kernel lock (flock), so a process that dies leaves none behind; the text of the file only informs
//! others.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use thalweg_kit::files::{self, PermissionRepair};
use thalweg_kit::threads;

/// Everything that Thalweg creates in a data folder.
const NAMES: [&str; 7] = ["LOCK", RESTORING, "log", "events", "keys", "lake", "simulator"];

/// A locked data folder. Dropping it releases the lock.
pub struct DataDir {
    path: PathBuf,
    lock: File,
}

/// The process that holds a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// 0 if it has not written it yet.
    pub process: u64,
    /// `host:port` of its HTTP listener, and whether it uses TLS.
    pub http: Option<(String, bool)>,
}

impl Holder {
    /// The URL at which processes on its machine can reach it.
    pub fn url(&self) -> Option<String> {
        let (address, has_tls) = self.http.as_ref()?;
        // A listener on all addresses also accepts this one, and a certificate may be for it.
        let address = match address.parse::<SocketAddr>() {
            Ok(all) if all.ip().is_unspecified() => match all {
                SocketAddr::V4(_) => format!("127.0.0.1:{}", all.port()),
                SocketAddr::V6(_) => format!("[::1]:{}", all.port()),
            },
            _ => address.clone(),
        };
        Some(format!("http{}://{address}", if *has_tls { "s" } else { "" }))
    }
}

impl DataDir {
    /// Creates the folder if needed and locks it. Refuses a folder with an incomplete restore.
    pub fn take(path: &Path) -> Result<DataDir> {
        let held = DataDir::take_as(path, "data folder", "data_dir")?;
        DataDir::refuse_restore(path)?;
        close_to_others(path, &NAMES);
        Ok(held)
    }

    /// Fails if a folder contains an incomplete restore.
    pub fn refuse_restore(path: &Path) -> Result<()> {
        let mark = path.join(RESTORING);
        if mark.exists() {
            let (shown, mark) = (path.display(), mark.display());
            bail!(
                "the data folder {shown} contains an incomplete restore; repeat it with `thalweg events restore`, \
                 or remove everything in the folder, {mark} last"
            );
        }
        Ok(())
    }

    /// Locks a folder for a restore. It has to be without data, or with an incomplete restore, which is removed. Until
    /// [`DataDir::restored`] nobody else accepts its content as data.
    pub fn take_for_restore(path: &Path) -> Result<DataDir> {
        // Before anything is created in it.
        only_restored(path)?;
        let held = DataDir::take_as(path, "data folder", "--data-dir")?;
        only_restored(path)?;
        let begin = || -> std::io::Result<()> {
            let mark = files::private()
                .write(true)
                .create(true)
                .truncate(true)
                .open(path.join(RESTORING))?;
            mark.sync_all()?;
            File::open(path)?.sync_all()?;
            remove_parts(path)
        };
        begin().with_context(|| format!("cannot write to the data folder {}", path.display()))?;
        Ok(held)
    }

    /// Completes a restore: its content is whole and synced, and counts as data from now on, also after a power cut.
    pub fn restored(&self) -> std::io::Result<()> {
        // The content is durable before it counts.
        File::open(&self.path)?.sync_all()?;
        std::fs::remove_file(self.path.join(RESTORING))?;
        File::open(&self.path)?.sync_all()
    }

    /// Aborts a restore and leaves the folder without data.
    pub fn not_restored(&self) -> std::io::Result<()> {
        remove_parts(&self.path)?;
        self.restored()
    }

    /// Locks a folder of the log, which may be in another process's data folder.
    pub fn take_log(path: &Path) -> Result<DataDir> {
        let held = DataDir::take_as(path, "folder of the log", "log.dirs")?;
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        let names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name == "LOCK" || thalweg_log::is_file_of_log(name))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        close_to_others(path, &names);
        Ok(held)
    }

    /// Locks a lake folder outside the data folder.
    pub fn take_lake(path: &Path) -> Result<DataDir> {
        DataDir::take_as(path, "lake folder", "lake.url")
    }

    /// `what` and `key` describe the folder and its setting in errors.
    fn take_as(path: &Path, what: &str, key: &str) -> Result<DataDir> {
        let shown = path.display();
        files::create_folders(path)
            .with_context(|| format!("cannot create the {what} {shown}; set {key} to a writable folder"))?;
        let lock = open(path)
            .with_context(|| format!("cannot write to the {what} {shown}; set {key} to a writable folder"))?;
        let cannot_lock = || {
            format!(
                "cannot lock {}; set {key} to a folder on a disk that supports locks",
                path.join("LOCK").display()
            )
        };
        if !take_lock(&lock).with_context(cannot_lock)? {
            let holder = read(&lock).map_or_else(
                || "another process".to_owned(),
                |holder| format!("process {}", holder.process),
            );
            bail!("the {what} {shown} is in use by {holder}; stop it, or set {key} to another folder");
        }
        let held = DataDir {
            path: path.to_owned(),
            lock,
        };
        held.announce(None)?;
        Ok(held)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the address of this process to `LOCK`.
    pub fn announce(&self, http: Option<(String, bool)>) -> Result<()> {
        let text = match http {
            Some((address, tls)) => serde_json::json!({"pid": std::process::id(), "http": address, "tls": tls}),
            None => serde_json::json!({"pid": std::process::id()}),
        };
        let mut file = &self.lock;
        let write = || -> std::io::Result<()> {
            file.set_len(0)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(format!("{text}\n").as_bytes())?;
            file.sync_data()
        };
        let mut write = write;
        write().with_context(|| format!("cannot write {}", self.path.join("LOCK").display()))
    }

    /// The current holder of a folder, if there is one.
    pub fn holder(path: &Path) -> Option<Holder> {
        let file = File::open(path.join("LOCK")).ok()?;
        for _ in 0..LOCK_ATTEMPTS {
            match try_lock(&file, FlockOperation::NonBlockingLockShared) {
                // The holder writes the file when it starts, so it may be empty for a moment.
                Ok(false) => match read(&file) {
                    Some(holder) => return Some(holder),
                    None => threads::sleep(LOCK_PAUSE),
                },
                // The folder is free, or on a disk without locks, where nobody can hold it.
                Ok(true) | Err(_) => return None,
            }
        }
        let unknown = Holder { process: 0, http: None };
        Some(unknown)
    }
}

/// Marks a folder with an incomplete restore.
const RESTORING: &str = "RESTORING";
/// The folders that a restore creates.
const PARTS: [&str; 2] = ["log", "events"];

/// Fails if a folder contains anything that no restore has created. The caller checks whether the folder is held.
fn only_restored(path: &Path) -> Result<()> {
    let shown = path.display();
    let entries = match path.read_dir() {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        entries => entries.with_context(|| format!("cannot list {shown}"))?,
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry.with_context(|| format!("cannot list {shown}"))?.file_name();
        names.push(name.to_string_lossy().into_owned());
    }
    let is_begun = names.iter().any(|name| name == RESTORING);
    // Neither a lock nor the files at the root of a file system are data.
    let is_other = |name: &&String| match name.as_str() {
        "LOCK" | "lost+found" | RESTORING => false,
        name => !(is_begun && PARTS.contains(&name)),
    };
    match names.iter().find(is_other) {
        None => Ok(()),
        Some(name) => bail!("the folder {shown} is not empty: it has {name}; restore to a new or an empty one"),
    }
}

fn remove_parts(path: &Path) -> std::io::Result<()> {
    for part in PARTS {
        match std::fs::remove_dir_all(path.join(part)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Tries to take the lock. A process that only asks for the holder locks the file for a moment, so this retries for
/// longer than that.
fn take_lock(file: &File) -> std::io::Result<bool> {
    for _ in 0..LOCK_ATTEMPTS {
        if try_lock(file, FlockOperation::NonBlockingLockExclusive)? {
            return Ok(true);
        }
        threads::sleep(LOCK_PAUSE);
    }
    try_lock(file, FlockOperation::NonBlockingLockExclusive)
}

const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Removes read access of other users that an older version or an operator has granted.
fn close_to_others(path: &Path, names: &[&str]) {
    let shown = path.display();
    match files::mend(path, names) {
        Ok(mended) if mended.is_nothing() => {}
        Ok(PermissionRepair { files, folders, left }) => {
            if files + folders > 0 {
                tracing::info!(
                    files,
                    folders,
                    "other users of this machine could read files in {shown}; now only the user of this process can"
                );
            }
            for (path, why) in left {
                tracing::warn!("other users of this machine may read {}: {why}", path.display());
            }
        }
        Err(error) => tracing::warn!("cannot check whether other users of this machine can read {shown}: {error}"),
    }
}

/// Returns `Ok(false)` if another process has the lock.
fn try_lock(file: &File, operation: FlockOperation) -> std::io::Result<bool> {
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let path = path.join("LOCK");
    // If others can read the lake, they can also read its lock file.
    files::as_above(&path)
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
}

fn read(mut file: &File) -> Option<Holder> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0)).ok()?;
    file.read_to_string(&mut text).ok()?;
    let json: serde_json::Value = serde_json::from_str(&text).ok()?;
    let http = json["http"]
        .as_str()
        .map(|address| (address.to_owned(), json["tls"].as_bool().unwrap_or(false)));
    Some(Holder {
        process: json["pid"].as_u64()?,
        http,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_holder_who_can_be_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        assert_eq!(DataDir::holder(&path), None);
        let held = DataDir::take(&path).unwrap();
        held.announce(Some(("127.0.0.1:4195".to_owned(), false))).unwrap();
        let holder = DataDir::holder(&path).unwrap();
        assert_eq!(holder.http, Some(("127.0.0.1:4195".to_owned(), false)));
        let error = DataDir::take(&path).err().unwrap().to_string();
        assert!(
            error.contains(&format!("is in use by process {}", std::process::id())),
            "{error}"
        );
        drop(held);
        assert_eq!(DataDir::holder(&path), None);
        DataDir::take(&path).unwrap();
    }

    #[test]
    fn of_a_folder_of_the_log_only_its_own_files_are_closed_to_others() {
        use std::os::unix::fs::PermissionsExt as _;
        let disk = tempfile::tempdir().unwrap();
        let path = |name: &str| disk.path().join(name);
        std::fs::create_dir(path("lake")).unwrap();
        for name in [
            "segment-0000000000000001.log",
            "superblock",
            "new-3",
            "notes.txt",
            "lake/a.parquet",
        ] {
            std::fs::write(path(name), name).unwrap();
            std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(0o644)).unwrap();
        }
        for name in ["", "lake"] {
            std::fs::set_permissions(path(name), std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let mode = |name: &str| std::fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
        drop(DataDir::take_log(disk.path()).unwrap());
        let modes = [
            "segment-0000000000000001.log",
            "superblock",
            "new-3",
            "LOCK",
            "notes.txt",
            "lake",
            "lake/a.parquet",
            "",
        ]
        .map(mode);
        assert_eq!(modes, [0o600, 0o600, 0o600, 0o600, 0o644, 0o755, 0o644, 0o755]);
        std::fs::remove_file(path("notes.txt")).unwrap();
        std::fs::remove_dir_all(path("lake")).unwrap();
        drop(DataDir::take_log(disk.path()).unwrap());
        assert_eq!(mode(""), 0o700, "nothing else is in it");
    }

    #[test]
    fn a_holder_is_asked_at_an_address_of_its_machine() {
        let url = |address: &str, has_tls| {
            let http = Some((address.to_owned(), has_tls));
            Holder { process: 1, http }.url().unwrap()
        };
        assert_eq!(url("127.0.0.1:4195", false), "http://127.0.0.1:4195");
        assert_eq!(url("10.1.2.3:4195", true), "https://10.1.2.3:4195");
        assert_eq!(url("0.0.0.0:4195", true), "https://127.0.0.1:4195");
        assert_eq!(url("[::]:4195", true), "https://[::1]:4195");
        let silent = Holder { process: 1, http: None };
        assert_eq!(silent.url(), None);
    }

    /// Without a holder, other commands would only see its committed files.
    #[test]
    fn a_folder_whose_holder_says_nothing_is_held_all_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let _held = DataDir::take(folder.path()).unwrap();
        std::fs::write(folder.path().join("LOCK"), "").unwrap();
        let unknown = Holder { process: 0, http: None };
        assert_eq!(DataDir::holder(folder.path()), Some(unknown));
    }

    #[test]
    fn a_restore_takes_a_folder_without_data_and_nobody_takes_it_before_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data");
        let begun = DataDir::take_for_restore(&path).unwrap();
        let why = |taken: Result<DataDir>| taken.err().map_or_else(String::new, |error| error.to_string());
        assert!(why(DataDir::take_for_restore(&path)).contains("is in use by process"));
        std::fs::create_dir(path.join("log")).unwrap();
        // The process dies here.
        drop(begun);
        assert!(why(DataDir::take(&path)).contains("an incomplete restore"));
        let again = DataDir::take_for_restore(&path).unwrap();
        assert!(!path.join("log").exists(), "what the first has left is gone");
        std::fs::create_dir(path.join("log")).unwrap();
        again.restored().unwrap();
        drop(again);
        drop(DataDir::take(&path).unwrap());
        assert!(why(DataDir::take_for_restore(&path)).contains("is not empty: it has log"));
    }

    #[test]
    fn a_restore_that_is_given_up_leaves_a_folder_for_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let begun = DataDir::take_for_restore(folder.path()).unwrap();
        std::fs::create_dir_all(folder.path().join("events/x")).unwrap();
        begun.not_restored().unwrap();
        drop(begun);
        drop(DataDir::take_for_restore(folder.path()).unwrap());
        std::fs::write(folder.path().join("mine"), "x").unwrap();
        let error = DataDir::take_for_restore(folder.path()).err().unwrap().to_string();
        assert!(error.contains("it has mine"), "{error}");
        assert!(folder.path().join("mine").exists());
    }

    #[test]
    fn somebody_who_only_looks_keeps_nobody_from_taking_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        drop(DataDir::take(folder.path()).unwrap());
        let looking = File::open(folder.path().join("LOCK")).unwrap();
        assert!(try_lock(&looking, FlockOperation::NonBlockingLockShared).unwrap());
        let (ready, is_ready) = std::sync::mpsc::channel();
        let looker = std::thread::spawn(move || {
            ready.send(()).unwrap();
            threads::sleep(Duration::from_millis(50));
            drop(looking);
        });
        is_ready.recv().unwrap();
        DataDir::take(folder.path()).unwrap();
        looker.join().unwrap();
    }

    #[test]
    fn a_lock_that_cannot_be_asked_for_is_not_somebody_elses() {
        // A descriptor that is only open as a path cannot be locked.
        let folder = tempfile::tempdir().unwrap();
        let flags = rustix::fs::OFlags::PATH;
        let only_path = rustix::fs::open(folder.path(), flags, rustix::fs::Mode::empty()).unwrap();
        let error = take_lock(&File::from(only_path)).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::BADF.raw_os_error()));
    }
}
