//! Values given on the command line: `-s input.opcua.pollRate=500`.
//!
//! A path consists of field names and list indexes, as in `flows.0.name` or, as messages print it, `flows[0].name`. A
//! dot inside a name is written `~1`, a tilde `~0`. Missing mappings are created; a list grows only by the index after
//! its end.

use std::sync::Arc;

use crate::diagnostics::Diagnostics;
use crate::names::quoted;
use crate::node::{Key, Mapping, Node, NodePath, NodeValue, Scalar};
use crate::parse::{DEPTH_MAX, parse};
use crate::scalar::resolve;
use crate::source::{Pos, SourceMap};

/// The tree with one value replaced or added; unchanged if the path does not fit, which is reported.
pub(crate) fn set(root: &Node, path: &str, value: &str, diags: &Diagnostics) -> Node {
    let steps: Vec<String> = path.split('.').flat_map(split_indexes).collect();
    if steps.iter().any(String::is_empty) || steps.len() > DEPTH_MAX {
        let message = format!("-s {}: write it as path=value", quoted(path));
        diags.error_at(Pos::COMMAND_LINE, message);
        return root.clone();
    }
    let Some(value) = parse_value(value, diags) else {
        return root.clone();
    };
    match replaced(root, &steps, &value) {
        Ok(changed) => changed,
        Err(why) => {
            diags.error_at(Pos::COMMAND_LINE, format!("-s {path}: {why}"));
            root.clone()
        }
    }
}

/// `a~1b[2][0]` is `a.b`, `2`, `0`.
fn split_indexes(segment: &str) -> Vec<String> {
    let mut name = segment;
    let mut indexes = Vec::new();
    while let Some((before, index)) = name.strip_suffix(']').and_then(|s| s.rsplit_once('['))
        && index.bytes().all(|b| b.is_ascii_digit())
    {
        indexes.push(index.to_owned());
        name = before;
    }
    indexes.push(name.replace("~1", ".").replace("~0", "~"));
    indexes.reverse();
    indexes
}

/// A value that begins like a YAML list, mapping, quoted or tagged text is YAML. Everything else is one plain scalar,
/// so that scripts with colons and hashes need no quoting.
fn parse_value(text: &str, diags: &Diagnostics) -> Option<Node> {
    if text.starts_with(['[', '{', '"', '\'']) || text.starts_with("!!") {
        return parse(&Arc::new(SourceMap::unchanged(text)), Some(Pos::COMMAND_LINE), diags);
    }
    let scalar = Scalar::new(text, resolve(text));
    Some(Node::scalar(Pos::COMMAND_LINE, NodePath::default(), scalar))
}

fn replaced(node: &Node, steps: &[String], value: &Node) -> Result<Node, String> {
    let Some((step, rest)) = steps.split_first() else {
        let mut budget = usize::MAX;
        let moved = value.rebased(node.steps().clone(), &mut budget, DEPTH_MAX);
        return moved.ok_or_else(|| "the value is nested too deep".to_owned());
    };
    let changed = match node.value() {
        NodeValue::Seq(items) => NodeValue::Seq(replaced_item(node, items, (step, rest), value)?),
        NodeValue::Map(mapping) => NodeValue::Map(replaced_field(node, mapping, (step, rest), value)?),
        NodeValue::Scalar(_) if node.is_null() => {
            NodeValue::Map(replaced_field(node, &Mapping::default(), (step, rest), value)?)
        }
        NodeValue::Scalar(_) => {
            let path = node.path();
            let message = format!("{path} is {}, it has no field {step}", node.describe());
            return Err(message);
        }
    };
    Ok(Node::new(node.pos(), node.steps().clone(), changed))
}

fn replaced_field(
    node: &Node,
    mapping: &Mapping,
    (step, rest): (&String, &[String]),
    value: &Node,
) -> Result<Mapping, String> {
    let mut entries: Vec<(Key, Node)> = mapping
        .iter()
        .map(|(key, child)| (key.clone(), child.clone()))
        .collect();
    match entries.iter_mut().find(|(key, _)| key.as_str() == step) {
        Some((_, child)) => *child = replaced(child, rest, value)?,
        None => {
            let empty = Node::empty_map_at(Pos::COMMAND_LINE, node.steps().key(step.as_str()));
            let key = Key::new(step.as_str(), Pos::COMMAND_LINE);
            entries.push((key, replaced(&empty, rest, value)?));
        }
    }
    Ok(Mapping::new(entries))
}

fn replaced_item(
    node: &Node,
    items: &[Node],
    (step, rest): (&String, &[String]),
    value: &Node,
) -> Result<Vec<Node>, String> {
    let mut items = items.to_vec();
    let index = match step.as_str() {
        "-" => Some(items.len()),
        digits => digits.parse().ok().filter(|&index: &usize| index <= items.len()),
    };
    let count = items.len();
    let index = index.ok_or_else(|| {
        let path = node.path();
        format!("{path} is a list of {count}; use a position from 0 to {count}, not {step}")
    })?;
    match items.get_mut(index) {
        Some(item) => *item = replaced(item, rest, value)?,
        None => {
            let empty = Node::empty_map_at(Pos::COMMAND_LINE, node.steps().index(index));
            items.push(replaced(&empty, rest, value)?);
        }
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "input:\n  opcua: {pollRate: 1, nodeIDs: [a, b]}\nempty:\ntext: x\n";

    fn run(path: &str, value: &str) -> (String, String) {
        let diags = Diagnostics::new("f.yaml");
        let node = set(&Node::parse(FILE).unwrap(), path, value, &diags);
        (node.to_json(), diags.to_string())
    }

    #[test]
    fn values_are_replaced_and_added() {
        let base = r#"{"input":{"opcua":{"pollRate":1,"nodeIDs":["a","b"]}},"empty":null,"text":"x"}"#;
        let cases = [
            ("input.opcua.pollRate", "500", r#""pollRate":1"#, r#""pollRate":500"#),
            ("input.opcua.nodeIDs.1", "c", r#"["a","b"]"#, r#"["a","c"]"#),
            ("input.opcua.nodeIDs[2]", "c", r#"["a","b"]"#, r#"["a","b","c"]"#),
            ("input.opcua.nodeIDs.-", "c", r#"["a","b"]"#, r#"["a","b","c"]"#),
            ("input.opcua.nodeIDs", "[x, 1]", r#"["a","b"]"#, r#"["x",1]"#),
            ("input.opcua", "{}", r#"{"pollRate":1,"nodeIDs":["a","b"]}"#, "{}"),
            ("empty.a.b", "'1'", r#""empty":null"#, r#""empty":{"a":{"b":"1"}}"#),
            (
                "text",
                "root = this # all: of it",
                r#""x""#,
                r#""root = this # all: of it""#,
            ),
            ("text", "", r#""x""#, "null"),
            ("text", "!!str 5", r#""x""#, r#""5""#),
            ("a~1b~0c", "true", r#""text":"x""#, r#""text":"x","a.b~c":true"#),
        ];
        for (path, value, old, new) in cases {
            assert_eq!(run(path, value), (base.replace(old, new), String::new()), "for {path}");
        }
    }

    #[test]
    fn paths_that_do_not_fit_are_reported() {
        let cases = [
            ("", "1", "-s \"\": write it as path=value"),
            ("a..b", "1", "-s \"a..b\": write it as path=value"),
            ("text.y", "1", "-s text.y: text is the text \"x\", it has no field y"),
            (
                "input.opcua.nodeIDs.3",
                "1",
                "-s input.opcua.nodeIDs.3: input.opcua.nodeIDs is a list of 2; use a position from 0 to 2, not 3",
            ),
            (
                "text",
                "[1",
                "malformed YAML: while parsing a flow sequence, expected ',' or ']'; close the list with ]",
            ),
        ];
        for (path, value, message) in cases {
            assert_eq!(run(path, value).1, format!("command line: {message}\n"));
        }
    }

    #[test]
    fn new_values_know_their_path_and_origin() {
        let diags = Diagnostics::new("f.yaml");
        let node = set(&Node::parse(FILE).unwrap(), "input.opcua.nodeIDs", "[x]", &diags);
        let item = &node.get("input").unwrap().get("opcua").unwrap().get("nodeIDs").unwrap();
        let item = &item.as_seq().unwrap()[0];
        assert_eq!(item.path(), "input.opcua.nodeIDs[0]");
        assert_eq!(item.pos(), Pos::COMMAND_LINE);
    }
}
