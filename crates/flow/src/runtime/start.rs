//! Builds a flow's components, wires them, and runs them until they end.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use thalweg_record::{Batch, FlowBalance, SourceName};
use thalweg_telemetry::{ComponentId, Metrics, Timing};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::BoxFuture;
use crate::batching::Batching;
use crate::chain::Chain;
use crate::component::{BuildContext, BuildError, Component};
use crate::connection::Connection;
use crate::context::{DeadLetterSender, FailurePolicy, FlowScope};
use crate::delivery::Delivery;
use crate::input::{Input, InputContext, InputError, OpenBatches, Sink, SinkMetrics};
use crate::metrics::{FLOW_LATENCY, INPUT_CONNECTION, OUTPUT_CONNECTION};
use crate::output_driver::{OutputDriver, OutputMetrics};
use crate::queue::{self, QueueLimits};
use crate::runtime::buffer::{BuiltBuffer, Downstream, RunningBuffer};
use crate::runtime::handle::{FlowHandle, GraphNodes, NodeCounters};
use crate::runtime::spec::FlowSpec;
use crate::shard::Shards;
use crate::worker::{ResultDestination, ResultSender, Worker, WorkerJoinHandle};

/// Maximum messages that wait in front of the workers or the output of one flow.
pub(super) const QUEUE_MESSAGES: usize = 100_000;

/// State that the flows of a process share.
#[derive(Clone)]
pub struct FlowEnvironment {
    pub metrics: Arc<Metrics>,
    pub data_dir: PathBuf,
    pub runtime: Handle,
    pub dead_letters: Option<DeadLetterSender>,
}

/// A running flow.
pub struct Flow {
    pub(super) handle: Arc<FlowHandle>,
    pub(super) stop: CancellationToken,
    pub(super) give_up: CancellationToken,
    pub(super) shards: Arc<Shards>,
    pub(super) open_batches: Arc<OpenBatches>,
    pub(super) input: JoinHandle<()>,
    pub(super) buffer: Option<RunningBuffer>,
    pub(super) delivery: JoinHandle<()>,
    /// One task per worker, which ends with it.
    pub(super) workers: Vec<JoinHandle<()>>,
    /// Logs summaries of rate-limited log lines.
    pub(super) _summaries: AbortOnDropHandle<()>,
}

/// How often due summaries are checked.
const SUMMARY_CHECK: Duration = Duration::from_secs(1);

/// A flow's components, built and not yet running.
struct BuiltFlow {
    input: Box<dyn Input>,
    input_component: Component,
    input_connection: Connection,
    sink_metrics: Arc<SinkMetrics>,
    /// The processors of each worker.
    chains: Vec<Chain>,
    buffer: Option<BuiltBuffer>,
    output: OutputDriver,
    nodes: Vec<NodeCounters>,
    balance: Arc<FlowBalance>,
}

impl Flow {
    /// Builds every component first, so that nothing runs if one of them fails.
    pub fn start(spec: FlowSpec, environment: &FlowEnvironment) -> Result<Flow, BuildError> {
        let flow = spec.labelled.then_some(spec.name.as_str());
        let (stop, give_up) = (CancellationToken::new(), CancellationToken::new());
        let built = build(&spec, flow, environment, &give_up)?;
        let handle = Arc::new(FlowHandle {
            name: spec.name.clone(),
            balance: built.balance,
            nodes: built.nodes,
            dead_letter: environment.dead_letters.as_ref().map(|letters| letters.nodes.clone()),
            latency: built.sink_metrics.flow_latency.clone(),
            failure: Mutex::new(None),
            stop: stop.clone(),
            ended: CancellationToken::new(),
        });

        let (to_output, from_workers) = queue::bounded(QueueLimits {
            messages: QUEUE_MESSAGES,
            bytes: spec.queue_bytes,
        });
        let runtime = &environment.runtime;
        let open_batches = Arc::new(OpenBatches::default());
        let exit = ResultSender {
            outlet: ResultDestination::Queue(to_output),
            runtime: runtime.clone(),
            give_up: give_up.clone(),
        };
        let (shards, workers) = start_workers(&spec, built.chains, exit, &open_batches, &handle)?;
        handle.register_metrics(flow, &environment.metrics);

        let (delivery, hurry) = start_delivery(
            built.output,
            spec.batch_policy,
            from_workers,
            environment,
            &give_up,
            &handle,
        );

        let place = Downstream {
            shards: shards.clone(),
            open_batches: open_batches.clone(),
            hurry,
            ended: handle.ended.clone(),
        };
        let (place, buffer) = match built.buffer {
            None => (place, None),
            Some(buffer) => {
                let (place, buffer) = buffer.start(place, spec.queue_bytes, environment, &handle, &give_up);
                (place, Some(buffer))
            }
        };
        let sink = Sink {
            balance: handle.balance.clone(),
            shards: place.shards,
            metrics: built.sink_metrics,
            outer: None,
            source: SourceName::default(),
            hurry: place.hurry,
            open_batches: place.open_batches,
        };
        let context = InputContext {
            component: built.input_component,
            sink,
            stop: stop.clone(),
            connection: built.input_connection,
        };
        let input = run_input(built.input, context, handle.clone(), place.ended, give_up.clone());
        let input = runtime.spawn(input);
        let summaries = runtime.spawn(log_summaries(handle.clone()));
        Ok(Flow {
            handle,
            stop,
            give_up,
            shards,
            open_batches,
            input,
            buffer,
            delivery,
            workers,
            _summaries: AbortOnDropHandle::new(summaries),
        })
    }

    pub fn handle(&self) -> Arc<FlowHandle> {
        self.handle.clone()
    }

    /// Waits until the flow ended by itself (its input is exhausted and everything is delivered), or failed.
    pub async fn ended(&self) {
        self.handle.ended.cancelled().await;
    }
}

/// Builds the components in the order of the stream, which is their order in the graph.
fn build(
    spec: &FlowSpec,
    flow: Option<&str>,
    environment: &FlowEnvironment,
    give_up: &CancellationToken,
) -> Result<BuiltFlow, BuildError> {
    let metrics = &environment.metrics;
    let (nodes, balance) = (GraphNodes::default(), Arc::new(FlowBalance::default()));
    let scope = FlowScope {
        balance: balance.clone(),
        failures: environment
            .dead_letters
            .clone()
            .map_or(FailurePolicy::Drop, FailurePolicy::DeadLetters),
        runtime: environment.runtime.clone(),
        give_up: give_up.clone(),
        nodes: nodes.clone(),
    };
    let input_component = spec.input.component(flow, metrics);
    let source: Arc<str> = input_component.title().into();
    let context = |component: &Component| BuildContext {
        component: component.clone(),
        source: source.clone(),
        data_dir: environment.data_dir.clone(),
        stores_bad_values: spec.output.spec.stores_bad_values(),
        scope: scope.clone(),
    };

    let input_connection = Connection::new(&input_component, &INPUT_CONNECTION);
    let sink_metrics = Arc::new(SinkMetrics::new(&input_component, flow_timing(flow, metrics)));
    nodes.add(NodeCounters::input(
        &input_component,
        sink_metrics.received.clone(),
        input_connection.clone(),
    ));
    let input = spec.input.spec.build(&context(&input_component))?;

    let buffer = match &spec.buffer {
        Some(named) => {
            let component = named.component(flow, metrics);
            let context = context(&component);
            Some(BuiltBuffer::build(named, &context, spec.queue_bytes, &nodes)?)
        }
        None => None,
    };

    let chains = (0..spec.threads).map(|_| spec.processors.build(flow, metrics, &scope));
    let chains = chains.collect::<Result<_, BuildError>>()?;

    let component = spec.output.component(flow, metrics);
    let connection = Connection::new(&component, &OUTPUT_CONNECTION);
    let output_metrics = OutputMetrics::new(&component);
    nodes.add(NodeCounters::output(&component, &output_metrics, connection.clone()));
    let output = OutputDriver {
        output: spec.output.spec.build(&context(&component))?,
        component,
        connection,
        metrics: output_metrics,
    };
    Ok(BuiltFlow {
        input,
        input_component,
        input_connection,
        sink_metrics,
        buffer,
        chains,
        output,
        nodes: nodes.take(),
        balance,
    })
}

/// Starts the delivery task; also returns the function that makes the output flush its batch.
fn start_delivery(
    driven: OutputDriver,
    policy: Option<Batching>,
    from_workers: queue::QueueReceiver<Batch>,
    environment: &FlowEnvironment,
    give_up: &CancellationToken,
    handle: &Arc<FlowHandle>,
) -> (JoinHandle<()>, Arc<dyn Fn() + Send + Sync>) {
    let (output, waiting) = (driven.output.clone(), Arc::new(Notify::new()));
    let delivery = Delivery {
        driven,
        dead_letters: environment.dead_letters.clone(),
        policy,
        buffers: false,
        hurry: waiting.clone(),
        stop: give_up.clone(),
    };
    let delivery = environment
        .runtime
        .spawn(run_delivery(delivery, from_workers, handle.clone()));
    let hurry = Arc::new(move || {
        output.hurry();
        waiting.notify_one();
    });
    (delivery, hurry)
}

/// Starts one thread per chain; returns the entrances and the tasks that watch for their end.
fn start_workers(
    spec: &FlowSpec,
    chains: Vec<Chain>,
    exit: ResultSender,
    open_batches: &Arc<OpenBatches>,
    handle: &Arc<FlowHandle>,
) -> Result<(Arc<Shards>, Vec<JoinHandle<()>>), BuildError> {
    let per_worker = QueueLimits {
        messages: QUEUE_MESSAGES / spec.threads,
        bytes: spec.queue_bytes / spec.threads,
    };
    let mut entrances = Vec::new();
    let mut workers = Vec::new();
    for (number, chain) in chains.into_iter().enumerate() {
        let (entrance, queue) = queue::bounded(per_worker);
        entrances.push(entrance);
        let worker = Worker {
            chain,
            input: queue,
            open_batches: open_batches.clone(),
            exit: exit.clone(),
        };
        let ended = worker.spawn(format!("flow-{}-{number}", spec.name))?;
        workers.push(exit.runtime.spawn(watch_worker(ended, handle.clone())));
    }
    Ok((Arc::new(Shards::new(entrances)), workers))
}

async fn watch_worker(ended: WorkerJoinHandle, handle: Arc<FlowHandle>) {
    if let Ok(Err(panic)) = ended.await {
        handle.fault(format!("the processors were stopped by an internal error: {panic}"));
    }
}

/// Drives an output until nothing more comes.
pub(super) async fn run_delivery(delivery: Delivery, queue: queue::QueueReceiver<Batch>, handle: Arc<FlowHandle>) {
    let title = delivery.driven.component.title().to_owned();
    // It runs in its own task, so that a panic ends this flow with a message instead of stalling it silently.
    match AbortOnDropHandle::new(tokio::spawn(delivery.run(queue))).await {
        Ok(Ok(())) => {}
        Ok(Err(why)) => handle.fault(format!("output {title}: {why}")),
        Err(panic) => handle.fault(format!("output {title} was stopped by an internal error: {panic}")),
    }
}

/// Runs an input until its end. `ended` is cancelled when everything that it sent is settled.
async fn run_input(
    input: Box<dyn Input>,
    context: InputContext,
    handle: Arc<FlowHandle>,
    ended: CancellationToken,
    give_up: CancellationToken,
) {
    let (sink, stop) = (context.sink.clone(), context.stop.clone());
    let title = context.component.title().to_owned();
    match to_its_end(input.run(context), &give_up).await {
        Ok(()) => {}
        Err(why) => handle.fail(format!("input {title}{why}")),
    }
    sink.shards.close();
    tokio::select! {
        () = stop.cancelled() => {}
        () = sink.settled() => ended.cancel(),
    }
}

/// Runs an input or a reader until it ends or the flow gives up. `Err` is the predicate of a sentence about it.
pub(super) async fn to_its_end(
    run: BoxFuture<'static, Result<(), InputError>>,
    give_up: &CancellationToken,
) -> Result<(), String> {
    // It runs in its own task, so that a panic ends this flow with a message instead of stalling it silently.
    let mut task = AbortOnDropHandle::new(tokio::spawn(run));
    let result = tokio::select! {
        result = &mut task => result,
        () = give_up.cancelled() => {
            task.abort();
            (&mut task).await
        }
    };
    match result {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(format!(": {error}")),
        Err(error) if error.is_cancelled() => Ok(()),
        Err(panic) => Err(format!(" was stopped by an internal error: {panic}")),
    }
}

async fn log_summaries(handle: Arc<FlowHandle>) {
    let mut timer = tokio::time::interval(SUMMARY_CHECK);
    loop {
        timer.tick().await;
        handle.log_held_back(false);
    }
}

fn flow_timing(flow: Option<&str>, metrics: &Arc<Metrics>) -> Timing {
    let id = ComponentId {
        flow: flow.map(str::to_owned),
        path: "root".to_owned(),
        label: String::new(),
    };
    metrics.timing(&id, &FLOW_LATENCY)
}
