//! Components: the inputs, processors, outputs, caches and rate limits of a flow.
//!
//! A component is a mapping with exactly one field that names it, such as `opcua: {...}`, beside an optional `label`
//! and, for inputs and outputs, `processors`. The owner of that name interprets the body; this module reads the shape,
//! the label and the place in the flow.

use std::fmt;

use crate::describe::FieldDoc;
use crate::diagnostics::Diagnostics;
use crate::kind;
use crate::names::quoted;
use crate::node::{Mapping, Node, ValueKind};
use crate::source::Pos;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ComponentKind {
    Input,
    Buffer,
    Processor,
    Output,
    Cache,
    RateLimit,
}

impl ComponentKind {
    pub fn as_str(self) -> &'static str {
        match self {
            ComponentKind::Input => "input",
            ComponentKind::Buffer => "buffer",
            ComponentKind::Processor => "processor",
            ComponentKind::Output => "output",
            ComponentKind::Cache => "cache",
            ComponentKind::RateLimit => "rate_limit",
        }
    }

    fn has_processors(self) -> bool {
        matches!(self, ComponentKind::Input | ComponentKind::Output)
    }

    /// An example of such a component, for messages.
    fn example(self) -> &'static str {
        match self {
            ComponentKind::Input => "stdin: {}",
            ComponentKind::Buffer => "none: {}",
            ComponentKind::Processor => "mapping: root = this",
            ComponentKind::Output => "stdout: {}",
            ComponentKind::Cache => "memory: {}",
            ComponentKind::RateLimit => "local: {count: 100}",
        }
    }

    /// How to combine several, for messages.
    fn several(self) -> &'static str {
        match self {
            ComponentKind::Input | ComponentKind::Output => ", or combine several with broker",
            ComponentKind::Processor => ", each processor is an entry of its own, after \"- \"",
            ComponentKind::Buffer | ComponentKind::Cache | ComponentKind::RateLimit => "",
        }
    }
}

impl fmt::Display for ComponentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The fields beside the name of a component, which [`ComponentNode::parse`] reads, for the reference.
pub fn common_fields() -> [FieldDoc; 2] {
    let field = |name: &str, kind: &str, default: Option<&str>| FieldDoc {
        name: name.to_owned(),
        kind: kind.to_owned(),
        default: default.map(str::to_owned),
        required: false,
    };
    [
        field("label", kind::TEXT, None),
        field("processors", kind::PROCESSOR_LIST, Some("[]")),
    ]
}

/// One component as written, not yet built.
#[derive(Debug, Clone)]
pub struct ComponentNode {
    pub kind: ComponentKind,
    /// The component's name, such as `opcua`.
    pub name: String,
    pub label: Option<String>,
    /// The value of the name: a mapping, a list or a scalar.
    pub body: Node,
    /// The processors of an input or output.
    pub processors: Vec<ComponentNode>,
    /// Position of the component.
    pub pos: Pos,
    /// Position of its name.
    pub name_pos: Pos,
    /// The place in the flow, as metrics show it: `root.pipeline.processors.0`.
    pub path: String,
}

impl ComponentNode {
    /// Reads the shape of a component. `None` if it has no name or more than one; an invalid label is reported and left
    /// out.
    pub fn parse(
        node: &Node,
        kind: ComponentKind,
        path: impl Into<String>,
        diags: &Diagnostics,
    ) -> Option<ComponentNode> {
        let path = path.into();
        let Some(mapping) = node.as_map() else {
            let what = format!("a mapping such as \"{}\"", kind.example());
            let hint = match node.as_str() {
                Some(text) if is_label(text) => format!("; for the {kind} {text} write \"{text}: {{}}\""),
                _ => String::new(),
            };
            diags.error(node, node.expected(&what) + &hint);
            return None;
        };
        let name = single_name(node, mapping, kind, diags)?;
        let (name_key, body) = mapping.entry(&name)?;
        let label = mapping.get("label").and_then(|label| read_label(label, diags));
        let processors = match mapping.get("processors") {
            Some(list) if kind.has_processors() => {
                let base = format!("{path}.processors");
                ComponentNode::parse_list(list, ComponentKind::Processor, &base, diags)
            }
            _ => Vec::new(),
        };
        Some(ComponentNode {
            kind,
            label,
            body: body.clone(),
            processors,
            pos: node.pos(),
            name_pos: name_key.pos(),
            path,
            name,
        })
    }

    /// Reads a list of components; entry `i` is at `<base>.<i>`.
    pub fn parse_list(list: &Node, kind: ComponentKind, base: &str, diags: &Diagnostics) -> Vec<ComponentNode> {
        if list.is_null() {
            return Vec::new();
        }
        match list.expect_seq() {
            Ok(items) => {
                let items = items.iter().enumerate();
                items
                    .filter_map(|(i, item)| Self::parse(item, kind, format!("{base}.{i}"), diags))
                    .collect()
            }
            Err(message) => {
                diags.error(list, message);
                Vec::new()
            }
        }
    }

    /// Reads a component inside this one's body. `steps` is its place there, such as `inputs.0`; its path becomes
    /// `<this path>.<this name>.<steps>`.
    pub fn child(&self, node: &Node, kind: ComponentKind, steps: &str, diags: &Diagnostics) -> Option<ComponentNode> {
        ComponentNode::parse(node, kind, self.child_path(steps), diags)
    }

    /// Reads a list of components inside this one's body; `steps` is the place of the list, empty if the body is the
    /// list, as in `try: [...]`.
    pub fn children(&self, list: &Node, kind: ComponentKind, steps: &str, diags: &Diagnostics) -> Vec<ComponentNode> {
        ComponentNode::parse_list(list, kind, &self.child_path(steps), diags)
    }

    fn child_path(&self, steps: &str) -> String {
        let dot = if steps.is_empty() { "" } else { "." };
        format!("{}.{}{dot}{steps}", self.path, self.name)
    }
}

/// The one field that is not `label` or `processors`.
fn single_name(node: &Node, mapping: &Mapping, kind: ComponentKind, diags: &Diagnostics) -> Option<String> {
    let is_common = |key: &str| key == "label" || (key == "processors" && kind.has_processors());
    let mut names = mapping.iter().map(|(key, _)| key).filter(|key| !is_common(key));
    let Some(first) = names.next() else {
        if !diags.is_describing() {
            let message = format!("no {kind} is named here; write for example \"{}\"", kind.example());
            diags.error(node, message);
        }
        return None;
    };
    if let Some(second) = names.next() {
        let message = format!(
            "two components, {} and {}, where one {kind} belongs; keep one{}",
            quoted(first),
            quoted(second),
            kind.several()
        );
        let path = node.path();
        let place = if path.is_empty() { path } else { format!("{path}: ") };
        diags.error_at(second.pos(), format!("{place}{message}"));
        return None;
    }
    Some(first.to_string())
}

fn is_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn read_label(node: &Node, diags: &Diagnostics) -> Option<String> {
    // In the reference system an empty label means "none".
    if node.kind() == ValueKind::Null || node.as_str() == Some("") {
        return None;
    }
    let label = match node.expect_text() {
        Ok(label) => label,
        Err(message) => {
            diags.error(node, message);
            return None;
        }
    };
    if !is_label(label) {
        diags.error(node, node.expected("a label of letters, digits and _"));
        return None;
    }
    if let Some(first) = diags.claim_label(label, node.pos(), &node.path()) {
        let place = if first == Pos::COMMAND_LINE {
            "on the command line".to_owned()
        } else {
            format!("on line {}", first.line)
        };
        diags.error(node, format!("duplicate label \"{label}\", first used {place}"));
        return None;
    }
    Some(label.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, kind: ComponentKind) -> (Option<ComponentNode>, String) {
        let diags = Diagnostics::new("f.yaml");
        let node = Node::parse(text).unwrap();
        let component = ComponentNode::parse(&node, kind, "root.x", &diags);
        (component, diags.to_string())
    }

    #[test]
    fn a_component_has_a_name_a_body_a_label_and_processors() {
        let text =
            "label: plc_1\nopcua:\n  endpoint: x\nprocessors:\n  - mapping: root = this\n  - try:\n      - log: {}\n";
        let (component, messages) = parse(text, ComponentKind::Input);
        assert_eq!(messages, "");
        let component = component.unwrap();
        assert_eq!(
            (component.name.as_str(), component.label.as_deref()),
            ("opcua", Some("plc_1"))
        );
        assert_eq!(component.name_pos, Pos { line: 2, column: 1 });
        assert_eq!(component.body.path(), "opcua");
        let paths: Vec<&str> = component.processors.iter().map(|p| p.path.as_str()).collect();
        assert_eq!(paths, ["root.x.processors.0", "root.x.processors.1"]);
        let try_ = &component.processors[1];
        let diags = Diagnostics::new("f.yaml");
        let inner = try_.children(&try_.body, ComponentKind::Processor, "", &diags);
        assert_eq!(inner[0].path, "root.x.processors.1.try.0");
        let cache = component.child(
            &try_.body.as_seq().unwrap()[0],
            ComponentKind::Cache,
            "inputs.0",
            &diags,
        );
        assert_eq!(cache.unwrap().path, "root.x.opcua.inputs.0");
    }

    #[test]
    fn shapes_that_are_no_component() {
        let cases = [
            (
                "stdin",
                ComponentKind::Input,
                "f.yaml:1:1: expected a mapping such as \"stdin: {}\", got the text \"stdin\"; for the input stdin write \"stdin: {}\"\n",
            ),
            (
                "[]",
                ComponentKind::Output,
                "f.yaml:1:1: expected a mapping such as \"stdout: {}\", got a list\n",
            ),
            (
                "label: x",
                ComponentKind::Processor,
                "f.yaml:1:1: no processor is named here; write for example \"mapping: root = this\"\n",
            ),
            (
                "a: {}\nb: {}\n",
                ComponentKind::Output,
                "f.yaml:2:1: two components, \"a\" and \"b\", where one output belongs; keep one, or combine several with broker\n",
            ),
            (
                "a: {}\nprocessors: []\n",
                ComponentKind::Cache,
                "f.yaml:2:1: two components, \"a\" and \"processors\", where one cache belongs; keep one\n",
            ),
            (
                "a: {}\nlabel: no-good\n",
                ComponentKind::Cache,
                "f.yaml:2:8: label: expected a label of letters, digits and _, got the text \"no-good\"\n",
            ),
            (
                "a: {}\nprocessors: {mapping: x}\n",
                ComponentKind::Input,
                "f.yaml:2:13: processors: expected a list, got a mapping; start each entry with \"- \"\n",
            ),
        ];
        for (text, kind, expected) in cases {
            assert_eq!(parse(text, kind).1, expected, "for {text}");
        }
    }

    #[test]
    fn a_label_is_taken_once_but_may_be_read_again() {
        let diags = Diagnostics::new("f.yaml");
        let node = Node::parse("- {a: {}, label: one}\n- {a: {}, label: one}\n- {a: {}, label: ''}\n").unwrap();
        for _ in 0..2 {
            ComponentNode::parse_list(&node, ComponentKind::Processor, "root.p", &diags);
        }
        let expected = "f.yaml:2:18: [1].label: duplicate label \"one\", first used on line 1\n";
        assert_eq!(diags.to_string(), expected);
    }

    #[test]
    fn an_alias_takes_the_label_a_second_time() {
        let diags = Diagnostics::new("f.yaml");
        let node = Node::parse("- &a {drop: {}, label: one}\n- *a\n").unwrap();
        ComponentNode::parse_list(&node, ComponentKind::Output, "root.o", &diags);
        let expected = "f.yaml:1:24: [1].label: duplicate label \"one\", first used on line 1\n";
        assert_eq!(diags.to_string(), expected);
    }
}
