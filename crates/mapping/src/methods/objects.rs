//! Methods that take objects apart and put them together: fields left out, members as an array, one object over another.

use thalweg_record::{Object, Text, Value};

use super::{MethodSpec, argument_text, needed, pair, sorted_members, variadic, with};
use crate::context::EvalContext;
use crate::error::EvalResult;
use crate::expr_value::ExprValue;
use crate::parser::arguments::{Param, ParamKind};
use crate::path::{Path, PathSegment};
use crate::view;

pub(super) static METHODS: &[MethodSpec] = &[
    with(
        "assign",
        &[Param::needed("with", ParamKind::Any)],
        |value, arguments, context| {
            let new = needed(arguments, 0);
            view::object(&value).ok_or_else(|| view::mismatch("object", &value))?;
            view::object(new).ok_or_else(|| view::mismatch("object", new).from(|| "argument `with`".to_owned()))?;
            assign(&value, new, context).map(ExprValue::Value)
        },
    ),
    with("key_values", &[], |value, _, context| {
        let members = sorted_members(&value)?;
        context.spend_elements(members.len().saturating_mul(3))?;
        let pairs = members
            .into_iter()
            .map(|(name, value)| pair(("key", Value::Text(name)), ("value", value)));
        Ok(ExprValue::Value(Value::Array(pairs.collect())))
    }),
    variadic("without", without),
];

/// The members of both; where both have one, an object over an object is assigned in turn, and anything else is replaced.
fn assign(old: &Value, new: &Value, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    let (Some(old), Some(added)) = (view::object(old), view::object(new)) else {
        return Ok(new.clone());
    };
    context.spend_elements(old.len() + added.len())?;
    let mut members: Vec<(Text, Value)> = Vec::with_capacity(old.len() + added.len());
    members.extend(old.iter().map(|(name, value)| (name.clone(), value.clone())));
    for (name, value) in added.iter() {
        let assigned = match old.get(name) {
            None => value.clone(),
            Some(before) => assign(before, value, context)?,
        };
        members.push((name.clone(), assigned));
    }
    Ok(members.into_iter().collect::<Object>().into())
}

/// The object without the fields at these paths. A path that leads through something else than objects is in no document.
fn without(value: Value, arguments: &[Option<Value>], context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
    view::object(&value).ok_or_else(|| view::mismatch("object", &value))?;
    let mut paths = Vec::with_capacity(arguments.len());
    for path in arguments.iter().flatten() {
        paths.push(Path::dotted(&argument_text(path, "path")?));
    }
    let mut paths: Vec<&[PathSegment]> = paths.iter().map(|path| path.0.as_slice()).collect();
    // Paths with the same first name follow each other.
    paths.sort_by(|a, b| names(a).cmp(names(b)));
    leave_out(&value, &paths, context).map(ExprValue::Value)
}

fn names(path: &[PathSegment]) -> impl Iterator<Item = &str> {
    path.iter().map(|segment| segment.name.as_str())
}

fn first_name(path: &[PathSegment]) -> &str {
    path.first().map_or("", |segment| segment.name.as_str())
}

/// `paths` are sorted by their names.
fn leave_out(value: &Value, paths: &[&[PathSegment]], context: &mut EvalContext<'_>) -> EvalResult<Value> {
    let Some(object) = view::object(value) else {
        return Ok(value.clone());
    };
    context.spend_elements(object.len())?;
    let mut kept = Object::with_capacity(object.len());
    for (name, value) in object.iter() {
        let from = paths.partition_point(|path| first_name(path) < name.as_str());
        let below = paths.get(from..).unwrap_or_default();
        let below = below.get(..below.partition_point(|path| first_name(path) == name.as_str()));
        let rests: Vec<&[PathSegment]> = below
            .unwrap_or_default()
            .iter()
            .filter_map(|path| path.get(1..))
            .collect();
        match rests.first() {
            None => kept.push_new(name.clone(), value.clone()),
            // The shortest comes first: the whole member is left out.
            Some([]) => {}
            Some(_) => kept.push_new(name.clone(), leave_out(value, &rests, context)?),
        }
    }
    Ok(kept.into())
}
