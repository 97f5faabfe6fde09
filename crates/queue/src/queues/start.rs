//! Queues at a start: all that are whole take part at once; those that a full disk has set aside do when it has room.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use smol_str::SmolStr;
use thalweg_log::{LogError, PartitionId};

use super::{Home, Queues};
use crate::catalog::Entry;
use crate::error::{QueueError, Result};
use crate::leftovers::{self, Left};
use crate::names::dead_letter_name;
use crate::queue::Queue;
use crate::recover::recover;

/// A full disk is looked at that often.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl Home {
    /// Has the queues of the catalogue take part that are whole. Returns whether none is left, and nothing else.
    pub(super) async fn open_all_but(self: &Arc<Home>, left: Left) -> Result<bool> {
        *self.set_aside.write() = left.queues;
        self.open_queues().await?;
        Ok(left.unadopted.is_empty() && self.set_aside.read().is_empty())
    }

    /// Has every queue of the catalogue take part that does not yet and is not set aside.
    async fn open_queues(self: &Arc<Home>) -> Result<()> {
        let mut entries = self.catalog.all().await;
        {
            let set_aside = self.set_aside.read();
            entries.retain(|(name, _)| !set_aside.contains_key(name));
        }
        for (name, entry) in &entries {
            if self.queues.read().contains_key(name) {
                continue;
            }
            let dead = dead_letter_name(name).ok().flatten();
            let dead = dead.and_then(|dead| entries.binary_search_by_key(&&dead, |(name, _)| name).ok());
            let dead = dead.and_then(|at| entries.get(at));
            let dead = dead.map(|(_, dead)| PartitionId::new(dead.id, 0));
            match self.open_queue(name, entry, dead).await {
                Err(QueueError::Log(error @ LogError::DiskFull { .. })) => {
                    tracing::error!(queue = %name, %error, "a queue is set aside, with all that it has, until there is room");
                    self.set_aside.write().insert(name.clone(), error);
                }
                opened => opened?,
            }
        }
        self.end_sending().await;
        Ok(())
    }

    /// Letters that a crash has left where they were, though they are messages of another queue by now, go.
    async fn end_sending(&self) {
        let queues: Vec<Arc<Queue>> = self.queues.read().values().cloned().collect();
        for queue in &queues {
            let unsure = queue.sent_here.lock().unsure();
            for (dead, letters) in unsure {
                let Some(dead) = queues.iter().find(|other| other.id == dead) else {
                    // It was deleted, if it is none of those that have no room.
                    if self.set_aside.read().is_empty() {
                        queue.sent_here.lock().are_gone(dead);
                    }
                    continue;
                };
                match dead.were_sent(&letters).await {
                    Ok(()) => queue.sent_here.lock().are_gone(dead.id),
                    Err(error) => {
                        tracing::warn!(queue = %dead.name(), %error, "letters that were sent again are gone, but that is not stored yet; the next start does it");
                    }
                }
            }
        }
    }

    async fn open_queue(self: &Arc<Home>, name: &SmolStr, entry: &Entry, dead: Option<PartitionId>) -> Result<()> {
        let queue = self.queue_of(name, entry);
        if queue.keeps_ids() {
            self.make_ids(&queue, queue.partition_count()).await?;
        }
        for group in recover(&queue, entry, dead, self.catalog.lost() > 0).await? {
            queue.add_group(Arc::new(group));
        }
        if queue.groups_now().len() > entry.groups.len() {
            self.save_as(&queue, queue.entry()).await?;
        }
        self.start(queue)
    }

    /// Does what the start had no room for, as far as there is some by now. Returns whether nothing is left of it.
    async fn finish_start(self: &Arc<Home>) -> Result<bool> {
        let _changes = self.changes.lock().await;
        if self.closing.load(Ordering::Acquire) {
            return Ok(true);
        }
        let left = leftovers::settle(&self.catalog, self.log.as_ref(), self.clock.now()).await?;
        self.open_all_but(left).await
    }

    /// Whether there was a queue of that name that the start has set aside; it is gone then.
    pub(super) async fn remove_set_aside(&self, name: &str) -> Result<bool> {
        let name = SmolStr::new(name);
        if !self.set_aside.read().contains_key(&name) {
            return Ok(false);
        }
        let entries = self.catalog.all().await;
        let id = entries
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, entry)| entry.id);
        self.catalog.remove(self.log.as_ref(), &name, self.clock.now()).await?;
        self.set_aside.write().remove(&name);
        if let Some(id) = id {
            self.clear(id).await;
        }
        Ok(true)
    }
}

/// Looks until all is done or the queues are gone.
pub(super) async fn finish_when_there_is_room(home: Weak<Home>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(home) = home.upgrade() else { return };
        match home.finish_start().await {
            Ok(true) | Err(QueueError::Log(LogError::Closed)) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "queues that were set aside stay so; it is tried again"),
        }
    }
}

impl Queues {
    /// Does what the start had no room for, as the process does by itself every few seconds. Returns whether nothing is left.
    #[doc(hidden)]
    pub async fn finish_start_now(&self) -> Result<bool> {
        self.home.finish_start().await
    }
}
