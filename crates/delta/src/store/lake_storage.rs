//! The location of a lake: a folder of this machine, or a prefix in an object store.
//!
//! Tables are the same in both. The differences are handled here: a folder has one process at a time because of a file
//! lock, a store has a [`Lease`]; files of a folder can be opened, those of a store are first copied to the [`Spool`].

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt as _};
use thalweg_kit::clock::{Clock, SystemClock};
use thalweg_kit::{blocking, files, random};

use super::lease::{Lease, LeaseError, LeaseHolder};
use super::rate_limiter::RateLimiter;
use super::spool::{PART_BYTES, Spool};
use super::{StorePath, SyncedStore};
use crate::{DeltaError, DeltaLog};

/// A quarantined file goes to this machine's disk if the store does not accept it in this time.
const SET_ASIDE_WITHIN: Duration = Duration::from_secs(5);

/// See the module. Clones share the storage.
#[derive(Clone)]
pub struct LakeStorage {
    /// The URL of a store, for messages.
    path: PathBuf,
    kind: LakeStorageKind,
    clock: Arc<dyn Clock>,
}

#[derive(Clone)]
enum LakeStorageKind {
    Folder(SyncedStore),
    Remote(Arc<RemoteStorage>),
}

/// The local disk space of a process for a lake on an object store.
#[derive(Clone, Debug)]
pub struct ScratchOptions {
    /// `lake/_thalweg` of the data folder; created when needed.
    pub folder: PathBuf,
    /// The limit of file copies, in bytes.
    pub spool_bytes: u64,
    /// Disk space that stays free, in bytes.
    pub free_min: u64,
    /// The rate limit for copies and merged files; 0 is no limit.
    pub bytes_per_second: u64,
}

/// A lake on an object store.
#[derive(Debug)]
pub struct RemoteStorage {
    pub store: Arc<dyn ObjectStore>,
    prefix: StorePath,
    /// [`ScratchOptions::folder`]
    scratch: PathBuf,
    pub spool: Arc<Spool>,
    pub pace: RateLimiter,
    pub(crate) lease: Arc<Lease>,
}

impl std::fmt::Debug for LakeStorage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LakeStorage({})", self.path.display())
    }
}

impl LakeStorage {
    /// A folder, which need not exist.
    pub fn folder(path: &Path, store: SyncedStore) -> LakeStorage {
        LakeStorage {
            path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()),
            kind: LakeStorageKind::Folder(store),
            clock: Arc::new(SystemClock),
        }
    }

    /// A prefix in a store. No request is sent yet.
    pub fn remote(url: &str, store: Arc<dyn ObjectStore>, prefix: StorePath, scratch: &ScratchOptions) -> LakeStorage {
        let folder = scratch.folder.clone();
        let lease = Lease::new(url, store.clone(), &prefix, move || this_process(&folder));
        LakeStorage::with_lease(url, store, prefix, scratch, lease)
    }

    pub(crate) fn with_lease(
        url: &str,
        store: Arc<dyn ObjectStore>,
        prefix: StorePath,
        scratch: &ScratchOptions,
        lease: Arc<Lease>,
    ) -> LakeStorage {
        let spool = Spool::new(&scratch.folder.join("spool"), scratch.spool_bytes, scratch.free_min);
        let remote = RemoteStorage {
            store,
            prefix,
            scratch: std::path::absolute(&scratch.folder).unwrap_or_else(|_| scratch.folder.clone()),
            spool: Arc::new(spool),
            pace: RateLimiter::new(scratch.bytes_per_second),
            lease,
        };
        LakeStorage {
            path: url.trim_end_matches('/').into(),
            kind: LakeStorageKind::Remote(Arc::new(remote)),
            clock: Arc::new(SystemClock),
        }
    }

    /// Sets the clock that decides what is old enough to delete.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> LakeStorage {
        LakeStorage { clock, ..self }
    }

    /// The location, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_remote(&self) -> bool {
        matches!(self.kind, LakeStorageKind::Remote(_))
    }

    /// The local folder of a lake on an object store.
    pub fn scratch(&self) -> Option<&Path> {
        match &self.kind {
            LakeStorageKind::Folder(_) => None,
            LakeStorageKind::Remote(remote) => Some(&remote.scratch),
        }
    }

    /// The log of a table, which need not exist.
    pub fn log(&self, table: &str) -> Result<DeltaLog, DeltaError> {
        let log = match &self.kind {
            LakeStorageKind::Folder(store) => DeltaLog::new(&self.path.join(table), store.clone())?,
            LakeStorageKind::Remote(remote) => {
                let prefix = remote.prefix.clone().join(table);
                DeltaLog::on(remote.clone(), self.path.join(table), prefix)
            }
        };
        Ok(log.with_clock(self.clock.clone()))
    }

    /// The names of its tables, sorted.
    pub async fn tables(&self) -> Result<Vec<String>, DeltaError> {
        match &self.kind {
            LakeStorageKind::Folder(_) => Ok(self.folders()),
            LakeStorageKind::Remote(remote) => {
                let listed = remote.store.list_with_delimiter(Some(&remote.prefix)).await;
                let mut names = Vec::new();
                for folder in listed?.common_prefixes {
                    let Some(name) = folder.filename().filter(|name| !name.starts_with('_')) else {
                        continue;
                    };
                    let commits = folder.clone().join("_delta_log");
                    if remote.store.list(Some(&commits)).try_next().await?.is_some() {
                        names.push(name.to_owned());
                    }
                }
                names.sort();
                Ok(names)
            }
        }
    }

    /// The tables of a folder, sorted. Empty for a store; use [`LakeStorage::tables`] there.
    pub fn folders(&self) -> Vec<String> {
        if self.is_remote() {
            return Vec::new();
        }
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let is_table = |entry: &std::fs::DirEntry| {
            let commits = std::fs::read_dir(entry.path().join("_delta_log"));
            commits.is_ok_and(|mut commits| commits.next().is_some())
        };
        let tables = entries.filter(is_table);
        let mut names: Vec<String> = tables
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// A store for reading, whose root is the lake.
    pub fn reader(&self) -> Result<Arc<dyn ObjectStore>, DeltaError> {
        Ok(match &self.kind {
            LakeStorageKind::Folder(_) => {
                let prefix = StorePath::from_absolute_path(&self.path);
                let prefix = prefix.map_err(|source| object_store::Error::InvalidPath { source })?;
                Arc::new(PrefixStore::new(LocalFileSystem::new(), prefix))
            }
            LakeStorageKind::Remote(remote) => Arc::new(PrefixStore::new(remote.store.clone(), remote.prefix.clone())),
        })
    }

    /// Makes this process the writer of the lake until [`LakeStorage::release`]. For a folder this does nothing,
    /// because its lock is taken elsewhere.
    pub async fn claim(&self) -> Result<(), LeaseError> {
        match &self.kind {
            LakeStorageKind::Folder(_) => Ok(()),
            LakeStorageKind::Remote(remote) => remote.lease.claim().await,
        }
    }

    /// The error for a store that has not responded in time.
    pub fn late(&self, within: Duration) -> LeaseError {
        let text = format!("it did not respond within {} s", within.as_secs());
        LeaseError::Store {
            lake: self.path.display().to_string(),
            source: object_store::Error::Generic {
                store: "object store",
                source: text.into(),
            },
        }
    }

    /// Lets another process write the lake.
    pub async fn release(&self) {
        if let LakeStorageKind::Remote(remote) = &self.kind {
            remote.lease.release().await;
        }
    }

    /// The lease holder, and the seconds since its last renewal. A folder has no lease.
    pub async fn holder(&self) -> Result<Option<(LeaseHolder, u64)>, DeltaError> {
        match &self.kind {
            LakeStorageKind::Folder(_) => Ok(None),
            LakeStorageKind::Remote(remote) => Ok(remote.lease.holder().await?),
        }
    }

    /// Quarantines data that cannot be read, and returns its location. It goes to this machine if the store is slow,
    /// because the log reader waits for it.
    pub async fn set_aside(&self, name: &str, bytes: Bytes) -> object_store::Result<PathBuf> {
        if let LakeStorageKind::Remote(remote) = &self.kind {
            let to = remote.prefix.clone().join("_thalweg").join("quarantine").join(name);
            let put = remote.store.put(&to, bytes.clone().into());
            if let Ok(Ok(_)) = tokio::time::timeout(SET_ASIDE_WITHIN, put).await {
                return Ok(self.path.join("_thalweg/quarantine").join(name));
            }
        }
        let (folder, store) = match &self.kind {
            LakeStorageKind::Folder(store) => (self.path.join("_thalweg/quarantine"), store.clone()),
            LakeStorageKind::Remote(remote) => (remote.scratch.join("quarantine"), SyncedStore::new()),
        };
        let path = folder.join(name);
        let to = StorePath::from_absolute_path(&path);
        let to = to.map_err(|source| object_store::Error::InvalidPath { source })?;
        store.put(&to, bytes.into()).await?;
        Ok(path)
    }

    /// Creates the folders of a table.
    pub async fn make_folders(&self, table: &str) -> Result<(), super::DiskFault> {
        let LakeStorageKind::Folder(store) = &self.kind else {
            return Ok(());
        };
        let (store, log) = (store.clone(), self.path.join(table).join("_delta_log"));
        let made = blocking::spawn(move || store.create_directories(&log)).await;
        // The task was cancelled; no further error is known.
        made.unwrap_or(Ok(()))
    }
}

impl RemoteStorage {
    /// Uploads a file, in parts if it is large, so that only a few parts are in memory. Names are never reused, so an
    /// attempt whose response was lost may be repeated.
    pub async fn upload(
        &self,
        to: &StorePath,
        mut next: impl FnMut() -> std::io::Result<Option<Bytes>>,
    ) -> object_store::Result<()> {
        let broken = |error| super::generic(super::DiskFault::io("read", self.spool.folder(), error));
        let first = next().map_err(broken)?.unwrap_or_default();
        let Some(second) = next().map_err(broken)? else {
            return self.store.put(to, first.into()).await.map(drop);
        };
        let mut upload = self.store.put_multipart(to).await?;
        let mut piece = Some(first);
        let mut following = Some(second);
        let sent = async {
            while let Some(bytes) = piece.take() {
                upload.put_part(bytes.into()).await?;
                piece = match following.take() {
                    Some(bytes) => Some(bytes),
                    None => next().map_err(broken)?,
                };
            }
            upload.complete().await.map(drop)
        };
        let sent = sent.await;
        if sent.is_err() {
            // If the abort fails, the store's rules for incomplete uploads remove the parts.
            let _ = upload.abort().await;
        }
        sent
    }

    /// Uploads a local file.
    pub async fn upload_file(&self, to: &StorePath, from: &Path) -> Result<(), DeltaError> {
        let failed = |error| super::generic(super::DiskFault::io("read", from, error));
        let mut file = std::fs::File::open(from).map_err(failed)?;
        let next = || {
            let mut piece = Vec::with_capacity(PART_BYTES);
            (&mut file).take(PART_BYTES as u64).read_to_end(&mut piece)?;
            Ok((!piece.is_empty()).then(|| Bytes::from(piece)))
        };
        Ok(self.upload(to, next).await?)
    }

    /// Uploads bytes in memory.
    pub async fn upload_bytes(&self, to: &StorePath, bytes: &Bytes) -> object_store::Result<()> {
        let mut begin = 0;
        let next = || {
            let end = bytes.len().min(begin + PART_BYTES);
            let piece = (begin < end).then(|| bytes.slice(begin..end));
            begin = end;
            Ok(piece)
        };
        self.upload(to, next).await
    }
}

/// Identifies this process in the lease. Without a data folder the id is new each time.
fn this_process(scratch: &Path) -> LeaseHolder {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    LeaseHolder {
        id: holder_id(scratch).unwrap_or_else(|| random::uuid().to_string()),
        host: match host.trim() {
            "" => "this machine".to_owned(),
            host => host.to_owned(),
        },
        process: std::process::id(),
        data_dir: scratch.ancestors().nth(2).unwrap_or(scratch).display().to_string(),
        renewed_unix_ms: 0,
        is_released: false,
    }
}

/// The id of a data folder, created once.
fn holder_id(scratch: &Path) -> Option<String> {
    let path = scratch.join("holder");
    if let Ok(known) = std::fs::read_to_string(&path)
        && let Ok(id) = uuid::Uuid::parse_str(known.trim())
    {
        return Some(id.to_string());
    }
    let id = random::uuid().to_string();
    files::create_folders(scratch).ok()?;
    files::write_whole(&path, id.as_bytes()).ok()?;
    Some(id)
}
