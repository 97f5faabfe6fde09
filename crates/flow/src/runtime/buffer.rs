//! A running buffer of a flow: a queue in front of it, a task that stores, and a task that reads.
//!
//! In the order of the stream: the input's sink, the queue, the storing end (driven like any output), the stored
//! messages, the reader, the workers. The storing end runs until the input has ended and the queue is empty. The reader
//! stops only then, because a full buffer accepts more only while it is read.

use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::handle::{FlowHandle, GraphNodes, NodeCounters};
use super::start::{FlowEnvironment, QUEUE_MESSAGES, run_delivery, to_its_end};
use crate::buffer::{Buffer, BufferContext, BufferMetrics, BufferReader, BufferSink, BufferSpec};
use crate::component::{BuildContext, BuildError, Component};
use crate::connection::Connection;
use crate::delivery::Delivery;
use crate::input::OpenBatches;
use crate::metrics::BUFFER_CONNECTION;
use crate::named_spec::NamedSpec;
use crate::output_driver::{OutputDriver, OutputMetrics};
use crate::queue::{self, QueueLimits};
use crate::shard::Shards;

/// Where an input or a reader sends its batches.
pub(super) struct Downstream {
    pub shards: Arc<Shards>,
    pub open_batches: Arc<OpenBatches>,
    pub hurry: Arc<dyn Fn() + Send + Sync>,
    /// Cancelled when everything sent here is settled and no more will come.
    pub ended: CancellationToken,
}

/// A buffer that is built and not yet running.
pub(super) struct BuiltBuffer {
    store: OutputDriver,
    reader: Box<dyn BufferReader>,
    component: Component,
    metrics: BufferMetrics,
}

/// A running buffer, as needed to stop the flow.
pub(super) struct RunningBuffer {
    /// The entrance of the storing end.
    pub entrance: Arc<Shards>,
    pub storing: JoinHandle<()>,
    pub reading: JoinHandle<()>,
    /// Stops the reader.
    pub stop: CancellationToken,
    pub open_batches: Arc<OpenBatches>,
}

impl BuiltBuffer {
    pub fn build(
        named: &NamedSpec<dyn BufferSpec>,
        context: &BuildContext,
        memory_bytes: usize,
        nodes: &GraphNodes,
    ) -> Result<BuiltBuffer, BuildError> {
        let component = context.component.clone();
        let connection = Connection::new(&component, &BUFFER_CONNECTION);
        let (stored, metrics) = (OutputMetrics::of_buffer(&component), BufferMetrics::new(&component));
        nodes.add(NodeCounters::buffer(
            &component,
            &stored,
            metrics.sent.clone(),
            connection.clone(),
        ));
        let Buffer { store, reader } = named.spec.build(context, memory_bytes)?;
        Ok(BuiltBuffer {
            store: OutputDriver {
                output: store,
                component: component.clone(),
                connection,
                metrics: stored,
            },
            reader,
            component,
            metrics,
        })
    }

    /// Starts both ends. The reader sends to `later`; the returned `Downstream` is for the input.
    pub fn start(
        self,
        later: Downstream,
        queue_bytes: usize,
        environment: &FlowEnvironment,
        handle: &Arc<FlowHandle>,
        give_up: &CancellationToken,
    ) -> (Downstream, RunningBuffer) {
        let runtime = &environment.runtime;
        let (entrance, waiting) = queue::bounded(QueueLimits {
            messages: QUEUE_MESSAGES,
            bytes: queue_bytes,
        });
        let entrance = Arc::new(Shards::new(vec![entrance]));
        let (store, connection) = (self.store.output.clone(), self.store.connection.clone());
        let hurry: Arc<Notify> = Arc::default();
        let storing = Delivery {
            driven: self.store,
            dead_letters: environment.dead_letters.clone(),
            policy: None,
            buffers: true,
            hurry: hurry.clone(),
            stop: give_up.clone(),
        };
        let storing = runtime.spawn(run_delivery(storing, waiting, handle.clone()));

        let (stop, drain) = (CancellationToken::new(), CancellationToken::new());
        let context = BufferContext {
            component: self.component,
            sink: BufferSink {
                balance: handle.balance.clone(),
                shards: later.shards.clone(),
                metrics: self.metrics,
                hurry: later.hurry.clone(),
                open_batches: later.open_batches.clone(),
            },
            stop: stop.clone(),
            drain: drain.clone(),
            connection,
        };
        let reading = runtime.spawn(run_reader(self.reader, context, later, handle.clone(), give_up.clone()));
        let open_batches: Arc<OpenBatches> = Arc::default();
        let place = Downstream {
            shards: entrance.clone(),
            open_batches: open_batches.clone(),
            hurry: Arc::new(move || {
                store.hurry();
                hurry.notify_one();
            }),
            ended: drain,
        };
        let running = RunningBuffer {
            entrance,
            storing,
            reading,
            stop,
            open_batches,
        };
        (place, running)
    }
}

async fn run_reader(
    reader: Box<dyn BufferReader>,
    context: BufferContext,
    later: Downstream,
    handle: Arc<FlowHandle>,
    give_up: CancellationToken,
) {
    let (sink, stop) = (context.sink.clone(), context.stop.clone());
    // Without a reader the buffer would only fill up.
    if let Err(why) = to_its_end(reader.run(context), &give_up).await {
        handle.fault(format!("the buffer{why}"));
    }
    later.shards.close();
    tokio::select! {
        () = stop.cancelled() => {}
        () = sink.settled() => later.ended.cancel(),
    }
}
