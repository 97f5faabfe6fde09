//! Builds a tree of [`Node`]s from YAML events.
//!
//! Duplicate fields and wrong tags are collected; malformed YAML ends the parse with one message. Size, depth and the
//! number of values (aliases are counted where they are used) are bounded, so no text can make the tree larger than
//! [`VALUES_MAX`] values.

use std::collections::HashMap;
use std::sync::Arc;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, ScanError, Tag};

use crate::diagnostics::Diagnostics;
use crate::names::quoted;
use crate::node::{Key, Mapping, Node, NodePath, NodeValue, Scalar, ScalarLayout, ScalarOrigin};
use crate::scalar::{ScalarValue, resolve, tagged};
use crate::source::{Pos, SourceMap};

/// Maximum nesting of lists and mappings.
pub(crate) const DEPTH_MAX: usize = 64;
/// Maximum values of one document.
pub(crate) const VALUES_MAX: usize = 1_000_000;

/// A mistake after which the rest of the text cannot be interpreted.
struct ParseError(Pos, String);

/// Parses one document; `None` after a mistake that ended the parse. An empty document is null. With `fixed`, every
/// value gets that position.
pub(crate) fn parse(map: &Arc<SourceMap>, fixed: Option<Pos>, diags: &Diagnostics) -> Option<Node> {
    let parsed = check_characters(map).and_then(|()| {
        let builder = TreeBuilder {
            map,
            fixed,
            diags,
            frames: Vec::new(),
            anchors: HashMap::new(),
            budget: VALUES_MAX,
            root: None,
        };
        builder.run()
    });
    match parsed {
        Ok(root) => Some(root),
        Err(ParseError(pos, message)) => {
            diags.error_at(fixed.unwrap_or(pos), message);
            None
        }
    }
}

/// YAML allows no control characters but tab and line breaks, and the parser treats NUL as the end.
fn check_characters(map: &SourceMap) -> Result<(), ParseError> {
    let forbidden = |c: char| {
        matches!(c, '\0'..='\u{8}' | '\u{B}' | '\u{C}' | '\u{E}'..='\u{1F}' | '\u{7F}'
            | '\u{80}'..='\u{84}' | '\u{86}'..='\u{9F}' | '\u{FFFE}' | '\u{FFFF}')
    };
    match map.parsed().text().char_indices().find(|&(_, c)| forbidden(c)) {
        None => Ok(()),
        Some((offset, c)) => {
            let code = u32::from(c);
            let message = format!(
                "the character U+{code:04X} is not allowed in YAML; write it as \"\\u{code:04x}\" in double quotes"
            );
            Err(ParseError(map.pos(offset), message))
        }
    }
}

/// A list or mapping that is still open.
struct OpenCollection {
    pos: Pos,
    path: NodePath,
    anchor: usize,
    content: CollectionContent,
}

enum CollectionContent {
    Seq(Vec<Node>),
    Map(OpenMap),
}

#[derive(Default)]
struct OpenMap {
    entries: Vec<(Key, Node)>,
    seen: HashMap<Arc<str>, Pos>,
    merges: Vec<Node>,
    pending: PendingValue,
}

/// What the next value of a mapping is for.
#[derive(Default)]
enum PendingValue {
    #[default]
    Key,
    Value(Key),
    /// The value of `<<`.
    Merge,
    /// The value of a repeated field, which is not kept.
    Discard,
}

struct TreeBuilder<'a> {
    map: &'a Arc<SourceMap>,
    fixed: Option<Pos>,
    diags: &'a Diagnostics,
    frames: Vec<OpenCollection>,
    anchors: HashMap<usize, Node>,
    /// Values that may still be created.
    budget: usize,
    root: Option<Node>,
}

impl TreeBuilder<'_> {
    fn run(mut self) -> Result<Node, ParseError> {
        let map = Arc::clone(self.map);
        let mut parser = Parser::new_from_str(map.parsed().text());
        let mut documents = 0;
        loop {
            let (event, span) = match parser.next_event() {
                None => break,
                Some(Err(error)) => return Err(self.malformed(&error)),
                Some(Ok(next)) => next,
            };
            let pos = self.pos(&span.start);
            match event {
                Event::StreamEnd => break,
                Event::DocumentStart(_) => {
                    documents += 1;
                    if documents > 1 {
                        let message = "a second document starts here; the file must hold only one";
                        return Err(ParseError(pos, message.to_owned()));
                    }
                }
                Event::Nothing | Event::StreamStart | Event::DocumentEnd => {}
                event => self.value(event, &span.start)?,
            }
        }
        let start = self.fixed.unwrap_or(Pos { line: 1, column: 1 });
        let empty = || Node::scalar(start, NodePath::default(), Scalar::new("", ScalarValue::Null));
        Ok(self.root.unwrap_or_else(empty))
    }

    fn value(&mut self, event: Event<'_>, start: &Marker) -> Result<(), ParseError> {
        let pos = self.pos(start);
        match event {
            Event::Scalar(text, style, anchor, tag) if self.at_key() => {
                let plain = style == ScalarStyle::Plain && tag.is_none();
                let key = Key::new(&*text, pos);
                if anchor > 0 {
                    let scalar = self.scalar(&text, style, anchor, tag.as_deref(), start);
                    self.anchors
                        .insert(anchor, Node::scalar(pos, NodePath::default(), scalar));
                }
                self.key(key, plain)
            }
            Event::Scalar(text, style, anchor, tag) => {
                let scalar = self.scalar(&text, style, anchor, tag.as_deref(), start);
                let node = Node::scalar(pos, self.next_path(), scalar);
                self.finish_value(node, anchor)
            }
            Event::Alias(id) => self.alias(id, pos),
            Event::SequenceStart(anchor, tag) => {
                self.check_collection_tag(tag.as_deref(), "seq", pos);
                self.open(pos, anchor, CollectionContent::Seq(Vec::new()))
            }
            Event::MappingStart(anchor, tag) => {
                self.check_collection_tag(tag.as_deref(), "map", pos);
                self.open(pos, anchor, CollectionContent::Map(OpenMap::default()))
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            _ => Ok(()),
        }
    }

    /// Whether the next value is the name of a field.
    fn at_key(&self) -> bool {
        let open = self.frames.last().map(|frame| &frame.content);
        matches!(
            open,
            Some(CollectionContent::Map(OpenMap {
                pending: PendingValue::Key,
                ..
            }))
        )
    }

    fn next_path(&self) -> NodePath {
        let Some(frame) = self.frames.last() else {
            return NodePath::default();
        };
        match &frame.content {
            CollectionContent::Seq(items) => frame.path.index(items.len()),
            CollectionContent::Map(open) => match &open.pending {
                PendingValue::Value(key) => frame.path.key(key.text()),
                PendingValue::Merge | PendingValue::Discard | PendingValue::Key => frame.path.key("<<"),
            },
        }
    }

    fn scalar(&self, text: &str, style: ScalarStyle, anchor: usize, tag: Option<&Tag>, start: &Marker) -> Scalar {
        let meaning = match tag {
            Some(tag) => self.tagged_meaning(tag, text, self.pos(start)),
            None if style == ScalarStyle::Plain => resolve(text),
            None => ScalarValue::Str,
        };
        let marked = anchor > 0 || tag.is_some();
        let form = match style {
            ScalarStyle::Literal if marked => ScalarLayout::MarkedBlock,
            ScalarStyle::Literal => ScalarLayout::Block,
            _ => ScalarLayout::Flow,
        };
        let origin = (self.fixed.is_none() && meaning == ScalarValue::Str).then(|| ScalarOrigin {
            map: Arc::clone(self.map),
            offset: self.offset(start),
            form,
        });
        Scalar {
            text: Arc::from(text),
            meaning,
            secret: false,
            origin,
        }
    }

    fn tagged_meaning(&self, tag: &Tag, text: &str, pos: Pos) -> ScalarValue {
        if !tag.is_yaml_core_schema() {
            // A lone `!` means "not resolved": plain text.
            if tag.suffix != "!" && !tag.suffix.is_empty() {
                self.unknown_tag(tag, pos);
            }
            return ScalarValue::Str;
        }
        tagged(&tag.suffix, text).unwrap_or_else(|message| {
            self.diags.error_at(pos, message);
            ScalarValue::Str
        })
    }

    fn check_collection_tag(&self, tag: Option<&Tag>, expected: &str, pos: Pos) {
        if let Some(tag) = tag
            && !(tag.is_yaml_core_schema() && tag.suffix == expected)
        {
            self.unknown_tag(tag, pos);
        }
    }

    fn unknown_tag(&self, tag: &Tag, pos: Pos) {
        let handle = if tag.is_yaml_core_schema() { "!!" } else { &tag.handle };
        let written = quoted(&format!("{handle}{}", tag.suffix));
        let message = format!("unknown tag {written}; use !!str, !!int, !!float or !!bool");
        self.diags.error_at(pos, message);
    }

    fn key(&mut self, key: Key, plain: bool) -> Result<(), ParseError> {
        if plain && matches!(key.as_str(), "" | "~") {
            return Err(ParseError(
                key.pos(),
                "a field needs a name in front of the colon".to_owned(),
            ));
        }
        let Some(OpenCollection {
            content: CollectionContent::Map(open),
            path,
            ..
        }) = self.frames.last_mut()
        else {
            return Ok(());
        };
        if let Some(first) = open.seen.get(&*key) {
            let place = DuplicateNote { path, line: first.line };
            let message = format!("duplicate field {}{place}", quoted(&key));
            self.diags.error_at(key.pos(), message);
            open.pending = PendingValue::Discard;
            return Ok(());
        }
        open.seen.insert(key.text(), key.pos());
        open.pending = if plain && key.as_str() == "<<" {
            PendingValue::Merge
        } else {
            PendingValue::Value(key)
        };
        Ok(())
    }

    fn alias(&mut self, id: usize, pos: Pos) -> Result<(), ParseError> {
        let Some(target) = self.anchors.get(&id).cloned() else {
            let message = "this alias is inside the value that it refers to";
            return Err(ParseError(pos, message.to_owned()));
        };
        if self.at_key() {
            return match target.scalar_text() {
                Some(text) => self.key(Key::new(text, pos), false),
                None => Err(name_not_text(pos)),
            };
        }
        let node = self.copy(&target, self.next_path(), self.frames.len(), pos)?;
        self.finish_value(node, 0)
    }

    fn copy(&mut self, node: &Node, path: NodePath, depth: usize, pos: Pos) -> Result<Node, ParseError> {
        let levels = DEPTH_MAX.saturating_sub(depth) + 1;
        let mut budget = self.budget;
        let copied = node.rebased(path, &mut budget, levels);
        let exhausted = budget == 0;
        self.budget = budget;
        copied.ok_or_else(|| if exhausted { too_many(pos) } else { too_deep(pos) })
    }

    fn open(&mut self, pos: Pos, anchor: usize, content: CollectionContent) -> Result<(), ParseError> {
        if self.at_key() {
            return Err(name_not_text(pos));
        }
        if self.frames.len() >= DEPTH_MAX {
            return Err(too_deep(pos));
        }
        let path = self.next_path();
        self.frames.push(OpenCollection {
            pos,
            path,
            anchor,
            content,
        });
        Ok(())
    }

    fn close(&mut self) -> Result<(), ParseError> {
        let Some(OpenCollection {
            pos,
            path,
            anchor,
            content,
        }) = self.frames.pop()
        else {
            return Ok(());
        };
        let value = match content {
            CollectionContent::Seq(items) => NodeValue::Seq(items),
            CollectionContent::Map(open) => NodeValue::Map(self.merged(open, &path)?),
        };
        self.finish_value(Node::new(pos, path, value), anchor)
    }

    /// Adds the fields of `<<` that the mapping itself does not have.
    fn merged(&mut self, open: OpenMap, path: &NodePath) -> Result<Mapping, ParseError> {
        let OpenMap {
            mut entries,
            mut seen,
            merges,
            ..
        } = open;
        for source in &merges {
            let maps = source.as_seq().unwrap_or(std::slice::from_ref(source));
            for from in maps {
                let Some(fields) = from.as_map() else {
                    let message = "\"<<\" needs a mapping or a list of mappings, such as *defaults";
                    self.diags.error_at(from.pos(), message);
                    continue;
                };
                for (key, value) in fields.iter() {
                    if seen.contains_key(key.as_str()) {
                        continue;
                    }
                    let target = path.key(key.text());
                    let copied = self.copy(value, target, self.frames.len() + 1, value.pos())?;
                    seen.insert(key.text(), key.pos());
                    entries.push((key.clone(), copied));
                }
            }
        }
        Ok(Mapping::new(entries))
    }

    /// Adds a complete value to the open collection.
    fn finish_value(&mut self, node: Node, anchor: usize) -> Result<(), ParseError> {
        self.budget = self.budget.checked_sub(1).ok_or_else(|| too_many(node.pos()))?;
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.frames.last_mut().map(|frame| &mut frame.content) {
            None => self.root = Some(node),
            Some(CollectionContent::Seq(items)) => items.push(node),
            Some(CollectionContent::Map(open)) => match std::mem::take(&mut open.pending) {
                PendingValue::Value(key) => open.entries.push((key, node)),
                PendingValue::Merge => open.merges.push(node),
                PendingValue::Discard | PendingValue::Key => {}
            },
        }
        Ok(())
    }

    fn offset(&self, marker: &Marker) -> usize {
        self.map.parsed().offset(marker.line(), marker.col())
    }

    fn pos(&self, marker: &Marker) -> Pos {
        self.fixed.unwrap_or_else(|| self.map.pos(self.offset(marker)))
    }

    fn malformed(&self, error: &ScanError) -> ParseError {
        let marker = error.marker();
        let info = error.info();
        if info == "recursion limit exceeded" {
            return too_deep(self.pos(marker));
        }
        let parsed = self.map.parsed();
        let line = parsed.line(marker.line());
        let indent = line.split(|c: char| !c.is_whitespace()).next().unwrap_or_default();
        if let Some(tab) = indent.find('\t') {
            let pos = self.map.pos(parsed.line_start(marker.line()) + tab);
            return ParseError(pos, format!("malformed YAML: {info}; indent with spaces, not tabs"));
        }
        let cures = [
            (
                "mapping values are not allowed",
                "check the indentation, and quote a text that contains \": \"",
            ),
            (
                "quoted scalar, found unexpected end",
                "the quote opened here is never closed",
            ),
            (
                "indentation in quoted scalar",
                "close the quote opened here, or indent the lines after it",
            ),
            ("simple key expect", "a field needs a colon and a space after its name"),
            ("unknown anchor", "define it with & in front of its first use"),
            ("expected ',' or ']'", "close the list with ]"),
            ("expected ',' or '}'", "close the mapping with }"),
        ];
        let cure = cures.iter().find(|(part, _)| info.contains(part));
        let cure = cure.map(|(_, cure)| format!("; {cure}")).unwrap_or_default();
        ParseError(self.pos(marker), format!("malformed YAML: {info}{cure}"))
    }
}

/// ` in input.opcua, first given on line 5`.
struct DuplicateNote<'a> {
    path: &'a NodePath,
    line: u32,
}

impl std::fmt::Display for DuplicateNote<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let path = self.path.to_string();
        if !path.is_empty() {
            write!(f, " in {path}")?;
        }
        write!(f, ", first given on line {}", self.line)
    }
}

fn name_not_text(pos: Pos) -> ParseError {
    ParseError(
        pos,
        "the name of a field must be a text, not a list or a mapping".to_owned(),
    )
}

fn too_deep(pos: Pos) -> ParseError {
    ParseError(pos, format!("lists and mappings are nested more than {DEPTH_MAX} deep"))
}

fn too_many(pos: Pos) -> ParseError {
    let message = "more than 1,000,000 values, counting an alias as all the values it stands for";
    ParseError(pos, message.to_owned())
}

#[cfg(test)]
mod tests;
