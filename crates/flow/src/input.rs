//! What an input is, and the sink into which it puts its batches.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use thalweg_record::{Ack, AckResult, Batch, FlowBalance, Message, SourceName};
use thalweg_telemetry::{IntCounter, Timing};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::BoxFuture;
use crate::component::Component;
use crate::connection::Connection;
use crate::shard::{ShardedMessages, Shards};

/// A source of messages. Runs until its work is done or it is told to stop; connects and reconnects by itself.
pub trait Input: Send {
    /// Returns `Ok` when the source has no more to give (a file's end) or after `context.stop` was cancelled; an error
    /// only when going on is pointless. Batches already sent are still delivered after it returned; an input that must
    /// tell its server about acknowledgements waits for them before returning (see [`Sink::settled`]).
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>>;
}

/// Why an input gave up for good. One sentence with the place and the cure.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InputError(pub String);

/// What an input gets to work with.
pub struct InputContext {
    pub component: Component,
    pub sink: Sink,
    /// Cancelled when the input shall take in no more.
    pub stop: CancellationToken,
    pub connection: Connection,
}

/// The flow takes no more: it is stopping or one of its stages died.
#[derive(Debug, thiserror::Error)]
#[error("the flow takes no more messages")]
pub struct SinkClosed;

/// Where an input puts its batches. Clones feed the same flow.
#[derive(Clone)]
pub struct Sink {
    pub(crate) balance: Arc<FlowBalance>,
    pub(crate) shards: Arc<Shards>,
    pub(crate) metrics: Arc<SinkMetrics>,
    /// Those of the input that this one is a part of.
    pub(crate) outer: Option<Arc<SinkMetrics>>,
    /// Said of every message; empty for the flow's own input.
    pub(crate) source: SourceName,
    pub(crate) hurry: Arc<dyn Fn() + Send + Sync>,
    pub(crate) open_batches: Arc<OpenBatches>,
}

#[derive(Clone)]
pub(crate) struct SinkMetrics {
    pub received: IntCounter,
    pub latency: Timing,
    pub flow_latency: Timing,
}

impl SinkMetrics {
    pub fn new(component: &Component, flow_latency: Timing) -> SinkMetrics {
        SinkMetrics {
            received: component.counter("input_received", "Messages received."),
            latency: component.timing("input_latency_ns", "Time that a batch waits until the flow takes it."),
            flow_latency,
        }
    }
}

/// How many batches have entered and are not settled.
#[derive(Default)]
pub(crate) struct OpenBatches {
    count: std::sync::atomic::AtomicU64,
    changed: tokio::sync::Notify,
    /// Those who wait until all are settled.
    waiting: watch::Sender<usize>,
}

/// Counts one who waits, also when it waits no more before its time.
struct WaiterGuard<'b>(&'b watch::Sender<usize>);

impl<'b> WaiterGuard<'b> {
    fn new(waiting: &'b watch::Sender<usize>) -> WaiterGuard<'b> {
        waiting.send_modify(|waiting| *waiting += 1);
        WaiterGuard(waiting)
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl OpenBatches {
    pub fn begins(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    pub fn ends(&self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    /// Waits until every batch that entered so far is settled; `remind` is called before each wait. Workers hold nothing
    /// back meanwhile: what one does would be waited for until its tick, which may be hours away, or for ever.
    pub async fn none(&self, remind: impl Fn()) {
        let _waiting = WaiterGuard::new(&self.waiting);
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.count.load(Ordering::SeqCst) == 0 {
                return;
            }
            remind();
            changed.await;
        }
    }

    /// Ends when, or while, somebody waits until all are settled. A state and no signal: what a worker in front releases
    /// reaches the next one after that has released its own.
    pub async fn awaited(&self) {
        // It cannot be closed, since the sender is here.
        let _ = self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await;
    }
}

impl Sink {
    /// Counts `n` messages as entered. `settle` hears, once, what became of them, on whatever thread ends the last.
    /// Messages that the input itself filters or drops are told to the returned `Ack` before [`Sink::send`].
    pub fn enter(&self, n: usize, settle: impl FnOnce(AckResult) + Send + 'static) -> Ack {
        Ack::enter(&self.balance, n, self.entering(n, settle))
    }

    /// As [`Sink::enter`], for an input that takes care of messages itself that the flow refuses for good and no dead letter
    /// takes: `refused` gets each as it was then, and why, and says whether it knows it.
    pub fn enter_refusable(
        &self,
        n: usize,
        refused: impl Fn(&Message, &str) -> bool + Send + Sync + 'static,
        settle: impl FnOnce(AckResult) + Send + 'static,
    ) -> Ack {
        Ack::enter_refusable(&self.balance, n, refused, self.entering(n, settle))
    }

    /// Counts what enters, and what has to happen when it is settled.
    fn entering(
        &self,
        n: usize,
        settle: impl FnOnce(AckResult) + Send + 'static,
    ) -> impl FnOnce(AckResult) + Send + 'static {
        let (metrics, open, start) = (self.metrics.clone(), self.open_batches.clone(), Instant::now());
        metrics.received.inc_by(n as u64);
        if let Some(outer) = &self.outer {
            outer.received.inc_by(n as u64);
        }
        open.begins();
        move |outcome| {
            metrics.flow_latency.observe_many(start.elapsed(), n as u64);
            settle(outcome);
            open.ends();
        }
    }

    /// Passes a batch on; waits while the flow is full. After an error the batch has been given up (and so nacked).
    pub async fn send(&self, mut batch: Batch) -> Result<(), SinkClosed> {
        if self.source.get().is_some() {
            batch
                .messages
                .iter_mut()
                .for_each(|message| message.source = self.source);
        }
        let start = Instant::now();
        let result = self.shards.send(batch).await;
        self.metrics.latency.observe(start.elapsed());
        if let Some(outer) = &self.outer {
            outer.latency.observe(start.elapsed());
        }
        result
    }

    /// Room for that many messages, for [`Sink::send_parts`].
    pub fn parts(&self, messages: usize) -> ShardedMessages {
        self.shards.parts(messages)
    }

    /// As [`Sink::send`], of messages that were put where they go one by one: none is moved again.
    pub async fn send_parts(&self, mut parts: ShardedMessages, ack: Ack) -> Result<(), SinkClosed> {
        if self.source.get().is_some() {
            parts.iter_mut().for_each(|message| message.source = self.source);
        }
        let start = Instant::now();
        let result = self.shards.send_parts(parts, ack).await;
        self.metrics.latency.observe(start.elapsed());
        if let Some(outer) = &self.outer {
            outer.latency.observe(start.elapsed());
        }
        result
    }

    /// [`Sink::enter`] and [`Sink::send`] in one, for messages that need no settling.
    pub async fn send_all(
        &self,
        messages: Vec<Message>,
        settle: impl FnOnce(AckResult) + Send + 'static,
    ) -> Result<(), SinkClosed> {
        let ack = self.enter(messages.len(), settle);
        self.send(Batch::new(messages, ack)).await
    }

    /// Waits until the flow could take a batch at once: a source that is asked for its data (a Publish request, a fetch)
    /// asks only then, so that a slow output stops the asking.
    pub async fn has_room(&self) {
        self.shards.has_room().await;
    }

    /// Tells outputs that collect before they write that somebody waits for the acknowledgement.
    pub fn hurry(&self) {
        (self.hurry)();
    }

    /// Batches that entered and are not settled yet.
    pub fn open_batches(&self) -> u64 {
        self.open_batches.count.load(Ordering::SeqCst)
    }

    /// Waits until every batch that entered so far is settled; processors hold nothing back meanwhile.
    pub async fn settled(&self) {
        self.open_batches.none(|| self.hurry()).await;
    }
}
