//! The server's clock as an item among the others: created, shared with the user's selection, retried if refused, and
//! watched.

use std::time::{Duration, Instant};

use thalweg_kit::clock;

use super::ServerConnection;
use super::items::{AcquisitionMode, ItemIndex, MonitoringStage};
use crate::channel::CallError;
use crate::heartbeat;
use crate::metadata;
use crate::node_table::NO_NODE;
use crate::session::Session;
use crate::value::status;

const WARNING_PERIOD: Duration = Duration::from_secs(60);

impl ServerConnection {
    /// Adds a dedicated heartbeat item, until the user's selection turns out to contain its node.
    pub(super) fn add_heartbeat(&mut self) {
        let way = if self.context.config.subscribe {
            AcquisitionMode::Monitor
        } else {
            AcquisitionMode::Poll
        };
        let index = self.items.add(NO_NODE, way);
        self.converter
            .set_heartbeat(index, metadata::of_heartbeat(&heartbeat::node()));
        self.enqueue(index);
    }

    /// The user's own item of the server's clock then serves both purposes.
    pub(super) async fn share_heartbeat(&mut self, session: &Session, index: ItemIndex) {
        self.converter
            .set_heartbeat(index, metadata::of_heartbeat(&heartbeat::node()));
        if let Some(own) = self.own_heartbeat() {
            self.delete_items(session, &[own]).await;
        }
    }

    /// The dedicated item, which the user did not select.
    fn own_heartbeat(&self) -> Option<ItemIndex> {
        let mut items = self.items.iter();
        items.find(|(_, item)| item.node == NO_NODE).map(|(index, _)| index)
    }

    /// Schedules its retry here, because the list of failures is by node.
    pub(super) fn heartbeat_refused(&mut self, status: u32) {
        self.heartbeat_retry.refused(clock::now());
        self.context.component.warn_limited("heartbeat", 1, || {
            format!(
                "the server's clock cannot be monitored as a heartbeat: {}",
                status::text(status)
            )
        });
    }

    pub(super) fn retry_heartbeat(&mut self, now: Instant) {
        if !self.heartbeat_retry.take_due(now) {
            return;
        }
        let Some(index) = self.own_heartbeat() else { return };
        if self
            .items
            .get(index)
            .is_some_and(|item| item.stage == MonitoringStage::Failed)
        {
            self.enqueue(index);
        }
    }

    pub(super) fn watch_heartbeat(&mut self, now: Instant) -> Result<(), CallError> {
        let Some(period) = self.heartbeat_period().filter(|_| self.paths_final) else {
            // Silence counts from the moment when heartbeats are expected.
            self.last_heartbeat = now;
            return Ok(());
        };
        let since = |then: Instant| now.saturating_duration_since(then);
        let silence_max = heartbeat::silence_max(period);
        let seconds = silence_max.as_secs();
        match heartbeat::judge(since(self.last_heartbeat), since(self.last_data), silence_max) {
            heartbeat::Liveness::Alive => {}
            heartbeat::Liveness::Dead => {
                let why = format!("neither a heartbeat nor data for {seconds} s");
                return Err(CallError::Closed(why.into()));
            }
            heartbeat::Liveness::DataOnly if self.heartbeat_warned.is_some_and(|at| since(at) < WARNING_PERIOD) => {}
            heartbeat::Liveness::DataOnly => {
                self.heartbeat_warned = Some(now);
                tracing::warn!(
                    component = self.context.component.title(),
                    "no heartbeat for {seconds} s though data arrives; the server does not update its CurrentTime"
                );
            }
        }
        Ok(())
    }

    /// How often a heartbeat is expected; `None` if it is not served, not yet, or refused by the server.
    fn heartbeat_period(&self) -> Option<Duration> {
        let item = self.items.get(self.converter.heartbeat_item()?)?;
        let config = &self.context.config;
        match item.way {
            AcquisitionMode::Poll => Some(config.poll_rate),
            AcquisitionMode::Monitor if item.stage == MonitoringStage::Created => {
                let subscription = self.subscriptions.get(usize::from(item.subscription))?;
                Some(subscription.interval.max(self.heartbeat_sampling))
            }
            AcquisitionMode::Monitor | AcquisitionMode::Nowhere => None,
        }
    }
}
