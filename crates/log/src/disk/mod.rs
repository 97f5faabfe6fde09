//! The interface between the log and a disk: one folder of files that are written by position, synced and renamed. Code
//! above it does not distinguish a real folder from a simulated one whose power can be cut.

mod folder;
mod ram;
pub mod sim;

use std::io;
use std::sync::Arc;

pub use folder::FolderDisk;
pub use ram::RamDisk;

/// A folder on one disk. Every call blocks.
pub trait Disk: Send + Sync + 'static {
    /// File names, in no particular order.
    fn names(&self) -> io::Result<Vec<String>>;

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Creates a new, empty file. Its name is durable after [`Disk::sync_names`].
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Renames a file. Durable after [`Disk::sync_names`]; until then a power cut leaves one name or the other.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all creations, renames and removals so far durable.
    fn sync_names(&self) -> io::Result<()>;

    fn space(&self) -> io::Result<DiskSpace>;
}

/// An open file. Positions are bytes from its start.
pub trait DiskFile: Send + Sync {
    fn len(&self) -> io::Result<u64>;

    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Writes all bytes or fails. After an error any part may have been written.
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;

    /// Reads up to the length of `buf`, fewer bytes only at the end of the file.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;

    /// Makes all writes so far and the length of the file durable.
    ///
    /// After an error the state on the disk is unknown: the kernel may have dropped pages that it could not write, and
    /// a second sync would succeed despite the hole. So nothing may be acknowledged until a restart has checked the
    /// disk.
    fn sync(&self) -> io::Result<()>;

    /// Writes and makes these bytes durable, but not necessarily earlier writes. Uses a single call where the disk has
    /// one.
    fn write_and_sync(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_at(bytes, at)?;
        self.sync()
    }
}

/// The space of the whole file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSpace {
    pub total_bytes: u64,
    pub free_bytes: u64,
}
