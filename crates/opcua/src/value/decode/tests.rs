use opcua::types::{
    self as ua, Array, BinaryEncodable, ContextOwned, DataValue as UaDataValue, DateTime, DecodingOptions,
    ExpandedNodeId, ExtensionObject, LocalizedText, NamespaceMap, QualifiedName, StatusCode, Variant,
    VariantScalarTypeId, XmlElement,
};
use proptest::prelude::*;
use thalweg_record::json;

use super::*;
use crate::value::types::{FieldEncoding, FieldLayout, Rank, Structure, StructureKind};

fn encode(value: &impl BinaryEncodable) -> Vec<u8> {
    let context = ContextOwned::new_default(NamespaceMap::new(), DecodingOptions::default());
    value.encode_to_vec(&context.context())
}

/// Encodes and decodes a variant and returns its JSON.
fn decoded(variant: Variant) -> String {
    let book = StructureRegistry::default();
    let bytes = encode(&UaDataValue::value_only(variant));
    let mut decoder = Decoder::new(&bytes, &book);
    let value = decoder.data_value().unwrap();
    assert!(decoder.is_empty());
    match value.content {
        ValueContent::Value(value) => json::to_string(&value),
        other => format!("{other:?}"),
    }
}

#[test]
fn every_scalar_type_has_its_form() {
    let guid: ua::Guid = "72962B91-FA75-4AE6-8D28-B404DC7DAF63".parse().unwrap();
    let date = DateTime::parse_from_rfc3339("2031-05-06T07:08:09.1234Z").unwrap();
    let cases: Vec<(Variant, &str)> = vec![
        (Variant::Boolean(true), "true"),
        (Variant::SByte(i8::MIN), "-128"),
        (Variant::Byte(255), "255"),
        (Variant::Int16(i16::MIN), "-32768"),
        (Variant::UInt16(u16::MAX), "65535"),
        (Variant::Int32(i32::MIN), "-2147483648"),
        (Variant::UInt32(u32::MAX), "4294967295"),
        (Variant::Int64(i64::MIN), "-9223372036854775808"),
        (Variant::UInt64(u64::MAX), "18446744073709551615"),
        (Variant::Float(0.1), "0.1"),
        (Variant::Double(1e6), "1000000"),
        (Variant::Double(f64::NAN), "NaN"),
        (Variant::Float(f32::NEG_INFINITY), "-Inf"),
        (Variant::from("a\"ä"), "\"a\\\"ä\""),
        (Variant::String(UAString::null()), "\"\""),
        (Variant::from(date), "\"2031-05-06T07:08:09.1234Z\""),
        (
            Variant::from(guid),
            "{\"Data1\":1922444177,\"Data2\":64117,\"Data3\":19174,\"Data4\":\"jSi0BNx9r2M=\"}",
        ),
        (Variant::from(ByteString::from(vec![1, 2, 3])), "\"AQID\""),
        (Variant::XmlElement(XmlElement::from("<a/>")), "\"<a/>\""),
        (Variant::from(NodeId::new(2, "x")), "\"ns=2;s=x\""),
        (
            Variant::from(ExpandedNodeId {
                node_id: NodeId::new(0, 7u32),
                namespace_uri: UAString::from("urn:x"),
                server_index: 3,
            }),
            "{\"NodeID\":\"i=7\",\"NamespaceURI\":\"urn:x\",\"ServerIndex\":3}",
        ),
        (Variant::StatusCode(StatusCode::BadUnexpectedError), "2147549184"),
        (
            Variant::from(QualifiedName::new(3, "q")),
            "{\"NamespaceIndex\":3,\"Name\":\"q\"}",
        ),
        (
            Variant::from(LocalizedText::new("en", "text")),
            "{\"EncodingMask\":3,\"Locale\":\"en\",\"Text\":\"text\"}",
        ),
        (
            Variant::from(LocalizedText::null()),
            "{\"EncodingMask\":0,\"Locale\":\"\",\"Text\":\"\"}",
        ),
        (Variant::Variant(Box::new(Variant::Int32(5))), "5"),
        (Variant::Empty, "Nothing"),
    ];
    for (variant, expected) in cases {
        assert_eq!(decoded(variant), expected);
    }
}

#[test]
fn arrays_are_nested_by_their_dimensions() {
    let array = |values: Vec<i32>| {
        Array::new(
            VariantScalarTypeId::Int32,
            values.into_iter().map(Variant::Int32).collect::<Vec<_>>(),
        )
        .unwrap()
    };
    let matrix = |values: Vec<i32>, dimensions: Vec<u32>| {
        let values: Vec<Variant> = values.into_iter().map(Variant::Int32).collect();
        Array::new_multi(VariantScalarTypeId::Int32, values, dimensions).unwrap()
    };
    assert_eq!(decoded(Variant::Array(Box::new(array(vec![1, 2, 3])))), "[1,2,3]");
    assert_eq!(decoded(Variant::Array(Box::new(array(vec![])))), "[]");
    assert_eq!(
        decoded(Variant::Array(Box::new(matrix((1..=6).collect(), vec![2, 3])))),
        "[[1,2,3],[4,5,6]]"
    );
    let cube = decoded(Variant::Array(Box::new(matrix((1..=8).collect(), vec![2, 2, 2]))));
    assert_eq!(cube, "[[[1,2],[3,4]],[[5,6],[7,8]]]");
    let bytes = Array::new(VariantScalarTypeId::Byte, vec![Variant::Byte(0), Variant::Byte(127)]).unwrap();
    assert_eq!(decoded(Variant::Array(Box::new(bytes))), "\"AH8=\"");
    let rows = Array::new_multi(VariantScalarTypeId::Byte, vec![Variant::Byte(1); 4], vec![2, 2]).unwrap();
    assert_eq!(decoded(Variant::Array(Box::new(rows))), "[\"AQE=\",\"AQE=\"]");
}

#[test]
fn dimensions_that_do_not_fit_leave_the_list_flat() {
    let mut bytes = vec![0x80 | 0x40 | types::UINT16];
    bytes.extend(2i32.to_le_bytes());
    bytes.extend([1, 0, 2, 0]);
    bytes.extend(2i32.to_le_bytes());
    bytes.extend(3i32.to_le_bytes());
    bytes.extend((-5i32).to_le_bytes());
    let book = StructureRegistry::default();
    let value = Decoder::new(&bytes, &book).variant().unwrap();
    assert_eq!(json::to_string(&value), "[1,2]");
}

#[test]
fn stamps_and_status_come_with_the_value() {
    let source = DateTime::parse_from_rfc3339("2031-05-06T07:08:09.1234567Z").unwrap();
    let value = UaDataValue {
        value: Some(Variant::Variant(Box::new(Variant::from("x")))),
        status: Some(StatusCode::UncertainLastUsableValue),
        source_timestamp: Some(source),
        source_picoseconds: Some(7),
        server_timestamp: None,
        server_picoseconds: None,
    };
    let (bytes, book) = (encode(&value), StructureRegistry::default());
    let value = Decoder::new(&bytes, &book).data_value().unwrap();
    assert!(value.wrapped);
    assert_eq!(value.content, ValueContent::Value(Value::text("x")));
    assert_eq!(value.stamps.status, 0x4090_0000);
    assert_eq!(value.stamps.source_time.to_string(), "2031-05-06T07:08:09.1234567Z");
    assert!(value.stamps.server_time.is_missing());
}

#[test]
fn an_array_beyond_the_limit_is_told_and_what_follows_is_read() {
    let mut bytes = vec![1, 0x80 | types::BOOLEAN];
    let length = ELEMENTS_MAX + 1;
    bytes.extend((length as i32).to_le_bytes());
    bytes.resize(bytes.len() + length, 1);
    bytes.extend([1, types::BYTE, 9]);
    let book = StructureRegistry::default();
    let mut decoder = Decoder::new(&bytes, &book);
    assert_eq!(decoder.data_value().unwrap().content, ValueContent::TooLarge);
    assert_eq!(decoder.data_value().unwrap().content, ValueContent::Value(Value::U8(9)));
}

#[test]
fn a_lie_about_a_length_costs_nothing() {
    let book = StructureRegistry::default();
    for kind in [types::INT32, types::BYTE, types::STRING, types::VARIANT] {
        let mut bytes = vec![0x80 | kind];
        bytes.extend(i32::MAX.to_le_bytes());
        assert!(Decoder::new(&bytes, &book).variant().is_err());
    }
    let deep: Vec<u8> = std::iter::repeat_n(types::VARIANT, 1000).collect();
    assert!(Decoder::new(&deep, &book).variant().is_err());
}

fn field(name: &str, element: FieldEncoding, rank: Rank, optional: bool) -> FieldLayout {
    FieldLayout {
        name: name.into(),
        element,
        rank,
        optional,
    }
}

/// An ExtensionObject with a body of these bytes.
fn extension_bytes(encoding: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![types::EXTENSION_OBJECT, 2, 3, 0];
    bytes.extend(encoding.to_le_bytes());
    bytes.push(1);
    bytes.extend((body.len() as i32).to_le_bytes());
    bytes.extend(body);
    bytes
}

#[test]
fn a_described_structure_is_an_object_of_its_fields() {
    let data_type = |id: u32| NodeId::new(3, id);
    let mut book = StructureRegistry::default();
    let point = Structure {
        kind: StructureKind::Plain,
        fields: vec![
            field("x", FieldEncoding::BuiltIn(types::INT16), Rank::Scalar, false),
            field("names", FieldEncoding::BuiltIn(types::STRING), Rank::Array, false),
        ],
    };
    let outer = Structure {
        kind: StructureKind::OptionalFields,
        fields: vec![
            field("a", FieldEncoding::BuiltIn(types::BYTE), Rank::Scalar, true),
            field("b", FieldEncoding::BuiltIn(types::BYTE), Rank::Scalar, true),
            field("p", FieldEncoding::Structure(data_type(1)), Rank::Scalar, false),
            field("m", FieldEncoding::BuiltIn(types::UINT16), Rank::Matrix, false),
        ],
    };
    let union = Structure {
        kind: StructureKind::Union,
        fields: vec![
            field("flag", FieldEncoding::BuiltIn(types::BOOLEAN), Rank::Scalar, false),
            field("blob", FieldEncoding::BuiltIn(types::BYTE), Rank::Array, false),
        ],
    };
    for (id, structure) in [(1, point), (2, outer), (3, union)] {
        book.learn(data_type(id), structure);
        book.learn_encoding(data_type(id + 10), data_type(id));
    }
    let body: Vec<u8> = [
        &2u32.to_le_bytes()[..],
        &[7],
        &(-1i16).to_le_bytes(),
        &1i32.to_le_bytes(),
        &1i32.to_le_bytes(),
        b"n",
        &2i32.to_le_bytes(),
        &1i32.to_le_bytes(),
        &2i32.to_le_bytes(),
        &[5, 0, 6, 0],
    ]
    .concat();
    let json_of = |bytes: &[u8]| json::to_string(&Decoder::new(bytes, &book).variant().unwrap());
    assert_eq!(
        json_of(&extension_bytes(12, &body)),
        r#"{"b":7,"p":{"x":-1,"names":["n"]},"m":[[5,6]]}"#
    );
    let chosen = [&2u32.to_le_bytes()[..], &2i32.to_le_bytes(), &[1, 2]].concat();
    assert_eq!(json_of(&extension_bytes(13, &chosen)), r#"{"blob":"AQI="}"#);
    assert_eq!(json_of(&extension_bytes(13, &0u32.to_le_bytes())), "{}");
    // A body that does not fit its description, and an encoding without a description.
    assert_eq!(
        json_of(&extension_bytes(13, &[9])),
        r#"{"TypeID":"ns=3;i=13","Body":"CQ=="}"#
    );
    assert_eq!(
        json_of(&extension_bytes(99, &[1, 2, 3])),
        r#"{"TypeID":"ns=3;i=99","Body":"AQID"}"#
    );
    assert_eq!(book.take_missing(), [NodeId::new(3, 99u32)]);
    assert!(book.take_missing().is_empty());
}

#[test]
fn a_null_extension_object_is_no_value() {
    assert_eq!(decoded(Variant::ExtensionObject(ExtensionObject::null())), "Nothing");
}

fn any_scalar() -> impl Strategy<Value = (Variant, Value)> {
    prop_oneof![
        any::<bool>().prop_map(|v| (Variant::Boolean(v), Value::Bool(v))),
        any::<i8>().prop_map(|v| (Variant::SByte(v), Value::I8(v))),
        any::<i16>().prop_map(|v| (Variant::Int16(v), Value::I16(v))),
        any::<i32>().prop_map(|v| (Variant::Int32(v), Value::I32(v))),
        any::<i64>().prop_map(|v| (Variant::Int64(v), Value::I64(v))),
        any::<u8>().prop_map(|v| (Variant::Byte(v), Value::U8(v))),
        any::<u16>().prop_map(|v| (Variant::UInt16(v), Value::U16(v))),
        any::<u32>().prop_map(|v| (Variant::UInt32(v), Value::U32(v))),
        any::<u64>().prop_map(|v| (Variant::UInt64(v), Value::U64(v))),
        any::<f32>()
            .prop_filter("comparable", |v| !v.is_nan())
            .prop_map(|v| (Variant::Float(v), Value::F32(v))),
        any::<f64>()
            .prop_filter("comparable", |v| !v.is_nan())
            .prop_map(|v| (Variant::Double(v), Value::F64(v))),
        ".{0,20}".prop_map(|v| (Variant::from(v.as_str()), Value::text(v.as_str()))),
        (0i64..2_650_467_743_990_000_000)
            .prop_map(|v| (Variant::from(DateTime::from(v)), Value::Time(ticks::from_opcua(v)))),
        any::<u32>().prop_map(|v| (Variant::StatusCode(StatusCode::from(v)), Value::Status(v))),
        prop::collection::vec(any::<u8>(), 0..20)
            .prop_map(|v| (Variant::from(ByteString::from(v.clone())), Value::Bytes(v.into()))),
        (any::<u16>(), any::<u32>()).prop_map(|(ns, id)| (
            Variant::from(NodeId::new(ns, id)),
            Value::NodeId(node_id::text(&NodeId::new(ns, id)).into())
        )),
    ]
}

proptest! {
    #[test]
    fn what_the_library_encodes_is_read_exactly((variant, value) in any_scalar()) {
        let (bytes, book) = (encode(&variant), StructureRegistry::default());
        let mut decoder = Decoder::new(&bytes, &book);
        prop_assert_eq!(decoder.variant().unwrap(), value);
        prop_assert!(decoder.is_empty());
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let book = StructureRegistry::default();
        let mut decoder = Decoder::new(&bytes, &book);
        while decoder.data_value().is_ok() && !decoder.is_empty() {}
    }

    #[test]
    fn every_cut_of_a_value_is_an_error_or_the_value((variant, _) in any_scalar(), cut in any::<prop::sample::Index>()) {
        let (bytes, book) = (encode(&variant), StructureRegistry::default());
        let part = &bytes[..cut.index(bytes.len())];
        prop_assert!(Decoder::new(part, &book).variant().is_err());
    }
}

/// A list of one element that announces very many dimensions stays a list: a server must not control the depth of
/// recursion.
#[test]
fn dimensions_without_end_are_not_folded() {
    let book = StructureRegistry::default();
    let many = 100_000_i32;
    let matrix = |kind: u8, element: &[u8]| {
        // A DataValue with only a value: an array of a built-in type with dimensions.
        let mut bytes = vec![1, 0xC0 | kind];
        bytes.extend(1_i32.to_le_bytes());
        bytes.extend(element);
        bytes.extend(many.to_le_bytes());
        (0..many).for_each(|_| bytes.extend(1_i32.to_le_bytes()));
        bytes
    };
    for (bytes, flat) in [
        (matrix(types::INT32, &7_i32.to_le_bytes()), "[7]"),
        (matrix(types::BYTE, &[7]), "\"Bw==\""),
    ] {
        let mut decoder = Decoder::new(&bytes, &book);
        let ValueContent::Value(value) = decoder.data_value().unwrap().content else {
            panic!("a value was expected");
        };
        assert_eq!(json::to_string(&value), flat);
        drop(value);
    }
    let field = FieldLayout {
        name: "Matrix".into(),
        element: FieldEncoding::BuiltIn(types::INT32),
        rank: Rank::Matrix,
        optional: false,
    };
    let mut bytes = many.to_le_bytes().to_vec();
    (0..many).for_each(|_| bytes.extend(1_i32.to_le_bytes()));
    bytes.extend(7_i32.to_le_bytes());
    let value = Decoder::new(&bytes, &book).field(&field).unwrap();
    assert_eq!(json::to_string(&value), "[7]");
    // Realistic dimensions are folded.
    assert!(folds(8, &[2, 2, 2]) && !folds(8, &[8]));
}

#[test]
fn a_value_that_lies_in_very_many_others_is_refused() {
    const VARIANT: u8 = 24;
    let book = StructureRegistry::default();
    let decoded = |depth: usize| {
        // A DataValue with only a value: variants within variants, and a Boolean in the last one.
        let bytes = [&[1][..], &vec![VARIANT; depth], &[1, 1]].concat();
        Decoder::new(&bytes, &book).data_value().map(drop)
    };
    decoded(20).unwrap();
    for depth in [40, 100_000] {
        let error = decoded(depth).unwrap_err();
        assert!(error.to_string().contains("nested too deeply"), "{error}");
    }
}
