//! `catch` runs its processors on flagged messages only and clears their flag; `try` stops processing a message at the
//! first processor that flags it.

use std::sync::Arc;

use thalweg_config::ComponentNode;
use thalweg_record::{Batch, Message};

use crate::Processor;
use crate::chain::{Chain, ChainSpec};
use crate::component::BuildError;
use crate::context::StageContext;
use crate::parse::ParseContext;
use crate::registry::ProcessorSpec;

struct CatchSpec(ChainSpec);

pub(super) fn parse_catch(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    Some(Arc::new(CatchSpec(ChainSpec::parse(node, &node.body, "", context)?)))
}

impl ProcessorSpec for CatchSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(CatchProcessor(self.0.build_within(&context)?)))
    }

    fn joins_series(&self) -> bool {
        self.0.joins_series()
    }

    fn holds_back(&self) -> Option<&'static str> {
        self.0.holds_back()
    }
}

struct CatchProcessor(Chain);

impl Processor for CatchProcessor {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        for (flagged, run) in runs(batch) {
            if !flagged {
                out.push(run);
                continue;
            }
            let caught = self.0.process(run);
            out.extend(caught.into_iter().map(cleared));
        }
    }

    fn next_tick(&self) -> Option<std::time::Instant> {
        self.0.next_tick()
    }

    fn tick(&mut self, now: std::time::Instant, out: &mut Vec<Batch>) {
        let mut released = Vec::new();
        self.0.tick(now, &mut released);
        out.extend(released.into_iter().map(cleared));
    }

    fn flush(&mut self, out: &mut Vec<Batch>) {
        let mut released = Vec::new();
        self.0.flush(&mut released);
        out.extend(released.into_iter().map(cleared));
    }
}

/// Removes the failure flags, because the failures have been handled.
fn cleared(mut batch: Batch) -> Batch {
    for message in &mut batch.messages {
        message.failure = None;
    }
    batch
}

/// Splits a batch between flagged and unflagged messages, so that the order is kept.
fn runs(batch: Batch) -> Vec<(bool, Batch)> {
    let Batch { messages, mut ack } = batch;
    let mut parts: Vec<(bool, Vec<Message>)> = Vec::new();
    for message in messages {
        let flagged = message.failure.is_some();
        match parts.last_mut() {
            Some((kind, part)) if *kind == flagged => part.push(message),
            _ => parts.push((flagged, vec![message])),
        }
    }
    let Some(last) = parts.pop() else {
        return vec![(false, Batch::new(Vec::new(), ack))];
    };
    let mut runs: Vec<(bool, Batch)> = Vec::with_capacity(parts.len() + 1);
    for (flagged, part) in parts {
        let part_ack = ack.split(part.len());
        runs.push((flagged, Batch::new(part, part_ack)));
    }
    runs.push((last.0, Batch::new(last.1, ack)));
    runs
}

struct TrySpec(Vec<ChainSpec>);

pub(super) fn parse_try(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    // One chain per step, so that a message can leave between two of them.
    let Ok(items) = node.body.expect_seq() else {
        context
            .diagnostics
            .error(&node.body, node.body.expected("a list of processors"));
        return None;
    };
    let nodes = node.children(
        &node.body,
        thalweg_config::ComponentKind::Processor,
        "",
        context.diagnostics,
    );
    let steps: Vec<ChainSpec> = nodes
        .into_iter()
        .filter_map(|step| ChainSpec::read([&step], context))
        .collect();
    (steps.len() == items.len()).then(|| Arc::new(TrySpec(steps)) as Arc<dyn ProcessorSpec>)
}

impl ProcessorSpec for TrySpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        Ok(Box::new(TryProcessor(
            self.0
                .iter()
                .map(|step| step.build_within(&context))
                .collect::<Result<_, _>>()?,
        )))
    }

    fn joins_series(&self) -> bool {
        self.0.iter().any(ChainSpec::joins_series)
    }

    fn holds_back(&self) -> Option<&'static str> {
        self.0.iter().find_map(ChainSpec::holds_back)
    }
}

struct TryProcessor(Vec<Chain>);

impl Processor for TryProcessor {
    fn process(&mut self, batch: Batch, out: &mut Vec<Batch>) {
        self.run_from(0, vec![batch], out);
    }

    fn next_tick(&self) -> Option<std::time::Instant> {
        self.0.iter().filter_map(Chain::next_tick).min()
    }

    fn tick(&mut self, now: std::time::Instant, out: &mut Vec<Batch>) {
        self.release(out, |step, released| step.tick(now, released));
    }

    fn flush(&mut self, out: &mut Vec<Batch>) {
        self.release(out, Chain::flush);
    }
}

impl TryProcessor {
    /// Runs batches through the steps from `first`; a message that is flagged skips the rest.
    fn run_from(&mut self, first: usize, mut batches: Vec<Batch>, out: &mut Vec<Batch>) {
        for step in self.0.iter_mut().skip(first) {
            let mut results = Vec::new();
            for (flagged, run) in batches.into_iter().flat_map(runs) {
                if flagged {
                    results.push(run);
                } else {
                    results.append(&mut step.process(run));
                }
            }
            batches = results;
        }
        out.append(&mut batches);
    }

    fn release(&mut self, out: &mut Vec<Batch>, what: impl Fn(&mut Chain, &mut Vec<Batch>)) {
        for at in 0..self.0.len() {
            let mut released = Vec::new();
            if let Some(step) = self.0.get_mut(at) {
                what(step, &mut released);
            }
            self.run_from(at + 1, released, out);
        }
    }
}
