//! `stream_processor`: tags that are computed from other tags.
//!
//! In come samples of several topics, the sources; out come samples of the topics that expressions make. Of each source the
//! latest value is kept, by arrival. A message of a source sets its value and then runs, in the order of the mapping, the
//! expressions that name it and those that name no source, each as soon as all that it names has a value.
//!
//! The values belong to the processor, not to a thread: instances share them under one lock, which a batch takes once. A flow
//! runs such a chain by one worker ([`ProcessorSpec::joins_series`]), so results leave in the order in which they were made.

mod config;
mod engine;
mod input;
mod metadata;
mod metrics;
mod values;

use std::sync::Arc;
use std::time::Instant;

use hashbrown::HashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;
use thalweg_flow::{BuildError, Processor, ProcessorSpec, StageContext};
use thalweg_record::{Ack, Batch, DropReason, FilterReason, Message, Payload, Text, Value, key};

pub(crate) use self::config::parse;
use self::engine::{EvaluationError, ExpressionEngine, PendingEvaluation};
use self::input::sample;
use self::metadata::ResultMetadata;
use self::metrics::StreamProcessorMetrics;
use self::values::SourceValues;
use crate::scripting::{ScriptMetrics, Scripts};

/// Results that go on together, as far as a message has no more: each message may run every expression, and what they make of
/// a batch is counted by no limit before the flow has it.
const RESULTS_MAX: usize = 10_000;

/// What the file says, with names as numbers: sources by their place in [`SourceValues`], expressions in the order of the mapping.
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
    /// Results of one message at most.
    fn results_max(&self) -> usize {
        let counts = self.topics.values().map(|trigger| trigger.expressions.len());
        counts.max().unwrap_or_default()
    }
}

struct Expression {
    /// Its place in the mapping, which is how errors call it.
    path: String,
    /// Of its results.
    topic: Text,
    /// The sources that it names.
    needs: SmallVec<[usize; 4]>,
    work: ExpressionBody,
}

impl Expression {
    /// Whether all sources that it names have a value.
    fn is_ready(&self, values: &SourceValues) -> bool {
        self.needs.iter().all(|source| values.get(*source).is_some())
    }
}

enum ExpressionBody {
    Constant(Value),
    /// The value of a source as it is, every digit of it.
    Source(usize),
    Script {
        number: usize,
        /// The sources by their names.
        variables: Vec<(Text, usize)>,
        /// It gives the same each time.
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

/// What the messages of a batch become.
#[derive(Default)]
struct BatchOutcome {
    results: Vec<Message>,
    failed: Vec<StreamFailure>,
    /// Messages whose topic no source names.
    foreign: usize,
    /// Messages of sources, whose value was taken.
    taken: usize,
    /// Those of them that ran nothing: no expression has all its values yet.
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

/// A message that cannot be taken, or once more for each of its expressions that fails.
struct StreamFailure {
    message: Message,
    reason: DropReason,
    error: String,
}

impl Processor for StreamProcessor {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let started = Instant::now();
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
        // What follows takes as long as scripts may take, and may wait for the dead letter.
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
    /// Takes the value of a message, and begins the expressions that it runs.
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

    /// Finishes expressions, and adds what comes of them.
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

    /// Tells the fate of every message, and passes the results on.
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
