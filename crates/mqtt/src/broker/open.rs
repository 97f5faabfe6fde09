//! Starts a broker on what the log has.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use bytes::Bytes;
use thalweg_kit::time::Micros;
use thalweg_kit::{blocking, clock};
use thalweg_log::{Log, LogError, Offset};
use thalweg_mqtt_store::routes::SessionKind;
use thalweg_mqtt_store::{Message, SessionChange, StoredSession};
use tokio::sync::Notify;

use super::{Broker, WallClock};
use crate::interest::InterestLists;
use crate::partitions::{self, MESSAGES, RETAINED, SESSIONS};
use crate::retained::RetainedMessages;
use crate::routing::RoutingTable;
use crate::session::Session;
use crate::settings::MqttSettings;

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

impl Broker {
    /// Opens the broker: sessions, subscriptions and what waits for them are there when it returns.
    pub async fn open(log: Arc<dyn Log>, settings: MqttSettings) -> Result<Arc<Broker>, OpenBrokerError> {
        Broker::open_with_clock(log, settings, Arc::new(clock::wall_micros)).await
    }

    /// Like `open`, with a wall clock.
    pub async fn open_with_clock(
        log: Arc<dyn Log>,
        settings: MqttSettings,
        wall: WallClock,
    ) -> Result<Arc<Broker>, OpenBrokerError> {
        partitions::prepare(log.as_ref(), settings.durability).await?;
        let broker = Arc::new(Broker {
            settings,
            log,
            wall,
            routing: RoutingTable::new(),
            lists: InterestLists::default(),
            retained: RetainedMessages::default(),
            journal: Default::default(),
            timers: Default::default(),
            maintenance: Default::default(),
            sessions: Default::default(),
            dirty: Default::default(),
            has_dirty: Notify::new(),
            connections: AtomicU64::new(0),
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
        let sessions = self.stored_sessions()?;
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

    fn stored_sessions(&self) -> Result<HashMap<Box<str>, StoredSession>, OpenBrokerError> {
        let mut sessions: HashMap<Box<str>, StoredSession> = HashMap::new();
        let mut unknown = None;
        partitions::read_all(self.log.as_ref(), SESSIONS, 0, |read| {
            let client_id = read.record.key.and_then(|key| std::str::from_utf8(key).ok());
            let (Some(client_id), Some(change)) = (client_id, SessionChange::decode(read.record.value)) else {
                unknown = unknown.or(Some(read.offset));
                return;
            };
            match &change {
                SessionChange::Removed => {
                    sessions.remove(client_id);
                }
                SessionChange::Created { .. } => sessions.entry(client_id.into()).or_default().replay(change),
                // What comes behind the end of a session has no session.
                _ => {
                    if let Some(session) = sessions.get_mut(client_id) {
                        session.replay(change);
                    }
                }
            }
        })?;
        match unknown {
            Some(offset) => Err(OpenBrokerError::UnknownFormat {
                partition: "mqtt.sessions",
                offset,
            }),
            None => Ok(sessions),
        }
    }

    fn restore_session(&self, client_id: &str, mut stored: StoredSession, disconnected_at: Micros, least: Micros) {
        // Without an expiry it has ended, and only its will is left.
        if stored.expiry == 0 {
            stored.subscriptions.clear();
        }
        let subscriptions: Vec<_> = stored
            .subscriptions
            .iter()
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
