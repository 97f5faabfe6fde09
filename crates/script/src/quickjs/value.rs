//! JavaScript values with counted references, and the few operations that the engine needs on them.
//!
//! A [`Val`] owns one reference and releases it when dropped. It must not outlive its runtime. This is the case because
//! values are on the stack of a call while the engine that owns the runtime is borrowed. An operation that throws
//! returns [`PendingException`] and leaves the exception in the context.

use std::borrow::Cow;
use std::ffi::CStr;
use std::ptr;

use rquickjs::qjs;

/// An exception is pending in the context.
#[derive(Debug)]
pub(super) struct PendingException;

pub(super) type JsResult<T> = Result<T, PendingException>;

/// A context (realm) to create and read values in.
#[derive(Clone, Copy)]
pub(super) struct Ctx(pub *mut qjs::JSContext);

/// One counted reference.
pub(super) struct Val {
    pub ctx: Ctx,
    raw: qjs::JSValue,
}

impl Drop for Val {
    fn drop(&mut self) {
        // SAFETY: this reference is owned and the context alive.
        unsafe { qjs::JS_FreeValue(self.ctx.0, self.raw) }
    }
}

impl Clone for Val {
    fn clone(&self) -> Val {
        self.ctx.dup(self.raw)
    }
}

/// A property name as QuickJS represents it; owned.
pub(super) struct Atom {
    ctx: Ctx,
    pub raw: qjs::JSAtom,
}

impl Drop for Atom {
    fn drop(&mut self) {
        // SAFETY: this reference is owned and the context alive.
        unsafe { qjs::JS_FreeAtom(self.ctx.0, self.raw) }
    }
}

impl Ctx {
    /// Takes over a reference returned by QuickJS; an exception marker becomes [`PendingException`].
    pub fn own(self, raw: qjs::JSValue) -> JsResult<Val> {
        if tag(raw) == qjs::JS_TAG_EXCEPTION {
            return Err(PendingException);
        }
        Ok(Val { ctx: self, raw })
    }

    /// A new reference to a borrowed value.
    pub fn dup(self, raw: qjs::JSValue) -> Val {
        // SAFETY: `raw` is alive while it is borrowed.
        let raw = unsafe { qjs::JS_DupValue(self.0, raw) };
        Val { ctx: self, raw }
    }

    pub fn constant(self, raw: qjs::JSValue) -> Val {
        Val { ctx: self, raw }
    }

    pub fn undefined(self) -> Val {
        self.constant(qjs::JS_UNDEFINED)
    }

    pub fn null(self) -> Val {
        self.constant(qjs::JS_NULL)
    }

    pub fn bool(self, value: bool) -> Val {
        self.constant(if value { qjs::JS_TRUE } else { qjs::JS_FALSE })
    }

    pub fn number(self, value: f64) -> Val {
        self.constant(qjs::JS_NewFloat64(value))
    }

    pub fn string(self, text: &str) -> JsResult<Val> {
        // SAFETY: pointer and length describe `text`, which QuickJS copies.
        self.own(unsafe { qjs::JS_NewStringLen(self.0, text.as_ptr().cast(), text.len() as _) })
    }

    pub fn object(self) -> JsResult<Val> {
        // SAFETY: the context is alive.
        self.own(unsafe { qjs::JS_NewObject(self.0) })
    }

    /// An array of the values.
    pub fn array(self, values: Vec<Val>) -> JsResult<Val> {
        let raw: Vec<qjs::JSValue> = values.into_iter().map(Val::into_raw).collect();
        let count = i32::try_from(raw.len()).map_err(|_| self.throw_range("array too long"))?;
        // SAFETY: QuickJS takes over `count` references, even when it fails.
        self.own(unsafe { qjs::JS_NewArrayFrom(self.0, count, raw.as_ptr()) })
    }

    pub fn atom(self, text: &str) -> JsResult<Atom> {
        // SAFETY: pointer and length describe `text`.
        let raw = unsafe { qjs::JS_NewAtomLen(self.0, text.as_ptr().cast(), text.len() as _) };
        if raw == qjs::JS_ATOM_NULL {
            return Err(PendingException);
        }
        Ok(Atom { ctx: self, raw })
    }

    /// A new reference to a borrowed name.
    pub fn dup_atom(self, raw: qjs::JSAtom) -> Atom {
        // SAFETY: `raw` is alive while it is borrowed.
        let raw = unsafe { qjs::JS_DupAtom(self.0, raw) };
        Atom { ctx: self, raw }
    }

    pub fn global(self) -> Val {
        // SAFETY: the context is alive.
        let raw = unsafe { qjs::JS_GetGlobalObject(self.0) };
        Val { ctx: self, raw }
    }

    /// Evaluates global code. QuickJS requires a NUL after the text, so the text is copied with one.
    pub fn eval(self, code: &str, file: &CStr, flags: u32) -> JsResult<Val> {
        let mut input = Vec::with_capacity(code.len() + 1);
        input.extend_from_slice(code.as_bytes());
        input.push(0);
        let mut options = qjs::JSEvalOptions {
            version: qjs::JS_EVAL_OPTIONS_VERSION as _,
            eval_flags: flags as _,
            filename: file.as_ptr(),
            line_num: 1,
        };
        // SAFETY: input is NUL-terminated at its length; options and file name live through the call.
        self.own(unsafe { qjs::JS_Eval2(self.0, input.as_ptr().cast(), code.len() as _, &mut options) })
    }

    /// Takes the pending exception, which is then no longer pending.
    pub fn take_exception(self) -> Val {
        // SAFETY: the context is alive.
        let raw = unsafe { qjs::JS_GetException(self.0) };
        Val { ctx: self, raw }
    }

    pub fn throw_type(self, text: &str) -> PendingException {
        let text = c_text(text);
        // SAFETY: the format takes one C string, which lives through the call.
        unsafe { qjs::JS_ThrowTypeError(self.0, c"%s".as_ptr(), text.as_ptr()) };
        PendingException
    }

    /// The result of a property hook that refuses: an exception if the operation's flags ask for one, else false.
    pub fn refuse(self, flags: i32, text: &str) -> i32 {
        if flags & (qjs::JS_PROP_THROW | qjs::JS_PROP_THROW_STRICT) as i32 == 0 {
            return 0;
        }
        let PendingException = self.throw_type(text);
        -1
    }

    pub fn throw_range(self, text: &str) -> PendingException {
        let text = c_text(text);
        // SAFETY: as above.
        unsafe { qjs::JS_ThrowRangeError(self.0, c"%s".as_ptr(), text.as_ptr()) };
        PendingException
    }
}

fn c_text(text: &str) -> std::ffi::CString {
    std::ffi::CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

pub(super) fn tag(raw: qjs::JSValue) -> i32 {
    // SAFETY: reads the tag, which every value has.
    unsafe { qjs::JS_VALUE_GET_TAG(raw) }
}

impl Val {
    pub fn raw(&self) -> qjs::JSValue {
        self.raw
    }

    /// Transfers the reference to the caller.
    pub fn into_raw(self) -> qjs::JSValue {
        std::mem::ManuallyDrop::new(self).raw
    }

    pub fn tag(&self) -> i32 {
        tag(self.raw)
    }

    pub fn is_nullish(&self) -> bool {
        matches!(self.tag(), qjs::JS_TAG_NULL | qjs::JS_TAG_UNDEFINED)
    }

    pub fn is_undefined(&self) -> bool {
        self.tag() == qjs::JS_TAG_UNDEFINED
    }

    pub fn is_object(&self) -> bool {
        self.tag() == qjs::JS_TAG_OBJECT
    }

    pub fn is_string(&self) -> bool {
        matches!(self.tag(), qjs::JS_TAG_STRING | qjs::JS_TAG_STRING_ROPE)
    }

    pub fn is_array(&self) -> bool {
        // SAFETY: valid for any value.
        unsafe { qjs::JS_IsArray(self.raw) }
    }

    pub fn is_function(&self) -> bool {
        // SAFETY: valid for any value.
        unsafe { qjs::JS_IsFunction(self.ctx.0, self.raw) }
    }

    pub fn is_date(&self) -> bool {
        // SAFETY: valid for any value.
        unsafe { qjs::JS_IsDate(self.raw) }
    }

    pub fn is_error(&self) -> bool {
        // SAFETY: valid for any value.
        unsafe { qjs::JS_IsError(self.raw) }
    }

    /// Set or Map, which are read as lists.
    pub fn is_collection(&self) -> bool {
        // SAFETY: valid for any value.
        unsafe { qjs::JS_IsMap(self.raw) || qjs::JS_IsSet(self.raw) }
    }

    pub fn is_typed_array(&self) -> bool {
        // SAFETY: valid for any value.
        unsafe { qjs::JS_GetTypedArrayType(self.raw) >= 0 }
    }

    pub fn class(&self) -> qjs::JSClassID {
        // SAFETY: valid for any value.
        unsafe { qjs::JS_GetClassID(self.raw) }
    }

    /// The number, if the value is one.
    pub fn as_number(&self) -> Option<f64> {
        match self.tag() {
            // SAFETY: the tag says which member of the union is set.
            qjs::JS_TAG_INT => Some(f64::from(unsafe { qjs::JS_VALUE_GET_INT(self.raw) })),
            // SAFETY: as above.
            qjs::JS_TAG_FLOAT64 => Some(unsafe { qjs::JS_VALUE_GET_FLOAT64(self.raw) }),
            _ => None,
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        // SAFETY: the tag says which member of the union is set.
        (self.tag() == qjs::JS_TAG_BOOL).then(|| unsafe { qjs::JS_VALUE_GET_BOOL(self.raw) })
    }

    /// Identity of an object, string or other counted value; null for the rest.
    pub fn address(&self) -> *const () {
        // SAFETY: only values with a reference count contain a pointer.
        unsafe {
            if qjs::JS_VALUE_HAS_REF_COUNT(self.raw) {
                qjs::JS_VALUE_GET_PTR(self.raw).cast()
            } else {
                ptr::null()
            }
        }
    }

    pub fn truth(&self) -> JsResult<bool> {
        // SAFETY: valid for any value.
        match unsafe { qjs::JS_ToBool(self.ctx.0, self.raw) } {
            -1 => Err(PendingException),
            truth => Ok(truth != 0),
        }
    }

    /// Passes the value as text (the result of `String(value)`) to `f`. An unpaired surrogate becomes U+FFFD.
    pub fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> JsResult<R> {
        let mut len: qjs::size_t = 0;
        // SAFETY: QuickJS returns null or a text of `len` bytes that stays until it is freed below.
        unsafe {
            let text = qjs::JS_ToCStringLen2(self.ctx.0, &mut len, self.raw, false);
            if text.is_null() {
                return Err(PendingException);
            }
            let bytes = std::slice::from_raw_parts(text.cast::<u8>(), len as usize);
            let result = f(&from_wtf8(bytes));
            qjs::JS_FreeCString(self.ctx.0, text);
            Ok(result)
        }
    }

    pub fn text(&self) -> JsResult<String> {
        self.with_text(str::to_owned)
    }

    pub fn get(&self, name: qjs::JSAtom) -> JsResult<Val> {
        // SAFETY: value and atom are alive.
        self.ctx.own(unsafe { qjs::JS_GetProperty(self.ctx.0, self.raw, name) })
    }

    pub fn get_named(&self, name: &CStr) -> JsResult<Val> {
        // SAFETY: the name is NUL-terminated.
        self.ctx
            .own(unsafe { qjs::JS_GetPropertyStr(self.ctx.0, self.raw, name.as_ptr()) })
    }

    pub fn get_index(&self, index: u32) -> JsResult<Val> {
        // SAFETY: the value is alive.
        self.ctx
            .own(unsafe { qjs::JS_GetPropertyUint32(self.ctx.0, self.raw, index) })
    }

    /// The object's own property of that name: its value, or the result of its getter.
    pub fn get_own(&self, name: qjs::JSAtom) -> JsResult<Option<Val>> {
        let mut desc = qjs::JSPropertyDescriptor {
            flags: 0,
            value: qjs::JS_UNDEFINED,
            getter: qjs::JS_UNDEFINED,
            setter: qjs::JS_UNDEFINED,
        };
        // SAFETY: `desc` is filled when the result is positive, with references that are then owned here.
        match unsafe { qjs::JS_GetOwnProperty(self.ctx.0, &mut desc, self.raw, name) } {
            0 => Ok(None),
            found if found < 0 => Err(PendingException),
            _ => {
                let value = self.ctx.constant(desc.value);
                let getter = self.ctx.constant(desc.getter);
                let _setter = self.ctx.constant(desc.setter);
                if desc.flags & qjs::JS_PROP_GETSET as i32 == 0 {
                    return Ok(Some(value));
                }
                match getter.is_object() {
                    true => getter.call(self, &[]).map(Some),
                    false => Ok(Some(self.ctx.undefined())),
                }
            }
        }
    }

    pub fn length(&self) -> JsResult<i64> {
        let mut length = 0;
        // SAFETY: the value is alive; `length` is written on success.
        match unsafe { qjs::JS_GetLength(self.ctx.0, self.raw, &mut length) } {
            0 => Ok(length),
            _ => Err(PendingException),
        }
    }

    /// Defines an ordinary property (writable, enumerable, configurable), as an object literal would.
    pub fn define(&self, name: qjs::JSAtom, value: Val) -> JsResult<()> {
        let flags = (qjs::JS_PROP_C_W_E | qjs::JS_PROP_THROW) as i32;
        // SAFETY: the reference to the value is transferred.
        match unsafe { qjs::JS_DefinePropertyValue(self.ctx.0, self.raw, name, value.into_raw(), flags) } {
            -1 => Err(PendingException),
            _ => Ok(()),
        }
    }

    pub fn set_named(&self, name: &CStr, value: Val) -> JsResult<()> {
        // SAFETY: the reference to the value is transferred; the name is NUL-terminated.
        match unsafe { qjs::JS_SetPropertyStr(self.ctx.0, self.raw, name.as_ptr(), value.into_raw()) } {
            -1 => Err(PendingException),
            _ => Ok(()),
        }
    }

    pub fn call(&self, this: &Val, arguments: &[qjs::JSValue]) -> JsResult<Val> {
        // SAFETY: arguments are borrowed for the call; QuickJS does not write to them.
        self.ctx.own(unsafe {
            qjs::JS_Call(
                self.ctx.0,
                self.raw,
                this.raw,
                arguments.len() as _,
                arguments.as_ptr().cast_mut(),
            )
        })
    }

    /// Calls the method of that name without arguments.
    pub fn invoke(&self, name: &str) -> JsResult<Val> {
        let name = self.ctx.atom(name)?;
        // SAFETY: value and atom are alive.
        self.ctx
            .own(unsafe { qjs::JS_Invoke(self.ctx.0, self.raw, name.raw, 0, ptr::null_mut()) })
    }

    /// The names of the object's own properties.
    pub fn own_names(&self, flags: u32) -> JsResult<Names> {
        let mut names = Names {
            ctx: self.ctx,
            table: ptr::null_mut(),
            len: 0,
        };
        // SAFETY: on success the table is owned by `names`.
        match unsafe { qjs::JS_GetOwnPropertyNames(self.ctx.0, &mut names.table, &mut names.len, self.raw, flags as _) }
        {
            0 => Ok(names),
            _ => Err(PendingException),
        }
    }

    /// The names that `Object.keys` returns.
    pub fn keys(&self) -> JsResult<Names> {
        self.own_names(qjs::JS_GPN_STRING_MASK | qjs::JS_GPN_ENUM_ONLY)
    }
}

/// A list of property names.
pub(super) struct Names {
    ctx: Ctx,
    table: *mut qjs::JSPropertyEnum,
    len: u32,
}

impl Names {
    pub fn atoms(&self) -> impl ExactSizeIterator<Item = qjs::JSAtom> {
        let entries = if self.table.is_null() {
            &[]
        } else {
            // SAFETY: the table holds `len` entries until it is freed in `drop`.
            unsafe { std::slice::from_raw_parts(self.table, self.len as usize) }
        };
        entries.iter().map(|entry| entry.atom)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        if !self.table.is_null() {
            // SAFETY: table and length came together from QuickJS.
            unsafe { qjs::JS_FreePropertyEnum(self.ctx.0, self.table, self.len) }
        }
    }
}

/// QuickJS keeps unpaired surrogates in its UTF-8; each becomes one U+FFFD.
fn from_wtf8(bytes: &[u8]) -> Cow<'_, str> {
    let mut rest = bytes;
    let mut text = match std::str::from_utf8(rest) {
        Ok(text) => return Cow::Borrowed(text),
        Err(_) => String::with_capacity(bytes.len()),
    };
    loop {
        let (valid, bad) = match std::str::from_utf8(rest) {
            Ok(valid) => {
                text.push_str(valid);
                return Cow::Owned(text);
            }
            Err(error) => (error.valid_up_to(), error.error_len().unwrap_or(1)),
        };
        let (good, tail) = rest.split_at(valid);
        text.push_str(std::str::from_utf8(good).unwrap_or_default());
        text.push(char::REPLACEMENT_CHARACTER);
        let surrogate = matches!(tail, [0xED, 0xA0..=0xBF, _, ..]);
        rest = tail.get(if surrogate { 3 } else { bad }..).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::from_wtf8;

    #[test]
    fn each_unpaired_surrogate_becomes_one_replacement_character() {
        assert_eq!(from_wtf8(b"a\xED\xA0\x80b"), "a\u{fffd}b");
        assert_eq!(from_wtf8(b"\xED\xBF\xBF"), "\u{fffd}");
        assert_eq!(from_wtf8("grün 😀".as_bytes()), "grün 😀");
    }
}
