//! A file written in parts. It is durable and visible once it is completed; otherwise it is removed.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use futures::FutureExt as _;
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};
use parking_lot::Mutex;

use super::{DiskFault, StagedFilePublish, StorePutFault, SyncedStore};

const SYNC_BYTES: usize = 8 << 20;

#[derive(Debug)]
pub(super) struct SyncedUpload {
    store: SyncedStore,
    state: Arc<Mutex<SyncedUploadState>>,
    staged: PathBuf,
    path: PathBuf,
    parts: usize,
    ended: bool,
}

/// Parts may be polled in any order; they are written in the order of their calls.
#[derive(Debug)]
struct SyncedUploadState {
    file: File,
    next: usize,
    /// Bytes since the last sync.
    unsynced: usize,
    early: std::collections::BTreeMap<usize, PutPayload>,
}

impl SyncedUpload {
    pub(super) fn new(store: SyncedStore, file: File, staged: PathBuf, path: PathBuf) -> SyncedUpload {
        let state = SyncedUploadState {
            file,
            next: 0,
            unsynced: 0,
            early: Default::default(),
        };
        SyncedUpload {
            store,
            state: Arc::new(Mutex::new(state)),
            staged,
            path,
            parts: 0,
            ended: false,
        }
    }
}

#[async_trait]
impl MultipartUpload for SyncedUpload {
    fn put_part(&mut self, payload: PutPayload) -> UploadPart {
        let part = self.parts;
        self.parts += 1;
        let (store, state, staged) = (self.store.clone(), self.state.clone(), self.staged.clone());
        async move {
            store
                .blocking(move |inner| {
                    let mut state = state.lock();
                    let state = &mut *state;
                    state.early.insert(part, payload);
                    while let Some(payload) = state.early.remove(&state.next) {
                        for bytes in payload.iter() {
                            let written = inner.disk.write(&mut state.file, &staged, bytes);
                            written.map_err(|e| DiskFault::io("write", &staged, e))?;
                            state.unsynced += bytes.len();
                        }
                        // One long sync at the end would delay the syncs of all others.
                        if state.unsynced >= SYNC_BYTES {
                            state.unsynced = 0;
                            let synced = inner.disk.sync_file(&state.file, &staged);
                            synced.map_err(|e| inner.poison(DiskFault::sync(&staged, e)))?;
                        }
                        state.next += 1;
                    }
                    Ok(())
                })
                .await
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.ended = true;
        let (state, staged, path, parts) = (self.state.clone(), self.staged.clone(), self.path.clone(), self.parts);
        self.store
            .blocking(move |inner| {
                let state = state.lock();
                if state.next != parts {
                    let _ = inner.disk.remove_file(&staged);
                    let missing = std::io::Error::other("a part was not written");
                    return Err(StorePutFault::Disk(DiskFault::io("complete", &path, missing)));
                }
                inner.finish(&state.file, &staged, &path, StagedFilePublish::Replace)
            })
            .await?;
        Ok(PutResult {
            e_tag: None,
            version: None,
        })
    }

    async fn abort(&mut self) -> Result<()> {
        self.ended = true;
        let staged = self.staged.clone();
        self.store
            .blocking(move |inner| {
                Ok(inner
                    .disk
                    .remove_file(&staged)
                    .map_err(|e| DiskFault::io("delete", &staged, e))?)
            })
            .await
    }
}

impl Drop for SyncedUpload {
    fn drop(&mut self) {
        if !self.ended {
            let _ = self.store.inner.disk.remove_file(&self.staged);
        }
    }
}
