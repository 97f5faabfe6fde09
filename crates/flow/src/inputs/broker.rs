//! `broker`: several inputs that feed one flow. It ends when all of them have ended.

use std::sync::Arc;

use futures::future::join_all;
use thalweg_config::{ComponentKind, ComponentNode, Fields};
use thalweg_record::SourceName;
use tokio_util::task::AbortOnDropHandle;

use crate::BoxFuture;
use crate::children;
use crate::component::{BuildContext, BuildError, Component};
use crate::connection::Connection;
use crate::input::{Input, InputContext, InputError, Sink, SinkMetrics};
use crate::metrics::{INPUT_CONNECTION, INPUT_RECEIVED};
use crate::named_spec::NamedSpec;
use crate::parse::ParseContext;
use crate::registry::InputSpec;
use crate::runtime::NodeCounters;

struct BrokerInputSpec(Vec<NamedSpec<dyn InputSpec>>);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let fields = Fields::new(&node.body, context.diagnostics);
    let children = children::parse(node, fields, ComponentKind::Input, context, ParseContext::input)?;
    Some(Arc::new(BrokerInputSpec(children)))
}

impl InputSpec for BrokerInputSpec {
    fn build(&self, context: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        let build = |child: &NamedSpec<dyn InputSpec>| {
            let context = child.build_context(context);
            let component = context.component.clone();
            let connection = Connection::new(&component, &INPUT_CONNECTION);
            let received = component.counter(&INPUT_RECEIVED);
            let nodes = &context.scope.nodes;
            nodes.add(NodeCounters::input(&component, received, connection.clone()));
            let input = child.spec.build(&context)?;
            Ok(BrokerSource {
                component,
                connection,
                input,
            })
        };
        Ok(Box::new(BrokerInput(
            self.0.iter().map(build).collect::<Result<_, BuildError>>()?,
        )))
    }

    fn waits_for_answers(&self) -> Option<&'static str> {
        self.0.iter().find_map(|child| child.spec.waits_for_answers())
    }
}

struct BrokerSource {
    component: Component,
    connection: Connection,
    input: Box<dyn Input>,
}

struct BrokerInput(Vec<BrokerSource>);

impl Input for BrokerInput {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            let connections: Vec<_> = self
                .0
                .iter()
                .map(|source| (source.component.clone(), source.connection.clone()))
                .collect();
            context.connection.follow(connections.clone());
            context.connection.show(move || {
                connections
                    .iter()
                    .flat_map(|(_, connection)| connection.details())
                    .collect()
            });
            context.connection.up();
            // Each input has its own task, which is aborted if this one ends early.
            let running = self.0.into_iter().map(|source| {
                let title = source.component.title().to_owned();
                let task = AbortOnDropHandle::new(tokio::spawn(source.start(&context)));
                async move {
                    match task.await {
                        Ok(Ok(())) => None,
                        Ok(Err(error)) => Some(format!("{title}: {error}")),
                        Err(panic) => Some(format!("{title} was stopped by an internal error: {panic}")),
                    }
                }
            });
            let running: Vec<_> = running.collect();
            let errors: Vec<String> = join_all(running).await.into_iter().flatten().collect();
            if errors.is_empty() {
                Ok(())
            } else {
                Err(InputError(errors.join("; ")))
            }
        })
    }
}

impl BrokerSource {
    fn start(self, outer: &InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        let metrics = SinkMetrics::new(&self.component, outer.sink.metrics.flow_latency.clone());
        let sink = Sink {
            metrics: Arc::new(metrics),
            outer: Some(outer.sink.metrics.clone()),
            source: SourceName::new(self.component.title()),
            ..outer.sink.clone()
        };
        self.input.run(InputContext {
            component: self.component,
            sink,
            stop: outer.stop.clone(),
            connection: self.connection,
        })
    }
}
