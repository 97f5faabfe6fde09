//! Persistent subscriptions of all namespaces, each kept as a document that is compared and set. What many consumers ask of
//! one subscription while it is being stored is done together and stored once, so that a sync is shared by all of them.
//!
//! Leases are stored too, with every answer to a consumer: several servers on one database never hand out a message twice
//! while its time lasts, and an attempt counts even if the server dies. It costs a write per fetch that finds something; a
//! fetch that finds nothing writes nothing. The other way, leases in memory for a store of one process alone, would save
//! that write and give away messages again after each start.

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

/// Subscriptions whose state is kept in memory although nobody uses them now.
const HANDLES: usize = 1024;
/// So often it is looked whether another server has changed something.
const POLL: Duration = Duration::from_secs(1);
const PREFIX: &str = "subscription/";

#[derive(Default)]
pub struct Subscriptions {
    /// Instead of that of each namespace.
    clock: Option<Arc<dyn Clock>>,
    /// By namespace and name.
    handles: Mutex<HashMap<(String, String), Arc<SubscriptionHandle>>>,
}

/// Where a subscription begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartPosition {
    Start,
    /// Behind all that can be read now.
    End,
    /// Global position, inclusive.
    At(u64),
}

impl StartPosition {
    /// As a global position, from 1.
    pub fn global(self, namespace: &dyn Namespace) -> u64 {
        match self {
            StartPosition::Start => 1,
            StartPosition::End => namespace.watch().borrow().last + 1,
            StartPosition::At(global) => global.max(1),
        }
    }
}

/// What a consumer asks for.
#[derive(Clone, Debug)]
pub struct FetchRequest {
    pub consumer: Arc<str>,
    /// Messages with it at the same time.
    pub max: usize,
    /// What it has already; those that do not hold any more, or whose time is up, are not counted.
    pub held: Vec<Lease>,
}

/// A message handed out to a consumer.
#[derive(Clone, Debug)]
pub struct DeliveredMessage {
    pub lease: Lease,
    /// From 1.
    pub attempt: u32,
    pub stored: StoredEvent,
}

#[derive(Clone, Debug, Default)]
pub struct FetchedMessages {
    pub messages: Vec<DeliveredMessage>,
    /// Of the leases that the consumer had, those that count.
    pub held: Vec<Lease>,
    /// When there may be more, if nothing happens before.
    due: Option<Micros>,
}

/// A parked message; `None` if it is not there any more.
#[derive(Clone, Debug)]
pub struct ParkedMessage {
    pub global: u64,
    pub reason: Arc<str>,
    pub attempts: u32,
    pub at: Micros,
    pub stored: Option<StoredEvent>,
}

/// What is told of a subscription as a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriptionStats {
    pub namespace: String,
    pub name: String,
    /// Global positions between the last message and the last one up to which all are settled or parked.
    pub behind: u64,
    pub in_flight: usize,
    pub waiting: usize,
    pub parked: usize,
    /// Messages that were handed out more than once, by this process.
    pub redelivered: u64,
}

impl Subscriptions {
    fn clock_of(&self, namespace: &dyn Namespace) -> Arc<dyn Clock> {
        self.clock.clone().unwrap_or_else(|| namespace.clock())
    }

    /// For which time passes as a clock says, in whatever store they are.
    pub fn new(clock: Arc<dyn Clock>) -> Subscriptions {
        Subscriptions {
            clock: Some(clock),
            handles: Mutex::default(),
        }
    }

    /// Durable when it returns.
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

    /// Its parked messages go with it. Durable when it returns, as are all changes below.
    pub async fn delete(&self, namespace: &Arc<dyn Namespace>, name: &str) -> Result<()> {
        let document_name = document(name);
        for _ in 0..handle::CONFLICTS_MAX {
            // Not through its state, which may be what is wrong with it.
            let Some(known) = namespace.document(&document_name).await? else {
                return Err(EventsError::SubscriptionNotFound(name.to_owned()));
            };
            let deleted = namespace.put_document(&document_name, None, known.revision).await?;
            if deleted.is_some() {
                // Whoever waits looks again and finds that it is gone.
                let handle = self.handles.lock().remove(&key(namespace.as_ref(), name));
                if let Some(handle) = handle {
                    handle.wake();
                }
                return Ok(());
            }
        }
        Err(handle::overtaken(name))
    }

    /// A namespace is deleted: nothing of its subscriptions is kept in memory.
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

    /// Goes on from `start`, which is returned as a global position. No lease holds any more.
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

    /// In byte order of their names, those with the prefix and behind the cursor.
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

    /// Of those that this process has had to do with, as they were then; in no order. At most about a thousand.
    pub fn figures(&self) -> Vec<SubscriptionStats> {
        let handles: Vec<Arc<SubscriptionHandle>> = self.handles.lock().values().cloned().collect();
        handles.iter().filter_map(|handle| handle.figures()).collect()
    }

    /// Messages for a consumer, which has them until the subscription's time for an answer is over. Waits for the first
    /// until `until`. Whoever stops waiting loses nothing: what was handed out to it is handed out anew, at once or when its
    /// time is up.
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
            let now = Instant::now();
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
                // It ends with its subscription, which the next turn finds out.
                _ = changed.changed() => {}
                () = tokio::time::sleep_until(until.min(now + pause)) => {}
            }
        }
    }

    /// The messages of these leases are done.
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

    /// Gives back what a consumer had that has gone away. It counts as an attempt: the message may have been the reason.
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

    /// Parked messages by global position, from `from` on.
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

    /// Parked messages are handed out again, or, with `discard`, count as done: the named ones, or, if none is named, the
    /// lowest `max`. How many.
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

    /// Forgets what does not exist, whatever names are asked for.
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

/// An answer to another question, which no code gives.
fn mixed_up(name: &str) -> EventsError {
    EventsError::Damaged(format!(
        "subscription '{name}' answered another question than was asked"
    ))
}
