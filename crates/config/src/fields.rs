//! A typed reader for one mapping of the configuration.
//!
//! Each call names a field, its type and its default, and returns a usable value in every case: mistakes go to
//! [`Diagnostics`] with their position, and reading continues. [`Fields::finish`] reports the fields that were not
//! read. `null` counts as "not given".

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::describe::FieldDoc;
use crate::diagnostics::Diagnostics;
use crate::kind;
use crate::names::{closest, nearest, quoted};
use crate::node::{Mapping, Node, ValueKind};
use crate::source::Pos;
use crate::units::{parse_duration, parse_size};

/// Reads the fields of one mapping; end with [`Fields::finish`].
///
/// ```
/// use thalweg_config::{Diagnostics, Fields, Node};
///
/// let node = Node::parse("pollRat: 500")?;
/// let diags = Diagnostics::new("flow.yaml");
/// let mut f = Fields::new(&node, &diags);
/// assert_eq!(f.int("pollRate", 1000), 1000);
/// f.finish();
/// let expected = "flow.yaml:1:1: unknown field \"pollRat\", did you mean \"pollRate\"?\n";
/// assert_eq!(diags.to_string(), expected);
/// # Ok::<(), String>(())
/// ```
#[must_use = "call finish() to report unknown fields"]
#[derive(Debug)]
pub struct Fields<'d> {
    node: Node,
    diags: &'d Diagnostics,
    known: Vec<String>,
    /// Accepted but not offered as valid names.
    legacy: Vec<String>,
    /// Not a mapping at all, which is reported once.
    broken: bool,
}

impl<'d> Fields<'d> {
    /// Starts to read `node`, which should be a mapping; null counts as an empty one.
    pub fn new(node: &Node, diags: &'d Diagnostics) -> Fields<'d> {
        let broken = node.as_map().is_none() && !node.is_null();
        if broken && let Err(message) = node.expect_map() {
            diags.error(node, message);
        }
        Fields {
            node: node.clone(),
            diags,
            known: Vec::new(),
            legacy: Vec::new(),
            broken,
        }
    }

    /// The mapping itself.
    pub fn mapping(&self) -> &Node {
        &self.node
    }

    pub fn diags(&self) -> &'d Diagnostics {
        self.diags
    }

    /// Position of the mapping.
    pub fn pos(&self) -> Pos {
        self.node.pos()
    }

    /// Position of a field's value, or of the mapping if the field is not given.
    pub fn pos_of(&self, name: &str) -> Pos {
        self.peek(name).map_or(self.node.pos(), Node::pos)
    }

    /// Whether a field is given, without making it a valid name.
    pub fn has(&self, name: &str) -> bool {
        self.peek(name).is_some()
    }

    /// Reports a mistake in a field's value, at its position.
    pub fn error(&self, name: &str, message: impl std::fmt::Display) {
        if self.peek(name).is_some_and(|node| self.diags.is_told(node)) {
            return;
        }
        let path = self.node.steps().key(name);
        self.diags.error_at(self.pos_of(name), format!("{path}: {message}"));
    }

    pub fn string(&mut self, name: &str, default: &str) -> String {
        let node = self.take(name, kind::TEXT, Some(default), false);
        self.text_of(node).unwrap_or_else(|| default.to_owned())
    }

    /// A required text; empty after a mistake.
    pub fn required_string(&mut self, name: &str) -> String {
        let node = self.take(name, kind::TEXT, None, true);
        self.text_of(node).unwrap_or_default()
    }

    pub fn opt_string(&mut self, name: &str) -> Option<String> {
        let node = self.take(name, kind::TEXT, None, false);
        self.text_of(node)
    }

    pub fn int(&mut self, name: &str, default: i64) -> i64 {
        let node = self.take(name, kind::WHOLE_NUMBER, Some(&default.to_string()), false);
        self.checked(node, Node::expect_i64).unwrap_or(default)
    }

    pub fn opt_int(&mut self, name: &str) -> Option<i64> {
        let node = self.take(name, kind::WHOLE_NUMBER, None, false);
        self.checked(node, Node::expect_i64)
    }

    /// A required whole number; 0 after a mistake.
    pub fn required_int(&mut self, name: &str) -> i64 {
        let node = self.take(name, kind::WHOLE_NUMBER, None, true);
        self.checked(node, Node::expect_i64).unwrap_or_default()
    }

    /// A whole number within a range.
    pub fn int_in(&mut self, name: &str, default: i64, range: RangeInclusive<i64>) -> i64 {
        let what = whole_number_in(&range);
        let node = self.take(name, &what, Some(&default.to_string()), false);
        let number = self.checked(node, |node| within(node, &range, &what));
        number.unwrap_or(default)
    }

    /// A whole number within a range, if it is given.
    pub fn opt_int_in(&mut self, name: &str, range: RangeInclusive<i64>) -> Option<i64> {
        let what = whole_number_in(&range);
        let node = self.take(name, &what, None, false);
        self.checked(node, |node| within(node, &range, &what))
    }

    pub fn float(&mut self, name: &str, default: f64) -> f64 {
        let node = self.take(name, kind::NUMBER, Some(&format!("{default:?}")), false);
        self.checked(node, Node::expect_f64).unwrap_or(default)
    }

    pub fn opt_float(&mut self, name: &str) -> Option<f64> {
        let node = self.take(name, kind::NUMBER, None, false);
        self.checked(node, Node::expect_f64)
    }

    /// A required number; 0 after a mistake.
    pub fn required_float(&mut self, name: &str) -> f64 {
        let node = self.take(name, kind::NUMBER, None, true);
        self.checked(node, Node::expect_f64).unwrap_or_default()
    }

    pub fn bool(&mut self, name: &str, default: bool) -> bool {
        let node = self.take(name, kind::TRUE_OR_FALSE, Some(&default.to_string()), false);
        self.checked(node, Node::expect_bool).unwrap_or(default)
    }

    pub fn opt_bool(&mut self, name: &str) -> Option<bool> {
        let node = self.take(name, kind::TRUE_OR_FALSE, None, false);
        self.checked(node, Node::expect_bool)
    }

    /// A duration such as `1h30m`; `default` is written the same way.
    pub fn duration(&mut self, name: &str, default: &str) -> Duration {
        let node = self.take(name, kind::DURATION, Some(default), false);
        let value = self.checked(node, Node::expect_duration);
        value.unwrap_or_else(|| own_default(parse_duration(default)))
    }

    pub fn opt_duration(&mut self, name: &str) -> Option<Duration> {
        let node = self.take(name, kind::DURATION, None, false);
        self.checked(node, Node::expect_duration)
    }

    /// A duration, or an empty text, which means none. A field that is not given has the default.
    pub fn duration_or_empty(&mut self, name: &str, default: Option<&str>) -> Option<Duration> {
        let node = self.take(name, kind::DURATION, default, false);
        let text = node.as_ref().and_then(Node::scalar_text);
        if text.is_some_and(|text| text.trim().is_empty()) {
            return None;
        }
        let value = self.checked(node, Node::expect_duration);
        value.or_else(|| default.map(|text| own_default(parse_duration(text))))
    }

    /// A number of bytes such as `500MiB`; `default` is written the same way.
    pub fn size(&mut self, name: &str, default: &str) -> u64 {
        let node = self.take(name, kind::SIZE, Some(default), false);
        let value = self.checked(node, Node::expect_size);
        value.unwrap_or_else(|| own_default(parse_size(default)))
    }

    pub fn opt_size(&mut self, name: &str) -> Option<u64> {
        let node = self.take(name, kind::SIZE, None, false);
        self.checked(node, Node::expect_size)
    }

    /// One word of a list. The default need not be in the list; it is accepted too.
    pub fn one_of<'o>(&mut self, name: &str, options: &[&'o str], default: &'o str) -> &'o str {
        let node = self.take(name, &kind::one_of(options), Some(default), false);
        self.choose(node, options, Some(default)).unwrap_or(default)
    }

    /// One word of a list, if it is given.
    pub fn opt_one_of<'o>(&mut self, name: &str, options: &[&'o str]) -> Option<&'o str> {
        let node = self.take(name, &kind::one_of(options), None, false);
        self.choose(node, options, None)
    }

    /// One word of a list, required.
    pub fn required_one_of<'o>(&mut self, name: &str, options: &[&'o str]) -> Option<&'o str> {
        let node = self.take(name, &kind::one_of(options), None, true);
        self.choose(node, options, None)
    }

    /// A list of texts; empty if not given.
    pub fn string_list(&mut self, name: &str) -> Vec<String> {
        let node = self.take(name, kind::TEXT_LIST, Some("[]"), false);
        let Some(items) = self.checked(node, |node| node.expect_seq().map(<[Node]>::to_vec)) else {
            return Vec::new();
        };
        items.into_iter().filter_map(|item| self.text_of(Some(item))).collect()
    }

    /// A mapping of names to texts, such as HTTP headers; empty if not given.
    pub fn string_map(&mut self, name: &str) -> Vec<(String, String)> {
        let node = self.take(name, kind::TEXT_MAPPING, Some("{}"), false);
        let entries = self
            .checked(node, |node| node.expect_map().cloned())
            .unwrap_or_default();
        let texts = entries.iter().filter_map(|(key, value)| {
            let text = if value.is_null() {
                Some(String::new())
            } else {
                self.text_of(Some(value.clone()))
            };
            Some((key.to_string(), text?))
        });
        texts.collect()
    }

    /// A value that the caller reads itself; `kind` is its type for the reference, such as those of [`kind`].
    pub fn node(&mut self, name: &str, kind: &str) -> Option<Node> {
        self.take(name, kind, None, false)
    }

    /// A value that the caller reads itself, and takes for `default` if it is not given.
    pub fn node_or(&mut self, name: &str, kind: &str, default: &str) -> Option<Node> {
        self.take(name, kind, Some(default), false)
    }

    /// A required value that the caller reads itself.
    pub fn required_node(&mut self, name: &str, kind: &str) -> Option<Node> {
        self.take(name, kind, None, true)
    }

    /// The entries of a list; empty if not given.
    pub fn list(&mut self, name: &str) -> Vec<Node> {
        let node = self.take(name, kind::LIST, Some("[]"), false);
        if node.is_none() && self.diags.is_describing() {
            return vec![Node::empty_map_at(self.node.pos(), self.node.steps().key(name).each())];
        }
        self.checked(node, |node| node.expect_seq().map(<[Node]>::to_vec))
            .unwrap_or_default()
    }

    /// The fields of a nested mapping; without fields if not given.
    pub fn fields(&mut self, name: &str) -> Fields<'d> {
        let empty = Node::empty_map_at(self.node.pos(), self.node.steps().key(name));
        let node = self.take(name, kind::MAPPING, None, false).unwrap_or(empty);
        Fields::new(&node, self.diags)
    }

    /// The fields of a nested mapping, if it is given.
    pub fn opt_fields(&mut self, name: &str) -> Option<Fields<'d>> {
        if !self.diags.is_describing() && !self.has(name) {
            self.take(name, kind::MAPPING, None, false);
            return None;
        }
        Some(self.fields(name))
    }

    /// A field kept for old files: its presence gives a warning that states `effect`.
    pub fn legacy(&mut self, name: &str, effect: &str) -> Option<Node> {
        self.legacy.push(name.to_owned());
        let (key, value) = self.node.as_map()?.entry(name)?;
        let path = self.node.steps().key(name);
        self.diags.warn_at(key.pos(), format!("{path} {effect}"));
        Some(value.clone()).filter(|value| !value.is_null())
    }

    /// Reports every field that was not read, with the nearest valid name.
    pub fn finish(self) {
        let Some(mapping) = self.node.as_map() else { return };
        for (key, _) in mapping.iter() {
            let name = key.as_str();
            if self.known.iter().chain(&self.legacy).any(|known| known == name) {
                continue;
            }
            if self.diags.is_full() {
                return;
            }
            let place = self.place();
            let hint = nearest(name, &self.known);
            let message = format!("unknown field {}{place}{hint}", quoted(name));
            self.diags.unknown_field_at(key.pos(), message);
        }
    }

    /// ` in input.opcua`, nothing for the root.
    fn place(&self) -> String {
        let path = self.node.path();
        if path.is_empty() { path } else { format!(" in {path}") }
    }

    fn peek(&self, name: &str) -> Option<&Node> {
        self.node
            .as_map()
            .and_then(|mapping: &Mapping| mapping.get(name))
            .filter(|n| !n.is_null())
    }

    /// The value of a field, which becomes a valid name.
    fn take(&mut self, name: &str, kind: &str, default: Option<&str>, required: bool) -> Option<Node> {
        if self.diags.is_describing() {
            self.diags.record(FieldDoc {
                name: self.node.steps().key(name).to_string(),
                kind: kind.to_owned(),
                default: default.map(str::to_owned),
                required,
            });
        }
        self.known.push(name.to_owned());
        let value = self.peek(name).cloned();
        if value.is_none() && required && !self.broken {
            let message = format!("missing required field \"{name}\"{}", self.place());
            self.diags.error_at(self.node.pos(), message);
        }
        value
    }

    fn checked<T>(&self, node: Option<Node>, read: impl Fn(&Node) -> Result<T, String>) -> Option<T> {
        let node = node?;
        match read(&node) {
            Ok(value) => Some(value),
            Err(message) => {
                self.diags.error(&node, message);
                None
            }
        }
    }

    fn text_of(&self, node: Option<Node>) -> Option<String> {
        self.checked(node, |node| node.expect_text().map(str::to_owned))
    }

    fn choose<'o>(&self, node: Option<Node>, options: &[&'o str], default: Option<&'o str>) -> Option<&'o str> {
        let node = node?;
        let text = node.scalar_text();
        let found = options
            .iter()
            .copied()
            .chain(default)
            .find(|option| Some(*option) == text);
        if found.is_none() {
            let hint = match text
                .filter(|_| node.kind() == ValueKind::Str)
                .and_then(|t| closest(t, options))
            {
                Some(near) => format!(", did you mean \"{near}\"?"),
                None => String::new(),
            };
            let message = node.expected(&kind::one_of(options));
            self.diags.error(&node, message + &hint);
        }
        found
    }
}

fn whole_number_in(range: &RangeInclusive<i64>) -> String {
    match (*range.start(), *range.end()) {
        (low, i64::MAX) => format!("{} of at least {low}", kind::WHOLE_NUMBER),
        (low, high) => format!("{} from {low} to {high}", kind::WHOLE_NUMBER),
    }
}

/// A whole number within a range, which `what` describes.
fn within(node: &Node, range: &RangeInclusive<i64>, what: &str) -> Result<i64, String> {
    let number = node.expect_i64()?;
    match range.contains(&number) {
        true => Ok(number),
        false => Err(node.expected(&format!("a {what}"))),
    }
}

/// Defaults are part of the program, so they are valid.
fn own_default<T>(parsed: Result<T, String>) -> T {
    match parsed {
        Ok(value) => value,
        Err(form) => panic!("a default in the program is not {form}"),
    }
}

#[cfg(test)]
mod tests;
