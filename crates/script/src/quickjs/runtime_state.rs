//! The state of one runtime for its callbacks: limits, clock, console, cache, and the tables behind lazy objects.
//!
//! One boxed [`RuntimeState`] per runtime is set as its opaque pointer. Callbacks run on the thread that called into
//! QuickJS, so cells suffice.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rquickjs::qjs;
use thalweg_kit::clock;

use super::keys::Keys;
use super::lazy::LazyStates;
use super::value::Ctx;
use crate::{Cache, CacheFull, CallWatch, ComputedKey, Console, Environment, ScriptLimits, UndefinedMeta};

/// A limit that was reached in a way that the script may have caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LimitHit {
    Results,
    Cache(CacheFull),
}

/// Names that the engine itself uses. Their references last for the life of the runtime.
#[derive(Clone, Copy, Default)]
pub(super) struct Atoms {
    pub payload: qjs::JSAtom,
    pub meta: qjs::JSAtom,
    pub proto: qjs::JSAtom,
}

pub(super) struct RuntimeState {
    pub limits: ScriptLimits,
    pub console: Arc<dyn Console>,
    pub cache: Arc<Cache>,
    pub computed: &'static [ComputedKey],
    pub undefined_meta: UndefinedMeta,
    pub clock: CallTimer,
    /// All visible effects of a call go through it.
    pub watch: CallWatch,
    pub hit: Cell<Option<LimitHit>>,
    /// The call has read or done something that may differ for the next message with the same shared metadata.
    pub depends: Cell<bool>,
    pub keys: RefCell<Keys>,
    pub states: RefCell<LazyStates>,
    pub lazy_class: Cell<qjs::JSClassID>,
    pub atoms: Cell<Atoms>,
    /// Classes of `new Number(…)` and the like.
    pub boxed_classes: Cell<[qjs::JSClassID; 5]>,
    /// Turns a Set or Map into an array; one reference for the life of the runtime.
    pub list_function: Cell<qjs::JSValue>,
}

impl RuntimeState {
    pub fn new(environment: &Environment) -> Box<RuntimeState> {
        Box::new(RuntimeState {
            limits: environment.limits,
            console: environment.console.clone(),
            cache: environment.cache.clone(),
            computed: environment.computed,
            undefined_meta: environment.undefined_meta,
            clock: CallTimer::new(environment.limits.timeout, environment.watch.clone()),
            watch: environment.watch.clone(),
            hit: Cell::new(None),
            depends: Cell::new(false),
            keys: RefCell::default(),
            states: RefCell::default(),
            lazy_class: Cell::new(0),
            atoms: Cell::default(),
            boxed_classes: Cell::default(),
            list_function: Cell::new(qjs::JS_UNDEFINED),
        })
    }

    /// # Safety
    /// The context belongs to a runtime whose opaque pointer is a live `RuntimeState`.
    pub unsafe fn of<'a>(ctx: Ctx) -> &'a RuntimeState {
        // SAFETY: by contract.
        unsafe { RuntimeState::of_runtime(qjs::JS_GetRuntime(ctx.0)) }
    }

    /// # Safety
    /// The runtime's opaque pointer is a live `RuntimeState`.
    pub unsafe fn of_runtime<'a>(rt: *mut qjs::JSRuntime) -> &'a RuntimeState {
        // SAFETY: by contract.
        unsafe { &*qjs::JS_GetRuntimeOpaque(rt).cast::<RuntimeState>() }
    }
}

/// The time limit of one call, which starts with the call. If another thread waits for the call, that thread checks the
/// time and signals through the [`CallWatch`] that it is up. Otherwise the clock is read each time that QuickJS asks
/// whether to continue (every 10,000 steps).
pub(super) struct CallTimer {
    timeout: Duration,
    watch: CallWatch,
    /// Nothing is timed between calls (creating an engine, compiling a script).
    running: Cell<bool>,
    started: Cell<Option<Instant>>,
    expired: Cell<bool>,
}

impl CallTimer {
    fn new(timeout: Duration, watch: CallWatch) -> CallTimer {
        CallTimer {
            timeout,
            watch,
            running: Cell::new(false),
            started: Cell::new(None),
            expired: Cell::new(false),
        }
    }

    pub fn start(&self) {
        self.running.set(true);
        self.started.set((!self.watch.is_watched()).then(clock::now));
        self.expired.set(false);
    }

    pub fn stop(&self) {
        self.running.set(false);
    }

    /// Whether the current call has used up its time.
    pub fn check(&self) -> bool {
        let is_late = |started: Instant| started.elapsed() >= self.timeout;
        if self.running.get() && (self.watch.is_overdue() || self.started.get().is_some_and(is_late)) {
            self.expired.set(true);
        }
        self.expired.get()
    }

    /// Whether a time check was too late, or the call was interrupted since.
    pub fn expired(&self) -> bool {
        self.expired.get() || self.watch.is_overdue()
    }
}

/// QuickJS calls this to ask whether a script may continue.
pub(super) unsafe extern "C" fn interrupt(_rt: *mut qjs::JSRuntime, opaque: *mut c_void) -> c_int {
    // SAFETY: registered with the runtime's `RuntimeState`.
    let shared = unsafe { &*opaque.cast::<RuntimeState>() };
    shared.clock.check().into()
}
