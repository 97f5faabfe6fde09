//! Scripts whose calls end in time, whatever they do.
//!
//! Native code runs on the caller's thread, because it counts its steps. QuickJS runs on a helper thread, because
//! nothing can interrupt a built-in function (`normalize`, a comparison of long texts). The calls of a batch are handed
//! over together, so they share the cost of one hand-over.
//!
//! The caller waits and watches the time. A call that exceeds `timeout` is interrupted. After twice the timeout plus a
//! quarter of a second it is given up together with its thread and its engine, and the remaining calls go to a new one.
//! The helper has copies of messages and owns the engine while it works; it has no part in acknowledgements. A call
//! that was given up has no effects from then on ([`CallWatch`](crate::CallWatch)), and its memory is freed when the
//! built-in function returns.

mod helper;
mod lost_threads;
mod spin;

use std::fmt;
use std::sync::Arc;

use thalweg_record::{Message, MetaMap, Metadata, Value};

use self::helper::{Helper, JobOutcome, OwnedCall};
pub use self::lost_threads::LostThreads;
use self::spin::Spin;
use crate::{
    CallFailure, CallOutcome, CallWatch, CompileError, Engine, EngineMode, Environment, Failure, FailureKind,
    MemoizedOutcome, MemoizingEngine, PayloadReply, Program, ProgramStats, Script, ScriptCall, ScriptOutput,
};

/// How calls that do not end are handled.
#[derive(Clone)]
pub struct GuardOptions {
    /// Lost threads of all programs that share the limit.
    pub lost: LostThreads,
    /// At this number of lost threads, QuickJS is not called any more.
    pub lost_max: usize,
    /// Called for each thread that is given up (1), and when it ends (-1).
    pub on_lost: Arc<dyn Fn(i64) + Send + Sync>,
    /// Whether waiting any longer is pointless.
    pub gives_up: Arc<dyn Fn() -> bool + Send + Sync>,
    /// Name of the helper thread.
    pub name: String,
}

impl Default for GuardOptions {
    fn default() -> GuardOptions {
        GuardOptions {
            lost: LostThreads::default(),
            lost_max: 8,
            on_lost: Arc::new(|_| {}),
            gives_up: Arc::new(|| false),
            name: "script".to_owned(),
        }
    }
}

/// The scripts of one processor, for one thread.
pub struct GuardedProgram {
    scripts: Arc<[Script]>,
    environment: Environment,
    mode: EngineMode,
    guard: GuardOptions,
    /// `None` between a call that was given up and the next one.
    program: Option<Box<MemoizingEngine>>,
    watch: CallWatch,
    helper: Option<Helper>,
    spin: Spin,
    /// Statistics of discarded engines.
    gone: ProgramStats,
}

impl GuardedProgram {
    /// Compiles all scripts. The first one that is not valid JavaScript is the error.
    pub fn new(
        scripts: &[Script],
        environment: Environment,
        mode: EngineMode,
        guard: GuardOptions,
    ) -> Result<GuardedProgram, CompileError> {
        let mut guarded = GuardedProgram {
            scripts: scripts.into(),
            environment,
            mode,
            guard,
            program: None,
            watch: CallWatch::default(),
            helper: None,
            spin: Spin::default(),
            gone: ProgramStats::default(),
        };
        guarded.program()?;
        Ok(guarded)
    }

    /// The engine, unless it was just given up.
    pub fn engine(&self) -> Option<&Engine> {
        self.program.as_ref().map(|program| program.engine())
    }

    fn program(&mut self) -> Result<&mut MemoizingEngine, CompileError> {
        let program = match self.program.take() {
            Some(program) => program,
            None => {
                self.watch = CallWatch::default();
                let environment = Environment {
                    watch: self.watch.clone(),
                    ..self.environment.clone()
                };
                Box::new(MemoizingEngine::new(Engine::new(
                    &self.scripts,
                    environment,
                    self.mode,
                )?))
            }
        };
        Ok(self.program.insert(program))
    }

    /// Makes a call without QuickJS, or returns what remains of it.
    fn call_native(&mut self, call: ScriptCall<'_>) -> Result<Result<CallOutcome, CallFailure>, CallRemainder> {
        let program = match self.program() {
            Ok(program) => program,
            Err(error) => return Ok(Err(limit(format!("the script engine cannot be recreated: {error}")))),
        };
        let ScriptCall { message, origin, .. } = call;
        if let Some(condition) = call.condition {
            match program.test_native(condition, message, origin) {
                None => return Err(CallRemainder::Condition),
                Some(Ok(true)) => {}
                Some(Ok(false)) => return Ok(Ok(CallOutcome::Skipped)),
                Some(Err(failure)) => return Ok(Err(failed(failure, true))),
            }
        }
        match program.run_native(call.script, message, origin) {
            None => Err(CallRemainder::Script),
            Some(Ok(returned)) => Ok(Ok(CallOutcome::Returned(returned))),
            Some(Err(failure)) => Ok(Err(failed(failure, false))),
        }
    }

    /// Makes calls on the helper thread, continuing after a call that is given up.
    fn call_helper(&mut self, calls: Vec<OwnedCall>, results: &mut Vec<Result<CallOutcome, CallFailure>>) {
        let first = results.len();
        results.reserve(calls.len());
        let calls = Arc::new(calls);
        while let Some(call) = calls.get(results.len() - first) {
            // The results of later calls are not needed.
            let stopped = results
                .get(first..)
                .and_then(<[_]>::last)
                .and_then(|result| result.as_ref().err());
            if let Some(stopped) = stopped.filter(|failed| failed.failure.kind == FailureKind::Stopped) {
                let stopped = stopped.clone();
                results.push(Err(stopped));
            } else if self.guard.lost.count() >= self.guard.lost_max {
                let made = call.as_call().and_then(|call| self.call_native(call).ok());
                results.push(made.unwrap_or_else(|| Err(limit(self.no_thread()))));
            } else if let Err(why) = self.hand_over(&calls, results.len() - first, results) {
                results.push(Err(limit(why)));
            }
        }
        debug_assert!(results.len() == first + calls.len(), "a result for each call");
    }

    fn no_thread(&self) -> String {
        format!(
            "{} threads are lost in calls that do not end, so no script runs in QuickJS until one does; see the log for the \
             scripts, or raise scripting.lost_threads",
            self.guard.lost.count()
        )
    }

    /// Hands calls to the helper, starting at `from`, until all are made or one is given up, whose failure is added.
    fn hand_over(
        &mut self,
        calls: &Arc<Vec<OwnedCall>>,
        from: usize,
        results: &mut Vec<Result<CallOutcome, CallFailure>>,
    ) -> Result<(), String> {
        self.program()
            .map_err(|error| format!("the script engine cannot be recreated: {error}"))?;
        let helper = match self.helper.take() {
            Some(helper) => helper,
            None => Helper::spawn(&self.guard.name, self.environment.limits.stack)
                .map_err(|error| format!("cannot start the thread {}: {error}", self.guard.name))?,
        };
        let Some(program) = self.program.take() else {
            return Err("the script engine is gone".to_owned());
        };
        let (before, made) = (program.stats(), results.len());
        let job = helper.start(
            program,
            self.watch.clone(),
            calls.clone(),
            from,
            std::mem::take(results),
        )?;
        match job.wait(self.environment.limits.timeout, &self.guard, &mut self.spin, results) {
            JobOutcome::Done(program) => {
                self.program = Some(program);
                self.helper = Some(helper);
            }
            JobOutcome::GivenUp(failure) => {
                let made = results.len() - made;
                let lost = ProgramStats {
                    calls: made as u64 + 1,
                    timeouts: 1,
                    given_up: 1,
                    ..ProgramStats::default()
                };
                self.gone = self.gone + before + lost;
                tracing::error!(
                    stage = self.stage(&failure, calls.get(from + made)),
                    thread = self.guard.name,
                    lost = self.guard.lost.count(),
                    "{}",
                    failure.failure.text
                );
                results.push(Err(failure));
            }
            JobOutcome::Panicked(panic) => {
                self.gone = self.gone + before;
                std::panic::resume_unwind(panic);
            }
        }
        Ok(())
    }

    /// The name of the failed script in errors.
    fn stage(&self, failure: &CallFailure, call: Option<&OwnedCall>) -> &str {
        let script = call.and_then(|call| match failure.is_of_condition {
            true => call.condition,
            false => Some(call.script),
        });
        let script = script.and_then(|script| self.scripts.get(script));
        script.map_or("", |script| script.stage.as_str())
    }
}

/// What native code left of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallRemainder {
    /// All of it.
    Condition,
    /// Only the script; the condition holds.
    Script,
}

fn failed(failure: Failure, is_of_condition: bool) -> CallFailure {
    CallFailure {
        is_of_condition,
        failure,
    }
}

fn limit(text: String) -> CallFailure {
    let kind = FailureKind::Limit;
    failed(Failure { kind, text }, false)
}

impl Program for GuardedProgram {
    fn run(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<ScriptOutput, Failure> {
        let call = ScriptCall {
            condition: None,
            script,
            message,
            origin,
        };
        match self.call(call) {
            Ok(CallOutcome::Returned(returned)) => Ok(returned),
            Ok(CallOutcome::Skipped) => Ok(ScriptOutput::Nothing),
            Err(failed) => Err(failed.failure),
        }
    }

    fn test(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<bool, Failure> {
        let program = self.program().map_err(|error| limit(error.to_string()).failure)?;
        match program.test_native(script, message, origin) {
            Some(result) => result,
            None => {
                let call = OwnedCall::condition_alone(script, message, origin);
                let mut results = Vec::with_capacity(1);
                self.call_helper(vec![call], &mut results);
                match results.pop() {
                    Some(Ok(called)) => Ok(matches!(called, CallOutcome::Returned(_))),
                    Some(Err(failed)) => Err(failed.failure),
                    None => Ok(false),
                }
            }
        }
    }

    fn call(&mut self, call: ScriptCall<'_>) -> Result<CallOutcome, CallFailure> {
        let mut results = Vec::with_capacity(1);
        self.call_all(&mut std::iter::once(call), &mut results);
        results.pop().unwrap_or(Ok(CallOutcome::Skipped))
    }

    fn call_all(
        &mut self,
        calls: &mut dyn Iterator<Item = ScriptCall<'_>>,
        results: &mut Vec<Result<CallOutcome, CallFailure>>,
    ) {
        while let Some(call) = calls.next() {
            match self.call_native(call) {
                Ok(result) => results.push(result),
                // The scripts of a batch are mostly the same, and their order must be kept, so all later calls go to
                // the helper too.
                Err(left) => {
                    let first = OwnedCall::rest_of(call, left == CallRemainder::Script);
                    let owned = std::iter::once(first).chain(calls.map(OwnedCall::new)).collect();
                    return self.call_helper(owned, results);
                }
            }
        }
    }

    fn payload(&mut self, script: usize, value: &Value) -> Option<PayloadReply> {
        self.program.as_mut()?.payload(script, value)
    }

    fn remembered(&self, script: usize, map: &Arc<MetaMap>) -> MemoizedOutcome {
        match &self.program {
            Some(program) => program.remembered(script, map),
            None => MemoizedOutcome::Unknown,
        }
    }

    fn stats(&self) -> ProgramStats {
        self.gone + self.program.as_ref().map(|program| program.stats()).unwrap_or_default()
    }
}

impl fmt::Debug for GuardedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedProgram")
            .field("program", &self.program)
            .field("name", &self.guard.name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
