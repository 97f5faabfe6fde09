//! `tag_processor`: scripts assign messages their place in the namespace; the output is samples with a topic.
//!
//! A batch passes stage by stage: `defaults`, each condition, `advancedProcessing`, then the check of the required
//! fields and the construction of value, time and metadata. A message that fails at any point leaves alone, with its
//! reason; the others continue as one batch, in order.

mod config;
mod finish;
mod result_cache;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_flow::{Processor, StageContext};
use thalweg_record::{Ack, Batch, DropReason, FilterReason, Message, MetaMap, Metadata, Payload};
use thalweg_script::{
    CallFailure, CallOutcome, Failure, MetaReply, PayloadReply, Program, Reply, ScriptCall, ScriptOutput, payload_value,
};
use thalweg_telemetry::{COMPONENT_LABELS, IntCounter, metric_group};

use self::finish::Finisher;
use self::result_cache::ResultCache;
use crate::datatype::Provenance;
use crate::lost_value::lacks_value;
use crate::metrics::{MESSAGES_DROPPED, MESSAGES_ERRORED, MESSAGES_PROCESSED};
use crate::scripting::{self, ScriptMetrics};

pub(crate) use self::config::parse;

/// A step of the pipeline; numbers are those of the scripts.
#[derive(Clone, Debug)]
enum PipelineStep {
    Run(ScriptStage),
    When {
        condition: usize,
        name: String,
        then: ScriptStage,
    },
}

/// A script that determines the resulting messages.
#[derive(Clone, Debug)]
struct ScriptStage {
    script: usize,
    /// Its name in errors: `defaults`, `condition-0-then`, `advanced`.
    name: String,
    /// Whether it was already logged that this stage filters. Shared by all threads.
    told: Arc<AtomicBool>,
}

struct TagProcessor {
    context: StageContext,
    steps: Arc<[PipelineStep]>,
    program: Option<Box<dyn Program>>,
    script_metrics: Option<ScriptMetrics>,
    finisher: Finisher,
    at_hand: ResultCache,
    counters: TagProcessorMetrics,
    /// Messages of the current batch that leave it early.
    failed: Vec<StageFailure>,
    /// The messages between two stages, and an empty list with capacity for those after the next one.
    items: Vec<StageItem>,
    spare: Vec<StageItem>,
    /// Results of the calls of a stage.
    called: Vec<Result<CallOutcome, CallFailure>>,
}

/// Capacity for this many messages is kept from batch to batch.
const ROOM_MAX: usize = 1 << 14;

/// The cure for a payload that cannot become the value of a sample, with or without a script.
const VALUE_CURE: &str = "; let a script change msg.payload or msg.meta.datatype, or return null for the message (for NaN and \
                          infinity: if (!Number.isFinite(msg.payload)) return null)";

/// A message that failed in a stage or in the final check.
struct StageFailure {
    message: Message,
    reason: DropReason,
    error: String,
}

metric_group! {
    pub(crate) TAG_PROCESSOR_METRICS("Processor `tag_processor`", COMPONENT_LABELS) {
        PROCESSED = MESSAGES_PROCESSED.meaning("Messages emitted with a topic.");
        ERRORED = MESSAGES_ERRORED.meaning("Messages that a script or the final check failed on.");
        DROPPED = MESSAGES_DROPPED.meaning("Messages for which a script returned nothing.");
    }
}

/// The processor's own counters, shared by its instances.
struct TagProcessorMetrics {
    processed: IntCounter,
    errored: IntCounter,
    dropped: IntCounter,
}

/// A message between stages.
struct StageItem {
    message: Message,
    /// Its original metadata, once a stage has changed it.
    origin: Option<Metadata>,
    /// Its original bytes, as long as no script has replaced the payload.
    raw: Option<Payload>,
    /// A script set the payload, possibly to the same value.
    is_set: bool,
    /// It came with a status and without a value.
    lacks_value: bool,
}

impl Processor for TagProcessor {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let Batch { messages, mut ack } = batch;
        let results = self.results(messages, &mut ack);
        if let (Some(program), Some(metrics)) = (&self.program, &mut self.script_metrics) {
            metrics.update(program.stats());
        }
        for failed in self.failed.drain(..) {
            self.counters.errored.inc();
            let StageFailure { message, reason, error } = failed;
            match reason {
                DropReason::InvalidValue => {
                    let context = &self.context;
                    context.fail_with_cure(&mut ack, message, reason, &error, VALUE_CURE);
                }
                _ => self.context.fail(&mut ack, message, reason, &error),
            }
        }
        self.counters.processed.inc_by(results.len() as u64);
        if results.is_empty() {
            return ack.delivered();
        }
        out.push(Batch::new(results, ack));
    }
}

impl TagProcessor {
    /// Computes the resulting messages. Failed ones are in `self.failed` afterwards.
    fn results(&mut self, mut messages: Vec<Message>, ack: &mut Ack) -> Vec<Message> {
        self.finisher.begin();
        let (done, kept) = self.finish_at_hand(&mut messages);
        if done == messages.len() {
            messages.truncate(kept);
            return messages;
        }
        if done == 0 {
            return self.stagewise(messages, ack);
        }
        let rest = messages.split_off(done);
        messages.truncate(kept);
        messages.append(&mut self.stagewise(rest, ack));
        messages
    }

    /// Finishes messages in place, from the first one on, as long as their results are memoized. Returns how many were
    /// finished, and how many of these remain, at the front.
    fn finish_at_hand(&mut self, messages: &mut [Message]) -> (usize, usize) {
        let Some(program) = self.program.as_deref_mut() else {
            return (0, 0);
        };
        let (mut done, mut kept, mut scripts) = (0, 0, 0);
        while let Some(message) = messages.get_mut(done) {
            let results = self.finisher.results();
            let Some(whole) = self.at_hand.of(message, &self.steps, program, results) else {
                break;
            };
            let provenance = match whole.computes {
                _ if lacks_value(message) => Provenance::Absent,
                None => Provenance::Input,
                Some(script) => match compute(script, message, program) {
                    Some(provenance) => provenance,
                    None => break,
                },
            };
            scripts += whole.scripts;
            let (meta, hints) = (message.meta.with_shared(whole.map.clone()), whole.hints);
            let scripted = &whole.scripted;
            let payload = &message.payload;
            match self.finisher.sample(payload, &meta, hints, provenance, &self.context) {
                Ok(sample) => {
                    message.payload = sample;
                    message.meta = meta;
                    if kept != done {
                        messages.swap(kept, done);
                    }
                    kept += 1;
                }
                Err((reason, error)) => {
                    let mut message = message.clone();
                    let scripted = scripted.get(message.meta.shared_map()).clone();
                    message.meta = message.meta.with_shared(scripted);
                    self.failed.push(StageFailure { message, reason, error });
                }
            }
            done += 1;
        }
        if let Some(metrics) = &self.script_metrics {
            metrics.at_hand(scripts);
        }
        (done, kept)
    }

    /// Takes messages through all stages, one stage after the other, and replaces them with the results.
    fn stagewise(&mut self, mut messages: Vec<Message>, ack: &mut Ack) -> Vec<Message> {
        let steps = self.steps.clone();
        self.items.extend(messages.drain(..).map(StageItem::new));
        for step in steps.iter() {
            self.step(step, ack);
        }
        let mut items = std::mem::take(&mut self.items);
        for item in items.drain(..) {
            let provenance = item.provenance(!steps.is_empty());
            match self.finisher.finish(&item.message, provenance, &self.context) {
                Ok(message) => messages.push(message),
                Err((reason, error)) => self.fail(item, reason, error),
            }
        }
        items.shrink_to(ROOM_MAX);
        self.items = items;
        messages
    }

    fn step(&mut self, step: &PipelineStep, ack: &mut Ack) {
        let Some(program) = &mut self.program else { return };
        let (condition, stage) = match step {
            PipelineStep::Run(stage) => (None, stage),
            PipelineStep::When { condition, then, .. } => (Some(*condition), then),
        };
        let mut items = std::mem::take(&mut self.items);
        let mut next = std::mem::take(&mut self.spare);
        let mut called = std::mem::take(&mut self.called);
        let mut calls = items.iter().map(|item| ScriptCall {
            condition,
            script: stage.script,
            message: &item.message,
            origin: item.origin(),
        });
        program.call_all(&mut calls, &mut called);
        let mut filtered = 0;
        for (item, called) in items.drain(..).zip(called.drain(..)) {
            match called {
                Ok(CallOutcome::Skipped) => next.push(item),
                Ok(CallOutcome::Returned(returned)) => filtered += item.become_of(returned, &mut next, ack),
                Err(CallFailure {
                    is_of_condition,
                    failure,
                }) => {
                    let name = match step {
                        PipelineStep::When { name, .. } if is_of_condition => name,
                        _ => &stage.name,
                    };
                    self.fail_script(name, item, failure);
                }
            }
        }
        if filtered > 0 {
            self.filtered(stage, filtered, ack);
        }
        items.shrink_to(ROOM_MAX);
        called.shrink_to(ROOM_MAX);
        self.spare = items;
        self.called = called;
        self.items = next;
    }

    fn filtered(&self, stage: &ScriptStage, n: usize, ack: &mut Ack) {
        ack.filtered(FilterReason::ReturnedNull, n);
        self.counters.dropped.inc_by(n as u64);
        if !stage.told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                component = self.context.component.title(),
                "{} returned no message, so the message is filtered; if that is not meant, end the script with: return \
                 msg;",
                stage.name
            );
        }
    }

    fn fail_script(&mut self, stage: &str, item: StageItem, failure: Failure) {
        let error = format!("JavaScript error in {stage}: {}", failure.text);
        self.fail(item, scripting::reason(failure.kind), error);
    }

    fn fail(&mut self, item: StageItem, reason: DropReason, error: String) {
        let message = item.into_failed();
        self.failed.push(StageFailure { message, reason, error });
    }
}

/// Computes the payload of a message with the payload half of a script. `None` if that is not enough; the message is
/// then unchanged.
fn compute(script: usize, message: &mut Message, program: &mut dyn Program) -> Option<Provenance> {
    // Scripts see the parsed form of other payloads, which is created once for all stages.
    let Payload::Value(value) = &message.payload else {
        return None;
    };
    Some(match program.payload(script, value)? {
        PayloadReply::Same | PayloadReply::Missing => Provenance::Input,
        PayloadReply::Again => Provenance::Script,
        PayloadReply::New(value) => {
            message.payload = Payload::Value(value);
            Provenance::Script
        }
    })
}

impl StageItem {
    fn new(mut message: Message) -> StageItem {
        let lacks_value = lacks_value(&message);
        let raw = match &message.payload {
            // Every stage and the value itself need the parsed form, so it is created once.
            Payload::Raw(_) | Payload::Sample { .. } => {
                let value = Payload::Value(payload_value(&message.payload).into_owned());
                Some(std::mem::replace(&mut message.payload, value))
            }
            Payload::Value(_) => None,
        };
        StageItem {
            message,
            origin: None,
            raw,
            is_set: false,
            lacks_value,
        }
    }

    fn origin(&self) -> &Metadata {
        self.origin.as_ref().unwrap_or(&self.message.meta)
    }

    /// Another message from the same source, in its current state.
    fn copy(&self) -> StageItem {
        StageItem {
            message: self.message.clone(),
            origin: self.origin.clone(),
            raw: self.raw.clone(),
            is_set: self.is_set,
            lacks_value: self.lacks_value,
        }
    }

    /// Adds the results of a stage to `next`. Returns 1 if the message is filtered.
    fn become_of(mut self, returned: ScriptOutput, next: &mut Vec<StageItem>, ack: &mut Ack) -> usize {
        match returned {
            ScriptOutput::Nothing => return 1,
            ScriptOutput::One(reply) => {
                self.apply(reply);
                next.push(self);
            }
            ScriptOutput::Over(map) => {
                self.put_over(map);
                next.push(self);
            }
            ScriptOutput::Many(replies) => {
                ack.expanded(replies.len().saturating_sub(1));
                for reply in replies {
                    let mut one = self.copy();
                    one.apply(reply);
                    next.push(one);
                }
            }
        }
        0
    }

    fn put_over(&mut self, map: Arc<MetaMap>) {
        if Arc::ptr_eq(&map, self.message.meta.shared_map()) {
            return;
        }
        let meta = self.message.meta.with_shared(map);
        let before = std::mem::replace(&mut self.message.meta, meta);
        self.origin.get_or_insert(before);
    }

    fn apply(&mut self, reply: Reply) {
        let changes = match &reply.meta {
            MetaReply::Changes(changes) => !changes.is_empty(),
            MetaReply::Over(_) | MetaReply::Replaced(_) => true,
        };
        if changes {
            if self.origin.is_none() {
                self.origin = Some(self.message.meta.clone());
            }
            reply.meta.apply(&mut self.message.meta);
        }
        match reply.payload {
            PayloadReply::Same | PayloadReply::Missing => {}
            PayloadReply::Again => self.is_set = true,
            PayloadReply::New(value) => {
                self.message.payload = Payload::Value(value);
                self.raw = None;
                self.is_set = true;
            }
        }
    }

    /// The message for the dead letter output: with its original bytes, unless a script replaced them.
    fn into_failed(mut self) -> Message {
        if let Some(raw) = self.raw {
            self.message.payload = raw;
        }
        self.message
    }

    fn provenance(&self, scripted: bool) -> Provenance {
        if self.lacks_value {
            return Provenance::Absent;
        }
        match (self.is_set, scripted) {
            (true, _) => Provenance::Script,
            (false, true) => Provenance::Input,
            (false, false) => Provenance::Untouched,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
