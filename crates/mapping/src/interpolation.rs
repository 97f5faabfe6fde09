//! [`Interpolation`]: a text that contains `${! expression }` and is rendered per message.

use std::sync::Arc;

use thalweg_record::{Message, Text, Value};

use crate::context::EvalContext;
use crate::error::{EvalResult, Fault, SyntaxError};
use crate::expr::Expr;
use crate::expr_value::ExprValue;
use crate::host::Host;
use crate::parser::{MISTAKES_MAX, Parser};
use crate::view;
use crate::{CompileError, Compiler, RunError};

/// What the text of a field gives for one message, if the field need not be text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RenderedValue {
    Text(Text),
    Bytes(Arc<[u8]>),
}

impl RenderedValue {
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            RenderedValue::Text(text) => text.as_bytes(),
            RenderedValue::Bytes(bytes) => bytes,
        }
    }
}

/// A compiled text. Clones share it, and any number of threads may render it concurrently.
#[derive(Clone)]
pub struct Interpolation(Arc<Template>);

struct Template {
    pieces: Vec<TemplatePart>,
    host: Arc<dyn Host>,
}

enum TemplatePart {
    Literal(Text),
    Meta(Text),
    Expr(Expr),
}

impl Interpolation {
    pub fn compile(text: &str) -> Result<Interpolation, CompileError> {
        Compiler::default().interpolation(text)
    }

    pub(crate) fn build(compiler: &Compiler, text: &str) -> Result<Interpolation, CompileError> {
        let pieces = parse(compiler, text).map_err(|found| SyntaxError::place(found, text))?;
        let host = compiler.host.clone();
        Ok(Interpolation(Arc::new(Template { pieces, host })))
    }

    /// Returns the text if it is the same for every message.
    pub fn is_static(&self) -> Option<&str> {
        match &*self.0.pieces {
            [] => Some(""),
            [TemplatePart::Literal(text)] => Some(text),
            _ => None,
        }
    }

    /// Renders the text for one message of a batch. Values missing in the message render as `null`.
    pub fn render(&self, batch: &[Message], index: usize) -> Result<Text, RunError> {
        match (&*self.0.pieces, batch.get(index)) {
            ([], _) => Ok(Text::default()),
            ([TemplatePart::Literal(text)], _) => Ok(text.clone()),
            ([TemplatePart::Meta(key)], Some(message)) => {
                Ok(message.meta.get(key).map_or(Text::new_static(NULL), Text::from))
            }
            _ => {
                let mut out = String::new();
                self.render_into(batch, index, &mut out)?;
                Ok(out.into())
            }
        }
    }

    /// Like [`Interpolation::render`], for a field whose absence has a meaning: returns `None` if the text is one
    /// expression that gives null, nothing or deleted. Bytes stay bytes if the text is one expression.
    pub fn render_optional(&self, batch: &[Message], index: usize) -> Result<Option<RenderedValue>, RunError> {
        match (&*self.0.pieces, batch.get(index)) {
            ([TemplatePart::Meta(key)], Some(message)) => Ok(message.meta.text(key).map(RenderedValue::Text)),
            ([TemplatePart::Expr(expr)], Some(_)) => self.value(expr, batch, index).map_err(run_error),
            _ => self.render(batch, index).map(|text| Some(RenderedValue::Text(text))),
        }
    }

    fn value(&self, expr: &Expr, batch: &[Message], index: usize) -> EvalResult<Option<RenderedValue>> {
        let mut context = EvalContext::new(&*self.0.host, batch, index, false)?;
        Ok(match expr.eval(&mut context)? {
            ExprValue::Value(Value::Null) | ExprValue::Deleted | ExprValue::Nothing => None,
            ExprValue::Value(Value::Bytes(bytes)) => Some(RenderedValue::Bytes(bytes)),
            ExprValue::Value(value) => Some(RenderedValue::Text(view::to_text(&value)?)),
        })
    }

    /// Appends the text for one message. After an error, `out` may contain a part of it.
    pub fn render_into(&self, batch: &[Message], index: usize, out: &mut String) -> Result<(), RunError> {
        self.write(batch, index, out).map_err(run_error)
    }

    fn write(&self, batch: &[Message], index: usize, out: &mut String) -> EvalResult<()> {
        let mut context = EvalContext::new(&*self.0.host, batch, index, false)?;
        for piece in &self.0.pieces {
            match piece {
                TemplatePart::Literal(text) => out.push_str(text),
                TemplatePart::Meta(key) => match context.message.meta.get(key) {
                    Some(text) => out.push_str(&text),
                    None => out.push_str(NULL),
                },
                TemplatePart::Expr(expr) => match expr.eval(&mut context)? {
                    ExprValue::Value(value) => out.push_str(&view::to_text(&value)?),
                    ExprValue::Deleted | ExprValue::Nothing => {}
                },
            }
        }
        Ok(())
    }
}

const NULL: &str = "null";

fn run_error(fault: Fault) -> RunError {
    RunError {
        line: None,
        message: fault.to_string(),
    }
}

impl std::fmt::Debug for Interpolation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Interpolation({} pieces)", self.0.pieces.len())
    }
}

/// All mistakes of the text, or its pieces.
fn parse(compiler: &Compiler, text: &str) -> Result<Vec<TemplatePart>, Vec<SyntaxError>> {
    let mut pieces = Vec::new();
    let mut mistakes = Vec::new();
    let mut literal = String::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        // `${{! ... }}` is the literal text `${! ... }`.
        if let Some(inner) = rest.strip_prefix("${{!")
            && let Some(length) = inner.find("}}")
        {
            literal.push_str("${!");
            literal.push_str(inner.get(..=length).unwrap_or_default());
            at += length + "${{!}}".len();
            continue;
        }
        if !rest.starts_with("${!") {
            let length = rest
                .char_indices()
                .skip(1)
                .find(|(_, c)| *c == '$')
                .map_or(rest.len(), |(at, _)| at);
            literal.push_str(rest.get(..length).unwrap_or_default());
            at += length;
            continue;
        }
        if !literal.is_empty() {
            pieces.push(TemplatePart::Literal(std::mem::take(&mut literal).into()));
        }
        let parser = Parser::new(compiler, text, at + "${!".len(), false);
        let (expr, end) = match parser.braced_expression(&mut mistakes) {
            Ok(found) => found,
            Err(fault) => {
                // What follows may be the rest of this expression, up to the next one.
                let next = text.get(fault.at..).and_then(|rest| rest.find("${!"));
                at = next.map_or(text.len(), |next| fault.at + next);
                mistakes.push(fault);
                if mistakes.len() >= MISTAKES_MAX {
                    break;
                }
                continue;
            }
        };
        pieces.push(match expr {
            Expr::Meta(key) | Expr::NewMeta(key) => TemplatePart::Meta(key),
            other => TemplatePart::Expr(other),
        });
        at = end;
    }
    if !literal.is_empty() {
        pieces.push(TemplatePart::Literal(literal.into()));
    }
    match mistakes.is_empty() {
        true => Ok(pieces),
        false => Err(mistakes),
    }
}
