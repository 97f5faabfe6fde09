//! Locates a subscription in the server library: it is in one session's collection, behind that session's lock. A
//! client may transfer it to another of its sessions, which the library does not announce, so it is searched for when
//! it is missing.

use std::collections::HashMap;
use std::sync::Arc;

use opcua::sync::Mutex;
use opcua::types::{DataValue, DateTime};
use opcua_server::{MonitoredItem, SessionSubscriptions, Subscription, SubscriptionCache, SubscriptionState};
use parking_lot::MutexGuard;

use super::filter::Filter;
use super::ledger::{Revision, SubscriptionQueues};

/// The sessions that may contain subscriptions.
pub(super) struct SessionIndex {
    cache: Arc<SubscriptionCache>,
    sessions: HashMap<u32, Box<dyn Fn() -> bool + Send>>,
}

/// A subscription that existed a moment ago.
pub(super) struct SubscriptionRef {
    subscription: u32,
    session: Arc<Mutex<SessionSubscriptions>>,
}

impl SessionIndex {
    pub(super) fn new(cache: Arc<SubscriptionCache>) -> SessionIndex {
        SessionIndex {
            cache,
            sessions: HashMap::new(),
        }
    }

    pub(super) fn add(&mut self, id: u32, alive: Box<dyn Fn() -> bool + Send>) {
        let cache = &self.cache;
        self.sessions
            .retain(|id, alive| alive() || cache.get_session_subscriptions(*id).is_some());
        self.sessions.insert(id, alive);
    }

    /// Finds the subscription, starting with its last session, and stores its session.
    pub(super) fn find(&self, subscription: u32, session: &mut u32) -> Option<SubscriptionRef> {
        let candidates = std::iter::once(*session).chain(self.sessions.keys().copied());
        for candidate in candidates {
            let Some(subscriptions) = self.cache.get_session_subscriptions(candidate) else {
                continue;
            };
            let open = subscriptions
                .lock()
                .get(subscription)
                .map(|s| s.state() != SubscriptionState::Closed);
            match open {
                Some(true) => {
                    *session = candidate;
                    return Some(SubscriptionRef {
                        subscription,
                        session: subscriptions,
                    });
                }
                // Expired: the library keeps only its last message.
                Some(false) => return None,
                None => {}
            }
        }
        None
    }

    pub(super) fn sessions_alive(&self) -> usize {
        self.sessions.values().filter(|alive| alive()).count()
    }

    /// The numbers of subscriptions and monitored items of all sessions.
    pub(super) fn count(&self) -> (usize, usize) {
        let (mut subscriptions, mut items) = (0, 0);
        for session in self
            .sessions
            .keys()
            .filter_map(|id| self.cache.get_session_subscriptions(*id))
        {
            let session = session.lock();
            let ids = session.subscription_ids();
            subscriptions += ids.len();
            items += ids
                .iter()
                .filter_map(|id| session.get(*id))
                .map(Subscription::len)
                .sum::<usize>();
        }
        (subscriptions, items)
    }
}

impl SubscriptionRef {
    /// Runs `act` with the subscription under its session's lock; does nothing if the subscription is gone.
    pub(super) fn with(&self, act: impl FnOnce(&mut Subscription)) {
        let mut session = self.session.lock();
        if let Some(subscription) = session.get_mut(self.subscription) {
            act(subscription);
        }
        // The publishing tasks wait for the same lock and must get their turn.
        MutexGuard::unlock_fair(session);
    }
}

impl SubscriptionQueues for Subscription {
    fn holds(&self, item: u32) -> Option<bool> {
        self.get(&item).map(MonitoredItem::has_notifications)
    }

    fn discards_oldest(&self, item: u32) -> bool {
        self.get(&item).is_none_or(MonitoredItem::discard_oldest)
    }

    fn is_late(&self) -> bool {
        self.state() == SubscriptionState::Late
    }

    fn push(&mut self, item: u32, value: DataValue, now: &DateTime) {
        self.notify_data_value(&item, value, now);
    }
}

/// The current parameters of an item.
pub(super) fn revision(item: &MonitoredItem) -> Revision {
    Revision {
        queue: u32::try_from(item.queue_size()).unwrap_or(u32::MAX),
        sampling_interval_ms: item.sampling_interval(),
        // The filter itself is private, but its Debug output is not.
        filter: Filter::parse(&format!("{item:?}")),
        discards_oldest: item.discard_oldest(),
    }
}
