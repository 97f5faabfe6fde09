//! The statements of a mapping and their execution on a message.

use thalweg_record::{Metadata, Text, Value};

use crate::RunError;
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr::Expr;
use crate::expr_value::ExprValue;
use crate::path::Path;
use crate::view;

pub(crate) enum Statement {
    /// `root.a.b = ...`. A given value needs no check of the limits.
    Root {
        path: Path,
        value: Expr,
        given: bool,
        line: usize,
    },
    /// `meta key = ...`; without a key, all metadata.
    Meta {
        key: Option<Text>,
        value: Expr,
        line: usize,
    },
    /// `let name = ...`
    Let {
        slot: usize,
        value: Expr,
        given: bool,
        line: usize,
    },
    If {
        branches: Vec<(Expr, Vec<Statement>, usize)>,
        otherwise: Vec<Statement>,
    },
}

pub(crate) fn run(statements: &[Statement], context: &mut EvalContext<'_>) -> Result<(), RunError> {
    if context.changed_meta.is_none() {
        let assignments = statements
            .iter()
            .filter(|s| matches!(s, Statement::Meta { key: Some(_), .. }));
        context.meta_expected = assignments.count();
    }
    for statement in statements {
        let (result, line) = match statement {
            Statement::Root {
                path,
                value,
                given,
                line,
            } => (assign_root(path, value, *given, context), *line),
            Statement::Meta { key, value, line } => (assign_meta(key.as_ref(), value, context), *line),
            Statement::Let {
                slot,
                value,
                given,
                line,
            } => (assign_variable(*slot, value, *given, context), *line),
            Statement::If { branches, otherwise } => {
                run(chosen(branches, otherwise, context)?, context)?;
                continue;
            }
        };
        result.map_err(|fault| RunError {
            line: Some(line),
            message: fault.to_string(),
        })?;
    }
    Ok(())
}

fn chosen<'s>(
    branches: &'s [(Expr, Vec<Statement>, usize)],
    otherwise: &'s [Statement],
    context: &mut EvalContext<'_>,
) -> Result<&'s [Statement], RunError> {
    for (condition, statements, line) in branches {
        let truth = condition.truth(context).map_err(|fault| RunError {
            line: Some(*line),
            message: format!("failed to check if condition: {fault}"),
        })?;
        if truth {
            return Ok(statements);
        }
    }
    Ok(otherwise)
}

fn assign_root(path: &Path, value: &Expr, given: bool, context: &mut EvalContext<'_>) -> EvalResult<()> {
    let value = value.eval(context)?;
    if !given && let ExprValue::Value(value) = &value {
        context.check(value)?;
    }
    context.is_assigned = true;
    context.root.assign(path, value)
}

fn assign_variable(slot: usize, value: &Expr, given: bool, context: &mut EvalContext<'_>) -> EvalResult<()> {
    let value = match value.eval(context)? {
        ExprValue::Nothing => return Ok(()),
        ExprValue::Deleted => None,
        ExprValue::Value(value) => {
            if !given {
                context.check(&value)?;
            }
            Some(value)
        }
    };
    if context.variables.len() <= slot {
        context.variables.resize(slot + 1, None);
    }
    if let Some(variable) = context.variables.get_mut(slot) {
        *variable = value;
    }
    Ok(())
}

fn assign_meta(key: Option<&Text>, value: &Expr, context: &mut EvalContext<'_>) -> EvalResult<()> {
    let evaluated = value.eval(context)?;
    let old = &context.message.meta;
    let meta = match (key, evaluated) {
        (_, ExprValue::Nothing) => return Ok(()),
        (Some(key), evaluated) => {
            let text = match evaluated {
                ExprValue::Value(Value::Text(text)) => Some(text),
                ExprValue::Value(value) => Some(view::to_text(&value)?),
                _ => None,
            };
            let expected = context.meta_expected;
            let meta = context.changed_meta.get_or_insert_with(|| {
                let mut meta = old.clone();
                meta.reserve(expected);
                meta
            });
            match text {
                Some(text) => meta.set(key.clone(), text),
                None => meta.remove(key),
            }
            return Ok(());
        }
        (None, ExprValue::Deleted) => cleared(old),
        (None, ExprValue::Value(all)) => {
            let object = view::object(&all)
                .ok_or_else(|| view::mismatch("object", &all).from(|| value.describe()))
                .map_err(|fault| Fault::text(format!("cannot replace all metadata: {fault}")))?;
            let mut meta = cleared(old);
            let entries = object
                .iter()
                .map(|(key, value)| Ok((key.clone(), view::to_text(value)?)));
            meta.set_all(entries.collect::<EvalResult<_>>()?);
            meta
        }
    };
    context.changed_meta = Some(meta);
    Ok(())
}

/// Removes all keys and keeps the typed stamps of the message.
fn cleared(old: &Metadata) -> Metadata {
    let mut meta = old.clone();
    meta.clear();
    meta
}
