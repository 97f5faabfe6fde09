//! The file operations that make the lake durable, one method per step.
//!
//! Every step that can fail on its own, or after which a process or machine can die, is a separate method, so that a
//! test can fail, delay or drop each of them. Nothing is durable before the `sync_` step that covers it has returned.

use std::fmt::Debug;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use thalweg_kit::files;

/// The operations on a disk. All calls block.
pub trait Disk: Debug + Send + Sync + 'static {
    /// Creates one directory whose parent exists. Its name is durable after `sync_directory` of the parent.
    fn create_directory(&self, path: &Path) -> io::Result<()>;

    /// Creates a file that must not exist yet.
    fn create_file(&self, path: &Path) -> io::Result<File>;

    /// Appends bytes to a file that `create_file` returned for `path`.
    fn write(&self, file: &mut File, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Makes the file's content durable, but not its name.
    fn sync_file(&self, file: &File, path: &Path) -> io::Result<()>;

    /// Gives a file a second name; fails with `AlreadyExists` if that name is taken.
    fn link(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file and replaces an existing one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    fn remove_file(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()>;

    /// Reads and lists the files of the whole file system.
    fn reads(&self) -> Arc<dyn ObjectStore> {
        Arc::new(LocalFileSystem::new())
    }
}

/// The operating system's file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn create_directory(&self, path: &Path) -> io::Result<()> {
        files::create_folder_as_above(path)
    }

    fn create_file(&self, path: &Path) -> io::Result<File> {
        files::as_above(path).write(true).create_new(true).open(path)
    }

    fn write(&self, file: &mut File, _path: &Path, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync_file(&self, file: &File, _path: &Path) -> io::Result<()> {
        file.sync_all()
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}
