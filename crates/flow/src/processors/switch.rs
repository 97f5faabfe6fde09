//! `switch`: each message takes the processors of the first case whose check holds; a message that no case wants passes
//! unchanged.

use std::sync::Arc;

use thalweg_config::{ComponentNode, Fields};
use thalweg_mapping::Mapping;
use thalweg_record::{Batch, Failure, Message};

use super::nested::{Chain, ChainSpec};
use crate::Processor;
use crate::component::BuildError;
use crate::context::StageContext;
use crate::parse::{ParseContext, compile_error};
use crate::registry::ProcessorSpec;

struct CaseSpec {
    /// `None`: always.
    check: Option<Arc<Mapping>>,
    chain: ChainSpec,
    fallthrough: bool,
}

struct Spec(Vec<CaseSpec>);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> {
    let cases = match node.body.expect_seq() {
        Ok(cases) => cases.to_vec(),
        Err(error) => {
            context.diagnostics.error(&node.body, error);
            return None;
        }
    };
    let count = cases.len();
    let cases: Vec<CaseSpec> = cases
        .into_iter()
        .enumerate()
        .filter_map(|(i, case)| {
            let mut fields = Fields::new(&case, context.diagnostics);
            let check = fields.node("check");
            let processors = fields.required_node("processors");
            let fallthrough = fields.bool("fallthrough", false);
            fields.finish();
            let check = match check.filter(|check| !check.scalar_text().unwrap_or_default().is_empty()) {
                None => None,
                Some(check) => {
                    let compiled = Mapping::compile(check.scalar_text().unwrap_or_default());
                    Some(Arc::new(
                        compiled
                            .map_err(|error| compile_error(&check, &error, context.diagnostics))
                            .ok()?,
                    ))
                }
            };
            let chain = ChainSpec::parse(node, &processors?, &format!("{i}.processors"), context)?;
            Some(CaseSpec {
                check,
                chain,
                fallthrough,
            })
        })
        .collect();
    (cases.len() == count).then(|| Arc::new(Spec(cases)) as Arc<dyn ProcessorSpec>)
}

impl ProcessorSpec for Spec {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError> {
        let build = |case: &CaseSpec| {
            let chain = case.chain.build(&context)?;
            Ok(Case {
                check: case.check.clone(),
                chain,
                fallthrough: case.fallthrough,
            })
        };
        let cases = self.0.iter().map(build).collect::<Result<_, BuildError>>()?;
        Ok(Box::new(Switch { cases, context }))
    }
}

struct Case {
    check: Option<Arc<Mapping>>,
    chain: Chain,
    fallthrough: bool,
}

struct Switch {
    cases: Vec<Case>,
    context: StageContext,
}

impl Switch {
    /// The first case that wants a message; a check that fails flags it and does not hold.
    fn choose(&self, messages: &mut [Message], index: usize) -> Option<usize> {
        for (number, case) in self.cases.iter().enumerate() {
            match case.check.as_ref().map(|check| check.check(messages, index)) {
                None | Some(Ok(true)) => return Some(number),
                Some(Ok(false)) => {}
                Some(Err(error)) => {
                    let error = error.to_string();
                    self.context.flagged(1, &error);
                    if let Some(message) = messages.get_mut(index) {
                        let stage = self.context.component.title().into();
                        message.failure = Some(Arc::new(Failure {
                            stage,
                            error: error.into(),
                        }));
                    }
                }
            }
        }
        None
    }
}

impl Processor for Switch {
    fn process(&mut self, mut batch: Batch, out: &mut Vec<Batch>) {
        let choices: Vec<Option<usize>> = (0..batch.len())
            .map(|index| self.choose(&mut batch.messages, index))
            .collect();
        let Batch { messages, mut ack } = batch;
        // Runs of messages with the same choice stay together, so that order is kept.
        let mut messages = messages.into_iter().zip(choices).peekable();
        while let Some((message, choice)) = messages.next() {
            let mut run = vec![message];
            while let Some((message, _)) = messages.next_if(|(_, next)| *next == choice) {
                run.push(message);
            }
            let run_ack = ack.split(run.len());
            let mut results = vec![Batch::new(run, run_ack)];
            let mut next = choice;
            while let Some(case) = next.and_then(|number| self.cases.get_mut(number)) {
                results = results
                    .into_iter()
                    .flat_map(|batch| case.chain.process(batch))
                    .collect();
                next = if case.fallthrough {
                    next.map(|number| number + 1)
                } else {
                    None
                };
            }
            out.append(&mut results);
        }
        ack.delivered();
    }

    fn next_tick(&self) -> Option<std::time::Instant> {
        self.cases.iter().filter_map(|case| case.chain.next_tick()).min()
    }

    fn tick(&mut self, now: std::time::Instant, out: &mut Vec<Batch>) {
        self.cases.iter_mut().for_each(|case| case.chain.tick(now, out));
    }

    fn flush(&mut self, out: &mut Vec<Batch>) {
        self.cases.iter_mut().for_each(|case| case.chain.flush(out));
    }
}
