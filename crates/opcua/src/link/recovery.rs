//! After a connection came back: subscriptions are taken over, lost messages fetched, and what cannot be fetched is a gap.

use std::time::Instant;

use hashbrown::{HashMap, HashSet};
use thalweg_record::Ticks;

use super::creation::Unwanted;
use super::items::{Item, ItemIndex, Items, Stage, Way};
use super::{Link, Stop, TakenOver};
use crate::channel::CallError;
use crate::gaps::{Gap, GapReason};
use crate::metrics::Reconnect;
use crate::session::Session;
use crate::subscribe::recover::{self, Account, Differences};

impl Link {
    /// `how` is how the session came back; `None` at the first connection. What a cut has interrupted is done again by
    /// the next connection, also if the session is the same.
    pub(super) async fn recover(&mut self, session: &Session, how: Option<Reconnect>) -> Result<(), CallError> {
        if how != Some(Reconnect::Reactivated) {
            self.taken_over = TakenOver::default();
            self.publisher.session_lost();
            self.abandoned.clear();
        }
        if !self.taken_over.facts {
            self.learn_facts(session).await?;
            self.taken_over.facts = true;
        }
        if self.taken_over.subscriptions {
            for subscription in &mut self.subscriptions {
                subscription.messages.reconnected(&[]);
            }
        } else if !self.subscriptions.is_empty() {
            self.transfer(session).await?;
        }
        self.taken_over.subscriptions = true;
        let Some(mut how) = how else { return Ok(()) };
        self.retry_soon(how);
        self.republish_unanswered = false;
        for number in 0..self.subscriptions.len() {
            match self.catch_up(session, number).await {
                Err(Stop::Connection(error)) => return Err(error),
                // A flow that takes no more is stopping, and stops this connection by itself.
                Ok(()) | Err(Stop::Flow(_)) => {}
            }
        }
        self.verify(session).await?;
        if self.subscriptions.iter().any(|subscription| !subscription.is_usable()) {
            how = Reconnect::Recreated;
        }
        self.replace_broken(session).await?;
        for subscription in &mut self.subscriptions {
            subscription.heard = Instant::now();
        }
        self.context.metrics.connections.reconnected(how);
        tracing::info!(
            component = self.context.component.title(),
            how = how.as_str(),
            "connected again"
        );
        Ok(())
    }

    /// What was refused before the cut may not be after it.
    fn retry_soon(&mut self, how: Reconnect) {
        let now = Instant::now();
        self.heartbeat_retry.soon(now);
        // The same session has the room that it had.
        if how != Reconnect::Reactivated {
            self.room_retry.soon(now);
        }
    }

    /// Moves the subscriptions of a session that is gone to the new one; those that cannot be moved are lost.
    async fn transfer(&mut self, session: &Session) -> Result<(), CallError> {
        let ids = self.subscriptions.iter().map(|subscription| subscription.id).collect();
        let results = recover::transfer(session, ids).await?;
        for (subscription, result) in self.subscriptions.iter_mut().zip(results) {
            if result.is_good() {
                subscription.messages.reconnected(&result.available);
            } else {
                subscription.lost = true;
                subscription.refused = true;
            }
        }
        Ok(())
    }

    /// An answer with values could not be decoded: which tags it concerned is unknown.
    pub(super) fn undecodable(&mut self, number: usize, error: &CallError) {
        self.context
            .component
            .warn_limited("undecodable", 1, || format!("a notification was lost: {error}"));
        let from = self
            .subscriptions
            .get(number)
            .map_or(Ticks::now(), |subscription| subscription.heard_at);
        self.gap(
            GapReason::Undecodable,
            Gap { from, to: Ticks::now() },
            in_subscription(number),
        );
    }

    /// Every item that counts as created is there, and no other is: what the server lacks is created, what it has too
    /// much is deleted. Servers need not be able to tell.
    async fn verify(&mut self, session: &Session) -> Result<(), CallError> {
        for number in 0..self.subscriptions.len() {
            // Those that are made anew in any case have nothing to compare.
            let usable = self
                .subscriptions
                .get(number)
                .filter(|subscription| subscription.is_usable());
            let Some(id) = usable.map(|subscription| subscription.id) else {
                continue;
            };
            let of_this = in_subscription(number);
            let expected: HashMap<u32, u32> = self
                .items
                .iter()
                .filter(|(_, item)| of_this(item) && item.stage == Stage::Created)
                .map(|(index, item)| (Items::handle(index), item.monitored_id))
                .collect();
            if expected.is_empty() {
                continue;
            }
            match recover::monitored_items(session, id).await? {
                Account::Items(listed) => {
                    let differences = recover::compare(&expected, &listed);
                    self.settle_differences(session, number, &differences);
                }
                Account::NotGiven => return Ok(()),
                Account::NoSubscription => {
                    if let Some(subscription) = self.subscriptions.get_mut(number) {
                        subscription.lost = true;
                    }
                }
            }
        }
        Ok(())
    }

    fn settle_differences(&mut self, session: &Session, number: usize, differences: &Differences) {
        let Some(subscription) = self.subscriptions.get_mut(number) else {
            return;
        };
        let (id, heard_at) = (subscription.id, subscription.heard_at);
        subscription.items = subscription.items.saturating_sub(differences.missing.len());
        for listed in &differences.renumbered {
            if let Some(item) = Items::of_handle(listed.handle).and_then(|index| self.items.get_mut(index)) {
                item.monitored_id = listed.id;
            }
        }
        let missing: HashSet<ItemIndex> = differences
            .missing
            .iter()
            .filter_map(|handle| Items::of_handle(*handle))
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
        self.delete_unwanted(session, Unwanted::new(id, differences.extra.clone()));
    }
}

pub(super) fn in_subscription(number: usize) -> impl Fn(&Item) -> bool {
    move |item| item.way == Way::Monitor && usize::from(item.subscription) == number
}
