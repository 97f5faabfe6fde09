//! Functions of doubles whose steps in between are out of range, though the result is not, or that hide a result that is.
//!
//! The library's `round(x, n)` and `trunc(x, n)` multiply by a power of ten: `round(1.5, 400)` would be NaN and `round(1e300, 20)`
//! infinite. Its `to_timestamp` makes the last nanosecond of 2262 of each number that is too large (a cast with `as`), and 1970
//! of NaN.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray as _, Float64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, FieldRef, Float64Type, Int64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue, exec_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable as _, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;

use super::expressions::rewritten;
use crate::error::QueryError;

pub const ROUNDED: &str = "rounded double";
pub const SECONDS: &str = "seconds of a timestamp";

/// Nanoseconds of a timestamp end here.
const NANOSECONDS_END: f64 = 9_223_372_036_854_775_808.0;

/// Puts a function of this module around these calls or their arguments.
#[derive(Debug)]
pub struct CheckedRounding;

impl AnalyzerRule for CheckedRounding {
    fn name(&self) -> &str {
        "checked_rounding"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        rewritten(plan, |expr, schema| Ok(checked(expr, schema)))
    }
}

fn checked(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let Expr::ScalarFunction(mut call) = expr else {
        return Transformed::no(expr);
    };
    let is_double = |value: &Expr| value.get_type(schema).is_ok_and(|kind| kind.is_floating());
    match (call.func.name(), call.args.as_mut_slice()) {
        ("round" | "trunc", [value, places]) if is_double(value) => {
            let (value, places) = (value.clone(), places.clone());
            let args = vec![Expr::ScalarFunction(call), value, places];
            Transformed::yes(call_of(ROUNDED, args))
        }
        ("to_timestamp", [seconds]) if is_double(seconds) => {
            *seconds = call_of(SECONDS, vec![std::mem::take(seconds)]);
            Transformed::yes(Expr::ScalarFunction(call))
        }
        _ => Transformed::no(Expr::ScalarFunction(call)),
    }
}

fn call_of(name: &'static str, args: Vec<Expr>) -> Expr {
    let function = Arc::new(ScalarUDF::new_from_impl(CheckedDouble {
        name,
        signature: Signature::any(args.len(), Volatility::Immutable),
    }));
    Expr::ScalarFunction(ScalarFunction::new_udf(function, args))
}

/// No query can call it by name.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedDouble {
    name: &'static str,
    signature: Signature,
}

impl ScalarUDFImpl for CheckedDouble {
    fn name(&self) -> &str {
        self.name
    }

    /// That of the call, or of the argument.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        match args {
            [value, ..] => Ok(value.schema_name().to_string()),
            [] => exec_err!("{} has no arguments", self.name),
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        match given {
            [value, ..] => Ok(value.clone()),
            [] => exec_err!("{} has no arguments", self.name),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match args.arg_fields {
            [value, ..] => Ok(value.clone()),
            [] => exec_err!("{} has no arguments", self.name),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let are_constants = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let made = match arrays.as_slice() {
            [rounded, value, places] => finite(rounded, value, places)?,
            [seconds] => within_nanoseconds(seconds)?,
            _ => return exec_err!("{} has other arguments", self.name),
        };
        Ok(match are_constants {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?),
            false => ColumnarValue::Array(made),
        })
    }
}

/// What was rounded. If its steps were out of range, the value has no digit as small as that, or none as large.
fn finite(rounded: &ArrayRef, values: &ArrayRef, places: &ArrayRef) -> Result<ArrayRef> {
    let doubles = |values: &ArrayRef| -> Result<Float64Array> {
        Ok(cast(values, &DataType::Float64)?.as_primitive::<Float64Type>().clone())
    };
    let all = doubles(rounded)?;
    if all.iter().flatten().all(f64::is_finite) {
        return Ok(rounded.clone());
    }
    let (values, places) = (doubles(values)?, cast(places, &DataType::Int64)?);
    let rows = all.iter().zip(&values).zip(places.as_primitive::<Int64Type>());
    let made = rows.map(|((rounded, value), places)| match (rounded?, value?, places?) {
        (rounded, value, _) if rounded.is_finite() || !value.is_finite() => Some(rounded),
        (_, value, 0..) => Some(value),
        _ => Some(0.0),
    });
    let made: ArrayRef = Arc::new(made.collect::<Float64Array>());
    Ok(cast(&made, rounded.data_type())?)
}

fn within_nanoseconds(seconds: &ArrayRef) -> Result<ArrayRef> {
    let doubles = cast(seconds, &DataType::Float64)?;
    let is_within = |seconds: &f64| (-NANOSECONDS_END..NANOSECONDS_END).contains(&(seconds * 1e9));
    match doubles
        .as_primitive::<Float64Type>()
        .iter()
        .flatten()
        .find(|seconds| !is_within(seconds))
    {
        None => Ok(seconds.clone()),
        Some(seconds) => Err(DataFusionError::External(Box::new(QueryError::execute(format!(
            "to_timestamp: {seconds} seconds are out of the range of nanoseconds, which is from 1677 to 2262; use \
             to_timestamp_seconds or to_timestamp_millis"
        ))))),
    }
}
