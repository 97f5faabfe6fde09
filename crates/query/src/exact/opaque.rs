//! Expressions that the optimizer does not look into. Their value is that of the expression inside, and may be NULL.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{Result, exec_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

pub const OPAQUE: &str = "opaque value";

/// Hides an expression. Those of another number look different.
pub fn hidden(value: Expr, number: usize) -> Expr {
    let function = Arc::new(ScalarUDF::new_from_impl(OpaqueValue {
        number,
        signature: Signature::any(1, Volatility::Immutable),
    }));
    Expr::ScalarFunction(ScalarFunction::new_udf(function, vec![value]))
}

/// No query can call it by name.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OpaqueValue {
    number: usize,
    signature: Signature,
}

impl ScalarUDFImpl for OpaqueValue {
    fn name(&self) -> &str {
        OPAQUE
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        match args {
            [value] => Ok(value.schema_name().to_string()),
            _ => exec_err!("an opaque value is one"),
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        match given {
            [value] => Ok(value.clone()),
            _ => exec_err!("an opaque value is one"),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        match args.arg_fields {
            [value] => Ok(Arc::new(value.as_ref().clone().with_nullable(true))),
            _ => exec_err!("an opaque value is one"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match args.args.into_iter().next() {
            Some(value) => Ok(value),
            None => exec_err!("an opaque value is one"),
        }
    }
}
