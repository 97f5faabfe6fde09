//! Scripts on QuickJS-ng: compiled once per thread, called once per message.
//!
//! **Nothing survives a call.** A realm (global object and built-in objects) costs far more to create than a call, so
//! calls share one. How they are kept apart depends on what the script does (see [`crate::scan`]):
//! - *sealed*, nearly all scripts: the global object and every built-in object are frozen, so there is nothing to
//!   change. Assigning below them works as always (`error.name = "x"`); changing them throws a TypeError.
//! - *tidy*, scripts that set globals: the same, but new globals are allowed, and removed after the call.
//! - *open*, scripts that extend built-in objects: everything works, and the engine is discarded after the call, which
//!   makes such a script some hundred times slower.
//!
//! The choice only affects what works and how fast; each of the three isolates calls by itself.
//!
//! **Limits.** QuickJS asks every 10,000 steps (and within regular expressions) whether to continue; the interruption
//! cannot be caught. Memory is counted in the allocator, so reaching the limit is noticed even if the script catches
//! the error. After either, the whole engine is discarded and recreated for the next message. Built-in functions that
//! iterate over a whole array cannot be interrupted, so they refuse lengths that no memory limit allows (see
//! `prelude.js`).
//!
//! `msg.meta` reads the message's metadata on demand and records what is written (see [`lazy`]).

mod compile;
mod convert;
mod exception;
mod from_js;
mod globals;
mod keys;
mod lazy;
mod memory;
mod runtime;
mod runtime_state;
mod text;
mod to_js;
mod value;

use thalweg_record::{Message, Metadata};

use self::compile::{PreparedScript, Wrapping, compile, prepare};
pub use self::convert::{NOT_A_MESSAGE, NOT_ALL_MESSAGES};
use self::runtime::{CompiledCode, QuickJsRuntime};
use self::value::{PendingException, Val};
use crate::native::{NativeScript, OffendingConstruct};
use crate::scan::Realm;
use crate::{CompileError, Environment, Failure, FailureKind, Program, ProgramStats, Script, ScriptOutput};

/// The scripts of one processor, for one thread.
pub struct QuickJs {
    environment: Environment,
    scripts: Vec<PreparedScript>,
    /// One per realm, if a script needs it.
    machines: [Option<QuickJsRuntime>; 3],
    stats: ProgramStats,
}

impl QuickJs {
    /// Compiles all scripts. The first one that is not valid JavaScript is the error.
    pub fn new(scripts: &[Script], environment: Environment) -> Result<QuickJs, CompileError> {
        let mut engine = QuickJs {
            environment,
            scripts: Vec::new(),
            machines: Default::default(),
            stats: ProgramStats::default(),
        };
        let parser = QuickJsRuntime::new(&engine.environment, Realm::Open).map_err(|text| no_place(0, text))?;
        for (index, script) in scripts.iter().enumerate() {
            engine.scripts.push(prepare(&parser, index, script)?);
        }
        // Creates the engines now, so that the first message does not wait for them.
        for index in 0..engine.scripts.len() {
            engine.ready(index).map_err(|text| no_place(index, text))?;
        }
        Ok(engine)
    }

    /// The error of each script that is not valid JavaScript. Runs nothing.
    pub fn check(scripts: &[Script]) -> Vec<CompileError> {
        let environment = Environment::bare();
        let parser = match QuickJsRuntime::new(&environment, Realm::Open) {
            Ok(parser) => parser,
            Err(text) => return vec![no_place(0, text)],
        };
        let numbered = scripts.iter().enumerate();
        numbered
            .filter_map(|(index, script)| prepare(&parser, index, script).err())
            .collect()
    }

    /// Bytes that the engines use.
    pub fn memory_bytes(&self) -> usize {
        self.machines.iter().flatten().map(QuickJsRuntime::memory_bytes).sum()
    }

    /// The runtime and the compiled code of a script, created if necessary.
    fn ready(&mut self, index: usize) -> Result<(&mut QuickJsRuntime, CompiledCode, &PreparedScript), String> {
        let missing = || format!("there is no script {index}");
        let prepared = self.scripts.get(index).ok_or_else(missing)?;
        let place = self.machines.get_mut(prepared.realm as usize).ok_or_else(missing)?;
        let machine = match place {
            Some(machine) => machine,
            None => {
                let mut machine = QuickJsRuntime::new(&self.environment, prepared.realm)?;
                machine.compiled = vec![None; self.scripts.len()];
                self.stats.engines_made += 1;
                place.insert(machine)
            }
        };
        let compiled = match machine.compiled.get(index) {
            Some(Some(compiled)) => *compiled,
            _ => {
                let compiled = compile(machine, prepared).map_err(|PendingException| {
                    let place = exception::describe(machine.ctx(), &prepared.script.stage, &prepared.wrapping);
                    format!("{} does not compile any more: {}", prepared.script.stage, place.text)
                })?;
                if let Some(place) = machine.compiled.get_mut(index) {
                    *place = Some(compiled);
                }
                compiled
            }
        };
        Ok((machine, compiled, prepared))
    }

    /// A script as native code, or why it is outside of the subset.
    pub(crate) fn native(&self, script: usize) -> Result<NativeScript, OffendingConstruct> {
        let outside = |construct: &str| {
            Err(OffendingConstruct {
                construct: construct.to_owned(),
                line: 1,
                column: 1,
            })
        };
        match self.scripts.get(script) {
            Some(prepared) if prepared.realm != Realm::Sealed => outside("globals or built-in objects are changed"),
            Some(prepared) => match &prepared.wrapping {
                Wrapping::InnerBody => outside("a variable named msg"),
                Wrapping::Statements => outside("a condition of several statements"),
                wrapping => NativeScript::new(wrapping.parts(), &prepared.script.code, &self.environment),
            },
            None => outside("there is no such script"),
        }
    }

    /// The name of a script in errors.
    pub(crate) fn stage(&self, script: usize) -> &str {
        self.scripts
            .get(script)
            .map_or("", |prepared| prepared.script.stage.as_str())
    }

    /// The number of scripts.
    pub(crate) fn count(&self) -> usize {
        self.scripts.len()
    }

    /// Whether the result of a script may be memoized, if its call turns out not to depend on the message.
    pub(crate) fn is_repeatable(&self, script: usize) -> bool {
        self.scripts.get(script).is_some_and(|prepared| prepared.is_repeatable)
    }

    /// Like [`Program::run`]; also returns whether the call depended on more than the shared metadata map. The message
    /// must have no metadata changes of its own.
    pub(crate) fn trace(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Result<(ScriptOutput, bool), Failure> {
        self.call(script, message, (origin, true), |machine, msg, result| {
            let returned = convert::returned(machine, msg, message, result)?;
            Ok((returned, machine.shared().depends.get()))
        })
    }

    /// Like `trace`, for [`Program::test`].
    pub(crate) fn trace_test(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Result<(bool, bool), Failure> {
        self.call(script, message, (origin, true), |machine, _, result| {
            let truth = result.truth()?;
            Ok((truth, machine.shared().depends.get()))
        })
    }

    /// Calls a script, passes `msg` and the result to `read`, then cleans up. The flag with the origin: whether the
    /// payload is converted only on read.
    fn call<R>(
        &mut self,
        index: usize,
        message: &Message,
        origin: (&Metadata, bool),
        read: impl FnOnce(&QuickJsRuntime, &Val, Val) -> Result<R, convert::ResultReadError>,
    ) -> Result<R, Failure> {
        let limits = self.environment.limits;
        self.stats.calls += 1;
        // An overdue call gets no memory, so no engine can be created either.
        if let Err(text) = self.ready(index) {
            let is_overdue = self.environment.watch.is_overdue();
            self.stats.timeouts += u64::from(is_overdue);
            return Err(match is_overdue {
                true => exception::timeout(&limits),
                false => limit(text),
            });
        }
        let (machine, compiled, prepared) = self.ready(index).map_err(limit)?;
        machine.begin();
        let result = call_machine(machine, compiled, message, origin, read)
            .map_err(|unread| exception::failure(machine, unread, &prepared.script.stage, &prepared.wrapping));
        let result = match (exception::limit_reached(machine, &limits), result) {
            (Some(reached), Ok(_)) => Err(reached),
            (Some(mut reached), Err(failure)) => {
                // The exception contains the position where memory ran out; QuickJS does not know where a loop was
                // stopped.
                if reached.kind == FailureKind::Limit
                    && failure.kind == FailureKind::Exception
                    && let Some(at) = failure.text.rfind(" (line ")
                {
                    reached.text.push_str(failure.text.get(at..).unwrap_or_default());
                }
                Err(reached)
            }
            (None, result) => result,
        };
        let realm = prepared.realm as usize;
        let timed_out = machine.out_of_time();
        if !machine.end()
            && let Some(place) = self.machines.get_mut(realm)
        {
            *place = None;
        }
        self.stats.timeouts += u64::from(timed_out);
        result
    }
}

fn limit(text: String) -> Failure {
    let kind = FailureKind::Limit;
    Failure { kind, text }
}

fn no_place(script: usize, text: String) -> CompileError {
    CompileError {
        script,
        text,
        line: 1,
        column: 1,
    }
}

fn call_machine<R>(
    machine: &mut QuickJsRuntime,
    compiled: CompiledCode,
    message: &Message,
    (origin, is_traced): (&Metadata, bool),
    read: impl FnOnce(&QuickJsRuntime, &Val, Val) -> Result<R, convert::ResultReadError>,
) -> Result<R, convert::ResultReadError> {
    let msg = machine.message(message, origin, is_traced)?;
    let result = machine.call(compiled, &msg);
    machine.run_jobs();
    if machine.out_of_time() || machine.out_of_memory() {
        // Reading the result would run more of the script.
        return Err(match result {
            Ok(_) => convert::ResultReadError::Limit(String::new()),
            Err(PendingException) => convert::ResultReadError::Thrown,
        });
    }
    read(machine, &msg, result?)
}

impl Program for QuickJs {
    fn run(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<ScriptOutput, Failure> {
        self.call(script, message, (origin, false), |machine, msg, result| {
            convert::returned(machine, msg, message, result)
        })
    }

    fn stats(&self) -> ProgramStats {
        self.stats
    }

    fn test(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<bool, Failure> {
        self.call(script, message, (origin, false), |_, _, result| Ok(result.truth()?))
    }
}

impl std::fmt::Debug for QuickJs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let stages: Vec<&str> = self.scripts.iter().map(|p| p.script.stage.as_str()).collect();
        f.debug_struct("QuickJs")
            .field("stages", &stages)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl QuickJs {
    fn live_objects(&self) -> usize {
        self.machines
            .iter()
            .flatten()
            .map(|m| m.shared().states.borrow().live())
            .sum()
    }
}

#[cfg(test)]
mod tests;
