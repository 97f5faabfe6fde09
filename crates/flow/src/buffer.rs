//! A buffer between a flow's input and its processors that survives a restart: its parts, and the sink for its reader.
//!
//! The input's batches enter the buffer and are acknowledged when they are stored. The same messages leave it, and stay
//! stored until everything made of them was confirmed, filtered, dropped with a reason or written to the dead letter.
//! The flow has one balance: a message in the buffer is in flight, and shown as such (`thalweg_flow_buffered`).

use std::sync::Arc;

use thalweg_kit::clock;
use thalweg_record::{Ack, AckResult, Batch, DropReason, FlowBalance};
use thalweg_telemetry::{IntCounter, Timing};
use tokio_util::sync::CancellationToken;

use crate::BoxFuture;
use crate::component::{BuildContext, BuildError, Component};
use crate::connection::Connection;
use crate::input::{InputError, OpenBatches, SinkClosed};
use crate::metrics;
use crate::output::Output;
use crate::shard::Shards;

/// The checked configuration of a buffer.
pub trait BufferSpec: Send + Sync {
    /// `memory_bytes` bounds the memory for the references of stored messages.
    fn build(&self, context: &BuildContext, memory_bytes: usize) -> Result<Buffer, BuildError>;
}

/// The two ends of a buffer.
pub struct Buffer {
    /// Its writes end when messages are as durable as the buffer promises; while the buffer is full they wait.
    pub store: Arc<dyn Output>,
    pub reader: Box<dyn BufferReader>,
}

/// Reads stored messages, in order within a series, from the oldest unacknowledged one.
pub trait BufferReader: Send {
    /// Returns `Ok` after `context.stop` was cancelled, or when `context.drain` was cancelled and the buffer is empty.
    /// An error ends the flow, and stored messages stay.
    fn run(self: Box<Self>, context: BufferContext) -> BoxFuture<'static, Result<(), InputError>>;
}

/// What a buffer's reader works with.
pub struct BufferContext {
    pub component: Component,
    pub sink: BufferSink,
    /// Cancelled when the reader must stop reading.
    pub stop: CancellationToken,
    /// Cancelled when everything that will arrive has been stored.
    pub drain: CancellationToken,
    pub connection: Connection,
}

/// Accepts the reader's batches. Clones feed the same flow.
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
            sent: component.counter(&metrics::BUFFER_SENT),
            batch_sent: component.counter(&metrics::BUFFER_BATCH_SENT),
            latency: component.timing(&metrics::BUFFER_LATENCY),
        }
    }
}

impl BufferSink {
    /// Counts messages that were stored before the start.
    pub fn found(&self, n: u64) {
        self.balance.found(n);
    }

    /// Counts stored messages that cannot be passed on.
    pub fn lost(&self, reason: DropReason, n: u64) {
        self.balance.lost(reason, n);
    }

    /// Creates the acknowledgement of `n` messages that were read. `settle` is called once with the result, on the
    /// thread that ends the last message: after `Acked` the buffer may remove them, otherwise the next run reads them
    /// again.
    pub fn resume(&self, n: usize, settle: impl FnOnce(AckResult) + Send + 'static) -> Ack {
        let (metrics, open, start) = (self.metrics.clone(), self.open_batches.clone(), clock::now());
        open.begins();
        Ack::resume(&self.balance, n, move |outcome| {
            metrics.latency.observe(start.elapsed());
            settle(outcome);
            open.ends();
        })
    }

    /// Passes a batch on; waits while the flow is full. After an error the batch was given up and so is still stored.
    pub async fn send(&self, batch: Batch) -> Result<(), SinkClosed> {
        self.metrics.sent.inc_by(batch.len() as u64);
        self.metrics.batch_sent.inc();
        self.shards.send(batch).await
    }

    /// Waits until the flow can accept a batch immediately.
    pub async fn has_room(&self) {
        self.shards.has_room().await;
    }

    /// Waits until every batch read so far is settled; processors hold nothing back meanwhile.
    pub async fn settled(&self) {
        self.open_batches.none(|| (self.hurry)()).await;
    }
}
