//! `stream_processor`: computes tags from other tags.
//!
//! The input is samples of several topics, the sources; the output is samples of the topics that expressions define.
//! The latest value of each source, by arrival, is kept. A message of a source sets its value and then runs, in the
//! order of the mapping, the expressions that use it and those that use no source, each as soon as all its sources have
//! a value.
//!
//! The values belong to the processor, not to a thread: instances share them under one lock, which is taken once per
//! batch. A flow runs such a chain with one worker ([`ProcessorSpec::joins_series`]), so results are emitted in the
//! order in which they were computed.

mod config;
mod engine;
mod input;
mod metadata;
mod metrics;
mod values;

use std::sync::Arc;

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_flow::{BuildError, Processor, ProcessorSpec, StageContext};
use thalweg_kit::clock;
use thalweg_record::{Ack, Batch, DropReason, FilterReason, Message, Payload, Text, Value, key};

pub(crate) use self::config::parse;
use self::engine::{EvaluationError, ExpressionEngine, PendingEvaluation};
use self::input::sample;
use self::metadata::ResultMetadata;
pub(crate) use self::metrics::STREAM_PROCESSOR_METRICS;
use self::metrics::StreamProcessorMetrics;
use self::values::SourceValues;
use crate::lost_value::lacks_value;
use crate::scripting::{ScriptMetrics, Scripts};

/// Results that are passed on together, unless one message has more. Each message may run every expression, and no
/// limit counts the results of a batch before the flow has them.
const RESULTS_MAX: usize = 10_000;

/// The configuration with names as numbers: sources by their index in [`SourceValues`], expressions in the order of the
/// mapping.
#[derive(Default)]
struct Plan {
    topics: HashMap<String, Trigger>,
    expressions: Vec<Expression>,
}

/// What a message of a topic sets and runs.
#[derive(Default)]
struct Trigger {
    sources: SmallVec<[usize; 1]>,
    expressions: Vec<usize>,
}

impl Plan {
    /// Maximum results of one message.
    fn results_max(&self) -> usize {
        let counts = self.topics.values().map(|trigger| trigger.expressions.len());
        counts.max().unwrap_or_default()
    }
}

struct Expression {
    /// Its path in the mapping, which errors use as its name.
    path: String,
    /// Topic of its results.
    topic: Text,
    /// The sources that it uses.
    needs: SmallVec<[usize; 4]>,
    work: ExpressionBody,
}

impl Expression {
    /// Whether all its sources have a value.
    fn is_ready(&self, values: &SourceValues) -> bool {
        self.needs.iter().all(|source| values.get(*source).is_some())
    }
}

enum ExpressionBody {
    Constant(Value),
    /// The unchanged value of a source, with every digit.
    Source(usize),
    Script {
        number: usize,
        /// The sources by name.
        variables: Vec<(Text, usize)>,
        /// Its result is constant.
        is_fixed: bool,
    },
    /// It is not run; why.
    Refused(String),
}

struct StreamProcessorSpec {
    plan: Arc<Plan>,
    scripts: Scripts,
    values: Arc<Mutex<SourceValues>>,
}

impl ProcessorSpec for StreamProcessorSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        let program = self.scripts.build(&context)?;
        let metrics = StreamProcessorMetrics::new(&context);
        metrics.active_mappings.set(self.plan.expressions.len() as i64);
        Ok(Box::new(StreamProcessor {
            script_metrics: program.as_ref().map(|_| ScriptMetrics::new(&context)),
            engine: ExpressionEngine::new(program, self.plan.expressions.len()),
            messages_max: RESULTS_MAX / self.plan.results_max().max(1),
            plan: self.plan.clone(),
            values: self.values.clone(),
            metadata: ResultMetadata::default(),
            metrics,
            context,
        }))
    }

    fn joins_series(&self) -> bool {
        true
    }
}

struct StreamProcessor {
    plan: Arc<Plan>,
    engine: ExpressionEngine,
    messages_max: usize,
    values: Arc<Mutex<SourceValues>>,
    metadata: ResultMetadata,
    metrics: StreamProcessorMetrics,
    script_metrics: Option<ScriptMetrics>,
    context: StageContext,
}

/// The result of a batch.
#[derive(Default)]
struct BatchOutcome {
    results: Vec<Message>,
    failed: Vec<StreamFailure>,
    /// Messages whose topic belongs to no source.
    foreign: usize,
    /// Messages of sources whose value was stored.
    taken: usize,
    /// Those that ran nothing, because no expression has all its values yet.
    silent: usize,
    /// Results that are null.
    nothing: usize,
    /// Expressions that were run, beyond the first one of each message.
    expanded: usize,
}

/// An expression that a message runs.
struct ExpressionRun<'b> {
    message: &'b Message,
    time_ms: i64,
    number: usize,
    expression: &'b Expression,
    begun: PendingEvaluation,
}

/// A message that was refused; or one entry for each of its expressions that failed.
struct StreamFailure {
    message: Message,
    reason: DropReason,
    error: String,
}

impl Processor for StreamProcessor {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let started = clock::now();
        let Batch { messages, ack } = batch;
        let count = messages.len();
        let mut made = BatchOutcome {
            results: Vec::with_capacity(count),
            ..BatchOutcome::default()
        };
        let calls_before = self.engine.calls();
        let (plan, shared) = (self.plan.clone(), self.values.clone());
        let mut values = shared.lock();
        let mut runs = Vec::new();
        for message in &messages {
            self.one(message, &plan, &mut values, &mut made, &mut runs);
        }
        let known = values.known();
        // Scripts may take long, and results may wait for the dead letter output.
        drop(values);
        self.run(runs, &mut made);
        let calls = self.engine.calls() - calls_before;
        self.metrics.took(started.elapsed(), count, calls);
        self.metrics.active_variables.set(known as i64);
        self.metrics.processed.inc_by(made.taken as u64);
        self.metrics.errored.inc_by((count - made.taken - made.foreign) as u64);
        self.metrics.dropped.inc_by((made.foreign + made.silent) as u64);
        self.metrics.outputs.inc_by(made.results.len() as u64);
        self.settle(made, ack, out);
    }

    fn messages_max(&self) -> usize {
        self.messages_max
    }
}

impl StreamProcessor {
    /// Stores the value of a message, and begins the expressions that it runs.
    fn one<'b>(
        &mut self,
        message: &'b Message,
        plan: &'b Plan,
        values: &mut SourceValues,
        made: &mut BatchOutcome,
        runs: &mut Vec<ExpressionRun<'b>>,
    ) {
        let topic = message.meta.get(key::UMH_TOPIC);
        let Some(trigger) = topic.and_then(|topic| plan.topics.get(&*topic)) else {
            made.foreign += 1;
            return;
        };
        if lacks_value(message) {
            // The source says so itself, and the last value is still the last one.
            made.taken += 1;
            made.silent += 1;
            return;
        }
        let (value, time_ms) = match sample(&message.payload) {
            Ok(sample) => sample,
            Err((reason, error)) => return made.fail(message, reason, error.to_owned()),
        };
        if let Err(error) = values.set(&trigger.sources, &value) {
            return made.fail(message, DropReason::Limit, error.to_string());
        }
        made.taken += 1;
        let before = runs.len();
        for number in &trigger.expressions {
            let expression = plan.expressions.get(*number);
            let Some(expression) = expression.filter(|expression| expression.is_ready(values)) else {
                continue;
            };
            runs.push(ExpressionRun {
                message,
                time_ms,
                number: *number,
                expression,
                begun: self.engine.begin(*number, expression, values),
            });
        }
        let begun = runs.len() - before;
        made.silent += usize::from(begun == 0);
        made.expanded += begun.saturating_sub(1);
    }

    /// Finishes expressions, and adds their results.
    fn run(&mut self, runs: Vec<ExpressionRun<'_>>, made: &mut BatchOutcome) {
        let begun: Vec<_> = runs
            .iter()
            .map(|run| (run.expression, run.number, &run.begun))
            .collect();
        let results = self.engine.finish(&begun);
        for (run, result) in runs.iter().zip(results) {
            let message = run.message;
            match result {
                Ok(Value::Null) => made.nothing += 1,
                Ok(value) => made.results.push(Message {
                    payload: Payload::Sample {
                        value,
                        time_ms: run.time_ms,
                    },
                    meta: self.metadata.of(&message.meta, run.number, &run.expression.topic),
                    failure: message.failure.clone(),
                    source: message.source,
                }),
                Err(failure) => self.fail(message, run.expression, failure, made),
            }
        }
    }

    /// One result is lost; the message's others are not.
    fn fail(&self, message: &Message, expression: &Expression, failure: EvaluationError, made: &mut BatchOutcome) {
        match failure.reason {
            DropReason::InvalidValue | DropReason::ScriptBadReturn => self.metrics.invalid_data_type.inc(),
            _ => self.metrics.javascript_errors.inc(),
        }
        let error = format!("JavaScript error in {}: {}", expression.path, failure.text);
        made.fail(message, failure.reason, error);
    }

    /// Settles every message, and passes the results on.
    fn settle(&mut self, made: BatchOutcome, mut ack: Ack, out: &mut Vec<Batch>) {
        let BatchOutcome {
            results,
            failed,
            foreign,
            silent,
            nothing,
            expanded,
            ..
        } = made;
        ack.expanded(expanded);
        for (reason, count) in [
            (FilterReason::KeyMismatch, foreign),
            (FilterReason::NoValue, silent),
            (FilterReason::ReturnedNull, nothing),
        ] {
            ack.filtered(reason, count);
        }
        for StreamFailure { message, reason, error } in failed {
            self.context.fail(&mut ack, message, reason, &error);
        }
        if let (Some(stats), Some(metrics)) = (self.engine.stats(), &mut self.script_metrics) {
            metrics.update(stats);
        }
        if results.is_empty() {
            return ack.delivered();
        }
        out.push(Batch::new(results, ack));
    }
}

impl BatchOutcome {
    fn fail(&mut self, message: &Message, reason: DropReason, error: String) {
        let message = message.clone();
        self.failed.push(StreamFailure { message, reason, error });
    }
}

#[cfg(test)]
mod tests;
