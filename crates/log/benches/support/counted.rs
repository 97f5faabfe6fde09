//! A disk wrapper that counts writes, syncs and renames and passes them on unchanged.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thalweg_log::disk::{Disk, DiskFile, DiskSpace};

/// A disk whose writes and syncs are counted.
pub struct Counted {
    disk: Arc<dyn Disk>,
    pub renames: AtomicU64,
    pub syncs: Arc<AtomicU64>,
    pub written: Arc<AtomicU64>,
}

struct CountedFile {
    file: Arc<dyn DiskFile>,
    syncs: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
}

impl Counted {
    pub fn new(disk: Arc<dyn Disk>) -> Counted {
        Counted {
            disk,
            renames: AtomicU64::new(0),
            syncs: Arc::default(),
            written: Arc::default(),
        }
    }

    fn counted(&self, file: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(CountedFile {
            file,
            syncs: self.syncs.clone(),
            written: self.written.clone(),
        })
    }
}

impl Disk for Counted {
    fn names(&self) -> io::Result<Vec<String>> {
        self.disk.names()
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.counted(self.disk.open(name)?))
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.counted(self.disk.create(name)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.renames.fetch_add(1, Relaxed);
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_names(&self) -> io::Result<()> {
        self.disk.sync_names()
    }

    fn space(&self) -> io::Result<DiskSpace> {
        self.disk.space()
    }
}

impl DiskFile for CountedFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.written.fetch_add(bytes.len() as u64, Relaxed);
        self.file.write_at(bytes, at)
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        self.file.read_at(buf, at)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Relaxed);
        self.file.sync()
    }

    fn write_and_sync(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.written.fetch_add(bytes.len() as u64, Relaxed);
        self.syncs.fetch_add(1, Relaxed);
        self.file.write_and_sync(bytes, at)
    }
}
