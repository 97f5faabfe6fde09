//! `a || b` for texts as a function, because an operator allocates its result without a reservation.

use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::common::{Result, ScalarValue, exec_err};
use datafusion::logical_expr::expr::{BinaryExpr, ScalarFunction};
use datafusion::logical_expr::type_coercion::binary::BinaryTypeCoercer;
use datafusion::logical_expr::{
    ColumnarValue, Expr, Operator, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use datafusion::physical_expr::PhysicalExpr as _;
use datafusion::physical_expr::expressions;

/// Not a valid function name, so no query can call it.
pub const NAME: &str = "a || b";

/// Converts the operator to a function call.
pub fn call(left: Expr, right: Expr) -> Expr {
    let function = Arc::new(ScalarUDF::new_from_impl(Concatenation {
        signature: Signature::user_defined(Volatility::Immutable),
    }));
    let bounded = super::scalar::bounded(&function).unwrap_or(function);
    Expr::ScalarFunction(ScalarFunction::new_udf(bounded, vec![left, right]))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Concatenation {
    signature: Signature,
}

impl ScalarUDFImpl for Concatenation {
    fn name(&self) -> &str {
        NAME
    }

    /// The name that the operator would have.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        match args {
            [left, right] => {
                let operator = BinaryExpr::new(Box::new(left.clone()), Operator::StringConcat, Box::new(right.clone()));
                Ok(Expr::BinaryExpr(operator).schema_name().to_string())
            }
            _ => exec_err!("|| takes two values"),
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let [left, right] = given else {
            return exec_err!("|| takes two values");
        };
        let (left, right) = BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_input_types()?;
        Ok(vec![left, right])
    }

    fn return_type(&self, given: &[DataType]) -> Result<DataType> {
        match given {
            [left, right] => BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_result_type(),
            _ => exec_err!("|| takes two values"),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let are_constants = args.args.iter().all(|arg| matches!(arg, ColumnarValue::Scalar(_)));
        let rows = if are_constants { 1 } else { args.number_rows };
        let (mut fields, mut columns) = (Vec::new(), Vec::new());
        for (at, arg) in args.args.iter().enumerate() {
            let column = arg.to_array(rows)?;
            fields.push(Field::new(at.to_string(), column.data_type().clone(), true));
            columns.push(column);
        }
        let schema = Arc::new(Schema::new(fields));
        let column = |at: usize| Arc::new(expressions::Column::new(&at.to_string(), at));
        let operator = expressions::BinaryExpr::new(column(0), Operator::StringConcat, column(1));
        let made = operator.evaluate(&RecordBatch::try_new(schema, columns)?)?;
        match (made, are_constants) {
            (ColumnarValue::Array(array), true) => Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&array, 0)?)),
            (made, _) => Ok(made),
        }
    }
}
