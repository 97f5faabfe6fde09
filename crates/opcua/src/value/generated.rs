//! Proptest strategies for variants and data values of every built-in type and shape, as types of the library.

use opcua::types::{
    Array, ByteString, ByteStringBody, DataValue, DateTime, DiagnosticInfo, ExpandedNodeId, ExtensionObject, Guid,
    Identifier, LocalizedText, NodeId, QualifiedName, StatusCode, UAString, Variant, VariantScalarTypeId, XmlBody,
    XmlElement,
};
use proptest::prelude::*;

use super::types;

/// Maximum nesting of values that can contain others.
const DEPTH: u32 = 2;

pub(crate) fn data_value() -> BoxedStrategy<DataValue> {
    data_value_of(DEPTH)
}

fn variant_of(depth: u32) -> BoxedStrategy<Variant> {
    let kinds = types::BOOLEAN..=types::DIAGNOSTIC_INFO;
    prop_oneof![
        1 => Just(Variant::Empty),
        12 => kinds.clone().prop_flat_map(move |kind| scalar(kind, depth)),
        6 => kinds.clone().prop_flat_map(move |kind| array(kind, depth)),
        6 => kinds.prop_flat_map(move |kind| matrix(kind, depth)),
    ]
    .boxed()
}

/// One value of a built-in type.
pub(crate) fn scalar(kind: u8, depth: u32) -> BoxedStrategy<Variant> {
    match kind {
        types::BOOLEAN => any::<bool>().prop_map(Variant::Boolean).boxed(),
        types::SBYTE => any::<i8>().prop_map(Variant::SByte).boxed(),
        types::BYTE => any::<u8>().prop_map(Variant::Byte).boxed(),
        types::INT16 => any::<i16>().prop_map(Variant::Int16).boxed(),
        types::UINT16 => any::<u16>().prop_map(Variant::UInt16).boxed(),
        types::INT32 => any::<i32>().prop_map(Variant::Int32).boxed(),
        types::UINT32 => any::<u32>().prop_map(Variant::UInt32).boxed(),
        types::INT64 => any::<i64>().prop_map(Variant::Int64).boxed(),
        types::UINT64 => any::<u64>().prop_map(Variant::UInt64).boxed(),
        types::FLOAT => float().prop_map(Variant::Float).boxed(),
        types::DOUBLE => double().prop_map(Variant::Double).boxed(),
        types::STRING => text().prop_map(Variant::String).boxed(),
        types::DATE_TIME => date_time().prop_map(Variant::from).boxed(),
        types::GUID => guid().prop_map(Variant::from).boxed(),
        types::BYTE_STRING => byte_string().prop_map(Variant::ByteString).boxed(),
        types::XML_ELEMENT => text()
            .prop_map(|text| Variant::XmlElement(XmlElement::from(text)))
            .boxed(),
        types::NODE_ID => node_id().prop_map(Variant::from).boxed(),
        types::EXPANDED_NODE_ID => expanded_node_id().prop_map(Variant::from).boxed(),
        types::STATUS_CODE => status().prop_map(Variant::StatusCode).boxed(),
        types::QUALIFIED_NAME => (any::<u16>(), text())
            .prop_map(|(namespace_index, name)| Variant::from(QualifiedName { namespace_index, name }))
            .boxed(),
        types::LOCALIZED_TEXT => (localized(), localized())
            .prop_map(|(locale, text)| Variant::from(LocalizedText { locale, text }))
            .boxed(),
        types::EXTENSION_OBJECT => extension_object().prop_map(Variant::ExtensionObject).boxed(),
        types::DIAGNOSTIC_INFO => diagnostic_info(3).prop_map(Variant::from).boxed(),
        // At the innermost level, a type that contains variants contains a scalar.
        types::DATA_VALUE if depth == 0 => Just(Variant::from(DataValue::null())).boxed(),
        types::DATA_VALUE => data_value_of(depth - 1).prop_map(Variant::from).boxed(),
        types::VARIANT if depth == 0 => float()
            .prop_map(|v| Variant::Variant(Box::new(Variant::Float(v))))
            .boxed(),
        types::VARIANT => variant_of(depth - 1)
            .prop_map(|v| Variant::Variant(Box::new(v)))
            .boxed(),
        _ => panic!("there is no type {kind}"),
    }
}

fn scalar_type(kind: u8) -> VariantScalarTypeId {
    VariantScalarTypeId::from_encoding_mask(kind).unwrap()
}

fn array(kind: u8, depth: u32) -> BoxedStrategy<Variant> {
    prop::collection::vec(scalar(kind, depth), 0..5)
        .prop_map(move |values| Variant::from(Array::new(scalar_type(kind), values).unwrap()))
        .boxed()
}

/// With one to four dimensions, none of which is empty.
fn matrix(kind: u8, depth: u32) -> BoxedStrategy<Variant> {
    prop::collection::vec(1u32..4, 1..5)
        .prop_filter("not too large", |dimensions| dimensions.iter().product::<u32>() <= 12)
        .prop_flat_map(move |dimensions| {
            let length = dimensions.iter().product::<u32>() as usize;
            prop::collection::vec(scalar(kind, depth), length).prop_map(move |values| {
                Variant::from(Array::new_multi(scalar_type(kind), values, dimensions.clone()).unwrap())
            })
        })
        .boxed()
}

fn data_value_of(depth: u32) -> BoxedStrategy<DataValue> {
    let picoseconds = || prop::option::of(any::<u16>());
    let time = || prop::option::of(date_time());
    (
        prop::option::weighted(0.8, variant_of(depth)),
        prop::option::of(status()),
        (time(), picoseconds()),
        (time(), picoseconds()),
    )
        .prop_map(|(value, status, source, server)| DataValue {
            value,
            status,
            source_timestamp: source.0,
            source_picoseconds: source.1,
            server_timestamp: server.0,
            server_picoseconds: server.1,
        })
        .boxed()
}

/// All bits of a NaN matter.
fn float() -> impl Strategy<Value = f32> {
    prop_oneof![
        any::<u32>().prop_map(f32::from_bits),
        (any::<bool>(), 1u32..1 << 23)
            .prop_map(|(sign, payload)| f32::from_bits(u32::from(sign) << 31 | 0xFF << 23 | payload)),
        prop::sample::select(vec![
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::MIN_POSITIVE,
            f32::MAX
        ]),
    ]
}

fn double() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<u64>().prop_map(f64::from_bits),
        (any::<bool>(), 1u64..1 << 52)
            .prop_map(|(sign, payload)| f64::from_bits(u64::from(sign) << 63 | 0x7FF << 52 | payload)),
        prop::sample::select(vec![
            0.0,
            -0.0,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::MIN_POSITIVE,
            f64::MAX
        ]),
    ]
}

fn text() -> impl Strategy<Value = UAString> {
    prop_oneof![
        1 => Just(UAString::null()),
        1 => Just(UAString::from("")),
        4 => ".{1,8}".prop_map(UAString::from),
    ]
}

/// The library omits an empty part like a null one.
fn localized() -> impl Strategy<Value = UAString> {
    text().prop_map(|text| if text.is_empty() { UAString::null() } else { text })
}

fn byte_string() -> impl Strategy<Value = ByteString> {
    prop_oneof![
        1 => Just(ByteString::null()),
        5 => prop::collection::vec(any::<u8>(), 0..10).prop_map(ByteString::from),
    ]
}

/// Includes times that the library cannot represent; it replaces them by the nearest one it can.
fn date_time() -> impl Strategy<Value = DateTime> {
    prop_oneof![
        (0i64..2_650_467_743_990_000_000).prop_map(DateTime::from),
        any::<i64>().prop_map(DateTime::from),
        prop::sample::select(vec![i64::MIN, -1, 0, 1, 116_444_736_000_000_000, i64::MAX]).prop_map(DateTime::from),
    ]
}

fn guid() -> impl Strategy<Value = Guid> {
    any::<[u8; 16]>().prop_map(Guid::from_bytes)
}

fn status() -> impl Strategy<Value = StatusCode> {
    any::<u32>().prop_map(StatusCode::from)
}

/// In every form that exists on the wire.
fn node_id() -> impl Strategy<Value = NodeId> {
    let namespace = prop_oneof![Just(0u16), 0u16..256, any::<u16>()];
    let identifier = prop_oneof![
        prop_oneof![0u32..256, 0u32..65_536, any::<u32>()].prop_map(Identifier::Numeric),
        text().prop_map(Identifier::String),
        guid().prop_map(Identifier::Guid),
        byte_string().prop_map(Identifier::ByteString),
    ];
    (namespace, identifier).prop_map(|(namespace, identifier)| NodeId { namespace, identifier })
}

fn expanded_node_id() -> impl Strategy<Value = ExpandedNodeId> {
    (node_id(), text(), prop_oneof![Just(0u32), any::<u32>()]).prop_map(|(node_id, namespace_uri, server_index)| {
        ExpandedNodeId {
            node_id,
            namespace_uri,
            server_index,
        }
    })
}

/// Without a body, with bytes, with XML.
fn extension_object() -> impl Strategy<Value = ExtensionObject> {
    prop_oneof![
        Just(ExtensionObject::null()),
        (node_id(), prop::collection::vec(any::<u8>(), 0..10))
            .prop_map(|(id, body)| ExtensionObject::new(ByteStringBody::new(ByteString::from(body), id))),
        (node_id(), "<[a-z]{0,8}/>").prop_map(|(id, body)| ExtensionObject::new(XmlBody::new(
            body.into_bytes(),
            id,
            "Body".to_owned()
        ))),
    ]
}

fn diagnostic_info(depth: u32) -> BoxedStrategy<DiagnosticInfo> {
    let number = || prop::option::of(any::<i32>());
    let inner = match depth {
        0 => Just(None).boxed(),
        depth => prop::option::of(diagnostic_info(depth - 1).prop_map(Box::new)).boxed(),
    };
    (
        (number(), number(), number(), number()),
        prop::option::of(text()),
        prop::option::of(status()),
        inner,
    )
        .prop_map(|(numbers, additional_info, inner_status_code, inner)| DiagnosticInfo {
            symbolic_id: numbers.0,
            namespace_uri: numbers.1,
            locale: numbers.2,
            localized_text: numbers.3,
            additional_info,
            inner_status_code,
            inner_diagnostic_info: inner,
        })
        .boxed()
}
