//! A folder of a file system.

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
    /// Open for as long as this is: names must be synced even when no more files can be opened.
    names: File,
}

impl FolderDisk {
    /// The folder, made if it is missing. What is made is the user's alone.
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
            // A name that is no text is none of ours.
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

/// Has the kernel read no further than it is asked to. Who reads the log asks for large pieces; what a kernel reads ahead of
/// that, up to megabytes at once, goes to the disk before the writes of commits, which then wait for it.
fn read_what_is_asked_for(file: &File) {
    // Without it everything works as well, only slower.
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

    /// One system call, where the kernel waits for these bytes only. `io_uring` was tried and rejected: a buffered write and
    /// a sync block, so the kernel hands both to threads of its own, which costs more than it saves.
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
                // A file system that has no such call.
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
