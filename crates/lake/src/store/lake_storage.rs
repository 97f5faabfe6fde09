//! Where a lake is: a folder of this machine, or what lies below a name in an object store.
//!
//! Tables are the same in both. What differs is here: a folder has one process at a time because somebody holds a lock on it, and
//! a store has a [`Lease`]; files of a folder can be opened, and those of a store are copied to the [`Spool`] first.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use object_store::local::LocalFileSystem;
use object_store::prefix::PrefixStore;
use object_store::{ObjectStore, ObjectStoreExt as _};
use thalweg_kit::files;
use thalweg_log::clock::{Clock, SystemClock};

use super::lease::{Lease, LeaseError, LeaseHolder};
use super::rate_limiter::RateLimiter;
use super::spool::{PART_BYTES, Spool};
use super::{StorePath, SyncedStore};
use crate::delta::{DeltaError, DeltaLog};

/// What is put aside goes to this machine's disk after so long.
const SET_ASIDE_WITHIN: Duration = Duration::from_secs(5);

/// See the module. Clones are the same site.
#[derive(Clone)]
pub struct LakeStorage {
    /// Of a store its URL, for people.
    path: PathBuf,
    kind: LakeStorageKind,
    clock: Arc<dyn Clock>,
}

#[derive(Clone)]
enum LakeStorageKind {
    Folder(SyncedStore),
    Remote(Arc<RemoteStorage>),
}

/// What a process has on its own disk for a lake on an object store.
#[derive(Clone, Debug)]
pub struct ScratchOptions {
    /// `lake/_thalweg` of the data folder; made when it is needed.
    pub folder: PathBuf,
    /// Of copies of files, in bytes.
    pub spool_bytes: u64,
    /// Stays free on the disk, in bytes.
    pub free_min: u64,
    /// Of copies and of files that merges make; 0 is no limit.
    pub bytes_per_second: u64,
}

/// A lake on an object store.
#[derive(Debug)]
pub(crate) struct RemoteStorage {
    pub store: Arc<dyn ObjectStore>,
    prefix: StorePath,
    /// [`ScratchOptions::folder`]
    scratch: PathBuf,
    pub spool: Arc<Spool>,
    pub pace: RateLimiter,
    pub lease: Arc<Lease>,
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

    /// What lies below `prefix` in a store. Nothing is asked of it yet.
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

    /// By which it is told what is old enough to go.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> LakeStorage {
        LakeStorage { clock, ..self }
    }

    /// As people know it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_remote(&self) -> bool {
        matches!(self.kind, LakeStorageKind::Remote(_))
    }

    /// Of a lake on an object store: the folder of this machine for what belongs to it.
    pub(crate) fn scratch(&self) -> Option<&Path> {
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

    /// The tables of a folder, sorted; none of a store, which only [`LakeStorage::tables`] knows.
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

    /// A store whose root is the lake, to read from.
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

    /// Makes this process the one that writes the lake, until [`LakeStorage::release`], as far as the site itself has to see to that.
    pub async fn claim(&self) -> Result<(), LeaseError> {
        match &self.kind {
            LakeStorageKind::Folder(_) => Ok(()),
            LakeStorageKind::Remote(remote) => remote.lease.claim().await,
        }
    }

    /// What is to be said when the store has not answered within a time.
    pub fn late(&self, within: Duration) -> LeaseError {
        let text = format!("it did not answer within {} s", within.as_secs());
        LeaseError::Store {
            lake: self.path.display().to_string(),
            source: object_store::Error::Generic {
                store: "object store",
                source: text.into(),
            },
        }
    }

    /// Whoever waits for the lake may write it.
    pub async fn release(&self) {
        if let LakeStorageKind::Remote(remote) = &self.kind {
            remote.lease.release().await;
        }
    }

    /// Who writes the lake, and for how many seconds it has not said so. A folder knows of nobody.
    pub async fn holder(&self) -> Result<Option<(LeaseHolder, u64)>, DeltaError> {
        match &self.kind {
            LakeStorageKind::Folder(_) => Ok(None),
            LakeStorageKind::Remote(remote) => Ok(remote.lease.holder().await?),
        }
    }

    /// Puts what cannot be read aside; returns where it is. On this machine, when the store does not take it soon: whoever reads the
    /// log waits for it.
    pub(crate) async fn set_aside(&self, name: &str, bytes: Bytes) -> object_store::Result<PathBuf> {
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

    /// Makes the folders of a table.
    pub(crate) async fn make_folders(&self, table: &str) -> Result<(), super::DiskFault> {
        let LakeStorageKind::Folder(store) = &self.kind else {
            return Ok(());
        };
        let (store, log) = (store.clone(), self.path.join(table).join("_delta_log"));
        let made = tokio::task::spawn_blocking(move || store.create_directories(&log)).await;
        // It cannot be told more of a thread that came to nothing.
        made.unwrap_or(Ok(()))
    }
}

impl RemoteStorage {
    /// Writes a file, in parts if it is large, so that memory and requests hold one of them. Names are never used twice, so an
    /// attempt whose answer was lost may be made again.
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
            // What cannot be taken back now, the store's rules for unfinished uploads take.
            let _ = upload.abort().await;
        }
        sent
    }

    /// The same with a file of this machine.
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

    /// The same with bytes that are there.
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

/// Who this is to others. Without a data folder it is somebody new each time.
fn this_process(scratch: &Path) -> LeaseHolder {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    LeaseHolder {
        id: holder_id(scratch).unwrap_or_else(|| uuid::Uuid::new_v4().to_string()),
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

/// Of a data folder, made once.
fn holder_id(scratch: &Path) -> Option<String> {
    let path = scratch.join("holder");
    if let Ok(known) = std::fs::read_to_string(&path)
        && let Ok(id) = uuid::Uuid::parse_str(known.trim())
    {
        return Some(id.to_string());
    }
    let id = uuid::Uuid::new_v4().to_string();
    files::create_folders(scratch).ok()?;
    files::write_whole(&path, id.as_bytes()).ok()?;
    Some(id)
}
