//! The files of a `file` output: opened when needed, appended to, and synced before anything is confirmed.
//!
//! A new file survives a power loss only if the folder that contains it was synced too, and likewise each new folder.
//! So the folders whose entries changed are synced before the first data in them counts as written.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::writer::Destination;
use crate::output::{Rejection, WriteError, all_but};

/// Maximum open files; beyond it the least recently written one is closed.
const OPEN_FILES_MAX: usize = 256;

/// Consecutive messages for one file.
pub(super) struct FileChunk {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    /// The indices of these messages in the write.
    pub messages: Vec<usize>,
}

pub(super) struct OutputFiles {
    /// Whether each chunk replaces the file's content.
    replaces: bool,
    open: HashMap<PathBuf, OpenFile>,
    clock: u64,
    /// Folders with new entries that may not be on disk yet.
    folders: BTreeSet<PathBuf>,
    sync_folder: fn(&Path) -> io::Result<()>,
}

struct OpenFile {
    file: File,
    used: u64,
    unsynced: bool,
    /// The end of the file after the last successful write: a failed write is truncated to it.
    end: u64,
}

impl OutputFiles {
    pub fn new(replaces: bool) -> OutputFiles {
        OutputFiles {
            replaces,
            open: HashMap::new(),
            clock: 0,
            folders: BTreeSet::new(),
            sync_folder: |folder| File::open(folder)?.sync_all(),
        }
    }

    /// Opens a file, and creates it and its folders if they are missing.
    pub fn open(&mut self, path: &Path) -> io::Result<()> {
        if self.open.len() >= OPEN_FILES_MAX {
            self.close_oldest()?;
        }
        // Recorded before anything is created, because a failed attempt may also leave entries behind.
        let folder = folder_of(path);
        let missing = folder.ancestors().take_while(|folder| !is_folder(folder));
        let changed: Vec<PathBuf> = missing.map(folder_of).collect();
        self.folders.extend(changed);
        std::fs::create_dir_all(&folder)?;
        if !path.exists() {
            self.folders.insert(folder);
        }
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let end = file.metadata()?.len();
        self.open.insert(
            path.to_owned(),
            OpenFile {
                file,
                used: 0,
                unsynced: false,
                end,
            },
        );
        Ok(())
    }

    fn close_oldest(&mut self) -> io::Result<()> {
        let oldest = self
            .open
            .iter()
            .min_by_key(|(_, file)| file.used)
            .map(|(path, _)| path.clone());
        if let Some(path) = oldest {
            if let Some(file) = self.open.get_mut(&path) {
                file.sync()?;
            }
            self.open.remove(&path);
        }
        Ok(())
    }

    fn append(&mut self, part: &FileChunk) -> io::Result<()> {
        if !self.open.contains_key(&part.path) {
            self.open(&part.path)?;
        }
        self.clock += 1;
        let (replaces, clock) = (self.replaces, self.clock);
        let file = self.open.get_mut(&part.path).ok_or(io::ErrorKind::NotFound)?;
        file.used = clock;
        if replaces {
            file.file.set_len(0)?;
            file.end = 0;
        }
        file.unsynced = true;
        if let Err(error) = file.file.write_all(&part.bytes) {
            // A full disk leaves a torn message behind, and the retry would append to it.
            file.file.set_len(file.end)?;
            return Err(error);
        }
        file.end += part.bytes.len() as u64;
        Ok(())
    }

    /// Syncs all written data and the folders of new files.
    fn sync(&mut self) -> Result<(), (PathBuf, io::Error)> {
        for (path, file) in &mut self.open {
            file.sync().map_err(|error| (path.clone(), error))?;
        }
        while let Some(folder) = self.folders.first() {
            match (self.sync_folder)(folder) {
                // The folder was removed since, or its file system cannot sync folders: nothing more can be done.
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {}
                synced => synced.map_err(|error| (folder.clone(), error))?,
            }
            self.folders.pop_first();
        }
        Ok(())
    }
}

impl OpenFile {
    fn sync(&mut self) -> io::Result<()> {
        if self.unsynced {
            self.file.sync_data()?;
            self.unsynced = false;
        }
        Ok(())
    }
}

/// The folder that contains a file or folder; `.` is the working directory.
fn folder_of(path: impl AsRef<Path>) -> PathBuf {
    let folder = path.as_ref().parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.unwrap_or(Path::new(".")).to_owned()
}

fn is_folder(path: &Path) -> bool {
    path.as_os_str().is_empty() || path.is_dir()
}

impl Destination for OutputFiles {
    type Job = Vec<FileChunk>;

    /// A file that fails delays its own messages, in order, and does not delay other files.
    fn write(&mut self, parts: Vec<FileChunk>) -> Result<(), WriteError> {
        let mut failed: HashMap<&Path, String> = HashMap::new();
        let mut later = Vec::new();
        for part in &parts {
            if !failed.contains_key(&*part.path)
                && let Err(error) = self.append(part)
            {
                let error = format!("cannot write to {}: {error}", part.path.display());
                failed.insert(&part.path, error);
            }
            if let Some(error) = failed.get(&*part.path) {
                let rejections = part.messages.iter();
                later.extend(rejections.map(|index| Rejection::temporary(*index, error.as_str())));
            }
        }
        self.sync()
            .map_err(|(path, error)| WriteError::Temporary(format!("cannot sync {}: {error}", path.display())))?;
        all_but(later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(path: PathBuf, text: &str, messages: &[usize]) -> FileChunk {
        FileChunk {
            path,
            bytes: text.into(),
            messages: messages.to_vec(),
        }
    }

    thread_local! {
        static SYNCED: std::cell::RefCell<Vec<PathBuf>> = const { std::cell::RefCell::new(Vec::new()) };
    }

    fn note(folder: &Path) -> io::Result<()> {
        SYNCED.with_borrow_mut(|synced| synced.push(folder.to_owned()));
        Ok(())
    }

    #[test]
    fn new_names_are_synced_before_the_first_confirmation_and_only_then() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let mut files = OutputFiles::new(false);
        files.sync_folder = note;
        files.write(vec![part(path("a/b/x"), "1", &[0])]).unwrap();
        let synced = SYNCED.take();
        assert_eq!(synced, [root.path().to_owned(), path("a"), path("a/b")]);
        files.write(vec![part(path("a/b/x"), "2", &[0])]).unwrap();
        assert_eq!(SYNCED.take(), [] as [PathBuf; 0]);
        files.write(vec![part(path("a/b/y"), "3", &[0])]).unwrap();
        assert_eq!(SYNCED.take(), [path("a/b")]);
    }

    #[test]
    fn nothing_is_confirmed_until_its_name_is_on_the_disk() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        let mut files = OutputFiles::new(false);
        // Nobody has confirmed what is created with the output yet.
        files.open(&path).unwrap();
        files.sync_folder = |_| Err(io::ErrorKind::Other.into());
        let failed = files.write(vec![part(path.clone(), "1", &[0])]);
        assert!(matches!(failed, Err(WriteError::Temporary(_))), "{failed:?}");
        files.sync_folder = note;
        files.write(vec![part(path, "1", &[0])]).unwrap();
        assert_eq!(SYNCED.take(), [root.path()]);
    }

    #[test]
    fn only_the_messages_of_a_file_that_fails_are_to_be_written_again() {
        let root = tempfile::tempdir().unwrap();
        let good = root.path().join("good");
        std::fs::create_dir(root.path().join("bad")).unwrap();
        let bad = root.path().join("bad");
        let mut files = OutputFiles::new(false);
        let parts = vec![
            part(good.clone(), "0", &[0]),
            part(bad.clone(), "12", &[1, 2]),
            part(good.clone(), "3", &[3]),
            part(bad, "4", &[4]),
        ];
        let Err(WriteError::Some(failed)) = files.write(parts) else {
            panic!("a folder cannot be written to");
        };
        assert!(failed.iter().all(|rejection| rejection.permanent.is_none()));
        assert_eq!(failed.iter().map(|r| r.index).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(std::fs::read_to_string(good).unwrap(), "03");
    }
}
