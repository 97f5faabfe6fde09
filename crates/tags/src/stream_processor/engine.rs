//! Runs expressions as scripts, or returns a known value without a call.

use hashbrown::{HashMap, HashSet};
use thalweg_record::{DropReason, Message, Metadata, Object, Payload, Text, Value};
use thalweg_script::{
    CallFailure, CallOutcome, Failure, FailureKind, PayloadReply, Program, ProgramStats, ScriptCall, ScriptOutput,
};

use super::values::SourceValues;
use super::{Expression, ExpressionBody};
use crate::datatype::json_value;
use crate::scripting::reason;

/// Runs expressions, for one thread.
pub(super) struct ExpressionEngine {
    program: Option<Box<dyn Program>>,
    /// Results of constant expressions that were already run.
    fixed: Vec<Option<Value>>,
    /// Constant expressions that were started and not finished.
    begun: HashSet<usize>,
    calls: u64,
}

/// Why there is no result.
#[derive(Clone)]
pub(super) struct EvaluationError {
    pub reason: DropReason,
    pub text: String,
}

impl From<Failure> for EvaluationError {
    fn from(failure: Failure) -> EvaluationError {
        // The engine reports on messages; the value of an expression is the payload of one.
        let of_value = match failure.kind {
            FailureKind::BadReturn | FailureKind::Limit => failure.text.strip_prefix("payload "),
            _ => None,
        };
        let text = of_value
            .map(|rest| format!("the result {rest}"))
            .unwrap_or(failure.text);
        let reason = reason(failure.kind);
        EvaluationError { reason, text }
    }
}

impl ExpressionEngine {
    pub fn new(program: Option<Box<dyn Program>>, expressions: usize) -> ExpressionEngine {
        ExpressionEngine {
            program,
            fixed: vec![None; expressions],
            begun: HashSet::new(),
            calls: 0,
        }
    }

    /// Number of script calls so far.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    pub fn stats(&self) -> Option<ProgramStats> {
        self.program.as_ref().map(|program| program.stats())
    }

    /// Begins an expression whose sources all have a value, with their current values.
    pub fn begin(&mut self, number: usize, expression: &Expression, values: &SourceValues) -> PendingEvaluation {
        if let Some(Some(fixed)) = self.fixed.get(number) {
            return PendingEvaluation::Done(Ok(fixed.clone()));
        }
        match &expression.work {
            ExpressionBody::Constant(value) => PendingEvaluation::Done(finite(value.clone())),
            ExpressionBody::Source(source) => {
                PendingEvaluation::Done(finite(values.get(*source).cloned().unwrap_or(Value::Null)))
            }
            ExpressionBody::Script { is_fixed: true, .. } if !self.begun.insert(number) => PendingEvaluation::AsBefore,
            ExpressionBody::Script { number, variables, .. } => {
                self.calls += 1;
                PendingEvaluation::Call(*number, message_of(variables, values))
            }
            ExpressionBody::Refused(why) => PendingEvaluation::Done(Err(EvaluationError {
                reason: DropReason::ScriptError,
                text: why.clone(),
            })),
        }
    }

    /// Runs the scripts of expressions in order, and returns the value of each.
    pub fn finish(
        &mut self,
        begun: &[(&Expression, usize, &PendingEvaluation)],
    ) -> Vec<Result<Value, EvaluationError>> {
        let calls = begun.iter().filter_map(|(_, _, begun)| match begun {
            PendingEvaluation::Call(script, message) => Some((*script, message)),
            PendingEvaluation::Done(_) | PendingEvaluation::AsBefore => None,
        });
        let mut called = Vec::new();
        if let Some(program) = &mut self.program {
            let mut calls = calls.map(|(script, message)| ScriptCall {
                condition: None,
                script,
                message,
                origin: &message.meta,
            });
            program.call_all(&mut calls, &mut called);
        }
        let (mut called, mut failed) = (called.into_iter(), HashMap::new());
        self.begun.clear();
        let mut value = |(expression, number, begun): &(&Expression, usize, &PendingEvaluation)| match begun {
            PendingEvaluation::Done(result) => result.clone(),
            PendingEvaluation::AsBefore => match (self.fixed.get(*number), failed.get(number)) {
                (_, Some(failure)) => Err(EvaluationError::clone(failure)),
                (Some(Some(value)), None) => Ok(value.clone()),
                _ => Ok(Value::Null),
            },
            PendingEvaluation::Call(_, message) => {
                let value = value_of(called.next(), message).inspect_err(|failure| {
                    failed.insert(*number, failure.clone());
                })?;
                if let (ExpressionBody::Script { is_fixed: true, .. }, Some(place)) =
                    (&expression.work, self.fixed.get_mut(*number))
                {
                    *place = Some(value.clone());
                }
                Ok(value)
            }
        };
        begun.iter().map(&mut value).collect()
    }

    #[cfg(test)]
    pub fn run(
        &mut self,
        number: usize,
        expression: &Expression,
        values: &SourceValues,
    ) -> Result<Value, EvaluationError> {
        let begun = self.begin(number, expression, values);
        let mut results = self.finish(&[(expression, number, &begun)]);
        results.pop().expect("a result for each expression")
    }
}

/// An expression whose evaluation has started.
pub(super) enum PendingEvaluation {
    Done(Result<Value, EvaluationError>),
    /// Constant, and already started for an earlier message of the batch.
    AsBefore,
    /// The script, and the sources that it reads.
    Call(usize, Message),
}

/// The sources of an expression as members of a payload.
fn message_of(variables: &[(Text, usize)], values: &SourceValues) -> Message {
    let mut members = Object::with_capacity(variables.len());
    for (name, source) in variables {
        if let Some(value) = values.get(*source) {
            members.push_new(name.clone(), value.clone());
        }
    }
    Message::new(Payload::Value(Value::from(members)), Metadata::default())
}

/// The result of a script; null if there are no scripts.
fn value_of(called: Option<Result<CallOutcome, CallFailure>>, message: &Message) -> Result<Value, EvaluationError> {
    let returned = match called {
        Some(Ok(CallOutcome::Returned(returned))) => returned,
        Some(Ok(CallOutcome::Skipped)) | None => ScriptOutput::Nothing,
        Some(Err(failed)) => return Err(failed.failure.into()),
    };
    let value = match returned {
        ScriptOutput::One(reply) => match reply.payload {
            PayloadReply::New(value) => value,
            // All its sources by name: `{left, right}`.
            PayloadReply::Same | PayloadReply::Again => match &message.payload {
                Payload::Value(payload) => payload.clone(),
                _ => Value::Null,
            },
            PayloadReply::Missing => Value::Null,
        },
        ScriptOutput::Nothing | ScriptOutput::Many(_) | ScriptOutput::Over(_) => Value::Null,
    };
    finite(value)
}

fn finite(value: Value) -> Result<Value, EvaluationError> {
    json_value(value).ok_or_else(|| EvaluationError {
        reason: DropReason::InvalidValue,
        text: "the result is NaN or infinite".to_owned(),
    })
}
