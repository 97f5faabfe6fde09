//! Asks a server what its structures look like: from the id of an encoding to its data type, to its definition, to the
//! definitions of its fields. What the server cannot tell is given up and stays bytes.

use opcua::types::{
    AttributeId, BrowseDescription, BrowseDirection, BrowseRequest, Identifier, NodeId, ReferenceTypeId,
    TimestampsToReturn, ViewDescription,
};
use thalweg_record::{Structured, Text, Value};

use crate::channel::CallError;
use crate::node_id::NodeSpec;
use crate::session::{Session, read_id};
use crate::value::types::{self, Element, Field, Rank, Structure, StructureKind};
use crate::value::{Content, DecodeError, Decoder, TypeBook};

/// Steps from a data type up to a built-in one.
const SUPERTYPES_MAX: usize = 20;

/// Structures asked for because of one unknown encoding.
const STRUCTURES_MAX: usize = 500;

const STRUCTURE_DEFINITION: u32 = 122;

/// Adds the structures behind these encodings to the book.
pub(crate) async fn learn(session: &Session, book: &mut TypeBook, encodings: Vec<NodeId>) {
    for encoding in encodings {
        let mut learner = Learner {
            session,
            book: &mut *book,
            asked: 0,
        };
        match learner.encoding(&encoding).await {
            Ok(Some(data_type)) => book.learn_encoding(encoding, data_type),
            Ok(None) => book.give_up(encoding),
            // The connection is gone; the next one will ask again.
            Err(CallError::Closed(_)) => return,
            Err(_) => book.give_up(encoding),
        }
    }
}

struct Learner<'a> {
    session: &'a Session,
    book: &'a mut TypeBook,
    asked: usize,
}

impl Learner<'_> {
    /// The data type of an encoding, whose structure is in the book afterwards.
    async fn encoding(&mut self, encoding: &NodeId) -> Result<Option<NodeId>, CallError> {
        let Some(data_type) = self.inverse(encoding, ReferenceTypeId::HasEncoding).await? else {
            return Ok(None);
        };
        let known = self.structure(data_type.clone()).await?;
        Ok(known.then_some(data_type))
    }

    /// Learns a structure and all that it contains. False if the data type is none, or not fully described.
    async fn structure(&mut self, data_type: NodeId) -> Result<bool, CallError> {
        let mut to_learn = vec![data_type];
        let mut learned = Vec::new();
        while let Some(data_type) = to_learn.pop() {
            if self.book.structure(&data_type).is_some() || learned.iter().any(|(known, _)| *known == data_type) {
                continue;
            }
            self.asked += 1;
            if self.asked > STRUCTURES_MAX {
                return Ok(false);
            }
            let Some(definition) = self.definition(&data_type).await? else {
                return Ok(false);
            };
            let Some(structure) = self.resolve(definition, &mut to_learn).await? else {
                return Ok(false);
            };
            learned.push((data_type, structure));
        }
        for (data_type, structure) in learned {
            self.book.learn(data_type, structure);
        }
        Ok(true)
    }

    /// Names of types into how they are encoded; structures among the fields are to be learnt too.
    async fn resolve(
        &mut self,
        definition: Definition,
        to_learn: &mut Vec<NodeId>,
    ) -> Result<Option<Structure>, CallError> {
        let mut fields = Vec::with_capacity(definition.fields.len());
        for field in definition.fields {
            let Some(mut element) = self.element(&field.data_type).await? else {
                return Ok(None);
            };
            if definition.subtyped && field.optional {
                // A field that may hold a subtype says which one it holds.
                element = match element {
                    Element::Structure(_) => Element::BuiltIn(types::EXTENSION_OBJECT),
                    Element::BuiltIn(_) => Element::BuiltIn(types::VARIANT),
                };
            }
            if let Element::Structure(data_type) = &element {
                to_learn.push(data_type.clone());
            }
            let rank = match field.rank {
                -1 => Rank::Scalar,
                0 | 1 => Rank::Array,
                2.. => Rank::Matrix,
                _ => return Ok(None),
            };
            let optional = field.optional && definition.kind == StructureKind::OptionalFields;
            fields.push(Field {
                name: field.name,
                element,
                rank,
                optional,
            });
        }
        Ok(Some(Structure {
            kind: definition.kind,
            fields,
        }))
    }

    /// How values of a data type are encoded: up its supertypes to a built-in type or a structure.
    async fn element(&mut self, data_type: &NodeId) -> Result<Option<Element>, CallError> {
        let mut at = data_type.clone();
        for _ in 0..SUPERTYPES_MAX {
            if let Some(kind) = types::built_in(&at) {
                // Everything derived from Structure is one, under the name that was asked for.
                let is_structure = kind == types::EXTENSION_OBJECT && at != *data_type;
                return Ok(Some(if is_structure {
                    Element::Structure(data_type.clone())
                } else {
                    Element::BuiltIn(kind)
                }));
            }
            match self.inverse(&at, ReferenceTypeId::HasSubtype).await? {
                Some(parent) => at = parent,
                None => return Ok(None),
            }
        }
        Ok(None)
    }

    /// The first node that refers to this one in such a way.
    async fn inverse(&self, node: &NodeId, reference: ReferenceTypeId) -> Result<Option<NodeId>, CallError> {
        let description = BrowseDescription {
            node_id: node.clone(),
            browse_direction: BrowseDirection::Inverse,
            reference_type_id: reference.into(),
            include_subtypes: true,
            node_class_mask: 0,
            result_mask: 0,
        };
        let request = BrowseRequest {
            request_header: Default::default(),
            view: ViewDescription::default(),
            requested_max_references_per_node: 1,
            nodes_to_browse: Some(vec![description]),
        };
        let response = self.session.call(request).await?;
        let references = response
            .results
            .into_iter()
            .flatten()
            .flat_map(|result| result.references.unwrap_or_default());
        Ok(references
            .map(|reference| reference.node_id.node_id)
            .find(|id| !id.is_null()))
    }

    async fn definition(&self, data_type: &NodeId) -> Result<Option<Definition>, CallError> {
        let wanted = vec![read_id(data_type.clone(), AttributeId::DataTypeDefinition)];
        let read = self
            .session
            .read(wanted, TimestampsToReturn::Neither, 0.0, &TypeBook::default())
            .await?;
        let Some(Content::Value(Value::Structured(structured))) = read.into_iter().next().map(|value| value.content)
        else {
            return Ok(None);
        };
        let Structured::Extension { type_id, body } = &*structured else {
            return Ok(None);
        };
        let encoding = NodeSpec::parse(type_id).ok().and_then(|spec| spec.resolve(&[]).ok());
        let wanted = NodeId {
            namespace: 0,
            identifier: Identifier::Numeric(STRUCTURE_DEFINITION),
        };
        if encoding != Some(wanted) {
            return Ok(None);
        }
        let book = TypeBook::default();
        Ok(Definition::decode(&mut Decoder::new(body, &book)).ok().flatten())
    }
}

/// A StructureDefinition as the server sent it.
struct Definition {
    kind: StructureKind,
    /// Fields marked optional may hold subtypes instead.
    subtyped: bool,
    fields: Vec<RawField>,
}

struct RawField {
    name: Text,
    data_type: NodeId,
    rank: i32,
    optional: bool,
}

impl Definition {
    /// `None` for a kind of structure that later versions of the specification may add.
    fn decode(decoder: &mut Decoder<'_>) -> Result<Option<Definition>, DecodeError> {
        decoder.node_id()?;
        decoder.node_id()?;
        let (kind, subtyped) = match decoder.i32()? {
            0 => (StructureKind::Plain, false),
            1 => (StructureKind::OptionalFields, false),
            2 => (StructureKind::Union, false),
            3 => (StructureKind::Plain, true),
            4 => (StructureKind::Union, true),
            _ => return Ok(None),
        };
        let count = decoder.length(4)?.unwrap_or(0);
        let fields: Result<Vec<RawField>, DecodeError> = (0..count).map(|_| RawField::decode(decoder)).collect();
        Ok(Some(Definition {
            kind,
            subtyped,
            fields: fields?,
        }))
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
