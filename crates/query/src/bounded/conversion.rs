//! Casts and CASE as functions, so that their results are reserved. An operator evaluates all of its expressions before
//! it emits a batch, so three hundred casts of one long text make three hundred copies of it.

use std::sync::Arc;

use datafusion::arrow::compute::CastOptions;
use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::format::DEFAULT_FORMAT_OPTIONS;
use datafusion::common::tree_node::{Transformed, TreeNode as _};
use datafusion::common::{DFSchema, Result, exec_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::utils::merge_schema;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ExprSchemable as _, LogicalPlan, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF,
    ScalarUDFImpl, Signature, Volatility,
};

use super::scalar;

/// No query can call these by name.
pub const CAST: &str = "CAST";
pub const CASE: &str = "CASE";

/// Replaces casts and CASE in an optimized plan; optimizer rules for casts have run by then.
pub fn bound(plan: LogicalPlan) -> Result<LogicalPlan> {
    let bounded = plan.transform_up_with_subqueries(|node| {
        // The filters of a scan stay as they are, because they select the files of the table.
        if matches!(node, LogicalPlan::TableScan(_)) {
            return Ok(Transformed::no(node));
        }
        let (names, schema) = (NamePreserver::new(&node), merge_schema(&node.inputs()));
        let rewritten = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let bounded = expr.transform_up(|part| Ok(bound_expr(part, &schema)))?;
            Ok(bounded.update_data(|expr| name.restore(expr)))
        })?;
        match rewritten.transformed {
            true => Ok(Transformed::yes(rewritten.data.recompute_schema()?)),
            false => Ok(rewritten),
        }
    });
    Ok(bounded?.data)
}

/// Replaces a cast or a CASE by a function.
pub fn bound_expr(expr: Expr, schema: &DFSchema) -> Transformed<Expr> {
    let (name, value) = match &expr {
        Expr::Cast(cast) => (CAST, Some(&cast.expr)),
        Expr::TryCast(cast) => (CAST, Some(&cast.expr)),
        Expr::Case(_) => (CASE, None),
        _ => return Transformed::no(expr),
    };
    let Ok((_, field)) = expr.to_field(schema) else {
        return Transformed::no(expr);
    };
    // Other types need few bytes: views point to existing data.
    let is_made = match field.data_type() {
        DataType::Utf8View | DataType::BinaryView => {
            value.is_some_and(|value| !value.get_type(schema).is_ok_and(|kind| is_text(&kind)))
        }
        kind => !kind.is_primitive() && !matches!(kind, DataType::Boolean | DataType::Null),
    };
    if !is_made {
        return Transformed::no(expr);
    }
    let is_safe = matches!(expr, Expr::TryCast(_));
    let value = match expr {
        Expr::Cast(cast) => *cast.expr,
        Expr::TryCast(cast) => *cast.expr,
        other => other,
    };
    let function = Arc::new(ScalarUDF::new_from_impl(Conversion {
        name,
        field,
        is_safe,
        signature: Signature::any(1, Volatility::Immutable),
    }));
    let bounded = scalar::bounded(&function).unwrap_or(function);
    Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(bounded, vec![value])))
}

fn is_text(kind: &DataType) -> bool {
    kind.is_string() || kind.is_binary()
}

/// A function that casts its argument or, for CASE, returns it unchanged. CASE itself stays an expression, because it
/// evaluates only the branches it needs and a function cannot.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Conversion {
    name: &'static str,
    /// The field of the replaced expression.
    field: FieldRef,
    /// A value that cannot be cast becomes null.
    is_safe: bool,
    signature: Signature,
}

impl ScalarUDFImpl for Conversion {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _given: &[DataType]) -> Result<DataType> {
        Ok(self.field.data_type().clone())
    }

    fn return_field_from_args(&self, _args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(self.field.clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(value) = args.args.into_iter().next() else {
            return exec_err!("{} takes a value", self.name);
        };
        let options = CastOptions {
            safe: self.is_safe,
            format_options: DEFAULT_FORMAT_OPTIONS,
        };
        match self.name {
            CAST => value.cast_to(self.field.data_type(), Some(&options)),
            _ => Ok(value),
        }
    }
}
