//! Start of the queues: intact queues are put into service at once; those set aside because of a full disk follow when
//! it has room.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use smol_str::SmolStr;
use thalweg_kit::blocking;
use thalweg_log::{LogError, PartitionId};

use super::{QueueRegistry, Queues};
use crate::catalog::QueueEntry;
use crate::error::{QueueError, Result};
use crate::names::dead_letter_name;
use crate::queue::Queue;
use crate::reconcile::{self, UnreconciledQueues};
use crate::recover::recover;

/// How often a full disk is checked.
const LOOK_EVERY: Duration = Duration::from_secs(5);

impl QueueRegistry {
    /// Puts all intact queues of the catalogue into service. Returns whether no queue is left over, and no messages
    /// without a queue.
    pub(super) async fn open_all_but(self: &Arc<QueueRegistry>, left: UnreconciledQueues) -> Result<bool> {
        *self.set_aside.write() = left.queues;
        self.open_queues(left.unadopted.is_empty()).await?;
        Ok(left.unadopted.is_empty() && self.set_aside.read().is_empty())
    }

    /// Puts every queue of the catalogue into service that is neither in service nor set aside. `all`: there are no
    /// other queues than these and those set aside.
    async fn open_queues(self: &Arc<QueueRegistry>, all: bool) -> Result<()> {
        let mut entries = self.catalog.all().await;
        {
            let set_aside = self.set_aside.read();
            entries.retain(|(name, _)| !set_aside.contains_key(name));
        }
        let mut opened = Vec::new();
        let outcome = self.open_each(&entries, &mut opened).await;
        // Before a consumer finds dead letters in them that were already resent.
        self.end_sending(&opened, all && outcome.is_ok()).await;
        let counted = blocking::spawn(move || {
            // If frames were trimmed in part, counting their bytes may need a disk read.
            opened.iter().try_for_each(|queue| queue.count_retained())?;
            Ok::<_, QueueError>(opened)
        });
        let opened = counted.await.unwrap_or(Err(LogError::Closed.into()))?;
        opened.into_iter().try_for_each(|queue| self.start(queue))?;
        outcome
    }

    async fn open_each(
        self: &Arc<QueueRegistry>,
        entries: &[(SmolStr, QueueEntry)],
        opened: &mut Vec<Arc<Queue>>,
    ) -> Result<()> {
        for (name, entry) in entries {
            if self.queues.read().contains_key(name) {
                continue;
            }
            let dead = dead_letter_name(name).ok().flatten();
            let dead = dead.and_then(|dead| entries.binary_search_by_key(&&dead, |(name, _)| name).ok());
            let dead = dead.and_then(|at| entries.get(at));
            let dead = dead.map(|(_, dead)| PartitionId::new(dead.id, 0));
            match self.open_queue(name, entry, dead).await {
                Err(QueueError::Log(error @ LogError::DiskFull { .. })) => {
                    tracing::error!(
                        queue = %name, %error,
                        "a queue is set aside with all its messages until there is disk space"
                    );
                    self.set_aside.write().insert(name.clone(), error);
                }
                queue => opened.push(queue?),
            }
        }
        Ok(())
    }

    /// Removes dead letters that a crash left in place although they are messages of another queue by now. `opened` are
    /// about to be put into service; `all` means that the only other queues are those set aside.
    async fn end_sending(&self, opened: &[Arc<Queue>], all: bool) {
        let started: Vec<Arc<Queue>> = self.queues.read().values().cloned().collect();
        let find = |number: u32| {
            let is_it = |queue: &&Arc<Queue>| queue.identity.id == number;
            let before = opened.iter().find(is_it).map(|queue| (queue, false));
            before.or_else(|| started.iter().find(is_it).map(|queue| (queue, true)))
        };
        // Then a queue that is not found was deleted.
        let all = all && self.set_aside.read().is_empty();
        for queue in opened.iter().chain(&started) {
            let unsure = queue.sent_here.lock().unsure();
            for sent in unsure {
                let ended = match find(sent.dead) {
                    Some((dead, takes_part)) => dead.were_sent(&sent, takes_part).await.map(|()| true),
                    None => Ok(all),
                };
                match ended {
                    Ok(true) => queue.sent_here.lock().are_gone(&sent),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(
                            queue = %queue.name(), %error,
                            "the removal of dead letters that were resent to this queue is not stored yet; the next \
                             start completes it"
                        );
                    }
                }
            }
        }
    }

    /// Opens a queue with its groups, without putting it into service.
    async fn open_queue(
        self: &Arc<QueueRegistry>,
        name: &SmolStr,
        entry: &QueueEntry,
        dead: Option<PartitionId>,
    ) -> Result<Arc<Queue>> {
        let queue = self.queue_of(name, entry);
        if queue.keeps_ids() {
            self.make_ids(&queue, queue.partition_count()).await?;
        }
        for group in recover(&queue, entry, dead, self.catalog.lost() > 0, self.state.clone()).await? {
            queue.add_group(Arc::new(group));
        }
        if queue.groups.now().len() > entry.groups.len() {
            self.save_as(&queue, queue.entry()).await?;
        }
        Ok(queue)
    }

    /// Finishes what the start had no room for, as far as there is room now. Returns whether nothing is left.
    async fn finish_start(self: &Arc<QueueRegistry>) -> Result<bool> {
        let Some(_nobody_changes) = self.changes.none() else {
            // Partitions being created must not be mistaken for leftovers.
            return Ok(false);
        };
        if self.closing.load(Ordering::Acquire) {
            return Ok(true);
        }
        let left = reconcile::settle(&self.catalog, self.log.as_ref(), self.clock.now()).await?;
        self.open_all_but(left).await
    }

    /// Removes a queue that the start has set aside. Returns whether there was one of that name.
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

/// Retries until all is done or the queues are dropped.
pub(super) async fn finish_when_there_is_room(home: Weak<QueueRegistry>) {
    loop {
        tokio::time::sleep(LOOK_EVERY).await;
        let Some(home) = home.upgrade() else { return };
        match home.finish_start().await {
            Ok(true) | Err(QueueError::Log(LogError::Closed)) => return,
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "queues that were set aside cannot be put into service yet; retrying"),
        }
    }
}

impl Queues {
    /// Finishes what the start had no room for, as the process does by itself every few seconds. Returns whether
    /// nothing is left.
    #[doc(hidden)]
    pub async fn finish_start_now(&self) -> Result<bool> {
        self.home.finish_start().await
    }
}
