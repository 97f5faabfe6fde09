//! One subscription in this process. What is asked of it is queued; a task takes all that is there, does it, stores the
//! result once, and answers. The task is its own so that nobody who stops waiting leaves something half done.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_log::clock::Clock;
use tokio::sync::{oneshot, watch};
use xxhash_rust::xxh3::xxh3_64;

use super::reading::{BODIES_AGE_MAX, Bodies};
use super::{Ask, Fetched, ParkedMessage, SubscriptionFigures, document};
use crate::error::{EventsError, Result};
use crate::store::Namespace;
use crate::subscription::{Change, Info, Lease, Nack, Settled, Subscription};

/// How often something is done again because another server was faster.
pub(super) const CONFLICTS_MAX: u32 = 32;
/// Positions that were looked at in vain before it is stored that they were.
const UNSTORED_MAX: u64 = 10_000;

pub(super) enum Op {
    Fetch(Ask),
    Ack(Vec<Lease>),
    Nack(Vec<Lease>, Nack),
    Update(Change),
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

pub(super) enum Done {
    Fetched(Fetched),
    Settled(Settled),
    Count(usize),
    Parked(Vec<ParkedMessage>),
    Info(Box<Info>),
    Nothing,
}

pub(super) struct Handle {
    pub name: String,
    pub(super) clock: Arc<dyn Clock>,
    queue: Mutex<Queue>,
    /// Only the task has it.
    cached: Mutex<Option<Cached>>,
    /// That there may be something to be handed out.
    changed: watch::Sender<()>,
    figures: Mutex<Option<Figures>>,
    /// Somebody sees that what was read ahead for nobody takes no memory.
    forgets: AtomicBool,
}

struct Figures {
    namespace: Weak<dyn Namespace>,
    position: u64,
    in_flight: usize,
    waiting: usize,
    parked: usize,
    redelivered: u64,
}

#[derive(Default)]
struct Queue {
    asked: Vec<Asked>,
    /// There is a task.
    running: bool,
}

struct Asked {
    namespace: Arc<dyn Namespace>,
    op: Op,
    answer: oneshot::Sender<Result<Done>>,
}

/// The state as it was stored last, and what was read since.
pub(super) struct Cached {
    /// Another one of the same name has other documents.
    namespace: Weak<dyn Namespace>,
    revision: u64,
    /// Of the document: one that was deleted and made anew may have the same revision.
    digest: u64,
    pub state: Subscription,
    pub bodies: Bodies,
    stored_read: u64,
}

/// What a round of all that was asked came to.
enum Round {
    Done(Vec<Result<Done>>),
    /// Another server was faster.
    Conflict,
}

impl Handle {
    pub fn new(name: &str, clock: Arc<dyn Clock>) -> Handle {
        Handle {
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

    /// Has everyone who waits look again.
    pub fn wake(&self) {
        self.changed.send_replace(());
    }

    pub async fn ask(self: &Arc<Handle>, namespace: &Arc<dyn Namespace>, op: Op) -> Result<Done> {
        let (answer, answered) = oneshot::channel();
        self.queue(Asked {
            namespace: namespace.clone(),
            op,
            answer,
        });
        let gone = |_| {
            Err(EventsError::Unavailable(format!(
                "subscription '{}' was given up",
                self.name
            )))
        };
        answered.await.unwrap_or_else(gone)
    }

    fn queue(self: &Arc<Handle>, asked: Asked) {
        let mut queue = self.queue.lock();
        queue.asked.push(asked);
        if !queue.running {
            queue.running = true;
            tokio::spawn(Running(self.clone()).run());
        }
    }

    async fn answer(self: &Arc<Handle>, batch: Vec<Asked>) {
        let namespace = match batch.first() {
            Some(first) => first.namespace.clone(),
            None => return,
        };
        for turn in 1..=CONFLICTS_MAX {
            match self.round(&namespace, &batch).await {
                Ok(Round::Done(done)) => {
                    for (asked, done) in batch.into_iter().zip(done) {
                        self.tell(asked, done);
                    }
                    return;
                }
                // The one that was faster answers its own consumers now: not all servers come again at once.
                Ok(Round::Conflict) => tokio::time::sleep(Duration::from_millis(u64::from(turn))).await,
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

    /// What was read ahead is of no use after a second, in which mostly somebody asks again.
    fn forget_later(self: &Arc<Handle>) {
        let is_left = |cached: &mut Option<Cached>, now| {
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
                // While it is taken somebody asks.
                if cached.is_some() && !is_left(&mut cached, handle.clock.now()) {
                    handle.forgets.store(false, SeqCst);
                    return;
                }
            }
        });
    }

    fn tell(self: &Arc<Handle>, asked: Asked, done: Result<Done>) {
        let Err(Ok(Done::Fetched(fetched))) = asked.answer.send(done) else {
            return;
        };
        if fetched.messages.is_empty() {
            return;
        }
        // Nobody waits for them any more.
        let leases = fetched.messages.iter().map(|message| message.lease).collect();
        let (answer, _) = oneshot::channel();
        self.queue(Asked {
            namespace: asked.namespace,
            op: Op::Nack(leases, Nack::Back),
            answer,
        });
    }

    /// Does all of it with the state as it is stored now. What it leaves in the cache is stored.
    async fn round(&self, namespace: &Arc<dyn Namespace>, batch: &[Asked]) -> Result<Round> {
        let name = document(&self.name);
        let cached = self.cached.lock().take();
        let Some(mut cached) = self.load(namespace, &name, cached).await? else {
            *self.figures.lock() = None;
            let none = || Err(EventsError::SubscriptionNotFound(self.name.clone()));
            return Ok(Round::Done(batch.iter().map(|_| none()).collect()));
        };
        let mut done = Vec::with_capacity(batch.len());
        // The messages that it was about are gone, and with them what consumers have.
        let (mut dirty, mut freed) = (false, false);
        let cleared = namespace.watch().borrow().cleared;
        if cached.state.is_of(cleared) {
            tracing::info!(
                namespace = namespace.name(),
                subscription = self.name,
                "all messages were removed: the subscription begins anew"
            );
            cached.bodies = Bodies::default();
            (dirty, freed) = (true, true);
        }
        for asked in batch {
            if matches!(asked.op, Op::Fetch(_)) && asked.answer.is_closed() {
                // Whoever asked went away before it was his turn.
                done.push(Ok(Done::Nothing));
                continue;
            }
            let parked = cached.state.parked().len();
            let did = self.apply(&mut cached, namespace, &asked.op).await;
            // A fetch parks what was handed out too often.
            let has_parked = parked != cached.state.parked().len();
            match (&did, &asked.op) {
                (Ok(Done::Fetched(fetched)), _) => dirty |= has_parked || !fetched.messages.is_empty(),
                (Err(EventsError::SubscriptionFull { .. }), _) => dirty |= has_parked,
                (Err(error), _) => return Err(error.clone()),
                (_, Op::Info | Op::Parked { .. }) => {}
                (Ok(Done::Settled(Settled { settled: 0, .. }) | Done::Count(0)), _) => {}
                _ => (dirty, freed) = (true, true),
            }
            done.push(did);
        }
        dirty |= cached.state.next() > cached.stored_read.saturating_add(UNSTORED_MAX);
        if dirty {
            let content = cached.state.encode();
            let stored = namespace.put_document(&name, Some(&content), cached.revision).await?;
            let Some(revision) = stored else {
                return Ok(Round::Conflict);
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
        Ok(Round::Done(done))
    }

    fn note(&self, cached: &Cached, done: &[Result<Done>]) {
        let fetched = done.iter().filter_map(|done| match done {
            Ok(Done::Fetched(fetched)) => Some(&fetched.messages),
            _ => None,
        });
        let again = fetched.flatten().filter(|message| message.attempt > 1).count() as u64;
        let mut figures = self.figures.lock();
        // Of another one of the same name it is counted anew.
        let same = figures
            .as_ref()
            .filter(|figures| Weak::ptr_eq(&figures.namespace, &cached.namespace));
        let before = same.map_or(0, |figures| figures.redelivered);
        let info = cached.state.info(self.clock.now());
        *figures = Some(Figures {
            namespace: cached.namespace.clone(),
            position: info.position,
            in_flight: info.in_flight,
            waiting: info.waiting,
            parked: info.parked,
            redelivered: before + again,
        });
    }

    /// As it was when somebody last asked something.
    pub fn figures(&self) -> Option<SubscriptionFigures> {
        let figures = self.figures.lock();
        let figures = figures.as_ref()?;
        let namespace = figures.namespace.upgrade()?;
        let last = namespace.watch().borrow().last;
        Some(SubscriptionFigures {
            namespace: namespace.name().to_owned(),
            name: self.name.clone(),
            behind: last.saturating_sub(figures.position),
            in_flight: figures.in_flight,
            waiting: figures.waiting,
            parked: figures.parked,
            redelivered: figures.redelivered,
        })
    }

    /// From memory, if nobody has stored anything else. `None` if there is no such subscription.
    async fn load(&self, namespace: &Arc<dyn Namespace>, name: &str, cached: Option<Cached>) -> Result<Option<Cached>> {
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
                "subscription '{}' is in no form that this version knows: delete it and create it anew",
                self.name
            ))
        })?;
        Ok(Some(Cached {
            namespace: this,
            revision: document.revision,
            digest,
            stored_read: state.next(),
            state,
            bodies: Bodies::default(),
        }))
    }

    async fn apply(&self, cached: &mut Cached, namespace: &Arc<dyn Namespace>, op: &Op) -> Result<Done> {
        let now = self.clock.now();
        let state = &mut cached.state;
        Ok(match op {
            Op::Fetch(ask) => Done::Fetched(self.fetch(cached, namespace.as_ref(), ask, now).await?),
            Op::Ack(leases) => Done::Settled(state.ack(leases)),
            Op::Nack(leases, nack) => Done::Settled(state.nack(leases, nack, now)),
            Op::Update(change) => {
                state.update(change.clone());
                cached.bodies.read_anew();
                Done::Nothing
            }
            Op::Reset(from) => {
                state.reset(*from);
                cached.bodies.read_anew();
                Done::Nothing
            }
            Op::Replay { globals, max, discard } => Done::Count(match discard {
                true => state.discard(globals, *max),
                false => state.replay(globals, *max),
            }),
            Op::Parked { from, max } => Done::Parked(self.parked(cached, namespace.as_ref(), *from, *max).await?),
            Op::Info => {
                let mut info = state.info(now);
                info.created_at = self.clock.wall_at(info.created_at);
                Done::Info(Box::new(info))
            }
        })
    }
}

pub(super) fn overtaken(name: &str) -> EventsError {
    EventsError::Unavailable(format!(
        "subscription '{name}' is changed by too many servers at once: try again"
    ))
}

/// What a consumer does that ends without an answer.
pub(super) fn went_away() -> Nack {
    Nack::Retry {
        delay: 0,
        reason: "its consumer went away".to_owned(),
    }
}

/// The task of a handle. If it dies the next who asks starts another.
struct Running(Arc<Handle>);

impl Running {
    async fn run(self) {
        while let Some(batch) = self.batch() {
            self.0.answer(batch).await;
            self.0.forget_later();
        }
    }

    /// All that was asked of one namespace; `None` when there is nothing to do, from when on there is no task.
    fn batch(&self) -> Option<Vec<Asked>> {
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

impl Drop for Running {
    fn drop(&mut self) {
        // After `batch` has said so there may be another task already, whose mark stays.
        if std::thread::panicking() {
            *self.0.queue.lock() = Queue::default();
        }
    }
}
