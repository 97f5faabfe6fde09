//! The configuration tree: each [`Node`] is a value with its position, its path and its text.
//!
//! Nodes are immutable and cheap to clone. A scalar keeps the text that the user wrote beside its meaning, so `007`
//! stays `007` in a text field and a boolean can be read as script text.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::diagnostics::{Diagnostics, UNSET};
use crate::names::quoted;
use crate::scalar::{ScalarValue, resolve};
use crate::source::{Pos, SourceMap};
use crate::units::{parse_duration, parse_size};
use crate::{emit, parse, secrets};

/// Largest integer up to which every whole `f64` is exact.
const EXACT_FLOAT_MAX: f64 = 9_007_199_254_740_992.0;

/// The kind of a node's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ValueKind {
    Null,
    Bool,
    Int,
    Float,
    Str,
    Seq,
    Map,
}

/// One value of the configuration.
#[derive(Clone)]
pub struct Node(Arc<NodeInner>);

struct NodeInner {
    pos: Pos,
    path: NodePath,
    value: NodeValue,
}

pub(crate) enum NodeValue {
    Scalar(Scalar),
    Seq(Vec<Node>),
    Map(Mapping),
}

#[derive(Clone)]
pub(crate) struct Scalar {
    pub(crate) text: Arc<str>,
    pub(crate) meaning: ScalarValue,
    /// Contains the content of a `${file:...}`.
    pub(crate) secret: bool,
    pub(crate) origin: Option<ScalarOrigin>,
}

impl Scalar {
    pub(crate) fn new(text: impl Into<Arc<str>>, meaning: ScalarValue) -> Scalar {
        Scalar {
            text: text.into(),
            meaning,
            secret: false,
            origin: None,
        }
    }
}

/// Where a scalar begins in the parsed text, to locate positions inside it.
#[derive(Clone)]
pub(crate) struct ScalarOrigin {
    pub(crate) map: Arc<SourceMap>,
    pub(crate) offset: usize,
    pub(crate) form: ScalarLayout,
}

/// The layout of a scalar in the file, as far as its lines are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScalarLayout {
    /// Plain, quoted or folded.
    Flow,
    /// A `|` block; the offset is that of its first line with content.
    Block,
    /// A `|` block after a tag or an anchor; the offset is that of the tag or anchor.
    MarkedBlock,
}

/// The name of a field and its position.
#[derive(Debug, Clone)]
pub struct Key {
    text: Arc<str>,
    pos: Pos,
}

impl Key {
    pub(crate) fn new(text: impl Into<Arc<str>>, pos: Pos) -> Key {
        Key { text: text.into(), pos }
    }

    pub fn pos(&self) -> Pos {
        self.pos
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn text(&self) -> Arc<str> {
        self.text.clone()
    }
}

impl Deref for Key {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The fields of a mapping in file order; names are unique.
#[derive(Clone, Default)]
pub struct Mapping(Vec<(Key, Node)>);

impl Mapping {
    pub(crate) fn new(entries: Vec<(Key, Node)>) -> Mapping {
        Mapping(entries)
    }

    pub fn get(&self, name: &str) -> Option<&Node> {
        self.entry(name).map(|(_, value)| value)
    }

    /// The field with its key, which has its own position.
    pub fn entry(&self, name: &str) -> Option<(&Key, &Node)> {
        self.iter().find(|(key, _)| key.as_str() == name)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Key, &Node)> + '_ {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The path from the root to a node; neighbours share their common steps.
#[derive(Clone, Default)]
pub(crate) struct NodePath(Option<Arc<(NodePath, PathStep)>>);

enum PathStep {
    Key(Arc<str>),
    Index(usize),
    /// Any entry of a list, in descriptions.
    Each,
}

impl NodePath {
    pub(crate) fn key(&self, name: impl Into<Arc<str>>) -> NodePath {
        NodePath(Some(Arc::new((self.clone(), PathStep::Key(name.into())))))
    }

    pub(crate) fn index(&self, index: usize) -> NodePath {
        NodePath(Some(Arc::new((self.clone(), PathStep::Index(index)))))
    }

    pub(crate) fn each(&self) -> NodePath {
        NodePath(Some(Arc::new((self.clone(), PathStep::Each))))
    }

    /// The name of the innermost field that contains this node.
    pub(crate) fn last_key(&self) -> Option<&str> {
        let (parent, step) = self.0.as_deref()?;
        match step {
            PathStep::Key(name) => Some(name),
            PathStep::Index(_) | PathStep::Each => parent.last_key(),
        }
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((parent, step)) = self.0.as_deref() else {
            return Ok(());
        };
        parent.fmt(f)?;
        match step {
            PathStep::Key(name) if parent.0.is_none() => f.write_str(name),
            PathStep::Key(name) => write!(f, ".{name}"),
            PathStep::Index(index) => write!(f, "[{index}]"),
            PathStep::Each => f.write_str("[]"),
        }
    }
}

impl Node {
    pub(crate) fn new(pos: Pos, path: NodePath, value: NodeValue) -> Node {
        Node(Arc::new(NodeInner { pos, path, value }))
    }

    pub(crate) fn scalar(pos: Pos, path: NodePath, scalar: Scalar) -> Node {
        Node::new(pos, path, NodeValue::Scalar(scalar))
    }

    pub(crate) fn empty_map_at(pos: Pos, path: NodePath) -> Node {
        Node::new(pos, path, NodeValue::Map(Mapping::default()))
    }

    /// A mapping without fields, as if the file contained `{}`.
    pub fn empty_map() -> Node {
        Node::empty_map_at(Pos { line: 1, column: 1 }, NodePath::default())
    }

    /// Parses one YAML document without environment replacement; the first mistake is the error.
    pub fn parse(text: &str) -> Result<Node, String> {
        let diags = Diagnostics::new("yaml");
        let node = parse::parse(&Arc::new(SourceMap::unchanged(text)), None, &diags);
        match (diags.sorted().into_iter().next(), node) {
            (Some(first), _) => Err(first.to_string()),
            (None, Some(node)) => Ok(node),
            (None, None) => Err("the document is empty".to_owned()),
        }
    }

    /// Position of the value in the original file.
    pub fn pos(&self) -> Pos {
        self.0.pos
    }

    /// The path from the root, such as `input.opcua.nodeIDs[2]`; empty for the root.
    pub fn path(&self) -> String {
        self.0.path.to_string()
    }

    pub(crate) fn steps(&self) -> &NodePath {
        &self.0.path
    }

    pub(crate) fn value(&self) -> &NodeValue {
        &self.0.value
    }

    pub fn kind(&self) -> ValueKind {
        match &self.0.value {
            NodeValue::Seq(_) => ValueKind::Seq,
            NodeValue::Map(_) => ValueKind::Map,
            NodeValue::Scalar(scalar) => match scalar.meaning {
                ScalarValue::Null => ValueKind::Null,
                ScalarValue::Bool(_) => ValueKind::Bool,
                ScalarValue::Int(_) => ValueKind::Int,
                ScalarValue::Float(_) => ValueKind::Float,
                ScalarValue::Str => ValueKind::Str,
            },
        }
    }

    pub fn is_null(&self) -> bool {
        self.kind() == ValueKind::Null
    }

    /// The text of a value that is text; for numbers and booleans see [`Self::scalar_text`].
    pub fn as_str(&self) -> Option<&str> {
        self.as_scalar()
            .filter(|s| s.meaning == ScalarValue::Str)
            .map(|s| &*s.text)
    }

    /// The written text of any scalar but null.
    pub fn scalar_text(&self) -> Option<&str> {
        self.as_scalar()
            .filter(|s| s.meaning != ScalarValue::Null)
            .map(|s| &*s.text)
    }

    pub fn as_bool(&self) -> Option<bool> {
        self.expect_bool().ok()
    }

    pub fn as_i64(&self) -> Option<i64> {
        self.expect_i64().ok()
    }

    pub fn as_f64(&self) -> Option<f64> {
        self.expect_f64().ok()
    }

    pub fn as_seq(&self) -> Option<&[Node]> {
        match &self.0.value {
            NodeValue::Seq(items) => Some(items),
            _ => None,
        }
    }

    pub fn as_map(&self) -> Option<&Mapping> {
        match &self.0.value {
            NodeValue::Map(mapping) => Some(mapping),
            _ => None,
        }
    }

    /// A field of a mapping.
    pub fn get(&self, name: &str) -> Option<&Node> {
        self.as_map()?.get(name)
    }

    pub(crate) fn as_scalar(&self) -> Option<&Scalar> {
        match &self.0.value {
            NodeValue::Scalar(scalar) => Some(scalar),
            _ => None,
        }
    }

    /// Whether the text contains the mark of an unset variable or an unreadable secret.
    pub(crate) fn is_unset(&self) -> bool {
        self.as_scalar().is_some_and(|scalar| scalar.text.contains(UNSET))
    }

    /// The meaning of a scalar. Quoted text counts as what it spells, because `"${PORT}"` is the usual way to put an
    /// environment variable into a number field.
    fn spelled(&self) -> Option<ScalarValue> {
        let scalar = self.as_scalar()?;
        match scalar.meaning {
            ScalarValue::Str => Some(resolve(scalar.text.trim())),
            meaning => Some(meaning),
        }
    }

    /// The text of a scalar, or what was found instead.
    pub fn expect_text(&self) -> Result<&str, String> {
        self.scalar_text().ok_or_else(|| self.expected("a text"))
    }

    pub fn expect_bool(&self) -> Result<bool, String> {
        match self.spelled() {
            Some(ScalarValue::Bool(truth)) => Ok(truth),
            _ => Err(self.expected("true or false")),
        }
    }

    pub fn expect_i64(&self) -> Result<i64, String> {
        match self.spelled() {
            Some(ScalarValue::Int(number)) => Ok(number),
            Some(ScalarValue::Float(number)) if number.fract() == 0.0 && number.abs() <= EXACT_FLOAT_MAX => {
                Ok(number as i64)
            }
            _ => Err(self.expected("a whole number")),
        }
    }

    pub fn expect_f64(&self) -> Result<f64, String> {
        match self.spelled() {
            Some(ScalarValue::Int(number)) => Ok(number as f64),
            Some(ScalarValue::Float(number)) if number.is_finite() => Ok(number),
            _ => Err(self.expected("a number")),
        }
    }

    pub fn expect_duration(&self) -> Result<Duration, String> {
        let text = self.scalar_text().unwrap_or_default();
        parse_duration(text).map_err(|form| match self.kind() {
            ValueKind::Int => format!("{}; add a unit, for example {text}s", self.expected(&form)),
            _ => self.expected(&form),
        })
    }

    /// A number of bytes.
    pub fn expect_size(&self) -> Result<u64, String> {
        if let Some(ScalarValue::Int(bytes)) = self.as_scalar().map(|s| s.meaning) {
            return u64::try_from(bytes).map_err(|_| self.expected("a size of 0 or more"));
        }
        parse_size(self.scalar_text().unwrap_or_default()).map_err(|form| self.expected(&form))
    }

    pub fn expect_seq(&self) -> Result<&[Node], String> {
        self.as_seq().ok_or_else(|| {
            let hint = match (self.kind(), self.scalar_text()) {
                (ValueKind::Map, _) => "; start each entry with \"- \"".to_owned(),
                (_, Some(text)) if !self.is_masked() && text.len() < 40 && !text.contains('\n') => {
                    let name = self.0.path.last_key().unwrap_or("field");
                    format!("; for example {name}: [{text:?}]")
                }
                _ => String::new(),
            };
            self.expected("a list") + &hint
        })
    }

    pub fn expect_map(&self) -> Result<&Mapping, String> {
        self.as_map().ok_or_else(|| self.expected("a mapping of fields"))
    }

    /// `expected <what>, got <this value>`.
    pub fn expected(&self, what: &str) -> String {
        format!("expected {what}, got {}", self.describe())
    }

    /// The value in words, for messages; secrets are not shown.
    pub fn describe(&self) -> String {
        let NodeValue::Scalar(scalar) = &self.0.value else {
            return if self.kind() == ValueKind::Seq {
                "a list"
            } else {
                "a mapping"
            }
            .to_owned();
        };
        match scalar.meaning {
            ScalarValue::Null => "nothing".to_owned(),
            _ if self.is_masked() => "a secret value".to_owned(),
            ScalarValue::Bool(_) => scalar.text.to_string(),
            ScalarValue::Int(_) | ScalarValue::Float(_) => {
                format!("the number {}", quoted(&scalar.text).trim_matches('"'))
            }
            ScalarValue::Str => format!("the text {}", quoted(&scalar.text)),
        }
    }

    /// Whether the value must not be shown: it came from `${file:...}`, its name says so, or it is a private key.
    pub fn is_masked(&self) -> bool {
        let is_secret = |scalar: &Scalar| scalar.secret || secrets::has_private_key(&scalar.text);
        self.as_scalar().is_some_and(is_secret) || self.0.path.last_key().is_some_and(secrets::is_secret_name)
    }

    /// The position in the file of a line and column (both from 1) inside this scalar's text, for mistakes found by its
    /// parser. Exact for `|` blocks and for text on one line without escapes; otherwise the position of the value.
    pub fn text_pos(&self, line: usize, column: usize) -> Pos {
        self.text_offset(line, column).unwrap_or(self.0.pos)
    }

    /// Position of the last character of the text, as exact as [`Node::text_pos`].
    pub(crate) fn end_pos(&self) -> Pos {
        let lines = self
            .scalar_text()
            .unwrap_or_default()
            .trim_end_matches('\n')
            .split('\n');
        self.text_pos(lines.count(), usize::MAX)
    }

    fn text_offset(&self, line: usize, column: usize) -> Option<Pos> {
        let scalar = self.as_scalar()?;
        let origin = scalar.origin.as_ref()?;
        let parsed = origin.map.parsed();
        let value_line = scalar.text.split('\n').nth(line.checked_sub(1)?)?;
        let in_line = match value_line.char_indices().nth(column.saturating_sub(1)) {
            Some((bytes, _)) => bytes,
            None => value_line.len(),
        };
        let rest = parsed.text().get(origin.offset..)?;
        let first = parsed.line_number(origin.offset);
        let block_line = match origin.form {
            ScalarLayout::Flow => None,
            ScalarLayout::MarkedBlock => Some(first + line),
            ScalarLayout::Block => {
                let blank = scalar.text.bytes().take_while(|&b| b == b'\n').count();
                Some((first + line).checked_sub(blank + 1)?)
            }
        };
        let line_offset = if let Some(raw) = block_line {
            let indent = parsed.line(raw).strip_suffix(value_line)?.len();
            parsed.line_start(raw) + indent
        } else if rest.starts_with(&*scalar.text) {
            origin.offset
        } else if rest.get(1..)?.starts_with(&*scalar.text) {
            origin.offset + 1
        } else {
            return None;
        };
        Some(origin.map.pos(line_offset + in_line))
    }

    /// The same value at another path, for aliases. `None` if it contains more than `budget` values or more than
    /// `depth` levels.
    pub(crate) fn rebased(&self, path: NodePath, budget: &mut usize, depth: usize) -> Option<Node> {
        *budget = budget.checked_sub(1)?;
        let depth = depth.checked_sub(1)?;
        let value = match &self.0.value {
            NodeValue::Scalar(scalar) => NodeValue::Scalar(scalar.clone()),
            NodeValue::Seq(items) => {
                let items = items.iter().enumerate();
                let moved = items.map(|(i, item)| item.rebased(path.index(i), budget, depth));
                NodeValue::Seq(moved.collect::<Option<_>>()?)
            }
            NodeValue::Map(mapping) => {
                let moved = mapping
                    .iter()
                    .map(|(key, value)| Some((key.clone(), value.rebased(path.key(key.text()), budget, depth)?)));
                NodeValue::Map(Mapping::new(moved.collect::<Option<_>>()?))
            }
        };
        Some(Node::new(self.0.pos, path, value))
    }

    /// The value as a YAML document with secrets masked.
    pub fn to_yaml(&self) -> String {
        emit::yaml(self, emit::SecretMasking::Mask)
    }

    /// The value as JSON with secrets masked.
    pub fn to_json(&self) -> String {
        emit::json(self, emit::SecretMasking::Mask)
    }
}

impl fmt::Debug for Node {
    /// JSON with secrets masked, so that a logged structure reveals none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_json())
    }
}

impl PartialEq for Node {
    /// Compares values, not positions: two files with the same meaning are equal.
    fn eq(&self, other: &Node) -> bool {
        match (&self.0.value, &other.0.value) {
            (NodeValue::Scalar(a), NodeValue::Scalar(b)) => match (a.meaning, b.meaning) {
                (ScalarValue::Str, ScalarValue::Str) => a.text == b.text,
                (ScalarValue::Float(x), ScalarValue::Float(y)) => x == y || (x.is_nan() && y.is_nan()),
                (x, y) => x == y,
            },
            (NodeValue::Seq(a), NodeValue::Seq(b)) => a == b,
            (NodeValue::Map(a), NodeValue::Map(b)) => {
                a.len() == b.len() && a.iter().all(|(key, value)| b.get(key) == Some(value))
            }
            _ => false,
        }
    }
}
