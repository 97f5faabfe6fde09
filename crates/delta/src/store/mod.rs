//! A local object store whose `put` is durable when it returns.
//!
//! A put writes a temporary file, syncs it, gives it its name by a link (fails if the name is taken) or a rename
//! (replaces), and syncs the directory: a reader finds a complete file or none, even after a power loss. A failed sync
//! leaves the state of the disk unknown, so the store then refuses every further write. Reads and listings are those of
//! [`LocalFileSystem`], which hides the temporary files by their form `<name>#<digits>`.

mod connect;
mod disk;
mod fault;
mod lake_storage;
mod lease;
mod rate_limiter;
mod spool;
mod upload;

use std::fmt::{Debug, Display, Formatter};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use futures::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path as StorePath;
use object_store::{
    CopyMode, CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, RenameTargetMode, Result,
};

use thalweg_kit::{blocking, random};

pub use connect::{LakeUrl, STORAGE_FLAGS, STORAGE_TEXTS, download};
pub use disk::{Disk, RealDisk};
pub use fault::fault_text;
use fault::generic;
pub use fault::{DiskFault, FaultKind, fault_kind};
pub use lake_storage::RemoteStorage;
pub use lake_storage::{LakeStorage, ScratchOptions};
pub use lease::{LeaseError, LeaseHolder};
pub use rate_limiter::RateLimiter;
pub use spool::{LocalFile, PART_BYTES, Spool, SpoolWriter};

/// The name of this store in errors.
const NAME: &str = "local disk";

/// See the module. Paths are those of the whole file system. Clones share the state "a sync has failed".
#[derive(Clone)]
pub struct SyncedStore {
    inner: Arc<SyncedStoreInner>,
}

struct SyncedStoreInner {
    reads: Arc<dyn ObjectStore>,
    disk: Arc<dyn Disk>,
    paths: LocalFileSystem,
    /// Set by the first failed sync.
    poisoned: OnceLock<String>,
}

impl SyncedStore {
    pub fn new() -> SyncedStore {
        SyncedStore::with_disk(Arc::new(RealDisk))
    }

    pub fn with_disk(disk: Arc<dyn Disk>) -> SyncedStore {
        SyncedStore {
            inner: Arc::new(SyncedStoreInner {
                reads: disk.reads(),
                disk,
                paths: LocalFileSystem::new(),
                poisoned: OnceLock::new(),
            }),
        }
    }

    /// Why the store takes no more writes, if a sync has failed.
    pub fn poisoned(&self) -> Option<&str> {
        self.inner.poisoned.get().map(String::as_str)
    }

    /// Creates a directory and its missing parents durably.
    pub fn create_directories(&self, path: &Path) -> Result<(), DiskFault> {
        self.inner.check()?;
        self.inner.create_directories(path)
    }
}

impl Default for SyncedStore {
    fn default() -> SyncedStore {
        SyncedStore::new()
    }
}

impl Debug for SyncedStore {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        write!(f, "SyncedStore({:?})", self.inner.disk)
    }
}

impl Display for SyncedStore {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(NAME)
    }
}

/// How a finished temporary file gets its name.
#[derive(Clone, Copy)]
enum StagedFilePublish {
    /// Fails if the name is taken.
    New,
    Replace,
}

impl SyncedStoreInner {
    fn check(&self) -> Result<(), DiskFault> {
        match self.poisoned.get() {
            Some(why) => Err(DiskFault::Poisoned(why.clone())),
            None => Ok(()),
        }
    }

    fn put(&self, path: &Path, payload: &PutPayload, placing: StagedFilePublish) -> Result<(), StorePutFault> {
        self.check()?;
        let (mut file, staged) = self.stage(path)?;
        let written = payload
            .iter()
            .try_for_each(|bytes| self.disk.write(&mut file, &staged, bytes))
            .map_err(|e| DiskFault::io("write", path, e));
        if let Err(fault) = written {
            // If this fails, opening the table removes the file later.
            let _ = self.disk.remove_file(&staged);
            return Err(fault.into());
        }
        self.finish(&file, &staged, path, placing)
    }

    /// Creates a temporary file beside `path` and returns it with its name.
    fn stage(&self, path: &Path) -> Result<(std::fs::File, PathBuf), DiskFault> {
        let staged = staged_path(path);
        match self.disk.create_file(&staged) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if let Some(parent) = path.parent() {
                    self.create_directories(parent)?;
                }
                self.disk.create_file(&staged)
            }
            created => created,
        }
        .map(|file| (file, staged))
        .map_err(|e| DiskFault::io("create", path, e))
    }

    /// Syncs a written temporary file and gives it its name durably.
    fn finish(
        &self,
        file: &std::fs::File,
        staged: &Path,
        path: &Path,
        placing: StagedFilePublish,
    ) -> Result<(), StorePutFault> {
        if let Err(e) = self.disk.sync_file(file, staged) {
            let _ = self.disk.remove_file(staged);
            return Err(self.poison(DiskFault::sync(path, e)).into());
        }
        let placed = match placing {
            StagedFilePublish::New => self.disk.link(staged, path),
            StagedFilePublish::Replace => self.disk.rename(staged, path),
        };
        if matches!(placing, StagedFilePublish::New) || placed.is_err() {
            let _ = self.disk.remove_file(staged);
        }
        match placed {
            Ok(()) => Ok(self.sync_parent(path)?),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(StorePutFault::Exists(path.to_owned(), e)),
            Err(e) => Err(DiskFault::io("name", path, e).into()),
        }
    }

    fn sync_parent(&self, path: &Path) -> Result<(), DiskFault> {
        let Some(parent) = path.parent() else { return Ok(()) };
        self.disk
            .sync_directory(parent)
            .map_err(|e| self.poison(DiskFault::sync(parent, e)))
    }

    fn poison(&self, fault: DiskFault) -> DiskFault {
        if let DiskFault::SyncFailed { path, source } = &fault {
            let first = self.poisoned.set(format!("{}: {source}", path.display())).is_ok();
            if first {
                tracing::error!("{fault}");
            }
        }
        fault
    }

    fn create_directories(&self, path: &Path) -> Result<(), DiskFault> {
        if path.is_dir() {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            self.create_directories(parent)?;
        }
        match self.disk.create_directory(path) {
            Ok(()) => self.sync_parent(path),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
            Err(e) => Err(DiskFault::io("create the directory", path, e)),
        }
    }

    fn copy(&self, from: &Path, to: &Path, placing: StagedFilePublish) -> Result<(), StorePutFault> {
        let bytes = std::fs::read(from).map_err(|e| DiskFault::io("read", from, e))?;
        self.put(to, &PutPayload::from(bytes), placing)
    }
}

/// `<path>#<digits>`, a form that listings hide. The digits are random, so two writers never collide.
fn staged_path(path: &Path) -> PathBuf {
    let digits = random::uuid().as_u64_pair().0;
    let mut staged = path.as_os_str().to_owned();
    staged.push(format!("#{digits}"));
    staged.into()
}

/// Whether a file name has the form of a temporary file of this store.
pub(crate) fn is_staged(name: &str) -> bool {
    name.rsplit_once('#')
        .is_some_and(|(_, digits)| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

enum StorePutFault {
    Exists(PathBuf, io::Error),
    Disk(DiskFault),
}

impl From<DiskFault> for StorePutFault {
    fn from(fault: DiskFault) -> StorePutFault {
        StorePutFault::Disk(fault)
    }
}

impl From<StorePutFault> for object_store::Error {
    fn from(fault: StorePutFault) -> object_store::Error {
        match fault {
            StorePutFault::Exists(path, source) => object_store::Error::AlreadyExists {
                path: path.display().to_string(),
                source: Box::new(source),
            },
            StorePutFault::Disk(fault) => generic(fault),
        }
    }
}

impl SyncedStore {
    /// Runs a blocking step on a blocking thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&SyncedStoreInner) -> Result<T, StorePutFault> + Send + 'static,
    ) -> Result<T> {
        let inner = self.inner.clone();
        let done = blocking::spawn(move || work(&inner)).await;
        done.map_err(|e| object_store::Error::JoinError { source: e })?
            .map_err(Into::into)
    }

    fn file(&self, location: &StorePath) -> Result<PathBuf> {
        self.inner.paths.path_to_filesystem(location)
    }
}

#[async_trait]
impl ObjectStore for SyncedStore {
    async fn put_opts(&self, location: &StorePath, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let path = self.file(location)?;
        let placing = match options.mode {
            PutMode::Create => StagedFilePublish::New,
            PutMode::Overwrite => StagedFilePublish::Replace,
            PutMode::Update(_) => {
                let operation = "a conditional replacement".to_owned();
                return Err(object_store::Error::NotImplemented {
                    operation,
                    implementer: NAME.to_owned(),
                });
            }
        };
        self.blocking(move |inner| inner.put(&path, &payload, placing)).await?;
        Ok(PutResult {
            e_tag: None,
            version: None,
        })
    }

    async fn put_multipart_opts(
        &self,
        location: &StorePath,
        _options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let path = self.file(location)?;
        let (file, staged) = self
            .blocking({
                let path = path.clone();
                move |inner| {
                    inner.check()?;
                    Ok(inner.stage(&path)?)
                }
            })
            .await?;
        Ok(Box::new(upload::SyncedUpload::new(self.clone(), file, staged, path)))
    }

    async fn get_opts(&self, location: &StorePath, options: GetOptions) -> Result<GetResult> {
        self.inner.reads.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &StorePath, ranges: &[std::ops::Range<u64>]) -> Result<Vec<bytes::Bytes>> {
        self.inner.reads.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<StorePath>>) -> BoxStream<'static, Result<StorePath>> {
        use futures::StreamExt as _;
        let store = self.clone();
        locations
            .then(move |location| {
                let store = store.clone();
                async move {
                    let location = location?;
                    let path = store.file(&location)?;
                    store
                        .blocking(move |inner| {
                            Ok(inner
                                .disk
                                .remove_file(&path)
                                .map_err(|e| DiskFault::io("delete", &path, e))?)
                        })
                        .await?;
                    Ok(location)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&StorePath>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.reads.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&StorePath>,
        offset: &StorePath,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.reads.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&StorePath>) -> Result<ListResult> {
        self.inner.reads.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &StorePath, to: &StorePath, options: CopyOptions) -> Result<()> {
        let (from, to) = (self.file(from)?, self.file(to)?);
        let placing = match options.mode {
            CopyMode::Overwrite => StagedFilePublish::Replace,
            CopyMode::Create => StagedFilePublish::New,
        };
        self.blocking(move |inner| inner.copy(&from, &to, placing)).await
    }

    async fn rename_opts(&self, from: &StorePath, to: &StorePath, options: RenameOptions) -> Result<()> {
        let (from, to) = (self.file(from)?, self.file(to)?);
        self.blocking(move |inner| {
            inner.check()?;
            if let Some(parent) = to.parent() {
                inner.create_directories(parent)?;
            }
            let named = match options.target_mode {
                RenameTargetMode::Overwrite => inner.disk.rename(&from, &to),
                RenameTargetMode::Create => inner.disk.link(&from, &to).and_then(|()| inner.disk.remove_file(&from)),
            };
            match named {
                Ok(()) => Ok(inner.sync_parent(&to)?),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(StorePutFault::Exists(to, e)),
                Err(e) => Err(DiskFault::io("rename", &from, e).into()),
            }
        })
        .await
    }
}

pub mod cut_disk;
pub mod flaky;
pub mod simulated;
#[cfg(test)]
mod tests;
