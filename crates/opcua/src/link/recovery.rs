//! After a connection came back: subscriptions are taken over, lost messages fetched, and what cannot be fetched is a gap.

use thalweg_record::Ticks;

use super::items::{Item, Stage, Way};
use super::{Link, items::ItemIndex};
use crate::channel::CallError;
use crate::gaps::{Gap, GapReason};
use crate::metrics::Reconnect;
use crate::session::Session;
use crate::subscribe::recover::{self, Republished};
use crate::subscribe::sequence::Missing;
use crate::value::answers;

/// What became of the wish for one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fetched {
    Taken,
    NotKept,
    Unanswered,
}

impl Link {
    /// `how` is how the session came back; `None` at the first connection.
    pub(super) async fn recover(&mut self, session: &Session, how: Option<Reconnect>) -> Result<(), CallError> {
        let Some(how) = how else {
            return self.learn_facts(session).await;
        };
        let mut how = how;
        if how != Reconnect::Reactivated {
            self.learn_facts(session).await?;
            self.publisher.session_lost();
            if !self.subscriptions.is_empty() {
                self.transfer(session).await?;
            }
        }
        // Where the flow was full or the server slow, answers may be waiting that arrived before the cut.
        self.fetch_lost(session).await?;
        if self
            .subscriptions
            .iter()
            .any(|subscription| subscription.lost || subscription.in_doubt)
        {
            how = Reconnect::Recreated;
        }
        self.replace_broken(session).await?;
        self.verify();
        for subscription in &mut self.subscriptions {
            subscription.heard = std::time::Instant::now();
        }
        self.context.metrics.reconnected(how);
        tracing::info!(
            component = self.context.component.title(),
            how = how.as_str(),
            "connected again"
        );
        Ok(())
    }

    /// Moves the subscriptions of a session that is gone to the new one; those that cannot be moved are lost.
    async fn transfer(&mut self, session: &Session) -> Result<(), CallError> {
        let ids = self.subscriptions.iter().map(|subscription| subscription.id).collect();
        let results = recover::transfer(session, ids).await?;
        for (subscription, result) in self.subscriptions.iter_mut().zip(results) {
            if !result.is_good() {
                subscription.lost = true;
            }
        }
        Ok(())
    }

    /// Asks for messages in order until the server has no further one.
    async fn fetch_lost(&mut self, session: &Session) -> Result<(), CallError> {
        for number in 0..self.subscriptions.len() {
            while let Some(subscription) = self.subscriptions.get(number).filter(|s| !s.lost && !s.in_doubt) {
                let (id, next) = (subscription.id, subscription.sequence.next());
                if self.fetch_one(session, number, id, next).await? != Fetched::Taken {
                    break;
                }
            }
        }
        Ok(())
    }

    /// One message that was sent before.
    async fn fetch_one(
        &mut self,
        session: &Session,
        number: usize,
        id: u32,
        sequence: u32,
    ) -> Result<Fetched, CallError> {
        let body = match recover::republish(session, id, sequence).await? {
            Republished::Message(body) => body,
            Republished::NotAvailable => return Ok(Fetched::NotKept),
            Republished::Unanswered => return Ok(Fetched::Unanswered),
        };
        let decoded = self
            .learn_and_decode(session, |types, values| answers::republish(&body, types, values))
            .await;
        let Some(subscription) = self.subscriptions.get_mut(number) else {
            return Ok(Fetched::Unanswered);
        };
        subscription.sequence.message(sequence);
        subscription.heard_now();
        match decoded {
            Ok(message) => {
                if message.status_change.is_some() {
                    subscription.lost = true;
                }
                self.publisher.acknowledge(id, sequence);
                // A flow that takes no more is stopping; the loop around this hears of it by itself.
                let _closed = self.deliver().await;
            }
            Err(error) => self.undecodable(number, &error),
        }
        Ok(Fetched::Taken)
    }

    /// Messages are missing between the last and this one: fetch what the server keeps, mark the rest as a gap.
    pub(super) async fn fill(
        &mut self,
        session: &Session,
        number: usize,
        missing: Missing,
        available: &[u32],
    ) -> Result<(), CallError> {
        let Some(id) = self.subscriptions.get(number).map(|subscription| subscription.id) else {
            return Ok(());
        };
        let heard_at = self
            .subscriptions
            .get(number)
            .map_or(Ticks::now(), |subscription| subscription.heard_at);
        let wanted = recover::worth_asking(missing, available);
        let mut fetched = 0;
        for sequence in &wanted {
            match self.fetch_one(session, number, id, *sequence).await? {
                Fetched::Taken => fetched += 1,
                // The oldest are given up first; newer ones may still be there.
                Fetched::NotKept => {}
                Fetched::Unanswered => break,
            }
        }
        if missing.too_many || fetched < missing.count {
            let gap = Gap {
                from: heard_at,
                to: Ticks::now(),
            };
            self.gap(GapReason::NotRepublished, gap, in_subscription(number));
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

    /// Every item that is to be monitored and not known as failed is created, asked for, or waits for it.
    fn verify(&mut self) {
        let forgotten: Vec<ItemIndex> = self
            .items
            .iter()
            .filter(|(_, item)| item.way == Way::Monitor && item.stage == Stage::Created)
            .filter(|(_, item)| {
                self.subscriptions
                    .get(usize::from(item.subscription))
                    .is_none_or(|s| s.lost)
            })
            .map(|(index, _)| index)
            .collect();
        forgotten.into_iter().for_each(|index| self.enqueue(index));
    }
}

fn in_subscription(number: usize) -> impl Fn(&Item) -> bool {
    move |item| item.way == Way::Monitor && usize::from(item.subscription) == number
}
