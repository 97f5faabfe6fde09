//! Replaces environment variables in the text of a configuration, before YAML is parsed.
//!
//! `${NAME}` and `${NAME:default}` are replaced; `${{NAME}}` becomes the literal `${NAME}`. Interpolations `${! ... }`
//! and file references `${file:PATH}` are not touched. The result is the text for the parser with a map back to the
//! original positions.
//!
//! A variable that is set to an empty text counts as unset if there is a default, and a default may contain further
//! references, both as in the reference system. An unset variable in a comment line is not a mistake.

use std::collections::HashMap;
use std::ops::Range;

use crate::diagnostics::{Diagnostics, UNSET};
use crate::names::quoted;
use crate::source::{IndexedText, SourceMap, SourceText, TEXT_BYTES_MAX, TextEdit, too_large};

/// Maximum nesting of defaults.
const NESTING_MAX: usize = 16;

/// Replaces all references; `None` if the text grew over the limit, which is then reported.
pub(crate) fn replace(
    source: &SourceText,
    env: &dyn Fn(&str) -> Option<String>,
    diags: &Diagnostics,
) -> Option<SourceMap> {
    let original = IndexedText::new(source.text.clone());
    let mut replacer = Replacer {
        text: &source.text,
        places: &original,
        closing: closing_braces(&source.text),
        env,
        diags,
        comment: (0, false),
    };
    let mut out = String::with_capacity(source.text.len());
    let mut edits = Vec::new();
    let complete = replacer.expand(0..source.text.len(), 0, &mut out, &mut |edit| edits.push(edit));
    complete.then(|| SourceMap::new(original, out, edits))
}

/// Maps the brace of each `${` to its closing `}`. A plain `{` does not nest, so a default ends at the first `}`
/// outside a nested reference.
fn closing_braces(text: &str) -> HashMap<usize, usize> {
    let bytes = text.as_bytes();
    let mut open = Vec::new();
    let mut closing = HashMap::new();
    for (at, &byte) in bytes.iter().enumerate() {
        if byte == b'{' && at.checked_sub(1).and_then(|b| bytes.get(b)) == Some(&b'$') {
            open.push(at);
        } else if byte == b'}'
            && let Some(brace) = open.pop()
        {
            closing.insert(brace, at);
        }
    }
    closing
}

struct Replacer<'a> {
    text: &'a str,
    places: &'a IndexedText,
    closing: HashMap<usize, usize>,
    env: &'a dyn Fn(&str) -> Option<String>,
    diags: &'a Diagnostics,
    /// The last line that was checked, and whether it is a comment.
    comment: (usize, bool),
}

/// `NAME` or `NAME:default` between braces.
struct EnvReference<'a> {
    name: &'a str,
    default: Option<Range<usize>>,
    /// After the closing brace.
    end: usize,
}

/// The meaning of a `$` or `{`.
enum Expansion {
    /// Nothing to replace up to here.
    Text(usize),
    Replacement(usize, String),
}

impl<'a> Replacer<'a> {
    /// Appends the expanded range to `out` and reports each replacement; false if it grew too large.
    fn expand(
        &mut self,
        range: Range<usize>,
        depth: usize,
        out: &mut String,
        edited: &mut dyn FnMut(TextEdit),
    ) -> bool {
        let mut copied = range.start;
        let mut at = range.start;
        while let Some(start) = self.next_mark(at, range.end) {
            let found = match self.byte(start) {
                Some(b'$') => self.dollar(start, range.end, depth),
                _ => self.template(start, range.end),
            };
            match found {
                Expansion::Text(end) => at = end,
                Expansion::Replacement(end, value) => {
                    out.push_str(self.slice(copied..start));
                    let new_start = out.len();
                    out.push_str(&value);
                    edited(TextEdit {
                        old_start: start,
                        old_end: end,
                        new_start,
                        new_end: out.len(),
                    });
                    at = end;
                    copied = end;
                }
            }
            if out.len() > TEXT_BYTES_MAX {
                self.diags.error_at(self.places.pos(start), too_large());
                return false;
            }
        }
        out.push_str(self.slice(copied..range.end));
        true
    }

    /// The next `${` or `{{`.
    fn next_mark(&self, from: usize, end: usize) -> Option<usize> {
        let bytes = self.text.as_bytes().get(from..end)?;
        let pairs = bytes.windows(2);
        pairs
            .into_iter()
            .position(|pair| pair == b"${" || pair == b"{{")
            .map(|at| from + at)
    }

    /// Handles a `${`.
    fn dollar(&mut self, start: usize, end: usize, depth: usize) -> Expansion {
        if self.byte(start + 2) == Some(b'{') {
            if let Some(inner) = self.reference(start + 2, start + 1, end)
                && self.byte(inner.end) == Some(b'}')
                && inner.end < end
                && inner.name != "file"
            {
                let literal = format!("${}", self.slice(start + 2..inner.end));
                return Expansion::Replacement(inner.end + 1, literal);
            }
            // A template mark may follow: `${{ .X }}`.
            return Expansion::Text(start + 1);
        }
        match self.reference(start + 1, start + 1, end) {
            None => Expansion::Text(start + 2),
            Some(reference) if reference.name == "file" => {
                if reference.default.is_none() {
                    let message = "${file} needs a path, as in ${file:/run/secrets/password}";
                    self.diags.error_at(self.places.pos(start), message);
                }
                Expansion::Text(reference.end)
            }
            Some(reference) => self.variable(start, reference, depth),
        }
    }

    /// Reads a reference whose brace is at `brace`; its default ends at the brace that closes `open`.
    fn reference(&self, brace: usize, open: usize, end: usize) -> Option<EnvReference<'a>> {
        let name_start = brace + 1;
        let bytes = self.text.as_bytes().get(name_start..end)?;
        let is_name = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.');
        let name_end = name_start + bytes.iter().take_while(|b| is_name(b)).count();
        let name = self.text.get(name_start..name_end)?;
        if name.is_empty() || name.starts_with('.') {
            return None;
        }
        match self.byte(name_end).filter(|_| name_end < end)? {
            b'}' => Some(EnvReference {
                name,
                default: None,
                end: name_end + 1,
            }),
            b':' => {
                let close = *self.closing.get(&open)?;
                let default = name_end + 1..close;
                (close < end).then_some(EnvReference {
                    name,
                    default: Some(default),
                    end: close + 1,
                })
            }
            _ => None,
        }
    }

    fn variable(&mut self, start: usize, reference: EnvReference<'a>, depth: usize) -> Expansion {
        let EnvReference { name, default, end } = reference;
        let value = (self.env)(name);
        if let Some(range) = default {
            let value = value.filter(|value| !value.is_empty());
            return Expansion::Replacement(end, value.unwrap_or_else(|| self.default(range, depth)));
        }
        match value {
            Some(value) => Expansion::Replacement(end, value),
            None if self.in_comment(start) => Expansion::Text(end),
            None => {
                let message = format!("environment variable {name} is not set");
                let cure = format!(
                    ": set it, give a default as in ${{{name}:value}}, or write ${{{{{name}}}}} for the literal text"
                );
                self.diags.absent_at(self.places.pos(start), message, &cure);
                self.diags.unset();
                Expansion::Replacement(end, UNSET.to_owned())
            }
        }
    }

    fn default(&mut self, range: Range<usize>, depth: usize) -> String {
        if depth >= NESTING_MAX {
            let message = format!("defaults are nested more than {NESTING_MAX} deep");
            self.diags.error_at(self.places.pos(range.start), message);
            self.diags.unset();
            return UNSET.to_owned();
        }
        let mut out = String::new();
        self.expand(range, depth + 1, &mut out, &mut |_| {});
        out
    }

    /// Handles a `{{`: a mark that a template engine should have replaced is a mistake.
    fn template(&mut self, start: usize, end: usize) -> Expansion {
        let rest = self.slice(start + 2..end);
        let inner = rest.strip_prefix('-').unwrap_or(rest).trim_start_matches([' ', '\t']);
        let mut chars = inner.chars();
        let is_mark = chars.next() == Some('.') && chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        if !is_mark || self.in_comment(start) {
            return Expansion::Text(start + 1);
        }
        let line = rest.split('\n').next().unwrap_or_default();
        let Some(length) = line.find("}}") else {
            return Expansion::Text(start + 1);
        };
        let mark_end = start + 2 + length + 2;
        let mark = quoted(self.slice(start..mark_end));
        let message = format!("the template {mark} is not rendered: render the file first, or use ${{NAME}}");
        self.diags.error_at(self.places.pos(start), message);
        self.diags.unset();
        Expansion::Replacement(mark_end, UNSET.to_owned())
    }

    fn in_comment(&mut self, at: usize) -> bool {
        let line = self.places.line_number(at);
        if self.comment.0 != line {
            self.comment = (line, self.places.line(line).trim_start().starts_with('#'));
        }
        self.comment.1
    }

    fn byte(&self, at: usize) -> Option<u8> {
        self.text.as_bytes().get(at).copied()
    }

    fn slice(&self, range: Range<usize>) -> &'a str {
        self.text.get(range).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn environment(name: &str) -> Option<String> {
        match name {
            "HOST" => Some("plc".to_owned()),
            "LINES" => Some("a\nbb\nccc".to_owned()),
            "EMPTY" => Some(String::new()),
            "NESTED" => Some("${HOST}".to_owned()),
            "a.b" => Some("dotted".to_owned()),
            _ => None,
        }
    }

    fn run(text: &str) -> (String, String) {
        let diags = Diagnostics::new("f.yaml");
        let map = replace(&SourceText::new("f.yaml", text), &environment, &diags).unwrap();
        (map.parsed().text().to_owned(), diags.to_string())
    }

    #[test]
    fn replacements() {
        let cases = [
            ("x: ${HOST}", "x: plc"),
            ("${HOST}${HOST:b}", "plcplc"),
            ("${EMPTY}", ""),
            ("${EMPTY:d}", "d"),
            ("${NONE:d e:f}", "d e:f"),
            ("${NONE:}", ""),
            ("${NONE:[]}", "[]"),
            ("${NONE:${HOST}-1}", "plc-1"),
            ("${NONE:${NONE:${HOST}}}!", "plc!"),
            ("${NONE:${! meta(\"k\") }}", "${! meta(\"k\") }"),
            ("${NESTED}", "${HOST}"),
            ("${a.b}", "dotted"),
            ("${{HOST}}", "${HOST}"),
            ("${{NONE:x}}", "${NONE:x}"),
            ("${! json(\"a\") }", "${! json(\"a\") }"),
            ("${! \"${HOST}\" }", "${! \"plc\" }"),
            ("${file:/x}", "${file:/x}"),
            ("${{file:/x}}", "${{file:/x}}"),
            ("`${a + b}` ${", "`${a + b}` ${"),
            ("${NONE:open", "${NONE:open"),
            ("$HOST {HOST} {{HOST}}", "$HOST {HOST} {{HOST}}"),
            ("# ${NONE} {{ .X }} ${HOST}", "# ${NONE} {{ .X }} plc"),
            ("{{ range }} {{.5}}", "{{ range }} {{.5}}"),
        ];
        for (text, expected) in cases {
            assert_eq!(run(text), (expected.to_owned(), String::new()), "for {text}");
        }
    }

    #[test]
    fn mistakes_have_the_place_in_the_original_text() {
        let (text, messages) = run("a: ${LINES}\nb: é${NONE}\nc: {{ .Values.x }} ${file}\n");
        assert_eq!(text, format!("a: a\nbb\nccc\nb: é{UNSET}\nc: {UNSET} ${{file}}\n"));
        let expected = "f.yaml:2:5: environment variable NONE is not set: set it, give a default as in \
                        ${NONE:value}, or write ${{NONE}} for the literal text\n\
                        f.yaml:3:4: the template \"{{ .Values.x }}\" is not rendered: render the file first, or use ${NAME}\n\
                        f.yaml:3:20: ${file} needs a path, as in ${file:/run/secrets/password}\n";
        assert_eq!(messages, expected);
    }

    #[test]
    fn hostile_references_end_quickly() {
        run(&"${a:".repeat(200_000));
        let deep = format!("{}x{}", "${a:".repeat(1000), "}".repeat(1000));
        let expected = "f.yaml:1:69: defaults are nested more than 16 deep\n";
        assert_eq!(run(&deep).1, expected);
        let diags = Diagnostics::new("f.yaml");
        let bomb = |_: &str| Some("x".repeat(1 << 20));
        assert!(replace(&SourceText::new("f.yaml", "${A}".repeat(20)), &bomb, &diags).is_none());
        assert_eq!(
            diags.to_string(),
            "f.yaml:1:33: the configuration is larger than 8 MiB, the limit\n"
        );
    }

    /// Parts of a text: plain text that marks its own position, or a reference with its value.
    fn parts() -> impl Strategy<Value = Vec<(String, String)>> {
        let plain = "[a-zé \n]{0,12}".prop_map(|text| (text.clone(), text));
        let value = "[A-Zö\n]{0,9}";
        let default = value.prop_map(|value| (format!("${{NONE:{value}}}"), value));
        let set = Just(("${LINES}".to_owned(), "a\nbb\nccc".to_owned()));
        let literal = Just(("${{HOST}}".to_owned(), "${HOST}".to_owned()));
        proptest::collection::vec(prop_oneof![3 => plain, 2 => default, 1 => set, 1 => literal], 0..24)
    }

    proptest! {
        /// Every character outside a replacement keeps its position, whatever was replaced before it.
        #[test]
        fn places_survive_replacement(parts in parts()) {
            let original: String = parts.iter().map(|(before, _)| before.as_str()).collect();
            let diags = Diagnostics::new("f.yaml");
            let source = SourceText::new("f.yaml", original.clone());
            let map = replace(&source, &environment, &diags).unwrap();
            let expected: String = parts.iter().map(|(_, after)| after.as_str()).collect();
            prop_assert_eq!(map.parsed().text(), expected);
            let places = IndexedText::new(original);
            let (mut old, mut new) = (0, 0);
            for (before, after) in &parts {
                for (offset, _) in after.char_indices() {
                    let within = if before == after { offset } else { 0 };
                    prop_assert_eq!(map.pos(new + offset), places.pos(old + within));
                }
                old += before.len();
                new += after.len();
            }
            prop_assert_eq!(map.pos(new), places.pos(old));
        }
    }
}
