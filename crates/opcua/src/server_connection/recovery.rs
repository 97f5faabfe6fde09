//! Recovery after a reconnect: subscriptions are transferred, lost messages fetched, and messages that cannot be
//! fetched become a gap.

use thalweg_kit::clock;
use thalweg_record::Ticks;

use super::items::{AcquisitionMode, Item};
use super::{ServeError, ServerConnection, SessionSetup};
use crate::channel::CallError;
use crate::gaps::{Gap, GapReason};
use crate::metrics::Reconnect;
use crate::session::Session;
use crate::subscribe::{Subscription, recover};

impl ServerConnection {
    /// `how` is how the session was restored; `None` at the first connection. The next connection repeats an
    /// interrupted recovery, even if the session is the same.
    pub(super) async fn recover(&mut self, session: &Session, how: Option<Reconnect>) -> Result<(), CallError> {
        if how != Some(Reconnect::Reactivated) {
            self.taken_over = SessionSetup::default();
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
                Err(ServeError::Connection(error)) => return Err(error),
                // A flow that accepts no more is stopping, and stops this connection too.
                Ok(()) | Err(ServeError::Flow(_)) => {}
            }
        }
        self.compare_items(session).await?;
        if self.subscriptions.iter().any(Subscription::is_broken) {
            how = Reconnect::Recreated;
        }
        self.replace_broken(session).await?;
        for subscription in &mut self.subscriptions {
            subscription.heard = clock::now();
        }
        self.context.metrics.connections.reconnected(how);
        tracing::info!(
            component = self.context.component.title(),
            how = how.as_str(),
            "connected again"
        );
        Ok(())
    }

    /// A refusal from before the reconnect may no longer apply.
    fn retry_soon(&mut self, how: Reconnect) {
        let now = clock::now();
        self.heartbeat_retry.soon(now);
        // The same session has the same room.
        if how != Reconnect::Reactivated {
            self.room_retry.soon(now);
        }
    }

    /// Transfers the subscriptions of a lost session to the new one; those that cannot be transferred are lost.
    async fn transfer(&mut self, session: &Session) -> Result<(), CallError> {
        let ids: Vec<u32> = self.subscriptions.iter().map(|subscription| subscription.id).collect();
        let results = recover::transfer(session, &ids).await?;
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

    /// A response with values could not be decoded: the affected tags are unknown.
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
}

pub(super) fn in_subscription(number: usize) -> impl Fn(&Item) -> bool {
    move |item| item.way == AcquisitionMode::Monitor && usize::from(item.subscription) == number
}
