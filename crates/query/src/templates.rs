//! `log_template(body)` and `log_fingerprint(body)`: compute the template behind the `fingerprint` column of logs for
//! any text.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Builder, StringBuilder};
use arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use thalweg_columns::ids::template::TemplateBuilder;

pub fn functions() -> [Arc<ScalarUDF>; 2] {
    let template = create_udf(
        "log_template",
        vec![DataType::Utf8View],
        DataType::Utf8,
        Volatility::Immutable,
        Arc::new(|arguments: &[ColumnarValue]| each(arguments, templates)),
    );
    let fingerprint = create_udf(
        "log_fingerprint",
        vec![DataType::Utf8View],
        DataType::Int64,
        Volatility::Immutable,
        Arc::new(|arguments: &[ColumnarValue]| each(arguments, fingerprints)),
    );
    [Arc::new(template), Arc::new(fingerprint)]
}

/// Constant arguments are evaluated once.
fn each(arguments: &[ColumnarValue], make: fn(&ArrayRef) -> ArrayRef) -> Result<ColumnarValue> {
    let is_constant = arguments
        .iter()
        .all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
    let arrays = ColumnarValue::values_to_arrays(arguments)?;
    let [bodies] = &arrays[..] else {
        return datafusion::common::exec_err!("the function takes one argument, a text");
    };
    let made = make(bodies);
    Ok(match is_constant {
        true => ColumnarValue::Scalar(datafusion::common::ScalarValue::try_from_array(&made, 0)?),
        false => ColumnarValue::Array(made),
    })
}

fn templates(bodies: &ArrayRef) -> ArrayRef {
    let (mut made, mut out) = (
        TemplateBuilder::default(),
        StringBuilder::with_capacity(bodies.len(), 0),
    );
    for body in bodies.as_string_view() {
        out.append_option(body.and_then(|body| made.template(body)));
    }
    Arc::new(out.finish())
}

fn fingerprints(bodies: &ArrayRef) -> ArrayRef {
    let (mut made, mut out) = (TemplateBuilder::default(), Int64Builder::with_capacity(bodies.len()));
    for body in bodies.as_string_view() {
        out.append_option(body.and_then(|body| made.fingerprint(body)));
    }
    Arc::new(out.finish())
}
