//! Asks a server what its structures look like: from the id of an encoding to its data type, to its definition, to the
//! definitions of its fields. What the server cannot tell now stays bytes until it is asked again; what it can never tell
//! is given up and stays bytes.

use opcua::types::{
    AttributeId, BrowseDescription, BrowseDirection, BrowseRequest, NodeId, ObjectId, ReferenceTypeId,
    TimestampsToReturn, ViewDescription,
};
use thalweg_flow::Component;
use thalweg_record::Text;

use crate::channel::CallError;
use crate::node_id;
use crate::session::{Session, read_id};
use crate::value::types::{self, Element, Field, Rank, Structure, StructureKind};
use crate::value::{Content, DecodeError, Decoder, TypeBook, status};

/// Steps from a data type up to a built-in one.
const SUPERTYPES_MAX: usize = 20;

/// Structures asked for because of one unknown encoding.
const STRUCTURES_MAX: usize = 500;

/// Why a structure stays bytes.
#[derive(Debug, thiserror::Error)]
enum Unlearned {
    /// The connection is gone.
    #[error("{0}")]
    Closed(CallError),
    /// A call was not answered, or refused as it may not be another time.
    #[error("{0}")]
    Unanswered(CallError),
    /// The same about one node.
    #[error("{0}")]
    NotNow(String),
    #[error("{0}")]
    Never(String),
}

impl From<CallError> for Unlearned {
    fn from(error: CallError) -> Unlearned {
        match error {
            CallError::Closed(_) => Unlearned::Closed(error),
            CallError::Refused(status) if status::says_session_gone(status) => Unlearned::Closed(error),
            CallError::Timeout(_) => Unlearned::Unanswered(error),
            CallError::Refused(status) if !status::says_never(status) && !status::says_too_large(status) => {
                Unlearned::Unanswered(error)
            }
            _ => Unlearned::Never(error.to_string()),
        }
    }
}

/// What a bad status of one operation means; `what` was asked of `node`.
fn refused(what: &str, node: &NodeId, status: u32) -> Unlearned {
    let why = format!("{what} of {}: {}", node_id::text(node), status::text(status));
    match status::says_never(status) {
        true => Unlearned::Never(why),
        false => Unlearned::NotNow(why),
    }
}

/// Adds the structures behind these encodings to the book. What fails for the moment is asked for again after a pause.
pub(crate) async fn learn(session: &Session, book: &mut TypeBook, encodings: Vec<NodeId>, component: &Component) {
    for encoding in encodings {
        let mut learner = Learner {
            session,
            book: &mut *book,
            asked: 0,
        };
        let error = match learner.encoding(&encoding).await {
            Ok(data_type) => {
                book.learn_encoding(encoding, data_type);
                continue;
            }
            Err(error) => error,
        };
        match &error {
            // The next connection will ask again.
            Unlearned::Closed(_) => return,
            Unlearned::Never(why) => {
                // Once for each: a book gives an encoding up only once.
                tracing::warn!(
                    component = component.title(),
                    "structures encoded as {} stay bytes (base64), since the server does not describe them: {why}",
                    node_id::text(&encoding)
                );
                book.give_up(encoding);
            }
            Unlearned::Unanswered(_) | Unlearned::NotNow(_) => {
                let text = node_id::text(&encoding);
                let pause = book.postpone(encoding);
                component.warn_limited("structure", 1, || {
                    let seconds = pause.as_secs();
                    format!("structures encoded as {text} are bytes (base64) until the server describes them: {error}; it is asked again after {seconds} s")
                });
            }
        }
        // Values wait meanwhile. The others are asked for with the next values, which may find the server less busy.
        if matches!(error, Unlearned::Unanswered(_)) {
            return;
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
    async fn encoding(&mut self, encoding: &NodeId) -> Result<NodeId, Unlearned> {
        let data_type = self.inverse(encoding, ReferenceTypeId::HasEncoding).await?;
        let data_type = data_type.ok_or_else(|| Unlearned::Never("no data type refers to this encoding".to_owned()))?;
        self.structure(data_type.clone()).await?;
        Ok(data_type)
    }

    /// Learns a structure and all that it contains.
    async fn structure(&mut self, data_type: NodeId) -> Result<(), Unlearned> {
        let mut to_learn = vec![data_type];
        let mut learned = Vec::new();
        while let Some(data_type) = to_learn.pop() {
            if self.book.structure(&data_type).is_some() || learned.iter().any(|(known, _)| *known == data_type) {
                continue;
            }
            self.asked += 1;
            if self.asked > STRUCTURES_MAX {
                let why = format!("it consists of more than {STRUCTURES_MAX} structures");
                return Err(Unlearned::Never(why));
            }
            let definition = self.definition(&data_type).await?;
            let structure = self.resolve(&data_type, definition, &mut to_learn).await?;
            learned.push((data_type, structure));
        }
        for (data_type, structure) in learned {
            self.book.learn(data_type, structure);
        }
        Ok(())
    }

    /// Names of types into how they are encoded; structures among the fields are to be learnt too.
    async fn resolve(
        &mut self,
        data_type: &NodeId,
        definition: Definition,
        to_learn: &mut Vec<NodeId>,
    ) -> Result<Structure, Unlearned> {
        let mut fields = Vec::with_capacity(definition.fields.len());
        for field in definition.fields {
            let mut element = self.element(&field.data_type).await?;
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
                rank => {
                    let node = node_id::text(data_type);
                    let why = format!(
                        "the field {} of {node} may have any number of dimensions ({rank})",
                        field.name
                    );
                    return Err(Unlearned::Never(why));
                }
            };
            let optional = field.optional && definition.kind == StructureKind::OptionalFields;
            fields.push(Field {
                name: field.name,
                element,
                rank,
                optional,
            });
        }
        Ok(Structure {
            kind: definition.kind,
            fields,
        })
    }

    /// How values of a data type are encoded: up its supertypes to a built-in type or a structure.
    async fn element(&mut self, data_type: &NodeId) -> Result<Element, Unlearned> {
        let mut at = data_type.clone();
        for _ in 0..SUPERTYPES_MAX {
            if let Some(kind) = types::built_in(&at) {
                // Everything derived from Structure is one, under the name that was asked for.
                let is_structure = kind == types::EXTENSION_OBJECT && at != *data_type;
                return Ok(if is_structure {
                    Element::Structure(data_type.clone())
                } else {
                    Element::BuiltIn(kind)
                });
            }
            match self.inverse(&at, ReferenceTypeId::HasSubtype).await? {
                Some(parent) => at = parent,
                None => break,
            }
        }
        let why = format!("the data type {} comes from no built-in one", node_id::text(data_type));
        Err(Unlearned::Never(why))
    }

    /// The first node that refers to this one in such a way.
    async fn inverse(&self, node: &NodeId, reference: ReferenceTypeId) -> Result<Option<NodeId>, Unlearned> {
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
        let result = response.results.into_iter().flatten().next();
        let result = result.ok_or_else(|| CallError::Unreadable("the server answered no browse".to_owned()))?;
        if result.status_code.is_bad() {
            return Err(refused("the references", node, result.status_code.bits()));
        }
        let references = result.references.into_iter().flatten();
        Ok(references
            .map(|reference| reference.node_id.node_id)
            .find(|id| !id.is_null()))
    }

    async fn definition(&self, data_type: &NodeId) -> Result<Definition, Unlearned> {
        let wanted = vec![read_id(data_type.clone(), AttributeId::DataTypeDefinition)];
        let read = self
            .session
            .read(wanted, TimestampsToReturn::Neither, 0.0, &TypeBook::default())
            .await?;
        let value = read.into_iter().next();
        let value = value.ok_or_else(|| CallError::Unreadable("the server answered no read".to_owned()))?;
        if status::is_bad(value.stamps.status) {
            return Err(refused("the DataTypeDefinition", data_type, value.stamps.status));
        }
        definition_in(&value.content).ok_or_else(|| {
            let node = node_id::text(data_type);
            Unlearned::Never(format!("the DataTypeDefinition of {node} is none of a structure"))
        })
    }
}

fn definition_in(content: &Content) -> Option<Definition> {
    let body = content.body_of(ObjectId::StructureDefinition_Encoding_DefaultBinary)?;
    let book = TypeBook::default();
    Definition::decode(&mut Decoder::new(body, &book)).ok().flatten()
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

#[cfg(test)]
mod tests;
