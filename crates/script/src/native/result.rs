//! Converts the result of a native call to changes of its message, in the same way as [`crate::quickjs`].

use std::sync::Arc;

use thalweg_record::{Object as Record, Text, Value};

use super::coerce;
use super::date;
use super::heap::{EvalResult, Heap, HeapObject, Js, META, ObjectRef, PAYLOAD, array_index, bail};
use super::meta_map_cache::MetaMapCache;
use crate::view::{exact_integer, number_seen, plain_form, text_form};
use crate::{ComputedKey, Environment, MetaReply, PayloadReply, Reply, ScriptOutput, UndefinedMeta};

/// Texts recently written to metadata keys, so that messages with the same text share it.
#[derive(Default)]
pub(super) struct TextInterner {
    last: Vec<(Text, Text)>,
}

const WRITTEN_MAX: usize = 32;
/// Texts up to this length are stored inline.
const INLINE: usize = 23;

impl TextInterner {
    fn share(&mut self, name: &Text, text: Text) -> Text {
        if text.len() <= INLINE {
            return text;
        }
        match self.last.iter_mut().find(|(n, _)| n == name) {
            Some((_, last)) => {
                if *last != text {
                    *last = text;
                }
                last.clone()
            }
            None => {
                if self.last.len() < WRITTEN_MAX {
                    self.last.push((name.clone(), text.clone()));
                }
                text
            }
        }
    }
}

/// Reads the return value of a body.
pub(super) fn returned(
    heap: &mut Heap<'_>,
    result: &Js,
    written: &mut TextInterner,
    made: &mut MetaMapCache,
    environment: &Environment,
) -> EvalResult<ScriptOutput> {
    let place = match result {
        Js::Undefined | Js::Null => return Ok(ScriptOutput::Nothing),
        Js::Object(place) => *place,
        _ => return bail("a result that is not a message"),
    };
    let mut reader = NativeResultReader {
        heap,
        written,
        made,
        computed: environment.computed,
        undefined_meta: environment.undefined_meta,
    };
    if !reader.heap.is_array(place) {
        return reader.reply(place).map(ScriptOutput::One);
    }
    let elements = reader.heap.elements(place)?.cloned().unwrap_or_default();
    if elements.len() > environment.limits.results {
        return bail("many messages");
    }
    let mut replies = Vec::with_capacity(elements.len());
    for element in elements {
        match element {
            Js::Undefined | Js::Null => {}
            Js::Object(place) if !reader.heap.is_array(place) => replies.push(reader.reply(place)?),
            _ => return bail("a result that is not a message"),
        }
    }
    Ok(match replies.len() {
        0 => ScriptOutput::Nothing,
        _ => ScriptOutput::Many(replies),
    })
}

struct NativeResultReader<'r, 'm> {
    heap: &'r mut Heap<'m>,
    written: &'r mut TextInterner,
    made: &'r mut MetaMapCache,
    computed: &'static [ComputedKey],
    undefined_meta: UndefinedMeta,
}

impl NativeResultReader<'_, '_> {
    fn reply(&mut self, place: ObjectRef) -> EvalResult<Reply> {
        Ok(Reply {
            payload: payload(self.heap, place)?,
            meta: self.meta(place)?,
        })
    }

    fn meta(&mut self, place: ObjectRef) -> EvalResult<MetaReply> {
        let none = MetaReply::Replaced(Vec::new());
        let place = match member(self.heap, place, META)? {
            Some(Js::Object(place)) if !self.heap.is_array(place) => place,
            _ => return Ok(none),
        };
        if place == ObjectRef::META {
            if let Some(known) = self.heap.known.take() {
                return Ok(MetaReply::Over(known));
            }
            let message = self.heap.message();
            if let Some(map) = self.made.get(message, &self.heap.changes) {
                return Ok(MetaReply::Over(map));
            }
            let mut changes = Vec::with_capacity(self.heap.changes.len());
            // The changes stay in place, because a written value may contain the metadata itself.
            let mut i = 0;
            while let Some((name, value)) = self.heap.changes.get(i).cloned() {
                if let Some(entry) = self.entry(&name, value.as_ref())? {
                    changes.push(entry);
                }
                i += 1;
            }
            self.made.add(message, &self.heap.changes, &changes);
            return Ok(MetaReply::Changes(changes));
        }
        if matches!(self.heap.seen(place), Some(HeapObject::Date(_) | HeapObject::Regex(_))) {
            return bail("metadata that is not a plain object");
        }
        let members = self.heap.entries(place)?;
        let mut entries = Vec::with_capacity(members.len());
        for (name, value) in members {
            if let Some(entry) = self.entry(&name, Some(&value))? {
                entries.push(entry);
            }
        }
        Ok(MetaReply::Replaced(entries))
    }

    fn entry(&mut self, name: &Text, value: Option<&Js>) -> EvalResult<Option<(Text, Text)>> {
        if self.computed.iter().any(|key| key.name == name) {
            return Ok(None);
        }
        let text = match value {
            None => Text::default(),
            Some(Js::Undefined) if self.undefined_meta == UndefinedMeta::Absent => Text::default(),
            Some(Js::Text(text)) => {
                self.heap.spend(text.len())?;
                self.written.share(name, text.clone())
            }
            Some(value) => {
                let mut out = String::new();
                coerce::meta_text(self.heap, value, &mut out, 0)?;
                self.heap.spend(out.len())?;
                self.written.share(name, out.into())
            }
        };
        Ok(Some((name.clone(), text)))
    }
}

/// A member of a message as it is, without reading the payload.
fn member(heap: &mut Heap<'_>, place: ObjectRef, name: &str) -> EvalResult<Option<Js>> {
    if place == ObjectRef::META {
        return match heap.has_own(place, name)? {
            true => heap.get(place, name).map(Some),
            false => Ok(None),
        };
    }
    match heap.object(place)? {
        HeapObject::Plain(members) => {
            let found = members.iter().find(|(n, _)| n == name);
            Ok(found.map(|(_, value)| value.clone()))
        }
        _ => bail("a result that is not a message"),
    }
}

/// The payload part of a returned message.
pub(super) fn payload(heap: &mut Heap<'_>, place: ObjectRef) -> EvalResult<PayloadReply> {
    let payload = match member(heap, place, PAYLOAD)? {
        None => return Ok(PayloadReply::Missing),
        Some(Js::Empty) => return Ok(PayloadReply::Same),
        Some(payload) => payload,
    };
    // Whether it differs from the message's payload depends on that payload.
    heap.depends = true;
    // A payload that was set without reading the old one may still be equal.
    let original = match heap.read.take() {
        Some(read) => Some(read),
        None => heap.typed_payload(),
    };
    let (value, same) = value_of(heap, &payload, original.as_deref())?;
    heap.read = original;
    let is_set = place != ObjectRef::MSG || heap.is_payload_set;
    Ok(match same {
        true => PayloadReply::kept(&value, is_set),
        false => PayloadReply::New(value),
    })
}

/// Like `payload`, for a number set in place of a number; `seen` is the old number as scripts see it.
pub(super) fn number_payload(original: &Value, seen: f64, number: f64) -> PayloadReply {
    match is_same_number(seen, number) {
        true => PayloadReply::kept(original, true),
        false => PayloadReply::New(number_value(number)),
    }
}

fn is_same_number(a: f64, b: f64) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn number_value(number: f64) -> Value {
    exact_integer(number).map_or(Value::F64(number), Value::I64)
}

/// The typed value of a script's result, and whether all of it is the original.
pub(super) fn value_of(heap: &mut Heap<'_>, js: &Js, original: Option<&Value>) -> EvalResult<(Value, bool)> {
    convert(heap, js, original, 0)
}

const DEPTH_MAX: usize = 64;

fn convert(heap: &mut Heap<'_>, js: &Js, original: Option<&Value>, depth: usize) -> EvalResult<(Value, bool)> {
    if depth > DEPTH_MAX {
        return bail("deeply nested data");
    }
    let fresh = |value: Value| Ok((value, false));
    let kept = |value: &Value| Ok((value.clone(), true));
    match js {
        Js::Empty => bail("a variable before its declaration"),
        Js::Undefined | Js::Null => Ok((Value::Null, matches!(original, Some(Value::Null)))),
        Js::Bool(truth) => Ok((Value::Bool(*truth), original == Some(&Value::Bool(*truth)))),
        Js::Number(n) => match original.filter(|o| number_seen(o).is_some_and(|was| is_same_number(was, *n))) {
            Some(original) => kept(original),
            None => fresh(number_value(*n)),
        },
        Js::Text(text) => {
            heap.spend(text.len())?;
            match original.filter(|o| text_form(o).is_some_and(|was| was == text.as_str())) {
                Some(original) => kept(original),
                None => fresh(Value::Text(text.clone())),
            }
        }
        Js::Object(place) => {
            // It was never opened, so it is unchanged.
            if let Some(HeapObject::View(value)) = heap.seen(*place) {
                let value = value.clone();
                return viewed(heap, value, original, depth);
            }
            let plain = original.and_then(plain_form);
            let converted = object(heap, *place, plain.as_ref().or(original), depth)?;
            match (converted, plain, original) {
                ((_, true), Some(_), Some(original)) => kept(original),
                (converted, ..) => Ok(converted),
            }
        }
    }
}

/// A value that was never opened, compared with the original in its place.
fn viewed(heap: &mut Heap<'_>, value: Value, original: Option<&Value>, depth: usize) -> EvalResult<(Value, bool)> {
    match (&value, original) {
        (Value::Array(a), Some(Value::Array(b))) if Arc::ptr_eq(a, b) => return Ok((value, true)),
        (Value::Object(a), Some(Value::Object(b))) if Arc::ptr_eq(a, b) => return Ok((value, true)),
        // The two may share parts.
        (_, Some(Value::Array(_) | Value::Object(_) | Value::Guid(_) | Value::Structured(_))) => {
            return bail("data in the place of other data");
        }
        _ => {}
    }
    as_made_anew(heap, &value, depth)?;
    Ok((value, false))
}

/// Makes sure that a value equals what a script would have created.
fn as_made_anew(heap: &mut Heap<'_>, value: &Value, depth: usize) -> EvalResult<()> {
    if depth > DEPTH_MAX {
        return bail("deeply nested data");
    }
    heap.spend(size_of::<Value>())?;
    let is_same = match value {
        Value::Array(values) => return values.iter().try_for_each(|value| as_made_anew(heap, value, depth + 1)),
        Value::Object(object) => {
            if object.iter().any(|(name, _)| array_index(name).is_some()) {
                return bail("members that are listed in another order");
            }
            let mut values = object.iter().map(|(_, value)| value);
            return values.try_for_each(|value| as_made_anew(heap, value, depth + 1));
        }
        Value::Text(text) => {
            heap.spend(text.len())?;
            true
        }
        Value::Null | Value::Bool(_) => true,
        Value::I64(n) => exact_integer(*n as f64) == Some(*n),
        Value::F64(n) => exact_integer(*n).is_none(),
        _ => false,
    };
    match is_same {
        true => Ok(()),
        false => bail("data of a special type in another place"),
    }
}

fn object(heap: &mut Heap<'_>, place: ObjectRef, original: Option<&Value>, depth: usize) -> EvalResult<(Value, bool)> {
    if let Some(HeapObject::Date(ms)) = heap.seen(place) {
        let text = date::iso(*ms)?;
        return match original.filter(|o| text_form(o).is_some_and(|was| was == text)) {
            Some(original) => Ok((original.clone(), true)),
            None => Ok((Value::Text(text.into()), false)),
        };
    }
    if heap.is_array(place) {
        let elements = heap.elements(place)?.cloned().unwrap_or_default();
        heap.spend(elements.len() * size_of::<Value>())?;
        let was = match original {
            Some(Value::Array(values)) => Some(values),
            _ => None,
        };
        let mut same = was.is_some_and(|was| was.len() == elements.len());
        let mut values = Vec::with_capacity(elements.len());
        for (i, element) in elements.iter().enumerate() {
            let (value, is_same) = convert(heap, element, was.and_then(|was| was.get(i)), depth + 1)?;
            same &= is_same;
            values.push(value);
        }
        return Ok(match was {
            Some(was) if same => (Value::Array(was.clone()), true),
            _ => (Value::Array(values.into()), false),
        });
    }
    if matches!(heap.seen(place), Some(HeapObject::Regex(_))) {
        return bail("a regular expression as data");
    }
    let members = heap.entries(place)?;
    let was = match original {
        Some(Value::Object(object)) => Some(object),
        _ => None,
    };
    let mut same = was.is_some_and(|was| was.len() == members.len());
    let mut record = Record::with_capacity(members.len());
    for (name, member) in members {
        let before = was.and_then(|was| was.get(&name));
        let (value, is_same) = convert(heap, &member, before, depth + 1)?;
        same &= is_same;
        record.push_new(name, value);
    }
    Ok(match was {
        Some(was) if same => (Value::Object(was.clone()), true),
        _ => (Value::from(record), false),
    })
}
