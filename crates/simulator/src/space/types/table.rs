//! The rows of the folder `Types`, in the order in which a client browses them.

use std::str::FromStr;

use opcua::types::{
    Array, ByteString, DataTypeId, DataValue, DateTime, EUInformation, ExpandedNodeId, ExtensionObject, Guid,
    Identifier, LocalizedText, NodeId, QualifiedName, Range, StatusCode, UAString, Variant, VariantScalarTypeId,
    XmlElement,
};
use parking_lot::RwLock;

use super::point::{Opaque, POINT_TYPE_NAME, Point};
use super::{Content, Shape, TypedNode};
use crate::space::NAMESPACE;

const SCALAR: i32 = -1;
const ANY_RANK: i32 = -2;

pub(super) fn nodes(start: DateTime) -> Vec<TypedNode> {
    let mut nodes = scalars();
    nodes.extend(identifiers_and_texts());
    nodes.extend(structures());
    nodes.extend(arrays());
    nodes.extend(odd_ones());
    nodes.extend(changing());
    nodes.extend(writable(start));
    nodes
}

fn row(name: &'static str, data_type: impl Into<NodeId>, value_rank: i32, content: Content) -> TypedNode {
    TypedNode {
        name,
        data_type: data_type.into(),
        value_rank,
        dimensions: Vec::new(),
        content,
        shape: Shape::Plain,
    }
}

fn fixed(value: Variant) -> Content {
    Content::Fixed {
        value: Some(value),
        status: None,
        timed: true,
    }
}

fn scalar(name: &'static str, data_type: DataTypeId, value: Variant) -> TypedNode {
    row(name, data_type, SCALAR, fixed(value))
}

fn scalars() -> Vec<TypedNode> {
    use DataTypeId as T;
    vec![
        scalar("Boolean", T::Boolean, Variant::Boolean(true)),
        scalar("SByte", T::SByte, Variant::SByte(i8::MIN)),
        scalar("Byte", T::Byte, Variant::Byte(u8::MAX)),
        scalar("Int16", T::Int16, Variant::Int16(i16::MIN)),
        scalar("UInt16", T::UInt16, Variant::UInt16(u16::MAX)),
        scalar("Int32", T::Int32, Variant::Int32(i32::MIN)),
        scalar("UInt32", T::UInt32, Variant::UInt32(u32::MAX)),
        scalar("Int64", T::Int64, Variant::Int64(i64::MIN)),
        scalar("Int64Max", T::Int64, Variant::Int64(i64::MAX)),
        scalar("UInt64", T::UInt64, Variant::UInt64(u64::MAX)),
        scalar("Float", T::Float, Variant::Float(0.1)),
        scalar("FloatNaN", T::Float, Variant::Float(f32::NAN)),
        scalar("Double", T::Double, Variant::Double(0.1)),
        scalar("DoubleMax", T::Double, Variant::Double(f64::MAX)),
        scalar("DoubleTiny", T::Double, Variant::Double(f64::from_bits(1))),
        scalar("DoubleNegativeZero", T::Double, Variant::Double(-0.0)),
        scalar("DoubleNaN", T::Double, Variant::Double(f64::NAN)),
        scalar("DoubleInfinity", T::Double, Variant::Double(f64::INFINITY)),
        scalar("DoubleNegativeInfinity", T::Double, Variant::Double(f64::NEG_INFINITY)),
        scalar("Enumeration", T::ServerState, Variant::Int32(3)),
        scalar("Duration", T::Duration, Variant::Double(1_500.5)),
    ]
}

fn identifiers_and_texts() -> Vec<TypedNode> {
    use DataTypeId as T;
    let time = |nanos: u32| Variant::from(DateTime::ymd_hms_nano(2031, 5, 6, 7, 8, 9, nanos));
    vec![
        scalar("String", T::String, Variant::from("Füllstand \"Tank 1\"\n\t\u{1F600}")),
        scalar("StringEmpty", T::String, Variant::from("")),
        scalar("StringNull", T::String, Variant::String(UAString::null())),
        scalar("DateTime", T::DateTime, time(123_456_700)),
        scalar("DateTimeWhole", T::UtcTime, time(0)),
        scalar("DateTimeMin", T::DateTime, Variant::from(DateTime::null())),
        scalar("DateTimeMax", T::DateTime, Variant::from(DateTime::endtimes())),
        scalar("Guid", T::Guid, Variant::from(guid())),
        scalar(
            "ByteString",
            T::ByteString,
            Variant::from(ByteString::from(vec![0u8, 1, 2, 253, 254, 255])),
        ),
        scalar(
            "ByteStringEmpty",
            T::ByteString,
            Variant::from(ByteString::from(Vec::new())),
        ),
        scalar("ByteStringNull", T::ByteString, Variant::from(ByteString::null())),
        scalar(
            "XmlElement",
            T::XmlElement,
            Variant::from(XmlElement::from("<a b=\"1\">&amp;</a>")),
        ),
        scalar("NodeId", T::NodeId, Variant::from(NodeId::new(0, 2_258u32))),
        scalar(
            "NodeIdString",
            T::NodeId,
            Variant::from(NodeId::new(NAMESPACE, "OpcPlc")),
        ),
        scalar("NodeIdGuid", T::NodeId, Variant::from(NodeId::new(NAMESPACE, guid()))),
        scalar(
            "NodeIdOpaque",
            T::NodeId,
            Variant::from(NodeId::new(NAMESPACE, opaque_identifier())),
        ),
        scalar("ExpandedNodeId", T::ExpandedNodeId, Variant::from(expanded())),
        scalar(
            "StatusCode",
            T::StatusCode,
            Variant::StatusCode(StatusCode::BadOutOfRange),
        ),
        scalar(
            "QualifiedName",
            T::QualifiedName,
            Variant::from(QualifiedName::new(NAMESPACE, "Name")),
        ),
        scalar(
            "LocalizedText",
            T::LocalizedText,
            Variant::from(LocalizedText::new("de", "Füllstand")),
        ),
        scalar(
            "LocalizedTextPlain",
            T::LocalizedText,
            Variant::from(LocalizedText::new("", "Level")),
        ),
    ]
}

fn guid() -> Guid {
    Guid::from_bytes([
        0x09, 0x87, 0x65, 0x43, 0x0a, 0xbc, 0x0d, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef,
    ])
}

fn opaque_identifier() -> Identifier {
    Identifier::ByteString(ByteString::from(vec![1u8, 2, 3]))
}

fn expanded() -> ExpandedNodeId {
    ExpandedNodeId {
        node_id: NodeId::new(0, "Remote"),
        namespace_uri: "urn:elsewhere".into(),
        server_index: 2,
    }
}

fn range() -> ExtensionObject {
    ExtensionObject::from_message(Range { low: 0.0, high: 100.0 })
}

fn unit() -> ExtensionObject {
    ExtensionObject::from_message(EUInformation {
        namespace_uri: "http://www.opcfoundation.org/UA/units/un/cefact".into(),
        unit_id: 4_408_652,
        display_name: LocalizedText::new("en", "°C"),
        description: LocalizedText::new("en", "degree Celsius"),
    })
}

fn point(x: f64, label: &str) -> ExtensionObject {
    ExtensionObject::new(Point {
        x,
        y: -2.25,
        label: label.to_owned(),
    })
}

fn structures() -> Vec<TypedNode> {
    let point_type = || NodeId::new(NAMESPACE, POINT_TYPE_NAME);
    let points = vec![Variant::from(point(1.5, "a")), Variant::from(point(2.5, ""))];
    vec![
        scalar("Range", DataTypeId::Range, Variant::from(range())),
        scalar("EUInformation", DataTypeId::EUInformation, Variant::from(unit())),
        row("Point", point_type(), SCALAR, fixed(Variant::from(point(1.5, "first")))),
        row(
            "PointArray",
            point_type(),
            1,
            fixed(array(VariantScalarTypeId::ExtensionObject, points)),
        ),
        scalar(
            "StructureUnknown",
            DataTypeId::Structure,
            Variant::from(ExtensionObject::new(Opaque(vec![0xde, 0xad, 0xbe, 0xef]))),
        ),
        scalar(
            "StructureNull",
            DataTypeId::Structure,
            Variant::from(ExtensionObject::null()),
        ),
    ]
}

/// The rows give each array one element type, so the check in `Array::new` cannot fail; an empty array would reveal a
/// failure.
fn array(element: VariantScalarTypeId, values: Vec<Variant>) -> Variant {
    Array::new(element, values).map_or(Variant::Empty, Variant::from)
}

/// An array whose elements are of the scalar type with the data type's number.
fn list<T: Into<Variant>>(name: &'static str, data_type: DataTypeId, values: Vec<T>) -> TypedNode {
    let element = VariantScalarTypeId::try_from(data_type as u32).unwrap_or(VariantScalarTypeId::Variant);
    let values = values.into_iter().map(Into::into).collect();
    row(name, data_type, 1, fixed(array(element, values)))
}

fn arrays() -> Vec<TypedNode> {
    let mut nodes = number_arrays();
    nodes.extend(other_arrays());
    let cells = (1..=6).map(Variant::Int32).collect::<Vec<_>>();
    let matrix = Array::new_multi(VariantScalarTypeId::Int32, cells, vec![2u32, 3]);
    let matrix = matrix.map_or(Variant::Empty, Variant::from);
    nodes.push(TypedNode {
        dimensions: vec![2, 3],
        ..row("Matrix", DataTypeId::Int32, 2, fixed(matrix))
    });
    nodes
}

fn number_arrays() -> Vec<TypedNode> {
    use DataTypeId as T;
    vec![
        list("BooleanArray", T::Boolean, vec![true, false]),
        list("SByteArray", T::SByte, vec![-1i8, 0, 1]),
        list("ByteArray", T::Byte, vec![0u8, 127, 255]),
        list("Int16Array", T::Int16, vec![i16::MIN, i16::MAX]),
        list("UInt16Array", T::UInt16, vec![0, u16::MAX]),
        list("Int32Array", T::Int32, vec![i32::MIN, 0, i32::MAX]),
        list("UInt32Array", T::UInt32, vec![0, u32::MAX]),
        list("Int64Array", T::Int64, vec![i64::MIN, i64::MAX]),
        list("UInt64Array", T::UInt64, vec![0, u64::MAX]),
        list("FloatArray", T::Float, vec![0.1f32, f32::INFINITY]),
        list("DoubleArray", T::Double, vec![0.1f64, f64::NAN, -1e300]),
        list("EmptyArray", T::Double, Vec::<f64>::new()),
        list("LongArray", T::Double, (0..1_000).map(|i| f64::from(i) / 8.0).collect()),
    ]
}

fn other_arrays() -> Vec<TypedNode> {
    use DataTypeId as T;
    let strings = vec![UAString::from("a"), UAString::from(""), UAString::null()];
    let statuses = vec![StatusCode::Good, StatusCode::BadOutOfRange];
    vec![
        list("StringArray", T::String, strings),
        list("DateTimeArray", T::DateTime, vec![DateTime::null()]),
        list("GuidArray", T::Guid, vec![guid(), Guid::null()]),
        list("ByteStringArray", T::ByteString, vec![ByteString::from(vec![1u8, 2])]),
        list("XmlElementArray", T::XmlElement, vec![XmlElement::from("<a/>")]),
        list("NodeIdArray", T::NodeId, vec![NodeId::new(0, 85u32)]),
        list("ExpandedNodeIdArray", T::ExpandedNodeId, vec![expanded()]),
        list("StatusCodeArray", T::StatusCode, statuses),
        list("QualifiedNameArray", T::QualifiedName, vec![QualifiedName::new(0, "Q")]),
        list(
            "LocalizedTextArray",
            T::LocalizedText,
            vec![LocalizedText::new("en", "L")],
        ),
        list(
            "VariantArray",
            T::BaseDataType,
            vec![boxed(1i32.into()), boxed("two".into())],
        ),
    ]
}

fn boxed(value: Variant) -> Variant {
    Variant::Variant(Box::new(value))
}

fn odd_ones() -> Vec<TypedNode> {
    let odd = |name, value: Option<Variant>, status: Option<StatusCode>, timed: bool| {
        row(
            name,
            DataTypeId::Double,
            SCALAR,
            Content::Fixed { value, status, timed },
        )
    };
    vec![
        row("Null", DataTypeId::BaseDataType, ANY_RANK, fixed(Variant::Empty)),
        scalar("VariantInVariant", DataTypeId::BaseDataType, boxed(42i32.into())),
        odd(
            "BadWithValue",
            Some(12.5f64.into()),
            Some(StatusCode::BadSensorFailure),
            true,
        ),
        odd("BadWithoutValue", None, Some(StatusCode::BadNoCommunication), true),
        odd(
            "UncertainWithValue",
            Some(7.5f64.into()),
            Some(StatusCode::UncertainLastUsableValue),
            true,
        ),
        odd(
            "UnknownStatus",
            Some(1.0f64.into()),
            Some(StatusCode::from(0x8765_0000)),
            true,
        ),
        odd("NoSourceTimestamp", Some(2.0f64.into()), None, false),
    ]
}

fn changing() -> Vec<TypedNode> {
    let property = |name, data_type: DataTypeId, value| TypedNode {
        shape: Shape::Property,
        ..scalar(name, data_type, Variant::from(value))
    };
    vec![
        row("Counter", DataTypeId::UInt32, SCALAR, Content::Counter),
        TypedNode {
            shape: Shape::Analog,
            ..row("Analog", DataTypeId::Double, SCALAR, Content::Sawtooth)
        },
        property("EURange", DataTypeId::Range, range()),
        property("EngineeringUnits", DataTypeId::EUInformation, unit()),
    ]
}

fn writable(start: DateTime) -> Vec<TypedNode> {
    use DataTypeId as T;
    let cell = |name, data_type: DataTypeId, value: Variant| {
        let value = DataValue {
            value: Some(value),
            source_timestamp: Some(start),
            ..DataValue::default()
        };
        row(name, data_type, SCALAR, Content::Writable(RwLock::new(value)))
    };
    let midnight = DateTime::from_str("2031-05-06T00:00:00Z").unwrap_or_default();
    vec![
        cell("WritableBoolean", T::Boolean, false.into()),
        cell("WritableSByte", T::SByte, 0i8.into()),
        cell("WritableByte", T::Byte, 0u8.into()),
        cell("WritableInt16", T::Int16, 0i16.into()),
        cell("WritableUInt16", T::UInt16, 0u16.into()),
        cell("WritableInt32", T::Int32, 0i32.into()),
        cell("WritableUInt32", T::UInt32, 0u32.into()),
        cell("WritableInt64", T::Int64, 0i64.into()),
        cell("WritableUInt64", T::UInt64, 0u64.into()),
        cell("WritableFloat", T::Float, 0f32.into()),
        cell("WritableDouble", T::Double, 0f64.into()),
        cell("WritableString", T::String, "".into()),
        cell("WritableDateTime", T::DateTime, midnight.into()),
        row("WritableStuck", T::Int32, SCALAR, Content::Stuck(7i32.into())),
    ]
}
