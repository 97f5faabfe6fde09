//! Selects the engine of each call.
//!
//! Both engines know every script of a processor. Native code runs what it can; QuickJS runs the rest, and each call
//! that native code bails out of.

use std::sync::Arc;

use thalweg_record::{Message, MetaMap, Metadata, Value};

use crate::native::{NativeOutcome, NativeScript, OffendingConstruct};
use crate::{CompileError, Environment, Failure, PayloadReply, Program, ProgramStats, QuickJs, Script, ScriptOutput};

/// `scripting.engine`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EngineMode {
    /// Native code where a script is within its subset, else QuickJS.
    #[default]
    Auto,
    /// As `Auto`; a script beyond the subset is a configuration error.
    Native,
    /// QuickJS alone.
    QuickJs,
    /// Both, for every message; the result is that of QuickJS, and differences are counted and logged.
    Verify,
}

/// How a script is run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Why it is not run as native code; `None` if it is.
    pub outside: Option<OffendingConstruct>,
    /// Why it is run for each message; `None` if once per tag is enough.
    pub varies: Option<OffendingConstruct>,
}

/// The two engines with the scripts of one processor, for one thread.
pub struct Engine {
    quickjs: QuickJs,
    native: Vec<Result<NativeScript, OffendingConstruct>>,
    mode: EngineMode,
    native_calls: u64,
    bails: u64,
    differences: u64,
}

impl Engine {
    /// Compiles all scripts. The first one that is not valid JavaScript is the error.
    pub fn new(scripts: &[Script], environment: Environment, mode: EngineMode) -> Result<Engine, CompileError> {
        let quickjs = QuickJs::new(scripts, environment)?;
        let native = (0..scripts.len()).map(|script| quickjs.native(script));
        Ok(Engine {
            native: match mode {
                EngineMode::QuickJs => Vec::new(),
                _ => native.collect(),
            },
            quickjs,
            mode,
            native_calls: 0,
            bails: 0,
            differences: 0,
        })
    }

    /// How each script is run. Runs none.
    pub fn explain(&self) -> Vec<Explanation> {
        let explained = (0..self.quickjs.count()).map(|script| match self.quickjs.native(script) {
            Ok(native) => Explanation {
                outside: None,
                varies: native.varies().cloned(),
            },
            Err(outside) => Explanation {
                outside: Some(outside),
                varies: None,
            },
        });
        explained.collect()
    }

    /// Scripts that are not run as native code, by their name in errors, with the reason.
    pub fn outside(&self) -> impl Iterator<Item = (&str, &OffendingConstruct)> {
        let scripts = self.native.iter().enumerate();
        scripts.filter_map(|(script, native)| Some((self.quickjs.stage(script), native.as_ref().err()?)))
    }

    pub(crate) fn count(&self) -> usize {
        self.quickjs.count()
    }

    /// Whether the result of a script may be memoized, if its call turns out not to depend on the message.
    pub(crate) fn is_repeatable(&self, script: usize) -> bool {
        // With `Verify` each call is run.
        let native = matches!(self.native.get(script), Some(Ok(_)));
        self.mode != EngineMode::Verify && (native || self.quickjs.is_repeatable(script))
    }

    /// The native code of a script, unless it bails out too often.
    fn native(&mut self, script: usize) -> Option<&mut NativeScript> {
        let native = self.native.get_mut(script)?.as_mut().ok()?;
        (!native.is_futile()).then_some(native)
    }

    /// A call by native code; `None` if QuickJS has to run it.
    fn try_native<R>(
        &mut self,
        script: usize,
        call: impl FnOnce(&mut NativeScript) -> NativeOutcome<R>,
    ) -> Option<(R, bool)> {
        let outcome = call(self.native(script)?);
        match outcome {
            NativeOutcome::Done(result, depends) => {
                self.native_calls += 1;
                Some((result, depends))
            }
            NativeOutcome::Bail(why) => {
                self.bails += 1;
                let stage = self.quickjs.stage(script);
                tracing::trace!(stage, why, "native code bails out of a call to QuickJS");
                let is_futile = matches!(self.native.get(script), Some(Ok(native)) if native.is_futile());
                if is_futile {
                    tracing::info!(
                        stage,
                        why,
                        "native code bails out of most calls of this script, so it runs in QuickJS from now on"
                    );
                }
                None
            }
        }
    }

    /// A call by native code alone, and whether it depended on more than the shared metadata map. `None` if QuickJS or
    /// both engines have to run it.
    pub(crate) fn run_native(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Option<(ScriptOutput, bool)> {
        match self.mode {
            EngineMode::Verify => None,
            _ => self.try_native(script, |native| native.run(message, origin, true)),
        }
    }

    /// Like `run_native`, for [`Program::test`].
    pub(crate) fn test_native(&mut self, script: usize, message: &Message, origin: &Metadata) -> Option<(bool, bool)> {
        match self.mode {
            EngineMode::Verify => None,
            _ => self.try_native(script, |native| native.test(message, origin, true)),
        }
    }

    /// Runs a call that native code bailed out of, or that both engines run.
    pub(crate) fn run_quickjs(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Result<ScriptOutput, Failure> {
        if self.mode != EngineMode::Verify {
            return self.quickjs.run(script, message, origin);
        }
        let native = self.try_native(script, |native| native.run(message, origin, false));
        let expected = self.quickjs.run(script, message, origin);
        self.verify(script, native, &expected, |returned| returned.effects(message));
        expected
    }

    /// Like `run_quickjs`, for [`Program::test`].
    pub(crate) fn test_quickjs(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Result<bool, Failure> {
        if self.mode != EngineMode::Verify {
            return self.quickjs.test(script, message, origin);
        }
        let native = self.try_native(script, |native| native.test(message, origin, false));
        let expected = self.quickjs.test(script, message, origin);
        self.verify(script, native, &expected, |truth| *truth);
        expected
    }

    /// Like [`Engine::run_quickjs`]; also returns whether the call depended on more than the shared metadata map. The
    /// message must have no metadata changes of its own.
    pub(crate) fn trace(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Result<(ScriptOutput, bool), Failure> {
        match self.quickjs.is_repeatable(script) {
            true => self.quickjs.trace(script, message, origin),
            false => self
                .quickjs
                .run(script, message, origin)
                .map(|returned| (returned, true)),
        }
    }

    /// Like `trace`, for [`Program::test`].
    pub(crate) fn trace_test(
        &mut self,
        script: usize,
        message: &Message,
        origin: &Metadata,
    ) -> Result<(bool, bool), Failure> {
        match self.quickjs.is_repeatable(script) {
            true => self.quickjs.trace_test(script, message, origin),
            false => self.quickjs.test(script, message, origin).map(|truth| (truth, true)),
        }
    }

    /// The memoized metadata half of a script that can be split, for this map; [`Program::payload`] runs the other
    /// half.
    pub(crate) fn half(&self, script: usize, map: &Arc<MetaMap>) -> Option<Arc<MetaMap>> {
        self.native.get(script)?.as_ref().ok()?.half(map)
    }

    /// Compares the result of native code with that of QuickJS.
    fn verify<R: std::fmt::Debug, E: PartialEq>(
        &mut self,
        script: usize,
        native: Option<(R, bool)>,
        expected: &Result<R, Failure>,
        effects: impl Fn(&R) -> E,
    ) {
        let is_timed = matches!(self.native.get(script), Some(Ok(native)) if native.is_timed());
        let Some((found, _)) = native.filter(|_| !is_timed) else {
            return;
        };
        let is_same = expected
            .as_ref()
            .is_ok_and(|expected| effects(expected) == effects(&found));
        if !is_same {
            self.differences += 1;
            let stage = self.quickjs.stage(script);
            tracing::warn!(stage, ?expected, ?found, "native code and QuickJS differ");
        }
    }
}

impl Program for Engine {
    fn run(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<ScriptOutput, Failure> {
        match self.run_native(script, message, origin) {
            Some((returned, _)) => Ok(returned),
            None => self.run_quickjs(script, message, origin),
        }
    }

    fn test(&mut self, script: usize, message: &Message, origin: &Metadata) -> Result<bool, Failure> {
        match self.test_native(script, message, origin) {
            Some((truth, _)) => Ok(truth),
            None => self.test_quickjs(script, message, origin),
        }
    }

    fn payload(&mut self, script: usize, value: &Value) -> Option<PayloadReply> {
        let NativeOutcome::Done(reply, _) = self.native(script)?.payload(value) else {
            return None;
        };
        self.native_calls += 1;
        Some(reply)
    }

    fn stats(&self) -> ProgramStats {
        ProgramStats {
            native_calls: self.native_calls,
            bails: self.bails,
            differences: self.differences,
            ..self.quickjs.stats()
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("quickjs", &self.quickjs)
            .field("mode", &self.mode)
            .finish_non_exhaustive()
    }
}

/// How scripts would be run, without an environment to run them in.
pub fn explain(scripts: &[Script]) -> Result<Vec<Explanation>, CompileError> {
    let environment = Environment::bare();
    Ok(Engine::new(scripts, environment, EngineMode::QuickJs)?.explain())
}

/// Scripts beyond the subset, as errors.
pub fn beyond(scripts: &[Script]) -> Result<Vec<CompileError>, CompileError> {
    let explained = explain(scripts)?.into_iter().enumerate();
    let beyond = explained.filter_map(|(script, explanation)| {
        let outside = explanation.outside?;
        Some(CompileError {
            script,
            text: format!(
                "{} cannot run as native code; use scripting.engine: auto",
                outside.construct
            ),
            line: outside.line,
            column: outside.column,
        })
    });
    Ok(beyond.collect())
}

#[cfg(test)]
mod tests;
