//! A [`Disk`] in a folder of a file system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thalweg_kit::files;

use super::{Disk, DiskFile, DiskSpace};

#[derive(Debug)]
pub struct FolderDisk {
    path: PathBuf,
    /// The folder itself, kept open so that names can be synced even when no more files can be opened.
    names: File,
}

impl FolderDisk {
    /// Opens the folder and creates it if it is missing. Only the user can access what is created.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<FolderDisk> {
        let path = path.into();
        files::create_folders(&path)?;
        let names = File::open(&path)?;
        Ok(FolderDisk { path, names })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Disk for FolderDisk {
    fn names(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            // A name that is not valid UTF-8 is not one of ours.
            if let (true, Ok(name)) = (entry.file_type()?.is_file(), entry.file_name().into_string()) {
                names.push(name);
            }
        }
        Ok(names)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = OpenOptions::new().read(true).write(true).open(self.path.join(name))?;
        read_what_is_asked_for(&file);
        Ok(Arc::new(file))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = files::private()
            .read(true)
            .write(true)
            .create_new(true)
            .open(self.path.join(name))?;
        read_what_is_asked_for(&file);
        Ok(Arc::new(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        std::fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(self.path.join(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.names.sync_all()
    }

    fn space(&self) -> io::Result<DiskSpace> {
        let stat = rustix::fs::statvfs(&self.path)?;
        Ok(DiskSpace {
            total_bytes: stat.f_blocks * stat.f_frsize,
            free_bytes: stat.f_bavail * stat.f_frsize,
        })
    }
}

/// Disables kernel readahead. Readers of the log request large pieces. Readahead beyond these, up to megabytes at once,
/// would reach the disk before the writes of commits and delay them.
fn read_what_is_asked_for(file: &File) {
    // If this fails, everything works but is slower.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Random);
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = buf.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match std::os::unix::fs::FileExt::read_at(self, rest, at + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    /// A single system call, in which the kernel waits for these bytes only. `io_uring` was tried and rejected: a
    /// buffered write and a sync both block, so the kernel hands them to its own threads, which costs more than it
    /// saves.
    #[cfg(target_os = "linux")]
    fn write_and_sync(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        use rustix::io::{Errno, ReadWriteFlags, pwritev2};

        let mut written = 0;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            let pieces = [io::IoSlice::new(rest)];
            match pwritev2(self, &pieces, at + written as u64, ReadWriteFlags::DSYNC) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => written += n,
                Err(Errno::INTR) => {}
                // The file system does not support the call.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.write_all_at(rest, at + written as u64)?;
                    return self.sync_data();
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_keeps_what_was_written_under_its_new_name() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = FolderDisk::open(temporary.path().join("a/b")).unwrap();
        let file = folder.create("one").unwrap();
        file.write_at(b"0123456789", 4).unwrap();
        file.sync().unwrap();
        assert_eq!(file.len().unwrap(), 14);
        file.write_and_sync(b"x9", 12).unwrap();
        assert_eq!(file.len().unwrap(), 14);
        folder.rename("one", "two").unwrap();
        folder.sync_names().unwrap();
        assert_eq!(folder.names().unwrap(), ["two"]);
        let mut buf = [9; 8];
        assert_eq!(folder.open("two").unwrap().read_at(&mut buf, 10).unwrap(), 4);
        assert_eq!(buf, *b"67x9\x09\x09\x09\x09");
        assert!(
            folder.create("two").is_err(),
            "a file is never overwritten by creating it"
        );
        folder.remove("two").unwrap();
        assert!(folder.open("two").is_err());
        let space = folder.space().unwrap();
        assert!(space.free_bytes > 0 && space.total_bytes >= space.free_bytes);
    }
}
