//! `+`, `-`, `*` and the sign of integers and durations, `<<` and `>>`, and operators on the longest decimals, as functions that
//! fail if the result is out of range.
//!
//! The operators of the library wrap: `9223372036854775807 + 1` is a negative number, and `1 << 64` is 1 (its kernels call
//! `wrapping_shl`). Those on decimals make numbers with more digits than their type has. `BinaryExpr::with_fail_on_overflow`
//! exists, but its planner and its constant folding never use it. The rule runs after type coercion, so both operands have
//! their final types, and before constants are folded.

use std::sync::Arc;

use datafusion::arrow::array::{Array as _, ArrayRef, ArrowPrimitiveType, AsArray as _, PrimitiveArray};
use datafusion::arrow::compute::kernels::numeric::{add, div, mul, neg, sub};
use datafusion::arrow::compute::try_binary;
use datafusion::arrow::datatypes::{
    DECIMAL32_MAX_PRECISION, DECIMAL64_MAX_PRECISION, DECIMAL128_MAX_PRECISION, DECIMAL256_MAX_PRECISION, DataType,
    Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Field, FieldRef, Int8Type, Int16Type, Int32Type,
    Int64Type, UInt8Type, UInt16Type, UInt32Type, UInt64Type,
};
use datafusion::arrow::error::ArrowError;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::common::{DFSchema, DataFusionError, Result, ScalarValue, exec_err};
use datafusion::logical_expr::expr::{BinaryExpr, ScalarFunction};
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable as _, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;
use datafusion::physical_expr_common::datum::apply;

use super::expressions::rewritten;
use crate::error::QueryError;

/// Replaces the operators of a plan.
#[derive(Debug)]
pub struct CheckedArithmetic;

impl AnalyzerRule for CheckedArithmetic {
    fn name(&self) -> &str {
        "checked_arithmetic"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        rewritten(plan, checked)
    }
}

fn checked(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let kind = |expr: &Expr| expr.get_type(schema).ok();
    let operation = match &expr {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match wraps(kind(left), op, kind(right)) {
            true => *op,
            false => return Ok(Transformed::no(expr)),
        },
        Expr::Negative(value) if kind(value).is_some_and(|kind| negation_wraps(&kind)) => {
            return Ok(Transformed::yes(call(None, vec![*value.clone()])));
        }
        _ => return Ok(Transformed::no(expr)),
    };
    let Expr::BinaryExpr(BinaryExpr { left, right, .. }) = expr else {
        return Ok(Transformed::no(expr));
    };
    Ok(Transformed::yes(call(Some(operation), vec![*left, *right])))
}

/// Whether the operator on these types wraps. Those on times with intervals fail already.
fn wraps(left: Option<DataType>, op: &Operator, right: Option<DataType>) -> bool {
    use DataType::{Duration, Interval, Timestamp};
    let (Some(left), Some(right)) = (left, right) else {
        return false;
    };
    match op {
        Operator::BitwiseShiftLeft | Operator::BitwiseShiftRight => left.is_integer() && right.is_integer(),
        Operator::Plus | Operator::Minus | Operator::Multiply if left.is_integer() => right.is_integer(),
        Operator::Plus | Operator::Minus | Operator::Multiply | Operator::Divide if left.is_decimal() => {
            let result = BinaryTypeCoercer::new(&left, op, &right).get_result_type();
            right.is_decimal() && result.is_ok_and(|result| is_longest_decimal(&result))
        }
        Operator::Plus | Operator::Minus | Operator::Multiply => matches!(
            (left, right),
            (Duration(_), Duration(_)) | (Interval(_), Interval(_)) | (Timestamp(..), Timestamp(..))
        ),
        _ => false,
    }
}

/// Results have more digits than their operands, up to the most of a type.
fn is_longest_decimal(kind: &DataType) -> bool {
    match kind {
        DataType::Decimal32(digits, _) => *digits == DECIMAL32_MAX_PRECISION,
        DataType::Decimal64(digits, _) => *digits == DECIMAL64_MAX_PRECISION,
        DataType::Decimal128(digits, _) => *digits == DECIMAL128_MAX_PRECISION,
        DataType::Decimal256(digits, _) => *digits == DECIMAL256_MAX_PRECISION,
        _ => false,
    }
}

fn negation_wraps(kind: &DataType) -> bool {
    kind.is_signed_integer() || matches!(kind, DataType::Duration(_) | DataType::Interval(_))
}

fn call(operator: Option<Operator>, args: Vec<Expr>) -> Expr {
    let function = Arc::new(ScalarUDF::new_from_impl(CheckedOperator {
        operator,
        signature: Signature::any(args.len(), Volatility::Immutable),
    }));
    Expr::ScalarFunction(ScalarFunction::new_udf(function, args))
}

/// No query can call it by name.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedOperator {
    /// `None` for a sign.
    operator: Option<Operator>,
    signature: Signature,
}

impl CheckedOperator {
    fn compute(&self, args: &[ColumnarValue]) -> Result<ColumnarValue> {
        match (self.operator, args) {
            (Some(Operator::Plus), [left, right]) => apply(left, right, |a, b| within(add(a, b)?)),
            (Some(Operator::Minus), [left, right]) => apply(left, right, |a, b| within(sub(a, b)?)),
            (Some(Operator::Multiply), [left, right]) => apply(left, right, |a, b| within(mul(a, b)?)),
            (Some(Operator::Divide), [left, right]) => apply(left, right, |a, b| within(div(a, b)?)),
            (Some(operator), [left, right]) => {
                let arrays = ColumnarValue::values_to_arrays(args)?;
                let [values, places] = arrays.as_slice() else {
                    return exec_err!("{} has another number of operands", self.name());
                };
                let shifted = shifted(values, places, operator == Operator::BitwiseShiftLeft)?;
                Ok(match (left, right) {
                    (ColumnarValue::Scalar(_), ColumnarValue::Scalar(_)) => {
                        ColumnarValue::Scalar(ScalarValue::try_from_array(&shifted, 0)?)
                    }
                    _ => ColumnarValue::Array(shifted),
                })
            }
            (None, [ColumnarValue::Array(value)]) => Ok(ColumnarValue::Array(neg(value)?)),
            (None, [ColumnarValue::Scalar(value)]) => {
                let negated = neg(&value.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&negated, 0)?))
            }
            _ => exec_err!("{} has another number of operands", self.name()),
        }
    }
}

impl ScalarUDFImpl for CheckedOperator {
    fn name(&self) -> &str {
        match self.operator {
            Some(Operator::Plus) => "+",
            Some(Operator::Multiply) => "*",
            Some(Operator::Divide) => "/",
            Some(Operator::BitwiseShiftLeft) => "<<",
            Some(Operator::BitwiseShiftRight) => ">>",
            _ => "-",
        }
    }

    /// The name that the operator would have.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let operator = match (self.operator, args) {
            (Some(operator), [left, right]) => Expr::BinaryExpr(BinaryExpr::new(
                Box::new(left.clone()),
                operator,
                Box::new(right.clone()),
            )),
            (None, [value]) => Expr::Negative(Box::new(value.clone())),
            _ => return exec_err!("{} has another number of operands", self.name()),
        };
        Ok(operator.schema_name().to_string())
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        match (&self.operator, given) {
            (Some(operator), [left, right]) => BinaryTypeCoercer::new(left, operator, right).get_result_type(),
            (None, [value]) => Ok(value.clone()),
            _ => exec_err!("{} has another number of operands", self.name()),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let kinds: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let is_nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(
            self.name(),
            self.return_type(&kinds)?,
            is_nullable,
        )))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        self.compute(&args.args).map_err(|error| match &error {
            DataFusionError::ArrowError(cause, _) => match cause.as_ref() {
                ArrowError::ArithmeticOverflow(text) => {
                    out_of_range(text, self.operator, args.return_field.data_type())
                }
                _ => error,
            },
            _ => error,
        })
    }
}

/// Fails if a decimal has more digits than its type.
fn within(result: ArrayRef) -> Result<ArrayRef, ArrowError> {
    let checked = match result.data_type() {
        DataType::Decimal32(digits, _) => result
            .as_primitive::<Decimal32Type>()
            .validate_decimal_precision(*digits),
        DataType::Decimal64(digits, _) => result
            .as_primitive::<Decimal64Type>()
            .validate_decimal_precision(*digits),
        DataType::Decimal128(digits, _) => result
            .as_primitive::<Decimal128Type>()
            .validate_decimal_precision(*digits),
        DataType::Decimal256(digits, _) => result
            .as_primitive::<Decimal256Type>()
            .validate_decimal_precision(*digits),
        _ => return Ok(result),
    };
    match checked {
        Ok(()) => Ok(result),
        Err(_) => Err(ArrowError::ArithmeticOverflow("an operation".to_owned())),
    }
}

fn shifted(values: &ArrayRef, places: &ArrayRef, is_left: bool) -> Result<ArrayRef> {
    match (values.data_type(), places.data_type()) {
        (DataType::Int8, DataType::Int8) => shift::<Int8Type>(values, places, is_left),
        (DataType::Int16, DataType::Int16) => shift::<Int16Type>(values, places, is_left),
        (DataType::Int32, DataType::Int32) => shift::<Int32Type>(values, places, is_left),
        (DataType::Int64, DataType::Int64) => shift::<Int64Type>(values, places, is_left),
        (DataType::UInt8, DataType::UInt8) => shift::<UInt8Type>(values, places, is_left),
        (DataType::UInt16, DataType::UInt16) => shift::<UInt16Type>(values, places, is_left),
        (DataType::UInt32, DataType::UInt32) => shift::<UInt32Type>(values, places, is_left),
        (DataType::UInt64, DataType::UInt64) => shift::<UInt64Type>(values, places, is_left),
        (value, places) => exec_err!("{value} cannot be shifted by {places}"),
    }
}

/// A shift to the left fails if a bit is lost. One to the right by as many places as there are bits, or more, leaves the sign.
fn shift<T: ArrowPrimitiveType<Native: Into<i128> + TryFrom<i128>>>(
    values: &ArrayRef,
    places: &ArrayRef,
    is_left: bool,
) -> Result<ArrayRef> {
    let sign = if is_left { "<<" } else { ">>" };
    let shift = |value: T::Native, places: T::Native| {
        let failed = || ArrowError::ArithmeticOverflow(format!("Overflow happened on: {value:?} {sign} {places:?}"));
        let (value, places): (i128, i128) = (value.into(), places.into());
        let shifted = match (is_left, u32::try_from(places)) {
            (_, Err(_)) => return Err(failed()),
            (false, Ok(places)) => value >> places.min(i128::BITS - 1),
            (true, _) if value == 0 => 0,
            // So that nothing of 64 bits is lost here.
            (true, Ok(places @ 0..=63)) => value << places,
            (true, Ok(_)) => return Err(failed()),
        };
        T::Native::try_from(shifted).map_err(|_| failed())
    };
    let shifted: PrimitiveArray<T> = try_binary(values.as_primitive::<T>(), places.as_primitive::<T>(), shift)?;
    Ok(Arc::new(shifted))
}

/// `text` is the library's: `Overflow happened on: 9223372036854775807 + 1`.
fn out_of_range(text: &str, operator: Option<Operator>, kind: &DataType) -> DataFusionError {
    let computed = text.rsplit_once(": ").map_or(text, |(_, computed)| computed);
    let cure = match (operator, kind) {
        (Some(Operator::BitwiseShiftLeft | Operator::BitwiseShiftRight), _) => {
            "shift by 0 or more places and so that no bit is lost, or multiply by power(2, …), which is a double"
        }
        (_, kind) if kind.is_integer() => "convert an operand before, to DECIMAL(38, 0) or DOUBLE",
        (_, kind) if kind.is_decimal() => "convert an operand before, to DOUBLE",
        _ => "leave out such values",
    };
    DataFusionError::External(Box::new(QueryError::execute(format!(
        "the result of {computed} is out of the range of {kind}; {cure}"
    ))))
}
