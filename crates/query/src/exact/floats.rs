//! Doubles that are equal in SQL and differ in their bits: `0.0` and `-0.0`, and NaN with another sign or payload.
//!
//! Comparisons and groups of the library know the two zeros. Its DISTINCT aggregates, windows, lists of `IN`, `nullif`, functions
//! that look for elements of lists, and joins over several columns compare bits, and nothing knows that NaN has a sign, which `0.0 / 0.0` and
//! `Infinity - Infinity` set on most machines. So results are made canonical where they are computed, and columns where bits
//! are compared. Its aggregation for `ORDER BY … LIMIT` panics on NaN and is not used for doubles.

use std::sync::Arc;

use datafusion::arrow::array::{Array as _, ArrayRef, AsArray as _, make_array};
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
use crate::bounded::rewrite;

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
/// The same for the elements of lists.
pub const CANONICAL_LIST: &str = "canonical floats";

/// Functions that compare their arguments, or the elements of these.
const COMPARING: [&str; 19] = [
    "nullif",
    "array_has",
    "array_has_all",
    "array_has_any",
    "array_position",
    "array_positions",
    "array_remove",
    "array_remove_n",
    "array_remove_all",
    "array_replace",
    "array_replace_n",
    "array_replace_all",
    "array_distinct",
    "array_union",
    "array_intersect",
    "array_except",
    "array_min",
    "array_max",
    "array_sort",
];

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
        with_canonical_keys(plan)
    }
}

/// Makes the keys of joins canonical that the optimizer makes of subqueries: `EXISTS (… WHERE y.d = x.d)`.
pub fn with_canonical_keys(plan: LogicalPlan) -> Result<LogicalPlan> {
    Ok(plan.transform_up_with_subqueries(keys)?.data)
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
        Expr::ScalarFunction(mut call) if COMPARING.contains(&call.name()) => {
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
    matches!(expr, Expr::ScalarFunction(call) if [CANONICAL, CANONICAL_LIST].contains(&call.name()))
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
    let Some(kind) = expr.get_type(schema).ok().filter(has_floats) else {
        return false;
    };
    if is_canonical(expr) {
        // A value with the name of a column is no second column.
        if keeps_name || !has_name_of_value(expr) {
            return false;
        }
        *expr = as_computed(std::mem::take(expr));
    }
    let function = Arc::new(ScalarUDF::new_from_impl(CanonicalFloat {
        keeps_name,
        is_list: kind.is_nested(),
        signature: Signature::any(1, Volatility::Immutable),
    }));
    let call = Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![std::mem::take(expr)]));
    // Lists can be long, so the memory for a copy is reserved.
    *expr = rewrite::bounded_call(call);
    true
}

/// A float, or a list of them.
fn has_floats(kind: &DataType) -> bool {
    match kind {
        DataType::Float32 | DataType::Float64 => true,
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            has_floats(item.data_type())
        }
        _ => false,
    }
}

/// Whether a canonical value has the name of what it is made of.
fn has_name_of_value(expr: &Expr) -> bool {
    let Expr::ScalarFunction(call) = expr else { return false };
    call.func
        .inner()
        .downcast_ref::<CanonicalFloat>()
        .is_some_and(|made| made.keeps_name)
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
    is_list: bool,
    signature: Signature,
}

impl ScalarUDFImpl for CanonicalFloat {
    fn name(&self) -> &str {
        if self.is_list { CANONICAL_LIST } else { CANONICAL }
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
        match value {
            ColumnarValue::Array(array) => Ok(ColumnarValue::Array(canonical_array(array)?)),
            ColumnarValue::Scalar(constant) => {
                let made = canonical_array(&constant.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&made, 0)?))
            }
        }
    }
}

fn canonical_array(array: &ArrayRef) -> Result<ArrayRef> {
    Ok(match array.data_type() {
        DataType::Float64 => Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float64Type>(canonical)),
        DataType::Float32 => {
            let canonical = |value: f32| match value.is_nan() {
                true => f32::NAN,
                false => value + 0.0,
            };
            Arc::new(array.as_primitive::<Float32Type>().unary::<_, Float32Type>(canonical))
        }
        kind if has_floats(kind) => {
            let data = array.to_data();
            let items = data.child_data().iter().map(|items| {
                let items = canonical_array(&make_array(items.clone()))?;
                Ok(items.to_data())
            });
            let items = items.collect::<Result<Vec<_>>>()?;
            make_array(data.into_builder().child_data(items).build()?)
        }
        other => return exec_err!("{other} has no floats"),
    })
}
