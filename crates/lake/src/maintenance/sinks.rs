//! The destinations of output files: the folder of the table or an object store, written in pieces and rate-limited.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object_store::{MultipartUpload, PutPayload};
use tokio::runtime::Handle;

use thalweg_columns::compaction::{FileSink, MergeError};
use thalweg_delta::DeltaLog;
use thalweg_delta::store::{PART_BYTES, RateLimiter, RemoteStorage, SpoolWriter, fault_text};
use thalweg_kit::threads;

/// The size of a piece. Small pieces keep the disk available for others.
const PIECE_BYTES: usize = 1 << 20;

/// A file in the folder of a table.
pub(super) struct FolderFileSink {
    upload: Box<dyn MultipartUpload>,
    runtime: Handle,
    pace: Arc<RateLimiter>,
    path: PathBuf,
}

impl FolderFileSink {
    pub fn begin(
        log: &DeltaLog,
        relative: String,
        runtime: &Handle,
        pace: Arc<RateLimiter>,
    ) -> Result<FolderFileSink, MergeError> {
        let failed = |error: &dyn std::fmt::Display| MergeError::Sink(error.to_string());
        let path = log.path(&relative).map_err(|error| failed(&error))?;
        let upload = threads::block_on(runtime, log.store().put_multipart_opts(&path, Default::default()));
        Ok(FolderFileSink {
            upload: upload.map_err(|error| failed(&error))?,
            runtime: runtime.clone(),
            pace,
            path: log.table().join(relative),
        })
    }
}

impl FileSink for FolderFileSink {
    fn write(&mut self, bytes: Vec<u8>) -> Result<(), MergeError> {
        let bytes = bytes::Bytes::from(bytes);
        for begin in (0..bytes.len()).step_by(PIECE_BYTES) {
            let piece = bytes.slice(begin..bytes.len().min(begin + PIECE_BYTES));
            self.pace.wait(piece.len());
            let part = self.upload.put_part(PutPayload::from(piece));
            let put = threads::block_on(&self.runtime, part);
            put.map_err(|error| MergeError::Sink(error.to_string()))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), MergeError> {
        let done = threads::block_on(&self.runtime, self.upload.complete());
        done.map(|_| ()).map_err(|error| MergeError::Sink(error.to_string()))
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

/// A file of a table on an object store. It is written locally, where the job reads it back to verify it, and uploaded
/// when it is complete, because the parts of an upload cannot be read.
pub(super) struct RemoteFileSink {
    remote: Arc<RemoteStorage>,
    to: object_store::path::Path,
    spool_writer: SpoolWriter,
    runtime: Handle,
}

impl RemoteFileSink {
    pub fn begin(
        log: &DeltaLog,
        remote: &Arc<RemoteStorage>,
        relative: &str,
        runtime: &Handle,
    ) -> Result<RemoteFileSink, MergeError> {
        let to = log
            .path(relative)
            .map_err(|error| MergeError::Sink(error.to_string()))?;
        let spool_writer = remote.spool.begin(&format!("{}/{relative}", log.table_name()));
        Ok(RemoteFileSink {
            remote: remote.clone(),
            to,
            spool_writer: spool_writer.map_err(|error| MergeError::Sink(fault_text(&error)))?,
            runtime: runtime.clone(),
        })
    }
}

impl FileSink for RemoteFileSink {
    fn write(&mut self, bytes: Vec<u8>) -> Result<(), MergeError> {
        for piece in bytes.chunks(PIECE_BYTES) {
            self.remote.pace.wait(piece.len());
            let written = self.spool_writer.write(piece);
            written.map_err(|error| MergeError::Sink(fault_text(&error)))?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), MergeError> {
        let mut file = File::open(self.spool_writer.path()).map_err(|error| MergeError::Sink(error.to_string()))?;
        let pace = &self.remote.pace;
        let next = || {
            let mut piece = Vec::with_capacity(PART_BYTES);
            (&mut file).take(PART_BYTES as u64).read_to_end(&mut piece)?;
            pace.wait(piece.len());
            Ok((!piece.is_empty()).then(|| piece.into()))
        };
        let sent = threads::block_on(&self.runtime, self.remote.upload(&self.to, next));
        sent.map_err(|error| MergeError::Sink(fault_text(&error)))?;
        self.spool_writer.keep();
        Ok(())
    }

    fn path(&self) -> &Path {
        self.spool_writer.path()
    }
}
