//! `parse_csv`: rows of a table in text.

use thalweg_record::{Object, Text, Value};

use super::{MethodSpec, argument_text, given, with};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr_value::ExprValue;
use crate::limits;
use crate::parser::arguments::{Param, ParamKind};
use crate::view;

pub(super) static METHODS: &[MethodSpec] = &[with(
    "parse_csv",
    &[
        Param::optional("parse_header_row", ParamKind::Bool),
        Param::optional("delimiter", ParamKind::Text),
        // Quotes within fields are always read as they stand.
        Param::optional("lazy_quotes", ParamKind::Bool),
    ],
    parse_csv,
)];

/// Objects named by the first row, or arrays of all rows. Every row must have as many fields as the first.
fn parse_csv(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let bytes = view::bytes(&value).ok_or_else(|| view::mismatch("string or bytes", &value))?;
    let has_header = !matches!(given(arguments, 0), Some(Value::Bool(false)));
    let delimiter = match given(arguments, 1) {
        Some(delimiter) => delimiter_of(&argument_text(delimiter, "delimiter")?)?,
        None => b',',
    };
    context.spend_bytes(bytes.len())?;
    let mut reader = csv::ReaderBuilder::new()
        .has_headers(false)
        .delimiter(delimiter)
        .from_reader(&*bytes);
    let mut rows = reader.records();
    let failed = |error: csv::Error| Fault::text(format!("failed to parse value as CSV: {error}"));
    let mut names: Option<Vec<Text>> = None;
    if has_header {
        let header = rows.next().ok_or_else(|| Fault::text("the CSV has no header row"))?;
        names = Some(header.map_err(failed)?.iter().map(Text::new).collect());
    }
    let mut parsed: Vec<Value> = Vec::new();
    for row in rows {
        let row = row.map_err(failed)?;
        context.spend_elements(row.len() + 1)?;
        limits::check_elements(parsed.len() + 1)?;
        let fields = row.iter().map(Value::from);
        parsed.push(match &names {
            Some(names) => names.iter().cloned().zip(fields).collect::<Object>().into(),
            None => Value::Array(fields.collect()),
        });
    }
    Ok(ExprValue::Value(parsed.into()))
}

fn delimiter_of(text: &str) -> EvalResult<u8> {
    match text.as_bytes() {
        [delimiter] if !matches!(delimiter, b'"' | b'\r' | b'\n') => Ok(*delimiter),
        _ => Err(Fault::text(format!(
            "the delimiter of CSV is one ASCII character other than a quote or a line end, not {text:?}"
        ))),
    }
}
