//! The methods of the language, in one table per topic. This module holds what the tables share.

use smallvec::SmallVec;
use thalweg_record::{Object, Text, Value};

use crate::context::EvalContext;
use crate::error::{EvalResult, Fault, SyntaxError};
use crate::expr::{Expr, Lambda};
use crate::expr_value::ExprValue;
use crate::parser::arguments::{Arguments, Param};
use crate::view;

mod arrays;
mod codec;
mod collections;
mod convert;
mod csv_text;
mod durations;
mod format;
mod hashes;
mod numbers;
mod objects;
pub(crate) mod queries;
mod strings;
mod times;

/// A method with its arguments, ready to run.
pub(crate) enum Method {
    Plain(fn(Value, &mut EvalContext<'_>) -> EvalResult<ExprValue>),
    /// Arguments are evaluated before the method runs; an omitted argument is `None`.
    WithArguments {
        run: MethodFn,
        arguments: Box<[Option<Expr>]>,
        /// Whether the result is deeper than the value and the arguments, which become parts of it.
        nests: bool,
    },
    Or(Expr),
    Catch(Lambda),
    Type,
    Query(queries::QueryMethod),
    Path(collections::PathMethod),
    Pattern(strings::PatternMethod),
    Time(times::TimeMethod),
}

pub(crate) type MethodFn = fn(Value, &[Option<Value>], &mut EvalContext<'_>) -> EvalResult<ExprValue>;

pub(crate) struct MethodSpec {
    pub name: &'static str,
    pub params: &'static [Param],
    /// Whether any number of arguments may follow.
    pub variadic: bool,
    pub build: MethodBody,
}

pub(crate) enum MethodBody {
    Plain(fn(Value, &mut EvalContext<'_>) -> EvalResult<ExprValue>),
    WithArguments(MethodFn),
    Custom(fn(&mut Arguments) -> Result<Method, SyntaxError>),
}

const fn plain(name: &'static str, run: fn(Value, &mut EvalContext<'_>) -> EvalResult<ExprValue>) -> MethodSpec {
    MethodSpec {
        name,
        params: &[],
        variadic: false,
        build: MethodBody::Plain(run),
    }
}

const fn with(name: &'static str, params: &'static [Param], run: MethodFn) -> MethodSpec {
    MethodSpec {
        name,
        params,
        variadic: false,
        build: MethodBody::WithArguments(run),
    }
}

const fn variadic(name: &'static str, run: MethodFn) -> MethodSpec {
    MethodSpec {
        name,
        params: &[],
        variadic: true,
        build: MethodBody::WithArguments(run),
    }
}

const fn custom(
    name: &'static str,
    params: &'static [Param],
    build: fn(&mut Arguments) -> Result<Method, SyntaxError>,
) -> MethodSpec {
    MethodSpec {
        name,
        params,
        variadic: false,
        build: MethodBody::Custom(build),
    }
}

static TABLES: [&[MethodSpec]; 11] = [
    arrays::METHODS,
    codec::METHODS,
    collections::METHODS,
    convert::METHODS,
    csv_text::METHODS,
    hashes::METHODS,
    numbers::METHODS,
    objects::METHODS,
    queries::METHODS,
    strings::METHODS,
    times::METHODS,
];

pub(crate) fn all() -> impl Iterator<Item = &'static MethodSpec> {
    TABLES.iter().flat_map(|table| table.iter())
}

impl MethodSpec {
    pub fn build(&self, mut arguments: Arguments) -> Result<Method, SyntaxError> {
        match self.build {
            MethodBody::Plain(run) => Ok(Method::Plain(run)),
            MethodBody::Custom(build) => build(&mut arguments),
            MethodBody::WithArguments(run) => {
                let mut values = Vec::with_capacity(self.params.len());
                for index in 0..self.params.len() {
                    values.push(arguments.optional(index)?);
                }
                values.extend(arguments.rest.drain(..).map(Some));
                Ok(Method::WithArguments {
                    run,
                    arguments: values.into(),
                    nests: matches!(
                        self.name,
                        "append" | "assign" | "enumerated" | "key_values" | "merge" | "parse_csv"
                    ),
                })
            }
        }
    }
}

impl Method {
    /// Whether the method before is only an argument of this one, which has it now.
    pub fn takes_zone_of(&mut self, before: &mut Method) -> bool {
        match self {
            Method::Time(method) => method.takes_zone_of(before),
            _ => false,
        }
    }

    pub fn eval(&self, target: EvalResult<ExprValue>, context: &mut EvalContext<'_>) -> EvalResult<ExprValue> {
        match self {
            Method::Or(alternative) => match target {
                Ok(value) if !value.is_absent() => Ok(value),
                _ => alternative.eval(context),
            },
            Method::Catch(handler) => match target {
                Err(fault) => context.call(handler, Value::text(fault.to_string())),
                value => value,
            },
            Method::Type => Ok(ExprValue::Value(Value::text(target?.kind()))),
            Method::Plain(run) => run(target?.value("any")?, context),
            Method::WithArguments { run, arguments, .. } => {
                let target = target?.value("any")?;
                let mut values: SmallVec<[Option<Value>; 4]> = SmallVec::with_capacity(arguments.len());
                for argument in arguments {
                    values.push(match argument {
                        Some(argument) => Some(argument.value("argument", context)?),
                        None => None,
                    });
                }
                run(target, &values, context)
            }
            Method::Query(query) => query.eval(target?.value("any")?, context),
            Method::Path(method) => method.eval(target?.value("any")?, context),
            Method::Pattern(method) => method.eval(target?.value("any")?, context),
            Method::Time(method) => method.eval(target?.value("any")?, context),
        }
    }
}

/// The number that a text is.
pub(crate) fn number_of_text(text: &Value) -> Option<Value> {
    convert::to_number(text).ok()
}

/// Returns an argument that the parameters declare as required.
fn needed(arguments: &[Option<Value>], index: usize) -> &Value {
    given(arguments, index).unwrap_or(&Value::Null)
}

fn given(arguments: &[Option<Value>], index: usize) -> Option<&Value> {
    arguments.get(index).and_then(Option::as_ref)
}

fn text_argument<'v>(
    arguments: &'v [Option<Value>],
    index: usize,
    name: &'static str,
) -> EvalResult<std::borrow::Cow<'v, str>> {
    argument_text(needed(arguments, index), name)
}

/// Returns the argument `name` as text.
fn argument_text<'v>(value: &'v Value, name: &'static str) -> EvalResult<std::borrow::Cow<'v, str>> {
    view::need_text(value).map_err(|fault| fault.from(|| format!("argument `{name}`")))
}

fn integer_argument(value: &Value, name: &'static str) -> EvalResult<i64> {
    let integer = view::integer(value).ok_or_else(|| view::mismatch("integer", value));
    integer.map_err(|fault| fault.from(|| format!("argument `{name}`")))
}

/// Wraps a text that a method built.
fn built(text: impl Into<Text>) -> EvalResult<ExprValue> {
    Ok(ExprValue::Value(Value::Text(text.into())))
}

/// Returns the members sorted by name, so that an array made of them has the same order in every document.
fn sorted_members(value: &Value) -> EvalResult<Vec<(Text, Value)>> {
    let object = view::object(value).ok_or_else(|| view::mismatch("object", value))?;
    let mut members: Vec<_> = object
        .iter()
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    members.sort_by(|a, b| a.0.as_bytes().cmp(b.0.as_bytes()));
    Ok(members)
}

/// An object of two members.
fn pair(first: (&str, Value), second: (&str, Value)) -> Value {
    let mut pair = Object::with_capacity(2);
    pair.push_new(first.0, first.1);
    pair.push_new(second.0, second.1);
    pair.into()
}

fn elements(value: &Value) -> EvalResult<&[Value]> {
    match value {
        Value::Array(values) => Ok(values),
        other => Err(view::mismatch("array", other)),
    }
}

/// Adds the index of an array element to its fault.
fn at_element(index: usize, fault: Fault) -> Fault {
    Fault::text(format!("element {index}: {fault}"))
}
