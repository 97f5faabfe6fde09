//! Doubles that are equal in SQL and differ in their bits: `0.0` and `-0.0`, and NaN with another sign or payload.
//!
//! Comparisons and groups of the library know the two zeros. Its DISTINCT aggregates, windows, lists of `IN`, `nullif` and
//! joins over several columns compare bits, and nothing knows that NaN has a sign, which `0.0 / 0.0` and
//! `Infinity - Infinity` set on most machines. So results are made canonical where they are computed, and columns where bits
//! are compared. Its aggregation for `ORDER BY … LIMIT` panics on NaN and is not used for doubles.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray as _};
use datafusion::arrow::datatypes::{DataType, FieldRef, Float32Type, Float64Type};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, Result, ScalarValue, exec_err};
use datafusion::logical_expr::expr::{InSubquery, ScalarFunction};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable as _, LogicalPlan, LogicalPlanBuilder, Operator, ReturnFieldArgs,
    ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::optimizer::AnalyzerRule;

use super::expressions::rewritten;

/// The same value with the bits that all equal values get.
pub fn canonical(value: f64) -> f64 {
    match value {
        value if value.is_nan() => f64::NAN,
        // Adding zero turns -0.0 into 0.0 and changes nothing else.
        value => value + 0.0,
    }
}

/// Whether an aggregation of the plan has groups or values of this type.
pub fn are_aggregated(plan: &LogicalPlan) -> Result<bool> {
    let mut are_aggregated = false;
    plan.apply_with_subqueries(|node| {
        let is_grouping = matches!(node, LogicalPlan::Aggregate(_) | LogicalPlan::Distinct(_));
        are_aggregated |= is_grouping
            && node
                .schema()
                .fields()
                .iter()
                .any(|field| field.data_type().is_floating());
        Ok(match are_aggregated {
            true => TreeNodeRecursion::Stop,
            false => TreeNodeRecursion::Continue,
        })
    })?;
    Ok(are_aggregated)
}

pub const CANONICAL: &str = "canonical float";

/// The function that returns its first argument unless it equals the second.
const COMPARING: &str = "nullif";

/// Functions that return NaN for numbers.
const MAKING_NAN: [&str; 14] = [
    "acos", "acosh", "asin", "atanh", "cos", "cot", "ln", "log", "log2", "log10", "power", "sin", "sqrt", "tan",
];

/// Makes results of doubles, and columns whose bits are compared, canonical.
#[derive(Debug)]
pub struct CanonicalFloats;

impl AnalyzerRule for CanonicalFloats {
    fn name(&self) -> &str {
        "canonical_floats"
    }

    fn analyze(&self, plan: LogicalPlan, _config: &ConfigOptions) -> Result<LogicalPlan> {
        let plan = rewritten(plan, |expr, schema| Ok(canonical_expr(expr, schema)))?;
        Ok(plan.transform_up_with_subqueries(keys)?.data)
    }
}

/// Keys of joins that set operations make, and keys of a sort after which others decide.
fn keys(node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let mut made = false;
    let node = match node {
        LogicalPlan::Join(mut join) => {
            for (left, right) in &mut join.on {
                made |= make_key(left, join.left.schema());
                made |= make_key(right, join.right.schema());
            }
            LogicalPlan::Join(join)
        }
        LogicalPlan::Sort(mut sort) => {
            let before_last = sort.expr.len().saturating_sub(1);
            for key in sort.expr.iter_mut().take(before_last) {
                made |= make_key(&mut key.expr, sort.input.schema());
            }
            LogicalPlan::Sort(sort)
        }
        other => other,
    };
    Ok(Transformed::new_transformed(node, made))
}

fn canonical_expr(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    use Operator::{Divide, Eq, IsNotDistinctFrom, Minus, Modulo, Multiply, Plus};
    match expr {
        Expr::BinaryExpr(mut binary) => match binary.op {
            Plus | Minus | Multiply | Divide | Modulo => {
                // One time is enough for `a * b + c`.
                binary.left = Box::new(as_computed(*binary.left));
                binary.right = Box::new(as_computed(*binary.right));
                result(Expr::BinaryExpr(binary), schema)
            }
            Eq | IsNotDistinctFrom if may_join(&binary.left) && may_join(&binary.right) => {
                let mut made = make_key(&mut binary.left, schema);
                made |= make_key(&mut binary.right, schema);
                Transformed::new_transformed(Expr::BinaryExpr(binary), made)
            }
            _ => Transformed::no(Expr::BinaryExpr(binary)),
        },
        Expr::Negative(_) => result(expr, schema),
        Expr::Cast(ref cast) if cast.expr.get_type(schema).is_ok_and(|kind| kind.is_string()) => result(expr, schema),
        Expr::TryCast(ref cast) if cast.expr.get_type(schema).is_ok_and(|kind| kind.is_string()) => {
            result(expr, schema)
        }
        Expr::ScalarFunction(ref call) if MAKING_NAN.contains(&call.name()) => result(expr, schema),
        Expr::ScalarFunction(mut call) if call.name() == COMPARING => {
            let made = canonical_arguments(&mut call.args, schema);
            Transformed::new_transformed(Expr::ScalarFunction(call), made)
        }
        Expr::InList(mut list) if list.list.iter().any(has_other_bits) => {
            let mut made = make_canonical(&mut list.expr, schema);
            made |= canonical_arguments(&mut list.list, schema);
            Transformed::new_transformed(Expr::InList(list), made)
        }
        Expr::InSubquery(membership) => in_subquery(membership, schema),
        Expr::AggregateFunction(mut call) if compares_bits(call.func.name(), call.params.distinct) => {
            let made = canonical_arguments(&mut call.params.args, schema);
            Transformed::new_transformed(Expr::AggregateFunction(call), made)
        }
        Expr::WindowFunction(mut call) => {
            let mut made = canonical_arguments(&mut call.params.partition_by, schema);
            for key in &mut call.params.order_by {
                made |= make_canonical(&mut key.expr, schema);
            }
            if compares_bits(call.fun.name(), call.params.distinct) {
                made |= canonical_arguments(&mut call.params.args, schema);
            }
            Transformed::new_transformed(Expr::WindowFunction(call), made)
        }
        other => Transformed::no(other),
    }
}

/// Makes the value and the column of the subquery canonical.
fn in_subquery(mut membership: InSubquery, schema: &DFSchema) -> Transformed<Expr> {
    let inner = membership.subquery.subquery.as_ref();
    let Some((table, field)) = inner.schema().iter().next() else {
        return Transformed::no(Expr::InSubquery(membership));
    };
    let mut column = Expr::Column(Column::from((table, field)));
    let is_float = make_key(&mut column, inner.schema());
    let column = column.alias(field.name());
    let projected = LogicalPlanBuilder::from(inner.clone()).project([column]);
    match projected.and_then(LogicalPlanBuilder::build) {
        Ok(plan) if is_float => {
            membership.subquery.subquery = Arc::new(plan);
            make_key(&mut membership.expr, schema);
            Transformed::yes(Expr::InSubquery(membership))
        }
        _ => Transformed::no(Expr::InSubquery(membership)),
    }
}

fn compares_bits(function: &str, is_distinct: bool) -> bool {
    is_distinct || matches!(function, "min" | "max" | "approx_distinct")
}

/// Whether an operand can be the key of a join. The library moves a comparison with a column of the outer query only if it is
/// plain.
fn may_join(expr: &Expr) -> bool {
    !matches!(expr, Expr::Literal(..)) && !expr.contains_outer()
}

/// Whether a value of a list has equals with other bits.
fn has_other_bits(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(ScalarValue::Float64(value), _) => value.is_some_and(|value| value == 0.0 || value.is_nan()),
        Expr::Literal(ScalarValue::Float32(value), _) => value.is_some_and(|value| value == 0.0 || value.is_nan()),
        Expr::Literal(..) => false,
        _ => true,
    }
}

fn result(mut expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let made = make_canonical(&mut expr, schema);
    Transformed::new_transformed(expr, made)
}

fn canonical_arguments(args: &mut [Expr], schema: &DFSchema) -> bool {
    args.iter_mut()
        .fold(false, |made, arg| make_canonical(arg, schema) | made)
}

fn is_canonical(expr: &Expr) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.func.inner().is::<CanonicalFloat>())
}

/// Makes an expression canonical if it is a double.
fn make_canonical(expr: &mut Expr, schema: &DFSchema) -> bool {
    make(expr, schema, true)
}

/// Makes an operand canonical that may become a key of a join: a column of its own beside the value.
fn make_key(expr: &mut Expr, schema: &DFSchema) -> bool {
    make(expr, schema, false)
}

fn make(expr: &mut Expr, schema: &DFSchema, keeps_name: bool) -> bool {
    let is_float = matches!(expr.get_type(schema), Ok(DataType::Float32 | DataType::Float64));
    if !is_float || is_canonical(expr) {
        return false;
    }
    let function = Arc::new(ScalarUDF::new_from_impl(CanonicalFloat {
        keeps_name,
        signature: Signature::any(1, Volatility::Immutable),
    }));
    let value = std::mem::take(expr);
    *expr = Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![value]));
    true
}

/// An operand as it was before it was made canonical.
fn as_computed(expr: Expr) -> Expr {
    match expr {
        Expr::ScalarFunction(mut call) if call.func.inner().is::<CanonicalFloat>() => {
            call.args.pop().unwrap_or_default()
        }
        other => other,
    }
}

/// No query can call it by name.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CanonicalFloat {
    /// Whether its column has the name of the value.
    keeps_name: bool,
    signature: Signature,
}

impl ScalarUDFImpl for CanonicalFloat {
    fn name(&self) -> &str {
        CANONICAL
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        match args {
            [value] if self.keeps_name => Ok(value.schema_name().to_string()),
            [value] => Ok(format!("{}({})", self.name(), value.schema_name())),
            _ => exec_err!("a canonical float has one value"),
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        match given {
            [value] => Ok(value.clone()),
            _ => exec_err!("a canonical float has one value"),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match args.arg_fields {
            [value] => Ok(value.clone()),
            _ => exec_err!("a canonical float has one value"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(value) = args.args.first() else {
            return exec_err!("a canonical float has one value");
        };
        let array = value.to_array(args.number_rows)?;
        let made: ArrayRef =
            match array.data_type() {
                DataType::Float64 => Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float64Type>(canonical)),
                DataType::Float32 => {
                    Arc::new(array.as_primitive::<Float32Type>().unary::<_, Float32Type>(
                        |value| match value.is_nan() {
                            true => f32::NAN,
                            false => value + 0.0,
                        },
                    ))
                }
                other => return exec_err!("{other} is no float"),
            };
        Ok(ColumnarValue::Array(made))
    }
}
