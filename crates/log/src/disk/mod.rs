//! What the log asks of a disk, and nothing more: one folder of files that are written by position, synced, renamed. A
//! real folder and a simulated one, whose power can be cut, are the same to everything above.

mod folder;
mod ram;
pub mod sim;

use std::io;
use std::sync::Arc;

pub use folder::FolderDisk;
pub use ram::RamDisk;

/// A folder on one disk. Every call blocks.
pub trait Disk: Send + Sync + 'static {
    /// Files, in no order.
    fn names(&self) -> io::Result<Vec<String>>;

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// A new, empty file. Its name is durable after [`Disk::sync_names`].
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Durable after [`Disk::sync_names`]; until then a power cut leaves one name or the other.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    /// What was created, renamed and removed so far is so after a power cut.
    fn sync_names(&self) -> io::Result<()>;

    fn space(&self) -> io::Result<DiskSpace>;
}

/// An open file. Positions are bytes from its start.
pub trait DiskFile: Send + Sync {
    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// All of it or an error; after an error any part of it may have been written.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// As many bytes as there are, up to the length of `buf`.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;

    /// What was written so far is there after a power cut, with the length of the file.
    ///
    /// After an error nobody knows what is on the disk: the kernel may have thrown away what it could not write, and a
    /// second sync would succeed over the hole. So nothing may be acknowledged any more until a restart has looked.
    fn sync(&self) -> io::Result<()>;

    /// What is written here is there after a power cut; what was written before need not be. In one call where the disk has
    /// one for both.
    fn write_and_sync(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_at(bytes, at)?;
        self.sync()
    }
}

/// Of the whole file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    pub total_bytes: u64,
    pub free_bytes: u64,
}
