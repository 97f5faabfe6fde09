//! Native execution of scripts: parsed once, resolved once, and run without an interpreter's objects.
//!
//! A subset of JavaScript (see [`compile`]) runs here, in every detail as in QuickJS. There is no list of what can go
//! wrong, but a rule: **a call that meets anything uncertain stops, and QuickJS runs it from the beginning.**
//! Exceptions, unpaired surrogates, members of a prototype, endless loops and excessive memory are all left to QuickJS,
//! with its messages and its limits. That is possible because a call changes nothing visible to others before its end.

mod arithmetic;
mod coerce;
mod compile;
mod date;
mod eval;
mod heap;
mod ir;
mod json;
mod meta_map_cache;
mod number;
mod regex;
mod result;
mod split;

use std::sync::Arc;

use thalweg_record::{Message, MetaMap, Metadata, Payload, Value};

pub use self::compile::OffendingConstruct;
use self::compile::{Code, compile};
pub(crate) use self::compile::{SOURCE_MAX, with_parser_stack};
use self::eval::Evaluator;
use self::heap::{EvalResult, Heap, HeapBuffers, Js, ObjectRef, Stop, bail};
use self::meta_map_cache::MetaMapCache;
use self::result::{TextInterner, number_payload, payload, returned};
use crate::view::number_seen;
use crate::{Environment, PayloadReply, ScriptOutput};

/// One compiled script, with reusable buffers for its calls.
pub(crate) struct NativeScript {
    code: Code,
    environment: Environment,
    room: HeapBuffers,
    slots: Vec<Js>,
    written: TextInterner,
    made: MetaMapCache,
    runs: u64,
    bails: u64,
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum NativeOutcome<R> {
    /// The result, and whether it depends on more than the shared metadata map.
    Done(R, bool),
    /// QuickJS has to run the call; why.
    Bail(&'static str),
}

/// Calls before a script may be judged better left to QuickJS.
const TRIES: u64 = 32;

impl NativeScript {
    /// Compiles a script; `before` and `after` are what QuickJS puts around it.
    pub fn new(
        (before, after): (&str, &str),
        code: &str,
        environment: &Environment,
    ) -> Result<NativeScript, OffendingConstruct> {
        Ok(NativeScript {
            code: compile(before, code, after)?,
            environment: environment.clone(),
            room: HeapBuffers::default(),
            slots: Vec::new(),
            written: TextInterner::default(),
            made: MetaMapCache::default(),
            runs: 0,
            bails: 0,
        })
    }

    /// Why its result is specific to one message; `None` if it reads only metadata of the tag.
    pub fn varies(&self) -> Option<&OffendingConstruct> {
        self.code.varies.as_ref()
    }

    /// Whether two calls on the same message may differ, because the script reads the clock.
    pub fn is_timed(&self) -> bool {
        self.code.is_timed
    }

    /// Whether most calls bail out, so that starting them here is a waste.
    pub fn is_futile(&self) -> bool {
        self.runs >= TRIES && self.bails * 2 > self.runs
    }

    /// Runs a body. Its effects are applied only if `is_real`.
    pub fn run(&mut self, message: &Message, origin: &Metadata, is_real: bool) -> NativeOutcome<ScriptOutput> {
        if self.code.split.is_some() && !message.meta.is_changed() {
            let known = self.made.of(message.meta.shared_map());
            return self.run_halves(message, origin, known.is_some(), |heap, written, made, environment| {
                heap.known = known;
                returned(heap, &Js::Object(ObjectRef::MSG), written, made, environment)
            });
        }
        self.call(message, origin, is_real, returned)
    }

    /// The memoized first half of a splittable script for this map, if it was run.
    pub fn half(&self, map: &Arc<MetaMap>) -> Option<Arc<MetaMap>> {
        self.code.split.as_ref().and_then(|_| self.made.of(map))
    }

    /// Runs the second half of a splittable script, which reads only the payload. A bail-out here does not count as a
    /// call, because the script then runs as a whole, which counts.
    pub fn payload(&mut self, value: &Value) -> NativeOutcome<PayloadReply> {
        let arithmetic = self.code.split.as_ref().and_then(|split| split.arithmetic.as_ref());
        if let (Some(arithmetic), Some(number)) = (arithmetic, number_seen(value)) {
            self.runs += 1;
            return NativeOutcome::Done(number_payload(value, number, arithmetic.of(number)), true);
        }
        let message = Message::new(Payload::Value(value.clone()), Metadata::default());
        let counts = (self.runs, self.bails);
        let outcome = self.run_halves(&message, &message.meta, true, |heap, _, _, _| {
            payload(heap, ObjectRef::MSG)
        });
        if matches!(outcome, NativeOutcome::Bail(_)) {
            (self.runs, self.bails) = counts;
        }
        outcome
    }

    /// Evaluates a condition.
    pub fn test(&mut self, message: &Message, origin: &Metadata, is_real: bool) -> NativeOutcome<bool> {
        self.call(message, origin, is_real, |_, result, _, _, _| Ok(result.truth()))
    }

    /// Runs a splittable script; the first half only if its result is not memoized. It has no effects.
    fn run_halves<R>(
        &mut self,
        message: &Message,
        origin: &Metadata,
        is_first_known: bool,
        read: impl FnOnce(&mut Heap<'_>, &mut TextInterner, &mut MetaMapCache, &Environment) -> EvalResult<R>,
    ) -> NativeOutcome<R> {
        self.runs += 1;
        let heap = Heap::new(&mut self.room, message, origin, &self.environment);
        let mut call = Evaluator::new(&self.code, &self.environment, heap, std::mem::take(&mut self.slots));
        let result = match &self.code.split {
            Some(split) => call.run_halves(split, is_first_known),
            None => bail("a script without halves"),
        };
        let (mut heap, _, slots) = call.end();
        self.slots = slots;
        let result = result.and_then(|depends| {
            let made = if depends {
                &mut MetaMapCache::default()
            } else {
                &mut self.made
            };
            read(&mut heap, &mut self.written, made, &self.environment)
        });
        heap.end(&mut self.room);
        match result {
            Ok(result) => NativeOutcome::Done(result, true),
            Err(stop) => self.left(stop),
        }
    }

    fn left<R>(&mut self, stop: Stop) -> NativeOutcome<R> {
        self.bails += 1;
        NativeOutcome::Bail(match stop {
            Stop::Bail(why) => why,
            Stop::Short => "?. outside of a chain",
        })
    }

    fn call<R>(
        &mut self,
        message: &Message,
        origin: &Metadata,
        is_real: bool,
        read: impl FnOnce(&mut Heap<'_>, &Js, &mut TextInterner, &mut MetaMapCache, &Environment) -> EvalResult<R>,
    ) -> NativeOutcome<R> {
        self.runs += 1;
        let heap = Heap::new(&mut self.room, message, origin, &self.environment);
        let mut call = Evaluator::new(&self.code, &self.environment, heap, std::mem::take(&mut self.slots));
        let result = call.run();
        let (mut heap, effects, slots) = call.end();
        self.slots = slots;
        let result = result.and_then(|result| {
            let (written, made) = (&mut self.written, &mut self.made);
            read(&mut heap, &result, written, made, &self.environment)
        });
        let depends = heap.depends;
        heap.end(&mut self.room);
        let (cache, bytes_max) = (&self.environment.cache, self.environment.limits.memory);
        let fits = match (&result, is_real) {
            (Err(_), _) => Ok(()),
            (Ok(_), true) if effects.is_none() => Ok(()),
            // Once the call was given up, its effects are discarded.
            (Ok(_), true) => {
                let show = || effects.show(&self.environment);
                self.environment.watch.effect(show).unwrap_or(Ok(()))
            }
            (Ok(_), false) => cache.fits(&effects.cache, bytes_max),
        };
        // QuickJS reports that the cache is full.
        let result = fits.map_err(|_| Stop::Bail("a full cache")).and(result);
        match result {
            Ok(result) => NativeOutcome::Done(result, depends),
            Err(stop) => self.left(stop),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
