//! Methods that run a query for each element of an array or member of an object.

use thalweg_record::{Object, Text, Value};

use super::{Method, MethodSpec, at_element, custom, elements};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr::{Expr, Lambda};
use crate::expr_value::ExprValue;
use crate::limits;
use crate::operators;
use crate::parser::arguments::{Param, ParamKind};
use crate::view;

pub(super) static METHODS: &[MethodSpec] = &[
    custom("filter", &[Param::needed("test", ParamKind::Query)], |arguments| {
        Ok(Method::Query(QueryMethod::Filter(arguments.query(0)?)))
    }),
    custom(
        "fold",
        &[
            Param::needed("initial", ParamKind::Any),
            Param::needed("query", ParamKind::Query),
        ],
        |arguments| {
            let initial = arguments.value(0)?;
            Ok(Method::Query(QueryMethod::Fold(initial, arguments.query(1)?)))
        },
    ),
    custom("map_each", &[Param::needed("query", ParamKind::Query)], |arguments| {
        Ok(Method::Query(QueryMethod::MapEach(arguments.query(0)?)))
    }),
    custom("sort", &[Param::optional("compare", ParamKind::Query)], |arguments| {
        Ok(Method::Query(QueryMethod::Sort(arguments.optional_query(0)?)))
    }),
];

pub(crate) enum QueryMethod {
    Filter(Lambda),
    Fold(Expr, Lambda),
    MapEach(Lambda),
    Sort(Option<Lambda>),
}

impl QueryMethod {
    pub fn eval(&self, target: Value, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        Ok(ExprValue::Value(match self {
            QueryMethod::Filter(test) => filter(&target, test, context)?,
            QueryMethod::Fold(initial, query) => fold(&target, initial, query, context)?,
            QueryMethod::MapEach(query) => map_each(&target, query, context)?,
            QueryMethod::Sort(compare) => sort(&target, compare.as_ref(), context)?,
        }))
    }
}

fn filter(target: &Value, test: &Lambda, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    if let Value::Array(values) = target {
        let mut kept = Vec::new();
        for (index, value) in values.iter().enumerate() {
            let keep = passes(test, value.clone(), context).map_err(|fault| at_element(index, fault))?;
            if keep {
                kept.push(value.clone());
            }
        }
        context.spend_elements(kept.len())?;
        return Ok(kept.into());
    }
    let object = view::object(target).ok_or_else(|| view::mismatch("array or object", target))?;
    let mut kept = Object::new();
    for (name, value) in object.iter() {
        let keep = passes(test, member(name, value), context).map_err(|fault| at_member(name, fault))?;
        if keep {
            kept.push_new(name.clone(), value.clone());
        }
    }
    context.spend_elements(kept.len())?;
    Ok(kept.into())
}

/// Null counts as false, so that a test works on a field that not all elements have.
fn passes(test: &Lambda, value: Value, context: &mut EvalContext<'_>) -> EvalResult<bool> {
    match context.call(test, value)? {
        ExprValue::Value(Value::Bool(truth)) => Ok(truth),
        absent if absent.is_absent() => Ok(false),
        other => {
            let other = other.value("bool")?;
            Err(view::mismatch("bool", &other).from(|| "the test".to_owned()))
        }
    }
}

fn map_each(target: &Value, query: &Lambda, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    if let Value::Array(values) = target {
        context.spend_elements(values.len())?;
        let mut mapped = Vec::with_capacity(values.len());
        for (index, value) in values.iter().enumerate() {
            match context
                .call(query, value.clone())
                .map_err(|fault| at_element(index, fault))?
            {
                ExprValue::Value(value) => mapped.push(value),
                ExprValue::Nothing => mapped.push(value.clone()),
                ExprValue::Deleted => {}
            }
        }
        return Ok(mapped.into());
    }
    let object = view::object(target).ok_or_else(|| view::mismatch("array or object", target))?;
    context.spend_elements(object.len())?;
    let mut mapped = Object::with_capacity(object.len());
    for (name, value) in object.iter() {
        match context
            .call(query, member(name, value))
            .map_err(|fault| at_member(name, fault))?
        {
            ExprValue::Value(value) => mapped.push_new(name.clone(), value),
            ExprValue::Nothing => mapped.push_new(name.clone(), value.clone()),
            ExprValue::Deleted => {}
        }
    }
    Ok(mapped.into())
}

/// Builds the object that a query receives for a member.
fn member(name: &Text, value: &Value) -> Value {
    pair(("key", Value::Text(name.clone())), ("value", value.clone()))
}

fn pair(first: (&str, Value), second: (&str, Value)) -> Value {
    let mut pair = Object::with_capacity(2);
    pair.push_new(first.0, first.1);
    pair.push_new(second.0, second.1);
    pair.into()
}

fn at_member(name: &str, fault: Fault) -> Fault {
    Fault::text(format!("member `{name}`: {fault}"))
}

fn fold(target: &Value, initial: &Expr, query: &Lambda, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    let mut tally = initial.value("initial", context)?;
    for (index, value) in elements(target)?.iter().enumerate() {
        let item = pair(("tally", tally), ("value", value.clone()));
        let folded = context.call(query, item).and_then(|folded| folded.value("folded"));
        tally = folded.map_err(|fault| at_element(index, fault))?;
        if index % limits::FOLD_CHECK_STEPS == 0 {
            limits::check(&tally)?;
        }
    }
    limits::check(&tally)?;
    Ok(tally)
}

/// Sorts numbers or strings in increasing order, or by a query that says whether `left` and `right` are in order.
fn sort(target: &Value, compare: Option<&Lambda>, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    let values = elements(target)?;
    context.spend_elements(values.len())?;
    let sorted = merge_sort(values.to_vec(), &mut |left, right| match compare {
        Some(compare) => {
            let both = pair(("left", left.clone()), ("right", right.clone()));
            passes(compare, both, context)
        }
        None => match operators::compare(left, right) {
            Some(order) => Ok(order.is_some_and(std::cmp::Ordering::is_lt)),
            None => {
                let (left, right) = (view::kind(left), view::kind(right));
                let message = format!("sort: cannot compare types {left} and {right}; give a query that compares");
                Err(Fault::text(message))
            }
        },
    })?;
    Ok(sorted.into())
}

/// The sort is stable and safe with an inconsistent comparison, on which the standard library's sort may panic.
fn merge_sort(
    mut values: Vec<Value>,
    less: &mut impl FnMut(&Value, &Value) -> EvalResult<bool>,
) -> EvalResult<Vec<Value>> {
    let mut width = 1;
    while width < values.len() {
        let mut merged = Vec::with_capacity(values.len());
        for run in values.chunks(width * 2) {
            let (left, right) = run.split_at(width.min(run.len()));
            let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
            loop {
                let take_right = match (left.peek(), right.peek()) {
                    (Some(left), Some(right)) => less(right, left)?,
                    (None, Some(_)) => true,
                    (Some(_), None) => false,
                    (None, None) => break,
                };
                merged.extend(if take_right { right.next() } else { left.next() }.cloned());
            }
        }
        values = merged;
        width *= 2;
    }
    Ok(values)
}
