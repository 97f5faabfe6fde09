//! A subscription in this process. Requests are queued; a task executes all queued requests, stores the result once,
//! and replies. It is a separate task so that a caller that goes away leaves nothing half done.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_log::clock::Clock;
use tokio::sync::{oneshot, watch};
use xxhash_rust::xxh3::xxh3_64;

use super::reading::{BODIES_AGE_MAX, ReadAheadCache};
use super::{FetchRequest, FetchedMessages, ParkedMessage, SubscriptionStats, document};
use crate::error::{EventsError, Result};
use crate::store::Namespace;
use crate::subscription::{Lease, Nack, SettingsChange, SettleOutcome, Subscription, SubscriptionInfo};

/// Number of retries after conflicts with other servers.
pub(super) const CONFLICTS_MAX: u32 = 32;
/// Number of positions without a match after which the read position is stored.
const UNSTORED_MAX: u64 = 10_000;

pub(super) enum Op {
    Fetch(FetchRequest),
    Ack(Vec<Lease>),
    Nack(Vec<Lease>, Nack),
    Update(SettingsChange),
    Reset(u64),
    Replay {
        globals: Vec<u64>,
        max: usize,
        discard: bool,
    },
    Parked {
        from: u64,
        max: usize,
    },
    Info,
}

pub(super) enum SubscriptionReply {
    Fetched(FetchedMessages),
    Settled(SettleOutcome),
    Count(usize),
    Parked(Vec<ParkedMessage>),
    Info(Box<SubscriptionInfo>),
    Nothing,
}

pub(super) struct SubscriptionHandle {
    pub name: String,
    pub(super) clock: Arc<dyn Clock>,
    queue: Mutex<OpQueue>,
    /// Taken by the task only.
    cached: Mutex<Option<CachedSubscription>>,
    /// Notifies that messages may be available.
    changed: watch::Sender<()>,
    figures: Mutex<Option<HandleStats>>,
    /// A task is running that drops unused read-ahead messages.
    forgets: AtomicBool,
}

struct HandleStats {
    namespace: Weak<dyn Namespace>,
    position: u64,
    in_flight: usize,
    waiting: usize,
    parked: usize,
    redelivered: u64,
}

#[derive(Default)]
struct OpQueue {
    asked: Vec<QueuedOp>,
    /// The task is running.
    running: bool,
}

struct QueuedOp {
    namespace: Arc<dyn Namespace>,
    op: Op,
    answer: oneshot::Sender<Result<SubscriptionReply>>,
}

/// The state as last stored, and what was read since.
pub(super) struct CachedSubscription {
    /// A recreated namespace with the same name has other documents.
    namespace: Weak<dyn Namespace>,
    revision: u64,
    /// The digest of the document, because a recreated document may have the same revision.
    digest: u64,
    pub state: Subscription,
    pub bodies: ReadAheadCache,
    stored_read: u64,
}

/// The outcome of executing a batch.
enum RoundOutcome {
    Done(Vec<Result<SubscriptionReply>>),
    /// Another server changed the document first.
    Conflict,
}

impl SubscriptionHandle {
    pub fn new(name: &str, clock: Arc<dyn Clock>) -> SubscriptionHandle {
        SubscriptionHandle {
            name: name.to_owned(),
            clock,
            queue: Mutex::default(),
            cached: Mutex::new(None),
            changed: watch::channel(()).0,
            figures: Mutex::new(None),
            forgets: AtomicBool::new(false),
        }
    }

    #[cfg(test)]
    pub fn read_ahead(&self) -> usize {
        self.cached.lock().as_ref().map_or(0, |cached| cached.bodies.len())
    }

    pub fn changed(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Makes all waiters check again.
    pub fn wake(&self) {
        self.changed.send_replace(());
    }

    pub async fn ask(
        self: &Arc<SubscriptionHandle>,
        namespace: &Arc<dyn Namespace>,
        op: Op,
    ) -> Result<SubscriptionReply> {
        let (answer, answered) = oneshot::channel();
        self.queue(QueuedOp {
            namespace: namespace.clone(),
            op,
            answer,
        });
        let gone = |_| {
            Err(EventsError::Unavailable(format!(
                "subscription '{}' was interrupted",
                self.name
            )))
        };
        answered.await.unwrap_or_else(gone)
    }

    fn queue(self: &Arc<SubscriptionHandle>, asked: QueuedOp) {
        let mut queue = self.queue.lock();
        queue.asked.push(asked);
        if !queue.running {
            queue.running = true;
            tokio::spawn(HandleTask(self.clone()).run());
        }
    }

    async fn answer(self: &Arc<SubscriptionHandle>, batch: Vec<QueuedOp>) {
        let namespace = match batch.first() {
            Some(first) => first.namespace.clone(),
            None => return,
        };
        for turn in 1..=CONFLICTS_MAX {
            match self.round(&namespace, &batch).await {
                Ok(RoundOutcome::Done(done)) => {
                    for (asked, done) in batch.into_iter().zip(done) {
                        self.tell(asked, done);
                    }
                    return;
                }
                // The other server is now replying to its own consumers, so the servers do not all retry at once.
                Ok(RoundOutcome::Conflict) => tokio::time::sleep(Duration::from_millis(u64::from(turn))).await,
                Err(error) => {
                    for asked in batch {
                        let _ = asked.answer.send(Err(error.clone()));
                    }
                    return;
                }
            }
        }
        for asked in batch {
            let _ = asked.answer.send(Err(overtaken(&self.name)));
        }
    }

    /// Drops read-ahead messages after a second; usually a consumer has asked again by then.
    fn forget_later(self: &Arc<SubscriptionHandle>) {
        let is_left = |cached: &mut Option<CachedSubscription>, now| {
            let bodies = cached.as_mut().map(|cached| &mut cached.bodies);
            bodies.is_some_and(|bodies| !bodies.forget_old(now))
        };
        let now = self.clock.now();
        if !is_left(&mut self.cached.lock(), now) || self.forgets.swap(true, SeqCst) {
            return;
        }
        let handle = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_micros(2 * BODIES_AGE_MAX.unsigned_abs())).await;
                let Some(handle) = handle.upgrade() else { return };
                let mut cached = handle.cached.lock();
                // While the state is taken, a request is being executed.
                if cached.is_some() && !is_left(&mut cached, handle.clock.now()) {
                    handle.forgets.store(false, SeqCst);
                    return;
                }
            }
        });
    }

    fn tell(self: &Arc<SubscriptionHandle>, asked: QueuedOp, done: Result<SubscriptionReply>) {
        let Err(Ok(SubscriptionReply::Fetched(fetched))) = asked.answer.send(done) else {
            return;
        };
        if fetched.messages.is_empty() {
            return;
        }
        // The caller has gone away.
        let leases = fetched.messages.iter().map(|message| message.lease).collect();
        let (answer, _) = oneshot::channel();
        self.queue(QueuedOp {
            namespace: asked.namespace,
            op: Op::Nack(leases, Nack::Back),
            answer,
        });
    }

    /// Executes a batch on the stored state. Whatever it leaves in the cache has been stored.
    async fn round(&self, namespace: &Arc<dyn Namespace>, batch: &[QueuedOp]) -> Result<RoundOutcome> {
        let name = document(&self.name);
        let cached = self.cached.lock().take();
        let Some(mut cached) = self.load(namespace, &name, cached).await? else {
            *self.figures.lock() = None;
            let none = || Err(EventsError::SubscriptionNotFound(self.name.clone()));
            return Ok(RoundOutcome::Done(batch.iter().map(|_| none()).collect()));
        };
        let mut done = Vec::with_capacity(batch.len());
        // A clearing invalidates its messages and all leases.
        let (mut dirty, mut freed) = (false, false);
        let cleared = namespace.watch().borrow().cleared;
        if cached.state.is_of(cleared) {
            tracing::info!(
                namespace = namespace.name(),
                subscription = self.name,
                "all messages were removed: the subscription starts again"
            );
            cached.bodies = ReadAheadCache::default();
            (dirty, freed) = (true, true);
        }
        for asked in batch {
            if matches!(asked.op, Op::Fetch(_)) && asked.answer.is_closed() {
                // The caller went away before its turn.
                done.push(Ok(SubscriptionReply::Nothing));
                continue;
            }
            let parked = cached.state.parked().len();
            let did = self.apply(&mut cached, namespace, &asked.op).await;
            // A fetch parks messages without remaining attempts.
            let has_parked = parked != cached.state.parked().len();
            match (&did, &asked.op) {
                (Ok(SubscriptionReply::Fetched(fetched)), _) => dirty |= has_parked || !fetched.messages.is_empty(),
                (Err(EventsError::SubscriptionFull { .. }), _) => dirty |= has_parked,
                (Err(error), _) => return Err(error.clone()),
                (_, Op::Info | Op::Parked { .. }) => {}
                (Ok(SubscriptionReply::Settled(SettleOutcome { settled: 0, .. }) | SubscriptionReply::Count(0)), _) => {
                }
                _ => (dirty, freed) = (true, true),
            }
            done.push(did);
        }
        dirty |= cached.state.next() > cached.stored_read.saturating_add(UNSTORED_MAX);
        if dirty {
            let content = cached.state.encode();
            let stored = namespace.put_document(&name, Some(&content), cached.revision).await?;
            let Some(revision) = stored else {
                return Ok(RoundOutcome::Conflict);
            };
            cached.revision = revision;
            cached.digest = xxh3_64(&content);
            cached.stored_read = cached.state.next();
        }
        self.note(&cached, &done);
        *self.cached.lock() = Some(cached);
        if freed {
            self.wake();
        }
        Ok(RoundOutcome::Done(done))
    }

    fn note(&self, cached: &CachedSubscription, done: &[Result<SubscriptionReply>]) {
        let fetched = done.iter().filter_map(|done| match done {
            Ok(SubscriptionReply::Fetched(fetched)) => Some(&fetched.messages),
            _ => None,
        });
        let again = fetched.flatten().filter(|message| message.attempt > 1).count() as u64;
        let mut figures = self.figures.lock();
        // For a recreated namespace, counting starts again.
        let same = figures
            .as_ref()
            .filter(|figures| Weak::ptr_eq(&figures.namespace, &cached.namespace));
        let before = same.map_or(0, |figures| figures.redelivered);
        let info = cached.state.info(self.clock.now());
        *figures = Some(HandleStats {
            namespace: cached.namespace.clone(),
            position: info.position,
            in_flight: info.in_flight,
            waiting: info.waiting,
            parked: info.parked,
            redelivered: before + again,
        });
    }

    /// The metrics as of the last request.
    pub fn figures(&self) -> Option<SubscriptionStats> {
        let figures = self.figures.lock();
        let figures = figures.as_ref()?;
        let namespace = figures.namespace.upgrade()?;
        let last = namespace.watch().borrow().last;
        Some(SubscriptionStats {
            namespace: namespace.name().to_owned(),
            name: self.name.clone(),
            behind: last.saturating_sub(figures.position),
            in_flight: figures.in_flight,
            waiting: figures.waiting,
            parked: figures.parked,
            redelivered: figures.redelivered,
        })
    }

    /// Uses the cached state if the document is unchanged. `None` if the subscription does not exist.
    async fn load(
        &self,
        namespace: &Arc<dyn Namespace>,
        name: &str,
        cached: Option<CachedSubscription>,
    ) -> Result<Option<CachedSubscription>> {
        let Some(document) = namespace.document(name).await? else {
            return Ok(None);
        };
        let this = Arc::downgrade(namespace);
        let digest = xxh3_64(&document.content);
        if let Some(cached) = cached
            && (cached.revision, cached.digest) == (document.revision, digest)
            && Weak::ptr_eq(&cached.namespace, &this)
        {
            return Ok(Some(cached));
        }
        let state = Subscription::decode(&document.content).ok_or_else(|| {
            EventsError::Damaged(format!(
                "subscription '{}' has a form that this version does not know: delete it and create it again",
                self.name
            ))
        })?;
        Ok(Some(CachedSubscription {
            namespace: this,
            revision: document.revision,
            digest,
            stored_read: state.next(),
            state,
            bodies: ReadAheadCache::default(),
        }))
    }

    async fn apply(
        &self,
        cached: &mut CachedSubscription,
        namespace: &Arc<dyn Namespace>,
        op: &Op,
    ) -> Result<SubscriptionReply> {
        let now = self.clock.now();
        let state = &mut cached.state;
        Ok(match op {
            Op::Fetch(ask) => SubscriptionReply::Fetched(self.fetch(cached, namespace.as_ref(), ask, now).await?),
            Op::Ack(leases) => SubscriptionReply::Settled(state.ack(leases)),
            Op::Nack(leases, nack) => SubscriptionReply::Settled(state.nack(leases, nack, now)),
            Op::Update(change) => {
                state.update(change.clone());
                cached.bodies.read_anew();
                SubscriptionReply::Nothing
            }
            Op::Reset(from) => {
                state.reset(*from);
                cached.bodies.read_anew();
                SubscriptionReply::Nothing
            }
            Op::Replay { globals, max, discard } => SubscriptionReply::Count(match discard {
                true => state.discard(globals, *max),
                false => state.replay(globals, *max),
            }),
            Op::Parked { from, max } => {
                SubscriptionReply::Parked(self.parked(cached, namespace.as_ref(), *from, *max).await?)
            }
            Op::Info => {
                let mut info = state.info(now);
                info.created_at = self.clock.wall_at(info.created_at);
                SubscriptionReply::Info(Box::new(info))
            }
        })
    }
}

pub(super) fn overtaken(name: &str) -> EventsError {
    EventsError::Unavailable(format!(
        "subscription '{name}' is changed by too many servers at once: try again"
    ))
}

/// The nack for a consumer that disconnects without settling.
pub(super) fn went_away() -> Nack {
    Nack::Retry {
        delay: 0,
        reason: "its consumer disconnected".to_owned(),
    }
}

/// The task of a handle. If it panics, the next request starts another one.
struct HandleTask(Arc<SubscriptionHandle>);

impl HandleTask {
    async fn run(self) {
        while let Some(batch) = self.batch() {
            self.0.answer(batch).await;
            self.0.forget_later();
        }
    }

    /// Takes all requests for one namespace. On `None` there is nothing to do, and the task counts as stopped.
    fn batch(&self) -> Option<Vec<QueuedOp>> {
        let mut queue = self.0.queue.lock();
        let Some(first) = queue.asked.first().map(|asked| asked.namespace.clone()) else {
            queue.running = false;
            return None;
        };
        let asked = std::mem::take(&mut queue.asked);
        let (batch, others) = asked
            .into_iter()
            .partition(|asked| Arc::ptr_eq(&asked.namespace, &first));
        queue.asked = others;
        Some(batch)
    }
}

impl Drop for HandleTask {
    fn drop(&mut self) {
        // After a normal end, `batch` has reset the flag, and another task may already be running.
        if std::thread::panicking() {
            *self.0.queue.lock() = OpQueue::default();
        }
    }
}
