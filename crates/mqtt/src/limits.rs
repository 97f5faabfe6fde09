//! How much waits for sessions: each may have so many messages, and all together so many bytes.

use std::sync::Arc;

use thalweg_log::{LogError, Offset};
use thalweg_mqtt_store::FilterId;
use thalweg_mqtt_wire::QoS;

use crate::broker::Broker;
use crate::partitions::MESSAGES;
use crate::session::{DropReason, Session, SessionState};
use crate::settings::SessionOverflow;

impl SessionState {
    /// The filters whose interest lists have messages for it, each from a message of its own on.
    pub fn listed_filters(&self) -> Vec<(FilterId, Offset)> {
        let wanted = self.stored.subscriptions.iter();
        let wanted = wanted.filter(|(_, stored)| stored.subscription.options.qos != QoS::AtMostOnce);
        wanted
            .filter_map(|(filter, stored)| Some((*self.filters.get(filter)?, stored.since)))
            .collect()
    }
}

impl Broker {
    /// Drops what is too much for a session that reads from the log. Messages that match several of its filters count for each.
    pub(crate) fn limit_queue(&self, session: &Session, state: &mut SessionState) {
        if !state.is_behind {
            return;
        }
        let filters = state.listed_filters();
        let waiting = self.lists.count(&filters, state.stored.next);
        let Some(excess) = waiting
            .checked_sub(self.settings.max_queued as u64)
            .filter(|excess| *excess > 0)
        else {
            return;
        };
        match self.settings.overflow {
            SessionOverflow::DropOldest => {
                let next = self.lists.skip(&filters, state.stored.next, excess);
                state.stored.advance(next);
            }
            SessionOverflow::DropNewest => {
                let end = self
                    .lists
                    .skip(&filters, state.stored.next, self.settings.max_queued as u64);
                state.skips = Some((end, self.lists.applied()));
            }
        }
        self.counters.dropped(DropReason::SessionFull, excess);
        tracing::debug!(
            "{excess} messages for the client {:?} are dropped: too many wait",
            session.client_id
        );
    }

    /// Drops what is too much for sessions that are away. What is dropped of the newest is known only when a session reads.
    pub(crate) fn limit_queues(&self) {
        if self.settings.overflow == SessionOverflow::DropNewest {
            return;
        }
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        for session in sessions {
            let mut state = session.lock();
            if state.is_stored && state.connection.is_none() {
                self.limit_queue(&session, &mut state);
            }
        }
    }

    /// Drops the oldest messages if all together take more than they may. Returns the oldest one that stays.
    pub(crate) fn limit_store(&self, needed: Offset) -> Result<Offset, LogError> {
        let bounds = self.log.bounds(MESSAGES)?;
        let (mut low, mut high) = (needed.max(bounds.first), bounds.next);
        if self.log.bytes(MESSAGES, low, bounds.next)? <= self.settings.store_bytes {
            return Ok(needed);
        }
        // The first offset behind which there is little enough.
        while low < high {
            let middle = low + (high - low) / 2;
            match self.log.bytes(MESSAGES, middle, bounds.next)? > self.settings.store_bytes {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let dropped = low - needed.max(bounds.first);
        self.counters.dropped(DropReason::StoreFull, dropped);
        tracing::warn!(
            "{dropped} messages that MQTT sessions wait for are dropped: more than {} bytes wait; raise mqtt.store.max_bytes, or \
             lower mqtt.max_session_expiry",
            self.settings.store_bytes
        );
        Ok(low)
    }
}
