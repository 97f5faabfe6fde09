//! A backup during concurrent writes. All indexes are locked for one moment, in which the end of each namespace and the
//! state of its index are recorded; then the log is read up to those ends. A change is in an index before its reply, so
//! everything that was caused by a reply comes later in the backup too. Records that no reader can see are left out, as
//! scavenging would do; offsets, and with them ids and revisions, stay unchanged.

mod producer;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_kit::blocking;
use thalweg_log::Offset;
use tokio::sync::OwnedRwLockReadGuard;

use super::index::{DocumentAt, IndexView};
use super::namespace::EmbeddedNamespace;
use super::{CatalogEntry, OpenNamespace, StoreInner, maintenance};
use crate::backup::{BackupHeader, BackupWriter};
use crate::error::{EventsError, Result};
use crate::store::{BackupPieces, BoxFuture};
use producer::Producer;

/// Work that waits for the end of running backups.
#[derive(Default)]
pub(crate) struct BackupTracker(Mutex<BackupTrackerState>);

#[derive(Default)]
struct BackupTrackerState {
    made: usize,
    /// Deleted namespaces whose partitions are still being read.
    numbers: Vec<u32>,
}

impl BackupTracker {
    pub fn are_made(&self) -> bool {
        self.0.lock().made > 0
    }

    /// Whether the partition of a deleted namespace must be kept. It is then removed when the backups have ended.
    pub fn keep(&self, number: u32) -> bool {
        let mut waiting = self.0.lock();
        if waiting.made > 0 {
            waiting.numbers.push(number);
        }
        waiting.made > 0
    }
}

/// Prevents the removal of data that a backup reads until it is dropped.
struct BackupGuard {
    inner: Arc<StoreInner>,
    _unscavenged: OwnedRwLockReadGuard<()>,
}

impl BackupGuard {
    async fn new(inner: Arc<StoreInner>) -> BackupGuard {
        let unscavenged = inner.scavenging.clone().read_owned().await;
        inner.place.backups.0.lock().made += 1;
        BackupGuard {
            inner,
            _unscavenged: unscavenged,
        }
    }
}

impl Drop for BackupGuard {
    fn drop(&mut self) {
        let numbers = {
            let mut waiting = self.inner.place.backups.0.lock();
            waiting.made -= 1;
            match waiting.made {
                0 => std::mem::take(&mut waiting.numbers),
                _ => Vec::new(),
            }
        };
        // Without a runtime, the next start removes them.
        if tokio::runtime::Handle::try_current().is_ok() {
            for number in numbers {
                self.inner.free(number);
            }
        }
    }
}

/// A namespace at the instant of the backup.
struct NamespaceCut {
    namespace: Arc<EmbeddedNamespace>,
    named: CatalogEntry,
    first: Offset,
    next: Offset,
    cleared_at: Offset,
    /// Messages before this offset are in the view if they are in a list at all.
    active_from: Offset,
    view: IndexView,
    /// Documents that are not in the view yet.
    documents: BTreeMap<String, DocumentAt>,
}

pub(super) async fn begin(inner: Arc<StoreInner>) -> Result<Box<dyn BackupPieces>> {
    let kept = BackupGuard::new(inner.clone()).await;
    // This reduces the in-memory data that must be copied while all indexes are locked.
    let flushing = inner.clone();
    let flushed = blocking::spawn(move || maintenance::flush_all(&flushing)).await;
    if let Ok(Err(error)) = flushed {
        // The disk may be full, which makes a backup even more desirable.
        tracing::warn!(%error, "the indexes were not written before a backup");
    }
    // Prevents changes to namespaces and tokens meanwhile.
    let catalog = inner.catalog.lock().await;
    let cuts = cut(&inner)?;
    let time = inner.now();
    drop(catalog);
    let begin = BackupHeader {
        made_by: env!("CARGO_PKG_VERSION").to_owned(),
        time,
        namespaces: cuts.len() as u64,
    };
    let mut out = Vec::new();
    let writer = BackupWriter::new(&begin, &mut out)?;
    Ok(Box::new(BackupStream {
        producer: Some(Producer::new(cuts, writer, out, kept)),
    }))
}

fn cut(inner: &StoreInner) -> Result<Vec<NamespaceCut>> {
    let mut all: Vec<OpenNamespace> = inner.namespaces.read().all().cloned().collect();
    all.sort_by_key(|opened| opened.namespace.number);
    // No deadlock: nobody holds one index while waiting for another, except for scavenging, which is blocked.
    let held: Vec<_> = all.iter().map(|opened| opened.namespace.index.read()).collect();
    let cuts = all.iter().zip(&held).map(|(opened, index)| {
        let namespace = opened.namespace.clone();
        Ok(NamespaceCut {
            first: inner.place.log.bounds(namespace.partition)?.first,
            next: index.state.next_offset,
            cleared_at: index.state.cleared_at,
            active_from: match inner.place.in_memory {
                true => 0,
                false => index.active_from(),
            },
            view: index.view(),
            documents: index.documents_here("", ""),
            named: opened.named(),
            namespace,
        })
    });
    cuts.collect()
}

/// Produces nothing between two pieces, and blocks no thread while it waits for its consumer.
struct BackupStream {
    /// `None` while a piece is being produced, and after the end.
    producer: Option<Producer>,
}

impl BackupPieces for BackupStream {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>>> {
        Box::pin(async move {
            // If much is left out, a piece may be empty. Returning in between lets a cancelled caller be noticed.
            while let Some(mut producer) = self.producer.take() {
                let made = blocking::spawn(move || {
                    let piece = producer.piece();
                    (producer, piece)
                });
                let (producer, piece) = made
                    .await
                    .map_err(|_| EventsError::Unavailable("the backup was interrupted".to_owned()))?;
                let Some(piece) = piece? else { return Ok(None) };
                self.producer = Some(producer);
                if !piece.is_empty() {
                    return Ok(Some(piece.into()));
                }
            }
            Ok(None)
        })
    }
}
