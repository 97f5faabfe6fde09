//! Inputs and outputs with their own processors where the flow's workers cannot run them: within a broker, in a
//! resource, at the dead letter. Their processors run on one thread, which keeps the order.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use thalweg_kit::backoff::Backoff;
use thalweg_kit::channel::{Receiver, Sender, channel};
use thalweg_kit::threads;
use thalweg_record::{Ack, Batch, DropReason, FlowBalance, Message};
use tokio::sync::oneshot;

use crate::BoxFuture;
use crate::batching::Batching;
use crate::chain::{Chain, ChainSpec};
use crate::component::{BuildContext, BuildError, Component};
use crate::context::{FailurePolicy, FlowScope};
use crate::input::{Input, InputContext, InputError, Sink};
use crate::output::{OpenError, Output, OutputContext, Rejection, WriteError, all_but};
use crate::output_driver::{OutputDriver, OutputMetrics, WriteFuture};
use crate::queue::{self, QueueLimits};
use crate::registry::{InputSpec, OutputSpec};
use crate::shard::Shards;
use crate::worker::{ResultDestination, ResultSender, Worker, unless_it_panics};

/// Limits of the queue between an input and its processors; the queues of the flow follow.
const WAITING: QueueLimits = QueueLimits {
    messages: 10_000,
    bytes: 8 << 20,
};

/// An input with its own processors.
pub(crate) struct ProcessedInputSpec {
    chain: ChainSpec,
    input: Arc<dyn InputSpec>,
}

impl ProcessedInputSpec {
    pub fn unless_empty(chain: ChainSpec, input: Arc<dyn InputSpec>) -> Arc<dyn InputSpec> {
        match chain.is_empty() {
            true => input,
            false => Arc::new(ProcessedInputSpec { chain, input }),
        }
    }
}

impl InputSpec for ProcessedInputSpec {
    fn build(&self, context: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        let (flow, metrics) = (context.component.id.flow.as_deref(), &context.component.metrics);
        let scope = FlowScope {
            nodes: context.scope.nodes.hidden(),
            ..context.scope.clone()
        };
        Ok(Box::new(ProcessedInput {
            input: self.input.build(context)?,
            chain: self.chain.build(flow, metrics, &scope)?,
            scope: context.scope.clone(),
        }))
    }

    fn waits_for_answers(&self) -> Option<&'static str> {
        self.input.waits_for_answers()
    }
}

struct ProcessedInput {
    input: Box<dyn Input>,
    chain: Chain,
    scope: FlowScope,
}

/// Closes the processors' queue, however the input ended, so that they finish.
struct CloseOnDrop(Arc<Shards>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Input for ProcessedInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            let (entrance, queue) = queue::bounded(WAITING);
            let own = CloseOnDrop(Arc::new(Shards::new(vec![entrance])));
            let worker = Worker {
                chain: self.chain,
                input: queue,
                open_batches: context.sink.open_batches.clone(),
                exit: ResultSender {
                    outlet: ResultDestination::Shards(context.sink.shards.clone()),
                    runtime: self.scope.runtime,
                    give_up: self.scope.give_up,
                },
            };
            let name = thread_name(&context.component);
            let ended = worker.spawn(name).map_err(|error| InputError(error.0))?;
            let sink = Sink {
                shards: own.0.clone(),
                ..context.sink.clone()
            };
            let result = self.input.run(InputContext { sink, ..context }).await;
            drop(own);
            match ended.await {
                Ok(Err(panic)) => Err(InputError(format!(
                    "its processors were stopped by an internal error: {panic}"
                ))),
                _ => result,
            }
        })
    }
}

fn thread_name(component: &Component) -> String {
    format!("at-{}", component.name)
}

/// An output with its own processors.
///
/// Each message passes through them alone, and they hold nothing back, so that the result of a write can be attributed
/// to the message it was made from. A filtered message counts as accepted by this output, a failed one as rejected.
pub(crate) struct ProcessedOutputSpec {
    chain: ChainSpec,
    output: Arc<dyn OutputSpec>,
}

impl ProcessedOutputSpec {
    pub fn unless_empty(chain: ChainSpec, output: Arc<dyn OutputSpec>) -> Arc<dyn OutputSpec> {
        match chain.is_empty() {
            true => output,
            false => Arc::new(ProcessedOutputSpec { chain, output }),
        }
    }
}

impl OutputSpec for ProcessedOutputSpec {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        let (refused, balance) = (Arc::default(), Arc::default());
        let scope = FlowScope {
            balance: Arc::clone(&balance),
            failures: FailurePolicy::Refuse(Arc::clone(&refused)),
            nodes: context.scope.nodes.hidden(),
            ..context.scope.clone()
        };
        let (flow, metrics) = (context.component.id.flow.as_deref(), &context.component.metrics);
        let output = self.output.build(context)?;
        let processing = ProcessingThread {
            chain: self.chain.build(flow, metrics, &scope)?,
            refused,
            balance,
            output: output.clone(),
        };
        let (jobs, queue) = channel();
        let runtime = context.scope.runtime.clone();
        let name = thread_name(&context.component);
        let work = move || {
            // An output may start tasks when it is called.
            let _entered = runtime.enter();
            let _ = unless_it_panics(|| processing.run(&queue));
        };
        threads::spawn_with_stack(name.clone(), 8 << 20, work)
            .map_err(|error| BuildError::new(format!("cannot start the thread {name}: {error}")))?;
        Ok(Arc::new(ProcessedOutput {
            jobs,
            output,
            driven: OnceLock::new(),
        }))
    }

    fn stores_bad_values(&self) -> bool {
        self.output.stores_bad_values()
    }
}

struct ProcessedOutput {
    jobs: Sender<ProcessingJob>,
    output: Arc<dyn Output>,
    /// Set when the output is opened.
    driven: OnceLock<OutputDriver>,
}

/// Messages for the processors.
struct ProcessingJob {
    messages: Arc<Vec<Message>>,
    reply: oneshot::Sender<ProcessedJob>,
}

/// The results of a job, already passed to the output.
struct ProcessedJob {
    write: WriteFuture,
    results: Arc<Vec<Message>>,
    /// For each result, the index of its source message.
    sources: Vec<usize>,
    refused: Vec<Rejection>,
}

impl Output for ProcessedOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        self.driven.get_or_init(|| OutputDriver {
            output: self.output.clone(),
            component: context.component.clone(),
            connection: context.connection.clone(),
            metrics: OutputMetrics::new(&context.component),
        });
        self.output.open(context)
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> WriteFuture {
        let (reply, answer) = oneshot::channel();
        let sent = self.jobs.send(ProcessingJob { messages, reply });
        let driven = self.driven.get().cloned();
        Box::pin(async move {
            let ended = || WriteError::Permanent("its processors were stopped by an internal error".to_owned());
            sent.map_err(|_gone| ended())?;
            let processed = answer.await.map_err(|_gone| ended())?;
            let mut refused = processed.refused;
            if let Some(driven) = driven.filter(|_| !processed.results.is_empty()) {
                // The retry happens here and not in the caller, because the processors must not run twice.
                let rest = driven.persist(processed.write, &processed.results).await;
                for refusal in rest.map_err(WriteError::Permanent)? {
                    let Some(&index) = processed.sources.get(refusal.index) else {
                        continue;
                    };
                    refused.push(Rejection::permanent(index, refusal.reason, refusal.error));
                }
            }
            all_but(refused)
        })
    }

    fn max_in_flight(&self) -> usize {
        self.output.max_in_flight()
    }

    fn joins(&self) -> usize {
        self.output.joins()
    }

    fn batching(&self) -> Option<Batching> {
        self.output.batching()
    }

    fn backoff(&self) -> Backoff {
        self.output.backoff()
    }

    fn hurry(&self) {
        self.output.hurry();
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        self.output.close()
    }
}

/// The state of the thread: the processors, and the output for their results.
struct ProcessingThread {
    chain: Chain,
    /// The failures of the processors since the last drain.
    refused: Arc<Mutex<Vec<(DropReason, String)>>>,
    /// A balance of this thread alone; the writer keeps the flow's balance.
    balance: Arc<FlowBalance>,
    output: Arc<dyn Output>,
}

impl ProcessingThread {
    fn run(mut self, jobs: &Receiver<ProcessingJob>) {
        while let Ok(job) = jobs.recv() {
            let processed = self.process(&job.messages);
            let _given_up = job.reply.send(processed);
        }
    }

    fn process(&mut self, messages: &[Message]) -> ProcessedJob {
        let mut results = Vec::with_capacity(messages.len());
        let mut sources = Vec::with_capacity(messages.len());
        let mut refused = Vec::new();
        for (index, message) in messages.iter().enumerate() {
            let ack = Ack::enter(&self.balance, 1, |_| {});
            let mut made = self.chain.process(Batch::new(vec![message.clone()], ack));
            self.chain.flush(&mut made);
            for batch in made {
                batch.ack.delivered();
                sources.extend(std::iter::repeat_n(index, batch.messages.len()));
                results.extend(batch.messages);
            }
            let failed = std::mem::take(&mut *self.refused.lock());
            let first = failed.into_iter().next();
            refused.extend(first.map(|(reason, error)| Rejection::permanent(index, reason, error)));
        }
        let results = Arc::new(results);
        let write = match results.is_empty() {
            true => Box::pin(std::future::ready(Ok(()))) as WriteFuture,
            false => self.output.write(results.clone()),
        };
        ProcessedJob {
            write,
            results,
            sources,
            refused,
        }
    }
}
