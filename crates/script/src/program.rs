//! The seam between processors and engines: scripts, the trait that runs them, and how they fail.

use std::sync::Arc;

use thalweg_record::{Message, MetaMap, Metadata, Value};

use crate::{PayloadReply, ScriptOutput};

/// What kind of code a script is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScriptForm {
    /// The body of a strict function of `msg`, which returns what becomes of the message.
    Body,
    /// A non-strict program whose last value counts as truth.
    Condition,
    /// A strict expression of these variables, which are members of the payload. Its value is the payload of what comes back.
    Expression(Arc<[String]>),
}

/// One script of a processor.
#[derive(Clone, Debug)]
pub struct Script {
    /// How errors call it: `defaults`, `condition-0-if`.
    pub stage: String,
    pub form: ScriptForm,
    pub code: String,
}

/// A script that is not JavaScript. Line and column count from 1 within the script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text} (line {line}, column {column})")]
pub struct CompileError {
    /// Which of the scripts.
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
    /// The script returned what is not a message.
    BadReturn,
    /// The time was up.
    Timeout,
    /// The flow stopped while the script ran.
    Stopped,
    /// Memory, stack, results, cache entries or threads were used up.
    Limit,
}

/// One call failed; the message is as it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Failure {
    pub kind: FailureKind,
    /// What happened, with the place in the script where there is one.
    pub text: String,
}

/// What a program did so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramStats {
    /// Calls by QuickJS.
    pub calls: u64,
    /// Calls by native code.
    pub native_calls: u64,
    /// Calls that native code left to QuickJS, which are among its calls.
    pub bails: u64,
    /// Results in which the two differed.
    pub differences: u64,
    /// Calls that ran out of time.
    pub timeouts: u64,
    /// Calls that were given up with their thread.
    pub given_up: u64,
    /// Engines made: one or a few at start, one after each call that used up its time or memory.
    pub engines_made: u64,
    /// Results that were at hand, so that there was no call.
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

/// One of several calls that are made in their order: a script, for messages of which a condition holds.
#[derive(Clone, Copy, Debug)]
pub struct ScriptCall<'a> {
    pub condition: Option<usize>,
    pub script: usize,
    pub message: &'a Message,
    /// The metadata that the message first came with.
    pub origin: &'a Metadata,
}

/// What came of a call.
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

/// What is known of a script and the metadata that all messages of a tag share.
#[derive(Clone, Debug)]
pub enum MemoizedOutcome {
    /// It has not met that metadata yet.
    Unknown,
    /// What it makes depends on more than that metadata.
    Depends,
    /// It filters such messages.
    Nothing,
    /// They go on with this metadata in the place of theirs.
    Over(Arc<MetaMap>),
    /// They go on with this metadata, and with what [`Program::payload`] makes of their payload.
    Half(Arc<MetaMap>),
    /// Of a condition.
    Truth(bool),
}

/// The compiled scripts of one processor, for one thread. Scripts are named by their index.
pub trait Program: Send {
    /// Runs a [`ScriptForm::Body`] or [`ScriptForm::Expression`] on a message. `origin` is the metadata it first came with.
    fn run(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<ScriptOutput, Failure>;

    fn stats(&self) -> ProgramStats;

    /// What is at hand for messages without changes of their own over a shared map.
    fn remembered(&self, _script: usize, _map: &Arc<MetaMap>) -> MemoizedOutcome {
        MemoizedOutcome::Depends
    }

    /// What a script of which one half is remembered ([`MemoizedOutcome::Half`]) makes of a payload; `None` if it has to run as a whole.
    /// Nothing else comes of it.
    fn payload(&mut self, _script: usize, _value: &Value) -> Option<PayloadReply> {
        None
    }

    /// Evaluates a [`ScriptForm::Condition`]; what it does to `msg` is lost.
    fn test(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<bool, Failure>;

    /// Makes calls in their order, and adds what came of each to `results`. Cheaper than one by one where they run on another thread.
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

    /// One such call.
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
