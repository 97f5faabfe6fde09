//! Encoding of values: a type byte, then the data.

use std::sync::Arc;

use thalweg_kit::varint;

use super::wire::{WireReader, put_bytes};
use super::{CodecError, DEPTH_MAX};
use crate::{Guid, Object, Structured, Text, Ticks, Value};

/// Type bytes. A number never changes its meaning.
mod tag {
    pub const NULL: u8 = 0;
    pub const FALSE: u8 = 1;
    pub const TRUE: u8 = 2;
    pub const I8: u8 = 3;
    pub const U8: u8 = 4;
    pub const I16: u8 = 5;
    pub const U16: u8 = 6;
    pub const I32: u8 = 7;
    pub const U32: u8 = 8;
    pub const I64: u8 = 9;
    pub const U64: u8 = 10;
    pub const F32: u8 = 11;
    pub const F64: u8 = 12;
    pub const DECIMAL: u8 = 13;
    pub const TEXT: u8 = 14;
    pub const BYTES: u8 = 15;
    pub const TIME: u8 = 16;
    pub const GUID: u8 = 17;
    pub const STATUS: u8 = 18;
    pub const XML: u8 = 19;
    pub const NODE_ID: u8 = 20;
    pub const EXPANDED_NODE_ID: u8 = 21;
    pub const QUALIFIED_NAME: u8 = 22;
    pub const LOCALIZED_TEXT: u8 = 23;
    pub const EXTENSION: u8 = 24;
    pub const ARRAY: u8 = 25;
    pub const OBJECT: u8 = 26;
}

/// Whether a value nests no deeper than can be encoded.
pub(super) fn is_shallow(value: &Value, depth: usize) -> bool {
    match value {
        Value::Array(values) => depth > 0 && values.iter().all(|value| is_shallow(value, depth - 1)),
        Value::Object(object) => depth > 0 && object.iter().all(|(_, value)| is_shallow(value, depth - 1)),
        _ => true,
    }
}

/// Appends a value; `bits` are added to its first byte.
pub(super) fn put_value(out: &mut Vec<u8>, value: &Value, bits: u8) {
    out.push(tag_of(value) | bits);
    match value {
        Value::Null | Value::Bool(_) => {}
        Value::I8(n) => out.push(*n as u8),
        Value::U8(n) => out.push(*n),
        Value::I16(n) => varint::put_signed(out, i64::from(*n)),
        Value::U16(n) => varint::put(out, u64::from(*n)),
        Value::I32(n) => varint::put_signed(out, i64::from(*n)),
        Value::U32(n) | Value::Status(n) => varint::put(out, u64::from(*n)),
        Value::I64(n) => varint::put_signed(out, *n),
        Value::U64(n) => varint::put(out, *n),
        Value::F32(n) => out.extend_from_slice(&n.to_bits().to_le_bytes()),
        Value::F64(n) => out.extend_from_slice(&n.to_bits().to_le_bytes()),
        Value::Decimal(text) | Value::Text(text) | Value::Xml(text) | Value::NodeId(text) => {
            put_bytes(out, text.as_bytes());
        }
        Value::Bytes(bytes) => put_bytes(out, bytes),
        Value::Time(time) => varint::put_signed(out, time.0),
        Value::Guid(guid) => {
            out.extend_from_slice(&guid.data1.to_le_bytes());
            out.extend_from_slice(&guid.data2.to_le_bytes());
            out.extend_from_slice(&guid.data3.to_le_bytes());
            out.extend_from_slice(&guid.data4);
        }
        Value::Structured(structured) => put_structured(out, structured),
        Value::Array(values) => {
            varint::put(out, values.len() as u64);
            values.iter().for_each(|value| put_value(out, value, 0));
        }
        Value::Object(object) => {
            varint::put(out, object.len() as u64);
            for (name, value) in object.iter() {
                put_bytes(out, name.as_bytes());
                put_value(out, value, 0);
            }
        }
    }
}

fn tag_of(value: &Value) -> u8 {
    match value {
        Value::Null => tag::NULL,
        Value::Bool(false) => tag::FALSE,
        Value::Bool(true) => tag::TRUE,
        Value::I8(_) => tag::I8,
        Value::U8(_) => tag::U8,
        Value::I16(_) => tag::I16,
        Value::U16(_) => tag::U16,
        Value::I32(_) => tag::I32,
        Value::U32(_) => tag::U32,
        Value::I64(_) => tag::I64,
        Value::U64(_) => tag::U64,
        Value::F32(_) => tag::F32,
        Value::F64(_) => tag::F64,
        Value::Decimal(_) => tag::DECIMAL,
        Value::Text(_) => tag::TEXT,
        Value::Bytes(_) => tag::BYTES,
        Value::Time(_) => tag::TIME,
        Value::Guid(_) => tag::GUID,
        Value::Status(_) => tag::STATUS,
        Value::Xml(_) => tag::XML,
        Value::NodeId(_) => tag::NODE_ID,
        Value::Structured(structured) => match **structured {
            Structured::ExpandedNodeId { .. } => tag::EXPANDED_NODE_ID,
            Structured::QualifiedName { .. } => tag::QUALIFIED_NAME,
            Structured::LocalizedText { .. } => tag::LOCALIZED_TEXT,
            Structured::Extension { .. } => tag::EXTENSION,
        },
        Value::Array(_) => tag::ARRAY,
        Value::Object(_) => tag::OBJECT,
    }
}

fn put_structured(out: &mut Vec<u8>, structured: &Structured) {
    match structured {
        Structured::ExpandedNodeId {
            node_id,
            namespace_uri,
            server_index,
        } => {
            put_bytes(out, node_id.as_bytes());
            put_bytes(out, namespace_uri.as_bytes());
            varint::put(out, u64::from(*server_index));
        }
        Structured::QualifiedName { namespace_index, name } => {
            varint::put(out, u64::from(*namespace_index));
            put_bytes(out, name.as_bytes());
        }
        Structured::LocalizedText { locale, text } => {
            out.push(u8::from(locale.is_some()) | u8::from(text.is_some()) << 1);
            for text in [locale, text].into_iter().flatten() {
                put_bytes(out, text.as_bytes());
            }
        }
        Structured::Extension { type_id, body } => {
            put_bytes(out, type_id.as_bytes());
            put_bytes(out, body);
        }
    }
}

/// Reads a value whose first byte was read already.
pub(super) fn take_value(take: &mut WireReader<'_>, first: u8, depth: usize) -> Result<Value, CodecError> {
    Ok(match first {
        tag::NULL => Value::Null,
        tag::FALSE => Value::Bool(false),
        tag::TRUE => Value::Bool(true),
        tag::I8 => Value::I8(take.byte()? as i8),
        tag::U8 => Value::U8(take.byte()?),
        tag::I16 => Value::I16(narrow(take)?),
        tag::U16 => Value::U16(take.u16()?),
        tag::I32 => Value::I32(narrow(take)?),
        tag::U32 => Value::U32(take.u32()?),
        tag::I64 => Value::I64(take.signed()?),
        tag::U64 => Value::U64(take.varint()?),
        tag::F32 => Value::F32(f32::from_bits(u32::from_le_bytes(take.array()?))),
        tag::F64 => Value::F64(f64::from_bits(u64::from_le_bytes(take.array()?))),
        tag::DECIMAL => Value::Decimal(text(take)?),
        tag::TEXT => Value::Text(text(take)?),
        tag::BYTES => Value::Bytes(take.bytes()?.into()),
        tag::TIME => Value::Time(Ticks(take.signed()?)),
        tag::GUID => Value::Guid(Guid {
            data1: u32::from_le_bytes(take.array()?),
            data2: u16::from_le_bytes(take.array()?),
            data3: u16::from_le_bytes(take.array()?),
            data4: take.array()?,
        }),
        tag::STATUS => Value::Status(take.u32()?),
        tag::XML => Value::Xml(text(take)?),
        tag::NODE_ID => Value::NodeId(text(take)?),
        tag::EXPANDED_NODE_ID..=tag::EXTENSION => Value::Structured(Arc::new(take_structured(take, first)?)),
        tag::ARRAY => {
            let depth = deeper(take, depth)?;
            let count = take.count()?;
            let values = (0..count).map(|_| take_inner(take, depth));
            Value::Array(values.collect::<Result<_, _>>()?)
        }
        tag::OBJECT => {
            let depth = deeper(take, depth)?;
            let count = take.count()?;
            let members = (0..count).map(|_| Ok((text(take)?, take_inner(take, depth)?)));
            Value::Object(Arc::new(members.collect::<Result<Object, CodecError>>()?))
        }
        _ => return Err(take.damaged("the type of a value is unknown")),
    })
}

fn take_inner(take: &mut WireReader<'_>, depth: usize) -> Result<Value, CodecError> {
    let first = take.byte()?;
    take_value(take, first, depth)
}

fn deeper(take: &WireReader<'_>, depth: usize) -> Result<usize, CodecError> {
    let deeper = depth.checked_sub(1);
    deeper.ok_or_else(|| take.damaged("values are nested too deep"))
}

fn narrow<N: TryFrom<i64>>(take: &mut WireReader<'_>) -> Result<N, CodecError> {
    let n = take.signed()?;
    N::try_from(n).map_err(|_| take.damaged("a number is too large for its type"))
}

fn text(take: &mut WireReader<'_>) -> Result<Text, CodecError> {
    Ok(Text::new(take.text()?))
}

fn take_structured(take: &mut WireReader<'_>, first: u8) -> Result<Structured, CodecError> {
    Ok(match first {
        tag::EXPANDED_NODE_ID => Structured::ExpandedNodeId {
            node_id: text(take)?,
            namespace_uri: text(take)?,
            server_index: take.u32()?,
        },
        tag::QUALIFIED_NAME => Structured::QualifiedName {
            namespace_index: take.u16()?,
            name: text(take)?,
        },
        tag::LOCALIZED_TEXT => {
            let given = take.byte()?;
            if given > 3 {
                return Err(take.damaged("a localized text has two parts at most"));
            }
            Structured::LocalizedText {
                locale: (given & 1 != 0).then(|| text(take)).transpose()?,
                text: (given & 2 != 0).then(|| text(take)).transpose()?,
            }
        }
        _ => Structured::Extension {
            type_id: text(take)?,
            body: take.bytes()?.into(),
        },
    })
}

/// Depth budget of a whole value.
pub(super) const WHOLE: usize = DEPTH_MAX;
