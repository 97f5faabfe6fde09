//! `console` and `cache`: what scripts can reach outside of their message.

use std::ffi::{CStr, c_int};

use rquickjs::qjs;

use super::from_js::{ConversionBudget, ConversionError, from_js};
use super::lazy;
use super::runtime_state::{LimitHit, RuntimeState};
use super::text::console_text;
use super::to_js::to_js;
use super::value::{Ctx, JsResult, PendingException, Val};
use crate::ConsoleLevel;

const CONSOLE: [(&CStr, ConsoleLevel); 5] = [
    (c"debug", ConsoleLevel::Debug),
    (c"log", ConsoleLevel::Info),
    (c"info", ConsoleLevel::Info),
    (c"warn", ConsoleLevel::Warn),
    (c"error", ConsoleLevel::Error),
];

const CACHE: [(&CStr, c_int); 4] = [(c"set", 2), (c"get", 1), (c"exists", 1), (c"delete", 1)];

/// Adds both objects to a new realm.
pub(super) fn install(ctx: Ctx) -> JsResult<()> {
    let console = ctx.object()?;
    for (i, (name, _)) in CONSOLE.iter().enumerate() {
        console.set_named(name, function(ctx, name, 0, i, console_line)?)?;
    }
    ctx.global().set_named(c"console", console)?;
    let cache = ctx.object()?;
    for (i, (name, arguments)) in CACHE.iter().enumerate() {
        cache.set_named(name, function(ctx, name, *arguments, i, cache_call)?)?;
    }
    ctx.global().set_named(c"cache", cache)
}

/// A function for the prelude that turns a lazy object into an ordinary one.
pub(super) fn materialise(ctx: Ctx) -> JsResult<Val> {
    function(ctx, c"materialise", 1, 0, materialise_call)
}

/// A function for the prelude that throws once the time of the call is up.
pub(super) fn look(ctx: Ctx) -> JsResult<Val> {
    function(ctx, c"look", 0, 0, look_call)
}

/// A function for the prelude that wraps another one with a time check.
pub(super) fn timed(ctx: Ctx) -> JsResult<Val> {
    function(ctx, c"timed", 1, 0, timed_call)
}

type CFunction =
    unsafe extern "C" fn(*mut qjs::JSContext, qjs::JSValue, c_int, *mut qjs::JSValue, c_int) -> qjs::JSValue;

fn function(ctx: Ctx, name: &CStr, arguments: c_int, magic: usize, f: CFunction) -> JsResult<Val> {
    let kind = qjs::JSCFunctionEnum_JS_CFUNC_generic_magic;
    let f = qjs::JSCFunctionType { generic_magic: Some(f) };
    // SAFETY: QuickJS calls the function with the magic number, as `kind` says.
    ctx.own(unsafe { qjs::JS_NewCFunction2(ctx.0, f.generic, name.as_ptr(), arguments, kind, magic as c_int) })
}

/// The arguments as owned values, at least `least` of them.
///
/// # Safety
/// `argv` points to `argc` live values.
unsafe fn arguments(ctx: Ctx, argc: c_int, argv: *mut qjs::JSValue, least: usize) -> Vec<Val> {
    let given = usize::try_from(argc).unwrap_or_default();
    // SAFETY: by contract.
    let mut values: Vec<Val> = (0..given).map(|i| ctx.dup(unsafe { *argv.add(i) })).collect();
    while values.len() < least {
        values.push(ctx.undefined());
    }
    values
}

fn give(result: JsResult<Val>) -> qjs::JSValue {
    match result {
        Ok(value) => value.into_raw(),
        Err(PendingException) => qjs::JS_EXCEPTION,
    }
}

/// Writes a line, unless the call was given up.
fn tell(shared: &RuntimeState, level: ConsoleLevel, text: &str) {
    let _void = shared.watch.effect(|| shared.console.line(level, text));
}

unsafe extern "C" fn console_line(
    ctx: *mut qjs::JSContext,
    _this: qjs::JSValue,
    argc: c_int,
    argv: *mut qjs::JSValue,
    magic: c_int,
) -> qjs::JSValue {
    let ctx = Ctx(ctx);
    // SAFETY: called by QuickJS with its own arguments.
    let (shared, arguments) = unsafe { (RuntimeState::of(ctx), arguments(ctx, argc, argv, 0)) };
    shared.depends.set(true);
    let level = CONSOLE.get(magic as usize).map_or(ConsoleLevel::Info, |entry| entry.1);
    if shared.console.enabled(level) {
        match console_text(&arguments) {
            Ok(text) => tell(shared, level, &text),
            Err(PendingException) => return qjs::JS_EXCEPTION,
        }
    }
    qjs::JS_UNDEFINED
}

unsafe extern "C" fn cache_call(
    ctx: *mut qjs::JSContext,
    _this: qjs::JSValue,
    argc: c_int,
    argv: *mut qjs::JSValue,
    magic: c_int,
) -> qjs::JSValue {
    let ctx = Ctx(ctx);
    // SAFETY: called by QuickJS with its own arguments.
    let (shared, arguments) = unsafe { (RuntimeState::of(ctx), arguments(ctx, argc, argv, 2)) };
    shared.depends.set(true);
    let [key, value, ..] = arguments.as_slice() else {
        return qjs::JS_UNDEFINED;
    };
    give(key.text().and_then(|key| match magic {
        0 => cache_set(ctx, shared, &key, value),
        1 => cache_get(ctx, shared, &key),
        2 => Ok(ctx.bool(shared.cache.exists(&key))),
        _ => {
            let _void = shared.watch.effect(|| shared.cache.delete(&key));
            Ok(ctx.undefined())
        }
    }))
}

fn cache_set(ctx: Ctx, shared: &RuntimeState, key: &str, value: &Val) -> JsResult<Val> {
    if key.is_empty() {
        tell(
            shared,
            ConsoleLevel::Warn,
            "cache.set failed: cache: key must not be empty",
        );
        return Ok(ctx.undefined());
    }
    let value = match from_js(value, None, &mut ConversionBudget::new(shared.limits.memory)) {
        Ok(converted) => converted.value,
        Err(ConversionError::Thrown) => return Err(PendingException),
        Err(ConversionError::Bad(why)) => return Err(ctx.throw_type(&format!("cache.set: {why}"))),
        Err(ConversionError::TooLarge) => {
            return Err(ctx.throw_range("cache.set: the value is larger than scripting.memory"));
        }
    };
    let set = || shared.cache.set(key, value, shared.limits.memory);
    if let Some(Err(full)) = shared.watch.effect(set) {
        shared.hit.set(Some(LimitHit::Cache(full)));
        return Err(ctx.throw_range(&format!("cache.set: {full}")));
    }
    Ok(ctx.undefined())
}

fn cache_get(ctx: Ctx, shared: &RuntimeState, key: &str) -> JsResult<Val> {
    match shared.cache.get(key) {
        Some(value) => to_js(ctx, &value),
        None => {
            let text = format!("cache.get: key \"{key}\" not found. Use cache.exists(key) to check before reading.");
            tell(shared, ConsoleLevel::Warn, &text);
            Ok(ctx.undefined())
        }
    }
}

unsafe extern "C" fn look_call(
    ctx: *mut qjs::JSContext,
    _this: qjs::JSValue,
    _argc: c_int,
    _argv: *mut qjs::JSValue,
    _magic: c_int,
) -> qjs::JSValue {
    // SAFETY: called by QuickJS, whose runtime has a live `RuntimeState`.
    match unsafe { in_time(Ctx(ctx)) } {
        Ok(()) => qjs::JS_UNDEFINED,
        Err(PendingException) => qjs::JS_EXCEPTION,
    }
}

/// # Safety
/// The context's runtime has a live `RuntimeState`.
unsafe fn in_time(ctx: Ctx) -> JsResult<()> {
    // SAFETY: by contract.
    let shared = unsafe { RuntimeState::of(ctx) };
    match shared.clock.expired() {
        true => Err(ctx.throw_range("the time is up")),
        false => Ok(()),
    }
}

unsafe extern "C" fn timed_call(
    ctx: *mut qjs::JSContext,
    _this: qjs::JSValue,
    argc: c_int,
    argv: *mut qjs::JSValue,
    _magic: c_int,
) -> qjs::JSValue {
    let ctx = Ctx(ctx);
    // SAFETY: called by QuickJS with its own arguments.
    let arguments = unsafe { arguments(ctx, argc, argv, 1) };
    let mut inner = arguments.first().map_or(qjs::JS_UNDEFINED, Val::raw);
    // SAFETY: the new function takes its own reference to the one value that it is given.
    give(ctx.own(unsafe { qjs::JS_NewCFunctionData(ctx.0, Some(look_then_call), 0, 0, 1, &raw mut inner) }))
}

unsafe extern "C" fn look_then_call(
    ctx: *mut qjs::JSContext,
    this: qjs::JSValue,
    argc: c_int,
    argv: *mut qjs::JSValue,
    _magic: c_int,
    data: *mut qjs::JSValue,
) -> qjs::JSValue {
    // SAFETY: called by QuickJS with its own arguments, and with the function that `timed_call` was given.
    unsafe {
        match in_time(Ctx(ctx)) {
            Ok(()) => qjs::JS_Call(ctx, *data, this, argc, argv),
            Err(PendingException) => qjs::JS_EXCEPTION,
        }
    }
}

unsafe extern "C" fn materialise_call(
    ctx: *mut qjs::JSContext,
    _this: qjs::JSValue,
    argc: c_int,
    argv: *mut qjs::JSValue,
    _magic: c_int,
) -> qjs::JSValue {
    let ctx = Ctx(ctx);
    // SAFETY: called by QuickJS with its own arguments.
    let (shared, arguments) = unsafe { (RuntimeState::of(ctx), arguments(ctx, argc, argv, 1)) };
    let done = match arguments.first() {
        Some(object) => lazy::materialise(shared, object),
        None => Ok(()),
    };
    give(done.map(|()| ctx.undefined()))
}
