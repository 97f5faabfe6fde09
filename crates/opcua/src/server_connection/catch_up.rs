//! Performs the steps that restore the order of a subscription's messages: requests missing ones from the server,
//! passes on those that arrive, and marks gaps for the others. [`Retransmission`] decides the steps; this module has
//! the clock and the calls.
//!
//! [`Retransmission`]: crate::subscribe::retransmission::Retransmission

use std::time::Duration;

use thalweg_kit::clock;
use thalweg_record::Ticks;

use super::recovery::in_subscription;
use super::{ServeError, ServerConnection};
use crate::channel::CallError;
use crate::gaps::Gap;
use crate::session::Session;
use crate::subscribe::recover::{self, RepublishOutcome};
use crate::subscribe::retransmission::{RecoveryCounts, RepublishReply, RetransmissionStep};
use crate::value::answers::{self, ClientHandleValue};

/// Maximum time for Republish at once. Nothing is published meanwhile, and subscriptions expire without publish
/// requests.
const CATCHING_UP_MAX: Duration = Duration::from_secs(20);

impl ServerConnection {
    /// Runs until a subscription only needs its next message. After a connection error the rest is done on the next
    /// connection.
    pub(super) async fn catch_up(&mut self, session: &Session, number: usize) -> Result<(), ServeError> {
        let start = clock::now();
        loop {
            let Some(subscription) = self.subscriptions.get_mut(number) else {
                return Ok(());
            };
            let (id, heard_at) = (subscription.id, subscription.heard_at);
            match subscription.messages.next() {
                None => return Ok(()),
                Some(RetransmissionStep::Ask(_)) if subscription.lost || self.republish_unanswered => {
                    subscription.messages.give_up();
                }
                Some(RetransmissionStep::Ask(_)) if start.elapsed() > CATCHING_UP_MAX => {
                    subscription.messages.give_up();
                    self.context.component.warn_limited("recovery_slow", 1, || {
                        let seconds = CATCHING_UP_MAX.as_secs();
                        format!("the server takes long to resend lost messages; given up after {seconds} s")
                    });
                }
                Some(RetransmissionStep::Ask(asked)) => {
                    let reply = self.ask_for(session, number, id, asked).await?;
                    if let Some(subscription) = self.subscriptions.get_mut(number) {
                        subscription.messages.answered(asked, reply);
                    }
                }
                Some(RetransmissionStep::Gap(reason)) => {
                    let gap = Gap {
                        from: heard_at,
                        to: Ticks::now(),
                    };
                    self.gap(reason, gap, in_subscription(number));
                }
                Some(RetransmissionStep::Deliver { number, values }) => {
                    self.values = values;
                    self.publisher.acknowledge(id, number);
                    self.deliver().await?;
                }
                Some(RetransmissionStep::Ended(counts)) => self.caught_up(counts),
            }
        }
    }

    /// Requests one earlier message.
    async fn ask_for(
        &mut self,
        session: &Session,
        number: usize,
        id: u32,
        asked: u32,
    ) -> Result<RepublishReply<Vec<ClientHandleValue>>, CallError> {
        let republished = recover::republish(session, id, asked).await?;
        let Some(subscription) = self.subscriptions.get_mut(number) else {
            return Ok(RepublishReply::Unanswered);
        };
        subscription.heard = clock::now();
        let body = match republished {
            RepublishOutcome::Message(body) => body,
            RepublishOutcome::NotAvailable => return Ok(RepublishReply::NotAvailable),
            RepublishOutcome::NoSubscription => {
                subscription.lost = true;
                return Ok(RepublishReply::Unanswered);
            }
            RepublishOutcome::Unanswered => {
                self.republish_unanswered = true;
                return Ok(RepublishReply::Unanswered);
            }
        };
        let decoded = self
            .learn_and_decode(session, |types, values| answers::republish(&body, types, values))
            .await;
        let message = match decoded {
            Ok(message) => message,
            Err(error) => {
                self.context
                    .component
                    .warn_limited("undecodable", 1, || format!("a notification was lost: {error}"));
                return Ok(RepublishReply::Unreadable);
            }
        };
        let is_asked_for = message.sequence_number == asked;
        if let Some(subscription) = self.subscriptions.get_mut(number)
            && is_asked_for
        {
            subscription.lost |= message.status_change.is_some();
        }
        Ok(RepublishReply::Message {
            number: message.sequence_number,
            is_keep_alive: message.is_keep_alive,
            values: std::mem::take(&mut self.values),
        })
    }

    fn caught_up(&self, counts: RecoveryCounts) {
        let RecoveryCounts {
            missing,
            asked,
            fetched,
        } = counts;
        let given_up = counts.given_up();
        self.context.metrics.recovered(fetched, given_up);
        if missing == 0 {
            return;
        }
        if given_up == 0 {
            tracing::info!(
                component = self.context.component.title(),
                missing,
                asked,
                fetched,
                "messages of the server that were lost in transit were recovered"
            );
            return;
        }
        self.context.component.warn_limited("recovery", 1, || {
            format!(
                "{missing} messages of the server are missing: requested {asked}, got {fetched}, given up {given_up}"
            )
        });
    }
}
