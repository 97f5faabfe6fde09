//! Runs expressions: as scripts, or not at all where their value is at hand.

use thalweg_record::{DropReason, Message, Metadata, Object, Payload, Text, Value};
use thalweg_script::{Failure, FailureKind, PayloadReply, Program, Returned, Stats};

use super::values::Values;
use super::{Expression, Work};
use crate::datatype::json_value;
use crate::scripting::reason;

/// Runs expressions, for one thread.
pub(super) struct Engine {
    program: Option<Box<dyn Program>>,
    /// Results of expressions that give the same each time, once they were run.
    fixed: Vec<Option<Value>>,
    calls: u64,
}

/// Why there is no result.
pub(super) struct NoResult {
    pub reason: DropReason,
    pub text: String,
}

impl From<Failure> for NoResult {
    fn from(failure: Failure) -> NoResult {
        // The engine speaks of messages; the value of an expression is the payload of one.
        let of_value = match failure.kind {
            FailureKind::BadReturn | FailureKind::Limit => failure.text.strip_prefix("payload "),
            _ => None,
        };
        let text = of_value
            .map(|rest| format!("the result {rest}"))
            .unwrap_or(failure.text);
        let reason = reason(failure.kind);
        NoResult { reason, text }
    }
}

impl Engine {
    pub fn new(program: Option<Box<dyn Program>>, expressions: usize) -> Engine {
        Engine {
            program,
            fixed: vec![None; expressions],
            calls: 0,
        }
    }

    /// Scripts that were called so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    pub fn stats(&self) -> Option<Stats> {
        self.program.as_ref().map(|program| program.stats())
    }

    /// The value of an expression whose sources are all known.
    pub fn run(&mut self, number: usize, expression: &Expression, values: &Values) -> Result<Value, NoResult> {
        if let Some(Some(fixed)) = self.fixed.get(number) {
            return Ok(fixed.clone());
        }
        let value = match &expression.work {
            Work::Constant(value) => value.clone(),
            Work::Source(source) => values.get(*source).cloned().unwrap_or(Value::Null),
            Work::Script { number, variables, .. } => self.call(*number, variables, values)?,
            Work::Refused(why) => {
                return Err(NoResult {
                    reason: DropReason::ScriptError,
                    text: why.clone(),
                });
            }
        };
        let value = json_value(value).ok_or_else(|| NoResult {
            reason: DropReason::InvalidValue,
            text: "the result is NaN or infinite".to_owned(),
        })?;
        if let (Work::Script { is_fixed: true, .. }, Some(place)) = (&expression.work, self.fixed.get_mut(number)) {
            *place = Some(value.clone());
        }
        Ok(value)
    }

    fn call(&mut self, script: usize, variables: &[(Text, usize)], values: &Values) -> Result<Value, Failure> {
        let mut members = Object::with_capacity(variables.len());
        for (name, source) in variables {
            if let Some(value) = values.get(*source) {
                members.push_new(name.clone(), value.clone());
            }
        }
        let payload = Value::from(members);
        let message = Message::new(Payload::Value(payload.clone()), Metadata::default());
        self.calls += 1;
        let Some(program) = &mut self.program else {
            return Ok(Value::Null);
        };
        Ok(match program.run(script, &message, &message.meta)? {
            Returned::One(reply) => match reply.payload {
                PayloadReply::New(value) => value,
                // All sources that it names, by their names: `{left, right}`.
                PayloadReply::Same | PayloadReply::Again => payload,
                PayloadReply::Missing => Value::Null,
            },
            Returned::Nothing | Returned::Many(_) | Returned::Over(_) => Value::Null,
        })
    }
}
