//! A backup while others write: all indexes are held for one moment, in which it is noted how far each namespace is and what its
//! index says; then the log is read up to there. What is visible is so in an index before it is answered, so whatever was done
//! because of an answer stands behind it here as well. Records that no reader could see are left out, those that scavenging
//! would remove; offsets, and with them ids and revisions, stay what they are.

mod producer;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use thalweg_log::Offset;
use tokio::sync::OwnedRwLockReadGuard;

use super::index::{DocumentAt, IndexView};
use super::namespace::EmbeddedNamespace;
use super::{CatalogEntry, OpenNamespace, StoreInner, maintenance};
use crate::backup::{BackupHeader, BackupWriter};
use crate::error::{EventsError, Result};
use crate::store::{BackupPieces, BoxFuture};
use producer::Producer;

/// What waits for the end of the backups that are being made.
#[derive(Default)]
pub(crate) struct BackupTracker(Mutex<BackupTrackerState>);

#[derive(Default)]
struct BackupTrackerState {
    made: usize,
    /// Of namespaces that were deleted: their partitions are still read.
    numbers: Vec<u32>,
}

impl BackupTracker {
    pub fn are_made(&self) -> bool {
        self.0.lock().made > 0
    }

    /// Whether the partition of a deleted namespace has to stay, which goes when the backups have ended.
    pub fn keep(&self, number: u32) -> bool {
        let mut waiting = self.0.lock();
        if waiting.made > 0 {
            waiting.numbers.push(number);
        }
        waiting.made > 0
    }
}

/// Nothing that a backup reads is removed before it is dropped.
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
        // Where no runtime is left, the next start removes them.
        if tokio::runtime::Handle::try_current().is_ok() {
            for number in numbers {
                self.inner.free(number);
            }
        }
    }
}

/// A namespace as it was at the instant.
struct NamespaceCut {
    namespace: Arc<EmbeddedNamespace>,
    named: CatalogEntry,
    first: Offset,
    next: Offset,
    cleared_at: Offset,
    /// What stands before it is in the view, if it is in a list.
    active_from: Offset,
    view: IndexView,
    /// Documents that the view does not know yet.
    documents: BTreeMap<String, DocumentAt>,
}

pub(super) async fn begin(inner: Arc<StoreInner>) -> Result<Box<dyn BackupPieces>> {
    let kept = BackupGuard::new(inner.clone()).await;
    // So that little is in memory that has to be copied in the moment in which everything is held.
    let flushing = inner.clone();
    let flushed = tokio::task::spawn_blocking(move || maintenance::flush_all(&flushing)).await;
    if let Ok(Err(error)) = flushed {
        // As on a full disk, of which a backup is wanted all the more.
        tracing::warn!(%error, "before a backup the indexes were not written");
    }
    // No namespace and no token comes or goes meanwhile.
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
    // Nobody holds an index and waits for another meanwhile: only scavenging would, which waits.
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

/// Between two pieces nobody works on it, and no thread waits for whoever takes them.
struct BackupStream {
    /// `None` while a piece is made, and behind the end.
    producer: Option<Producer>,
}

impl BackupPieces for BackupStream {
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>>> {
        Box::pin(async move {
            // Where much is left out nothing may come for a while; whoever gives up is noticed all the same.
            while let Some(mut producer) = self.producer.take() {
                let made = tokio::task::spawn_blocking(move || {
                    let piece = producer.piece();
                    (producer, piece)
                });
                let (producer, piece) = made
                    .await
                    .map_err(|_| EventsError::Unavailable("the backup was given up".to_owned()))?;
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
