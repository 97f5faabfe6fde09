//! What an expression yields: a value, or the wish to delete or to leave alone whatever it is assigned to.

use thalweg_record::Value;

use crate::error::{EvalResult, Fault};
use crate::view;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ExprValue {
    Value(Value),
    /// `deleted()`: the target of the assignment goes.
    Deleted,
    /// `nothing()`, and an `if` or `match` without a branch that applies: the target stays as it is.
    Nothing,
}

impl ExprValue {
    /// Whether `|` and `or` go on to their alternative.
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

    /// The value, where only a value will do.
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
