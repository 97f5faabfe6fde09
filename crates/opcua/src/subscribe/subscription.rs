//! One subscription: what was agreed with the server, what it holds, when it was last heard of.

use std::time::{Duration, Instant};

use opcua::types::{CreateSubscriptionRequest, DeleteSubscriptionsRequest};
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
    /// The server's id.
    pub id: u32,
    pub messages: Retransmission<Vec<ClientHandleValue>>,
    /// Items created or asked for.
    pub items: usize,
    /// Lower than configured once the server refused more.
    pub items_max: usize,
    /// The server refused an item for want of room: `items_max` is what it takes.
    pub full: bool,
    /// Of publishing, as the server revised it.
    pub interval: Duration,
    /// Longest silence that the server may keep.
    pub keep_alive: Duration,
    /// When the server was last heard of it.
    pub heard: Instant,
    /// When its last Publish answer came, up to which nothing is missing. Messages that are sent again do not move it.
    pub heard_at: Ticks,
    /// A call that creates items was not answered: nobody knows what exists.
    pub in_doubt: bool,
    /// One was answered, but not for each of its items. Until that is found out, no further ones are created in it.
    pub miscounted: bool,
    /// How often in a row it fell silent.
    pub silences: u8,
    /// The server has ended it, or does not answer for it: it must be made anew.
    pub lost: bool,
    /// This session was refused it: if it still exists, it is somebody else's.
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
        // A server that revises it to none would have to be heard of all the time.
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
            heard: Instant::now(),
            heard_at: Ticks::now(),
            in_doubt: false,
            miscounted: false,
            silences: 0,
            lost: false,
            refused: false,
        })
    }

    /// Forgets subscriptions on the server; errors are of no interest, since they may be gone.
    pub async fn delete(session: &Session, ids: Vec<u32>) {
        let request = DeleteSubscriptionsRequest {
            request_header: Default::default(),
            subscription_ids: Some(ids),
        };
        let _gone = session.call(request).await;
    }

    pub fn heard_now(&mut self) {
        self.heard = Instant::now();
        self.heard_at = Ticks::now();
        self.silences = 0;
    }

    /// Whether it holds room for another item.
    pub fn has_room(&self) -> bool {
        self.is_usable() && self.items < self.items_max
    }

    /// Whether the server has it, and it is known what it holds.
    pub fn is_usable(&self) -> bool {
        !self.is_broken() && !self.miscounted
    }

    pub fn is_miscounted(&self) -> bool {
        self.miscounted && !self.is_broken()
    }

    /// Whether it must be made anew.
    pub fn is_broken(&self) -> bool {
        self.lost || self.in_doubt
    }

    /// Silent for longer than a server may be: two keep-alives, and a moment for the way.
    pub fn is_silent(&self, now: Instant) -> bool {
        const MARGIN: Duration = Duration::from_secs(1);
        now.saturating_duration_since(self.heard) > self.keep_alive * 2 + MARGIN
    }
}
