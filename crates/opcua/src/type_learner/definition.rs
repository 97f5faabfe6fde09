//! A StructureDefinition as sent by the server: data types of fields, not yet resolved to encodings.

use opcua::types::{NodeId, ObjectId};
use thalweg_record::Text;

use crate::node_id;
use crate::value::types::StructureKind;
use crate::value::{DecodeError, Decoder, StructureRegistry, ValueContent};

/// Maximum number of fields of one structure. Real structures have some dozens; the response size alone would allow
/// millions.
pub(super) const FIELDS_MAX: usize = 1000;

/// Why a DataTypeDefinition is not usable; each text completes "the DataTypeDefinition of …".
#[derive(Debug, thiserror::Error)]
pub(super) enum NoDefinition {
    #[error("does not describe a structure")]
    OfAnotherKind,
    #[error("has more than {} fields", FIELDS_MAX)]
    TooManyFields,
    #[error("cannot be read: {}", .0.0)]
    Unreadable(#[from] DecodeError),
}

pub(super) struct Definition {
    pub kind: StructureKind,
    /// Fields marked optional may contain subtypes instead.
    pub subtyped: bool,
    pub fields: Vec<RawField>,
}

pub(super) struct RawField {
    pub name: Text,
    pub data_type: NodeId,
    pub rank: i32,
    pub optional: bool,
}

impl Definition {
    /// Approximate memory.
    pub fn memory_bytes(&self) -> usize {
        let field = |field: &RawField| size_of::<RawField>() + field.name.len() + node_id::heap_bytes(&field.data_type);
        size_of::<Definition>() + self.fields.iter().map(field).sum::<usize>()
    }

    pub fn read(content: &ValueContent) -> Result<Definition, NoDefinition> {
        let body = content.body_of(ObjectId::StructureDefinition_Encoding_DefaultBinary);
        let book = StructureRegistry::default();
        Definition::decode(&mut Decoder::new(body.ok_or(NoDefinition::OfAnotherKind)?, &book))
    }

    fn decode(decoder: &mut Decoder<'_>) -> Result<Definition, NoDefinition> {
        decoder.node_id()?;
        decoder.node_id()?;
        let (kind, subtyped) = match decoder.i32()? {
            0 => (StructureKind::Plain, false),
            1 => (StructureKind::OptionalFields, false),
            2 => (StructureKind::Union, false),
            3 => (StructureKind::Plain, true),
            4 => (StructureKind::Union, true),
            // Later versions of the specification may add kinds.
            _ => return Err(NoDefinition::OfAnotherKind),
        };
        let count = decoder.length(4)?.unwrap_or(0);
        if count > FIELDS_MAX {
            return Err(NoDefinition::TooManyFields);
        }
        let fields: Result<Vec<RawField>, DecodeError> = (0..count).map(|_| RawField::decode(decoder)).collect();
        Ok(Definition {
            kind,
            subtyped,
            fields: fields?,
        })
    }
}

impl RawField {
    fn decode(decoder: &mut Decoder<'_>) -> Result<RawField, DecodeError> {
        let name = decoder.text()?.unwrap_or_default();
        decoder.localized_text()?;
        let data_type = decoder.node_id()?;
        let rank = decoder.i32()?;
        let dimensions = decoder.length(4)?.unwrap_or(0);
        for _ in 0..dimensions {
            decoder.u32()?;
        }
        decoder.u32()?;
        let optional = decoder.u8()? != 0;
        Ok(RawField {
            name,
            data_type,
            rank,
            optional,
        })
    }
}
