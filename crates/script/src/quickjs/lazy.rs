//! Objects whose properties are created when a script reads them: `msg.meta`, and `msg` with a large payload.
//!
//! To a script they are ordinary objects. Properties that were not written are *virtual*: QuickJS calls the hooks here,
//! which read the message. What a script writes becomes an ordinary property of the object, which QuickJS finds without
//! a hook. The list of *touched* names connects the two: a touched name is never virtual again, whether the script set,
//! redefined or deleted it, so at the end the touched names are exactly the changes.
//!
//! The rejected option was a plain object filled for each message: converting twelve texts in and out cost more than
//! the script.

use std::ffi::c_int;
use std::ptr;

use rquickjs::qjs;
use smallvec::SmallVec;
use thalweg_record::{Metadata, Payload, Value, key};

use super::runtime_state::RuntimeState;
use super::to_js::to_js;
use super::value::{Atom, Ctx, JsResult, PendingException, Val};
use crate::view::payload_value;

/// The data of a lazy object.
pub(super) enum LazySource {
    /// The object is gone and its state is free for reuse.
    Free,
    /// `msg.meta`: the message's metadata, and its original metadata (for computed keys).
    Meta { base: Metadata, origin: Metadata },
    /// `msg` whose payload is converted on its first read.
    Payload {
        payload: Payload,
        read: Option<MaterialisedPayload>,
    },
}

/// A payload that a script has read.
pub(super) struct MaterialisedPayload {
    /// One reference, owned by the state.
    js: qjs::JSValue,
    /// What it was converted from.
    value: Value,
}

pub(super) struct LazyState {
    place: usize,
    /// Atoms, each with a reference.
    touched: SmallVec<[qjs::JSAtom; 8]>,
    /// The virtual property that was read last, with a reference to its text and one to the atom, which could otherwise
    /// be reused for another name. QuickJS often asks twice, for the attributes and for the value.
    last: Option<(qjs::JSAtom, qjs::JSValue)>,
    source: LazySource,
}

/// All states of a runtime. Each has a fixed address, because its object points to it; states are reused.
#[derive(Default)]
pub(super) struct LazyStates {
    all: Vec<*mut LazyState>,
    free: Vec<usize>,
}

impl LazyStates {
    fn take(&mut self, source: LazySource) -> *mut LazyState {
        if let Some(&state) = self.free.pop().and_then(|place| self.all.get(place)) {
            // SAFETY: nobody else uses a free state.
            unsafe { (*state).source = source };
            return state;
        }
        let state = Box::into_raw(Box::new(LazyState {
            place: self.all.len(),
            touched: SmallVec::new(),
            last: None,
            source,
        }));
        self.all.push(state);
        state
    }

    #[cfg(test)]
    pub fn live(&self) -> usize {
        self.all.len() - self.free.len()
    }
}

impl Drop for LazyStates {
    fn drop(&mut self) {
        for state in self.all.drain(..) {
            // SAFETY: created by `Box::into_raw`, and dropped only with the runtime, whose objects are not used any
            // more.
            drop(unsafe { Box::from_raw(state) });
        }
    }
}

static HOOKS: qjs::JSClassExoticMethods = qjs::JSClassExoticMethods {
    get_own_property: Some(get_own_property),
    get_own_property_names: Some(get_own_property_names),
    delete_property: Some(delete_property),
    define_own_property: Some(define_own_property),
    has_property: None,
    get_property: None,
    set_property: Some(set_property),
};

/// Registers the class of lazy objects in a new runtime, with the prototype of plain objects.
pub(super) fn register(ctx: Ctx, shared: &RuntimeState) -> JsResult<()> {
    let mut class: qjs::JSClassID = 0;
    let definition = qjs::JSClassDef {
        class_name: c"Object".as_ptr(),
        finalizer: Some(finalize),
        gc_mark: Some(mark),
        call: None,
        exotic: ptr::from_ref(&HOOKS).cast_mut(),
    };
    // SAFETY: the definition is copied, the hooks are static and QuickJS does not write to them.
    unsafe {
        let rt = qjs::JS_GetRuntime(ctx.0);
        qjs::JS_NewClassID(rt, &mut class);
        if qjs::JS_NewClass(rt, class, &definition) != 0 {
            return Err(PendingException);
        }
        let prototype = ctx.own(qjs::JS_GetPrototype(ctx.0, ctx.object()?.raw()))?;
        qjs::JS_SetClassProto(ctx.0, class, prototype.into_raw());
    }
    shared.lazy_class.set(class);
    Ok(())
}

/// `msg.meta` over a message's metadata.
pub(super) fn meta(ctx: Ctx, shared: &RuntimeState, base: &Metadata, origin: &Metadata) -> JsResult<Val> {
    let (base, origin) = (base.clone(), origin.clone());
    object(ctx, shared, LazySource::Meta { base, origin })
}

/// `msg` over a payload that is converted only when it is read.
pub(super) fn message(ctx: Ctx, shared: &RuntimeState, payload: &Payload) -> JsResult<Val> {
    let payload = payload.clone();
    object(ctx, shared, LazySource::Payload { payload, read: None })
}

fn object(ctx: Ctx, shared: &RuntimeState, source: LazySource) -> JsResult<Val> {
    // SAFETY: the class was registered; the state lives as long as the runtime.
    unsafe {
        let object = ctx.own(qjs::JS_NewObjectClass(ctx.0, shared.lazy_class.get()))?;
        let state = shared.states.borrow_mut().take(source);
        qjs::JS_SetOpaque(object.raw(), state.cast());
        Ok(object)
    }
}

/// The names that a script touched on a lazy `msg.meta`, each with its current value; `None` if it is gone.
///
/// The whole result is `None` if the object is not a lazy `msg.meta`.
pub(super) fn meta_changes(shared: &RuntimeState, object: &Val) -> JsResult<Option<AtomChanges>> {
    let Some(state) = lazy_state(shared, object) else {
        return Ok(None);
    };
    // SAFETY: the state is alive while its object is; the borrow ends before anything else runs.
    let touched: SmallVec<[qjs::JSAtom; 8]> = unsafe {
        match (*state).source {
            LazySource::Meta { .. } => (*state).touched.clone(),
            _ => return Ok(None),
        }
    };
    let mut changes = AtomChanges::new();
    for atom in touched {
        changes.push((atom, object.get_own(atom)?));
    }
    Ok(Some(changes))
}

pub(super) type AtomChanges = SmallVec<[(qjs::JSAtom, Option<Val>); 8]>;

/// What a script did with the payload of a lazy `msg`.
pub(super) enum PayloadAccess {
    /// It neither read nor set it.
    Never,
    /// It set or deleted it without reading it.
    Replaced,
    /// It read this value.
    As(Value),
}

/// `None` if `object` is not a lazy `msg`.
pub(super) fn read_payload(shared: &RuntimeState, object: &Val) -> Option<PayloadAccess> {
    let state = lazy_state(shared, object)?;
    // SAFETY: the state is alive while its object is; nothing runs during the borrow.
    unsafe {
        match &(*state).source {
            LazySource::Payload { read: Some(read), .. } => Some(PayloadAccess::As(read.value.clone())),
            LazySource::Payload { .. } => match (*state).touched.contains(&shared.atoms.get().payload) {
                true => Some(PayloadAccess::Replaced),
                false => Some(PayloadAccess::Never),
            },
            _ => None,
        }
    }
}

/// Whether a script set the payload of `msg`, possibly to the same value. Unknown for a `msg` that is not lazy:
/// `false`.
pub(super) fn sets_payload(shared: &RuntimeState, object: &Val) -> bool {
    let payload = shared.atoms.get().payload;
    // SAFETY: the state is alive while its object is; nothing runs during the borrow.
    lazy_state(shared, object).is_some_and(|state| unsafe { (*state).touched.contains(&payload) })
}

/// Turns all virtual properties of a lazy object into ordinary ones. Does nothing to other values.
pub(super) fn materialise(shared: &RuntimeState, object: &Val) -> JsResult<()> {
    let Some(state) = lazy_state(shared, object) else {
        return Ok(());
    };
    for atom in virtual_names(object.ctx, shared, state)? {
        // SAFETY: the state is alive while its object is.
        if let Some(value) = unsafe { virtual_value(object.ctx, shared, state, atom.raw)? } {
            define_real(object, state, &atom, value)?;
        }
    }
    Ok(())
}

fn define_real(object: &Val, state: *mut LazyState, atom: &Atom, value: Val) -> JsResult<()> {
    let flags = (qjs::JS_PROP_C_W_E | HAS_ALL | qjs::JS_PROP_NO_EXOTIC | qjs::JS_PROP_THROW) as c_int;
    // SAFETY: object, atom and value are alive; the value is copied by QuickJS.
    unsafe {
        touch(object.ctx, state, atom.raw);
        let undefined = qjs::JS_UNDEFINED;
        match qjs::JS_DefineProperty(
            object.ctx.0,
            object.raw(),
            atom.raw,
            value.raw(),
            undefined,
            undefined,
            flags,
        ) {
            -1 => Err(PendingException),
            _ => Ok(()),
        }
    }
}

const HAS_ALL: u32 =
    qjs::JS_PROP_HAS_VALUE | qjs::JS_PROP_HAS_CONFIGURABLE | qjs::JS_PROP_HAS_WRITABLE | qjs::JS_PROP_HAS_ENUMERABLE;

fn lazy_state(shared: &RuntimeState, object: &Val) -> Option<*mut LazyState> {
    // SAFETY: returns the opaque pointer only for objects of our class.
    let state = unsafe { qjs::JS_GetOpaque(object.raw(), shared.lazy_class.get()) };
    (!state.is_null()).then_some(state.cast())
}

/// # Safety
/// `object` is of the lazy class, as in every hook.
unsafe fn state_of(object: qjs::JSValue) -> *mut LazyState {
    let mut class = 0;
    // SAFETY: by contract.
    unsafe { qjs::JS_GetAnyOpaque(object, &mut class).cast() }
}

/// # Safety
/// `state` and `atom` are alive.
unsafe fn touch(ctx: Ctx, state: *mut LazyState, atom: qjs::JSAtom) {
    // SAFETY: by contract; JS_DupAtom runs no script.
    unsafe {
        let touched = &mut (*state).touched;
        if !touched.contains(&atom) {
            touched.push(qjs::JS_DupAtom(ctx.0, atom));
        }
    }
}

/// The value of a virtual property, or `None` if there is none of that name.
///
/// # Safety
/// `state` and `atom` are alive.
unsafe fn virtual_value(
    ctx: Ctx,
    shared: &RuntimeState,
    state: *mut LazyState,
    atom: qjs::JSAtom,
) -> JsResult<Option<Val>> {
    // SAFETY: by contract. The state is not borrowed across a call that may run the garbage collector.
    unsafe {
        if (*state).touched.contains(&atom) {
            return Ok(None);
        }
        match &(*state).source {
            LazySource::Free => Ok(None),
            LazySource::Meta { base, origin } => {
                if let Some((last, text)) = (*state).last
                    && last == atom
                {
                    return Ok(Some(ctx.dup(text)));
                }
                let text = shared.keys.borrow_mut().with_name(ctx, atom, |name| {
                    match shared.computed.iter().find(|key| key.name == name) {
                        Some(key) => {
                            shared.depends.set(true);
                            Some((key.compute)(origin).into())
                        }
                        None => {
                            shared.depends.set(shared.depends.get() || key::STAMPS.contains(&name));
                            base.get(name)
                        }
                    }
                });
                let Some(text) = text else { return Ok(None) };
                let text = ctx.string(&text)?;
                let last = (qjs::JS_DupAtom(ctx.0, atom), text.clone().into_raw());
                if let Some((name, before)) = (*state).last.replace(last) {
                    qjs::JS_FreeAtom(ctx.0, name);
                    qjs::JS_FreeValue(ctx.0, before);
                }
                Ok(Some(text))
            }
            LazySource::Payload { .. } if atom != shared.atoms.get().payload => Ok(None),
            LazySource::Payload { read: Some(read), .. } => Ok(Some(ctx.dup(read.js))),
            LazySource::Payload { payload, read: None } => {
                shared.depends.set(true);
                let value = payload_value(&payload.clone()).into_owned();
                let js = to_js(ctx, &value)?;
                let kept = js.clone().into_raw();
                if let LazySource::Payload { read, .. } = &mut (*state).source {
                    *read = Some(MaterialisedPayload { js: kept, value });
                }
                Ok(Some(js))
            }
        }
    }
}

/// The names of the virtual properties, including touched ones.
fn virtual_names(ctx: Ctx, shared: &RuntimeState, state: *mut LazyState) -> JsResult<Vec<Atom>> {
    let mut keys = shared.keys.borrow_mut();
    let computed = |name: &str| shared.computed.iter().any(|key| key.name == name);
    // SAFETY: the state is alive; creating atoms runs neither scripts nor the garbage collector.
    unsafe {
        match &(*state).source {
            LazySource::Free => Ok(Vec::new()),
            LazySource::Payload { .. } => Ok(vec![ctx.dup_atom(shared.atoms.get().payload)]),
            LazySource::Meta { base, .. } => {
                // Whether the stamps are among them depends on the message.
                shared.depends.set(true);
                let stored = base.iter().map(|(key, _)| key).filter(|key| !computed(key));
                let names = stored.chain(shared.computed.iter().map(|key| key.name));
                let mut atoms = Vec::with_capacity(base.shared_map().len() + 8);
                for name in names {
                    atoms.push(keys.atom(ctx, name)?);
                }
                Ok(atoms)
            }
        }
    }
}

unsafe extern "C" fn get_own_property(
    ctx: *mut qjs::JSContext,
    desc: *mut qjs::JSPropertyDescriptor,
    object: qjs::JSValue,
    atom: qjs::JSAtom,
) -> c_int {
    let ctx = Ctx(ctx);
    // SAFETY: called by QuickJS with a live object of our class.
    unsafe {
        let shared = RuntimeState::of(ctx);
        match virtual_value(ctx, shared, state_of(object), atom) {
            Err(PendingException) => -1,
            Ok(None) => 0,
            Ok(Some(value)) => {
                if !desc.is_null() {
                    desc.write(qjs::JSPropertyDescriptor {
                        flags: qjs::JS_PROP_C_W_E as c_int,
                        value: value.into_raw(),
                        getter: qjs::JS_UNDEFINED,
                        setter: qjs::JS_UNDEFINED,
                    });
                }
                1
            }
        }
    }
}

unsafe extern "C" fn get_own_property_names(
    ctx: *mut qjs::JSContext,
    table: *mut *mut qjs::JSPropertyEnum,
    len: *mut u32,
    object: qjs::JSValue,
) -> c_int {
    let ctx = Ctx(ctx);
    // SAFETY: called by QuickJS with a live object of our class and valid places for the result.
    unsafe {
        let shared = RuntimeState::of(ctx);
        let state = state_of(object);
        let Ok(mut atoms) = virtual_names(ctx, shared, state) else {
            return -1;
        };
        atoms.retain(|atom| !(*state).touched.contains(&atom.raw));
        *table = ptr::null_mut();
        *len = 0;
        if atoms.is_empty() {
            return 0;
        }
        let bytes = atoms.len() * size_of::<qjs::JSPropertyEnum>();
        let entries: *mut qjs::JSPropertyEnum = qjs::js_malloc(ctx.0, bytes as _).cast();
        if entries.is_null() {
            return -1;
        }
        *len = atoms.len() as u32;
        *table = entries;
        for (i, atom) in atoms.into_iter().enumerate() {
            let atom = std::mem::ManuallyDrop::new(atom).raw;
            entries.add(i).write(qjs::JSPropertyEnum {
                is_enumerable: true,
                atom,
            });
        }
        0
    }
}

unsafe extern "C" fn delete_property(ctx: *mut qjs::JSContext, object: qjs::JSValue, atom: qjs::JSAtom) -> c_int {
    // SAFETY: called by QuickJS with a live object of our class. It has already deleted ordinary properties itself.
    unsafe { touch(Ctx(ctx), state_of(object), atom) };
    1
}

unsafe extern "C" fn define_own_property(
    ctx: *mut qjs::JSContext,
    object: qjs::JSValue,
    atom: qjs::JSAtom,
    value: qjs::JSValue,
    getter: qjs::JSValue,
    setter: qjs::JSValue,
    flags: c_int,
) -> c_int {
    let ctx = Ctx(ctx);
    // SAFETY: called by QuickJS with live values, for names that are not ordinary properties yet.
    unsafe {
        let state = state_of(object);
        // Attributes missing in a descriptor are taken from the existing property.
        match virtual_value(ctx, RuntimeState::of(ctx), state, atom) {
            Err(PendingException) => return -1,
            Ok(None) => touch(ctx, state, atom),
            Ok(Some(old)) => {
                let owned = ctx.dup(object);
                let name = ctx.dup_atom(atom);
                if define_real(&owned, state, &name, old).is_err() {
                    return -1;
                }
            }
        }
        let flags = flags | qjs::JS_PROP_NO_EXOTIC as c_int;
        qjs::JS_DefineProperty(ctx.0, object, atom, value, getter, setter, flags)
    }
}

/// Assignment to a name that is not an ordinary property yet: it becomes one, without reading the old value.
unsafe extern "C" fn set_property(
    ctx: *mut qjs::JSContext,
    object: qjs::JSValue,
    atom: qjs::JSAtom,
    value: qjs::JSValue,
    receiver: qjs::JSValue,
    flags: c_int,
) -> c_int {
    let ctx = Ctx(ctx);
    // SAFETY: called by QuickJS with live values; the value stays owned by the caller.
    unsafe {
        let shared = RuntimeState::of(ctx);
        let target = ctx.dup(receiver);
        let direct = target.is_object() && target.address() == ctx.dup(object).address();
        if atom == shared.atoms.get().proto {
            let new = ctx.dup(value);
            if target.is_object() && (new.is_object() || new.tag() == qjs::JS_TAG_NULL) {
                return qjs::JS_SetPrototype(ctx.0, receiver, value);
            }
            return 1;
        }
        if direct {
            touch(ctx, state_of(object), atom);
        } else if !target.is_object() {
            return ctx.refuse(flags, "not an object");
        }
        let exotic = if direct { qjs::JS_PROP_NO_EXOTIC } else { 0 };
        let throw = flags & (qjs::JS_PROP_THROW | qjs::JS_PROP_THROW_STRICT) as c_int;
        let flags = throw | (qjs::JS_PROP_C_W_E | HAS_ALL | exotic) as c_int;
        let undefined = qjs::JS_UNDEFINED;
        qjs::JS_DefineProperty(ctx.0, receiver, atom, value, undefined, undefined, flags)
    }
}

unsafe extern "C" fn finalize(rt: *mut qjs::JSRuntime, object: qjs::JSValue) {
    // SAFETY: called once per object of our class; nothing uses its state afterwards. Freeing values may finalise other
    // objects, so nothing is borrowed meanwhile.
    unsafe {
        let state = state_of(object);
        if state.is_null() {
            return;
        }
        let touched = std::mem::take(&mut (*state).touched);
        let source = std::mem::replace(&mut (*state).source, LazySource::Free);
        let last = (*state).last.take();
        let place = (*state).place;
        RuntimeState::of_runtime(rt).states.borrow_mut().free.push(place);
        for atom in touched {
            qjs::JS_FreeAtomRT(rt, atom);
        }
        if let Some((name, text)) = last {
            qjs::JS_FreeAtomRT(rt, name);
            qjs::JS_FreeValueRT(rt, text);
        }
        if let LazySource::Payload { read: Some(read), .. } = source {
            qjs::JS_FreeValueRT(rt, read.js);
        }
    }
}

unsafe extern "C" fn mark(rt: *mut qjs::JSRuntime, object: qjs::JSValue, visit: qjs::JS_MarkFunc) {
    // SAFETY: called during garbage collection with a live object of our class.
    unsafe {
        let state = state_of(object);
        if !state.is_null()
            && let LazySource::Payload { read: Some(read), .. } = &(*state).source
        {
            qjs::JS_MarkValue(rt, read.js, visit);
        }
    }
}
