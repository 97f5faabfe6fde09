//! One QuickJS runtime with one realm and the scripts compiled in it, used by one thread at a time.
//!
//! A runtime is created, used for many calls, and discarded as a whole: when a call ran out of time or memory, when a
//! script left something behind that cannot be removed, and after every call in an open realm. Its values are then not
//! released one by one; see [`Memory`].

use std::ffi::CString;
use std::ptr;

use rquickjs::qjs;
use thalweg_record::{Message, Metadata, Payload};

use super::memory::Memory;
use super::runtime_state::{Atoms, RuntimeState, interrupt};
use super::value::{Ctx, JsResult, PendingException, Val, tag};
use super::{globals, lazy, to_js};
use crate::Environment;
use crate::scan::Realm;
use crate::view::{has_two_texts, is_small};

const PRELUDE: &str = include_str!("prelude.js");

/// An engine itself needs about 400 KB.
const MEMORY_MIN: usize = 1 << 20;

/// Jobs between two time checks.
const JOBS_PER_CHECK: usize = 256;

pub(super) struct QuickJsRuntime {
    shared: Box<RuntimeState>,
    ctx: Ctx,
    rt: *mut qjs::JSRuntime,
    realm: Realm,
    /// By script index. Their references last for the life of the runtime.
    pub compiled: Vec<Option<CompiledCode>>,
    /// Global names of a fresh tidy realm, sorted.
    fresh_globals: Vec<qjs::JSAtom>,
    /// Last, so that it is dropped last: everything above points into it.
    memory: Box<Memory>,
}

// SAFETY: a runtime is used through `&mut` by one thread at a time, QuickJS has no thread-local state, and the stack
// limit is set again for each call.
unsafe impl Send for QuickJsRuntime {}

impl QuickJsRuntime {
    pub fn new(environment: &Environment, realm: Realm) -> Result<QuickJsRuntime, String> {
        let memory = Memory::new(environment.limits.memory, environment.watch.clone());
        let shared = RuntimeState::new(environment);
        let functions = Memory::functions();
        let too_small = || "scripting.memory is too small for a script engine; give it at least 1MiB".to_owned();
        if environment.limits.memory < MEMORY_MIN {
            return Err(too_small());
        }
        // SAFETY: the functions are copied; memory and shared state are boxed and outlive the runtime.
        let (rt, ctx) = unsafe {
            let rt = qjs::JS_NewRuntime2(&functions, memory.as_opaque());
            if rt.is_null() {
                return Err(too_small());
            }
            qjs::JS_SetRuntimeOpaque(rt, ptr::from_ref(&*shared).cast_mut().cast());
            qjs::JS_SetMaxStackSize(rt, environment.limits.stack as _);
            let opaque = ptr::from_ref(&*shared).cast_mut().cast();
            qjs::JS_SetInterruptHandler(rt, Some(interrupt), opaque);
            let ctx = qjs::JS_NewContext(rt);
            if ctx.is_null() {
                return Err(too_small());
            }
            (rt, Ctx(ctx))
        };
        let mut machine = QuickJsRuntime {
            shared,
            ctx,
            rt,
            realm,
            compiled: Vec::new(),
            fresh_globals: Vec::new(),
            memory,
        };
        machine.prepare().map_err(|PendingException| too_small())?;
        Ok(machine)
    }

    fn prepare(&mut self) -> JsResult<()> {
        let ctx = self.ctx;
        let keep = |name: &str| ctx.atom(name).map(|atom| std::mem::ManuallyDrop::new(atom).raw);
        self.shared.atoms.set(Atoms {
            payload: keep("payload")?,
            meta: keep("meta")?,
            proto: keep("__proto__")?,
        });
        lazy::register(ctx, &self.shared)?;
        globals::install(ctx)?;
        let mode = match self.realm {
            Realm::Sealed => "sealed",
            Realm::Tidy => "tidy",
            Realm::Open => "open",
        };
        let prelude = ctx.eval(PRELUDE, c"prelude", qjs::JS_EVAL_TYPE_GLOBAL)?;
        let (mode, materialise) = (ctx.string(mode)?, globals::materialise(ctx)?);
        let (look, timed) = (globals::look(ctx)?, globals::timed(ctx)?);
        let given = [mode.raw(), materialise.raw(), look.raw(), timed.raw()];
        let tools = prelude.call(&ctx.undefined(), &given)?;
        let boxed = tools.get_named(c"boxed")?;
        let mut classes = [0; 5];
        for (i, class) in classes.iter_mut().enumerate() {
            *class = boxed.get_index(i as u32)?.class();
        }
        self.shared.boxed_classes.set(classes);
        self.shared.list_function.set(tools.get_named(c"list")?.into_raw());
        if self.realm == Realm::Tidy {
            self.fresh_globals = global_names(ctx)?;
        }
        // SAFETY: the runtime is alive. Collects garbage of the preparation, so that the first calls need not.
        unsafe { qjs::JS_RunGC(self.rt) };
        Ok(())
    }

    pub fn ctx(&self) -> Ctx {
        self.ctx
    }

    pub fn shared(&self) -> &RuntimeState {
        &self.shared
    }

    pub fn memory_bytes(&self) -> usize {
        self.memory.used()
    }

    /// Called before each call: starts the time, and measures the stack from here.
    pub fn begin(&mut self) {
        self.shared.clock.start();
        self.shared.hit.set(None);
        self.shared.depends.set(false);
        // SAFETY: the runtime is alive.
        unsafe { qjs::JS_UpdateStackTop(self.rt) };
    }

    pub fn out_of_time(&self) -> bool {
        self.shared.clock.expired()
    }

    pub fn out_of_memory(&self) -> bool {
        self.memory.exhausted()
    }

    /// `msg` for a script. A small payload is converted at once, a large one on read. If reads must be detected
    /// (`is_traced`), every payload is converted on read.
    pub fn message(&self, message: &Message, origin: &Metadata, is_traced: bool) -> JsResult<Val> {
        let ctx = self.ctx;
        let atoms = self.shared.atoms.get();
        let meta = lazy::meta(ctx, &self.shared, &message.meta, origin)?;
        let msg = match &message.payload {
            // For an ordinary member it is unknown whether it was set.
            Payload::Value(value) if !is_traced && is_small(value) && !has_two_texts(value) => {
                let msg = ctx.object()?;
                msg.define(atoms.payload, to_js::to_js(ctx, value)?)?;
                msg
            }
            payload => lazy::message(ctx, &self.shared, payload)?,
        };
        msg.define(atoms.meta, meta)?;
        Ok(msg)
    }

    /// Runs the call's pending jobs (promises). Their errors are discarded, because nobody receives them.
    pub fn run_jobs(&mut self) {
        let mut done = 0;
        // SAFETY: the runtime is alive.
        while unsafe { qjs::JS_IsJobPending(self.rt) } {
            let mut ctx = ptr::null_mut();
            // SAFETY: as above; an error leaves an exception, which is released.
            if unsafe { qjs::JS_ExecutePendingJob(self.rt, &mut ctx) } < 0 {
                drop(self.ctx.take_exception());
            }
            done += 1;
            let look = done % JOBS_PER_CHECK == 0 && self.shared.clock.check();
            if look || self.out_of_time() || self.out_of_memory() {
                return;
            }
        }
    }

    /// Called after each call, when all its values are released. Returns whether the runtime can be used again.
    pub fn end(&mut self) -> bool {
        self.shared.clock.stop();
        if self.out_of_time() || self.out_of_memory() {
            return false;
        }
        match self.realm {
            Realm::Sealed => true,
            Realm::Tidy => self.remove_globals().unwrap_or(false),
            Realm::Open => false,
        }
    }

    /// Removes globals that the call added. A `var` cannot be removed; it loses its value.
    fn remove_globals(&mut self) -> JsResult<bool> {
        let global = self.ctx.global();
        let names = global.own_names(qjs::JS_GPN_STRING_MASK | qjs::JS_GPN_SYMBOL_MASK)?;
        for atom in names.atoms() {
            if self.fresh_globals.binary_search(&atom).is_ok() {
                continue;
            }
            // SAFETY: object and atom are alive.
            let gone = unsafe { qjs::JS_DeleteProperty(self.ctx.0, global.raw(), atom, 0) };
            let flags = qjs::JS_PROP_HAS_VALUE as _;
            let undefined = qjs::JS_UNDEFINED;
            // SAFETY: as above.
            let cleared = gone == 1
                || unsafe {
                    qjs::JS_DefineProperty(self.ctx.0, global.raw(), atom, undefined, undefined, undefined, flags) == 1
                };
            if !cleared {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn global_names(ctx: Ctx) -> JsResult<Vec<qjs::JSAtom>> {
    let names = ctx
        .global()
        .own_names(qjs::JS_GPN_STRING_MASK | qjs::JS_GPN_SYMBOL_MASK)?;
    let mut atoms: Vec<_> = names.atoms().collect();
    atoms.sort_unstable();
    Ok(atoms)
}

/// A Set or Map as an array.
pub(super) fn list_of(collection: &Val) -> JsResult<Val> {
    // SAFETY: the context's runtime has a live `RuntimeState`.
    let shared = unsafe { RuntimeState::of(collection.ctx) };
    let list = collection.ctx.dup(shared.list_function.get());
    list.call(&collection.ctx.undefined(), &[collection.raw()])
}

/// Whether the value is `new Number(…)` or the like.
pub(super) fn is_boxed(object: &Val) -> bool {
    // SAFETY: the context's runtime has a live `RuntimeState`.
    let shared = unsafe { RuntimeState::of(object.ctx) };
    shared.boxed_classes.get().contains(&object.class())
}

/// Compiled code: a function to call with `msg`, or a program that reads `msg` from the globals.
#[derive(Clone, Copy)]
pub(super) enum CompiledCode {
    Function(qjs::JSValue),
    Program(qjs::JSValue),
}

impl QuickJsRuntime {
    /// Calls compiled code. Its reference stays with the runtime.
    pub fn call(&self, code: CompiledCode, msg: &Val) -> JsResult<Val> {
        match code {
            CompiledCode::Function(function) => {
                let function = self.ctx.dup(function);
                function.call(&self.ctx.undefined(), &[msg.raw()])
            }
            CompiledCode::Program(bytecode) => {
                self.ctx.global().set_named(c"msg", msg.clone())?;
                let bytecode = self.ctx.dup(bytecode).into_raw();
                // SAFETY: the reference to the bytecode is given away.
                self.ctx.own(unsafe { qjs::JS_EvalFunction(self.ctx.0, bytecode) })
            }
        }
    }

    /// Compiles a function expression and evaluates it to the function.
    pub fn function(&self, code: &str, file: &CString, strict: bool) -> JsResult<CompiledCode> {
        let strict = if strict { qjs::JS_EVAL_FLAG_STRICT } else { 0 };
        let function = self.ctx.eval(code, file, qjs::JS_EVAL_TYPE_GLOBAL | strict)?;
        Ok(CompiledCode::Function(function.into_raw()))
    }

    /// Compiles a non-strict program without running it.
    pub fn program(&self, code: &str, file: &CString) -> JsResult<CompiledCode> {
        let flags = qjs::JS_EVAL_TYPE_GLOBAL | qjs::JS_EVAL_FLAG_COMPILE_ONLY;
        Ok(CompiledCode::Program(self.ctx.eval(code, file, flags)?.into_raw()))
    }

    /// Whether the text is a whole program.
    pub fn parses(&self, code: &str, file: &CString, strict: bool) -> JsResult<()> {
        let strict = if strict { qjs::JS_EVAL_FLAG_STRICT } else { 0 };
        let flags = qjs::JS_EVAL_TYPE_GLOBAL | qjs::JS_EVAL_FLAG_COMPILE_ONLY | strict;
        self.ctx.eval(code, file, flags).map(drop)
    }
}

impl CompiledCode {
    pub fn is_function(self) -> bool {
        match self {
            CompiledCode::Function(value) => tag(value) == qjs::JS_TAG_OBJECT,
            CompiledCode::Program(_) => false,
        }
    }
}
