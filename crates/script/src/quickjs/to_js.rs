//! Converts typed values to JavaScript values, without a detour over JSON text.

use thalweg_record::Value;

use super::value::{Ctx, JsResult, Val};
use crate::view::{number_seen, plain_form, text_form};

pub(super) fn to_js(ctx: Ctx, value: &Value) -> JsResult<Val> {
    match value {
        Value::Null => Ok(ctx.null()),
        Value::Bool(b) => Ok(ctx.bool(*b)),
        Value::Array(values) => {
            let values = values.iter().map(|v| to_js(ctx, v)).collect::<JsResult<Vec<Val>>>()?;
            ctx.array(values)
        }
        Value::Object(object) => {
            let result = ctx.object()?;
            for (name, value) in object.iter() {
                let name = ctx.atom(name)?;
                result.define(name.raw, to_js(ctx, value)?)?;
            }
            Ok(result)
        }
        Value::Guid(_) | Value::Structured(_) => to_js(ctx, &plain_form(value).unwrap_or(Value::Null)),
        other => match (number_seen(other), text_form(other)) {
            (Some(number), _) => Ok(ctx.number(number)),
            (None, Some(text)) => ctx.string(&text),
            (None, None) => Ok(ctx.null()),
        },
    }
}
