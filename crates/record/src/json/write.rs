//! Writes [`Value`] as JSON text, each type in the form that consumers of the reference formats expect.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::{Object, Structured, Text, Value, write_f32, write_f64};

/// The JSON text of a value. Non-finite floats appear bare (`NaN`, `+Inf`, `-Inf`), which is not JSON: callers whose
/// readers need JSON check for them first.
pub fn to_string(value: &Value) -> String {
    let mut out = String::new();
    write(value, &mut out);
    out
}

pub fn write(value: &Value, out: &mut String) {
    JsonWriter {
        out,
        sort: false,
        escapes: EscapeStyle::Needed,
    }
    .value(value);
}

/// Member names sorted by bytes, and `<`, `>`, `&` escaped: the form of nested values within text.
pub fn write_sorted(value: &Value, out: &mut String) {
    JsonWriter {
        out,
        sort: true,
        escapes: EscapeStyle::Html,
    }
    .value(value);
}

/// A JSON string literal with its quotes.
pub fn write_string(text: &str, out: &mut String) {
    string(text, EscapeStyle::Needed, out);
}

/// Like `write_string`, in the form of `JSON.stringify`: `\b` and `\f` instead of `\u0008` and `\u000c`.
pub fn write_js_string(text: &str, out: &mut String) {
    string(text, EscapeStyle::Js, out);
}

/// Escapes beyond those that JSON requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EscapeStyle {
    Needed,
    Html,
    Js,
}

struct JsonWriter<'a> {
    out: &'a mut String,
    sort: bool,
    escapes: EscapeStyle,
}

impl JsonWriter<'_> {
    fn value(&mut self, value: &Value) {
        match value {
            Value::Null => self.out.push_str("null"),
            Value::Bool(b) => self.out.push_str(if *b { "true" } else { "false" }),
            Value::I8(n) => self.display(n),
            Value::U8(n) => self.display(n),
            Value::I16(n) => self.display(n),
            Value::U16(n) => self.display(n),
            Value::I32(n) => self.display(n),
            Value::U32(n) | Value::Status(n) => self.display(n),
            Value::I64(n) => self.display(n),
            Value::U64(n) => self.display(n),
            Value::F32(n) => write_f32(*n, self.out),
            Value::F64(n) => write_f64(*n, self.out),
            Value::Decimal(text) => self.out.push_str(text),
            Value::Text(text) | Value::Xml(text) | Value::NodeId(text) => self.string(text),
            Value::Bytes(bytes) => self.base64(bytes),
            Value::Time(time) => {
                self.out.push('"');
                time.write_rfc3339(self.out);
                self.out.push('"');
            }
            Value::Guid(guid) => {
                let (d1, d2, d3) = (guid.data1, guid.data2, guid.data3);
                let _ = write!(self.out, "{{\"Data1\":{d1},\"Data2\":{d2},\"Data3\":{d3},\"Data4\":");
                self.base64(&guid.data4);
                self.out.push('}');
            }
            Value::Structured(structured) => self.structured(structured),
            Value::Array(values) => self.array(values),
            Value::Object(object) => self.object(object),
        }
    }

    fn display(&mut self, n: impl std::fmt::Display) {
        let _ = write!(self.out, "{n}");
    }

    fn array(&mut self, values: &[Value]) {
        self.out.push('[');
        for (i, value) in values.iter().enumerate() {
            if i > 0 {
                self.out.push(',');
            }
            self.value(value);
        }
        self.out.push(']');
    }

    fn object(&mut self, object: &Object) {
        self.out.push('{');
        let mut first = true;
        let mut member = |writer: &mut Self, (name, value): (&Text, &Value)| {
            if !std::mem::take(&mut first) {
                writer.out.push(',');
            }
            writer.string(name);
            writer.out.push(':');
            writer.value(value);
        };
        if self.sort {
            let mut members: Vec<_> = object.iter().collect();
            members.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
            members.into_iter().for_each(|m| member(self, m));
        } else {
            object.iter().for_each(|m| member(self, m));
        }
        self.out.push('}');
    }

    fn structured(&mut self, structured: &Structured) {
        match structured {
            Structured::ExpandedNodeId {
                node_id,
                namespace_uri,
                server_index,
            } => {
                self.out.push_str("{\"NodeID\":");
                self.string(node_id);
                self.out.push_str(",\"NamespaceURI\":");
                self.string(namespace_uri);
                let _ = write!(self.out, ",\"ServerIndex\":{server_index}}}");
            }
            Structured::QualifiedName { namespace_index, name } => {
                let _ = write!(self.out, "{{\"NamespaceIndex\":{namespace_index},\"Name\":");
                self.string(name);
                self.out.push('}');
            }
            Structured::LocalizedText { locale, text } => {
                let mask = u8::from(locale.is_some()) | u8::from(text.is_some()) << 1;
                let _ = write!(self.out, "{{\"EncodingMask\":{mask},\"Locale\":");
                self.string(locale.as_deref().unwrap_or_default());
                self.out.push_str(",\"Text\":");
                self.string(text.as_deref().unwrap_or_default());
                self.out.push('}');
            }
            Structured::Extension { type_id, body } => {
                self.out.push_str("{\"TypeID\":");
                self.string(type_id);
                self.out.push_str(",\"Body\":");
                self.base64(body);
                self.out.push('}');
            }
        }
    }

    fn base64(&mut self, bytes: &[u8]) {
        self.out.push('"');
        STANDARD.encode_string(bytes, self.out);
        self.out.push('"');
    }

    fn string(&mut self, text: &str) {
        string(text, self.escapes, self.out);
    }
}

fn string(text: &str, escapes: EscapeStyle, out: &mut String) {
    let is_special = |b: u8| {
        b < 0x20 || b == b'"' || b == b'\\' || (escapes == EscapeStyle::Html && matches!(b, b'<' | b'>' | b'&'))
    };
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(is_special) {
        let (plain, special) = rest.split_at(at);
        out.push_str(plain);
        let mut chars = special.chars();
        match chars.next() {
            Some('"') => out.push_str("\\\""),
            Some('\\') => out.push_str("\\\\"),
            Some('\n') => out.push_str("\\n"),
            Some('\r') => out.push_str("\\r"),
            Some('\t') => out.push_str("\\t"),
            Some('\u{8}') if escapes == EscapeStyle::Js => out.push_str("\\b"),
            Some('\u{c}') if escapes == EscapeStyle::Js => out.push_str("\\f"),
            Some(c) => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            None => {}
        }
        rest = chars.as_str();
    }
    out.push_str(rest);
    out.push('"');
}
