//! `switch`: each message takes the processors of the first case whose check holds. A message without a matching case passes
//! unchanged; one whose check fails passes as well, flagged, because nobody knows which case is its own.

use std::sync::Arc;

use thalweg_config::{ComponentNode, Diagnostics, Fields, Node, kind};
use thalweg_mapping::Mapping;
use thalweg_record::{Batch, Message};

use crate::Processor;
use crate::chain::{Chain, ChainSpec};
use crate::component::BuildError;
use crate::context::StageContext;
use crate::parse::{ParseContext, compile_error};
use crate::registry::ProcessorSpec;

struct SwitchCaseSpec {
    /// `None` always holds.
    check: Option<Arc<Mapping>>,
    chain: ChainSpec,
    fallthrough: bool,
}

struct SwitchSpec(Vec<SwitchCaseSpec>);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let cases = match node.body.expect_seq() {
        Ok(cases) => cases.to_vec(),
        Err(error) => {
            context.diagnostics.error(&node.body, error);
            return None;
        }
    };
    let count = cases.len();
    let cases: Vec<SwitchCaseSpec> = cases
        .into_iter()
        .enumerate()
        .filter_map(|(i, case)| {
            let mut fields = Fields::new(&case, context.diagnostics);
            let check = fields.node("check", kind::PROGRAM);
            let processors = fields.required_node("processors", kind::PROCESSOR_LIST);
            let fallthrough = fields.bool("fallthrough", false);
            fields.finish();
            let check = match check {
                None => Some(None),
                Some(node) => compile(&node, context.diagnostics),
            };
            let chain = ChainSpec::parse(node, &processors?, &format!("{i}.processors"), context)?;
            Some(SwitchCaseSpec {
                check: check?,
                chain,
                fallthrough,
            })
        })
        .collect();
    (cases.len() == count).then(|| Arc::new(SwitchSpec(cases)) as Arc<dyn ProcessorSpec>)
}

/// An empty text means no check; `None` is a mistake, which is reported.
fn compile(check: &Node, diagnostics: &Diagnostics) -> Option<Option<Arc<Mapping>>> {
    let text = check
        .expect_text()
        .map_err(|error| diagnostics.error(check, error))
        .ok()?;
    if text.is_empty() {
        return Some(None);
    }
    let compiled = Mapping::compile(text).map_err(|error| compile_error(check, &error, diagnostics));
    Some(Some(Arc::new(compiled.ok()?)))
}

impl ProcessorSpec for SwitchSpec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        let build = |case: &SwitchCaseSpec| {
            let chain = case.chain.build_within(&context)?;
            Ok(SwitchCase {
                check: case.check.clone(),
                chain,
                fallthrough: case.fallthrough,
            })
        };
        let cases = self.0.iter().map(build).collect::<Result<_, BuildError>>()?;
        Ok(Box::new(SwitchProcessor { cases, context }))
    }

    fn joins_series(&self) -> bool {
        self.0.iter().any(|case| case.chain.joins_series())
    }

    fn holds_back(&self) -> Option<&'static str> {
        self.0.iter().find_map(|case| case.chain.holds_back())
    }
}

struct SwitchCase {
    check: Option<Arc<Mapping>>,
    chain: Chain,
    fallthrough: bool,
}

struct SwitchProcessor {
    cases: Vec<SwitchCase>,
    context: StageContext,
}

impl SwitchProcessor {
    /// Returns the first matching case. A check that fails flags the message, and no case after it is tried.
    fn choose(&self, messages: &mut [Message], index: usize) -> Option<usize> {
        for (number, case) in self.cases.iter().enumerate() {
            match case.check.as_ref().map(|check| check.check(messages, index)) {
                None | Some(Ok(true)) => return Some(number),
                Some(Ok(false)) => {}
                Some(Err(error)) => {
                    let error = error.to_string();
                    if let Some(message) = messages.get_mut(index) {
                        self.context.flag(message, &error);
                    }
                    return None;
                }
            }
        }
        None
    }
}

impl Processor for SwitchProcessor {
    fn process(&mut self, mut batch: Batch, out: &mut Vec<Batch>) {
        let choices: Vec<Option<usize>> = (0..batch.len())
            .map(|index| self.choose(&mut batch.messages, index))
            .collect();
        let Batch { messages, mut ack } = batch;
        // Consecutive messages with the same choice stay together, so that the order is kept.
        let mut messages = messages.into_iter().zip(choices).peekable();
        while let Some((message, choice)) = messages.next() {
            let mut run = vec![message];
            while let Some((message, _)) = messages.next_if(|(_, next)| *next == choice) {
                run.push(message);
            }
            let run_ack = ack.split(run.len());
            let batches = vec![Batch::new(run, run_ack)];
            match choice {
                None => out.extend(batches),
                Some(case) => self.run_from(case, batches, out),
            }
        }
        ack.delivered();
    }

    fn next_tick(&self) -> Option<std::time::Instant> {
        self.cases.iter().filter_map(|case| case.chain.next_tick()).min()
    }

    fn tick(&mut self, now: std::time::Instant, out: &mut Vec<Batch>) {
        self.release(out, |chain, released| chain.tick(now, released));
    }

    fn flush(&mut self, out: &mut Vec<Batch>) {
        self.release(out, Chain::flush);
    }
}

impl SwitchProcessor {
    /// Runs batches through the processors of a case, and of the following cases while each falls through.
    fn run_from(&mut self, first: usize, mut batches: Vec<Batch>, out: &mut Vec<Batch>) {
        for case in self.cases.iter_mut().skip(first) {
            batches = batches
                .into_iter()
                .flat_map(|batch| case.chain.process(batch))
                .collect();
            if !case.fallthrough {
                break;
            }
        }
        out.append(&mut batches);
    }

    /// Released messages continue as they would have without the delay.
    fn release(&mut self, out: &mut Vec<Batch>, what: impl Fn(&mut Chain, &mut Vec<Batch>)) {
        for at in 0..self.cases.len() {
            let mut released = Vec::new();
            let falls_through = self.cases.get_mut(at).is_some_and(|case| {
                what(&mut case.chain, &mut released);
                case.fallthrough
            });
            match falls_through {
                true => self.run_from(at + 1, released, out),
                false => out.append(&mut released),
            }
        }
    }
}
