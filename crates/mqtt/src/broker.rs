//! The broker: sessions, subscriptions and messages, without sockets.

mod apply;
mod feed;
mod open;
mod prepare;
mod share;
mod stop;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use thalweg_http::auth::Authorizer;
use thalweg_kit::time::Micros;
use thalweg_log::{Log, LogError, WriteBatch};
use thalweg_mqtt_store::{Message, Offset, SessionId};
use thalweg_mqtt_wire::ReasonCode;
use tokio::sync::Notify;

use crate::action::{Action, ProgressAction};
use crate::counters::BrokerCounters;
use crate::interest::InterestLists;
use crate::journal::Journal;
use crate::maintenance::MaintenanceState;
use crate::outbox::TouchedOutboxes;
use crate::partitions::MESSAGES;
use crate::retained::RetainedMessages;
use crate::routing::{RoutingTable, TopicRoute};
use crate::session::{DeliveryOutcome, DropReason, OutgoingPublish, Session};
use crate::settings::{AclRule, MqttSettings};
use crate::shared::{SharedState, SharedSubscription};
use crate::timers::SessionTimers;

pub use open::{BrokerEnvironment, OpenBrokerError};

/// The wall clock, which message expiry and session expiry are counted in.
pub type WallClock = Arc<dyn Fn() -> Micros + Send + Sync>;

/// A broker on a log.
pub struct Broker {
    pub(crate) settings: MqttSettings,
    pub(crate) log: Arc<dyn Log>,
    pub(crate) wall: WallClock,
    /// The logins of the process.
    pub(crate) logins: Authorizer,
    pub(crate) rules: Option<Arc<Vec<AclRule>>>,
    pub(crate) routing: RoutingTable,
    pub(crate) lists: InterestLists,
    pub(crate) retained: RetainedMessages,
    pub(crate) journal: Journal,
    pub(crate) timers: SessionTimers,
    pub(crate) maintenance: MaintenanceState,
    /// Lock order: before the state of a session.
    pub(crate) sessions: Mutex<HashMap<Box<str>, Arc<Session>>>,
    /// Shared subscriptions, by text.
    pub(crate) shared: Mutex<HashMap<Box<str>, Arc<SharedSubscription>>>,
    /// Sessions and groups with acknowledgements that are not stored yet.
    dirty: Mutex<ProgressAction>,
    has_dirty: Notify,
    connections: AtomicU64,
    pub(crate) counters: Arc<BrokerCounters>,
    /// All messages before this one were given to whoever is there.
    pub(crate) delivered: AtomicU64,
}

impl Broker {
    /// The number of a new connection.
    pub(crate) fn next_connection(&self) -> u64 {
        self.connections.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a message to everybody who is there. What is not stored is kept in memory for who has no room.
    pub(crate) fn deliver(
        self: &Arc<Self>,
        message: &Message,
        route: &TopicRoute,
        publisher: Option<SessionId>,
        offset: Option<Offset>,
        touched: &mut TouchedOutboxes,
    ) {
        if !route.groups.is_empty() {
            self.deliver_shared(&route.groups, message, offset, touched);
        }
        if route.receivers.is_empty() {
            return;
        }
        // The clock is read only for messages that may expire.
        let now = message.expires().map_or(0, |_| (self.wall)());
        for (session, receiver) in &route.receivers {
            let Some(delivery) = receiver.of(publisher) else {
                continue;
            };
            let Some(publish) = OutgoingPublish::new(message, delivery, now) else {
                return;
            };
            let mut state = session.lock();
            let outcome = state.deliver(&publish, offset, self.settings.memory_queue, touched);
            drop(state);
            match outcome {
                DeliveryOutcome::MustSpill => self.journal.push(Action::Spill(session.clone())),
                DeliveryOutcome::Waits => self.feed(session, touched),
                DeliveryOutcome::Dropped(reason) => self.note_dropped(reason),
                DeliveryOutcome::Sent | DeliveryOutcome::NotNow => {}
            }
        }
    }

    /// What a client has acknowledged is stored within `store.ack_flush`.
    pub(crate) fn note_dirty(&self, session: &Arc<Session>) {
        self.dirty.lock().sessions.push(session.clone());
        self.has_dirty.notify_one();
    }

    /// How far a group is is stored within `store.ack_flush`.
    pub(crate) fn note_dirty_group(&self, group: &Arc<SharedSubscription>, state: &mut SharedState) {
        if state.is_stored() && !std::mem::replace(&mut state.is_dirty, true) {
            self.dirty.lock().groups.push(group.clone());
            self.has_dirty.notify_one();
        }
    }

    /// A message does not reach somebody.
    pub(crate) fn note_dropped(&self, reason: DropReason) {
        self.counters.dropped(reason, 1);
    }

    /// Stores what clients have acknowledged, again and again.
    async fn store_progress(self: Arc<Broker>) {
        loop {
            self.has_dirty.notified().await;
            tokio::time::sleep(self.settings.ack_flush).await;
            let dirty = std::mem::take(&mut *self.dirty.lock());
            self.journal.push(Action::Progress(dirty));
        }
    }

    /// Commits what is in the journal, batch by batch.
    async fn commit_journal(self: Arc<Broker>) {
        let mut touched = TouchedOutboxes::new(&self.counters);
        loop {
            let actions = self.journal.take().await;
            if actions.is_empty() {
                return;
            }
            let mut batch = self.prepare(actions);
            let unit = batch.unit();
            match self.store(unit).await {
                Ok(()) => self.apply(batch, &mut touched),
                Err(error) => self.refuse(batch, &error, &mut touched),
            }
            touched.flush();
        }
    }

    async fn store(&self, unit: Option<WriteBatch>) -> Result<(), LogError> {
        match unit {
            None => Ok(()),
            Some(unit) => self.log.append(unit).await.map(drop),
        }
    }

    /// The offset of the next message.
    fn next_message(&self) -> Offset {
        self.log
            .bounds(MESSAGES)
            .map_or(self.lists.applied(), |bounds| bounds.next)
    }

    /// Ends the journal and waits for nothing: what is in it is committed by its task.
    pub fn close(&self) {
        self.journal.close();
    }
}

/// The code that says why the log does not take something.
pub(crate) fn code_of(error: &LogError) -> ReasonCode {
    match error {
        LogError::DiskFull { .. } => ReasonCode::QuotaExceeded,
        LogError::TooLarge { .. } => ReasonCode::ImplementationSpecificError,
        _ => ReasonCode::UnspecifiedError,
    }
}
