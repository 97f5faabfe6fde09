//! `+`, `-`, `*` and the sign of integers and durations as functions that fail if the result is out of range.
//!
//! The operators of the library wrap: `9223372036854775807 + 1` is a negative number. `BinaryExpr::with_fail_on_overflow`
//! exists, but its planner and its constant folding never use it. The rule runs after type coercion, so both operands have
//! their final types, and before constants are folded.

use std::sync::Arc;

use datafusion::arrow::compute::kernels::numeric::{add, mul, neg, sub};
use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
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
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => match op {
            Operator::Plus | Operator::Minus | Operator::Multiply if wraps(kind(left), kind(right)) => *op,
            _ => return Ok(Transformed::no(expr)),
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

/// Whether the operators on these types wrap. Those on decimals, and on times with intervals, fail already.
fn wraps(left: Option<DataType>, right: Option<DataType>) -> bool {
    use DataType::{Duration, Interval, Timestamp};
    match (left, right) {
        (Some(left), Some(right)) if left.is_integer() => right.is_integer(),
        (Some(Duration(_)), Some(Duration(_)))
        | (Some(Interval(_)), Some(Interval(_)))
        | (Some(Timestamp(..)), Some(Timestamp(..))) => true,
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
            (Some(Operator::Plus), [left, right]) => apply(left, right, add),
            (Some(Operator::Minus), [left, right]) => apply(left, right, sub),
            (Some(Operator::Multiply), [left, right]) => apply(left, right, mul),
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
                ArrowError::ArithmeticOverflow(text) => out_of_range(text, args.return_field.data_type()),
                _ => error,
            },
            _ => error,
        })
    }
}

/// `text` is the library's: `Overflow happened on: 9223372036854775807 + 1`.
fn out_of_range(text: &str, kind: &DataType) -> DataFusionError {
    let computed = text.rsplit_once(": ").map_or(text, |(_, computed)| computed);
    let cure = match kind.is_integer() {
        true => "convert an operand before, to DECIMAL(38, 0) or DOUBLE",
        false => "leave out such values",
    };
    DataFusionError::External(Box::new(QueryError::execute(format!(
        "the result of {computed} is out of the range of {kind}; {cure}"
    ))))
}
