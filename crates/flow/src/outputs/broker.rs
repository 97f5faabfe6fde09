//! `broker`: one flow into several outputs. `fan_out` writes every message to all of them, and a message is delivered
//! when all have it. With `_fail_fast` an output that fails does not repeat its write by itself: the messages are written
//! to all outputs again, also to those that have them. `round_robin` gives each batch to the next output in turn and waits
//! for it; `greedy` gives it to a free one, so the fastest outputs get the most.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use futures::future::{join_all, try_join_all};
use thalweg_config::{ComponentKind, ComponentNode, Fields};
use thalweg_record::Message;
use tokio::sync::Semaphore;

use crate::BoxFuture;
use crate::batching::Batching;
use crate::children;
use crate::component::{BuildContext, BuildError};
use crate::connection::Connection;
use crate::metrics::OUTPUT_CONNECTION;
use crate::named_spec::NamedSpec;
use crate::output::{OpenError, Output, OutputContext, Rejection, WriteError, all_but};
use crate::output_driver::{OpenFailure, OutputDriver, OutputMetrics, PermanentRejection, WriteFuture};
use crate::parse::ParseContext;
use crate::registry::OutputSpec;
use crate::runtime::NodeCounters;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokerPattern {
    FanOut,
    FanOutFailFast,
    FanOutSequential,
    FanOutSequentialFailFast,
    RoundRobin,
    Greedy,
}

struct BrokerOutputSpec {
    pattern: BrokerPattern,
    children: Vec<NamedSpec<dyn OutputSpec>>,
}

const PATTERNS: [(&str, BrokerPattern); 6] = [
    ("fan_out", BrokerPattern::FanOut),
    ("fan_out_fail_fast", BrokerPattern::FanOutFailFast),
    ("fan_out_sequential", BrokerPattern::FanOutSequential),
    ("fan_out_sequential_fail_fast", BrokerPattern::FanOutSequentialFailFast),
    ("round_robin", BrokerPattern::RoundRobin),
    ("greedy", BrokerPattern::Greedy),
];

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> {
    let diagnostics = context.diagnostics;
    let mut fields = Fields::new(&node.body, diagnostics);
    let name = fields.one_of("pattern", &PATTERNS.map(|(name, _)| name), "fan_out");
    let pattern = PATTERNS
        .iter()
        .find(|(known, _)| *known == name)
        .map_or(BrokerPattern::FanOut, |(_, pattern)| *pattern);
    let children = children::parse(node, fields, ComponentKind::Output, context, ParseContext::output)?;
    Some(Arc::new(BrokerOutputSpec { pattern, children }))
}

impl OutputSpec for BrokerOutputSpec {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError> {
        let build = |child: &NamedSpec<dyn OutputSpec>| {
            let context = child.build_context(context);
            let component = context.component.clone();
            let connection = Connection::new(&component, &OUTPUT_CONNECTION);
            let metrics = OutputMetrics::new(&component);
            let nodes = &context.scope.nodes;
            nodes.add(NodeCounters::output(&component, &metrics, connection.clone()));
            let output = child.spec.build(&context)?;
            let slots = Arc::new(Semaphore::new(output.max_in_flight().max(1)));
            let driven = OutputDriver {
                output,
                component,
                connection,
                metrics,
            };
            Ok(BrokerTarget { driven, slots })
        };
        let targets = self
            .children
            .iter()
            .map(build)
            .collect::<Result<Arc<[_]>, BuildError>>()?;
        Ok(Arc::new(BrokerOutput {
            pattern: self.pattern,
            targets,
            next: AtomicUsize::new(0),
        }))
    }

    fn stores_bad_values(&self) -> bool {
        self.children.iter().any(|child| child.spec.stores_bad_values())
    }
}

#[derive(Clone)]
struct BrokerTarget {
    driven: OutputDriver,
    /// One permit per write that may be in flight. Used only where a batch goes to one of several outputs.
    slots: Arc<Semaphore>,
}

struct BrokerOutput {
    pattern: BrokerPattern,
    targets: Arc<[BrokerTarget]>,
    /// The index of the next output in turn.
    next: AtomicUsize,
}

impl Output for BrokerOutput {
    fn open<'a>(&'a self, context: &'a OutputContext) -> BoxFuture<'a, Result<(), OpenError>> {
        Box::pin(async move {
            let connections = self.targets.iter().map(|BrokerTarget { driven, .. }| {
                let (component, connection) = (&driven.component, &driven.connection);
                (component.clone(), connection.clone())
            });
            context.connection.follow(connections.collect());
            // Each output is opened until it succeeds, so that outputs that are already open are not opened again.
            let opening = self.targets.iter().map(|target| async {
                let opened = target.driven.open(&context.stop).await;
                opened.map_err(|error| match error {
                    OpenFailure::GivenUp => OpenError::Temporary("the shutdown time is over".to_owned()),
                    OpenFailure::Never(why) => OpenError::Permanent(target.name_in(why)),
                })
            });
            try_join_all(opening).await?;
            context.connection.up();
            Ok(())
        })
    }

    fn write(&self, messages: Arc<Vec<Message>>) -> WriteFuture {
        match self.pattern {
            BrokerPattern::FanOut => self.fan_out(messages),
            BrokerPattern::FanOutFailFast => self.fan_out_once(messages),
            BrokerPattern::FanOutSequential => self.one_after_the_other(messages),
            BrokerPattern::FanOutSequentialFailFast => self.each_once(messages),
            BrokerPattern::RoundRobin | BrokerPattern::Greedy => self.to_one(messages),
        }
    }

    fn max_in_flight(&self) -> usize {
        let all = self.targets.iter().map(|target| target.driven.output.max_in_flight());
        match self.pattern {
            BrokerPattern::FanOut => all.min().unwrap_or(1),
            // A batch that is repeated must not come behind a later one.
            BrokerPattern::FanOutFailFast
            | BrokerPattern::FanOutSequential
            | BrokerPattern::FanOutSequentialFailFast => 1,
            BrokerPattern::RoundRobin | BrokerPattern::Greedy => all.sum(),
        }
    }

    fn joins(&self) -> usize {
        match self.pattern {
            // Joined batches would all go to the same output.
            BrokerPattern::RoundRobin | BrokerPattern::Greedy => 1,
            _ => {
                let all = self.targets.iter().map(|target| target.driven.output.joins());
                all.min().unwrap_or(1)
            }
        }
    }

    fn batching(&self) -> Option<Batching> {
        let all = self.targets.iter().map(|target| target.driven.output.batching());
        all.fold(None, Batching::both)
    }

    fn hurry(&self) {
        self.targets.iter().for_each(|target| target.driven.output.hurry());
    }

    fn close(&self) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async {
            let closed = join_all(self.targets.iter().map(|target| target.driven.output.close())).await;
            let errors: Vec<String> = self
                .targets
                .iter()
                .zip(closed)
                .filter_map(|(target, closed)| Some(target.name_in(closed.err()?)))
                .collect();
            match errors.is_empty() {
                true => Ok(()),
                false => Err(errors.join("; ")),
            }
        })
    }
}

impl BrokerOutput {
    /// Starts every write now, so that each output has the batch at its place in the order.
    fn start_all(&self, messages: &Arc<Vec<Message>>) -> (Arc<[BrokerTarget]>, Vec<WriteFuture>) {
        let writes = self.targets.iter().map(|target| target.driven.start(messages));
        (self.targets.clone(), writes.collect())
    }

    fn fan_out(&self, messages: Arc<Vec<Message>>) -> WriteFuture {
        let (targets, writes) = self.start_all(&messages);
        Box::pin(async move {
            let finished = targets
                .iter()
                .zip(writes)
                .map(|(target, write)| target.finish(write, &messages));
            let mut rejections = Vec::new();
            for refused in try_join_all(finished).await? {
                merge(&mut rejections, refused);
            }
            all_but(rejections)
        })
    }

    fn fan_out_once(&self, messages: Arc<Vec<Message>>) -> WriteFuture {
        let (targets, writes) = self.start_all(&messages);
        Box::pin(async move {
            let attempts = targets
                .iter()
                .zip(writes)
                .map(|(target, write)| target.attempt(write, &messages));
            let mut rejections: Vec<Rejection> = Vec::new();
            let mut failed = None;
            for result in join_all(attempts).await {
                match result {
                    Ok(()) => {}
                    Err(WriteError::Some(more)) => rejections.extend(more),
                    Err(WriteError::Permanent(why)) => return Err(WriteError::Permanent(why)),
                    Err(WriteError::Temporary(why)) => failed = Some(why),
                }
            }
            match failed {
                Some(why) => Err(WriteError::Temporary(why)),
                None => all_but(once_each(rejections)),
            }
        })
    }

    fn each_once(&self, messages: Arc<Vec<Message>>) -> WriteFuture {
        let targets = self.targets.clone();
        Box::pin(async move {
            let mut rejections: Vec<Rejection> = Vec::new();
            for target in targets.iter() {
                let write = target.driven.start(&messages);
                match target.attempt(write, &messages).await {
                    Ok(()) => {}
                    // The outputs behind this one get nothing before this one has everything that it takes.
                    Err(WriteError::Some(more)) => match more.iter().find(|one| one.permanent.is_none()) {
                        Some(rejection) => return Err(WriteError::Temporary(rejection.error.clone())),
                        None => rejections.extend(more),
                    },
                    Err(error) => return Err(error),
                }
            }
            all_but(once_each(rejections))
        })
    }

    fn one_after_the_other(&self, messages: Arc<Vec<Message>>) -> WriteFuture {
        let targets = self.targets.clone();
        Box::pin(async move {
            let mut rejections = Vec::new();
            for target in targets.iter() {
                let write = target.driven.start(&messages);
                merge(&mut rejections, target.finish(write, &messages).await?);
            }
            all_but(rejections)
        })
    }

    fn to_one(&self, messages: Arc<Vec<Message>>) -> WriteFuture {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let free = |target: &&BrokerTarget| target.slots.available_permits();
        let chosen = match self.pattern {
            // Among equally free outputs the first one is chosen: max_by_key returns the last maximum, hence the
            // reversal.
            BrokerPattern::Greedy => self
                .targets
                .iter()
                .rev()
                .max_by_key(free)
                .filter(|target| free(target) > 0),
            _ => None,
        };
        let Some(target) = chosen.or_else(|| self.targets.get(turn % self.targets.len().max(1))) else {
            return Box::pin(std::future::ready(Ok(())));
        };
        let target = target.clone();
        let mut slot = Box::pin(target.slots.clone().acquire_owned());
        // The first poll takes the place in the queue, or the slot; with the slot the write begins now.
        let first = slot.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let begun = first.is_ready().then(|| target.driven.start(&messages));
        Box::pin(async move {
            let _slot = match first {
                Poll::Ready(slot) => slot,
                Poll::Pending => slot.await,
            };
            let write = begun.unwrap_or_else(|| target.driven.start(&messages));
            let refused = target.finish(write, &messages).await?;
            all_but(refused.into_iter().map(Rejection::from).collect())
        })
    }
}

impl BrokerTarget {
    /// Repeats this output's write until every message is written or permanently rejected: the other outputs already
    /// have theirs and must not get them twice.
    async fn finish(
        &self,
        write: WriteFuture,
        messages: &Arc<Vec<Message>>,
    ) -> Result<Vec<PermanentRejection>, WriteError> {
        let finished = self.driven.finish(write, messages).await;
        let mut refused = finished.map_err(|why| WriteError::Permanent(self.name_in(why)))?;
        for refusal in &mut refused {
            refusal.error = self.name_in(std::mem::take(&mut refusal.error));
        }
        Ok(refused)
    }

    /// Makes one attempt of this output's write.
    async fn attempt(&self, write: WriteFuture, messages: &Arc<Vec<Message>>) -> Result<(), WriteError> {
        let result = self.driven.attempt(write, messages).await;
        result.map_err(|error| match error {
            WriteError::Temporary(why) => WriteError::Temporary(self.name_in(why)),
            WriteError::Permanent(why) => WriteError::Permanent(self.name_in(why)),
            WriteError::Some(mut rejections) => {
                for rejection in &mut rejections {
                    rejection.error = self.name_in(std::mem::take(&mut rejection.error));
                }
                WriteError::Some(rejections)
            }
        })
    }

    fn name_in(&self, why: String) -> String {
        format!("{}: {why}", self.driven.component.title())
    }
}

/// A message that several outputs reject is rejected once, and for good if one of them refuses it for good: it would
/// do so again.
fn once_each(mut rejections: Vec<Rejection>) -> Vec<Rejection> {
    rejections.sort_by_key(|rejection| (rejection.index, rejection.permanent.is_none()));
    rejections.dedup_by_key(|rejection| rejection.index);
    rejections
}

/// A message that several outputs reject is rejected once.
fn merge(all: &mut Vec<Rejection>, refused: Vec<PermanentRejection>) {
    for refusal in refused {
        if !all.iter().any(|known| known.index == refusal.index) {
            all.push(refusal.into());
        }
    }
}
