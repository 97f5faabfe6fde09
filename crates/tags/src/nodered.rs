//! `nodered_js`: runs one script on each message, which determines the resulting messages.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_config::{ComponentNode, Fields};
use thalweg_flow::{BuildError, ParseContext, Processor, ProcessorSpec, StageContext};
use thalweg_record::{Ack, Batch, DropReason, FilterReason, Message, Payload};
use thalweg_script::{
    CallFailure, CallOutcome, Failure, FailureKind, NOT_A_MESSAGE, NOT_ALL_MESSAGES, PayloadReply, Program, Reply,
    Script, ScriptCall, ScriptForm, ScriptOutput, UndefinedMeta,
};
use thalweg_telemetry::{COMPONENT_LABELS, IntCounter, MetricDoc, metric_group};

use crate::datatype::json_value;
use crate::metrics::{MESSAGES_DROPPED, MESSAGES_ERRORED, MESSAGES_PROCESSED};
use crate::scripting::{ScriptMetrics, ScriptSource, Scripts, check, reason};

const STAGE: &str = "nodered_js";
const NOT_FINITE: &str = "the payload is NaN or infinite, which has no JSON form";
const BAD_RETURN: &str = "function must return a message object or null";

struct NodeRedSpec {
    scripts: Scripts,
}

pub(crate) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let mut fields = Fields::new(&node.body, context.diagnostics);
    let code = fields.required_string("code");
    let place = fields.mapping().get("code").cloned();
    fields.finish();
    let source = ScriptSource {
        script: Script {
            stage: STAGE.to_owned(),
            form: ScriptForm::Body,
            code,
        },
        node: place?,
        label: "code: ".to_owned(),
    };
    if !check(
        std::slice::from_ref(&source),
        "failed to compile JavaScript ",
        &context.config.scripting,
        context.diagnostics,
    ) {
        return None;
    }
    Some(Arc::new(NodeRedSpec {
        scripts: Scripts::new(vec![source.script], &context.config.scripting, &[])
            .with_undefined_meta(UndefinedMeta::Absent),
    }))
}

impl ProcessorSpec for NodeRedSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        let counter = |doc: &MetricDoc| context.component.counter(doc);
        let program = self.scripts.build(&context)?;
        let program = program.ok_or_else(|| BuildError::new("nodered_js has no code"))?;
        Ok(Box::new(NodeRed {
            script_metrics: ScriptMetrics::new(&context),
            program,
            called: Vec::new(),
            processed: counter(&PROCESSED),
            errored: counter(&ERRORED),
            dropped: counter(&DROPPED),
            context,
        }))
    }
}

/// Capacity for the results of this many calls is kept from batch to batch.
const ROOM_MAX: usize = 1 << 14;

metric_group! {
    pub(crate) NODERED_METRICS("Processor `nodered_js`", COMPONENT_LABELS) {
        PROCESSED = MESSAGES_PROCESSED.meaning("Messages that the script returned.");
        ERRORED = MESSAGES_ERRORED.meaning("Messages that the script failed on.");
        DROPPED = MESSAGES_DROPPED.meaning("Messages for which the script returned nothing.");
    }
}

struct NodeRed {
    program: Box<dyn Program>,
    called: Vec<Result<CallOutcome, CallFailure>>,
    script_metrics: ScriptMetrics,
    processed: IntCounter,
    errored: IntCounter,
    dropped: IntCounter,
    context: StageContext,
}

impl Processor for NodeRed {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        let Batch { messages, mut ack } = batch;
        let mut results = Vec::with_capacity(messages.len());
        let mut filtered = 0;
        let mut calls = messages.iter().map(|message| ScriptCall {
            condition: None,
            script: 0,
            message,
            origin: &message.meta,
        });
        self.program.call_all(&mut calls, &mut self.called);
        let mut called = std::mem::take(&mut self.called);
        for (message, called) in messages.into_iter().zip(called.drain(..)) {
            let returned = match called {
                Ok(CallOutcome::Returned(returned)) => Ok(returned),
                Ok(CallOutcome::Skipped) => Ok(ScriptOutput::Nothing),
                Err(failed) => Err(failed.failure),
            };
            match returned {
                Ok(ScriptOutput::Nothing) => filtered += 1,
                Ok(ScriptOutput::One(reply)) => self.add(message, reply, &mut results, &mut ack),
                Ok(ScriptOutput::Over(map)) => {
                    let meta = message.meta.with_shared(map);
                    results.push(Message { meta, ..message });
                }
                Ok(ScriptOutput::Many(replies)) => {
                    ack.expanded(replies.len().saturating_sub(1));
                    for reply in replies {
                        self.add(message.clone(), reply, &mut results, &mut ack);
                    }
                }
                Err(failure) => {
                    self.errored.inc();
                    let (reason, error) = (reason(failure.kind), failure_text(&failure));
                    self.context.fail(&mut ack, message, reason, &error);
                }
            }
        }
        called.shrink_to(ROOM_MAX);
        self.called = called;
        if filtered > 0 {
            self.dropped.inc_by(filtered as u64);
            ack.filtered(FilterReason::ReturnedNull, filtered);
        }
        self.script_metrics.update(self.program.stats());
        self.processed.inc_by(results.len() as u64);
        if results.is_empty() {
            return ack.delivered();
        }
        out.push(Batch::new(results, ack));
    }
}

impl NodeRed {
    /// Adds a resulting message. If it cannot be written as JSON, the original message fails.
    fn add(&self, message: Message, reply: Reply, results: &mut Vec<Message>, ack: &mut Ack) {
        let payload = match reply.payload {
            PayloadReply::Same | PayloadReply::Again => None,
            PayloadReply::Missing => Some(Payload::Raw(Bytes::new())),
            PayloadReply::New(value) => match json_value(value) {
                Some(value) => Some(Payload::Value(value)),
                None => {
                    self.errored.inc();
                    return self.context.fail(ack, message, DropReason::InvalidValue, NOT_FINITE);
                }
            },
        };
        let mut result = message;
        if let Some(payload) = payload {
            result.payload = payload;
        }
        reply.meta.apply(&mut result.meta);
        results.push(result);
    }
}

fn failure_text(failure: &Failure) -> String {
    let text = match failure.text.as_str() {
        NOT_A_MESSAGE | NOT_ALL_MESSAGES if failure.kind == FailureKind::BadReturn => BAD_RETURN,
        text => text,
    };
    format!("JavaScript error in {STAGE}: {text}")
}

#[cfg(test)]
mod tests;
