//! A buffer that outlives the process, between a flow's input and its processors: what it consists of, and the sink into
//! which its reader puts what it has read.
//!
//! In come the input's batches, which are acknowledged when they are stored; out come the same messages, which stay in the
//! buffer until everything made of them was confirmed, filtered, dropped with a reason or taken by the dead letter. A flow
//! keeps one account: a message in the buffer is in flight, and shown as such (`thalweg_flow_buffered`).

use std::sync::Arc;
use std::time::Instant;

use thalweg_record::{Ack, AckResult, Batch, DropReason, FlowBalance};
use thalweg_telemetry::{IntCounter, Timing};
use tokio_util::sync::CancellationToken;

use crate::BoxFuture;
use crate::component::{BuildContext, BuildError, Component};
use crate::connection::Connection;
use crate::input::{InputError, OpenBatches, SinkClosed};
use crate::output::Output;
use crate::shard::Shards;

/// A buffer's checked configuration.
pub trait BufferSpec: Send + Sync {
    /// `memory_bytes` may be used to remember what stored messages refer to.
    fn build(&self, context: &BuildContext, memory_bytes: usize) -> Result<Buffer, BuildError>;
}

/// The two ends of a buffer.
pub struct Buffer {
    /// Its writes end when messages are as durable as the buffer promises; while it is full they wait.
    pub store: Arc<dyn Output>,
    pub reader: Box<dyn BufferReader>,
}

/// Reads what is stored, in order within a series, from the oldest that was not acknowledged.
pub trait BufferReader: Send {
    /// Returns `Ok` after `context.stop` was cancelled, or when `context.drain` was and nothing is left. An error ends the
    /// flow, and what is stored stays.
    fn run(self: Box<Self>, context: BufferContext) -> BoxFuture<'static, Result<(), InputError>>;
}

/// What a buffer's reader gets to work with.
pub struct BufferContext {
    pub component: Component,
    pub sink: BufferSink,
    /// Cancelled when no more shall be read.
    pub stop: CancellationToken,
    /// Cancelled when everything that will come has been stored.
    pub drain: CancellationToken,
    pub connection: Connection,
}

/// Where the reader puts its batches. Clones feed the same flow.
#[derive(Clone)]
pub struct BufferSink {
    pub(crate) balance: Arc<FlowBalance>,
    pub(crate) shards: Arc<Shards>,
    pub(crate) metrics: BufferMetrics,
    pub(crate) hurry: Arc<dyn Fn() + Send + Sync>,
    pub(crate) open_batches: Arc<OpenBatches>,
}

#[derive(Clone)]
pub(crate) struct BufferMetrics {
    pub sent: IntCounter,
    batch_sent: IntCounter,
    latency: Timing,
}

impl BufferMetrics {
    pub fn new(component: &Component) -> BufferMetrics {
        BufferMetrics {
            sent: component.counter("buffer_sent", "Messages read from the buffer and passed on."),
            batch_sent: component.counter("buffer_batch_sent", "Batches read from the buffer and passed on."),
            latency: component.timing(
                "buffer_latency_ns",
                "Time from the reading of a batch to its acknowledgement.",
            ),
        }
    }
}

impl BufferSink {
    /// Messages from before the start are stored.
    pub fn found(&self, n: u64) {
        self.balance.found(n);
    }

    /// Stored messages cannot be passed on.
    pub fn lost(&self, reason: DropReason, n: u64) {
        self.balance.lost(reason, n);
    }

    /// Answers for `n` messages that were read. `settle` hears once what became of them, on whatever thread ends the last:
    /// `Acked` when the buffer may forget them, else they are to be read again in the next run.
    pub fn resume(&self, n: usize, settle: impl FnOnce(AckResult) + Send + 'static) -> Ack {
        let (metrics, open, start) = (self.metrics.clone(), self.open_batches.clone(), Instant::now());
        open.begins();
        Ack::resume(&self.balance, n, move |outcome| {
            metrics.latency.observe(start.elapsed());
            settle(outcome);
            open.ends();
        })
    }

    /// Passes a batch on; waits while the flow is full. After an error the batch has been given up, and so is still stored.
    pub async fn send(&self, batch: Batch) -> Result<(), SinkClosed> {
        self.metrics.sent.inc_by(batch.len() as u64);
        self.metrics.batch_sent.inc();
        self.shards.send(batch).await
    }

    /// Waits until the flow could take a batch at once.
    pub async fn has_room(&self) {
        self.shards.has_room().await;
    }

    /// Waits until every batch that was read so far is settled; processors hold nothing back meanwhile.
    pub async fn settled(&self) {
        self.open_batches.none(|| (self.hurry)()).await;
    }
}
