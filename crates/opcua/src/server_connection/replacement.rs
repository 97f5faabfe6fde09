//! Recreates subscriptions that are lost or in doubt, each in the place of the old one. If the server has no room for
//! one any more, its place is given up, and its items look for another as at their first creation.

use std::time::{Duration, Instant};

use thalweg_kit::backoff::Backoff;
use thalweg_kit::clock;
use thalweg_record::Ticks;

use super::ServerConnection;
use super::creation::is_about_the_connection;
use super::items::{AcquisitionMode, Item, ItemIndex, MonitoringStage};
use crate::backoff::{LASTED_MIN, backoff_from};
use crate::channel::CallError;
use crate::gaps::{Gap, GapReason};
use crate::session::Session;
use crate::subscribe::{Subscription, SubscriptionSettings};

/// First pause when the server ends a recreated subscription.
const PAUSE_FIRST: Duration = Duration::from_secs(1);

/// The schedule for recreating subscriptions that the server has ended: immediately, then later and later if it ends
/// those too.
pub(super) struct ReplacementSchedule {
    pauses: Backoff,
    last: Option<Instant>,
    pause: Duration,
}

impl ReplacementSchedule {
    pub fn new() -> ReplacementSchedule {
        ReplacementSchedule {
            pauses: backoff_from(PAUSE_FIRST),
            last: None,
            pause: Duration::ZERO,
        }
    }

    /// Whether the next attempt is due.
    fn is_due(&self, now: Instant) -> bool {
        self.last
            .is_none_or(|last| now.saturating_duration_since(last) >= self.pause)
    }

    fn done(&mut self, now: Instant) {
        let lasted = self.last.map(|last| now.saturating_duration_since(last));
        // One that lasted much longer than the previous pause did not belong to a cycle.
        if lasted.is_none_or(|lasted| lasted > self.pause * 2 + LASTED_MIN) {
            self.pauses.reset();
        }
        self.last = Some(now);
        self.pause = self.pauses.next_pause();
    }
}

impl ServerConnection {
    /// Calls [`ServerConnection::replace_broken`], at the pace of [`ReplacementSchedule`] if the server has ended
    /// subscriptions.
    pub(super) async fn replace_ended(&mut self, session: &Session) -> Result<(), CallError> {
        self.settle_miscounts(session).await?;
        let now = clock::now();
        let has_ended = self.subscriptions.iter().any(|subscription| subscription.lost);
        if has_ended && !self.replacements.is_due(now) {
            return Ok(());
        }
        if has_ended {
            self.replacements.done(now);
        }
        self.replace_broken(session).await
    }

    /// Recreates all broken subscriptions; their items wait to be created, and what they would have reported since the
    /// last message is a gap. An error means the loss of the connection.
    pub(super) async fn replace_broken(&mut self, session: &Session) -> Result<(), CallError> {
        let broken = || self.subscriptions.iter().filter(|old| old.is_broken());
        if broken().next().is_none() {
            return Ok(());
        }
        // This includes those that count as lost: one that the server still has would send values that nobody expects.
        // They are deleted before others are created, because a server may reuse ids.
        let own: Vec<u32> = broken().filter(|old| !old.refused).map(|old| old.id).collect();
        if !own.is_empty() {
            Subscription::delete(session, own).await;
        }
        let settings = SubscriptionSettings::from(&*self.context.config);
        // From the last, so that giving up a place does not move a remaining one.
        for number in (0..self.subscriptions.len()).rev() {
            if !self.subscriptions.get(number).is_some_and(Subscription::is_broken) {
                continue;
            }
            match Subscription::create(session, &settings).await {
                Ok(new) => self.replace(number, new),
                Err(error) if is_about_the_connection(&error) => return Err(error),
                Err(_) => self.give_up(number),
            }
        }
        Ok(())
    }

    fn replace(&mut self, number: usize, new: Subscription) {
        self.publisher.subscription_replaced();
        self.create_again(number);
        if let Some(slot) = self.subscriptions.get_mut(number) {
            *slot = Subscription {
                items_max: slot.items_max,
                full: slot.full,
                ..new
            };
        }
    }

    /// The server refuses a subscription for this place. Its items look for room elsewhere, and warn if there is none.
    fn give_up(&mut self, number: usize) {
        self.create_again(number);
        self.subscriptions.remove(number);
        let removed = number as u16;
        self.creation.slot_removed(removed);
        self.items.slot_removed(removed);
    }

    /// Queues the items of a removed subscription again.
    fn create_again(&mut self, number: usize) {
        let Some(heard_at) = self.subscriptions.get(number).map(|old| old.heard_at) else {
            return;
        };
        let was_asked_for_in_it =
            |item: &Item| item.way == AcquisitionMode::Monitor && usize::from(item.subscription) == number;
        let created: Vec<ItemIndex> = self
            .items
            .iter()
            .filter(|(_, item)| was_asked_for_in_it(item) && item.stage == MonitoringStage::Created)
            .map(|(index, _)| index)
            .collect();
        let gap = Gap {
            from: heard_at,
            to: Ticks::now(),
        };
        // Items whose creation was never confirmed may have sent values too.
        self.gap(GapReason::Recreated, gap, was_asked_for_in_it);
        created.into_iter().for_each(|index| self.enqueue(index));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds within an hour at which subscriptions are recreated, if the server ends them each time after
    /// `lasting`.
    fn times(lasting: Duration) -> Vec<u64> {
        let (start, mut replacements) = (clock::now(), ReplacementSchedule::new());
        let mut times = Vec::new();
        let mut ended_at = Duration::ZERO;
        for second in 0..3600 {
            let at = Duration::from_secs(second);
            if at >= ended_at && replacements.is_due(start + at) {
                replacements.done(start + at);
                times.push(second);
                ended_at = at + lasting;
            }
        }
        times
    }

    #[test]
    fn what_the_server_ends_at_once_is_made_anew_ever_later_and_what_lasts_at_once() {
        let pauses = |times: &[u64]| -> Vec<u64> { times.windows(2).map(|pair| pair[1] - pair[0]).collect() };
        let circle = pauses(&times(Duration::ZERO));
        assert!(
            circle[0] <= 1 && circle.iter().skip(7).all(|pause| (45..=60).contains(pause)),
            "{circle:?}"
        );
        assert!(circle.len() < 100, "{circle:?}");
        let lasting = pauses(&times(Duration::from_secs(20)));
        assert!(lasting.iter().all(|pause| *pause == 20), "{lasting:?}");
    }
}
