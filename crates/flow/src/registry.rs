//! The component registry: names from the configuration to factories. Every crate with components adds them here; only
//! the assembly knows all of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_config::{ComponentKind, ComponentNode, Diagnostics, FlowConfig, Node, nearest};

use crate::buffer::BufferSpec;
use crate::component::{BuildContext, BuildError};
use crate::context::StageContext;
use crate::parse::ParseContext;
use crate::{Input, Output, Processor};

/// A checked input configuration; building only opens what the input needs.
pub trait InputSpec: Send + Sync {
    fn build(&self, context: &BuildContext) -> Result<Box<dyn Input>, BuildError>;

    /// For an input that delivers messages only while few earlier ones are unacknowledged: the setting that avoids
    /// this. Nothing after such an input may hold messages back ([`ProcessorSpec::holds_back`]), because the messages
    /// that would release them would never come.
    fn waits_for_answers(&self) -> Option<&'static str> {
        None
    }
}

/// A checked processor configuration. Built once per worker thread; instances that share state (a cache) get it from
/// the specification.
pub trait ProcessorSpec: Send + Sync {
    fn build(&self, context: StageContext) -> Result<Box<dyn Processor>, BuildError>;

    /// Whether it makes one series of several. Then their relative order matters, so one worker runs the whole chain:
    /// workers that share the state would still overtake each other on the way to the output.
    fn joins_series(&self) -> bool {
        false
    }

    /// The part that keeps messages unacknowledged until later ones arrive; `None` if there is none. Short waits, such
    /// as for the end of an interval, do not count.
    fn holds_back(&self) -> Option<&'static str> {
        None
    }
}

/// A checked output configuration.
pub trait OutputSpec: Send + Sync {
    fn build(&self, context: &BuildContext) -> Result<Arc<dyn Output>, BuildError>;

    /// Whether a message that has a status and no value is stored as that, so that inputs pass it on by default.
    fn stores_bad_values(&self) -> bool {
        false
    }
}

type Factory<S> = Box<dyn Fn(&ComponentNode, &mut ParseContext<'_>) -> Option<Arc<S>> + Send + Sync>;

type BufferFactory =
    Box<dyn Fn(&Node, &FlowConfig, &mut ParseContext<'_>) -> Option<Arc<dyn BufferSpec>> + Send + Sync>;

/// All components that a configuration may name.
#[derive(Default)]
pub struct ComponentRegistry {
    inputs: BTreeMap<&'static str, Factory<dyn InputSpec>>,
    processors: BTreeMap<&'static str, Factory<dyn ProcessorSpec>>,
    outputs: BTreeMap<&'static str, Factory<dyn OutputSpec>>,
    buffer: Option<BufferFactory>,
    references: Vec<ComponentReference>,
    /// Components that this build leaves out, with the cure.
    left_out: BTreeMap<&'static str, &'static str>,
}

/// What the reference says about a component.
#[derive(Clone, Copy, Debug)]
pub struct ComponentReference {
    pub kind: ComponentKind,
    pub name: &'static str,
    /// See [`thalweg_config::ReferenceText`].
    pub text: &'static str,
}

impl ComponentReference {
    fn new(kind: ComponentKind, name: &'static str, text: &'static str) -> ComponentReference {
        ComponentReference { kind, name, text }
    }
}

impl ComponentRegistry {
    /// Returns a registry with the components of this crate.
    pub fn new() -> ComponentRegistry {
        let mut registry = ComponentRegistry::default();
        crate::inputs::register(&mut registry);
        crate::processors::register(&mut registry);
        crate::outputs::register(&mut registry);
        registry
    }

    /// `reference` is the component's text in the reference ([`thalweg_config::ReferenceText`]). `factory` reads its
    /// configuration, reports every mistake to the context's diagnostics, and returns
    /// `None` if there was one.
    pub fn input<F>(&mut self, name: &'static str, reference: &'static str, factory: F)
    where
        F: Fn(&ComponentNode, &mut ParseContext<'_>) -> Option<Arc<dyn InputSpec>> + Send + Sync + 'static,
    {
        self.inputs.insert(name, Box::new(factory));
        self.references
            .push(ComponentReference::new(ComponentKind::Input, name, reference));
    }

    pub fn processor<F>(&mut self, name: &'static str, reference: &'static str, factory: F)
    where
        F: Fn(&ComponentNode, &mut ParseContext<'_>) -> Option<Arc<dyn ProcessorSpec>> + Send + Sync + 'static,
    {
        self.processors.insert(name, Box::new(factory));
        self.references
            .push(ComponentReference::new(ComponentKind::Processor, name, reference));
    }

    pub fn output<F>(&mut self, name: &'static str, reference: &'static str, factory: F)
    where
        F: Fn(&ComponentNode, &mut ParseContext<'_>) -> Option<Arc<dyn OutputSpec>> + Send + Sync + 'static,
    {
        self.outputs.insert(name, Box::new(factory));
        self.references
            .push(ComponentReference::new(ComponentKind::Output, name, reference));
    }

    /// Registers the buffer `queue` of a flow. The factory reads the fields of the node.
    pub fn buffer<F>(&mut self, reference: &'static str, factory: F)
    where
        F: Fn(&Node, &FlowConfig, &mut ParseContext<'_>) -> Option<Arc<dyn BufferSpec>> + Send + Sync + 'static,
    {
        self.buffer = Some(Box::new(factory));
        self.references
            .push(ComponentReference::new(ComponentKind::Buffer, "queue", reference));
    }

    /// Names that exist, but not in this build; a configuration with one is refused with the cure.
    pub fn leave_out(&mut self, names: &[&'static str], cure: &'static str) {
        self.left_out.extend(names.iter().map(|&name| (name, cure)));
    }

    /// The texts of all components, by kind and name.
    pub fn references(&self) -> Vec<ComponentReference> {
        let mut all = self.references.clone();
        all.sort_by_key(|reference| (reference.kind.as_str(), reference.name));
        all
    }

    pub fn input_names(&self) -> impl Iterator<Item = &'static str> {
        self.inputs.keys().copied()
    }

    pub fn processor_names(&self) -> impl Iterator<Item = &'static str> {
        self.processors.keys().copied()
    }

    pub fn output_names(&self) -> impl Iterator<Item = &'static str> {
        self.outputs.keys().copied()
    }

    pub(crate) fn parse_input(
        &self,
        node: &ComponentNode,
        context: &mut ParseContext<'_>,
    ) -> Option<Arc<dyn InputSpec>> {
        self.lookup(&self.inputs, "input", node, context.diagnostics)?(node, context)
    }

    pub(crate) fn parse_processor(
        &self,
        node: &ComponentNode,
        context: &mut ParseContext<'_>,
    ) -> Option<Arc<dyn ProcessorSpec>> {
        self.lookup(&self.processors, "processor", node, context.diagnostics)?(node, context)
    }

    pub(crate) fn parse_buffer(
        &self,
        node: &Node,
        flow: &FlowConfig,
        context: &mut ParseContext<'_>,
    ) -> Option<Arc<dyn BufferSpec>> {
        let Some(factory) = &self.buffer else {
            context.diagnostics.error(
                node,
                "there are no durable queues here; use `none: {}` or `memory: {limit: 500MiB}`",
            );
            return None;
        };
        factory(node, flow, context)
    }

    pub(crate) fn parse_output(
        &self,
        node: &ComponentNode,
        context: &mut ParseContext<'_>,
    ) -> Option<Arc<dyn OutputSpec>> {
        self.lookup(&self.outputs, "output", node, context.diagnostics)?(node, context)
    }

    fn lookup<'a, S: ?Sized>(
        &self,
        known: &'a BTreeMap<&'static str, Factory<S>>,
        kind: &str,
        node: &ComponentNode,
        diagnostics: &Diagnostics,
    ) -> Option<&'a Factory<S>> {
        let factory = known.get(node.name.as_str());
        if factory.is_none() {
            let name = &node.name;
            let why = match self.left_out.get(name.as_str()) {
                Some(cure) => format!("this build leaves out the {kind} \"{name}\"; {cure}"),
                None => format!("unknown {kind} \"{name}\"{}", nearest(name, known.keys().copied())),
            };
            diagnostics.error_at(node.name_pos, why);
        }
        factory
    }
}
