//! Decodes OPC UA binary to typed values, straight from the bytes of a response.
//!
//! The library's decoder spends most of its time on calendar arithmetic for timestamps and builds a tree that would be
//! converted at once, so values have a decoder of their own. It never trusts a length: nothing is allocated for more
//! elements than there are bytes left, and all values of a response share a budget, since a few bytes can stand for
//! many nested values. Every OPC UA type has one form (see [`thalweg_record::Value`]).

use std::sync::Arc;

use opcua::types::{ByteString, Guid as UaGuid, Identifier, NodeId, ObjectId, UAString};
use thalweg_record::{Guid, Object, Structured, Text, Ticks, Value, ValueQuality};

use super::{ticks, types};
use crate::node_id::{self, NodeSpec};
use types::StructureRegistry;

/// Maximum number of elements of one array or matrix; a larger one is reported as too large.
const ELEMENTS_MAX: usize = crate::channel::ARRAY_ELEMENTS_MAX;

/// Maximum depth of variants in variants and structures in structures.
const DEPTH_MAX: u8 = 32;

/// Maximum size of a decoded response, in elements of up to 40 bytes: 320 MB. A response of maximum size that is full
/// of doubles has 16,777,216 of them; a read of several such arrays is split until each comes alone.
pub(crate) const ANSWER_ELEMENTS_MAX: usize = 8_000_000;

/// Cost of a value with an allocation of its own.
const ALLOCATION_COST: usize = 4;

/// The bytes do not follow the specification.
#[derive(Debug, thiserror::Error)]
#[error("a value cannot be decoded: {0}")]
pub(crate) struct DecodeError(pub &'static str);

/// Type numbers reserved for future types.
const RESERVED_FIRST: u8 = 26;
const RESERVED_LAST: u8 = 31;

const UNKNOWN_TYPE: DecodeError = DecodeError("a variant has an unknown type");

type Result<T> = std::result::Result<T, DecodeError>;

/// Content of a data value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ValueContent {
    /// Only a status or a time, or a null.
    Nothing,
    Value(Value),
    /// An array beyond the limit.
    TooLarge,
}

impl ValueContent {
    /// Returns the body of a structure if it has this standard encoding.
    pub fn body_of(&self, encoding: ObjectId) -> Option<&[u8]> {
        let ValueContent::Value(Value::Structured(structured)) = self else {
            return None;
        };
        let Structured::Extension { type_id, body } = &**structured else {
            return None;
        };
        let of_body = NodeSpec::parse(type_id).ok()?.indexed()?.clone();
        (of_body == encoding).then_some(body)
    }
}

/// A value with its status and timestamps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DataValue {
    pub content: ValueContent,
    pub stamps: ValueQuality,
    /// The value was a variant within the variant.
    pub wrapped: bool,
}

/// Reads forward over the bytes of one response.
pub(crate) struct Decoder<'a> {
    rest: &'a [u8],
    types: &'a StructureRegistry,
    depth: u8,
    too_large: bool,
    budget: usize,
    exhausted: bool,
}

macro_rules! numbers {
    ($($name:ident $type:ty;)+) => {
        $(#[inline]
        pub fn $name(&mut self) -> Result<$type> {
            Ok(<$type>::from_le_bytes(self.array()?))
        })+
    };
}

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8], types: &'a StructureRegistry) -> Decoder<'a> {
        Decoder {
            rest: bytes,
            types,
            depth: 0,
            too_large: false,
            budget: ANSWER_ELEMENTS_MAX,
            exhausted: false,
        }
    }

    /// Reads something within `body`, and returns whether all of it was read. The budget is shared.
    pub fn within<T>(&mut self, body: &'a [u8], read: impl FnOnce(&mut Self) -> Result<T>) -> Result<(T, bool)> {
        let outer = std::mem::replace(&mut self.rest, body);
        let result = read(self);
        let rest = std::mem::replace(&mut self.rest, outer);
        Ok((result?, rest.is_empty()))
    }

    /// Returns whether something was left out only because of the other contents of the response: with fewer values per
    /// response it would have been complete.
    pub fn is_exhausted(&self) -> bool {
        self.exhausted
    }

    fn spend(&mut self, elements: usize) -> bool {
        match self.budget.checked_sub(elements) {
            Some(left) => self.budget = left,
            None => {
                self.exhausted = true;
                return false;
            }
        }
        true
    }

    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    numbers! { u8 u8; i8 i8; u16 u16; i16 i16; u32 u32; i32 i32; u64 u64; i64 i64; f32 f32; f64 f64; }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(DecodeError("it ends too early"))?;
        self.rest = rest;
        Ok(*head)
    }

    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let (head, rest) = self
            .rest
            .split_at_checked(bytes)
            .ok_or(DecodeError("it ends too early"))?;
        self.rest = rest;
        Ok(head)
    }

    /// Reads the length of an array whose elements take at least `least` bytes each; `None` for a null array.
    pub fn length(&mut self, least: usize) -> Result<Option<usize>> {
        let length = self.i32()?;
        let Ok(length) = usize::try_from(length) else {
            return Ok(None);
        };
        if length.saturating_mul(least) > self.rest.len() {
            return Err(DecodeError("an array announces more elements than there are bytes"));
        }
        Ok(Some(length))
    }

    pub fn bytes(&mut self) -> Result<Option<&'a [u8]>> {
        match self.length(1)? {
            Some(length) => self.take(length).map(Some),
            None => Ok(None),
        }
    }

    /// Reads a text. Invalid UTF-8 is replaced, since one odd character must not cost the value.
    pub fn text(&mut self) -> Result<Option<Text>> {
        Ok(self.bytes()?.map(|bytes| match std::str::from_utf8(bytes) {
            Ok(text) => Text::new(text),
            Err(_) => Text::new(String::from_utf8_lossy(bytes)),
        }))
    }

    pub fn time(&mut self) -> Result<Ticks> {
        self.i64().map(ticks::from_opcua)
    }

    #[inline]
    pub fn data_value(&mut self) -> Result<DataValue> {
        const VALUE: u8 = 1;
        const STATUS: u8 = 2;
        const SOURCE: u8 = 4;
        const SERVER: u8 = 8;
        const SOURCE_PICOSECONDS: u8 = 16;
        const SERVER_PICOSECONDS: u8 = 32;
        let mask = self.u8()?;
        let wrapped = mask & VALUE != 0 && self.rest.first() == Some(&types::VARIANT);
        let content = if mask & VALUE != 0 {
            self.variant_content()?
        } else {
            ValueContent::Nothing
        };
        let mut stamps = ValueQuality::NONE;
        if mask & STATUS != 0 {
            stamps.status = self.u32()?;
        }
        if mask & SOURCE != 0 {
            stamps.source_time = self.time()?;
        }
        if mask & SOURCE_PICOSECONDS != 0 {
            self.u16()?;
        }
        if mask & SERVER != 0 {
            stamps.server_time = self.time()?;
        }
        if mask & SERVER_PICOSECONDS != 0 {
            self.u16()?;
        }
        Ok(DataValue {
            content,
            stamps,
            wrapped,
        })
    }

    fn variant_content(&mut self) -> Result<ValueContent> {
        let outer = std::mem::take(&mut self.too_large);
        let value = self.variant();
        let too_large = std::mem::replace(&mut self.too_large, outer);
        Ok(match value? {
            _ if too_large => ValueContent::TooLarge,
            Value::Null => ValueContent::Nothing,
            value => ValueContent::Value(value),
        })
    }

    /// Reads a variant as its inner value; null if it is empty.
    pub fn variant(&mut self) -> Result<Value> {
        const ARRAY: u8 = 0x80;
        const DIMENSIONS: u8 = 0x40;
        let encoding = self.u8()?;
        let kind = encoding & 0x3F;
        if encoding & ARRAY == 0 {
            return if kind == 0 { Ok(Value::Null) } else { self.scalar(kind) };
        }
        let elements = self.elements(kind)?;
        let dimensions = if encoding & DIMENSIONS != 0 {
            self.dimensions()?
        } else {
            Vec::new()
        };
        Ok(match elements {
            Elements::Null => Value::Null,
            Elements::Bytes(bytes) => nested_bytes(bytes, &dimensions),
            Elements::Values(values) => nested(values, &dimensions),
        })
    }

    fn dimensions(&mut self) -> Result<Vec<usize>> {
        let count = self.length(4)?.unwrap_or(0);
        (0..count)
            .map(|_| Ok(usize::try_from(self.i32()?).unwrap_or(0)))
            .collect()
    }

    fn elements(&mut self, kind: u8) -> Result<Elements<'a>> {
        if kind > RESERVED_LAST {
            return Err(UNKNOWN_TYPE);
        }
        if kind == types::BYTE {
            return Ok(match self.bytes()? {
                Some(bytes) if bytes.len() > ELEMENTS_MAX => {
                    self.too_large = true;
                    Elements::Null
                }
                Some(bytes) => Elements::Bytes(bytes),
                None => Elements::Null,
            });
        }
        let Some(length) = self.length(1)? else {
            return Ok(Elements::Null);
        };
        if length > ELEMENTS_MAX || !self.spend(length.saturating_mul(cost(kind))) {
            // Skips the elements, so that the values after them are not lost.
            for _ in 0..length {
                self.scalar(kind)?;
            }
            self.too_large = true;
            return Ok(Elements::Null);
        }
        let values: Result<Vec<Value>> = (0..length).map(|_| self.scalar(kind)).collect();
        values.map(Elements::Values)
    }

    /// Reads one value of a built-in type.
    #[inline]
    pub fn scalar(&mut self, kind: u8) -> Result<Value> {
        Ok(match kind {
            types::BOOLEAN => Value::Bool(self.u8()? != 0),
            types::SBYTE => Value::I8(self.i8()?),
            types::BYTE => Value::U8(self.u8()?),
            types::INT16 => Value::I16(self.i16()?),
            types::UINT16 => Value::U16(self.u16()?),
            types::INT32 => Value::I32(self.i32()?),
            types::UINT32 => Value::U32(self.u32()?),
            types::INT64 => Value::I64(self.i64()?),
            types::UINT64 => Value::U64(self.u64()?),
            types::FLOAT => Value::F32(self.f32()?),
            types::DOUBLE => Value::F64(self.f64()?),
            types::STRING => Value::Text(self.text()?.unwrap_or_default()),
            types::DATE_TIME => Value::Time(self.time()?),
            types::STATUS_CODE => Value::Status(self.u32()?),
            _ => self.rare_scalar(kind)?,
        })
    }

    fn rare_scalar(&mut self, kind: u8) -> Result<Value> {
        Ok(match kind {
            types::GUID => Value::Guid(self.guid()?),
            types::XML_ELEMENT => Value::Xml(self.text()?.unwrap_or_default()),
            types::NODE_ID => Value::NodeId(node_id::text(&self.node_id()?).into()),
            types::EXPANDED_NODE_ID => self.expanded_node_id()?,
            types::QUALIFIED_NAME => {
                let namespace_index = self.u16()?;
                structured(Structured::QualifiedName {
                    namespace_index,
                    name: self.text()?.unwrap_or_default(),
                })
            }
            types::LOCALIZED_TEXT => {
                let (locale, text) = self.localized_text()?;
                structured(Structured::LocalizedText { locale, text })
            }
            types::EXTENSION_OBJECT => self.deeper(Decoder::extension_object)?,
            types::DATA_VALUE => match self.deeper(Decoder::data_value)?.content {
                ValueContent::Value(value) => value,
                ValueContent::Nothing => Value::Null,
                ValueContent::TooLarge => {
                    self.too_large = true;
                    Value::Null
                }
            },
            types::VARIANT => self.deeper(Decoder::variant)?,
            types::DIAGNOSTIC_INFO => self.deeper(Decoder::diagnostic_info)?,
            // The specification requires the reserved numbers after the last type to be read as ByteString.
            types::BYTE_STRING | RESERVED_FIRST..=RESERVED_LAST => {
                Value::Bytes(self.bytes()?.unwrap_or_default().into())
            }
            _ => return Err(UNKNOWN_TYPE),
        })
    }

    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= DEPTH_MAX {
            return Err(DecodeError("values are nested too deeply"));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    pub fn guid(&mut self) -> Result<Guid> {
        Ok(Guid {
            data1: self.u32()?,
            data2: self.u16()?,
            data3: self.u16()?,
            data4: self.array()?,
        })
    }

    pub fn localized_text(&mut self) -> Result<(Option<Text>, Option<Text>)> {
        let mask = self.u8()?;
        let locale = if mask & 1 != 0 { self.text()? } else { None };
        let text = if mask & 2 != 0 { self.text()? } else { None };
        Ok((locale, text))
    }

    pub fn node_id(&mut self) -> Result<NodeId> {
        let encoding = self.u8()?;
        self.node_id_after(encoding)
    }

    fn node_id_after(&mut self, encoding: u8) -> Result<NodeId> {
        let (namespace, identifier) = match encoding {
            0 => (0, Identifier::Numeric(self.u8()?.into())),
            1 => (self.u8()?.into(), Identifier::Numeric(self.u16()?.into())),
            2 => (self.u16()?, Identifier::Numeric(self.u32()?)),
            3 => {
                let namespace = self.u16()?;
                let text = self.text()?.unwrap_or_default();
                (namespace, Identifier::String(UAString::from(text.as_str())))
            }
            4 => {
                let namespace = self.u16()?;
                (namespace, Identifier::Guid(UaGuid::from_bytes(self.array()?)))
            }
            5 => {
                let namespace = self.u16()?;
                let bytes = self.bytes()?.unwrap_or_default();
                (namespace, Identifier::ByteString(ByteString::from(bytes.to_vec())))
            }
            _ => return Err(DecodeError("a NodeId has an unknown encoding")),
        };
        Ok(NodeId { namespace, identifier })
    }

    fn expanded_node_id(&mut self) -> Result<Value> {
        const NAMESPACE_URI: u8 = 0x80;
        const SERVER_INDEX: u8 = 0x40;
        let encoding = self.u8()?;
        let id = self.node_id_after(encoding & 0x3F)?;
        let namespace_uri = if encoding & NAMESPACE_URI != 0 {
            self.text()?
        } else {
            None
        };
        let server_index = if encoding & SERVER_INDEX != 0 { self.u32()? } else { 0 };
        Ok(structured(Structured::ExpandedNodeId {
            node_id: node_id::text(&id).into(),
            namespace_uri: namespace_uri.unwrap_or_default(),
            server_index,
        }))
    }

    /// Reads a structure by its description if the registry has it, else as bytes. An unknown type is noted in the
    /// registry, so that the reader can learn it and decode again.
    fn extension_object(&mut self) -> Result<Value> {
        let type_id = self.node_id()?;
        let body = match self.extension_body()? {
            ExtensionBody::None if type_id.is_null() => return Ok(Value::Null),
            ExtensionBody::None => return Ok(extension(&type_id, &[])),
            // Descriptions apply to the binary form only.
            ExtensionBody::Xml(body) => return Ok(extension(&type_id, body)),
            ExtensionBody::Binary(body) => body,
        };
        let Some(structure) = self.types.structure_of_encoding(&type_id) else {
            return Ok(extension(&type_id, body));
        };
        let outer = std::mem::take(&mut self.too_large);
        let read = self.within(body, |inner| inner.structure(structure));
        let inner = std::mem::replace(&mut self.too_large, outer);
        match read {
            Ok((value, true)) => {
                self.too_large |= inner;
                Ok(value)
            }
            _ => Ok(extension(&type_id, body)),
        }
    }

    /// Reads what follows the type of an extension object.
    pub fn extension_body(&mut self) -> Result<ExtensionBody<'a>> {
        Ok(match self.u8()? {
            0 => ExtensionBody::None,
            1 => ExtensionBody::Binary(self.bytes()?.unwrap_or_default()),
            2 => ExtensionBody::Xml(self.bytes()?.unwrap_or_default()),
            _ => return Err(DecodeError("an extension object has an unknown encoding")),
        })
    }

    fn structure(&mut self, structure: &types::Structure) -> Result<Value> {
        // Structures of structures without fields take no bytes at all, however many there are.
        if !self.spend(ALLOCATION_COST + structure.fields.len()) {
            return Err(DecodeError("the answer holds too many values"));
        }
        self.deeper(|decoder| match structure.kind {
            types::StructureKind::Plain => decoder.fields(structure, u32::MAX),
            types::StructureKind::OptionalFields => {
                let present = decoder.u32()?;
                decoder.fields(structure, present)
            }
            types::StructureKind::Union => {
                let chosen = decoder.u32()? as usize;
                let mut object = Object::with_capacity(1);
                if let Some(field) = chosen.checked_sub(1).and_then(|i| structure.fields.get(i)) {
                    object.push_new(field.name.clone(), decoder.field(field)?);
                } else if chosen != 0 {
                    return Err(DecodeError("a union chooses a field that it does not have"));
                }
                Ok(Value::from(object))
            }
        })
    }

    fn fields(&mut self, structure: &types::Structure, present: u32) -> Result<Value> {
        let mut object = Object::with_capacity(structure.fields.len());
        let mut optional = 0;
        for field in &structure.fields {
            if field.optional {
                let bit = optional;
                optional += 1;
                if bit >= 32 || present & (1 << bit) == 0 {
                    continue;
                }
            }
            object.push_new(field.name.clone(), self.field(field)?);
        }
        Ok(Value::from(object))
    }

    fn field(&mut self, field: &types::FieldLayout) -> Result<Value> {
        match field.rank {
            types::Rank::Scalar => self.field_element(&field.element),
            types::Rank::Array => {
                let Some(length) = self.length(0)? else {
                    return Ok(Value::Null);
                };
                self.field_elements(field, length)
            }
            types::Rank::Matrix => {
                let dimensions = self.dimensions()?;
                let length = dimensions.iter().try_fold(1usize, |product, d| product.checked_mul(*d));
                let length = length.ok_or(DecodeError("a matrix has invalid dimensions"))?;
                match self.field_elements(field, length)? {
                    Value::Array(values) => Ok(nested(values.to_vec(), &dimensions)),
                    other => Ok(other),
                }
            }
        }
    }

    fn field_elements(&mut self, field: &types::FieldLayout, length: usize) -> Result<Value> {
        if length > ELEMENTS_MAX {
            return Err(DecodeError("a field has too many elements"));
        }
        if matches!(field.element, types::FieldEncoding::BuiltIn(types::BYTE)) {
            return Ok(Value::Bytes(self.take(length)?.into()));
        }
        let each = match field.element {
            types::FieldEncoding::BuiltIn(kind) => cost(kind),
            // The contents are counted as they are read.
            types::FieldEncoding::Structure(_) => 1,
        };
        if !self.spend(length.saturating_mul(each)) {
            return Err(DecodeError("the answer holds too many values"));
        }
        // Elements may be empty structures, so the length alone must not determine the allocation.
        let mut values = Vec::with_capacity(length.min(self.rest.len()));
        for _ in 0..length {
            let before = self.rest.len();
            values.push(self.field_element(&field.element)?);
            if self.rest.len() == before {
                return Err(DecodeError("the elements of an array have no content"));
            }
        }
        Ok(Value::from(values))
    }

    fn field_element(&mut self, element: &types::FieldEncoding) -> Result<Value> {
        match element {
            types::FieldEncoding::BuiltIn(kind) => self.scalar(*kind),
            types::FieldEncoding::Structure(data_type) => match self.types.structure(data_type) {
                Some(structure) => self.structure(structure),
                None => Err(DecodeError("a structure has a field of unknown type")),
            },
        }
    }

    pub fn diagnostic_info(&mut self) -> Result<Value> {
        const NUMBERS: [(u8, &str); 4] = [
            (1, "SymbolicID"),
            (2, "NamespaceURI"),
            (8, "Locale"),
            (4, "LocalizedText"),
        ];
        let mask = self.u8()?;
        let mut object = Object::new();
        for (bit, name) in NUMBERS {
            if mask & bit != 0 {
                object.push_new(name, Value::I32(self.i32()?));
            }
        }
        if mask & 0x10 != 0 {
            object.push_new("AdditionalInfo", Value::Text(self.text()?.unwrap_or_default()));
        }
        if mask & 0x20 != 0 {
            object.push_new("InnerStatusCode", Value::Status(self.u32()?));
        }
        if mask & 0x40 != 0 {
            object.push_new("InnerDiagnosticInfo", self.deeper(Decoder::diagnostic_info)?);
        }
        Ok(Value::from(object))
    }
}

/// Returns the budget that an element of a built-in type uses.
fn cost(kind: u8) -> usize {
    match kind {
        types::BOOLEAN..=types::DATE_TIME | types::STATUS_CODE => 1,
        _ => 1 + ALLOCATION_COST,
    }
}

/// The body of an extension object by encoding.
pub(crate) enum ExtensionBody<'a> {
    None,
    Binary(&'a [u8]),
    Xml(&'a [u8]),
}

enum Elements<'a> {
    Null,
    Bytes(&'a [u8]),
    Values(Vec<Value>),
}

fn structured(value: Structured) -> Value {
    Value::Structured(Arc::new(value))
}

fn extension(type_id: &NodeId, body: &[u8]) -> Value {
    structured(Structured::Extension {
        type_id: node_id::text(type_id).into(),
        body: body.into(),
    })
}

/// Returns whether a flat list can be folded into these dimensions.
fn folds(length: usize, dimensions: &[usize]) -> bool {
    // Dimensions of size one cost nothing on the wire, but each adds a level of recursion when the value is walked or
    // dropped.
    (2..=usize::from(DEPTH_MAX)).contains(&dimensions.len())
        && dimensions.iter().try_fold(1usize, |product, d| product.checked_mul(*d)) == Some(length)
        && length > 0
}

/// Folds a flat list into arrays of arrays, last dimension innermost; stays flat if the dimensions do not fit.
fn nested(mut values: Vec<Value>, dimensions: &[usize]) -> Value {
    if !folds(values.len(), dimensions) {
        return Value::from(values);
    }
    for size in dimensions.iter().skip(1).rev() {
        let mut rows = Vec::with_capacity(values.len() / size);
        let mut rest = values.into_iter();
        while rest.len() > 0 {
            rows.push(rest.by_ref().take(*size).collect::<Vec<_>>().into());
        }
        values = rows;
    }
    Value::from(values)
}

/// Converts an array of bytes to one text; a matrix of bytes becomes one text per innermost row.
fn nested_bytes(bytes: &[u8], dimensions: &[usize]) -> Value {
    if !folds(bytes.len(), dimensions) {
        return Value::Bytes(bytes.into());
    }
    let row = dimensions.last().copied().unwrap_or(1);
    let rows: Vec<Value> = bytes.chunks(row).map(|chunk| Value::Bytes(chunk.into())).collect();
    nested(rows, dimensions.get(..dimensions.len() - 1).unwrap_or_default())
}

#[cfg(test)]
mod budget_tests;
#[cfg(test)]
mod differential;
#[cfg(test)]
mod tests;
