//! Background work: writes and merges tables, and frees space.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

use thalweg_kit::{blocking, threads};
use thalweg_log::{Offset, ReadOptions};

use super::index::KeySpace;
use super::namespace::{EmbeddedNamespace, StoreContext};
use super::{StoreInner, scavenge};
use crate::error::{EventsError, Result};

/// The pause after a failure, and the interval for checking whether the store still exists.
const AGAIN: Duration = Duration::from_secs(1);
/// The scavenge interval in units of `AGAIN`.
const SCAVENGED: u32 = 600;
/// The polling interval while waiting for a sync.
const SYNC: Duration = Duration::from_millis(5);

/// Starts the background tasks. They end when the store is dropped.
pub(super) fn start(inner: &Arc<StoreInner>) {
    tokio::spawn(flushes(Arc::downgrade(inner)));
    tokio::spawn(merges(Arc::downgrade(inner)));
    tokio::spawn(scavenges(Arc::downgrade(inner), SCAVENGED));
}

async fn flushes(weak: Weak<StoreInner>) {
    let Some(table_store) = weak.upgrade().map(|inner| inner.place.table_store.clone()) else {
        return;
    };
    loop {
        if !table_store.has_enough() {
            let _ = tokio::time::timeout(AGAIN, table_store.enough.notified()).await;
        }
        let Some(inner) = weak.upgrade() else { return };
        if !table_store.has_enough() {
            continue;
        }
        let done = blocking::spawn(move || flush_all(&inner));
        match done.await {
            // A namespace that is being deleted may stay counted for a moment.
            Ok(Ok(())) if table_store.has_enough() => tokio::time::sleep(SYNC).await,
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(error)) => {
                tracing::error!(%error, "cannot write indexes of events; retrying");
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

async fn merges(weak: Weak<StoreInner>) {
    loop {
        let Some(inner) = weak.upgrade() else { return };
        let merged = blocking::spawn(move || merge_once(&inner));
        match merged.await {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) | Err(_) => tokio::time::sleep(AGAIN).await,
            Ok(Err(error)) => {
                tracing::error!(%error, "cannot merge indexes of events; retrying");
                tokio::time::sleep(10 * AGAIN).await;
            }
        }
    }
}

/// Merges tables, or removes dead entries from them. Returns whether it did. Blocks.
pub(super) fn merge_once(inner: &StoreInner) -> Result<bool> {
    let merged = inner.place.table_store.merge(&|space| inner.lives(space));
    Ok(merged.map_err(indexes_failed)? || inner.clear_out()?)
}

/// Scavenges periodically if a rule may hide messages.
pub(super) async fn scavenges(weak: Weak<StoreInner>, every: u32) {
    loop {
        for _ in 0..every {
            tokio::time::sleep(AGAIN).await;
            if weak.strong_count() == 0 {
                return;
            }
        }
        let Some(inner) = weak.upgrade() else { return };
        if inner.all().iter().all(|namespace| !namespace.has_leftovers()) {
            continue;
        }
        match scavenge::scavenge(inner).await {
            Ok(scavenged) => tracing::info!(
                messages = scavenged.messages,
                bytes = scavenged.bytes,
                "the space of hidden messages was freed"
            ),
            Err(error) => tracing::warn!(%error, "cannot free the space of hidden messages; retrying"),
        }
    }
}

impl EmbeddedNamespace {
    /// Whether there may be stored messages that nobody can see.
    fn has_leftovers(&self) -> bool {
        let cleared_at = self.index.read().state.cleared_at;
        let first = self.place.log.bounds(self.partition).map_or(0, |bounds| bounds.first);
        !self.rules().is_empty() || first < cleared_at
    }
}

impl StoreInner {
    pub(super) fn all(&self) -> Vec<Arc<EmbeddedNamespace>> {
        self.namespaces
            .read()
            .all()
            .map(|opened| opened.namespace.clone())
            .collect()
    }

    /// Whether a key space is still in use.
    pub(super) fn lives(&self, space: KeySpace) -> bool {
        let own = self.namespaces.read().of_number(space.namespace).cloned();
        own.is_some_and(|namespace| space.cleared == 0 || namespace.index.read().keeps(space))
    }

    /// Removes dead entries from tables if they are the majority. Blocks.
    fn clear_out(&self) -> Result<bool> {
        let table_store = &self.place.table_store;
        let of_use = || {
            self.all()
                .iter()
                .map(|namespace| namespace.index.read().state.messages)
                .sum()
        };
        let Some(useless) = table_store.useless_beyond(of_use) else {
            return Ok(false);
        };
        // So that the tables know of the clearings.
        flush_all(self)?;
        let cleared_out = table_store.clear_out(useless, &|space| self.lives(space));
        cleared_out.map(|()| true).map_err(indexes_failed)
    }
}

fn indexes_failed(error: io::Error) -> EventsError {
    EventsError::Unavailable(format!("the folder of indexes: {error}"))
}

pub(super) fn flush_all(inner: &StoreInner) -> Result<()> {
    flush(&inner.place, || inner.all(), &|space| inner.lives(space))
}

/// Writes the memtables of some namespaces as a table. Blocks.
pub(super) fn flush(
    place: &StoreContext,
    namespaces: impl FnOnce() -> Vec<Arc<EmbeddedNamespace>>,
    lives: &dyn Fn(KeySpace) -> bool,
) -> Result<()> {
    let (mut all, mut synced) = (Vec::new(), Ok(()));
    let flushed = place.table_store.flush(
        || {
            all = namespaces();
            let frozen = all.iter().filter_map(|namespace| {
                let frozen = namespace.freeze()?;
                let next = frozen.state.lock().next_offset;
                // A namespace that cannot be synced does not hold up the others.
                match until_synced(namespace, next) {
                    Ok(()) => Some(frozen),
                    Err(_) if namespace.is_gone() => None,
                    Err(error) => {
                        synced = Err(error);
                        None
                    }
                }
            });
            frozen.collect()
        },
        lives,
    );
    // After a failure too: the frozen memtables stay readable and are written with the next attempt.
    for namespace in &all {
        namespace.index.write().thaw();
    }
    let flushed = flushed.map_err(indexes_failed);
    let done = synced.and(flushed);
    let error = done.as_ref().err().map(ToString::to_string);
    place.table_store.attempted(error);
    done
}

/// Waits until the log is synced up to an offset. A table contains nothing that a power cut may take from the log, and
/// nothing is removed from tables because of such records.
pub(super) fn until_synced(namespace: &EmbeddedNamespace, next: Offset) -> Result<()> {
    let (place, id) = (&namespace.place, namespace.partition);
    while place.log.bounds(id).is_ok_and(|bounds| bounds.synced < next) {
        // The read triggers a sync if nothing else does.
        let want = ReadOptions { bytes: 1, synced: true };
        let _ = place.log.read(id, next - 1, want);
        // A log that refuses writes never syncs; the flush returns its error.
        threads::block_on(&tokio::runtime::Handle::current(), place.log.flush(&[id]))?;
        threads::sleep(SYNC);
    }
    Ok(())
}
