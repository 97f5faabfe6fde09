//! `broker`: one flow into several outputs. `fan_out` gives every message to all of them, and a message is delivered when
//! all have it; `round_robin` and `greedy` give each batch to one of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::join_all;
use thalweg_config::{ComponentKind, ComponentNode, Fields};
use thalweg_record::Message;

use crate::BoxFuture;
use crate::backoff::Pauses;
use crate::children::{self, Child};
use crate::component::{BuildContext, BuildError, Component};
use crate::input::Connection;
use crate::output::{Output, OutputContext, Rejection, WriteError};
use crate::parse::ParseContext;
use crate::registry::OutputSpec;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    FanOut,
    FanOutSequential,
    RoundRobin,
    Greedy,
}

struct Spec {
    pattern: Pattern,
    children: Vec<Child<dyn OutputSpec>>,
}

const PATTERNS: [(&str, Pattern); 4] = [
    ("fan_out", Pattern::FanOut),
    ("fan_out_sequential", Pattern::FanOutSequential),
    ("round_robin", Pattern::RoundRobin),
    ("greedy", Pattern::Greedy),
];

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let diagnostics = context.diagnostics;
    let mut fields = Fields::new(&node.body, diagnostics);
    let name = fields.one_of("pattern", &PATTERNS.map(|(name, _)| name), "fan_out");
    let pattern = PATTERNS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or(Pattern::FanOut, |(_, pattern)| *pattern);
    let children = children::parse(node, fields, ComponentKind::Output, context, ParseContext::output)?;
    Some(Arc::new(Spec { pattern, children }))
}

impl OutputSpec for Spec {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        let build = |child: &Child<dyn OutputSpec>| {
            let context = child.build_context(context);
            let output = child.spec.build(&context)?;
            let connection = Connection::new(&context.component, "output");
            Ok(Target {
                component: context.component,
                connection,
                output,
            })
        };
        let targets = self
            .children
            .iter()
            .map(build)
            .collect::<Result<Arc<[_]>, BuildError>>()?;
        Ok(Arc::new(Broker {
            pattern: self.pattern,
            targets,
            next: AtomicUsize::new(0),
        }))
    }
}

struct Target {
    component: Component,
    connection: Connection,
    output: Arc<dyn Output>,
}

struct Broker {
    pattern: Pattern,
    targets: Arc<[Target]>,
    next: AtomicUsize,
}

type Write = BoxFuture<'static, Result<(), WriteError>>;

impl Output for Broker {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            let contexts: Vec<OutputContext> = self
                .targets
                .iter()
                .map(|target| OutputContext {
                    component: target.component.clone(),
                    connection: target.connection.clone(),
                    stop: context.stop.clone(),
                })
                .collect();
            let opening = self
                .targets
                .iter()
                .zip(&contexts)
                .map(|(target, context)| target.output.open(context));
            join_all(opening).await.into_iter().collect::<Result<(), String>>()?;
            let targets = self.targets.clone();
            context
                .connection
                .show(move || targets.iter().flat_map(|target| target.connection.details()).collect());
            context.connection.up();
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> Write {
        match self.pattern {
            Pattern::FanOut => {
                // Every call is made now, so that each output has the batch at its place in the order.
                let writes: Vec<Write> = self
                    .targets
                    .iter()
                    .map(|target| target.output.write(messages.clone()))
                    .collect();
                let targets = self.targets.clone();
                Box::pin(async move { fan_out(&targets, writes, &messages).await })
            }
            Pattern::FanOutSequential => {
                let targets = self.targets.clone();
                Box::pin(async move {
                    let mut rejections = Vec::new();
                    for target in targets.iter() {
                        merge(
                            &mut rejections,
                            settle(target, target.output.write(messages.clone()), &messages).await,
                        );
                    }
                    if rejections.is_empty() {
                        Ok(())
                    } else {
                        Err(WriteError::Some(rejections))
                    }
                })
            }
            // With one write in flight at a time, the first free output is the next one.
            Pattern::RoundRobin | Pattern::Greedy => {
                let number = self.next.fetch_add(1, Ordering::Relaxed) % self.targets.len();
                self.targets.get(number).map_or_else(
                    || Box::pin(std::future::ready(Ok(()))) as Write,
                    |target| target.output.write(messages),
                )
            }
        }
    }

    fn max_in_flight(&self) -> usize {
        let all = self.targets.iter().map(|target| target.output.max_in_flight());
        match self.pattern {
            Pattern::FanOut => all.min().unwrap_or(1),
            _ => 1,
        }
    }

    fn hurry(&self) {
        self.targets.iter().for_each(|target| target.output.hurry());
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            let closed = join_all(self.targets.iter().map(|target| target.output.close())).await;
            closed.into_iter().collect()
        })
    }
}

async fn fan_out(targets: &[Target], writes: Vec<Write>, messages: &Arc<Vec<Message>>) -> Result<(), WriteError> {
    let settled = targets
        .iter()
        .zip(writes)
        .map(|(target, write)| settle(target, write, messages));
    let mut rejections = Vec::new();
    for refused in join_all(settled).await {
        merge(&mut rejections, refused);
    }
    if rejections.is_empty() {
        Ok(())
    } else {
        Err(WriteError::Some(rejections))
    }
}

/// Repeats one output's write until it has every message or refused it for good: the others have theirs already and must
/// not get it twice.
async fn settle(target: &Target, mut write: Write, messages: &Arc<Vec<Message>>) -> Vec<Rejection> {
    let mut pauses = Pauses::new(target.output.backoff());
    let mut refused = Vec::new();
    // The messages still to be written, by their index in the batch.
    let mut left: Vec<usize> = (0..messages.len()).collect();
    loop {
        let (again, why) = match write.await {
            Ok(()) => (Vec::new(), String::new()),
            Err(WriteError::Temporary(why)) => (left.clone(), why),
            Err(WriteError::Some(rejections)) => {
                let mut again = Vec::new();
                let mut why = String::new();
                for rejection in rejections {
                    let Some(&index) = left.get(rejection.index) else {
                        continue;
                    };
                    if rejection.permanent.is_some() {
                        refused.push(Rejection { index, ..rejection });
                    } else {
                        again.push(index);
                        why = rejection.error;
                    }
                }
                (again, why)
            }
        };
        if again.is_empty() {
            target.connection.up();
            return refused;
        }
        target.connection.lost(&why);
        target
            .component
            .warn_limited("write_failed", 1, || format!("write failed, trying again: {why}"));
        tokio::time::sleep(pauses.after(again.len() < left.len())).await;
        left = again;
        let batch = left.iter().filter_map(|&index| messages.get(index).cloned()).collect();
        write = target.output.write(Arc::new(batch));
    }
}

/// A message that one output refuses is refused once, whatever the others did.
fn merge(all: &mut Vec<Rejection>, refused: Vec<Rejection>) {
    for rejection in refused {
        if !all.iter().any(|known| known.index == rejection.index) {
            all.push(rejection);
        }
    }
}
