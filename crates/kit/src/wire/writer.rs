//! A protobuf wire format writer for messages that are built once, such as answers and profiles. The fields are
//! appended in the order of the calls, and a message gets its length when it is complete.

use super::{bytes as bytes_key, number as number_key};
use crate::varint;

/// The fields of one message so far.
#[derive(Clone, Debug, Default)]
pub struct WireWriter {
    bytes: Vec<u8>,
}

impl WireWriter {
    pub fn new() -> WireWriter {
        WireWriter::default()
    }

    /// Writes an unsigned number, a `bool` or an `enum`. Zero is not written, because a reader takes a missing field
    /// for zero.
    pub fn number(&mut self, field: u32, value: u64) {
        if value != 0 {
            self.varint(u64::from(number_key(field)));
            self.varint(value);
        }
    }

    /// Writes an `int64` or `int32`, whose negative numbers have ten bytes. Zero is not written.
    pub fn signed(&mut self, field: u32, value: i64) {
        self.number(field, value as u64);
    }

    /// Writes a string or bytes, also empty ones: a repeated field counts them.
    pub fn bytes(&mut self, field: u32, value: &[u8]) {
        self.varint(u64::from(bytes_key(field)));
        self.varint(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    /// Writes a repeated field of numbers, zeros too. Nothing is written if there are none.
    pub fn packed(&mut self, field: u32, values: impl IntoIterator<Item = u64>) {
        let mut values = values.into_iter().peekable();
        if values.peek().is_some() {
            self.message(field, |packed| values.for_each(|value| packed.varint(value)));
        }
    }

    /// Writes a message within this message, whose fields `write` appends.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut WireWriter)) {
        self.varint(u64::from(bytes_key(field)));
        let begin = self.bytes.len();
        write(self);
        let end = self.bytes.len();
        // The length is known only now, and belongs before the message.
        self.varint((end - begin) as u64);
        let width = self.bytes.len() - end;
        self.bytes[begin..].rotate_right(width);
    }

    /// The encoded message.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }

    fn varint(&mut self, value: u64) {
        varint::put(&mut self.bytes, value);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{END, WireCursor};

    #[derive(Clone, Debug)]
    enum AnyField {
        Number(u64),
        Bytes(Vec<u8>),
        Packed(Vec<u64>),
        Message(Vec<(u32, AnyField)>),
    }

    /// Of every length, and not zero.
    fn any_number() -> impl Strategy<Value = u64> {
        (any::<u64>(), 0..64u32).prop_map(|(number, shift)| (number >> shift).max(1))
    }

    fn any_fields() -> impl Strategy<Value = Vec<(u32, AnyField)>> {
        let leaf = prop_oneof![
            any_number().prop_map(AnyField::Number),
            prop::collection::vec(any::<u8>(), 0..300).prop_map(AnyField::Bytes),
            prop::collection::vec(any_number(), 1..40).prop_map(AnyField::Packed),
        ];
        let field = leaf.prop_recursive(3, 40, 6, |inner| {
            prop::collection::vec((1..1u32 << 29, inner), 0..6).prop_map(AnyField::Message)
        });
        prop::collection::vec((1..1u32 << 29, field), 0..6)
    }

    fn write(out: &mut WireWriter, fields: &[(u32, AnyField)]) {
        for (field, value) in fields {
            match value {
                AnyField::Number(value) => out.number(*field, *value),
                AnyField::Bytes(value) => out.bytes(*field, value),
                AnyField::Packed(values) => out.packed(*field, values.iter().copied()),
                AnyField::Message(fields) => out.message(*field, |out| write(out, fields)),
            }
        }
    }

    fn assert_read(mut at: WireCursor<'_>, fields: &[(u32, AnyField)]) {
        for (field, value) in fields {
            let key = at.key().unwrap();
            match value {
                AnyField::Number(value) => {
                    assert_eq!((key, at.number()), (number_key(*field), Ok(*value)));
                }
                AnyField::Bytes(value) => {
                    assert_eq!((key, at.bytes()), (bytes_key(*field), Ok(&value[..])));
                }
                AnyField::Packed(values) => {
                    let mut found = Vec::new();
                    at.packed_numbers(|number| found.push(number)).unwrap();
                    assert_eq!((key, &found), (bytes_key(*field), values));
                }
                AnyField::Message(fields) => {
                    assert_eq!(key, bytes_key(*field));
                    assert_read(at.message().unwrap(), fields);
                }
            }
        }
        assert_eq!(at.key(), Ok(END));
    }

    proptest! {
        #[test]
        fn every_field_is_read_as_it_was_written(fields in any_fields()) {
            let mut out = WireWriter::new();
            write(&mut out, &fields);
            assert_read(WireCursor::new(&out.finish()), &fields);
        }
    }

    #[test]
    fn zeros_are_left_out_where_a_reader_takes_them_for_granted() {
        let mut out = WireWriter::new();
        out.number(1, 0);
        out.signed(2, 0);
        out.signed(3, -1);
        out.bytes(4, b"");
        out.packed(5, []);
        out.packed(6, [0, 300]);
        out.message(16, |_| {});
        let expected = [
            &[0x18u8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..],
            &[0x22, 0],
            &[0x32, 3, 0, 0xac, 0x02],
            &[0x82, 0x01, 0],
        ];
        assert_eq!(out.finish(), expected.concat());
    }
}
