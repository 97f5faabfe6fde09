//! Entry points of the fuzz targets in `fuzz/`: decoders of server data, which are private otherwise.
//!
//! The targets are a separate workspace and can call only public functions. With a feature they would test other code
//! than what ships, so these functions are always compiled; they are hidden from the documentation and must not be
//! called elsewhere.

use bytes::Bytes;
use opcua::types::NodeId;
use thalweg_record::json;

use crate::channel::{AnswerBody, ServiceRequest};
use crate::value::types::{FieldEncoding, FieldLayout, Rank, Structure, StructureKind};
use crate::value::{DataValue, Decoder, StructureRegistry, ValueContent, answers};

/// Maximum memory of a value, above what the budget of a response allows.
const HEAP_BYTES_MAX: usize = 1 << 30;

/// Structures from the first bytes, then data values that may use them.
pub fn values(data: &[u8]) {
    let (book, rest) = generated(data);
    let mut decoder = Decoder::new(rest, &book);
    while !decoder.is_empty() {
        let Ok(value) = decoder.data_value() else { return };
        use_up(&value);
    }
}

/// Does with a value what a flow would do.
fn use_up(value: &DataValue) {
    if let ValueContent::Value(value) = &value.content {
        assert!(value.heap_bytes() < HEAP_BYTES_MAX);
        let _text = json::to_string(value);
    }
}

/// The first byte chooses the service, the rest is its response after the type id.
pub fn answers(data: &[u8]) {
    use opcua::types::{PublishRequest, ReadRequest, RepublishRequest};
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let book = StructureRegistry::standard();
    let mut values = Vec::new();
    match first % 3 {
        0 => drop(answers::publish(&body::<PublishRequest>(rest), &book, &mut values)),
        1 => drop(answers::republish(&body::<RepublishRequest>(rest), &book, &mut values)),
        _ => {
            let read = answers::read(&body::<ReadRequest>(rest), &book).unwrap_or_default();
            values.extend(read.into_iter().map(|value| (0, value)));
        }
    }
    values.iter().for_each(|(_, value)| use_up(value));
}

/// Data of a connection, as `channel::fuzz` describes it.
pub fn frames(data: &[u8]) {
    crate::channel::fuzz::frames(data);
}

fn body<S: ServiceRequest>(content: &[u8]) -> AnswerBody {
    let id = u16::try_from(S::RESPONSE as u32).unwrap_or_default();
    let mut bytes = vec![1, 0];
    bytes.extend(id.to_le_bytes());
    bytes.extend(content);
    AnswerBody::from_bytes(Bytes::from(bytes))
}

/// Builds a registry with the standard structures and up to seven others that refer to each other arbitrarily. Their
/// encodings are ns=1;i=0 and so on, which take four bytes.
fn generated(data: &[u8]) -> (StructureRegistry, &[u8]) {
    const KINDS: [StructureKind; 3] = [
        StructureKind::Plain,
        StructureKind::OptionalFields,
        StructureKind::Union,
    ];
    const RANKS: [Rank; 3] = [Rank::Scalar, Rank::Array, Rank::Matrix];
    let mut book = StructureRegistry::standard();
    let mut bytes = data.iter().copied();
    let mut next = || bytes.next().unwrap_or_default();
    let structures = next() % 8;
    for id in 0..structures {
        let kind = KINDS
            .into_iter()
            .cycle()
            .nth(usize::from(next()))
            .unwrap_or(StructureKind::Plain);
        let fields = (0..next() % 8).map(|_| {
            let element = match next() % 32 {
                built_in @ 1..=25 => FieldEncoding::BuiltIn(built_in),
                other => FieldEncoding::Structure(NodeId::new(1, u32::from(other % 8) + 100)),
            };
            let shape = next();
            FieldLayout {
                name: "field".into(),
                element,
                rank: RANKS
                    .into_iter()
                    .cycle()
                    .nth(usize::from(shape & 0x7F))
                    .unwrap_or(Rank::Scalar),
                optional: shape & 0x80 != 0,
            }
        });
        let structure = Structure {
            kind,
            fields: fields.collect(),
        };
        let data_type = NodeId::new(1, u32::from(id) + 100);
        book.learn(data_type.clone(), structure);
        book.learn_encoding(NodeId::new(1, u32::from(id)), data_type);
    }
    let read = data.len() - bytes.len();
    (book, data.get(read..).unwrap_or_default())
}

#[cfg(test)]
mod tests;
