//! Methods on arrays and objects, and those they share with strings: length, contains, paths.

use std::sync::Arc;

use thalweg_record::{Object, Text, Value};

use super::{
    Method, MethodSpec, argument_text, custom, elements, integer_argument, needed, plain, sorted_members, variadic,
    with,
};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr_value::ExprValue;
use crate::operators;
use crate::parser::arguments::{Arguments, Param, ParamKind};
use crate::path::Path;
use crate::prepared_argument::PreparedArgument;
use crate::view;

pub(super) static METHODS: &[MethodSpec] = &[
    variadic("append", append),
    with("contains", &[Param::needed("value", ParamKind::Any)], contains),
    custom("exists", &[Param::needed("path", ParamKind::Text)], |arguments| {
        Ok(Method::Path(PathMethod::Exists(path(arguments)?)))
    }),
    custom("get", &[Param::needed("path", ParamKind::Text)], |arguments| {
        Ok(Method::Path(PathMethod::Get(path(arguments)?)))
    }),
    with("index", &[Param::needed("index", ParamKind::Integer)], index),
    plain("keys", |value, context| {
        let members = sorted_members(&value)?;
        context.spend_elements(members.len())?;
        Ok(ExprValue::Value(Value::Array(
            members.into_iter().map(|(name, _)| Value::Text(name)).collect(),
        )))
    }),
    plain("length", length),
    with(
        "merge",
        &[Param::needed("with", ParamKind::Any)],
        |value, arguments, context| merge(&value, needed(arguments, 0), context).map(ExprValue::Value),
    ),
    plain("values", |value, context| {
        let members = sorted_members(&value)?;
        context.spend_elements(members.len())?;
        Ok(ExprValue::Value(Value::Array(
            members.into_iter().map(|(_, value)| value).collect(),
        )))
    }),
];

/// Methods on a path in dot notation.
pub(crate) enum PathMethod {
    Exists(PreparedArgument<Path>),
    Get(PreparedArgument<Path>),
}

fn path(arguments: &mut Arguments) -> Result<PreparedArgument<Path>, crate::error::SyntaxError> {
    let at = arguments.at(0);
    PreparedArgument::new("path", arguments.value(0)?, at, |text| Ok(Path::dotted(text)))
}

impl PathMethod {
    pub fn eval(&self, target: Value, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        match self {
            PathMethod::Exists(path) => path.with(context, |path, _| {
                Ok(ExprValue::Value(Value::Bool(path.exists(&target))))
            }),
            PathMethod::Get(path) => path.with(context, |path, _| Ok(ExprValue::Value(path.read(&target)))),
        }
    }
}

fn append(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let values = elements(&value)?;
    context.spend_elements(values.len() + arguments.len())?;
    let added = arguments.iter().flatten();
    Ok(ExprValue::Value(Value::Array(
        values.iter().chain(added).cloned().collect(),
    )))
}

fn contains(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let wanted = needed(arguments, 0);
    context.check(wanted)?;
    context.spend(view::shallow_size(&value))?;
    let found = match &value {
        Value::Array(values) => values.iter().any(|value| operators::equal(value, wanted)),
        other => match (view::object(other), view::text(other)) {
            (Some(object), _) => object.iter().any(|(_, value)| operators::equal(value, wanted)),
            (None, Some(text)) => text.contains(&*argument_text(wanted, "value")?),
            (None, None) => return Err(view::mismatch("string, array or object", other)),
        },
    };
    Ok(ExprValue::Value(Value::Bool(found)))
}

/// Returns the element of an array, or the byte of bytes or a string; negative indices count from the end.
fn index(value: Value, arguments: &[Option<Value>], _: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let index = integer_argument(needed(arguments, 0), "index")?;
    let resolve = |length: usize| {
        let from_end = index
            .unsigned_abs()
            .try_into()
            .ok()
            .and_then(|back| length.checked_sub(back));
        let at = if index < 0 {
            from_end
        } else {
            usize::try_from(index).ok()
        };
        at.filter(|at| *at < length)
            .ok_or_else(|| Fault::text(format!("index '{index}' was out of bounds for size: {length}")))
    };
    if let Value::Array(values) = &value {
        let at = resolve(values.len())?;
        return Ok(ExprValue::Value(values.get(at).cloned().unwrap_or(Value::Null)));
    }
    let bytes = view::bytes(&value).ok_or_else(|| view::mismatch("array or bytes", &value))?;
    let at = resolve(bytes.len())?;
    Ok(ExprValue::Value(
        bytes.get(at).map_or(Value::Null, |byte| Value::I64(i64::from(*byte))),
    ))
}

/// The number of elements, members or bytes.
fn length(value: Value, _: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    let length = match &value {
        Value::Array(values) => values.len(),
        other => match (view::object(other), view::bytes(other)) {
            (Some(object), _) => object.len(),
            (None, Some(bytes)) => bytes.len(),
            (None, None) => return Err(view::mismatch("string, bytes, array or object", other)),
        },
    };
    Ok(ExprValue::Value(Value::I64(i64::try_from(length).unwrap_or(i64::MAX))))
}

/// Merges objects member by member. Where both sides have a value that is not an object, the result is an array of
/// both, with arrays flattened. An array appends the elements of another array, or one value.
fn merge(into: &Value, from: &Value, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    if let Value::Array(_) = into {
        return join_values(into, from, context);
    }
    let old = view::object(into).ok_or_else(|| view::mismatch("object or array", into))?;
    let new = view::object(from).ok_or_else(|| view::mismatch("object", from).from(|| "argument `with`".to_owned()))?;
    merge_objects(&old, &new, context)
}

fn merge_objects(old: &Object, new: &Object, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    context.spend_elements(old.len() + new.len())?;
    let mut members: Vec<(Text, Value)> = Vec::with_capacity(old.len() + new.len());
    members.extend(old.iter().map(|(name, value)| (name.clone(), value.clone())));
    for (name, value) in new.iter() {
        let merged = match old.get(name) {
            None => value.clone(),
            Some(before) => match (view::object(before), view::object(value)) {
                (Some(before), Some(value)) => merge_objects(&before, &value, context)?,
                _ => join_values(before, value, context)?,
            },
        };
        members.push((name.clone(), merged));
    }
    Ok(Value::Object(Arc::new(members.into_iter().collect())))
}

fn join_values(left: &Value, right: &Value, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    let open = |value: &Value| match value {
        Value::Array(values) => values.to_vec(),
        single => vec![single.clone()],
    };
    let (mut left, right) = (open(left), open(right));
    context.spend_elements(left.len() + right.len())?;
    left.extend(right);
    Ok(left.into())
}
