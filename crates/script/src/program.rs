//! The interface between processors and engines: scripts, the trait that runs them, and their failures.

use std::sync::Arc;

use thalweg_record::{Message, MetaMap, Metadata, Value};

use crate::{PayloadReply, ScriptOutput};

/// What kind of code a script is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptForm {
    /// The body of a strict function of `msg`, which returns the resulting message.
    Body,
    /// A non-strict program whose last value is the condition.
    Condition,
    /// A strict expression of these variables, which are members of the payload. Its value is the payload of the
    /// result.
    Expression(Arc<[String]>),
}

/// One script of a processor.
#[derive(Clone, Debug)]
pub struct Script {
    /// Its name in errors: `defaults`, `condition-0-if`.
    pub stage: String,
    pub form: ScriptForm,
    pub code: String,
}

/// A script that is not valid JavaScript. Line and column count from 1 within the script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} (line {line}, column {column})")]
pub struct CompileError {
    /// Index of the script.
    pub script: usize,
    pub text: String,
    pub line: usize,
    pub column: usize,
}

/// How a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The script threw.
    Exception,
    /// The script returned something that is not a message.
    BadReturn,
    /// The time was up.
    Timeout,
    /// The flow stopped while the script ran.
    Stopped,
    /// Memory, stack, results, cache entries or threads were used up.
    Limit,
}

/// One call failed; the message is unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    pub kind: FailureKind,
    /// What happened, with the position in the script if there is one.
    pub text: String,
}

/// Statistics of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramStats {
    /// Calls by QuickJS.
    pub calls: u64,
    /// Calls by native code.
    pub native_calls: u64,
    /// Calls that native code bailed out of; they are included in `calls`.
    pub bails: u64,
    /// Calls with different results from the two engines.
    pub differences: u64,
    /// Calls that ran out of time.
    pub timeouts: u64,
    /// Calls that were given up with their thread.
    pub given_up: u64,
    /// Engines created: one or a few at start, one after each call that used up its time or memory.
    pub engines_made: u64,
    /// Memoized results that replaced a call.
    pub remembered: u64,
}

impl std::ops::Add for ProgramStats {
    type Output = ProgramStats;

    fn add(self, other: ProgramStats) -> ProgramStats {
        ProgramStats {
            calls: self.calls + other.calls,
            native_calls: self.native_calls + other.native_calls,
            bails: self.bails + other.bails,
            differences: self.differences + other.differences,
            timeouts: self.timeouts + other.timeouts,
            given_up: self.given_up + other.given_up,
            engines_made: self.engines_made + other.engines_made,
            remembered: self.remembered + other.remembered,
        }
    }
}

/// One of several calls that run in order: a script, for messages that satisfy a condition.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCall<'a> {
    pub condition: Option<usize>,
    pub script: usize,
    pub message: &'a Message,
    /// The original metadata of the message.
    pub origin: &'a Metadata,
}

/// The result of a call.
#[derive(Clone, Debug)]
pub enum CallOutcome {
    /// The condition does not hold.
    Skipped,
    Returned(ScriptOutput),
}

/// A call that failed.
#[derive(Clone, Debug)]
pub struct CallFailure {
    /// The condition failed, not the script.
    pub is_of_condition: bool,
    pub failure: Failure,
}

/// The memoized result of a script for the metadata that all messages of a tag share.
#[derive(Clone, Debug)]
pub enum MemoizedOutcome {
    /// The script has not seen that metadata yet.
    Unknown,
    /// Its result depends on more than that metadata.
    Depends,
    /// It filters such messages.
    Nothing,
    /// The messages continue with this metadata.
    Over(Arc<MetaMap>),
    /// The messages continue with this metadata, and with the result of [`Program::payload`] for their payload.
    Half(Arc<MetaMap>),
    /// The result of a condition.
    Truth(bool),
}

/// The compiled scripts of one processor, for one thread. Scripts are identified by index.
pub trait Program: Send {
    /// Runs a [`ScriptForm::Body`] or [`ScriptForm::Expression`] on a message. `origin` is its original metadata.
    fn run(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<ScriptOutput, Failure>;

    fn stats(&self) -> ProgramStats;

    /// The memoized result for messages with this shared map and no changes of their own.
    fn remembered(&self, _script: usize, _map: &Arc<MetaMap>) -> MemoizedOutcome {
        MemoizedOutcome::Depends
    }

    /// The payload result of a script whose metadata half is memoized ([`MemoizedOutcome::Half`]); `None` if the script
    /// has to run as a whole. It has no other effects.
    fn payload(&mut self, _script: usize, _value: &Value) -> Option<PayloadReply> {
        None
    }

    /// Evaluates a [`ScriptForm::Condition`]; its changes to `msg` are discarded.
    fn test(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<bool, Failure>;

    /// Makes calls in order, and adds each result to `results`. Cheaper than single calls if they run on another
    /// thread.
    fn call_all(
        &mut self,
        calls: &mut dyn Iterator<Item = ScriptCall<'_>>,
        results: &mut Vec<Result<CallOutcome, CallFailure>>,
    ) {
        for call in calls {
            let result = self.call(call);
            results.push(result);
        }
    }

    /// Makes one such call.
    fn call(&mut self, call: ScriptCall<'_>) -> Result<CallOutcome, CallFailure> {
        let failed = |is_of_condition| {
            move |failure| CallFailure {
                is_of_condition,
                failure,
            }
        };
        let ScriptCall { message, origin, .. } = call;
        if let Some(condition) = call.condition
            && !self.test(condition, message, origin).map_err(failed(true))?
        {
            return Ok(CallOutcome::Skipped);
        }
        let returned = self.run(call.script, message, origin).map_err(failed(false))?;
        Ok(CallOutcome::Returned(returned))
    }
}
