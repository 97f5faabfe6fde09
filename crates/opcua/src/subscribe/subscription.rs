//! One subscription: its revised parameters, its items and its state.

use std::time::{Duration, Instant};

use opcua::types::{CreateSubscriptionRequest, DeleteSubscriptionsRequest};
use thalweg_kit::clock;
use thalweg_record::Ticks;

use super::retransmission::Retransmission;
use crate::channel::CallError;
use crate::config::InputConfig;
use crate::session::Session;
use crate::value::answers::ClientHandleValue;
use crate::value::status;

/// A subscription outlives this many keep-alive intervals without a publish request.
const LIFETIME_KEEP_ALIVES: u32 = 10;

#[derive(Clone, Copy, Debug)]
pub(crate) struct SubscriptionSettings {
    pub publishing_interval: Duration,
    pub keep_alive_count: u32,
    pub notifications_per_publish_max: u32,
    pub items_max: usize,
}

impl From<&InputConfig> for SubscriptionSettings {
    fn from(config: &InputConfig) -> SubscriptionSettings {
        SubscriptionSettings {
            publishing_interval: config.publishing_interval,
            keep_alive_count: config.keep_alive_count,
            notifications_per_publish_max: config.notifications_per_publish_max,
            items_max: config.items_per_subscription,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Subscription {
    /// Assigned by the server.
    pub id: u32,
    pub messages: Retransmission<Vec<ClientHandleValue>>,
    /// Number of items created or requested.
    pub items: usize,
    /// Lower than configured once the server rejected more.
    pub items_max: usize,
    /// The server rejected an item because it was full: `items_max` is the number that it accepts.
    pub full: bool,
    /// Publishing interval as revised by the server.
    pub interval: Duration,
    /// Longest time without a message that the server may leave.
    pub keep_alive: Duration,
    /// When the last message arrived.
    pub heard: Instant,
    /// When the last Publish response arrived; nothing is missing up to then. Republished messages do not change it.
    pub heard_at: Ticks,
    /// A call that creates items got no response, so it is unknown which items exist.
    pub in_doubt: bool,
    /// A call got results for only some of its items. No further items are created in the subscription until this is
    /// resolved.
    pub miscounted: bool,
    /// Number of consecutive silences.
    pub silences: u8,
    /// The server ended the subscription or does not respond for it: it must be recreated.
    pub lost: bool,
    /// The server denied it to this session: if it still exists, it belongs to another session.
    pub refused: bool,
}

impl Subscription {
    pub async fn create(session: &Session, settings: &SubscriptionSettings) -> Result<Subscription, CallError> {
        let request = CreateSubscriptionRequest {
            request_header: Default::default(),
            requested_publishing_interval: settings.publishing_interval.as_secs_f64() * 1000.0,
            requested_lifetime_count: settings.keep_alive_count.saturating_mul(LIFETIME_KEEP_ALIVES),
            requested_max_keep_alive_count: settings.keep_alive_count,
            max_notifications_per_publish: settings.notifications_per_publish_max,
            publishing_enabled: true,
            priority: 0,
        };
        let response = session.call(request).await?;
        let status = response.response_header.service_result.bits();
        if status::is_bad(status) {
            return Err(CallError::Refused(status));
        }
        let interval = response.revised_publishing_interval;
        let interval = if interval.is_finite() {
            interval.clamp(1.0, 3_600_000.0)
        } else {
            1000.0
        };
        // A count of zero would make the subscription silent at once.
        let keep_alive_count = match response.revised_max_keep_alive_count {
            0 => settings.keep_alive_count.max(1),
            count => count,
        };
        let keep_alive = interval * f64::from(keep_alive_count);
        Ok(Subscription {
            id: response.subscription_id,
            messages: Retransmission::default(),
            items: 0,
            items_max: settings.items_max,
            full: false,
            interval: Duration::from_secs_f64(interval / 1000.0),
            keep_alive: Duration::from_secs_f64((keep_alive / 1000.0).min(86_400.0)),
            heard: clock::now(),
            heard_at: Ticks::now(),
            in_doubt: false,
            miscounted: false,
            silences: 0,
            lost: false,
            refused: false,
        })
    }

    /// Deletes subscriptions on the server. Errors are ignored, since the subscriptions may be gone already.
    pub async fn delete(session: &Session, ids: Vec<u32>) {
        let request = DeleteSubscriptionsRequest {
            request_header: Default::default(),
            subscription_ids: Some(ids),
        };
        let _gone = session.call(request).await;
    }

    pub fn heard_now(&mut self) {
        self.heard = clock::now();
        self.heard_at = Ticks::now();
        self.silences = 0;
    }

    /// Returns whether another item fits.
    pub fn has_room(&self) -> bool {
        self.is_usable() && self.items < self.items_max
    }

    /// Returns whether the server has the subscription and its items are known.
    pub fn is_usable(&self) -> bool {
        !self.is_broken() && !self.miscounted
    }

    pub fn is_miscounted(&self) -> bool {
        self.miscounted && !self.is_broken()
    }

    /// Returns whether it must be recreated.
    pub fn is_broken(&self) -> bool {
        self.lost || self.in_doubt
    }

    /// Returns whether it is silent for longer than allowed: two keep-alive intervals plus a margin for latency.
    pub fn is_silent(&self, now: Instant) -> bool {
        const MARGIN: Duration = Duration::from_secs(1);
        now.saturating_duration_since(self.heard) > self.keep_alive * 2 + MARGIN
    }
}
