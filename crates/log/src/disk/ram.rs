//! A disk in memory that never fails and is not persistent, for processes that must leave nothing behind.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};

use super::{Disk, DiskFile, DiskSpace};

/// Files allocate memory in pieces of this size, and none where only zeros were written.
const PIECE: usize = 64 << 10;

#[derive(Debug)]
pub struct RamDisk {
    files: Mutex<BTreeMap<String, Arc<RamFile>>>,
    used: Arc<AtomicU64>,
    capacity: u64,
}

#[derive(Debug)]
struct RamFile {
    inner: RwLock<RamContents>,
    used: Arc<AtomicU64>,
    capacity: u64,
}

#[derive(Debug, Default)]
struct RamContents {
    len: u64,
    pieces: Vec<Option<Box<[u8]>>>,
}

impl RamDisk {
    /// Creates a disk with this capacity in bytes.
    pub fn new(capacity: u64) -> RamDisk {
        RamDisk {
            files: Mutex::default(),
            used: Arc::default(),
            capacity,
        }
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{name} does not exist"))
}

impl Disk for RamDisk {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.files.lock().keys().cloned().collect())
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = self.files.lock().get(name).cloned().ok_or_else(|| missing(name))?;
        Ok(file)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let file = Arc::new(RamFile {
            inner: RwLock::default(),
            used: self.used.clone(),
            capacity: self.capacity,
        });
        self.files.lock().insert(name.to_owned(), file.clone());
        Ok(file)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut files = self.files.lock();
        let file = files.remove(from).ok_or_else(|| missing(from))?;
        files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.files.lock().remove(name).map(drop).ok_or_else(|| missing(name))
    }

    fn sync_names(&self) -> io::Result<()> {
        Ok(())
    }

    fn space(&self) -> io::Result<DiskSpace> {
        Ok(DiskSpace {
            total_bytes: self.capacity,
            free_bytes: self.capacity.saturating_sub(self.used.load(Ordering::Relaxed)),
        })
    }
}

impl RamFile {
    fn piece<'a>(&self, piece: &'a mut Option<Box<[u8]>>) -> io::Result<&'a mut [u8]> {
        if piece.is_none() {
            let used = self.used.fetch_add(PIECE as u64, Ordering::Relaxed);
            if used + PIECE as u64 > self.capacity {
                self.used.fetch_sub(PIECE as u64, Ordering::Relaxed);
                return Err(io::ErrorKind::StorageFull.into());
            }
        }
        Ok(piece.get_or_insert_with(|| vec![0; PIECE].into()))
    }
}

impl DiskFile for RamFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.inner.read().len)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut inner = self.inner.write();
        let end = at + bytes.len() as u64;
        inner.len = inner.len.max(end);
        let pieces = (inner.len as usize).div_ceil(PIECE);
        inner.pieces.resize_with(pieces, || None);
        let (mut rest, mut at) = (bytes, at as usize);
        while !rest.is_empty() {
            let (n, within) = (at / PIECE, at % PIECE);
            let (part, after) = rest.split_at(rest.len().min(PIECE - within));
            let Some(piece) = inner.pieces.get_mut(n) else { break };
            if piece.is_some() || part.iter().any(|byte| *byte != 0) {
                let piece = self.piece(piece)?;
                if let Some(place) = piece.get_mut(within..within + part.len()) {
                    place.copy_from_slice(part);
                }
            }
            (rest, at) = (after, at + part.len());
        }
        Ok(())
    }

    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let inner = self.inner.read();
        let count = inner.len.saturating_sub(at).min(buf.len() as u64) as usize;
        let (mut rest, mut at) = (buf.get_mut(..count).unwrap_or_default(), at as usize);
        while !rest.is_empty() {
            let (n, within) = (at / PIECE, at % PIECE);
            let len = rest.len().min(PIECE - within);
            let (part, after) = std::mem::take(&mut rest).split_at_mut(len);
            match inner.pieces.get(n).and_then(Option::as_ref) {
                Some(piece) => part.copy_from_slice(piece.get(within..within + part.len()).unwrap_or_default()),
                None => part.fill(0),
            }
            at += part.len();
            rest = after;
        }
        Ok(count)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for RamFile {
    fn drop(&mut self) {
        let pieces = self.inner.get_mut().pieces.iter().flatten().count();
        self.used.fetch_sub((pieces * PIECE) as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::sim::Random;

    #[test]
    fn what_is_written_is_read_and_zeros_take_no_memory() {
        let ram = RamDisk::new(1 << 20);
        let file = ram.create("a").unwrap();
        file.write_at(&vec![0; 10 << 20], 0).unwrap();
        assert_eq!(
            (file.len().unwrap(), ram.space().unwrap().free_bytes),
            (10 << 20, 1 << 20)
        );
        let mut model = vec![0; 400 << 10];
        let mut random = Random::new(1);
        for _ in 0..200 {
            let at = random.below(300 << 10) as usize;
            let bytes = vec![random.below(256) as u8; random.below(90 << 10) as usize];
            model[at..at + bytes.len()].copy_from_slice(&bytes);
            file.write_at(&bytes, at as u64).unwrap();
            let (from, len) = (random.below(300 << 10) as usize, random.below(100 << 10) as usize);
            let mut buf = vec![1; len];
            assert_eq!(file.read_at(&mut buf, from as u64).unwrap(), len);
            assert!(buf == model[from..from + len], "from {from}, {len} bytes");
        }
        assert_eq!(file.read_at(&mut [0; 8], (10 << 20) - 3).unwrap(), 3);
        let full = file.write_at(&vec![1; 2 << 20], 1 << 20).unwrap_err();
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        drop(file);
        ram.remove("a").unwrap();
        assert_eq!(ram.space().unwrap().free_bytes, 1 << 20);
    }
}
