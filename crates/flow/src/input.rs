//! The trait of inputs, and the sink that accepts their batches.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use thalweg_kit::clock;
use thalweg_record::{Ack, AckResult, Batch, FlowBalance, Message, SourceName};
use thalweg_telemetry::{IntCounter, Timing};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::BoxFuture;
use crate::component::Component;
use crate::connection::Connection;
use crate::metrics::{INPUT_LATENCY, INPUT_RECEIVED};
use crate::shard::{ShardedMessages, Shards};

/// A source of messages. It runs until its work is done or it is stopped, and connects and reconnects by itself.
pub trait Input: Send {
    /// Returns `Ok` when the source is exhausted (a file's end) or after `context.stop` was cancelled, and an error
    /// only if it is pointless to continue. Batches already sent are still delivered after the return; an input that
    /// must report acknowledgements to its server waits for them before it returns (see [`Sink::settled`]).
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>>;
}

/// Why an input failed permanently: one sentence with the place and the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InputError(pub String);

/// What an input works with.
pub struct InputContext {
    pub component: Component,
    pub sink: Sink,
    /// Cancelled when the input must stop reading.
    pub stop: CancellationToken,
    pub connection: Connection,
}

/// The flow accepts no more messages: it is stopping or one of its stages died.
#[derive(Debug, thiserror::Error)]
#[error("the flow accepts no more messages")]
pub struct SinkClosed;

/// Accepts an input's batches. Clones feed the same flow.
#[derive(Clone)]
pub struct Sink {
    pub(crate) balance: Arc<FlowBalance>,
    pub(crate) shards: Arc<Shards>,
    pub(crate) metrics: Arc<SinkMetrics>,
    /// Metrics of the broker input that this input belongs to.
    pub(crate) outer: Option<Arc<SinkMetrics>>,
    /// Set on every message; empty for the flow's own input.
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
            received: component.counter(&INPUT_RECEIVED),
            latency: component.timing(&INPUT_LATENCY),
            flow_latency,
        }
    }
}

/// Counts the batches that have entered and are not settled.
#[derive(Default)]
pub(crate) struct OpenBatches {
    count: std::sync::atomic::AtomicU64,
    changed: tokio::sync::Notify,
    /// Number of waiters until all batches are settled.
    waiting: watch::Sender<usize>,
}

/// Counts a waiter, also if it stops waiting early.
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

    /// Waits until every batch that entered so far is settled; `remind` is called before each wait. Workers hold
    /// nothing back meanwhile, because a message held back would delay this until its tick, which may be hours away, or
    /// forever.
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

    /// Completes when, or while, someone waits until all are settled. This is a state rather than a signal, because a
    /// batch that one worker releases reaches the next worker after that has released its own.
    pub async fn awaited(&self) {
        // The channel cannot be closed, because `self` owns the sender.
        let _ = self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await;
    }
}

impl Sink {
    /// Counts `n` messages as entered. `settle` is called once with the result, on the thread that ends the last
    /// message. Messages that the input itself filters or drops are reported to the returned `Ack` before
    /// [`Sink::send`].
    pub fn enter(&self, n: usize, settle: impl FnOnce(AckResult) + Send + 'static) -> Ack {
        Ack::enter(&self.balance, n, self.entering(n, settle))
    }

    /// As [`Sink::enter`], for a source that delivers again what is not confirmed, also to the next run: messages that a
    /// stop gives up stay in flight instead of being dropped.
    pub fn enter_redeliverable(&self, n: usize, settle: impl FnOnce(AckResult) + Send + 'static) -> Ack {
        Ack::enter_redeliverable(&self.balance, n, self.entering(n, settle))
    }

    /// As [`Sink::enter_redeliverable`], for an input that handles permanently rejected messages itself if no dead letter
    /// accepts them: `refused` receives each such message and the reason, and returns whether it recognises the message.
    pub fn enter_refusable(
        &self,
        n: usize,
        refused: impl Fn(&Message, &str) -> bool + Send + Sync + 'static,
        settle: impl FnOnce(AckResult) + Send + 'static,
    ) -> Ack {
        Ack::enter_refusable(&self.balance, n, refused, self.entering(n, settle))
    }

    /// Counts what enters, and returns what runs when it is settled.
    fn entering(
        &self,
        n: usize,
        settle: impl FnOnce(AckResult) + Send + 'static,
    ) -> impl FnOnce(AckResult) + Send + 'static {
        let (metrics, open, start) = (self.metrics.clone(), self.open_batches.clone(), clock::now());
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

    /// Passes a batch on; waits while the flow is full. After an error the batch was given up (and so nacked).
    pub async fn send(&self, mut batch: Batch) -> Result<(), SinkClosed> {
        if self.source.get().is_some() {
            batch
                .messages
                .iter_mut()
                .for_each(|message| message.source = self.source);
        }
        let start = clock::now();
        let result = self.shards.send(batch).await;
        self.metrics.latency.observe(start.elapsed());
        if let Some(outer) = &self.outer {
            outer.latency.observe(start.elapsed());
        }
        result
    }

    /// Allocates room for that many messages, for [`Sink::send_parts`].
    pub fn parts(&self, messages: usize) -> ShardedMessages {
        self.shards.parts(messages)
    }

    /// As [`Sink::send`], for messages that were already pushed to their shard: none is moved again.
    pub async fn send_parts(&self, mut parts: ShardedMessages, ack: Ack) -> Result<(), SinkClosed> {
        if self.source.get().is_some() {
            parts.iter_mut().for_each(|message| message.source = self.source);
        }
        let start = clock::now();
        let result = self.shards.send_parts(parts, ack).await;
        self.metrics.latency.observe(start.elapsed());
        if let Some(outer) = &self.outer {
            outer.latency.observe(start.elapsed());
        }
        result
    }

    /// Combines [`Sink::enter`] and [`Sink::send`].
    pub async fn send_all(
        &self,
        messages: Vec<Message>,
        settle: impl FnOnce(AckResult) + Send + 'static,
    ) -> Result<(), SinkClosed> {
        let ack = self.enter(messages.len(), settle);
        self.send(Batch::new(messages, ack)).await
    }

    /// Waits until the flow can accept a batch immediately. A source that is polled for its data (a Publish request, a
    /// fetch) polls only then, so that a slow output stops the polling.
    pub async fn has_room(&self) {
        self.shards.has_room().await;
    }

    /// Tells batching outputs that someone waits for the acknowledgement.
    pub fn hurry(&self) {
        (self.hurry)();
    }

    /// The number of batches that entered and are not settled yet.
    pub fn open_batches(&self) -> u64 {
        self.open_batches.count.load(Ordering::SeqCst)
    }

    /// Waits until every batch that entered so far is settled; processors hold nothing back meanwhile.
    pub async fn settled(&self) {
        self.open_batches.none(|| self.hurry()).await;
    }
}
