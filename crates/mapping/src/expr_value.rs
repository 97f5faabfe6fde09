//! The result of an expression: a value, or a request to delete or keep the target of the assignment.

use thalweg_record::Value;

use crate::error::{EvalResult, Fault};
use crate::view;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExprValue {
    Value(Value),
    /// `deleted()`: the target of the assignment is removed.
    Deleted,
    /// `nothing()`, or an `if` or `match` without a matching branch: the target stays as it is.
    Nothing,
}

impl ExprValue {
    /// Whether `|` and `or` evaluate their alternative.
    pub fn is_absent(&self) -> bool {
        matches!(
            self,
            ExprValue::Value(Value::Null) | ExprValue::Deleted | ExprValue::Nothing
        )
    }

    pub fn kind(&self) -> &'static str {
        match self {
            ExprValue::Value(value) => view::kind(value),
            ExprValue::Deleted => "delete",
            ExprValue::Nothing => "nothing",
        }
    }

    /// Returns the value, or a fault if there is none.
    pub fn value(self, wanted: &'static str) -> EvalResult<Value> {
        match self {
            ExprValue::Value(value) => Ok(value),
            ExprValue::Deleted | ExprValue::Nothing => Err(Fault::expected(wanted, self.kind(), String::new())),
        }
    }
}

impl From<Value> for ExprValue {
    fn from(value: Value) -> ExprValue {
        ExprValue::Value(value)
    }
}
