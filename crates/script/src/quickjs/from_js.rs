//! Converts JavaScript values to typed values.
//!
//! Where a script left a part of the payload unchanged, the typed original is kept: a 64-bit integer keeps every digit,
//! a time stays a time. The rest becomes booleans, texts, exact integers up to 2^53, doubles, arrays and objects. A
//! budget bounds the work, because a small script value can describe a huge tree by referring to one part many times.

use hashbrown::HashMap;
use thalweg_record::{Object, Text, Value};

use super::value::{JsResult, PendingException, Val};
use crate::view::{exact_integer, number_seen, plain_form, text_form};

/// Why a value cannot leave the engine.
#[derive(Debug)]
pub(super) enum ConversionError {
    /// A getter or proxy threw; the exception is pending.
    Thrown,
    /// The value has no data form.
    Bad(&'static str),
    /// The budget is used up.
    TooLarge,
}

impl From<PendingException> for ConversionError {
    fn from(_: PendingException) -> ConversionError {
        ConversionError::Thrown
    }
}

/// Maximum nesting of arrays and objects.
const DEPTH_MAX: usize = 128;

/// How much may still be converted in one call.
pub(super) struct ConversionBudget {
    bytes: usize,
}

impl ConversionBudget {
    pub fn new(bytes: usize) -> ConversionBudget {
        ConversionBudget { bytes }
    }

    pub fn spend(&mut self, bytes: usize) -> Result<(), ConversionError> {
        self.bytes = self.bytes.checked_sub(bytes).ok_or(ConversionError::TooLarge)?;
        Ok(())
    }
}

/// A converted value, and whether all of it is the original.
pub(super) struct ConvertedValue {
    pub value: Value,
    pub same: bool,
}

/// Converts `js`; `original` is what the script saw in its place, if anything.
pub(super) fn from_js(
    js: &Val,
    original: Option<&Value>,
    budget: &mut ConversionBudget,
) -> Result<ConvertedValue, ConversionError> {
    Converter {
        budget,
        ancestors: Vec::new(),
    }
    .value(js, original)
}

struct Converter<'a> {
    budget: &'a mut ConversionBudget,
    /// Addresses of the enclosing arrays and objects.
    ancestors: Vec<*const ()>,
}

fn fresh(value: Value) -> Result<ConvertedValue, ConversionError> {
    Ok(ConvertedValue { value, same: false })
}

fn kept(value: &Value) -> Result<ConvertedValue, ConversionError> {
    let value = value.clone();
    Ok(ConvertedValue { value, same: true })
}

impl Converter<'_> {
    fn value(&mut self, js: &Val, original: Option<&Value>) -> Result<ConvertedValue, ConversionError> {
        self.budget.spend(size_of::<Value>())?;
        if let Some(number) = js.as_number() {
            return match original.filter(|o| number_seen(o).is_some_and(|n| same_number(n, number))) {
                Some(original) => kept(original),
                None => fresh(number_value(number)),
            };
        }
        if let Some(truth) = js.as_bool() {
            return match original {
                Some(Value::Bool(was)) if *was == truth => kept(&Value::Bool(truth)),
                _ => fresh(Value::Bool(truth)),
            };
        }
        if js.is_nullish() {
            return match original {
                Some(Value::Null) => kept(&Value::Null),
                _ => fresh(Value::Null),
            };
        }
        if js.is_string() {
            let budget = &mut *self.budget;
            return js.with_text(|text| {
                budget.spend(text.len())?;
                match original.filter(|o| text_form(o).is_some_and(|was| was == text)) {
                    Some(original) => kept(original),
                    None => fresh(Value::Text(Text::new(text))),
                }
            })?;
        }
        if js.is_object() {
            return self.object_like(js, original);
        }
        if is_big_int(js) {
            return fresh(big_int(&js.text()?));
        }
        Err(ConversionError::Bad("a symbol has no data form"))
    }

    fn object_like(&mut self, js: &Val, original: Option<&Value>) -> Result<ConvertedValue, ConversionError> {
        if js.is_function() {
            return Err(ConversionError::Bad("a function has no data form"));
        }
        if js.is_date() {
            let text = date_text(js)?;
            return match original.filter(|o| text_form(o).is_some_and(|was| was == text)) {
                Some(original) => kept(original),
                None => fresh(Value::Text(text.into())),
            };
        }
        if let Some(inner) = unboxed(js)? {
            return self.value(&inner, original);
        }
        let address = js.address();
        if self.ancestors.contains(&address) {
            return Err(ConversionError::Bad("an object contains itself"));
        }
        if self.ancestors.len() >= DEPTH_MAX {
            return Err(ConversionError::Bad(
                "arrays and objects are nested deeper than 128 levels",
            ));
        }
        self.ancestors.push(address);
        let plain = original.and_then(plain_form);
        let result = if js.is_array() || js.is_typed_array() {
            self.array(js, plain.as_ref().or(original))
        } else if js.is_collection() {
            let list = super::runtime::list_of(js)?;
            self.array(&list, None)
        } else {
            self.object(js, plain.as_ref().or(original))
        };
        self.ancestors.pop();
        match (result?, plain, original) {
            (ConvertedValue { same: true, .. }, Some(_), Some(original)) => kept(original),
            (converted, ..) => Ok(converted),
        }
    }

    fn array(&mut self, js: &Val, original: Option<&Value>) -> Result<ConvertedValue, ConversionError> {
        let was = match original {
            Some(Value::Array(values)) => Some(values),
            _ => None,
        };
        let length = usize::try_from(js.length()?).unwrap_or_default();
        // Refuses lengths that no budget covers before any work is done: `a = []; a.length = 4e9`.
        if length > self.budget.bytes / size_of::<Value>() {
            return Err(ConversionError::TooLarge);
        }
        let mut values = Vec::with_capacity(length.min(65_536));
        let mut same = was.is_some_and(|was| was.len() == length);
        for i in 0..length {
            let element = js.get_index(i as u32)?;
            let converted = self.value(&element, was.and_then(|was| was.get(i)))?;
            same &= converted.same;
            values.push(converted.value);
        }
        match was {
            Some(was) if same => kept(&Value::Array(was.clone())),
            _ => fresh(values.into()),
        }
    }

    fn object(&mut self, js: &Val, original: Option<&Value>) -> Result<ConvertedValue, ConversionError> {
        let was = match original {
            Some(Value::Object(object)) => Some(object),
            _ => None,
        };
        let mut members = was.map(|was| MemberCursor::new(was));
        let names = js.keys()?;
        let mut same = was.is_some_and(|was| was.len() == names.atoms().len());
        let mut object = Object::with_capacity(names.atoms().len().min(65_536));
        for atom in names.atoms() {
            let name = atom_text(js, atom)?;
            self.budget.spend(name.len() + size_of::<Text>())?;
            let member = js.get(atom)?;
            let before = members.as_mut().and_then(|members| members.find(&name));
            let converted = self.value(&member, before)?;
            same &= converted.same;
            object.push_new(name, converted.value);
        }
        match was {
            Some(was) if same => kept(&Value::Object(was.clone())),
            _ => fresh(object.into()),
        }
    }
}

/// Finds the original's members in the order in which scripts list them, which is nearly always the original's own.
struct MemberCursor<'a> {
    object: &'a Object,
    in_order: Box<dyn Iterator<Item = (&'a Text, &'a Value)> + 'a>,
    /// For a large object in another order.
    index: Option<HashMap<&'a str, &'a Value>>,
}

impl<'a> MemberCursor<'a> {
    fn new(object: &'a Object) -> MemberCursor<'a> {
        MemberCursor {
            object,
            in_order: Box::new(object.iter()),
            index: None,
        }
    }

    fn find(&mut self, name: &str) -> Option<&'a Value> {
        if self.index.is_none() {
            match self.in_order.next() {
                Some((next, value)) if next == name => return Some(value),
                _ if self.object.len() <= 16 => return self.object.get(name),
                _ => self.index = Some(self.object.iter().map(|(name, value)| (name.as_str(), value)).collect()),
            }
        }
        self.index.as_ref()?.get(name).copied()
    }
}

fn atom_text(js: &Val, atom: rquickjs::qjs::JSAtom) -> JsResult<Text> {
    // SAFETY: the atom is alive.
    let name = js.ctx.own(unsafe { rquickjs::qjs::JS_AtomToString(js.ctx.0, atom) })?;
    name.with_text(|text| Text::new(text))
}

fn number_value(number: f64) -> Value {
    exact_integer(number).map_or(Value::F64(number), Value::I64)
}

/// Equality as scripts see it, with NaN equal to itself and the two zeros distinct.
fn same_number(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

pub(super) fn is_big_int(js: &Val) -> bool {
    use rquickjs::qjs;
    matches!(js.tag(), qjs::JS_TAG_BIG_INT | qjs::JS_TAG_SHORT_BIG_INT)
}

fn big_int(digits: &str) -> Value {
    match (digits.parse::<i64>(), digits.parse::<u64>()) {
        (Ok(n), _) => Value::I64(n),
        (_, Ok(n)) => Value::U64(n),
        _ => Value::Decimal(digits.into()),
    }
}

/// ISO 8601, or `Invalid Date`.
pub(super) fn date_text(js: &Val) -> JsResult<String> {
    let time = js.invoke("getTime")?;
    match time.as_number() {
        Some(ms) if ms.is_finite() => js.invoke("toISOString")?.text(),
        _ => Ok("Invalid Date".to_owned()),
    }
}

/// The primitive in `new Number(1)`, `new String("a")`, `new Boolean(true)`.
pub(super) fn unboxed(js: &Val) -> JsResult<Option<Val>> {
    match super::runtime::is_boxed(js) {
        true => js.invoke("valueOf").map(|inner| (!inner.is_object()).then_some(inner)),
        false => Ok(None),
    }
}
