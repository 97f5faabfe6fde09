//! Starts a broker on what the log has.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use thalweg_http::auth::{Authorizer, Logins};
use thalweg_kit::time::Micros;
use thalweg_kit::{blocking, clock};
use thalweg_log::{Log, LogError, Offset};
use thalweg_mqtt_store::routes::SessionKind;
use thalweg_mqtt_store::session::GroupProgress;
use thalweg_mqtt_store::{Message, SessionChange, StoredSession};
use tokio::sync::Notify;

use super::{Broker, WallClock};
use crate::interest::InterestLists;
use crate::partitions::{self, MESSAGES, RETAINED, SESSIONS};
use crate::retained::RetainedMessages;
use crate::routing::RoutingTable;
use crate::session::{Session, SharedInflight};
use crate::settings::MqttSettings;
use crate::shared::{self, SharedSubscription};

/// Sessions and wills that are due while the broker is away wait this long after its start, so that clients can come back.
const START_MICROS: Micros = 5_000_000;

/// Why a broker cannot start.
#[derive(Debug, thiserror::Error)]
pub enum OpenBrokerError {
    #[error("the MQTT broker cannot use the log: {0}")]
    Log(#[from] LogError),
    #[error(
        "record {offset} of the partition {partition} is of a format that this version does not know; start the version that wrote it"
    )]
    UnknownFormat { partition: &'static str, offset: Offset },
    #[error("the thread that reads the MQTT sessions has panicked")]
    Panicked,
}

/// What a broker has from its process.
#[derive(Clone)]
pub struct BrokerEnvironment {
    /// Who may connect.
    pub logins: Authorizer,
    pub wall: WallClock,
}

impl Default for BrokerEnvironment {
    fn default() -> BrokerEnvironment {
        BrokerEnvironment {
            logins: Logins::none().authorizer(),
            wall: Arc::new(clock::wall_micros),
        }
    }
}

impl Broker {
    /// Opens the broker: sessions, subscriptions and what waits for them are there when it returns. Everybody may connect.
    pub async fn open(log: Arc<dyn Log>, settings: MqttSettings) -> Result<Arc<Broker>, OpenBrokerError> {
        Broker::open_with(log, settings, BrokerEnvironment::default()).await
    }

    /// Like `open`, with logins and a wall clock.
    pub async fn open_with(
        log: Arc<dyn Log>,
        settings: MqttSettings,
        environment: BrokerEnvironment,
    ) -> Result<Arc<Broker>, OpenBrokerError> {
        let BrokerEnvironment { logins, wall } = environment;
        partitions::prepare(log.as_ref(), settings.durability).await?;
        let broker = Arc::new(Broker {
            rules: settings.acl.clone().map(Arc::new),
            settings,
            log,
            wall,
            logins,
            routing: RoutingTable::new(),
            lists: InterestLists::default(),
            retained: RetainedMessages::default(),
            journal: Default::default(),
            timers: Default::default(),
            maintenance: Default::default(),
            sessions: Default::default(),
            shared: Default::default(),
            dirty: Default::default(),
            has_dirty: Notify::new(),
            connections: AtomicU64::new(0),
            counters: Default::default(),
            delivered: AtomicU64::new(0),
        });
        let opening = broker.clone();
        blocking::spawn(move || opening.recover())
            .await
            .map_err(|_| OpenBrokerError::Panicked)??;
        let rolled = broker.maintenance.rolled.clone();
        broker.log.on_roll(Arc::new(move || rolled.notify_one()));
        tokio::spawn(broker.clone().commit_journal());
        tokio::spawn(broker.clone().run_timers());
        tokio::spawn(broker.clone().maintain());
        tokio::spawn(broker.clone().store_progress());
        Ok(broker)
    }

    fn recover(&self) -> Result<(), OpenBrokerError> {
        let StoredState { sessions, groups } = self.stored_state()?;
        let now = (self.wall)();
        let mut needs_from = Offset::MAX;
        for (client_id, mut stored) in sessions {
            // Who was connected has left when the process ended, as far as anybody can say: at its start.
            let disconnected_at = *stored.disconnected_at.get_or_insert(now);
            if stored.expiry == 0 && stored.will.is_none() {
                continue;
            }
            if stored.expiry > 0 {
                needs_from = needs_from.min(stored.needs_from());
            }
            self.restore_session(&client_id, stored, disconnected_at, now + START_MICROS);
        }
        let bounds = self.log.bounds(MESSAGES)?;
        needs_from = needs_from.min(self.restore_groups(groups, bounds.next));
        self.lists.start_at(bounds.first);
        let mut unknown = None;
        partitions::read_all(
            self.log.as_ref(),
            MESSAGES,
            needs_from,
            |record| match Message::decode(record.value) {
                None => unknown = unknown.or(Some(record.offset)),
                Some(message) => {
                    let route = self.routing.route(message.topic());
                    self.lists.push_found(&route.stored, record.offset);
                }
            },
        )?;
        self.lists.start_at(bounds.next);
        self.delivered.store(bounds.next, Ordering::Release);
        self.recover_retained()?;
        match unknown {
            Some(offset) => Err(OpenBrokerError::UnknownFormat {
                partition: "mqtt.messages",
                offset,
            }),
            None => Ok(()),
        }
    }

    fn recover_retained(&self) -> Result<(), OpenBrokerError> {
        let mut unknown = None;
        partitions::read_all(self.log.as_ref(), RETAINED, 0, |read| {
            let topic = read.record.key.and_then(|key| std::str::from_utf8(key).ok());
            match (topic, read.value.is_empty()) {
                (Some(topic), true) => self.retained.remove(topic, read.offset),
                // A copy, so that a few bytes do not hold all that were read together.
                (Some(_), false) => match Message::decode(Bytes::copy_from_slice(&read.value)) {
                    Some(message) => self.retained.set(&message, read.offset),
                    None => unknown = unknown.or(Some(read.offset)),
                },
                (None, _) => unknown = unknown.or(Some(read.offset)),
            }
        })?;
        match unknown {
            Some(offset) => Err(OpenBrokerError::UnknownFormat {
                partition: "mqtt.retained",
                offset,
            }),
            None => Ok(()),
        }
    }

    fn stored_state(&self) -> Result<StoredState, OpenBrokerError> {
        let mut found = StoredState::default();
        let mut unknown = None;
        partitions::read_all(self.log.as_ref(), SESSIONS, 0, |read| {
            let key = read.record.key.unwrap_or_default();
            let is_known = match GroupProgress::filter_of(key) {
                Some(filter) => found.group(filter, read.record.value),
                None => found.session(key, read.record.value),
            };
            if is_known.is_none() {
                unknown = unknown.or(Some(read.offset));
            }
        })?;
        match unknown {
            Some(offset) => Err(OpenBrokerError::UnknownFormat {
                partition: "mqtt.sessions",
                offset,
            }),
            None => Ok(found),
        }
    }

    /// Makes the shared subscriptions of restored sessions go on where they were. Returns the oldest message that they need.
    fn restore_groups(&self, mut stored: HashMap<Box<str>, GroupProgress>, end: Offset) -> Offset {
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        for session in &sessions {
            let state = session.lock();
            let shared: Vec<_> = state
                .stored
                .subscriptions
                .iter()
                .filter(|(text, _)| text.starts_with(shared::PREFIX))
                .map(|(text, of)| (text.clone(), *of))
                .collect();
            drop(state);
            for (text, of) in shared {
                self.join(session, &text, of.subscription, of.since);
            }
        }
        let groups: HashMap<Box<str>, Arc<SharedSubscription>> = self.shared.lock().clone();
        let mut held: HashMap<Box<str>, HashSet<Offset>> = HashMap::new();
        for session in &sessions {
            let mut state = session.lock();
            for sent in state.stored.outgoing.iter().collect::<Vec<_>>() {
                let text = state.stored.shared.get(&sent.packet_id).cloned();
                if let Some(group) = text.and_then(|text| groups.get(&text)) {
                    held.entry(group.text.clone()).or_default().insert(sent.offset);
                    let shared = SharedInflight {
                        group: group.clone(),
                        body: None,
                    };
                    state.shared_inflight.insert(sent.packet_id, shared);
                }
            }
        }
        let mut needs_from = Offset::MAX;
        for (text, group) in &groups {
            let mut state = group.lock();
            let mut progress = stored.remove(text).unwrap_or(GroupProgress {
                next: end,
                ..GroupProgress::default()
            });
            let held = held.remove(text).unwrap_or_default();
            // Nobody has these: who had them has ended.
            state.returned = progress
                .unacknowledged
                .iter()
                .copied()
                .filter(|offset| !held.contains(offset))
                .collect();
            progress.unacknowledged.retain(|offset| held.contains(offset));
            let sent = held.into_iter().filter(|offset| *offset >= progress.next);
            progress.ahead.extend(sent);
            state.progress = progress;
            state.is_behind = true;
            needs_from = needs_from.min(state.needs_from(end).unwrap_or(Offset::MAX));
        }
        needs_from
    }

    fn restore_session(&self, client_id: &str, mut stored: StoredSession, disconnected_at: Micros, least: Micros) {
        // Without an expiry it has ended, and only its will is left.
        if stored.expiry == 0 {
            stored.subscriptions.clear();
        }
        let subscriptions: Vec<_> = stored
            .subscriptions
            .iter()
            .filter(|(filter, _)| !filter.starts_with(shared::PREFIX))
            .map(|(filter, of)| (filter.clone(), of.subscription))
            .collect();
        let session = self
            .routing
            .change(|inner| inner.add(|id| Session::restored(id, client_id, stored)));
        let kind = SessionKind {
            is_online: false,
            is_stored: true,
        };
        let mut state = session.lock();
        self.set_timers(session.id, &state.stored, disconnected_at, least);
        self.routing.change(|inner| {
            for (filter, subscription) in subscriptions {
                let done = inner.router.subscribe(session.id, kind, &filter, subscription);
                state.filters.insert(filter, done.filter);
                if done.begins_list {
                    self.lists.begin(done.filter);
                }
            }
        });
        drop(state);
        self.sessions.lock().insert(client_id.into(), session);
    }
}

/// What the partition of sessions says.
#[derive(Default)]
struct StoredState {
    sessions: HashMap<Box<str>, StoredSession>,
    groups: HashMap<Box<str>, GroupProgress>,
}

impl StoredState {
    /// `None`: the record is of a format that is not known.
    fn session(&mut self, key: &[u8], value: &[u8]) -> Option<()> {
        let client_id = std::str::from_utf8(key).ok()?;
        let change = SessionChange::decode(value)?;
        if let SessionChange::SendingShared { offset, filter, .. } = &change
            && let Some(group) = self.groups.get_mut(filter)
        {
            group.ahead.insert(*offset);
        }
        match &change {
            SessionChange::Removed => {
                self.sessions.remove(client_id);
            }
            SessionChange::Created { .. } => self.sessions.entry(client_id.into()).or_default().replay(change),
            // What comes behind the end of a session has no session.
            _ => {
                if let Some(session) = self.sessions.get_mut(client_id) {
                    session.replay(change);
                }
            }
        }
        Some(())
    }

    fn group(&mut self, filter: &str, value: &[u8]) -> Option<()> {
        let mut progress = GroupProgress::decode(value)?;
        if let Some(before) = self.groups.get_mut(filter) {
            // What was sent since then stays known.
            progress.ahead.extend(before.ahead.split_off(&progress.next));
        }
        self.groups.insert(filter.into(), progress);
        Some(())
    }
}
