//! A component's checked configuration with its name: the step between reading a file and building.

use std::sync::Arc;

use thalweg_config::ComponentNode;
use thalweg_telemetry::{ComponentId, Metrics};

use crate::component::Component;

/// A component's checked configuration, name, path and label.
pub(crate) struct NamedSpec<S: ?Sized> {
    pub name: String,
    pub path: String,
    pub label: String,
    pub spec: Arc<S>,
}

impl<S: ?Sized> NamedSpec<S> {
    pub fn new(node: &ComponentNode, spec: Arc<S>) -> NamedSpec<S> {
        NamedSpec {
            name: node.name.clone(),
            path: node.path.clone(),
            label: node.label.clone().unwrap_or_default(),
            spec,
        }
    }

    pub fn component(&self, flow: Option<&str>, metrics: &Arc<Metrics>) -> Component {
        let id = ComponentId {
            flow: flow.map(str::to_owned),
            path: self.path.clone(),
            label: self.label.clone(),
        };
        Component::new(&self.name, id, metrics.clone())
    }
}

impl<S: ?Sized> Clone for NamedSpec<S> {
    fn clone(&self) -> NamedSpec<S> {
        NamedSpec {
            name: self.name.clone(),
            path: self.path.clone(),
            label: self.label.clone(),
            spec: self.spec.clone(),
        }
    }
}
