//! Typed values: every OPC UA built-in type without loss, and what JSON and scripts can express.

use std::sync::Arc;

use crate::{Text, Ticks};

/// One value. At most 32 bytes; cloning never copies text, bytes, arrays or objects.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    I8(i8),
    U8(u8),
    I16(i16),
    U16(u16),
    I32(i32),
    U32(u32),
    I64(i64),
    U64(u64),
    F32(f32),
    F64(f64),
    /// A number in its written form, if no type above prints the same text (`1.50`, 30 digits).
    Decimal(Text),
    Text(Text),
    Bytes(Arc<[u8]>),
    Time(Ticks),
    Guid(Guid),
    /// OPC UA status code as a value.
    Status(u32),
    /// OPC UA XmlElement.
    Xml(Text),
    /// OPC UA NodeId in its text form.
    NodeId(Text),
    Structured(Arc<Structured>),
    Array(Arc<[Value]>),
    Object(Arc<Object>),
}

/// A GUID by its OPC UA fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guid {
    pub data1: u32,
    pub data2: u16,
    pub data3: u16,
    pub data4: [u8; 8],
}

/// OPC UA built-in types that are records; each has one fixed JSON form (see [`crate::json`]).
#[derive(Clone, Debug, PartialEq)]
pub enum Structured {
    ExpandedNodeId {
        node_id: Text,
        namespace_uri: Text,
        server_index: u32,
    },
    QualifiedName {
        namespace_index: u16,
        name: Text,
    },
    LocalizedText {
        locale: Option<Text>,
        text: Option<Text>,
    },
    /// An ExtensionObject whose type the server does not describe: its encoding id and body bytes.
    Extension {
        type_id: Text,
        body: Arc<[u8]>,
    },
}

impl Structured {
    /// Bytes of its texts and its body.
    pub fn data_bytes(&self) -> usize {
        match self {
            Structured::ExpandedNodeId {
                node_id, namespace_uri, ..
            } => node_id.len() + namespace_uri.len(),
            Structured::QualifiedName { name, .. } => name.len(),
            Structured::LocalizedText { locale, text } => {
                let len = |text: &Option<Text>| text.as_ref().map_or(0, |text| text.len());
                len(locale) + len(text)
            }
            Structured::Extension { type_id, body } => type_id.len() + body.len(),
        }
    }
}

/// A JSON object: members in their original order, names unique.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Object {
    members: Vec<(Text, Value)>,
}

impl Object {
    pub fn new() -> Object {
        Object::default()
    }

    pub fn with_capacity(members: usize) -> Object {
        Object {
            members: Vec::with_capacity(members),
        }
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub fn get(&self, name: &str) -> Option<&Value> {
        self.members.iter().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Value> {
        self.members.iter_mut().find(|(n, _)| n == name).map(|(_, v)| v)
    }

    /// Sets a member; an existing one keeps its position.
    pub fn set(&mut self, name: impl Into<Text>, value: Value) {
        let name = name.into();
        match self.get_mut(&name) {
            Some(old) => *old = value,
            None => self.members.push((name, value)),
        }
    }

    /// Adds a member that is known to be new. Constant time, where [`Object::set`] searches.
    pub fn push_new(&mut self, name: impl Into<Text>, value: Value) {
        self.members.push((name.into(), value));
    }

    pub fn remove(&mut self, name: &str) -> Option<Value> {
        let at = self.members.iter().position(|(n, _)| n == name)?;
        Some(self.members.remove(at).1)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&Text, &Value)> {
        self.members.iter().map(|(n, v)| (n, v))
    }
}

impl FromIterator<(Text, Value)> for Object {
    /// Of duplicate names the last wins, in the position of the first.
    fn from_iter<I: IntoIterator<Item = (Text, Value)>>(members: I) -> Object {
        let members = members.into_iter();
        let mut object = Object::with_capacity(members.size_hint().0);
        let mut seen: std::collections::HashMap<Text, usize> = std::collections::HashMap::new();
        for (name, value) in members {
            // Small objects are searched, large ones indexed: a hostile object of 100,000 names stays linear.
            if object.len() < 16 {
                object.set(name, value);
                continue;
            }
            if seen.is_empty() {
                seen.extend(object.members.iter().enumerate().map(|(i, (n, _))| (n.clone(), i)));
            }
            match seen.get(&name).and_then(|&i| object.members.get_mut(i)) {
                Some(member) => member.1 = value,
                None => {
                    seen.insert(name.clone(), object.len());
                    object.members.push((name, value));
                }
            }
        }
        object
    }
}

impl Value {
    pub fn text(text: impl Into<Text>) -> Value {
        Value::Text(text.into())
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null)
    }

    /// The nearest double of a number; `None` for everything else.
    pub fn as_f64(&self) -> Option<f64> {
        Some(match self {
            Value::I8(n) => f64::from(*n),
            Value::U8(n) => f64::from(*n),
            Value::I16(n) => f64::from(*n),
            Value::U16(n) => f64::from(*n),
            Value::I32(n) => f64::from(*n),
            Value::U32(n) | Value::Status(n) => f64::from(*n),
            Value::I64(n) => *n as f64,
            Value::U64(n) => *n as f64,
            Value::F32(n) => f64::from(*n),
            Value::F64(n) => *n,
            Value::Decimal(text) => text.parse().ok()?,
            _ => return None,
        })
    }

    /// The exact integer of an integer type that fits; `None` for everything else, including floats.
    pub fn as_i64(&self) -> Option<i64> {
        Some(match self {
            Value::I8(n) => i64::from(*n),
            Value::U8(n) => i64::from(*n),
            Value::I16(n) => i64::from(*n),
            Value::U16(n) => i64::from(*n),
            Value::I32(n) => i64::from(*n),
            Value::U32(n) | Value::Status(n) => i64::from(*n),
            Value::I64(n) => *n,
            Value::U64(n) => i64::try_from(*n).ok()?,
            _ => return None,
        })
    }

    pub fn as_str(&self) -> Option<&str> {
        match self {
            Value::Text(text) | Value::Xml(text) | Value::NodeId(text) => Some(text),
            _ => None,
        }
    }

    pub fn is_number(&self) -> bool {
        use Value::*;
        matches!(
            self,
            I8(_)
                | U8(_)
                | I16(_)
                | U16(_)
                | I32(_)
                | U32(_)
                | I64(_)
                | U64(_)
                | F32(_)
                | F64(_)
                | Decimal(_)
                | Status(_)
        )
    }

    /// The name of the value's type as tables and messages show it (OPC UA's own names in lower case).
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::I8(_) => "sbyte",
            Value::U8(_) => "byte",
            Value::I16(_) => "int16",
            Value::U16(_) => "uint16",
            Value::I32(_) => "int32",
            Value::U32(_) => "uint32",
            Value::I64(_) => "int64",
            Value::U64(_) => "uint64",
            Value::F32(_) => "float",
            Value::F64(_) => "double",
            Value::Decimal(_) => "decimal",
            Value::Text(_) => "string",
            Value::Bytes(_) => "bytestring",
            Value::Time(_) => "datetime",
            Value::Guid(_) => "guid",
            Value::Status(_) => "statuscode",
            Value::Xml(_) => "xmlelement",
            Value::NodeId(_) => "nodeid",
            Value::Structured(s) => match **s {
                Structured::ExpandedNodeId { .. } => "expandednodeid",
                Structured::QualifiedName { .. } => "qualifiedname",
                Structured::LocalizedText { .. } => "localizedtext",
                Structured::Extension { .. } => "extensionobject",
            },
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        }
    }

    /// Heap bytes beyond the value itself, for memory limits.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Value::Decimal(t) | Value::Text(t) | Value::Xml(t) | Value::NodeId(t) if t.is_heap_allocated() => {
                t.len() + 16
            }
            Value::Bytes(b) => b.len() + 16,
            Value::Structured(s) => std::mem::size_of::<Structured>() + s.data_bytes(),
            Value::Array(values) => {
                16 + values
                    .iter()
                    .map(|v| v.heap_bytes() + size_of::<Value>())
                    .sum::<usize>()
            }
            Value::Object(object) => {
                48 + object
                    .iter()
                    .map(|(n, v)| n.len() + v.heap_bytes() + size_of::<(Text, Value)>())
                    .sum::<usize>()
            }
            _ => 0,
        }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Value {
        Value::I64(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Value {
        Value::F64(value)
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Value {
        Value::Text(value.into())
    }
}

impl From<Object> for Value {
    fn from(value: Object) -> Value {
        Value::Object(Arc::new(value))
    }
}

impl From<Vec<Value>> for Value {
    fn from(value: Vec<Value>) -> Value {
        Value::Array(value.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_small() {
        assert!(size_of::<Value>() <= 32, "{}", size_of::<Value>());
    }

    #[test]
    fn the_texts_of_structured_values_count_as_memory() {
        let long = || Text::from("x".repeat(10_000));
        for structured in [
            Structured::ExpandedNodeId {
                node_id: long(),
                namespace_uri: Text::from("urn:a"),
                server_index: 0,
            },
            Structured::ExpandedNodeId {
                node_id: Text::from("i=1"),
                namespace_uri: long(),
                server_index: 0,
            },
            Structured::QualifiedName {
                namespace_index: 0,
                name: long(),
            },
            Structured::LocalizedText {
                locale: None,
                text: Some(long()),
            },
            Structured::LocalizedText {
                locale: Some(long()),
                text: None,
            },
        ] {
            let value = Value::Structured(Arc::new(structured));
            assert!(value.heap_bytes() > 10_000, "{value:?}");
        }
    }

    #[test]
    fn of_duplicate_members_the_last_wins_in_the_first_place() {
        for extra in [0, 100] {
            let names = ["a", "b", "a"].map(Text::from).into_iter();
            let filler = (0..extra).map(|i| Text::from(format!("k{i}")));
            let all = names.chain(filler).chain([Text::from("k7")]);
            let object: Object = all.enumerate().map(|(i, n)| (n, Value::I64(i as i64))).collect();
            assert_eq!(object.iter().next(), Some((&Text::from("a"), &Value::I64(2))));
            assert_eq!(object.len(), 2 + extra.max(1));
            assert_eq!(object.get("k7"), Some(&Value::I64(3 + extra as i64)));
        }
    }
}
