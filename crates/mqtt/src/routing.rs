//! Who gets the messages of a topic, with a cache per thread: topics repeat, subscriptions change seldom.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use thalweg_mqtt_store::routes::Receiver;
use thalweg_mqtt_store::{FilterId, Router, SessionId};

use crate::session::Session;
use crate::shared::SharedSubscription;

/// Everything that takes the messages of one topic.
#[derive(Default)]
pub(crate) struct TopicRoute {
    pub receivers: Vec<(Arc<Session>, Receiver)>,
    /// Filters whose interest lists get the messages.
    pub stored: Vec<FilterId>,
    /// The shared subscriptions, of which one member gets the message.
    pub groups: Vec<Arc<SharedSubscription>>,
}

impl TopicRoute {
    pub fn is_empty(&self) -> bool {
        self.receivers.is_empty() && self.stored.is_empty() && self.groups.is_empty()
    }
}

/// Topics that a thread remembers.
const REMEMBERED: usize = 4096;

/// All subscriptions, and the sessions that have them.
pub(crate) struct RoutingTable {
    /// Distinguishes the tables of one process.
    number: u64,
    version: AtomicU64,
    inner: RwLock<RoutingInner>,
}

#[derive(Default)]
pub(crate) struct RoutingInner {
    pub router: Router,
    sessions: Vec<Option<Arc<Session>>>,
    free: Vec<u32>,
    pub groups: HashMap<FilterId, Vec<Arc<SharedSubscription>>>,
}

impl RoutingInner {
    /// Adds a session that `make` makes with its number.
    pub fn add(&mut self, make: impl FnOnce(SessionId) -> Session) -> Arc<Session> {
        let index = self.free.pop().unwrap_or(self.sessions.len() as u32);
        let session = Arc::new(make(SessionId(index)));
        match self.sessions.get_mut(index as usize) {
            Some(place) => *place = Some(session.clone()),
            None => self.sessions.push(Some(session.clone())),
        }
        session
    }

    pub fn remove(&mut self, id: SessionId) {
        if let Some(place) = self.sessions.get_mut(id.0 as usize)
            && place.take().is_some()
        {
            self.free.push(id.0);
        }
    }

    pub fn session(&self, id: SessionId) -> Option<&Arc<Session>> {
        self.sessions.get(id.0 as usize)?.as_ref()
    }

    fn route(&self, topic: &str) -> TopicRoute {
        let route = self.router.route(topic);
        let receivers = route.receivers.into_iter();
        TopicRoute {
            receivers: receivers
                .filter_map(|receiver| Some((self.session(receiver.session)?.clone(), receiver)))
                .collect(),
            groups: route
                .shared
                .iter()
                .filter_map(|filter| self.groups.get(filter))
                .flatten()
                .cloned()
                .collect(),
            stored: route.stored,
        }
    }
}

struct RememberedRoutes {
    table: u64,
    version: u64,
    by_topic: HashMap<Box<str>, Arc<TopicRoute>>,
}

thread_local! {
    static ROUTES: RefCell<RememberedRoutes> = RefCell::new(RememberedRoutes {
        table: 0,
        version: 0,
        by_topic: HashMap::new(),
    });
}

impl RoutingTable {
    pub fn new() -> RoutingTable {
        static TABLES: AtomicU64 = AtomicU64::new(1);
        RoutingTable {
            number: TABLES.fetch_add(1, Ordering::Relaxed),
            version: AtomicU64::new(1),
            inner: RwLock::default(),
        }
    }

    /// Changes subscriptions or sessions. What is routed after the return follows the change.
    pub fn change<T>(&self, change: impl FnOnce(&mut RoutingInner) -> T) -> T {
        let mut inner = self.inner.write();
        let changed = change(&mut inner);
        // Under the lock: who reads the version first and the table then has a route at least that new.
        self.version.fetch_add(1, Ordering::Release);
        changed
    }

    pub fn read<T>(&self, read: impl FnOnce(&RoutingInner) -> T) -> T {
        read(&self.inner.read())
    }

    /// Who gets the messages of a topic.
    pub fn route(&self, topic: &str) -> Arc<TopicRoute> {
        let version = self.version.load(Ordering::Acquire);
        ROUTES.with_borrow_mut(|routes| {
            if (routes.table, routes.version) != (self.number, version) || routes.by_topic.len() > REMEMBERED {
                routes.by_topic.clear();
                (routes.table, routes.version) = (self.number, version);
            }
            if let Some(route) = routes.by_topic.get(topic) {
                return route.clone();
            }
            let route = Arc::new(self.inner.read().route(topic));
            routes.by_topic.insert(topic.into(), route.clone());
            route
        })
    }
}
