//! Files of the commands: an input file or the standard input, and an output file that gets its name only when it is
//! complete and synced.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

/// Opens the file, or the standard input for `-` or no path.
pub fn input(path: Option<&Path>) -> Result<Box<dyn Read>> {
    match path.filter(|path| path.as_os_str() != "-") {
        None => Ok(Box::new(io::stdin().lock())),
        Some(path) => {
            let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
            Ok(Box::new(BufReader::with_capacity(1 << 18, file)))
        }
    }
}

/// The most partial files of one name, including those that killed processes have left.
const ATTEMPTS_MAX: u32 = 1_000;

/// A file that is written under a temporary name. It is removed if it is dropped before [`AtomicFile::finish`].
pub struct AtomicFile {
    file: File,
    /// `None` once it has its final name.
    partial: Option<PathBuf>,
    path: PathBuf,
}

impl AtomicFile {
    pub fn create(path: &Path) -> Result<AtomicFile> {
        let name = path.file_name().unwrap_or_default();
        anyhow::ensure!(!name.is_empty(), "{} is not a file name", path.display());
        // A process in another container may have the same id, and write next to this one.
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

    /// On return the file is complete and durable under its name.
    pub fn finish(mut self) -> Result<()> {
        let shown = self.path.display();
        self.file.sync_all().with_context(|| format!("cannot sync {shown}"))?;
        if let Some(partial) = &self.partial {
            std::fs::rename(partial, &self.path).with_context(|| format!("cannot create {shown}"))?;
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

    /// Like two processes with the same id in two containers.
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
