//! Checks `LIKE` patterns that are not constants. A pattern with wildcards other than `%` at its ends is compiled as a
//! regular expression for each row, so it has to pass the same checks as those.

use std::sync::Arc;

use datafusion::arrow::array::AsArray as _;
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::expr::{Like, ScalarFunction};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use super::budget::Budget;

/// No query can call it by name.
pub const NAME: &str = "LIKE";

/// The same comparison with a checked pattern.
pub fn bound(like: Like, constant: Option<&str>, budget: &Budget) -> Result<Expr> {
    if let Some(pattern) = constant {
        budget.check_like(pattern)?;
        return Ok(Expr::Like(like));
    }
    let function = Arc::new(ScalarUDF::new_from_impl(LikePatternCheck {
        signature: Signature::any(1, Volatility::Immutable),
    }));
    let pattern = Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![*like.pattern]));
    Ok(Expr::Like(Like {
        pattern: Box::new(pattern),
        ..like
    }))
}

/// Returns its argument unchanged after the check.
#[derive(Debug, PartialEq, Eq, Hash)]
struct LikePatternCheck {
    signature: Signature,
}

impl ScalarUDFImpl for LikePatternCheck {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        match given {
            [pattern] => Ok(pattern.clone()),
            _ => exec_err!("LIKE takes a pattern"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let budget = Budget::of(&args.config_options);
        let Some(pattern) = args.args.into_iter().next() else {
            return exec_err!("LIKE takes a pattern");
        };
        match &pattern {
            ColumnarValue::Scalar(constant) => {
                if let Some(pattern) = constant.try_as_str().flatten() {
                    budget.check_like(pattern)?;
                }
            }
            ColumnarValue::Array(patterns) => {
                let texts = cast(patterns, &DataType::Utf8View)?;
                let mut texts = texts.as_string_view().iter().flatten();
                texts.try_for_each(|pattern| budget.check_like(pattern))?;
            }
        }
        Ok(pattern)
    }
}
