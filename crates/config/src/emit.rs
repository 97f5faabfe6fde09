//! Writes a tree as YAML or JSON, with secrets masked.
//!
//! The YAML reads back as the same tree: ambiguous text is quoted, numbers keep their written form, and a tag is added
//! where a plain scalar would change its kind.

use std::fmt::Write;

use crate::node::{Mapping, Node, NodeValue, Scalar};
use crate::scalar::{ScalarValue, resolve};
use crate::secrets::{MASK, has_private_key, is_secret_name, mask_url};

/// Whether secrets appear in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SecretMasking {
    Mask,
    /// For comparisons in tests; no user-visible output contains secrets.
    #[cfg(test)]
    Show,
}

/// Maximum length of a rendered key before YAML needs the `? key` form.
const SIMPLE_KEY_CHARS_MAX: usize = 1000;

pub(crate) fn yaml(node: &Node, secrets: SecretMasking) -> String {
    let mut writer = YamlWriter {
        out: String::new(),
        secrets,
    };
    match node.value() {
        NodeValue::Map(mapping) if !mapping.is_empty() => writer.mapping(mapping, 0, false),
        NodeValue::Seq(items) if !items.is_empty() => writer.list(items, 0, false),
        _ => {
            let scalar = writer.inline(node);
            writer.out.push_str(&scalar);
            writer.out.push('\n');
        }
    }
    writer.out
}

struct YamlWriter {
    out: String,
    secrets: SecretMasking,
}

impl YamlWriter {
    /// `begun`: the cursor is where the first field goes, after a `- `.
    fn mapping(&mut self, mapping: &Mapping, indent: usize, begun: bool) {
        for (at, (key, value)) in mapping.iter().enumerate() {
            if at > 0 || !begun {
                self.spaces(indent);
            }
            let name = key_text(key);
            if name.chars().count() > SIMPLE_KEY_CHARS_MAX {
                let _ = writeln!(self.out, "? {name}");
                self.spaces(indent);
                self.out.push(':');
            } else {
                self.out.push_str(&name);
                self.out.push(':');
            }
            self.after_colon(value, indent);
        }
    }

    fn after_colon(&mut self, value: &Node, indent: usize) {
        match value.value() {
            NodeValue::Map(mapping) if !mapping.is_empty() => {
                self.out.push('\n');
                self.mapping(mapping, indent + 2, false);
            }
            NodeValue::Seq(items) if !items.is_empty() => {
                self.out.push('\n');
                self.list(items, indent + 2, false);
            }
            _ => self.leaf(value, indent),
        }
    }

    fn list(&mut self, items: &[Node], indent: usize, begun: bool) {
        for (at, item) in items.iter().enumerate() {
            if at > 0 || !begun {
                self.spaces(indent);
            }
            self.out.push('-');
            match item.value() {
                NodeValue::Map(mapping) if !mapping.is_empty() => {
                    self.out.push(' ');
                    self.mapping(mapping, indent + 2, true);
                }
                NodeValue::Seq(items) if !items.is_empty() => {
                    self.out.push(' ');
                    self.list(items, indent + 2, true);
                }
                _ => self.leaf(item, indent),
            }
        }
    }

    /// A scalar or an empty collection after `key:` or `-`.
    fn leaf(&mut self, node: &Node, indent: usize) {
        if let Some((header, text)) = self.as_block(node) {
            let _ = writeln!(self.out, " {header}");
            for line in text.strip_suffix('\n').unwrap_or(&text).split('\n') {
                if !line.is_empty() {
                    self.spaces(indent + 2);
                    self.out.push_str(line);
                }
                self.out.push('\n');
            }
            return;
        }
        let scalar = self.inline(node);
        let _ = writeln!(self.out, " {scalar}");
    }

    /// The header and content of a `|` block, for multi-line text that such a block can contain.
    fn as_block(&self, node: &Node) -> Option<(&'static str, String)> {
        let scalar = node.as_scalar()?;
        let text = shown(node, scalar, self.secrets)?;
        let content = text.strip_suffix('\n').unwrap_or(&text);
        let fits = content.contains('\n')
            && !content.ends_with('\n')
            && !content.starts_with([' ', '\t', '\n'])
            && content.chars().all(|c| c == '\n' || c == '\t' || is_printable(c));
        let header = if text.ends_with('\n') { "|" } else { "|-" };
        fits.then_some((header, text))
    }

    fn inline(&self, node: &Node) -> String {
        match node.value() {
            NodeValue::Seq(_) => "[]".to_owned(),
            NodeValue::Map(_) => "{}".to_owned(),
            NodeValue::Scalar(scalar) => match shown(node, scalar, self.secrets) {
                Some(text) => text_scalar(&text),
                None => other_scalar(scalar),
            },
        }
    }

    fn spaces(&mut self, count: usize) {
        self.out.extend(std::iter::repeat_n(' ', count));
    }
}

/// The text of a scalar that is shown as text: its own, or the mask. `None` for null, booleans and numbers.
fn shown(node: &Node, scalar: &Scalar, secrets: SecretMasking) -> Option<String> {
    let is_text = scalar.meaning == ScalarValue::Str;
    if secrets == SecretMasking::Mask && scalar.meaning != ScalarValue::Null && !scalar.text.is_empty() {
        let named = node.steps().last_key().is_some_and(is_secret_name);
        if scalar.secret || named || has_private_key(&scalar.text) {
            return Some(MASK.to_owned());
        }
        if is_text && let Some(masked) = mask_url(&scalar.text) {
            return Some(masked);
        }
    }
    is_text.then(|| scalar.text.to_string())
}

/// Null, a boolean or a number in its written form.
fn other_scalar(scalar: &Scalar) -> String {
    let (tag, text) = match scalar.meaning {
        ScalarValue::Null => return "null".to_owned(),
        ScalarValue::Bool(_) => ("bool", &*scalar.text),
        ScalarValue::Int(_) => ("int", &*scalar.text),
        ScalarValue::Float(_) => ("float", &*scalar.text),
        ScalarValue::Str => ("str", &*scalar.text),
    };
    let text = text.trim();
    let same = match (resolve(text), scalar.meaning) {
        (ScalarValue::Float(a), ScalarValue::Float(b)) => a == b || (a.is_nan() && b.is_nan()),
        (a, b) => a == b,
    };
    if same {
        text.to_owned()
    } else {
        format!("!!{tag} {}", double_quoted(text))
    }
}

fn key_text(key: &str) -> String {
    if is_plain(key) || matches!(key, "true" | "false") {
        key.to_owned()
    } else {
        double_quoted(key)
    }
}

fn text_scalar(text: &str) -> String {
    if is_plain(text) {
        text.to_owned()
    } else {
        double_quoted(text)
    }
}

/// Whether a text can be written without quotes and is still text for every YAML reader.
fn is_plain(text: &str) -> bool {
    const OTHER_TRUTHS: [&str; 6] = ["y", "n", "yes", "no", "on", "off"];
    let safe = |c: char| {
        c.is_ascii_alphanumeric() || matches!(c, ' ' | '_' | '-' | '.' | '/' | ':' | '=' | '+' | ';' | '@' | '$')
    };
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | '$'))
        && text.chars().all(safe)
        && !text.ends_with([' ', ':'])
        && !text.contains(": ")
        && resolve(text) == ScalarValue::Str
        && !OTHER_TRUTHS.contains(&text.to_ascii_lowercase().as_str())
}

/// Printable in every YAML version and not a line break in any.
fn is_printable(c: char) -> bool {
    !matches!(c, '\0'..='\u{1F}' | '\u{7F}'..='\u{9F}' | '\u{2028}' | '\u{2029}' | '\u{FEFF}'
        | '\u{FFFE}' | '\u{FFFF}')
}

fn double_quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_printable(c) => out.push(c),
            c => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}

pub(crate) fn json(node: &Node, secrets: SecretMasking) -> String {
    let mut out = String::new();
    json_value(node, secrets, &mut out);
    out
}

fn json_value(node: &Node, secrets: SecretMasking, out: &mut String) {
    match node.value() {
        NodeValue::Scalar(scalar) => match shown(node, scalar, secrets) {
            Some(text) => out.push_str(&double_quoted(&text)),
            None => json_scalar(scalar, out),
        },
        NodeValue::Seq(items) => {
            out.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                json_value(item, secrets, out);
            }
            out.push(']');
        }
        NodeValue::Map(mapping) => {
            out.push('{');
            for (at, (key, value)) in mapping.iter().enumerate() {
                if at > 0 {
                    out.push(',');
                }
                out.push_str(&double_quoted(key));
                out.push(':');
                json_value(value, secrets, out);
            }
            out.push('}');
        }
    }
}

fn json_scalar(scalar: &Scalar, out: &mut String) {
    // Writing to a string cannot fail.
    let _ = match scalar.meaning {
        ScalarValue::Null => write!(out, "null"),
        ScalarValue::Bool(truth) => write!(out, "{truth}"),
        ScalarValue::Int(number) => write!(out, "{number}"),
        ScalarValue::Float(number) if !number.is_finite() => {
            write!(out, "{}", double_quoted(&scalar.text))
        }
        // Integers over 64 bits keep their digits.
        ScalarValue::Float(_) if is_json_integer(&scalar.text) => write!(out, "{}", scalar.text),
        ScalarValue::Float(number) if (1e-5..1e16).contains(&number.abs()) || number == 0.0 => {
            write!(out, "{number}")
        }
        ScalarValue::Float(number) => write!(out, "{number:e}"),
        ScalarValue::Str => write!(out, "{}", double_quoted(&scalar.text)),
    };
}

fn is_json_integer(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) && (digits == "0" || !digits.starts_with('0'))
}

#[cfg(test)]
mod tests;
