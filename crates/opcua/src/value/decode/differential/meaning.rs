//! Converts values decoded by the library to the form of this decoder.

use opcua::types::{
    Array, ByteStringBody, DataValue as UaDataValue, DateTime, DiagnosticInfo, ExtensionObject, LocalizedText,
    UAString, Variant, VariantScalarTypeId, XmlBody, XmlElement,
};
use thalweg_record::{Guid, Object, Structured, Text, Ticks, Value, ValueQuality};

use super::super::{DataValue, ValueContent};
use crate::node_id;
use crate::value::ticks;

/// Maximum number of dimensions that are folded; with more, a list stays flat.
const DIMENSIONS_MAX: usize = 32;

pub(super) fn of_variant(variant: &Variant) -> Value {
    match variant {
        Variant::Empty => Value::Null,
        Variant::Boolean(v) => Value::Bool(*v),
        Variant::SByte(v) => Value::I8(*v),
        Variant::Byte(v) => Value::U8(*v),
        Variant::Int16(v) => Value::I16(*v),
        Variant::UInt16(v) => Value::U16(*v),
        Variant::Int32(v) => Value::I32(*v),
        Variant::UInt32(v) => Value::U32(*v),
        Variant::Int64(v) => Value::I64(*v),
        Variant::UInt64(v) => Value::U64(*v),
        Variant::Float(v) => Value::F32(*v),
        Variant::Double(v) => Value::F64(*v),
        Variant::String(v) => Value::Text(text(v)),
        Variant::DateTime(v) => Value::Time(time(v)),
        Variant::Guid(v) => Value::Guid(guid(v)),
        Variant::StatusCode(v) => Value::Status(v.bits()),
        Variant::ByteString(v) => Value::Bytes(v.as_ref().into()),
        // Its `to_string` is not empty.
        Variant::XmlElement(v) if *v == XmlElement::null() => Value::Xml(Text::default()),
        Variant::XmlElement(v) => Value::Xml(v.to_string().into()),
        Variant::NodeId(v) => Value::NodeId(node_id::text(v).into()),
        Variant::ExpandedNodeId(v) => structured(Structured::ExpandedNodeId {
            node_id: node_id::text(&v.node_id).into(),
            namespace_uri: text(&v.namespace_uri),
            server_index: v.server_index,
        }),
        Variant::QualifiedName(v) => structured(Structured::QualifiedName {
            namespace_index: v.namespace_index,
            name: text(&v.name),
        }),
        Variant::LocalizedText(v) => localized_text(v),
        Variant::ExtensionObject(v) => extension_object(v),
        Variant::Variant(v) => of_variant(v),
        Variant::DataValue(v) => v.value.as_ref().map_or(Value::Null, of_variant),
        Variant::DiagnosticInfo(v) => diagnostic_info(v),
        Variant::Array(v) => array(v),
    }
}

pub(super) fn of_data_value(value: &UaDataValue) -> DataValue {
    let content = match value.value.as_ref().map_or(Value::Null, of_variant) {
        Value::Null => ValueContent::Nothing,
        value => ValueContent::Value(value),
    };
    let stamp = |time_of: Option<DateTime>| time_of.map_or(Ticks::MISSING, |of| time(&of));
    DataValue {
        content,
        stamps: ValueQuality {
            source_time: stamp(value.source_timestamp),
            server_time: stamp(value.server_timestamp),
            status: value.status.map_or(0, |status| status.bits()),
        },
        wrapped: matches!(value.value, Some(Variant::Variant(_))),
    }
}

fn structured(value: Structured) -> Value {
    Value::Structured(value.into())
}

fn text(text: &UAString) -> Text {
    text.as_ref().into()
}

fn time(time: &DateTime) -> Ticks {
    ticks::from_opcua(time.checked_ticks())
}

fn guid(guid: &opcua::types::Guid) -> Guid {
    let digits = guid.to_string().replace('-', "");
    let number = u128::from_str_radix(&digits, 16).unwrap();
    Guid {
        data1: (number >> 96) as u32,
        data2: (number >> 80) as u16,
        data3: (number >> 64) as u16,
        data4: (number as u64).to_be_bytes(),
    }
}

fn localized_text(localized: &LocalizedText) -> Value {
    let known = |part: &UAString| part.value().as_ref().map(|part| part.as_str().into());
    structured(Structured::LocalizedText {
        locale: known(&localized.locale),
        text: known(&localized.text),
    })
}

fn extension_object(object: &ExtensionObject) -> Value {
    let (id, body) = if let Some(bytes) = object.inner_as::<ByteStringBody>() {
        (bytes.encoding_id(), bytes.raw_body().as_ref())
    } else if let Some(xml) = object.inner_as::<XmlBody>() {
        (xml.encoding_id(), xml.raw_body())
    } else {
        assert!(object.is_null(), "{object:?}");
        return Value::Null;
    };
    structured(Structured::Extension {
        type_id: node_id::text(id).into(),
        body: body.into(),
    })
}

fn diagnostic_info(info: &DiagnosticInfo) -> Value {
    let mut object = Object::new();
    let numbers = [
        ("SymbolicID", info.symbolic_id),
        ("NamespaceURI", info.namespace_uri),
        ("Locale", info.locale),
        ("LocalizedText", info.localized_text),
    ];
    for (name, number) in numbers {
        if let Some(number) = number {
            object.set(name, Value::I32(number));
        }
    }
    if let Some(additional) = &info.additional_info {
        object.set("AdditionalInfo", Value::Text(text(additional)));
    }
    if let Some(status) = &info.inner_status_code {
        object.set("InnerStatusCode", Value::Status(status.bits()));
    }
    if let Some(inner) = &info.inner_diagnostic_info {
        object.set("InnerDiagnosticInfo", diagnostic_info(inner));
    }
    Value::from(object)
}

fn array(array: &Array) -> Value {
    let dimensions: Vec<usize> = array.dimensions.iter().flatten().map(|d| *d as usize).collect();
    let is_folded = (2..=DIMENSIONS_MAX).contains(&dimensions.len()) && !array.values.is_empty();
    let dimensions = if is_folded {
        dimensions
    } else {
        vec![array.values.len()]
    };
    rows(
        &array.values,
        &dimensions,
        array.value_type == VariantScalarTypeId::Byte,
    )
}

/// Nests the other dimensions in the first.
fn rows(values: &[Variant], dimensions: &[usize], are_bytes: bool) -> Value {
    match dimensions {
        [] | [_] if are_bytes => {
            let bytes = values.iter().map(|value| match value {
                Variant::Byte(byte) => *byte,
                other => panic!("{other:?} among bytes"),
            });
            Value::Bytes(bytes.collect())
        }
        [] | [_] => Value::from(values.iter().map(of_variant).collect::<Vec<_>>()),
        [first, inner @ ..] => {
            let each = values.len() / first;
            let rows = values.chunks(each).map(|row| rows(row, inner, are_bytes));
            Value::from(rows.collect::<Vec<_>>())
        }
    }
}
