//! The loop of a working connection: it handles events as they become ready, and only a full flow blocks it.

use std::time::Duration;

use futures::StreamExt as _;
use opcua::types::StatusCode;
use thalweg_kit::clock;

use super::items::{AcquisitionMode, MonitoringStage};
use super::{ServeError, ServeOutcome, ServerConnection, WATCH_PERIOD};
use crate::assign::ConnectionCommand;
use crate::backoff::until;
use crate::channel::{CallError, QueuedAnswer};
use crate::heartbeat;
use crate::metrics::DiscardReason;
use crate::node_table::{ItemState, NodeIndex};
use crate::session::{KeepAlive, Session};
use crate::subscribe::Subscription;
use crate::subscribe::sequence::Arrival;
use crate::value::answers::PublishAnswer;
use crate::value::{answers, status};

/// Pause before the next publish request after one without a result.
const PAUSE: Duration = Duration::from_secs(1);

/// Unknown subscriptions are deleted once each; this bounds the calls for a server that invents ids.
const ABANDONED_MAX: usize = 1000;

impl ServerConnection {
    pub(super) async fn serve(&mut self, session: &Session) -> ServeOutcome {
        self.last_data = clock::now();
        self.last_heartbeat = self.last_data;
        let _alive = KeepAlive::start(session);
        let ended = match self.serve_loop(session).await {
            Ok(()) => return ServeOutcome::Stopped,
            Err(ServeError::Flow(_)) => return ServeOutcome::Stopped,
            Err(ServeError::Connection(error)) => error,
        };
        session.channel().close(&ended.to_string());
        ServeOutcome::Lost(ended.to_string())
    }

    async fn serve_loop(&mut self, session: &Session) -> Result<(), ServeError> {
        let (stop, sink) = (self.context.stop.clone(), self.context.sink.clone());
        let mut watch = tokio::time::interval(WATCH_PERIOD);
        loop {
            self.create_items(session).await?;
            self.poll_items(session);
            self.ask_ranges(session);
            let to_publish = self.publisher.missing(self.subscriptions.len());
            let rests_until = self.publisher.rests_until();
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = session.channel().closed() => return Err(session.channel().closed_error().into()),
                (answer, latency) = self.publisher.answer() => {
                    self.context.metrics.publish_latency.observe(latency);
                    self.published(session, answer).await?;
                }
                Some(done) = self.creating.next() => {
                    let unwanted = self.created(done)?;
                    self.delete_unwanted(session, unwanted);
                    self.settle_miscounts(session).await?;
                    if self.creating.is_empty() && self.is_primary() {
                        self.context.metrics.show_items(&self.context.table);
                    }
                }
                Some(ranged) = self.ranges.asking.next() => self.ranged(ranged),
                Some(polled) = self.polling.next() => self.polled(session, polled).await?,
                ticks = self.poller.tick(), if self.items.any_polled() => self.poll_ticked(ticks),
                () = sink.has_room(), if to_publish > 0 => {
                    for _ in 0..to_publish {
                        self.publisher.send(session).await;
                    }
                }
                // The next iteration sends what may be sent then.
                () = until(rests_until) => {}
                command = self.commands.recv() => match command {
                    Some(command) => self.command(session, command).await?,
                    None => return Ok(()),
                },
                _ = watch.tick() => self.watch(session).await?,
            }
        }
    }

    async fn command(&mut self, session: &Session, command: ConnectionCommand) -> Result<(), ServeError> {
        match command {
            ConnectionCommand::Monitor(nodes) => self.add(session, &nodes, AcquisitionMode::Monitor).await,
            ConnectionCommand::Poll(nodes) => self.add(session, &nodes, AcquisitionMode::Poll).await,
            ConnectionCommand::Remove(nodes) => {
                let items: Vec<_> = nodes.iter().filter_map(|node| self.items.of_node(*node)).collect();
                self.delete_items(session, &items).await;
                // Overrides states that responses have set since the removal.
                let mut table = self.context.table.write();
                let gone: Vec<NodeIndex> = nodes.into_iter().filter(|node| table.is_removed(*node)).collect();
                gone.into_iter()
                    .for_each(|node| table.set_state(node, ItemState::NotWanted));
            }
            ConnectionCommand::PathsChanged => {
                self.items.forget_metadata();
                if !std::mem::replace(&mut self.paths_final, true) {
                    self.context.health.browsed();
                    self.release_held().await?;
                }
            }
        }
        Ok(())
    }

    async fn add(&mut self, session: &Session, nodes: &[NodeIndex], way: AcquisitionMode) {
        let clock = if self.context.config.heartbeat && self.is_primary() {
            self.context.table.read().find(&heartbeat::node())
        } else {
            None
        };
        for node in nodes {
            // A retry was pending when the tag was removed.
            if self.context.table.read().is_removed(*node) {
                continue;
            }
            let index = self.items.add(*node, way);
            let stage = self.items.get(index).map(|item| item.stage);
            if matches!(stage, Some(MonitoringStage::Waiting | MonitoringStage::Failed)) {
                self.enqueue(index);
            }
            if Some(*node) == clock {
                self.share_heartbeat(session, index).await;
            }
        }
    }

    async fn published(&mut self, session: &Session, answer: QueuedAnswer) -> Result<(), ServeError> {
        let body = match answer.result {
            Ok(body) => body,
            Err(error) => return self.publish_failed(session, answer.tag, error).await,
        };
        let decoded = self
            .learn_and_decode(session, |types, values| answers::publish(&body, types, values))
            .await;
        let published = match decoded {
            Ok(published) => published,
            Err(error @ CallError::Refused(_)) => return self.publish_failed(session, answer.tag, error).await,
            Err(error) => {
                (0..self.subscriptions.len()).for_each(|number| self.undecodable(number, &error));
                self.publisher.rest(PAUSE);
                return Ok(());
            }
        };
        let id = published.subscription_id;
        let Some(number) = self.subscriptions.iter().position(|subscription| subscription.id == id) else {
            self.unknown_subscription(session, id);
            self.publisher.rest(PAUSE);
            return Ok(());
        };
        self.arrived(session, number, published).await
    }

    /// Handles a message or a keep-alive of a subscription, whose values are in `self.values`.
    async fn arrived(&mut self, session: &Session, number: usize, published: PublishAnswer) -> Result<(), ServeError> {
        let PublishAnswer { message, available, .. } = published;
        let Some(subscription) = self.subscriptions.get_mut(number) else {
            return Ok(());
        };
        let (id, messages) = (subscription.id, &mut subscription.messages);
        subscription.lost |= message.status_change.is_some();
        if message.is_keep_alive {
            messages.kept_alive(message.sequence_number, &available);
            // A keep-alive normally comes after many intervals without a change; the pause bounds a server that sends
            // them continuously.
            self.publisher.rest(subscription.interval.min(PAUSE));
        } else {
            self.context.metrics.notifications.inc();
            let values = std::mem::take(&mut self.values);
            let count = values.len();
            if messages.published(message.sequence_number, &available, values) == Arrival::Seen {
                self.publisher.acknowledge(id, message.sequence_number);
                self.publisher.rest(subscription.interval.min(PAUSE));
                self.context.metrics.discarded(DiscardReason::Repeated, count);
            }
        }
        self.catch_up(session, number).await?;
        if let Some(subscription) = self.subscriptions.get_mut(number) {
            subscription.heard_now();
        }
        if message.status_change.is_some() {
            self.replace_ended(session).await?;
        }
        Ok(())
    }

    /// Handles a subscription that was replaced, or whose creation was never confirmed. Its items have been recreated,
    /// so the server can stop sending their values.
    fn unknown_subscription(&mut self, session: &Session, id: u32) {
        let metrics = &self.context.metrics;
        metrics.discarded(DiscardReason::UnknownSubscription, self.values.len());
        self.values.clear();
        if self.abandoned.len() < ABANDONED_MAX && self.abandoned.insert(id) {
            let session = session.clone();
            tokio::spawn(async move { Subscription::delete(&session, vec![id]).await });
        }
    }

    /// A failed request blocks nothing: it is sent again after a pause, and the others continue.
    async fn publish_failed(&mut self, session: &Session, tag: u64, error: CallError) -> Result<(), ServeError> {
        if matches!(error, CallError::Closed(_)) {
            return Err(error.into());
        }
        let code = error.status().unwrap_or(0);
        match StatusCode::from(code) {
            StatusCode::BadTooManyPublishRequests => {
                self.publisher.too_many(PAUSE);
                return Ok(());
            }
            // Each request that was outstanding when the subscriptions ended returns this.
            StatusCode::BadNoSubscription if self.publisher.is_before_replacement(tag) => return Ok(()),
            StatusCode::BadNoSubscription => {
                self.subscriptions
                    .iter_mut()
                    .for_each(|subscription| subscription.lost = true);
                self.replace_ended(session).await?;
            }
            StatusCode::BadTimeout => {}
            _ if status::says_session_gone(code) => return Err(error.into()),
            _ => self
                .context
                .component
                .warn_limited("publish", 1, || format!("a publish request failed: {error}")),
        }
        self.publisher.rest(PAUSE);
        Ok(())
    }

    /// Runs once per second: silence, subscriptions to replace, gauges.
    async fn watch(&mut self, session: &Session) -> Result<(), ServeError> {
        let now = clock::now();
        self.status.lock().subscriptions = self.subscriptions.len();
        if self.is_primary() {
            self.context.metrics.show_items(&self.context.table);
            let counts = self.context.table.read().counts();
            let (served, pending) = (counts.monitored + counts.polled > 0, counts.pending > 0);
            let failures = &self.context.failures;
            self.context
                .health
                .counted(served, pending || !self.paths_final, || failures.summary());
        }
        self.replace_ended(session).await?;
        if !self.subscriptions.is_empty() && !self.publisher.is_up_to_date() {
            // The flow is or was full: nothing was requested, or responses are not processed yet.
            self.subscriptions
                .iter_mut()
                .for_each(|subscription| subscription.heard = now);
            self.last_data = now;
        }
        if let Some(silent) = self
            .subscriptions
            .iter_mut()
            .find(|subscription| subscription.is_silent(now))
        {
            silent.silences += 1;
            // A new connection did not help the last time, so the subscription counts as lost.
            silent.lost |= silent.silences > 1;
            let seconds = now.saturating_duration_since(silent.heard).as_secs();
            let why = format!("a subscription was silent for {seconds} s, longer than two of its keep-alives");
            return Err(CallError::Closed(why.into()).into());
        }
        self.retry_heartbeat(now);
        self.retry_room(now);
        self.watch_heartbeat(now)?;
        Ok(())
    }
}
