//! Builds a flow's components, wires them, and runs them until they end.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use thalweg_record::Balance;
use thalweg_telemetry::{ComponentId, Metrics};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::component::{BuildContext, BuildError, Component};
use crate::context::{DeadLetters, StageContext};
use crate::delivery::{Delivery, DeliveryMetrics};
use crate::input::{Connection, InputContext, Sink, SinkMetrics};
use crate::output::OutputContext;
use crate::queue::{self, Limits};
use crate::registry::OutputSpec;
use crate::runtime::handle::{FlowHandle, NodeCounters, StopReport};
use crate::runtime::spec::{FlowSpec, Named};
use crate::shard::Shards;
use crate::worker::{Stage, StageMetrics, Worker};
use thalweg_telemetry::NodeKind;

/// Messages that wait in front of the workers or the output of one flow.
const QUEUE_MESSAGES: usize = 100_000;

/// What flows share in a process.
#[derive(Clone)]
pub struct FlowEnvironment {
    pub metrics: Arc<Metrics>,
    pub data_dir: PathBuf,
    pub runtime: Handle,
    pub dead_letters: Option<DeadLetters>,
}

/// A running flow.
pub struct Flow {
    handle: Arc<FlowHandle>,
    stop: CancellationToken,
    give_up: CancellationToken,
    shards: Arc<Shards>,
    input: JoinHandle<()>,
    delivery: JoinHandle<()>,
    workers: Vec<std::thread::JoinHandle<()>>,
}

impl Flow {
    /// Builds every component first, so that nothing runs if one of them cannot.
    pub fn start(spec: FlowSpec, environment: &FlowEnvironment) -> Result<Flow, BuildError> {
        let flow = spec.labelled.then_some(spec.name.as_str());
        let metrics = &environment.metrics;
        let balance = Arc::new(Balance::default());
        let (stop, give_up) = (CancellationToken::new(), CancellationToken::new());

        let input_component = spec.input.component(flow, metrics);
        let source: Arc<str> = input_component.title().into();
        let build = |component: &Component| BuildContext {
            component: component.clone(),
            source: source.clone(),
            data_dir: environment.data_dir.clone(),
        };
        let output_component = spec.output.component(flow, metrics);
        let output = spec.output.spec.build(&build(&output_component))?;
        let input = spec.input.spec.build(&build(&input_component))?;

        let mut nodes = Vec::new();
        let stages = build_stages(&spec, flow, environment, &mut nodes)?;

        let per_worker = Limits {
            messages: QUEUE_MESSAGES / spec.threads,
            bytes: spec.queue_bytes / spec.threads,
        };
        let (to_output, from_workers) = queue::bounded(Limits {
            messages: QUEUE_MESSAGES,
            bytes: spec.queue_bytes,
        });
        let mut entrances = Vec::new();
        let mut workers = Vec::new();
        for (number, stages) in stages.into_iter().enumerate() {
            let (entrance, queue) = queue::bounded(per_worker);
            entrances.push(entrance);
            let worker = Worker {
                stages,
                input: queue,
                output: to_output.clone(),
                runtime: environment.runtime.clone(),
            };
            workers.push(spawn_worker(&spec.name, number, worker)?);
        }
        drop(to_output);

        let output_connection = Connection::new(&output_component, "output");
        let delivery = Delivery {
            output: output.clone(),
            context: Arc::new(OutputContext {
                component: output_component.clone(),
                connection: output_connection.clone(),
                stop: give_up.clone(),
            }),
            metrics: DeliveryMetrics::new(&output_component),
            dead_letters: environment.dead_letters.clone(),
        };
        let delivery_metrics = delivery.metrics.clone();
        let delivery = environment.runtime.spawn(delivery.run(from_workers));

        let input_connection = Connection::new(&input_component, "input");
        let sink_metrics = Arc::new(SinkMetrics {
            received: input_component.counter("input_received", "Messages received."),
            latency: input_component.timing("input_latency_ns", "Time that a batch waits until the flow takes it."),
            flow_latency: flow_timing(flow, metrics),
        });
        let shards = Arc::new(Shards::new(entrances));
        let sink = Sink {
            balance: balance.clone(),
            shards: shards.clone(),
            metrics: sink_metrics.clone(),
            hurry: Arc::new(move || output.hurry()),
            open_batches: Arc::default(),
        };
        nodes.insert(
            0,
            NodeCounters::input(&input_component, &sink_metrics, input_connection.clone()),
        );
        nodes.push(NodeCounters::output(
            &output_component,
            &delivery_metrics,
            output_connection,
        ));
        let handle = Arc::new(FlowHandle {
            name: spec.name.clone(),
            balance: balance.clone(),
            nodes,
            latency: sink_metrics.flow_latency.clone(),
            failure: Mutex::new(None),
            ended: CancellationToken::new(),
        });
        handle.register_metrics(flow, metrics);

        let context = InputContext {
            component: input_component,
            sink,
            stop: stop.clone(),
            connection: input_connection,
        };
        let input = environment
            .runtime
            .spawn(run_input(input, context, handle.clone(), shards.clone()));
        Ok(Flow {
            handle,
            stop,
            give_up,
            shards,
            input,
            delivery,
            workers,
        })
    }

    pub fn handle(&self) -> Arc<FlowHandle> {
        self.handle.clone()
    }

    /// Waits until the flow has come to its own end (its input has no more and everything is delivered), or failed.
    pub async fn ended(&self) {
        self.handle.ended.cancelled().await;
    }

    /// Stops in order: the input, then what is queued, processors with what they hold back, the output. What is not
    /// acknowledged when `timeout` is over is given up (counted as dropped with reason `shutdown`).
    pub async fn stop(self, timeout: std::time::Duration) -> StopReport {
        self.stop.cancel();
        let give_up = self.give_up.clone();
        let shards = self.shards.clone();
        let mut delivery = self.delivery;
        let mut input = self.input;
        let mut input_ended = false;
        let orderly = async {
            let _ = (&mut input).await;
            input_ended = true;
            shards.close();
            let _ = (&mut delivery).await;
        };
        if tokio::time::timeout(timeout, orderly).await.is_err() {
            give_up.cancel();
            shards.close();
            if !input_ended {
                input.abort();
                let _ = input.await;
            }
            let _ = delivery.await;
        }
        // Their queues are closed and nothing blocks them any more.
        let workers = self.workers;
        let _ = tokio::task::spawn_blocking(move || workers.into_iter().for_each(|worker| drop(worker.join()))).await;
        self.handle.log_held_back();
        self.handle.stop_report()
    }
}

/// Processor instances for each worker, and the counters of each processor.
fn build_stages(
    spec: &FlowSpec,
    flow: Option<&str>,
    environment: &FlowEnvironment,
    nodes: &mut Vec<NodeCounters>,
) -> Result<Vec<Vec<Stage>>, BuildError> {
    let mut workers: Vec<Vec<Stage>> = (0..spec.threads).map(|_| Vec::new()).collect();
    for named in &spec.processors {
        let component = named.component(flow, &environment.metrics);
        let metrics = StageMetrics::new(&component);
        let errors = component.counter("processor_error", "Messages that the stage failed on.");
        let context = StageContext {
            component: component.clone(),
            errors: errors.clone(),
            dead_letters: environment.dead_letters.clone(),
            runtime: environment.runtime.clone(),
        };
        for stages in &mut workers {
            let processor = named.spec.build(context.clone())?;
            stages.push(Stage {
                processor,
                metrics: metrics.clone(),
            });
        }
        nodes.push(NodeCounters::processor(&component, &metrics, errors));
    }
    Ok(workers)
}

fn spawn_worker(flow: &str, number: usize, worker: Worker) -> Result<std::thread::JoinHandle<()>, BuildError> {
    let builder = std::thread::Builder::new()
        .name(format!("flow-{flow}-{number}"))
        .stack_size(8 << 20);
    builder
        .spawn(move || worker.run())
        .map_err(|e| BuildError::new(format!("cannot start a worker thread of flow {flow}: {e}")))
}

async fn run_input(input: Box<dyn crate::Input>, context: InputContext, handle: Arc<FlowHandle>, shards: Arc<Shards>) {
    let (sink, stop) = (context.sink.clone(), context.stop.clone());
    let title = context.component.title().to_owned();
    // A task of its own, so that a panic in it ends this flow with a message instead of leaving it silent.
    let result = AbortOnDropHandle::new(tokio::spawn(input.run(context))).await;
    match result {
        Ok(Ok(())) => {}
        Ok(Err(error)) => handle.fail(format!("input {title}: {error}")),
        Err(panic) => handle.fail(format!("input {title} stopped by a fault in it: {panic}")),
    }
    shards.close();
    if !stop.is_cancelled() {
        sink.settled().await;
        handle.ended.cancel();
    }
}

fn flow_timing(flow: Option<&str>, metrics: &Arc<Metrics>) -> thalweg_telemetry::Timing {
    let id = ComponentId {
        flow: flow.map(str::to_owned),
        path: "root".to_owned(),
        label: String::new(),
    };
    metrics.timing(
        &id,
        "thalweg_flow_latency_ns",
        "Time from a message's entry to its acknowledgement.",
    )
}

/// The `dead_letter` output of the process: takes the failed messages of all flows.
pub struct DeadLetterOutput {
    letters: DeadLetters,
    give_up: CancellationToken,
    delivery: JoinHandle<()>,
    pub node: NodeCounters,
}

impl DeadLetterOutput {
    pub fn start(
        named: (&str, &str, &str),
        spec: &Arc<dyn OutputSpec>,
        environment: &FlowEnvironment,
    ) -> Result<DeadLetterOutput, BuildError> {
        let (name, path, label) = named;
        let named = Named {
            name: name.to_owned(),
            path: path.to_owned(),
            label: label.to_owned(),
            spec: spec.clone(),
        };
        let component = named.component(None, &environment.metrics);
        let context = BuildContext {
            component: component.clone(),
            source: "dead_letter".into(),
            data_dir: environment.data_dir.clone(),
        };
        let output = spec.build(&context)?;
        let (queue, letters) = queue::bounded(Limits {
            messages: QUEUE_MESSAGES,
            bytes: 16 << 20,
        });
        let give_up = CancellationToken::new();
        let connection = Connection::new(&component, "output");
        let context = Arc::new(OutputContext {
            component: component.clone(),
            connection: connection.clone(),
            stop: give_up.clone(),
        });
        let metrics = DeliveryMetrics::new(&component);
        let mut node = NodeCounters::output(&component, &metrics, connection);
        node.kind = NodeKind::DeadLetter;
        let delivery = Delivery {
            output,
            context,
            metrics,
            dead_letters: None,
        };
        let delivery = environment.runtime.spawn(delivery.run_letters(letters));
        Ok(DeadLetterOutput {
            letters: DeadLetters { queue },
            give_up,
            delivery,
            node,
        })
    }

    pub fn letters(&self) -> DeadLetters {
        self.letters.clone()
    }

    /// To be called after all flows have stopped.
    pub async fn stop(self, timeout: std::time::Duration) {
        drop(self.letters);
        let mut delivery = self.delivery;
        if tokio::time::timeout(timeout, &mut delivery).await.is_err() {
            self.give_up.cancel();
            let _ = delivery.await;
        }
    }
}
