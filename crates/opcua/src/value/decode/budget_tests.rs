//! Responses in which few bytes stand for many values: their memory is limited in any case.

use opcua::types::NodeId;

use super::*;
use crate::value::types::{FieldEncoding, FieldLayout, Rank, Structure, StructureKind};

const ENCODING: u32 = 100;

fn structure(fields: Vec<FieldLayout>) -> Structure {
    Structure {
        kind: StructureKind::Plain,
        fields,
    }
}

fn field(name: &str, element: FieldEncoding, rank: Rank) -> FieldLayout {
    FieldLayout {
        name: name.into(),
        element,
        rank,
        optional: false,
    }
}

fn data_type(id: u32) -> NodeId {
    NodeId::new(3, id)
}

/// A registry whose structures have the numbers 0, 1, …; the last one is encoded as [`ENCODING`].
fn book(structures: Vec<Structure>) -> StructureRegistry {
    let mut book = StructureRegistry::default();
    let last = structures.len() as u32 - 1;
    for (id, structure) in structures.into_iter().enumerate() {
        book.learn(data_type(id as u32), structure);
    }
    book.learn_encoding(NodeId::new(3, ENCODING), data_type(last));
    book
}

fn extension(body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![types::EXTENSION_OBJECT, 2, 3, 0];
    bytes.extend(ENCODING.to_le_bytes());
    bytes.push(1);
    bytes.extend((body.len() as i32).to_le_bytes());
    bytes.extend(body);
    bytes
}

fn is_left_as_bytes(value: &Value) -> bool {
    matches!(value, Value::Structured(structured) if matches!(&**structured, Structured::Extension { .. }))
}

/// A DataValue with an array of a type whose elements are all zero bytes.
fn array(kind: u8, element_bytes: usize, length: i32) -> Vec<u8> {
    let mut bytes = vec![1, kind | 0x80];
    bytes.extend(length.to_le_bytes());
    bytes.resize(bytes.len() + length as usize * element_bytes, 0);
    bytes
}

#[test]
fn an_array_of_structures_without_content_is_left_as_bytes() {
    let nothing = structure(Vec::new());
    let of_nothing = structure(vec![field("n", FieldEncoding::Structure(data_type(0)), Rank::Scalar)]);
    let many = structure(vec![field("many", FieldEncoding::Structure(data_type(1)), Rank::Array)]);
    let book = book(vec![nothing, of_nothing, many]);
    let bytes = extension(&1_000_000i32.to_le_bytes());
    let mut decoder = Decoder::new(&bytes, &book);
    assert!(is_left_as_bytes(&decoder.variant().unwrap()));
    // Rejected at the first element, not after the last.
    assert!(decoder.budget > ANSWER_ELEMENTS_MAX - 1_100_000, "{}", decoder.budget);
    assert!(!decoder.exhausted);
}

#[test]
fn structures_that_multiply_without_a_byte_are_left_as_bytes() {
    // 30 levels of two fields each: a billion objects.
    let twice = |of: u32| {
        let one = |name| field(name, FieldEncoding::Structure(data_type(of)), Rank::Scalar);
        structure(vec![one("a"), one("b")])
    };
    let mut structures = vec![structure(Vec::new())];
    structures.extend((0..30).map(twice));
    let book = book(structures);
    let bytes = extension(&[]);
    let mut decoder = Decoder::new(&bytes, &book);
    assert!(is_left_as_bytes(&decoder.variant().unwrap()));
    assert!(decoder.is_exhausted());
}

#[test]
fn many_large_arrays_are_left_out_once_they_are_too_much_together() {
    const ARRAYS: usize = 10;
    let mut bytes: Vec<u8> = (0..ARRAYS).flat_map(|_| array(types::BOOLEAN, 1, 1_000_000)).collect();
    bytes.extend([1, types::BYTE, 7]);
    let book = StructureRegistry::default();
    let mut decoder = Decoder::new(&bytes, &book);
    let contents: Vec<ValueContent> = (0..ARRAYS).map(|_| decoder.data_value().unwrap().content).collect();
    let whole = contents
        .iter()
        .filter(|content| matches!(content, ValueContent::Value(_)))
        .count();
    assert_eq!(whole, ANSWER_ELEMENTS_MAX / 1_000_000);
    assert!(
        contents
            .iter()
            .skip(whole)
            .all(|content| *content == ValueContent::TooLarge)
    );
    // The value after them is not lost.
    assert_eq!(decoder.data_value().unwrap().content, ValueContent::Value(Value::U8(7)));
    assert!(decoder.is_empty() && decoder.is_exhausted());
}

#[test]
fn elements_with_an_allocation_count_for_what_they_take() {
    // LocalizedTexts of one byte each.
    let bytes: Vec<u8> = (0..3)
        .flat_map(|_| array(types::LOCALIZED_TEXT, 1, 1_000_000))
        .collect();
    let book = StructureRegistry::default();
    let mut decoder = Decoder::new(&bytes, &book);
    assert!(matches!(decoder.data_value().unwrap().content, ValueContent::Value(_)));
    assert_eq!(decoder.data_value().unwrap().content, ValueContent::TooLarge);
}
