//! `broker`: several inputs that feed one flow. It ends when all of them have.

use std::sync::Arc;

use futures::future::join_all;
use thalweg_config::{ComponentKind, ComponentNode, Fields};

use crate::BoxFuture;
use crate::children::{self, Child};
use crate::component::{BuildContext, BuildError, Component};
use crate::input::{Connection, Input, InputContext, InputError};
use crate::parse::ParseContext;
use crate::registry::InputSpec;

struct Spec(Vec<Child<dyn InputSpec>>);

pub(super) fn parse(node: &ComponentNode, context: &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> {
    let fields = Fields::new(&node.body, context.diagnostics);
    let children = children::parse(node, fields, ComponentKind::Input, context, ParseContext::input)?;
    Some(Arc::new(Spec(children)))
}

impl InputSpec for Spec {
    fn build(&self, context: &BuildContext) -> Result<Box<dyn Input>, BuildError> {
        let build = |child: &Child<dyn InputSpec>| {
            let context = child.build_context(context);
            let input = child.spec.build(&context)?;
            Ok((context.component, input))
        };
        Ok(Box::new(Broker(
            self.0.iter().map(build).collect::<Result<_, BuildError>>()?,
        )))
    }
}

struct Broker(Vec<(Component, Box<dyn Input>)>);

impl Input for Broker {
    fn run(self: Box<Self>, context: InputContext) -> BoxFuture<'static, Result<(), InputError>> {
        Box::pin(async move {
            let mut connections = Vec::new();
            let mut running = Vec::new();
            for (component, input) in self.0 {
                let connection = Connection::new(&component, "input");
                connections.push((component.clone(), connection.clone()));
                let (sink, stop) = (context.sink.clone(), context.stop.clone());
                running.push(tokio::spawn(input.run(InputContext {
                    component,
                    sink,
                    stop,
                    connection,
                })));
            }
            let watched = connections.clone();
            context.connection.show(move || {
                watched
                    .iter()
                    .flat_map(|(_, connection)| connection.details())
                    .collect()
            });
            let follow = follow(&connections, &context.connection);
            let all = join_all(running);
            tokio::pin!(all);
            let results = tokio::select! {
                results = &mut all => results,
                () = follow => unreachable!("connections are followed without end"),
            };
            let errors: Vec<String> = results
                .into_iter()
                .filter_map(|result| match result {
                    Ok(result) => result.err().map(|error| error.0),
                    Err(panic) => Some(format!("stopped by a fault in it: {panic}")),
                })
                .collect();
            if errors.is_empty() {
                Ok(())
            } else {
                Err(InputError(errors.join("; ")))
            }
        })
    }
}

/// The broker is connected when all of its inputs are.
async fn follow(children: &[(Component, Connection)], own: &Connection) {
    let mut timer = tokio::time::interval(std::time::Duration::from_millis(200));
    loop {
        timer.tick().await;
        let down = children
            .iter()
            .find_map(|(component, c)| Some(format!("{}: {}", component.title(), c.why_not()?)));
        match down {
            None => own.up(),
            Some(why) => own.lost(&why),
        }
    }
}
