//! Methods that run a query for each element of an array or member of an object.

use std::collections::HashSet;

use thalweg_record::{Object, Text, Value};

use super::{Method, MethodSpec, at_element, custom, elements, pair};
use crate::context::EvalContext;
use crate::error::{EvalResult, Fault};
use crate::expr::{Expr, Lambda};
use crate::expr_value::ExprValue;
use crate::limits;
use crate::operators;
use crate::parser::arguments::{Param, ParamKind};
use crate::view::{self, Number};

pub(super) static METHODS: &[MethodSpec] = &[
    custom("all", &[Param::needed("test", ParamKind::Query)], |arguments| {
        Ok(Method::Query(QueryMethod::All(arguments.query(0)?)))
    }),
    custom("any", &[Param::needed("test", ParamKind::Query)], |arguments| {
        Ok(Method::Query(QueryMethod::Any(arguments.query(0)?)))
    }),
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
    custom("sort_by", &[Param::needed("query", ParamKind::Query)], |arguments| {
        Ok(Method::Query(QueryMethod::SortBy(arguments.query(0)?)))
    }),
    custom("unique", &[Param::optional("emit", ParamKind::Query)], |arguments| {
        Ok(Method::Query(QueryMethod::Unique(arguments.optional_query(0)?)))
    }),
];

pub(crate) enum QueryMethod {
    All(Lambda),
    Any(Lambda),
    Filter(Lambda),
    Fold(Expr, Lambda),
    MapEach(Lambda),
    Sort(Option<Lambda>),
    SortBy(Lambda),
    Unique(Option<Lambda>),
}

impl QueryMethod {
    pub fn eval(&self, target: Value, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        Ok(ExprValue::Value(match self {
            QueryMethod::All(test) => {
                Value::Bool(!elements(&target)?.is_empty() && !is_any(&target, test, false, context)?)
            }
            QueryMethod::Any(test) => Value::Bool(is_any(&target, test, true, context)?),
            QueryMethod::Filter(test) => filter(&target, test, context)?,
            QueryMethod::Fold(initial, query) => fold(&target, initial, query, context)?,
            QueryMethod::MapEach(query) => map_each(&target, query, context)?,
            QueryMethod::Sort(compare) => sort(&target, compare.as_ref(), context)?,
            QueryMethod::SortBy(query) => sort_by(&target, query, context)?,
            QueryMethod::Unique(emit) => unique(&target, emit.as_ref(), context)?,
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

/// Whether the test gives `wanted` for any element.
fn is_any(target: &Value, test: &Lambda, wanted: bool, context: &mut EvalContext<'_>) -> EvalResult<bool> {
    for (index, value) in elements(target)?.iter().enumerate() {
        if passes(test, value.clone(), context).map_err(|fault| at_element(index, fault))? == wanted {
            return Ok(true);
        }
    }
    Ok(false)
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
        None => is_less(left, right),
    })?;
    Ok(sorted.into())
}

fn is_less(left: &Value, right: &Value) -> EvalResult<bool> {
    match operators::compare(left, right) {
        Some(order) => Ok(order.is_some_and(std::cmp::Ordering::is_lt)),
        None => {
            let (left, right) = (view::kind(left), view::kind(right));
            let message = format!("sort: cannot compare types {left} and {right}; give a query that compares");
            Err(Fault::text(message))
        }
    }
}

/// What a query gives for each element.
fn emitted(values: &[Value], query: &Lambda, context: &mut EvalContext<'_>) -> EvalResult<Vec<Value>> {
    let emit = |(index, value): (usize, &Value)| {
        let emitted = context.call(query, value.clone()).and_then(|key| key.value("any"));
        emitted.map_err(|fault| at_element(index, fault))
    };
    values.iter().enumerate().map(emit).collect()
}

/// Sorts by what a query gives for each element: numbers, strings or timestamps, in increasing order.
fn sort_by(target: &Value, query: &Lambda, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    let values = elements(target)?;
    context.spend_elements(values.len().saturating_mul(2))?;
    let keys = emitted(values, query, context)?;
    let keyed = keys.into_iter().zip(values).collect();
    let sorted = merge_sort(keyed, &mut |left: &(Value, &Value), right| is_less(&left.0, &right.0))?;
    Ok(Value::Array(
        sorted.into_iter().map(|(_, value)| value.clone()).collect(),
    ))
}

/// Keeps the first of the elements that are equal, or for which a query gives the same. Numbers and strings can be compared.
fn unique(target: &Value, emit: Option<&Lambda>, context: &mut EvalContext<'_>) -> EvalResult<Value> {
    let values = elements(target)?;
    context.spend_elements(values.len().saturating_mul(2))?;
    let keys = match emit {
        Some(emit) => emitted(values, emit, context)?,
        None => values.to_vec(),
    };
    let mut seen = HashSet::with_capacity(keys.len());
    let mut kept = Vec::new();
    for (index, (key, value)) in keys.iter().zip(values).enumerate() {
        if seen.insert(comparable(key).map_err(|fault| at_element(index, fault))?) {
            kept.push(value.clone());
        }
    }
    Ok(kept.into())
}

/// The key by which a value is the same as another: strings by their text, numbers by their value.
#[derive(PartialEq, Eq, Hash)]
enum UniqueKey {
    Text(String),
    Integer(i128),
    Float(u64),
}

fn comparable(value: &Value) -> EvalResult<UniqueKey> {
    match Number::of(value) {
        Some(Number::Integer(n)) => Ok(UniqueKey::Integer(n)),
        Some(Number::Float(n)) => Ok(match view::whole(n) {
            Some(whole) => UniqueKey::Integer(i128::from(whole)),
            None => UniqueKey::Float(n.to_bits()),
        }),
        None => match view::text(value) {
            Some(text) => Ok(UniqueKey::Text(text.into_owned())),
            None => Err(view::mismatch("string or number", value)),
        },
    }
}

/// The sort is stable and safe with an inconsistent comparison, on which the standard library's sort may panic.
fn merge_sort<T: Clone>(mut values: Vec<T>, less: &mut impl FnMut(&T, &T) -> EvalResult<bool>) -> EvalResult<Vec<T>> {
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
