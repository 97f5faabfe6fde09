//! The persistent subscriptions of all namespaces, each stored as a document that is updated by compare and set.
//! Requests that arrive while a subscription is being stored are executed together and stored once, so that they share
//! a sync.
//!
//! Leases are stored before a consumer gets the messages: several servers on one database never deliver a message twice
//! before its deadline, and an attempt counts even if the server dies. This costs a write for each fetch that finds
//! messages; an empty fetch writes nothing. The alternative, leases in memory for a store with a single process, would
//! save that write but deliver messages again after each start.

mod handle;
mod reading;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_log::Micros;
use thalweg_log::clock::Clock;
use tokio::time::Instant;

use crate::error::{EventsError, Result};
use crate::event::StoredEvent;
use crate::store::Namespace;
use crate::subscription::{
    Lease, Nack, SettingsChange, SettleOutcome, Subscription, SubscriptionInfo, SubscriptionSettings,
};

use handle::{Op, SubscriptionHandle, SubscriptionReply};

/// Number of subscriptions whose state stays in memory while unused.
const HANDLES: usize = 1024;
/// How often changes by other servers are checked for.
const POLL: Duration = Duration::from_secs(1);
const PREFIX: &str = "subscription/";

#[derive(Default)]
pub struct Subscriptions {
    /// Replaces the clocks of the namespaces.
    clock: Option<Arc<dyn Clock>>,
    /// By namespace and name.
    handles: Mutex<HashMap<(String, String), Arc<SubscriptionHandle>>>,
}

/// Where a subscription starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPosition {
    Start,
    /// After everything that can be read now.
    End,
    /// Inclusive global position.
    At(u64),
}

impl StartPosition {
    /// The global position, starting at 1.
    pub fn global(self, namespace: &dyn Namespace) -> u64 {
        match self {
            StartPosition::Start => 1,
            StartPosition::End => namespace.watch().borrow().last + 1,
            StartPosition::At(global) => global.max(1),
        }
    }
}

/// A consumer's request for messages.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    pub consumer: Arc<str>,
    /// Maximum number of messages that the consumer can have at once.
    pub max: usize,
    /// The leases that the consumer has. Invalid and expired ones are not counted.
    pub held: Vec<Lease>,
}

/// A message delivered to a consumer.
#[derive(Clone, Debug)]
pub struct DeliveredMessage {
    pub lease: Lease,
    /// Starts at 1.
    pub attempt: u32,
    pub stored: StoredEvent,
}

#[derive(Clone, Debug, Default)]
pub struct FetchedMessages {
    pub messages: Vec<DeliveredMessage>,
    /// Those of the consumer's leases that count.
    pub held: Vec<Lease>,
    /// When more messages may become available, if nothing else happens.
    due: Option<Micros>,
}

/// A parked message; `stored` is `None` if the message no longer exists.
#[derive(Clone, Debug)]
pub struct ParkedMessage {
    pub global: u64,
    pub reason: Arc<str>,
    pub attempts: u32,
    pub at: Micros,
    pub stored: Option<StoredEvent>,
}

/// Metrics of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionStats {
    pub namespace: String,
    pub name: String,
    /// Number of global positions between the last message and the position up to which all are settled or parked.
    pub behind: u64,
    pub in_flight: usize,
    pub waiting: usize,
    pub parked: usize,
    /// Number of messages that this process delivered more than once.
    pub redelivered: u64,
}

impl Subscriptions {
    fn clock_of(&self, namespace: &dyn Namespace) -> Arc<dyn Clock> {
        self.clock.clone().unwrap_or_else(|| namespace.clock())
    }

    /// Uses this clock for all namespaces.
    pub fn new(clock: Arc<dyn Clock>) -> Subscriptions {
        Subscriptions {
            clock: Some(clock),
            handles: Mutex::default(),
        }
    }

    /// Creates a subscription. Durable when it returns.
    pub async fn create(
        &self,
        namespace: &Arc<dyn Namespace>,
        name: &str,
        settings: SubscriptionSettings,
    ) -> Result<()> {
        let mut created = Subscription::new(settings, self.clock_of(namespace.as_ref()).now());
        let cleared = namespace.watch().borrow().cleared;
        created.is_of(cleared);
        match namespace
            .put_document(&document(name), Some(&created.encode()), 0)
            .await?
        {
            Some(_) => Ok(()),
            None => Err(EventsError::SubscriptionExists(name.to_owned())),
        }
    }

    /// Deletes a subscription with its parked messages. Durable when it returns, like all changes below.
    pub async fn delete(&self, namespace: &Arc<dyn Namespace>, name: &str) -> Result<()> {
        let document_name = document(name);
        for _ in 0..handle::CONFLICTS_MAX {
            // Bypasses the state machine, because a broken state may be the reason for the deletion.
            let Some(known) = namespace.document(&document_name).await? else {
                return Err(EventsError::SubscriptionNotFound(name.to_owned()));
            };
            let deleted = namespace.put_document(&document_name, None, known.revision).await?;
            if deleted.is_some() {
                // Waiters check again and find that it is gone.
                let handle = self.handles.lock().remove(&key(namespace.as_ref(), name));
                if let Some(handle) = handle {
                    handle.wake();
                }
                return Ok(());
            }
        }
        Err(handle::overtaken(name))
    }

    /// Drops the in-memory state of a deleted namespace.
    pub fn forget(&self, namespace: &str) {
        let gone: Vec<Arc<SubscriptionHandle>> = {
            let mut handles = self.handles.lock();
            let gone = handles.extract_if(|(of, _), _| of == namespace);
            gone.map(|(_, handle)| handle).collect()
        };
        gone.iter().for_each(|handle| handle.wake());
    }

    pub async fn update(&self, namespace: &Arc<dyn Namespace>, name: &str, change: SettingsChange) -> Result<()> {
        self.ask(namespace, name, Op::Update(change)).await.map(drop)
    }

    /// Continues from `start` and returns it as a global position. All leases become invalid.
    pub async fn reset(&self, namespace: &Arc<dyn Namespace>, name: &str, start: StartPosition) -> Result<u64> {
        let from = start.global(namespace.as_ref());
        self.ask(namespace, name, Op::Reset(from)).await.map(|_| from)
    }

    pub async fn info(&self, namespace: &Arc<dyn Namespace>, name: &str) -> Result<SubscriptionInfo> {
        match self.ask(namespace, name, Op::Info).await? {
            SubscriptionReply::Info(info) => Ok(*info),
            _ => Err(mixed_up(name)),
        }
    }

    /// Subscriptions with the prefix, after the cursor, in byte order.
    pub async fn list(
        &self,
        namespace: &Arc<dyn Namespace>,
        prefix: &str,
        cursor: &str,
        max: usize,
    ) -> Result<Vec<(String, SubscriptionInfo)>> {
        let cursor = match cursor {
            "" => String::new(),
            name => document(name),
        };
        let documents = namespace.documents(&document(prefix), &cursor, max).await?;
        let mut out = Vec::with_capacity(documents.len());
        for name in documents.iter().filter_map(|document| document.strip_prefix(PREFIX)) {
            match self.info(namespace, name).await {
                Ok(info) => out.push((name.to_owned(), info)),
                // It was deleted meanwhile.
                Err(EventsError::SubscriptionNotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(out)
    }

    /// Metrics of the subscriptions that this process has used, as of their last use, in no particular order. At most
    /// about a thousand.
    pub fn figures(&self) -> Vec<SubscriptionStats> {
        let handles: Vec<Arc<SubscriptionHandle>> = self.handles.lock().values().cloned().collect();
        handles.iter().filter_map(|handle| handle.figures()).collect()
    }

    /// Fetches messages for a consumer, which holds them until the ack timeout. Waits for the first one until `until`.
    /// If the caller goes away, nothing is lost: its messages are delivered again, at once or after the timeout.
    pub async fn fetch(
        &self,
        namespace: &Arc<dyn Namespace>,
        name: &str,
        ask: FetchRequest,
        until: Instant,
    ) -> Result<FetchedMessages> {
        let mut visible = namespace.watch();
        loop {
            visible.borrow_and_update();
            let handle = self.handle(namespace.as_ref(), name);
            let mut changed = handle.changed();
            let done = handle.ask(namespace, Op::Fetch(ask.clone())).await;
            let fetched = match self.known(namespace, name, done)? {
                SubscriptionReply::Fetched(fetched) => fetched,
                _ => return Err(mixed_up(name)),
            };
            let now = thalweg_kit::clock::tokio_now();
            if !fetched.messages.is_empty() || until <= now {
                return Ok(fetched);
            }
            let due = fetched.due.map(|due| {
                due.saturating_sub(self.clock_of(namespace.as_ref()).now())
                    .max(0)
                    .unsigned_abs()
            });
            let pause = due.map_or(POLL, |micros| Duration::from_micros(micros).min(POLL));
            tokio::select! {
                seen = visible.changed() => {
                    seen.map_err(|_| EventsError::NamespaceNotFound(namespace.name().to_owned()))?;
                }
                // The channel closes with its subscription, which the next iteration detects.
                _ = changed.changed() => {}
                () = tokio::time::sleep_until(until.min(now + pause)) => {}
            }
        }
    }

    /// Acknowledges the messages of these leases.
    pub async fn ack(&self, namespace: &Arc<dyn Namespace>, name: &str, leases: Vec<Lease>) -> Result<SettleOutcome> {
        self.settle(namespace, name, Op::Ack(leases)).await
    }

    pub async fn nack(
        &self,
        namespace: &Arc<dyn Namespace>,
        name: &str,
        leases: Vec<Lease>,
        nack: Nack,
    ) -> Result<SettleOutcome> {
        self.settle(namespace, name, Op::Nack(leases, nack)).await
    }

    /// Returns the messages of a consumer that went away. This counts as an attempt, because the message may have been
    /// the reason.
    pub async fn release(
        &self,
        namespace: &Arc<dyn Namespace>,
        name: &str,
        leases: Vec<Lease>,
    ) -> Result<SettleOutcome> {
        self.nack(namespace, name, leases, handle::went_away()).await
    }

    async fn settle(&self, namespace: &Arc<dyn Namespace>, name: &str, op: Op) -> Result<SettleOutcome> {
        match self.ask(namespace, name, op).await? {
            SubscriptionReply::Settled(settled) => Ok(settled),
            _ => Err(mixed_up(name)),
        }
    }

    /// Parked messages in the order of global positions, starting at `from`.
    pub async fn parked(
        &self,
        namespace: &Arc<dyn Namespace>,
        name: &str,
        from: u64,
        max: usize,
    ) -> Result<Vec<ParkedMessage>> {
        match self.ask(namespace, name, Op::Parked { from, max }).await? {
            SubscriptionReply::Parked(parked) => Ok(parked),
            _ => Err(mixed_up(name)),
        }
    }

    /// Replays or, with `discard`, settles parked messages: the named ones or, if none are named, the lowest `max`.
    /// Returns their number.
    pub async fn replay(
        &self,
        namespace: &Arc<dyn Namespace>,
        name: &str,
        globals: Vec<u64>,
        max: usize,
        discard: bool,
    ) -> Result<usize> {
        let op = Op::Replay { globals, max, discard };
        match self.ask(namespace, name, op).await? {
            SubscriptionReply::Count(count) => Ok(count),
            _ => Err(mixed_up(name)),
        }
    }

    async fn ask(&self, namespace: &Arc<dyn Namespace>, name: &str, op: Op) -> Result<SubscriptionReply> {
        let done = self.handle(namespace.as_ref(), name).ask(namespace, op).await;
        self.known(namespace, name, done)
    }

    /// Drops handles of nonexistent subscriptions, because clients can ask for any name.
    fn known(
        &self,
        namespace: &Arc<dyn Namespace>,
        name: &str,
        done: Result<SubscriptionReply>,
    ) -> Result<SubscriptionReply> {
        if let Err(EventsError::SubscriptionNotFound(_) | EventsError::NamespaceNotFound(_)) = &done {
            self.handles.lock().remove(&key(namespace.as_ref(), name));
        }
        done
    }

    fn handle(&self, namespace: &dyn Namespace, name: &str) -> Arc<SubscriptionHandle> {
        let mut handles = self.handles.lock();
        let key = key(namespace, name);
        if let Some(handle) = handles.get(&key) {
            return handle.clone();
        }
        if handles.len() >= HANDLES {
            handles.retain(|_, handle| Arc::strong_count(handle) > 1);
        }
        let handle = Arc::new(SubscriptionHandle::new(name, self.clock_of(namespace)));
        handles.insert(key, handle.clone());
        handle
    }
}

fn key(namespace: &dyn Namespace, name: &str) -> (String, String) {
    (namespace.name().to_owned(), name.to_owned())
}

fn document(name: &str) -> String {
    format!("{PREFIX}{name}")
}

/// An error for a reply of the wrong kind, which is a bug.
fn mixed_up(name: &str) -> EventsError {
    EventsError::Damaged(format!("subscription '{name}' sent the wrong kind of reply"))
}
