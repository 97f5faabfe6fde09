//! The heap of a native call: values, and objects that exist for the duration of the call.
//!
//! There are no prototypes here. An object's own properties are members; any other access bails out ([`Stop::Bail`]).
//! So the answer "undefined" is given only where no prototype has the name.

use std::borrow::Cow;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_record::{Message, MetaMap, Metadata, Payload, Text, Value, key};

use super::number;
use crate::view::{has_two_texts, is_small, number_seen, payload_value, plain_form, text_form};
use crate::{ComputedKey, Environment};

/// Why a call cannot continue here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// QuickJS has to run this call, for this reason. It has had no visible effect yet.
    Bail(&'static str),
    /// `?.` met null or undefined: the chain around it is undefined.
    Short,
}

pub(super) type EvalResult<T> = Result<T, Stop>;

/// Bails out to QuickJS.
pub(super) fn bail<T>(why: &'static str) -> EvalResult<T> {
    Err(Stop::Bail(why))
}

/// A JavaScript value. Objects are references into the [`Heap`].
#[derive(Clone, Debug)]
pub(super) enum Js {
    /// A variable whose declaration was not reached yet, or a payload that was not read yet.
    Empty,
    Undefined,
    Null,
    Bool(bool),
    Number(f64),
    Text(Text),
    Object(ObjectRef),
}

impl Js {
    pub fn is_nullish(&self) -> bool {
        matches!(self, Js::Undefined | Js::Null)
    }

    pub fn truth(&self) -> bool {
        match self {
            Js::Empty | Js::Undefined | Js::Null => false,
            Js::Bool(truth) => *truth,
            Js::Number(n) => !(*n == 0.0 || n.is_nan()),
            Js::Text(text) => !text.is_empty(),
            Js::Object(_) => true,
        }
    }
}

impl From<bool> for Js {
    fn from(truth: bool) -> Js {
        Js::Bool(truth)
    }
}

impl From<f64> for Js {
    fn from(number: f64) -> Js {
        Js::Number(number)
    }
}

impl From<Text> for Js {
    fn from(text: Text) -> Js {
        Js::Text(text)
    }
}

impl From<&str> for Js {
    fn from(text: &str) -> Js {
        Js::Text(Text::new(text))
    }
}

impl From<String> for Js {
    fn from(text: String) -> Js {
        Js::Text(text.into())
    }
}

/// A reference to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ObjectRef(u32);

impl ObjectRef {
    /// `msg`.
    pub const MSG: ObjectRef = ObjectRef(0);
    /// `msg.meta` at the start of the call.
    pub const META: ObjectRef = ObjectRef(1);
}

pub(super) type ObjectMembers = Vec<(Text, Js)>;

#[derive(Debug)]
pub(super) enum HeapObject {
    Plain(ObjectMembers),
    Array(Vec<Js>),
    /// The metadata of the message with the changes in the heap. There is one, [`ObjectRef::META`].
    Meta,
    /// Milliseconds since 1970.
    Date(f64),
    /// A regular expression, by its number in the script. Stateless: stateful ones are not run here.
    Regex(usize),
    /// Part of the payload or of the cache that was not opened yet.
    View(Value),
}

/// Bytes and elements that built-in functions may process in one call before it bails out to QuickJS, which checks the
/// time.
const WORK_MAX: usize = 32 << 20;
/// Bytes of objects and text that one call may create before it bails out to QuickJS, which enforces the configured
/// limits.
const BYTES_MAX: usize = 4 << 20;

pub(super) const PAYLOAD: &str = "payload";
pub(super) const META: &str = "meta";

/// The objects of a call, and its message.
pub(super) struct Heap<'m> {
    objects: Vec<HeapObject>,
    /// Empty lists of earlier calls, with their capacity.
    spare: Vec<ObjectMembers>,
    message: &'m Message,
    origin: &'m Metadata,
    computed: &'static [ComputedKey],
    /// Names of `msg.meta` that the script set or deleted, ordered by the first change.
    pub changes: SmallVec<[(Text, Option<Js>); 8]>,
    /// The payload as it was read, if it was.
    pub read: Option<Cow<'m, Value>>,
    /// The script set `msg.payload`, possibly to the same value.
    pub is_payload_set: bool,
    /// The call has read or done something that may differ for the next message with the same shared metadata.
    pub depends: bool,
    /// The resulting metadata map, if it is memoized.
    pub known: Option<Arc<MetaMap>>,
    bytes_left: usize,
    work_left: usize,
    /// Arrays with members beside their elements: the results of `match`.
    with_members: Vec<ObjectRef>,
}

/// Buffers that a [`Heap`] leaves for the next one.
#[derive(Default)]
pub(super) struct HeapBuffers {
    objects: Vec<HeapObject>,
    spare: Vec<ObjectMembers>,
}

/// Lists kept for the next call.
const SPARE_MAX: usize = 8;
/// Maximum capacity of the object list kept for the next call.
const ROOM_MAX: usize = 1024;

impl<'m> Heap<'m> {
    pub fn new(
        room: &mut HeapBuffers,
        message: &'m Message,
        origin: &'m Metadata,
        environment: &Environment,
    ) -> Heap<'m> {
        let mut heap = Heap {
            objects: std::mem::take(&mut room.objects),
            spare: std::mem::take(&mut room.spare),
            message,
            origin,
            computed: environment.computed,
            changes: SmallVec::new(),
            read: None,
            is_payload_set: false,
            depends: false,
            known: None,
            bytes_left: BYTES_MAX.min(environment.limits.memory / 4),
            work_left: WORK_MAX,
            with_members: Vec::new(),
        };
        let mut msg = heap.members();
        msg.push((Text::new_static(PAYLOAD), Js::Empty));
        msg.push((Text::new_static(META), Js::Object(ObjectRef::META)));
        heap.objects.push(HeapObject::Plain(msg));
        heap.objects.push(HeapObject::Meta);
        heap
    }

    pub fn message(&self) -> &'m Message {
        self.message
    }

    /// Returns the buffers.
    pub fn end(mut self, room: &mut HeapBuffers) {
        if self.objects.len() <= ROOM_MAX {
            for object in self.objects.drain(..) {
                if let HeapObject::Plain(mut members) = object
                    && self.spare.len() < SPARE_MAX
                    && members.capacity() <= 64
                {
                    members.clear();
                    self.spare.push(members);
                }
            }
            room.objects = self.objects;
        }
        room.spare = self.spare;
    }

    /// An empty list of members.
    pub fn members(&mut self) -> ObjectMembers {
        self.spare.pop().unwrap_or_default()
    }

    /// Counts memory that a call creates.
    pub fn spend(&mut self, bytes: usize) -> EvalResult<()> {
        match self.bytes_left.checked_sub(bytes) {
            Some(left) => {
                self.bytes_left = left;
                Ok(())
            }
            None => bail("it creates a lot of data"),
        }
    }

    /// Counts data that a call processes.
    pub fn work(&mut self, bytes: usize) -> EvalResult<()> {
        match self.work_left.checked_sub(bytes) {
            Some(left) => {
                self.work_left = left;
                Ok(())
            }
            None => bail("it runs for long"),
        }
    }

    pub fn add(&mut self, object: HeapObject) -> EvalResult<Js> {
        let parts = match &object {
            HeapObject::Plain(members) => members.len() * size_of::<(Text, Js)>(),
            HeapObject::Array(elements) => elements.len() * size_of::<Js>(),
            _ => 0,
        };
        self.spend(size_of::<HeapObject>() + parts)?;
        let place = ObjectRef(self.objects.len() as u32);
        self.objects.push(object);
        Ok(Js::Object(place))
    }

    pub fn add_text(&mut self, text: impl Into<Text>) -> EvalResult<Js> {
        let text = text.into();
        self.spend(text.len())?;
        Ok(Js::Text(text))
    }

    pub fn add_array(&mut self, elements: Vec<Js>) -> EvalResult<Js> {
        self.add(HeapObject::Array(elements))
    }

    /// An array with members that are not created here.
    pub fn add_match(&mut self, elements: Vec<Js>) -> EvalResult<Js> {
        let array = self.add_array(elements)?;
        if let Js::Object(place) = array {
            self.with_members.push(place);
        }
        Ok(array)
    }

    fn has_no_more(&self, place: ObjectRef) -> EvalResult<()> {
        match self.with_members.contains(&place) {
            true => bail("the members of a match result"),
            false => Ok(()),
        }
    }

    /// A typed value as scripts see it.
    pub fn add_value(&mut self, value: &Value) -> EvalResult<Js> {
        Ok(match value {
            Value::Null => Js::Null,
            Value::Bool(truth) => Js::Bool(*truth),
            Value::Array(_) | Value::Object(_) | Value::Guid(_) | Value::Structured(_) => {
                return self.add(HeapObject::View(value.clone()));
            }
            Value::Text(text) | Value::Xml(text) | Value::NodeId(text) => Js::Text(text.clone()),
            other => match (number_seen(other), text_form(other)) {
                (Some(number), _) => Js::Number(number),
                (None, Some(text)) => Js::Text(text.into()),
                (None, None) => Js::Null,
            },
        })
    }

    /// An object; a view is opened first.
    pub fn object(&mut self, place: ObjectRef) -> EvalResult<&mut HeapObject> {
        if let Some(HeapObject::View(value)) = self.objects.get(place.0 as usize) {
            let value = value.clone();
            let opened = self.opened(&value)?;
            if let Some(object) = self.objects.get_mut(place.0 as usize) {
                *object = opened;
            }
        }
        match self.objects.get_mut(place.0 as usize) {
            Some(object) => Ok(object),
            None => bail("an object is missing"),
        }
    }

    fn opened(&mut self, value: &Value) -> EvalResult<HeapObject> {
        Ok(match value {
            Value::Array(values) => {
                self.spend(values.len() * size_of::<Js>())?;
                let elements: EvalResult<Vec<Js>> = values.iter().map(|value| self.add_value(value)).collect();
                HeapObject::Array(elements?)
            }
            Value::Object(object) => {
                if object.len() > MEMBERS_MAX {
                    return bail("an object of many members");
                }
                self.spend(object.len() * size_of::<(Text, Js)>())?;
                let mut members = self.members();
                for (name, value) in object.iter() {
                    members.push((name.clone(), self.add_value(value)?));
                }
                HeapObject::Plain(members)
            }
            other => match plain_form(other) {
                Some(plain @ (Value::Array(_) | Value::Object(_))) => self.opened(&plain)?,
                _ => return bail("a value has no plain form"),
            },
        })
    }

    /// An object without opening it; a [`HeapObject::View`] is still unopened.
    pub fn seen(&self, place: ObjectRef) -> Option<&HeapObject> {
        self.objects.get(place.0 as usize)
    }

    pub fn elements(&mut self, place: ObjectRef) -> EvalResult<Option<&mut Vec<Js>>> {
        Ok(match self.object(place)? {
            HeapObject::Array(elements) => Some(elements),
            _ => None,
        })
    }

    pub fn is_array(&self, place: ObjectRef) -> bool {
        matches!(
            self.seen(place),
            Some(HeapObject::Array(_) | HeapObject::View(Value::Array(_)))
        )
    }

    /// Whether the object has its own member of that name.
    pub fn has_own(&mut self, place: ObjectRef, name: &str) -> EvalResult<bool> {
        self.has_no_more(place)?;
        if place == ObjectRef::META && matches!(self.seen(place), Some(HeapObject::Meta)) {
            return self.meta_has(name);
        }
        Ok(match self.object(place)? {
            HeapObject::Plain(members) => members.iter().any(|(n, _)| n == name),
            HeapObject::Array(elements) => match array_index(name) {
                Some(index) => index < elements.len(),
                None => name == "length",
            },
            _ => return bail("a membership test of an object without members of its own"),
        })
    }

    /// `object.name`.
    pub fn get(&mut self, place: ObjectRef, name: &str) -> EvalResult<Js> {
        if place == ObjectRef::META {
            return self.meta_get(name);
        }
        let found = match self.object(place)? {
            HeapObject::Plain(members) => match members.iter().find(|(n, _)| n == name) {
                Some((_, Js::Empty)) => return self.payload(),
                Some((_, value)) => {
                    let value = value.clone();
                    // A value that the script set depends on nothing more than its source.
                    return Ok(value);
                }
                None => None,
            },
            HeapObject::Array(elements) => match array_index(name) {
                Some(index) => elements.get(index).cloned(),
                None if name == "length" => Some(Js::Number(elements.len() as f64)),
                None => return bail("a method as a value"),
            },
            _ => return bail("a member of an object without members of its own"),
        };
        match found {
            Some(value) => Ok(value),
            None if is_inherited(name) => bail("a member that every object has"),
            None => Ok(Js::Undefined),
        }
    }

    /// `object.name = value`.
    pub fn set(&mut self, place: ObjectRef, name: &Text, value: Js) -> EvalResult<()> {
        if name == "__proto__" {
            return bail("__proto__");
        }
        if place == ObjectRef::META {
            return self.touch(name, Some(value));
        }
        if place == ObjectRef::MSG && name == PAYLOAD {
            // Whether that is a change depends on the old payload.
            self.depends = true;
            self.is_payload_set = true;
        }
        self.spend(size_of::<(Text, Js)>())?;
        match self.object(place)? {
            HeapObject::Plain(members) => {
                let is_full = members.len() >= MEMBERS_MAX;
                match members.iter_mut().find(|(n, _)| n == name) {
                    Some(member) => member.1 = value,
                    None if is_full => return bail("an object of many members"),
                    None => members.push((name.clone(), value)),
                }
                Ok(())
            }
            HeapObject::Array(elements) => match array_index(name) {
                Some(index) if index < elements.len() => {
                    if let Some(element) = elements.get_mut(index) {
                        *element = value;
                    }
                    Ok(())
                }
                Some(index) if index == elements.len() => {
                    elements.push(value);
                    Ok(())
                }
                _ => bail("an array with holes or members"),
            },
            _ => bail("a member of an object without members of its own"),
        }
    }

    /// `delete object.name`.
    pub fn delete(&mut self, place: ObjectRef, name: &Text) -> EvalResult<()> {
        if place == ObjectRef::META {
            return self.touch(name, None);
        }
        if place == ObjectRef::MSG && name == PAYLOAD {
            return bail("a message without payload");
        }
        match self.object(place)? {
            HeapObject::Plain(members) => {
                members.retain(|(n, _)| n != name);
                Ok(())
            }
            _ => bail("an array with holes"),
        }
    }

    /// The names that `Object.keys` lists.
    pub fn keys(&mut self, place: ObjectRef) -> EvalResult<Vec<Text>> {
        if place == ObjectRef::META {
            return self.meta_keys();
        }
        self.has_no_more(place)?;
        if place == ObjectRef::MSG {
            self.depends = true;
            if !self.is_plain_message() {
                return bail("msg as a whole, with a large payload");
            }
        }
        Ok(match self.object(place)? {
            HeapObject::Plain(members) => {
                let names = members.iter().map(|(name, _)| name.clone());
                in_order(names.collect())
            }
            HeapObject::Array(elements) => (0..elements.len()).map(|i| Text::from(i.to_string())).collect(),
            _ => return bail("the members of an object without members of its own"),
        })
    }

    /// Members with their values, in the order of [`Heap::keys`].
    pub fn entries(&mut self, place: ObjectRef) -> EvalResult<ObjectMembers> {
        let mut entries = Vec::new();
        for name in self.keys(place)? {
            let value = self.get(place, &name)?;
            entries.push((name, value));
        }
        self.spend(entries.len() * size_of::<(Text, Js)>())?;
        Ok(entries)
    }

    /// Whether the payload of this message is an ordinary member in QuickJS from the start.
    fn is_plain_message(&self) -> bool {
        matches!(&self.message.payload, Payload::Value(value) if is_small(value) && !has_two_texts(value))
    }

    /// The original value of a payload that the script set without reading it.
    pub fn typed_payload(&self) -> Option<Cow<'m, Value>> {
        match &self.message.payload {
            Payload::Value(value) if is_small(value) => Some(Cow::Borrowed(value)),
            _ => None,
        }
    }

    /// The message's own `msg.payload`, on its first read.
    fn payload(&mut self) -> EvalResult<Js> {
        self.depends = true;
        let value = payload_value(&self.message.payload);
        let js = self.add_value(&value)?;
        self.read = Some(value);
        if let Some(HeapObject::Plain(members)) = self.objects.first_mut()
            && let Some(member) = members.iter_mut().find(|(name, _)| name == PAYLOAD)
        {
            member.1 = js.clone();
        }
        Ok(js)
    }

    fn touch(&mut self, name: &Text, value: Option<Js>) -> EvalResult<()> {
        match self.changes.iter().position(|(n, _)| n == name) {
            // A deleted member that is set again is listed last.
            Some(at) if value.is_some() && matches!(self.changes.get(at), Some((_, None))) => {
                self.changes.remove(at);
                self.changes.push((name.clone(), value));
            }
            Some(at) => {
                if let Some(change) = self.changes.get_mut(at) {
                    change.1 = value;
                }
            }
            None if self.changes.len() >= MEMBERS_MAX => return bail("metadata of many keys"),
            None => self.changes.push((name.clone(), value)),
        }
        Ok(())
    }

    fn meta_get(&mut self, name: &str) -> EvalResult<Js> {
        if let Some((_, value)) = self.changes.iter().find(|(n, _)| n == name) {
            return match value {
                Some(value) => Ok(value.clone()),
                None if is_inherited(name) => bail("a member that every object has"),
                None => Ok(Js::Undefined),
            };
        }
        if let Some(computed) = self.computed.iter().find(|key| key.name == name) {
            self.depends = true;
            let text = (computed.compute)(self.origin);
            return self.add_text(text);
        }
        self.depends |= key::STAMPS.contains(&name);
        match self.message.meta.text(name) {
            Some(text) => Ok(Js::Text(text)),
            None if is_inherited(name) => bail("a member that every object has"),
            None => Ok(Js::Undefined),
        }
    }

    fn meta_has(&mut self, name: &str) -> EvalResult<bool> {
        if let Some((_, value)) = self.changes.iter().find(|(n, _)| n == name) {
            return Ok(value.is_some());
        }
        if self.computed.iter().any(|key| key.name == name) {
            self.depends = true;
            return Ok(true);
        }
        self.depends |= key::STAMPS.contains(&name);
        Ok(self.message.meta.contains(name))
    }

    /// In QuickJS's order: first names that the script wrote, then existing ones, then computed ones.
    fn meta_keys(&mut self) -> EvalResult<Vec<Text>> {
        // Whether the stamps are among them depends on the message.
        self.depends = true;
        let meta = &self.message.meta;
        let touched = |name: &str| self.changes.iter().any(|(n, _)| n == name);
        let computed = |name: &str| self.computed.iter().any(|key| key.name == name);
        let written = self.changes.iter().filter(|(_, value)| value.is_some());
        let mut keys: Vec<Text> = written.map(|(name, _)| name.clone()).collect();
        let found = meta.iter().map(|(name, _)| name);
        let found = found.filter(|name| !touched(name) && !computed(name));
        keys.extend(found.map(Text::new));
        let computed = self.computed.iter().map(|key| key.name);
        keys.extend(computed.filter(|name| !touched(name)).map(Text::new_static));
        if keys.iter().any(|name| array_index(name).is_some()) {
            return bail("metadata keys that are numbers");
        }
        self.spend(keys.len() * size_of::<Text>())?;
        Ok(keys)
    }
}

/// Maximum members of one object, because finding them is a scan.
pub(super) const MEMBERS_MAX: usize = 256;

/// Names in JavaScript's listing order: indexes first, by number.
fn in_order(names: Vec<Text>) -> Vec<Text> {
    if !names.iter().any(|name| array_index(name).is_some()) {
        return names;
    }
    let (mut indexes, others): (Vec<Text>, Vec<Text>) = names.into_iter().partition(|name| array_index(name).is_some());
    indexes.sort_by_key(|name| array_index(name));
    indexes.extend(others);
    indexes
}

/// The array index that the name represents, if any.
pub(super) fn array_index(name: &str) -> Option<usize> {
    let digits = !name.is_empty() && name.len() <= 10 && name.bytes().all(|b| b.is_ascii_digit());
    if !digits || (name.len() > 1 && name.starts_with('0')) {
        return None;
    }
    let index: u64 = name.parse().ok()?;
    (index < u64::from(u32::MAX)).then_some(index as usize)
}

/// Names that every object inherits from its prototype.
pub(super) fn is_inherited(name: &str) -> bool {
    matches!(
        name,
        "constructor"
            | "hasOwnProperty"
            | "isPrototypeOf"
            | "propertyIsEnumerable"
            | "toLocaleString"
            | "toString"
            | "valueOf"
            | "__proto__"
            | "__defineGetter__"
            | "__defineSetter__"
            | "__lookupGetter__"
            | "__lookupSetter__"
    )
}

/// A value as a property name.
pub(super) fn property_name(heap: &mut Heap<'_>, key: &Js) -> EvalResult<Text> {
    match key {
        Js::Text(text) => Ok(text.clone()),
        Js::Number(number) => Ok(number::text(*number)),
        other => super::coerce::text(heap, other),
    }
}
