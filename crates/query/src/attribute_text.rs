//! `attribute_text(value)`: the text of an attribute whose column has a type, as it is in columns of texts and in overflow maps.
//!
//! [`crate::functions`] puts it around such columns in `attr('name')`, which gives a text whatever the type of the column is.
//! A text stays as it is, since tables of one query may have the same column with and without a type.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, plan_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use thalweg_columns::attribute_types::texts;

pub const NAME: &str = "attribute_text";

pub fn function() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::new_from_impl(AttributeText {
        signature: Signature::user_defined(Volatility::Immutable),
    }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct AttributeText {
    signature: Signature,
}

impl ScalarUDFImpl for AttributeText {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        match given {
            [kind @ (DataType::Int64 | DataType::Float64 | DataType::Boolean)] => Ok(vec![kind.clone()]),
            [kind] if kind.is_string() || kind.is_null() => Ok(vec![DataType::Utf8View]),
            [kind] => plan_err!("{NAME}(value) takes the value of an attribute, and {kind} is none"),
            _ => plan_err!("{NAME}(value) takes one argument"),
        }
    }

    fn return_type(&self, _given: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8View)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match call.args.first() {
            Some(ColumnarValue::Array(values)) => Ok(ColumnarValue::Array(Arc::new(texts(values)?))),
            Some(ColumnarValue::Scalar(value)) => {
                let text = texts(&value.to_array()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&text, 0)?))
            }
            None => plan_err!("{NAME}(value) takes one argument"),
        }
    }
}
