//! What an expression yields: a value, or the wish to delete or to leave alone whatever it is assigned to.

use thalweg_record::Value;

use crate::error::{Eval, Fault};
use crate::view;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Val {
    Value(Value),
    /// `deleted()`: the target of the assignment goes.
    Deleted,
    /// `nothing()`, and an `if` or `match` without a branch that applies: the target stays as it is.
    Nothing,
}

impl Val {
    /// Whether `|` and `or` go on to their alternative.
    pub fn is_absent(&self) -> bool {
        matches!(self, Val::Value(Value::Null) | Val::Deleted | Val::Nothing)
    }

    pub fn kind(&self) -> &'static str {
        match self {
            Val::Value(value) => view::kind(value),
            Val::Deleted => "delete",
            Val::Nothing => "nothing",
        }
    }

    /// The value, where only a value will do.
    pub fn value(self, wanted: &'static str) -> Eval<Value> {
        match self {
            Val::Value(value) => Ok(value),
            Val::Deleted | Val::Nothing => Err(Fault::expected(wanted, self.kind(), String::new())),
        }
    }
}

impl From<Value> for Val {
    fn from(value: Value) -> Val {
        Val::Value(value)
    }
}
