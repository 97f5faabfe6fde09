//! Compares this decoder with the library's on the same bytes: values of all types encoded by the library, also with a
//! few bytes changed. Where both accept the bytes, they return the same value and end at the same byte. Where only one
//! does, the reason is listed in [`ONLY_OURS`] or [`ONLY_THEIRS`]. Structures stay bytes on both sides.

use std::io::Cursor;

use opcua::types::{
    BinaryDecodable as _, BinaryEncodable, ContextOwned, DataValue as UaDataValue, DecodingOptions, DepthGauge,
    FallbackTypeLoader, NamespaceMap, TypeLoaderCollection, Variant,
};
use proptest::prelude::*;
use thalweg_record::{Structured, Value};

use super::*;
use crate::mutation::{mutate, mutations};
use crate::value::generated;
use wire::Wire;

mod meaning;
mod wire;

/// Errors of the library for bytes that this decoder accepts.
const ONLY_OURS: [(&str, &str); 6] = [
    (
        "not valid UTF-8",
        "one odd character must not cost a value: it is replaced",
    ),
    ("is a negative number", "a length below -1 is read as -1: null"),
    ("Invalid array_length", "the same"),
    ("Array length is negative", "the same, of dimensions"),
    (
        "imension",
        "dimensions that do not fit leave the list flat, and a scalar has none",
    ),
    (
        "Unrecognized encoding mask: 0",
        "an array of no type without elements is null or empty",
    ),
];

/// Errors of this decoder for bytes that the library accepts.
const ONLY_THEIRS: [(&str, &str); 2] = [
    (
        "nested too deeply",
        "the library does not count data values and diagnostic infos",
    ),
    (
        "a NodeId has an unknown encoding",
        "the library ignores two bits of an ExpandedNodeId's encoding that mean nothing",
    ),
];

fn context() -> ContextOwned {
    let mut loaders = TypeLoaderCollection::new_empty();
    loaders.add_type_loader(FallbackTypeLoader);
    let options = DecodingOptions {
        max_string_length: ELEMENTS_MAX,
        max_byte_string_length: ELEMENTS_MAX,
        max_array_length: ELEMENTS_MAX,
        decoding_depth_gauge: DepthGauge::new(u64::from(DEPTH_MAX) * 2),
        ..DecodingOptions::default()
    };
    ContextOwned::new(NamespaceMap::new(), loaders, options)
}

fn encoded(value: &impl BinaryEncodable) -> Vec<u8> {
    value.encode_to_vec(&context().context())
}

/// A data value and the number of bytes it took, or the error.
type Decoded<T> = std::result::Result<(T, usize), String>;

fn ours(bytes: &[u8]) -> Decoded<DataValue> {
    let book = StructureRegistry::default();
    let mut decoder = Decoder::new(bytes, &book);
    let value = decoder.data_value().map_err(|error| error.to_string())?;
    Ok((value, bytes.len() - decoder.rest.len()))
}

fn theirs(bytes: &[u8]) -> Decoded<UaDataValue> {
    let mut cursor = Cursor::new(bytes);
    let value = UaDataValue::decode(&mut cursor, &context().context()).map_err(|error| error.to_string())?;
    Ok((value, cursor.position() as usize))
}

/// Returns whether two values are identical to the bit.
fn same(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::F32(ours), Value::F32(theirs)) => ours.to_bits() == theirs.to_bits(),
        (Value::F64(ours), Value::F64(theirs)) => ours.to_bits() == theirs.to_bits(),
        (Value::Array(ours), Value::Array(theirs)) => {
            ours.len() == theirs.len() && ours.iter().zip(theirs.iter()).all(|(ours, theirs)| same(ours, theirs))
        }
        (ours, theirs) => ours == theirs,
    }
}

/// As [`same`], but ignores what the library does not distinguish: null and an empty list, an extension object without
/// a body and none at all, and true encoded other than as 1 and false.
fn same_to_the_library(ours: &Value, theirs: &Value) -> bool {
    match (ours, theirs) {
        (Value::Null, Value::Array(theirs)) => theirs.is_empty(),
        (Value::Null, Value::Bytes(theirs)) => theirs.is_empty(),
        (Value::Structured(ours), Value::Null) => {
            matches!(&**ours, Structured::Extension { body, .. } if body.is_empty())
        }
        (Value::Bool(true), Value::Bool(false)) => true,
        (Value::Array(ours), Value::Array(theirs)) => {
            let mut pairs = ours.iter().zip(theirs.iter());
            ours.len() == theirs.len() && pairs.all(|(ours, theirs)| same_to_the_library(ours, theirs))
        }
        (ours, theirs) => same(ours, theirs),
    }
}

fn value_of(content: &ValueContent) -> Value {
    match content {
        ValueContent::Nothing => Value::Null,
        ValueContent::Value(value) => value.clone(),
        ValueContent::TooLarge => panic!("no array here is too large"),
    }
}

/// Returns whether two data values are the same; `is_same` compares their contents.
fn agree(ours: &DataValue, theirs: &DataValue, is_same: impl Fn(&Value, &Value) -> bool) -> bool {
    (ours.stamps, ours.wrapped) == (theirs.stamps, theirs.wrapped)
        && is_same(&value_of(&ours.content), &value_of(&theirs.content))
}

/// Decodes the bytes with both and compares the results. `Err` describes the difference.
fn compare(bytes: &[u8]) -> std::result::Result<(), String> {
    let (wire, length) = Wire::data_value(bytes);
    let (ours, theirs) = (ours(bytes), theirs(bytes));
    if let Ok((_, taken)) = &ours
        && length != Some(*taken)
    {
        return Err(format!("{taken} bytes were taken, and there are {length:?}"));
    }
    let listed = |reasons: &[(&str, &str)], error: &str| reasons.iter().any(|(part, _)| error.contains(part));
    match (&ours, &theirs) {
        _ if wire.library_is_lost => Ok(()),
        (Ok((ours, taken)), Ok((theirs, taken_by_library))) => {
            let meaning = meaning::of_data_value(theirs);
            match taken == taken_by_library && agree(ours, &meaning, same_to_the_library) {
                true => Ok(()),
                false => Err(format!(
                    "{ours:?} of {taken} bytes, {meaning:?} of {taken_by_library} bytes"
                )),
            }
        }
        (Ok(_), Err(error)) if !listed(&ONLY_OURS, error) => Err(format!("only the library refuses: {error}")),
        (Err(error), Ok(_)) if !listed(&ONLY_THEIRS, error) => Err(format!("only the library takes it; {error}")),
        _ => Ok(()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_the_library_writes_is_read_as_it_was_meant(value in generated::data_value()) {
        let bytes = encoded(&value);
        let (ours, taken) = ours(&bytes).unwrap();
        prop_assert_eq!(taken, bytes.len());
        let meant = meaning::of_data_value(&value);
        prop_assert!(agree(&ours, &meant, same), "{:?} for {:?}", ours, meant);
        prop_assert_eq!(compare(&bytes), Ok(()));
        // The same variant alone.
        if let Some(variant) = &value.value {
            let (bytes, book) = (encoded(variant), StructureRegistry::default());
            let mut decoder = Decoder::new(&bytes, &book);
            let ours = decoder.variant().unwrap();
            prop_assert!(same(&ours, &meaning::of_variant(variant)) && decoder.is_empty());
        }
    }

    #[test]
    fn every_part_of_a_value_is_refused(value in generated::data_value(), cut in any::<prop::sample::Index>()) {
        let bytes = encoded(&value);
        let part = &bytes[..cut.index(bytes.len())];
        prop_assert!(ours(part).is_err());
        prop_assert_eq!(compare(part), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn changed_bytes_are_read_alike_or_refused_for_a_reason_that_is_known(
        value in generated::data_value(),
        mutations in mutations(),
    ) {
        let mut bytes = encoded(&value);
        mutate(&mut bytes, &mutations);
        prop_assert_eq!(compare(&bytes), Ok(()), "{:?}", bytes);
    }
}

/// Each type in each shape at least once, without relying on the strategies.
#[test]
fn every_type_is_compared_alone_in_a_list_and_in_a_matrix() {
    use opcua::types::{Array, VariantScalarTypeId};
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for kind in types::BOOLEAN..=types::DIAGNOSTIC_INFO {
        let strategy = generated::scalar(kind, 1);
        for _ in 0..20 {
            let mut scalar = || strategy.new_tree(&mut runner).unwrap().current();
            let kind = VariantScalarTypeId::from_encoding_mask(kind).unwrap();
            let four: Vec<Variant> = (0..4).map(|_| scalar()).collect();
            let variants = [
                scalar(),
                Variant::from(Array::new(kind, Vec::new()).unwrap()),
                Variant::from(Array::new(kind, four.clone()).unwrap()),
                Variant::from(Array::new_multi(kind, four, vec![2, 2]).unwrap()),
            ];
            for variant in variants {
                let meant = meaning::of_variant(&variant);
                let bytes = encoded(&UaDataValue::value_only(variant));
                let (ours, _) = ours(&bytes).unwrap();
                assert!(same(&value_of(&ours.content), &meant), "{ours:?} for {meant:?}");
                assert_eq!(compare(&bytes), Ok(()));
            }
        }
    }
}

/// The library never writes picoseconds without their time, nor unused bits.
#[test]
fn every_mask_of_a_data_value_is_read_alike() {
    const FIELDS: [(u8, &[u8]); 6] = [
        (1, &[types::BYTE, 7]),
        (2, &[0, 0, 0x40, 0x80]),
        (4, &[1, 2, 3, 4, 5, 6, 7, 1]),
        (16, &[1, 1]),
        (8, &[8, 7, 6, 5, 4, 3, 2, 1]),
        (32, &[2, 2]),
    ];
    for mask in 0..=u8::MAX {
        let fields = FIELDS.iter().filter(|(bit, _)| mask & bit != 0);
        let bytes: Vec<u8> = std::iter::once(mask)
            .chain(fields.flat_map(|(_, bytes)| bytes.iter().copied()))
            .collect();
        let (value, taken) = ours(&bytes).unwrap();
        assert_eq!(taken, bytes.len(), "{mask:#b}");
        assert_eq!(compare(&bytes), Ok(()), "{mask:#b}");
        let expected = if mask & 1 == 0 {
            ValueContent::Nothing
        } else {
            ValueContent::Value(Value::U8(7))
        };
        assert_eq!(value.content, expected);
        assert_eq!(value.stamps.status, if mask & 2 == 0 { 0 } else { 0x8040_0000 });
        assert_eq!(value.stamps.source_time.is_missing(), mask & 4 == 0);
        assert_eq!(value.stamps.server_time.is_missing(), mask & 8 == 0);
    }
}

/// With all bits of the masks; the library's encoder omits those of empty parts.
#[test]
fn every_mask_of_a_localized_text_and_a_diagnostic_info_is_read_alike() {
    let text = |text: &[u8]| [&(text.len() as i32).to_le_bytes()[..], text].concat();
    for mask in 0..=u8::MAX {
        for parts in [[text(b"en"), text(b"t")], [text(b""), (-1i32).to_le_bytes().to_vec()]] {
            let mut bytes = vec![1, types::LOCALIZED_TEXT, mask];
            for (bit, part) in parts.iter().enumerate() {
                if mask & (1 << bit) != 0 {
                    bytes.extend(part);
                }
            }
            assert_eq!(ours(&bytes).unwrap().1, bytes.len());
            assert_eq!(compare(&bytes), Ok(()), "{mask:#b}");
        }
        if mask & 0x40 == 0 {
            let mut bytes = vec![1, types::DIAGNOSTIC_INFO, mask];
            (0..(mask & 0x0F).count_ones()).for_each(|n| bytes.extend(n.to_le_bytes()));
            if mask & 0x10 != 0 {
                bytes.extend(text(b"more"));
            }
            if mask & 0x20 != 0 {
                bytes.extend([0, 0, 0x40, 0x80]);
            }
            assert_eq!(ours(&bytes).unwrap().1, bytes.len());
            assert_eq!(compare(&bytes), Ok(()), "{mask:#b}");
        }
    }
}

/// Part 6, 5.1.2: decoders read the numbers 26 to 31 as ByteStrings and arrays of them. The library reads nothing.
#[test]
fn reserved_types_are_byte_strings_and_numbers_beyond_them_are_nothing() {
    let counted = [3, 0, 0, 0, 1, 2, 3];
    for kind in 0..=0x3F_u8 {
        if kind > 0 && kind < RESERVED_FIRST {
            continue;
        }
        let scalar = [&[1, kind][..], &counted].concat();
        let array = [&[1, kind | 0x80, 2, 0, 0, 0][..], &counted, &counted].concat();
        let whole = |bytes: &[u8]| ours(bytes).map(|(value, taken)| (value_of(&value.content), taken == bytes.len()));
        let bytes = Value::Bytes([1, 2, 3][..].into());
        match kind {
            0 => assert!(whole(&array).is_err()),
            RESERVED_FIRST..=RESERVED_LAST => {
                assert_eq!(whole(&scalar), Ok((bytes.clone(), true)));
                assert_eq!(whole(&array), Ok((Value::from(vec![bytes.clone(), bytes]), true)));
            }
            _ => {
                let empty = [1, kind | 0x80, 0, 0, 0, 0];
                assert!(
                    [&scalar[..], &array, &empty].iter().all(|bytes| whole(bytes).is_err()),
                    "{kind}"
                );
            }
        }
    }
}

/// Deviations of the library from the specification, to detect a version that fixes them.
#[test]
fn what_the_library_reads_wrongly() {
    // An empty list with dimensions, as the library itself writes it: the library does not read the dimensions.
    let empty = [1, 0xC0 | types::INT32, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!((ours(&empty).unwrap().1, theirs(&empty).unwrap().1), (10, 6));
    // A reserved type.
    let reserved = [1, RESERVED_FIRST, 1, 0, 0, 0, 9];
    assert_eq!((ours(&reserved).unwrap().1, theirs(&reserved).unwrap().1), (7, 2));
    // Everything except zero is true.
    let yes = [1, types::BOOLEAN, 2];
    assert_eq!(ours(&yes).unwrap().0.content, ValueContent::Value(Value::Bool(true)));
    assert_eq!(theirs(&yes).unwrap().0.value, Some(Variant::Boolean(false)));
    // A null array is no array.
    let null = [1, 0x80 | types::INT32, 0xFF, 0xFF, 0xFF, 0xFF];
    assert_eq!(ours(&null).unwrap().0.content, ValueContent::Nothing);
    assert_eq!(
        meaning::of_data_value(&theirs(&null).unwrap().0).content,
        ValueContent::Value(Value::from(vec![]))
    );
    // An extension object without a body still has a type.
    let bare = [1, types::EXTENSION_OBJECT, 0, 9, 0];
    assert!(matches!(
        value_of(&ours(&bare).unwrap().0.content),
        Value::Structured(_)
    ));
    assert_eq!(
        meaning::of_data_value(&theirs(&bare).unwrap().0).content,
        ValueContent::Nothing
    );
}

/// Both must reject a NodeId with the bits of an expanded one, whose text would be misread as what follows it, and a
/// body in an unknown encoding.
#[test]
fn what_would_be_read_at_the_wrong_place_is_refused() {
    let namespace_uri = [1, types::NODE_ID, 0x80, 5, 1, 0, 0, 0, b'u'];
    let body = [1, types::EXTENSION_OBJECT, 0, 9, 3, 1, 0, 0, 0, 7];
    for bytes in [&namespace_uri[..], &body] {
        assert!(ours(bytes).is_err() && theirs(bytes).is_err(), "{bytes:?}");
    }
}

/// An XML body in place of a binary one is no structure, even if its type is known.
#[test]
fn a_body_of_xml_stays_as_it_is() {
    let mut book = StructureRegistry::default();
    let structure = types::Structure {
        kind: types::StructureKind::Plain,
        fields: vec![types::FieldLayout {
            name: "a".into(),
            element: types::FieldEncoding::BuiltIn(types::UINT32),
            rank: types::Rank::Scalar,
            optional: false,
        }],
    };
    book.learn(NodeId::new(0, 8u32), structure);
    book.learn_encoding(NodeId::new(0, 9u32), NodeId::new(0, 8u32));
    let extension = |encoding: u8| [&[types::EXTENSION_OBJECT, 0, 9, encoding, 4, 0, 0, 0][..], b"<a/>"].concat();
    let decoded = |bytes: &[u8]| Decoder::new(bytes, &book).variant().unwrap();
    assert!(matches!(decoded(&extension(1)), Value::Object(_)));
    assert!(matches!(decoded(&extension(2)), Value::Structured(_)));
}
