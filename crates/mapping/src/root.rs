//! The document under construction: the value of `root` while a mapping runs, and assignments to it.

use std::sync::Arc;

use thalweg_record::{Object, Value};

use crate::error::{EvalResult, Fault};
use crate::expr_value::ExprValue;
use crate::path::{Path, PathSegment};
use crate::view;

#[derive(Clone, Debug)]
pub(crate) enum Root {
    /// Nothing was assigned: the payload stays as it is.
    Nothing,
    Deleted,
    Value(Value),
}

impl Root {
    /// `root<path> = value`. A path into a deleted root changes nothing, because the message is removed anyway.
    pub fn assign(&mut self, path: &Path, value: ExprValue) -> EvalResult<()> {
        if matches!(value, ExprValue::Nothing) {
            return Ok(());
        }
        let Some((last, parents)) = path.0.split_last() else {
            *self = match value {
                ExprValue::Value(value) => Root::Value(value),
                _ => Root::Deleted,
            };
            return Ok(());
        };
        if matches!(self, Root::Nothing) {
            *self = Root::Value(Object::new().into());
        }
        let Root::Value(root) = self else { return Ok(()) };
        let (parent, depth) = match value {
            // A path that is to be deleted need not be created first.
            ExprValue::Deleted => match existing(root, parents) {
                Some(parent) => parent,
                None => return Ok(()),
            },
            _ => create(root, parents, path)?,
        };
        match value {
            ExprValue::Value(value) => set(parent, last, value, path, depth),
            _ => remove(parent, last),
        }
    }
}

/// Returns the container at `segments`, and creates objects where a value is missing or null.
fn create<'r>(root: &'r mut Value, segments: &[PathSegment], path: &Path) -> EvalResult<(&'r mut Value, usize)> {
    let mut at = root;
    for (depth, segment) in segments.iter().enumerate() {
        prepare(at);
        at = match at {
            Value::Object(object) => {
                let object = Arc::make_mut(object);
                if object.get(&segment.name).is_none() {
                    object.push_new(segment.name.clone(), Object::new().into());
                }
                object
                    .get_mut(&segment.name)
                    .ok_or_else(|| collision(path, depth, "null"))?
            }
            Value::Array(values) => {
                let length = values.len();
                let element = segment.index.and_then(|index| Arc::make_mut(values).get_mut(index));
                element.ok_or_else(|| no_element(path, segment, length))?
            }
            other => return Err(collision(path, depth, view::kind(other))),
        };
    }
    prepare(at);
    Ok((at, segments.len()))
}

/// Turns null into an object, and a GUID or structured value into the object of its JSON form.
fn prepare(at: &mut Value) {
    match at {
        Value::Null => *at = Object::new().into(),
        Value::Guid(_) | Value::Structured(_) => *at = view::unfold(at),
        _ => {}
    }
}

fn existing<'r>(root: &'r mut Value, segments: &[PathSegment]) -> Option<(&'r mut Value, usize)> {
    let mut at = root;
    for segment in segments {
        if matches!(at, Value::Guid(_) | Value::Structured(_)) {
            prepare(at);
        }
        at = match at {
            Value::Object(object) => Arc::make_mut(object).get_mut(&segment.name)?,
            Value::Array(values) => Arc::make_mut(values).get_mut(segment.index?)?,
            _ => return None,
        };
    }
    if matches!(at, Value::Guid(_) | Value::Structured(_)) {
        prepare(at);
    }
    Some((at, segments.len()))
}

fn set(parent: &mut Value, segment: &PathSegment, value: Value, path: &Path, depth: usize) -> EvalResult<()> {
    match parent {
        Value::Object(object) => Arc::make_mut(object).set(segment.name.clone(), value),
        Value::Array(values) => {
            let length = values.len();
            let element = segment.index.and_then(|index| Arc::make_mut(values).get_mut(index));
            *element.ok_or_else(|| no_element(path, segment, length))? = value;
        }
        other => return Err(collision(path, depth, view::kind(other))),
    }
    Ok(())
}

fn remove(parent: &mut Value, segment: &PathSegment) -> EvalResult<()> {
    match parent {
        Value::Object(object) if object.get(&segment.name).is_some() => {
            Arc::make_mut(object).remove(&segment.name);
        }
        Value::Array(values) => {
            if let Some(index) = segment.index.filter(|index| *index < values.len()) {
                let rest = values.iter().enumerate().filter(|(at, _)| *at != index);
                *parent = Value::Array(rest.map(|(_, value)| value.clone()).collect());
            }
        }
        _ => {}
    }
    Ok(())
}

fn collision(path: &Path, depth: usize, kind: &str) -> Fault {
    let target = path.show("root");
    let at = Path(path.0.iter().take(depth).cloned().collect()).show("root");
    Fault::text(format!(
        "cannot set `{target}`: `{at}` is not an object but has type {kind}"
    ))
}

fn no_element(path: &Path, segment: &PathSegment, length: usize) -> Fault {
    let (target, name) = (path.show("root"), &segment.name);
    Fault::text(format!(
        "cannot set `{target}`: `{name}` is not an index of an array of {length} elements"
    ))
}
