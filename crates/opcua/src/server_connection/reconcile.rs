//! Compares the items of a subscription with the server's list of them: after a reconnect, and after a call that
//! created items but was answered incompletely. Servers need not provide the list.

use hashbrown::{HashMap, HashSet};
use thalweg_record::Ticks;

use super::ServerConnection;
use super::creation::SurplusItems;
use super::items::{AcquisitionMode, ItemIndex, ItemTable, MonitoringStage};
use super::recovery::in_subscription;
use crate::channel::CallError;
use crate::failures::NodeFailureKind;
use crate::gaps::{Gap, GapReason};
use crate::node_table::{ItemState, NO_NODE};
use crate::session::Session;
use crate::subscribe::Subscription;
use crate::subscribe::recover::{self, ItemDifferences, ServerItem, ServerItemList};

impl ServerConnection {
    /// Makes the server's items match: missing ones are created, superfluous ones are deleted.
    pub(super) async fn compare_items(&mut self, session: &Session) -> Result<(), CallError> {
        for number in 0..self.subscriptions.len() {
            // Subscriptions that are recreated anyway need no comparison.
            let kept = self.subscriptions.get(number).filter(|kept| !kept.is_broken());
            let Some(is_miscounted) = kept.map(Subscription::is_miscounted) else {
                continue;
            };
            if is_miscounted || !self.created_in(number).is_empty() {
                self.compare_with_account(session, number).await?;
            }
        }
        Ok(())
    }

    /// Finds out which items a server has created without reporting each. If it provides no list, they are recreated
    /// with their subscription.
    pub(super) async fn settle_miscounts(&mut self, session: &Session) -> Result<(), CallError> {
        if !self.is_miscounted() {
            return Ok(());
        }
        for number in 0..self.subscriptions.len() {
            let miscounted = self.subscriptions.get(number).filter(|one| one.is_miscounted());
            // Items in pending calls would look superfluous.
            if miscounted.is_some() && !self.creation.is_on_its_way(number) {
                self.compare_with_account(session, number).await?;
            }
        }
        if self.subscriptions.iter().any(|subscription| subscription.in_doubt) {
            self.replace_broken(session).await?;
        }
        Ok(())
    }

    /// Whether the server's items are being clarified. Until then nothing is requested again.
    pub(super) fn is_miscounted(&self) -> bool {
        self.subscriptions.iter().any(Subscription::is_miscounted)
    }

    async fn compare_with_account(&mut self, session: &Session, number: usize) -> Result<(), CallError> {
        let Some(id) = self.subscriptions.get(number).map(|subscription| subscription.id) else {
            return Ok(());
        };
        let account = recover::monitored_items(session, id).await?;
        let Some(subscription) = self.subscriptions.get_mut(number) else {
            return Ok(());
        };
        let was_miscounted = std::mem::take(&mut subscription.miscounted);
        match account {
            ServerItemList::Items(listed) => {
                self.adopt(number, &listed);
                let differences = recover::compare(&self.created_in(number), &listed);
                self.settle_differences(session, number, &differences);
            }
            ServerItemList::NotGiven => subscription.in_doubt |= was_miscounted,
            ServerItemList::NoSubscription => subscription.lost = true,
        }
        Ok(())
    }

    /// The server's ids of created items, by handle.
    fn created_in(&self, number: usize) -> HashMap<u32, u32> {
        let of_this = in_subscription(number);
        let items = self.items.iter();
        items
            .filter(|(_, item)| of_this(item) && item.stage == MonitoringStage::Created)
            .map(|(index, item)| (ItemTable::handle(index), item.monitored_id))
            .collect()
    }

    /// Adopts items that were requested in this subscription and that the server has created without reporting it.
    fn adopt(&mut self, number: usize, listed: &[ServerItem]) {
        let mut adopted = 0;
        for ServerItem { id, handle } in listed {
            let item = ItemTable::of_handle(*handle).and_then(|index| self.items.get_mut(index));
            let is_unanswered = |stage| matches!(stage, MonitoringStage::Waiting | MonitoringStage::Failed);
            let Some(item) = item.filter(|item| {
                item.way == AcquisitionMode::Monitor
                    && is_unanswered(item.stage)
                    && usize::from(item.subscription) == number
            }) else {
                continue;
            };
            item.stage = MonitoringStage::Created;
            item.monitored_id = *id;
            adopted += 1;
            if item.node != NO_NODE {
                self.context.table.write().set_state(item.node, ItemState::Monitored);
                self.context.failures.remove(NodeFailureKind::Item, item.node);
                self.context.health.served();
            }
        }
        if let Some(subscription) = self.subscriptions.get_mut(number) {
            subscription.items += adopted;
        }
        self.useful += adopted as u64;
    }

    fn settle_differences(&mut self, session: &Session, number: usize, differences: &ItemDifferences) {
        let Some(subscription) = self.subscriptions.get_mut(number) else {
            return;
        };
        let (id, heard_at) = (subscription.id, subscription.heard_at);
        subscription.items = subscription.items.saturating_sub(differences.missing.len());
        for listed in &differences.renumbered {
            if let Some(item) = ItemTable::of_handle(listed.handle).and_then(|index| self.items.get_mut(index)) {
                item.monitored_id = listed.id;
            }
        }
        let missing: HashSet<ItemIndex> = differences
            .missing
            .iter()
            .filter_map(|handle| ItemTable::of_handle(*handle))
            .collect();
        if !missing.is_empty() {
            self.context
                .component
                .warn_limited("items_missing", missing.len() as u64, || {
                    "the server has lost monitored items; they are created again".to_owned()
                });
            let gap = Gap {
                from: heard_at,
                to: Ticks::now(),
            };
            self.gap_of_items(GapReason::Recreated, gap, &missing);
            missing.into_iter().for_each(|index| self.enqueue(index));
        }
        self.delete_unwanted(session, SurplusItems::new(id, differences.extra.clone()));
    }
}
