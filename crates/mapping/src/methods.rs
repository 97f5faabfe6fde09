//! The methods of the language, in one table per topic. This module holds what the tables share.

use smallvec::SmallVec;
use thalweg_record::{Text, Value};

use crate::context::EvalContext;
use crate::error::{EvalResult, Fault, SyntaxError};
use crate::expr::{Expr, Lambda};
use crate::expr_value::ExprValue;
use crate::parser::arguments::{Arguments, Param};
use crate::view;

mod codec;
mod collections;
mod convert;
mod format;
mod numbers;
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
        /// Whether the arguments become parts of the result.
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

static TABLES: [&[MethodSpec]; 7] = [
    codec::METHODS,
    collections::METHODS,
    convert::METHODS,
    numbers::METHODS,
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
                    nests: matches!(self.name, "append" | "merge"),
                })
            }
        }
    }
}

impl Method {
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
