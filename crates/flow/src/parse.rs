//! The context of configuration readers of components.

use std::sync::Arc;

use thalweg_config::{ComponentKind, ComponentNode, Config, Diagnostics, Node, nearest};
use thalweg_mapping::{CompileError, Interpolation};

use crate::chain::ChainSpec;
use crate::processed::{ProcessedInputSpec, ProcessedOutputSpec};
use crate::registry::{ComponentRegistry, InputSpec, OutputSpec, ProcessorSpec};

/// Passed down while a configuration is checked. Mistakes go to `diagnostics`, and reading continues to find all of
/// them.
pub struct ParseContext<'a> {
    pub diagnostics: &'a Diagnostics,
    pub registry: &'a ComponentRegistry,
    pub config: &'a Config,
    /// Nesting depth of resources, to stop resources that refer to each other in a cycle.
    pub(crate) depth: usize,
}

const DEPTH_MAX: usize = 32;

impl<'a> ParseContext<'a> {
    pub fn new(diagnostics: &'a Diagnostics, registry: &'a ComponentRegistry, config: &'a Config) -> ParseContext<'a> {
        ParseContext {
            diagnostics,
            registry,
            config,
            depth: 0,
        }
    }

    /// Reads an input with its own processors, which run between it and everything else.
    pub fn input(&mut self, node: &ComponentNode) -> Option<Arc<dyn InputSpec>> {
        let (chain, input) = self.input_and_chain(node)?;
        let chain = chain.unless_starved(&node.processors, input.as_ref(), self.diagnostics)?;
        Some(ProcessedInputSpec::unless_empty(chain, input))
    }

    fn input_and_chain(&mut self, node: &ComponentNode) -> Option<(ChainSpec, Arc<dyn InputSpec>)> {
        let chain = ChainSpec::read(&node.processors, self);
        let input = self.bare_input(node);
        Some((chain?, input?))
    }

    /// Reads an input without its own processors, which the caller runs.
    pub(crate) fn bare_input(&mut self, node: &ComponentNode) -> Option<Arc<dyn InputSpec>> {
        let registry = self.registry;
        self.nested(node, |context| registry.parse_input(node, context))
    }

    pub fn processor(&mut self, node: &ComponentNode) -> Option<Arc<dyn ProcessorSpec>> {
        let registry = self.registry;
        self.nested(node, |context| registry.parse_processor(node, context))
    }

    /// Reads an output with its own processors.
    pub fn output(&mut self, node: &ComponentNode) -> Option<Arc<dyn OutputSpec>> {
        let chain = ChainSpec::read(&node.processors, self);
        let output = self.bare_output(node);
        Some(ProcessedOutputSpec::unless_empty(chain?, output?))
    }

    /// Reads an output without its own processors, which the caller runs.
    pub(crate) fn bare_output(&mut self, node: &ComponentNode) -> Option<Arc<dyn OutputSpec>> {
        let registry = self.registry;
        self.nested(node, |context| registry.parse_output(node, context))
    }

    /// Checks a component that nothing uses yet. Whether processors at an input would deadlock it depends on the flow
    /// that uses it.
    pub fn check(&mut self, node: &ComponentNode) {
        match node.kind {
            ComponentKind::Input => drop(self.input_and_chain(node)),
            ComponentKind::Processor => drop(self.processor(node)),
            ComponentKind::Output => drop(self.output(node)),
            kind => self.diagnostics.error_at(
                node.name_pos,
                format!("this version has no {kind} components; remove \"{}\"", node.name),
            ),
        }
    }

    fn nested<T>(&mut self, node: &ComponentNode, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<T> {
        if self.depth >= DEPTH_MAX {
            self.too_deep(node);
            return None;
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }
}

impl ParseContext<'_> {
    fn too_deep(&self, node: &ComponentNode) {
        self.diagnostics.error_at(
            node.pos,
            format!("components are nested more than {DEPTH_MAX} deep; check whether resources form a circle"),
        );
    }

    /// Follows `resource: label` to the component that it names. Returns all components on the way, the outermost first
    /// and the target last, because each may have its own settings.
    pub(crate) fn resolve(&mut self, node: &ComponentNode) -> Option<Vec<ComponentNode>> {
        let mut way = vec![node.clone()];
        while let Some(last) = way.last().filter(|last| last.name == "resource").cloned() {
            if way.len() > DEPTH_MAX {
                self.too_deep(node);
                return None;
            }
            way.push(self.resource(&last, last.kind)?);
        }
        Some(way)
    }

    /// Returns the component that `resource: label` names; reports an unknown label.
    pub(crate) fn resource(&mut self, node: &ComponentNode, kind: ComponentKind) -> Option<ComponentNode> {
        let label = node.body.scalar_text().unwrap_or_default();
        let found = self.config.resources.find(kind, label).cloned();
        if found.is_none() {
            let known = self
                .config
                .resources
                .of(kind)
                .iter()
                .filter_map(|resource| resource.label.as_deref());
            let hint = nearest(label, known);
            self.diagnostics.error(
                &node.body,
                format!("no {kind} resource has the label \"{label}\"{hint}"),
            );
        }
        found
    }

    /// Compiles an interpolated text; reports a mistake at its position in the file.
    pub fn interpolation(&self, node: &Node) -> Option<Interpolation> {
        let text = node.expect_text().map_err(|error| self.diagnostics.error(node, error));
        Interpolation::compile(text.ok()?)
            .map_err(|error| compile_error(node, &error, self.diagnostics))
            .ok()
    }
}

/// Reports the mistakes of a mapping at their positions in the file.
pub(crate) fn compile_error(node: &Node, error: &CompileError, diagnostics: &Diagnostics) {
    for mistake in error.all() {
        let pos = node.text_pos(mistake.line, mistake.column);
        diagnostics.error_at(pos, &mistake.message);
    }
}
