//! What a queue needs from the registry that it belongs to.

use std::sync::Arc;

use smol_str::SmolStr;
use thalweg_log::Micros;

use crate::catalog::{GroupEntry, QueueEntry};
use crate::error::{QueueError, Result};
use crate::group::Group;
use crate::message_times::micros;
use crate::names::dead_letter_name;
use crate::queue::Queue;

impl Queue {
    pub(crate) fn entry(&self) -> QueueEntry {
        let groups = self.groups.now();
        QueueEntry {
            id: self.identity.id,
            settings: (*self.settings()).clone(),
            durability: self.durability(),
            groups: groups
                .iter()
                .map(|group| GroupEntry {
                    id: group.id,
                    settings: group.settings.clone(),
                    declared: group.is_declared(),
                    paused: group.is_paused(),
                    unused_since: group.members.lock().empty_since().filter(|_| !group.is_declared()),
                })
                .collect(),
            next_group: self.groups.next_number(),
            produce_paused: self.paused.produce(),
            consume_paused: self.paused.consume(),
            expires_early: self.expiry.may_be_early(),
        }
    }

    /// When an undeclared group expires, unless a consumer joins before.
    pub(crate) fn expires_at(&self, group: &Group) -> Option<Micros> {
        if self.expires_never(group) {
            return None;
        }
        let after = self.settings_now().group_expiry;
        let since = group.members.lock().empty_since()?;
        Some(since.saturating_add(micros(after)))
    }

    /// Stores the change when a group that may expire gets its first member or loses its last, because a restart must
    /// know. Most calls find nothing to store.
    pub(crate) async fn keep_use(&self, group: &Group) {
        if self.expires_never(group) || group.members.lock().to_keep().is_none() {
            return;
        }
        let Some(home) = self.registry() else { return };
        if let Err(error) = home.keep_use(self, group).await {
            tracing::warn!(
                queue = %self.name(), group = %group.name(), %error,
                "the time since which a group is unused cannot be stored"
            );
        }
    }

    /// Stores that messages expire early when this happens for the first time, because a restart must know.
    pub(crate) async fn keep_expires_early(&self) {
        let Some(home) = self
            .registry()
            .filter(|_| self.expiry.is_news() && !self.is_in_memory())
        else {
            return;
        };
        if let Err(error) = home.keep_expires_early(self).await {
            tracing::warn!(queue = %self.name(), %error, "the record that messages may expire early cannot be stored");
        }
    }

    pub(crate) fn expires_never(&self, group: &Group) -> bool {
        group.is_declared() || self.settings_now().group_expiry.is_zero()
    }

    /// A new epoch for leases after a seek. The change is durable on return.
    pub(crate) async fn next_epoch(&self) -> Result<u32> {
        let home = self.registry().ok_or_else(|| self.identity.not_found())?;
        let epoch = home.catalog.next_epoch(self.clock.now()).await;
        home.store_epoch().await?;
        Ok(epoch)
    }

    /// Makes sure that leases may be created; fails if the epoch cannot be stored. The change is durable on return.
    pub(crate) async fn store_epoch(&self) -> Result<()> {
        if self.epoch.is_stored() {
            return Ok(());
        }
        let home = self.registry().ok_or_else(|| self.identity.not_found())?;
        home.store_epoch().await
    }

    pub(crate) async fn expire(self: &Arc<Queue>, group: &Group) -> Result<()> {
        match self.registry() {
            Some(home) => home.expire_group(self, group).await,
            None => Ok(()),
        }
    }

    /// Another queue of the same registry.
    pub(crate) fn neighbour(&self, name: &str) -> Result<Arc<Queue>> {
        let home = self.registry();
        home.and_then(|home| home.get(name).ok())
            .ok_or_else(|| QueueError::QueueNotFound {
                queue: SmolStr::new(name),
            })
    }

    /// The dead-letter queue, if it exists.
    pub(crate) fn known_dead_letters(&self) -> Option<Arc<Queue>> {
        let name = dead_letter_name(self.name()).ok().flatten()?;
        self.registry()?.get(&name).ok()
    }

    pub(crate) async fn dead_letters(self: &Arc<Queue>) -> Result<Option<Arc<Queue>>> {
        match self.registry() {
            Some(home) => home.dead_letters_of(self).await,
            None => Ok(None),
        }
    }
}
