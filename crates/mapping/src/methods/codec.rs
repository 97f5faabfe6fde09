//! Methods for JSON text, base64 and hex.

use base64::Engine as _;
use base64::engine::GeneralPurpose;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
use thalweg_record::{Value, json};

use super::{MethodSpec, argument_text, built, given, plain, text_argument, with};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr_value::ExprValue;
use crate::parser::arguments::{Param, ParamKind};
use crate::view;

pub(super) static METHODS: &[MethodSpec] = &[
    with("decode", &[Param::needed("scheme", ParamKind::Text)], decode),
    with("encode", &[Param::needed("scheme", ParamKind::Text)], encode),
    with(
        "format_json",
        &[
            Param::optional("indent", ParamKind::Text),
            Param::optional("no_indent", ParamKind::Bool),
        ],
        format_json,
    ),
    plain("parse_json", |value, context| {
        let bytes = view::bytes(&value).ok_or_else(|| view::mismatch("string", &value))?;
        let parsed =
            json::parse(&bytes).map_err(|error| Fault::text(format!("failed to parse value as JSON: {error}")))?;
        context.spend(bytes.len())?;
        Ok(ExprValue::Value(parsed))
    }),
];

enum EncodingScheme {
    Base64(&'static GeneralPurpose),
    Hex,
}

fn scheme(name: &str) -> EvalResult<EncodingScheme> {
    Ok(match name {
        "base64" => EncodingScheme::Base64(&STANDARD),
        "base64url" => EncodingScheme::Base64(&URL_SAFE),
        "base64rawurl" => EncodingScheme::Base64(&URL_SAFE_NO_PAD),
        "hex" => EncodingScheme::Hex,
        other => {
            let message =
                format!("unrecognized encoding scheme `{other}`; there are: base64, base64url, base64rawurl, hex");
            return Err(Fault::text(message));
        }
    })
}

fn encode(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let bytes = view::bytes(&value).ok_or_else(|| view::mismatch("string or bytes", &value))?;
    context.spend_bytes(bytes.len().saturating_mul(2))?;
    built(match scheme(&text_argument(arguments, 0, "scheme")?)? {
        EncodingScheme::Base64(engine) => engine.encode(&bytes),
        EncodingScheme::Hex => {
            const DIGITS: [char; 16] = [
                '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'a', 'b', 'c', 'd', 'e', 'f',
            ];
            let digit = |nibble: u8| DIGITS.get(usize::from(nibble)).copied().unwrap_or('0');
            bytes
                .iter()
                .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
                .collect()
        }
    })
}

fn decode(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let bytes = view::bytes(&value).ok_or_else(|| view::mismatch("string or bytes", &value))?;
    context.spend_bytes(bytes.len())?;
    let decoded = match scheme(&text_argument(arguments, 0, "scheme")?)? {
        EncodingScheme::Base64(engine) => {
            // Base64 in mail and print contains line breaks.
            let lines: Vec<u8> = bytes
                .iter()
                .copied()
                .filter(|byte| !matches!(byte, b'\r' | b'\n'))
                .collect();
            engine
                .decode(lines)
                .map_err(|error| Fault::text(format!("failed to decode base64: {error}")))?
        }
        EncodingScheme::Hex => unhex(&bytes)?,
    };
    Ok(ExprValue::Value(Value::Bytes(decoded.into())))
}

fn unhex(text: &[u8]) -> EvalResult<Vec<u8>> {
    let bad = || Fault::text("failed to decode hex: expected an even number of the digits 0-9 and a-f");
    let nibble = |digit: u8| {
        char::from(digit)
            .to_digit(16)
            .and_then(|nibble| u8::try_from(nibble).ok())
            .ok_or_else(bad)
    };
    let byte = |pair: &[u8]| match pair {
        [high, low] => Ok(nibble(*high)? << 4 | nibble(*low)?),
        _ => Err(bad()),
    };
    text.chunks(2).map(byte).collect()
}

/// Encodes JSON, indented by four spaces by default.
fn format_json(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    context.check(&value)?;
    let indent = match given(arguments, 0) {
        Some(indent) => argument_text(indent, "indent")?,
        None => "    ".into(),
    };
    let no_indent = matches!(given(arguments, 1), Some(Value::Bool(true)));
    let mut out = String::new();
    if no_indent {
        json::write(&value, &mut out);
    } else {
        let mut printer = JsonPrinter {
            out: &mut out,
            indent: &indent,
            context,
        };
        printer.value(&value, 0)?;
    }
    context.spend_bytes(out.len())?;
    Ok(ExprValue::Value(Value::Bytes(out.into_bytes().into())))
}

struct JsonPrinter<'a, 'c> {
    out: &'a mut String,
    indent: &'a str,
    context: &'a mut EvalContext<'c>,
}

impl JsonPrinter<'_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> EvalResult<()> {
        match value {
            Value::Array(values) if !values.is_empty() => {
                self.out.push('[');
                for (index, value) in values.iter().enumerate() {
                    self.line(index > 0, depth + 1)?;
                    self.value(value, depth + 1)?;
                }
                self.line(false, depth)?;
                self.out.push(']');
            }
            Value::Object(object) if !object.is_empty() => {
                self.out.push('{');
                for (index, (name, value)) in object.iter().enumerate() {
                    self.line(index > 0, depth + 1)?;
                    json::write_string(name, self.out);
                    self.out.push_str(": ");
                    self.value(value, depth + 1)?;
                }
                self.line(false, depth)?;
                self.out.push('}');
            }
            scalar => json::write(scalar, self.out),
        }
        Ok(())
    }

    /// The mapping chooses the indentation, so it is charged before it is written.
    fn line(&mut self, comma: bool, depth: usize) -> EvalResult<()> {
        self.context.spend(self.indent.len() * depth)?;
        crate::limits::check_bytes(self.out.len() + self.indent.len() * depth)?;
        if comma {
            self.out.push(',');
        }
        self.out.push('\n');
        for _ in 0..depth {
            self.out.push_str(self.indent);
        }
        Ok(())
    }
}
