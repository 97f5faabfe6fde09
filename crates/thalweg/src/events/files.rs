//! Files of the commands: one that is read, or the standard input; and one that is written, which has its name only when it is
//! whole and synced.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// The file, or without one, or for `-`, the standard input.
pub fn input(path: Option<&Path>) -> Result<Box<dyn Read>> {
    match path.filter(|path| path.as_os_str() != "-") {
        None => Ok(Box::new(io::stdin().lock())),
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(Box::new(BufReader::with_capacity(1 << 18, file)))
        }
    }
}

/// Files of one name that are written at once, with those that killed processes have left.
const ATTEMPTS_MAX: u32 = 1_000;

/// A file that is being written under another name. Dropped before [`AtomicFile::finish`], it goes.
pub struct AtomicFile {
    file: File,
    /// `None` once it has its name.
    partial: Option<PathBuf>,
    path: PathBuf,
}

impl AtomicFile {
    pub fn create(path: &Path) -> Result<AtomicFile> {
        let name = path.file_name().unwrap_or_default();
        anyhow::ensure!(!name.is_empty(), "{} is no name of a file", path.display());
        // A process of another container may have the same id, and write beside this one.
        let mut made = Err(io::Error::from(io::ErrorKind::AlreadyExists));
        let mut partial = path.to_owned();
        for attempt in 0..ATTEMPTS_MAX {
            let mut beside = name.to_owned();
            beside.push(format!(".{}.{attempt}.partial", std::process::id()));
            partial.set_file_name(beside);
            made = OpenOptions::new().write(true).create_new(true).open(&partial);
            match &made {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                _ => break,
            }
        }
        Ok(AtomicFile {
            file: made.with_context(|| format!("cannot write {}", partial.display()))?,
            partial: Some(partial),
            path: path.to_owned(),
        })
    }

    /// When it returns, the file is whole under its name, whatever happens to the machine.
    pub fn finish(mut self) -> Result<()> {
        let shown = self.path.display();
        self.file.sync_all().with_context(|| format!("cannot sync {shown}"))?;
        if let Some(partial) = &self.partial {
            std::fs::rename(partial, &self.path).with_context(|| format!("cannot make {shown}"))?;
        }
        self.partial = None;
        let folder = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.with_context(|| format!("cannot sync the folder of {shown}"))
    }
}

impl Write for AtomicFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            let _ = std::fs::remove_file(partial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_its_name_only_when_it_is_whole() {
        let folder = std::env::temp_dir().join(format!("thalweg-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("out");
        let names = || std::fs::read_dir(&folder).unwrap().count();
        let mut given_up = AtomicFile::create(&path).unwrap();
        given_up.write_all(b"half").unwrap();
        assert!(!path.exists());
        drop(given_up);
        assert_eq!(names(), 0);
        let mut whole = AtomicFile::create(&path).unwrap();
        whole.write_all(b"whole").unwrap();
        whole.finish().unwrap();
        assert_eq!((std::fs::read(&path).unwrap(), names()), (b"whole".to_vec(), 1));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// As two processes in two containers do that have the same id.
    #[test]
    fn two_that_write_a_file_of_one_name_do_not_mix() {
        let folder = std::env::temp_dir().join(format!("thalweg-two-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("out");
        let mut outputs = [AtomicFile::create(&path).unwrap(), AtomicFile::create(&path).unwrap()];
        for word in ["first ", "half"] {
            for output in &mut outputs {
                output.write_all(word.as_bytes()).unwrap();
            }
        }
        let [one, other] = outputs;
        one.finish().unwrap();
        drop(other);
        let names = std::fs::read_dir(&folder).unwrap().count();
        assert_eq!((std::fs::read(&path).unwrap(), names), (b"first half".to_vec(), 1));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
