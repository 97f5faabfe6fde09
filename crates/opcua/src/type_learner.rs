//! Queries a server for its structures: from the id of an encoding to its data type, to its definition, to the
//! definitions of its fields. A structure that the server cannot describe now stays bytes until a retry; one that it
//! can never describe stays bytes.
//!
//! While a query is in progress, values wait and no publish request is sent, so each round of look-ups has a time
//! limit. Responses are cached across rounds: no query is repeated, and every round gets further than the one before.

mod definition;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use opcua::types::{
    AttributeId, BrowseDescription, BrowseDirection, BrowseRequest, NodeId, ReferenceTypeId, TimestampsToReturn,
    ViewDescription,
};
use thalweg_flow::Component;
use thalweg_kit::clock;
use thalweg_record::{CacheLimits, Remembered};

use crate::channel::CallError;
use crate::node_id;
use crate::session::{Session, read_id};
use crate::value::types::{self, FieldEncoding, FieldLayout, Rank, Structure, StructureKind};
use crate::value::{StructureRegistry, status};

use definition::Definition;

/// Maximum number of steps from a data type up to a built-in one.
const SUPERTYPES_MAX: usize = 20;

/// Maximum number of structures queried for one unknown encoding.
const STRUCTURES_MAX: usize = 500;

/// Time after which a round starts no further calls. It is far below the lifetime of a subscription, which expires
/// without publish requests.
const ROUND_MAX: Duration = Duration::from_secs(2);

/// Pause after a round that ran out of time, to process the values received meanwhile before the server's queues
/// overflow.
const REST: Duration = ROUND_MAX;

/// Limits of the cached definitions (twice as many as one encoding may need) and of the cached references of each kind.
/// What is evicted costs a new query; a round looks up what the rounds before it learned, so that the rest goes first.
const DEFINITIONS: CacheLimits = CacheLimits {
    entries_max: 2 * STRUCTURES_MAX,
    bytes_max: 128 << 20,
};
const REFERENCES: CacheLimits = CacheLimits {
    entries_max: 20_000,
    bytes_max: 64 << 20,
};

/// Reason why a structure stays bytes.
#[derive(Debug, thiserror::Error)]
enum TypeLookupError {
    /// The connection is lost.
    #[error("{0}")]
    Closed(CallError),
    /// A call got no response or was rejected temporarily.
    #[error("{0}")]
    Unanswered(CallError),
    /// The same for one node.
    #[error("{0}")]
    NotNow(String),
    #[error("{0}")]
    Never(String),
    /// The round is over; the responses are cached.
    #[error("the server takes long to describe its structures")]
    OutOfTime,
}

impl From<CallError> for TypeLookupError {
    fn from(error: CallError) -> TypeLookupError {
        match error {
            CallError::Closed(_) => TypeLookupError::Closed(error),
            CallError::Refused(status) if status::says_session_gone(status) => TypeLookupError::Closed(error),
            CallError::Timeout(_) => TypeLookupError::Unanswered(error),
            CallError::Refused(status) if !status::says_never(status) && !status::says_too_large(status) => {
                TypeLookupError::Unanswered(error)
            }
            _ => TypeLookupError::Never(error.to_string()),
        }
    }
}

/// Classifies the bad status of one operation; `what` was queried of `node`.
fn refused(what: &str, node: &NodeId, status: u32) -> TypeLookupError {
    let why = format!("{what} of {}: {}", node_id::text(node), status::text(status));
    match status::says_never(status) {
        true => TypeLookupError::Never(why),
        false => TypeLookupError::NotNow(why),
    }
}

/// Queries one server, round after round.
pub(crate) struct TypeLearner {
    answers: TypeLookupCache,
    round_max: Duration,
    rest: Duration,
    rests_until: Option<Instant>,
}

/// Responses of the server for structures that are not in the registry yet.
struct TypeLookupCache {
    /// From encodings to data types.
    encoded: Remembered<NodeId, NodeId>,
    /// From data types to supertypes.
    supertypes: Remembered<NodeId, NodeId>,
    /// Definitions of structures that are not registered yet because one that they refer to is still unknown.
    definitions: Remembered<NodeId, Arc<Definition>>,
}

impl TypeLearner {
    pub fn new() -> TypeLearner {
        TypeLearner {
            answers: TypeLookupCache::default(),
            round_max: ROUND_MAX,
            rest: REST,
            rests_until: None,
        }
    }

    /// Returns whether values must not wait for the server now. Missing structures are then looked up with later
    /// values.
    pub fn is_resting(&self) -> bool {
        self.rests_until.is_some_and(|until| clock::now() < until)
    }

    /// Adds the structures of these encodings to the registry, as many as the time allows. A temporary failure is
    /// retried after a pause; what did not fit into the time is looked up with the next values that need it.
    pub async fn learn(
        &mut self,
        session: &Session,
        book: &mut StructureRegistry,
        encodings: Vec<NodeId>,
        component: &Component,
    ) {
        let mut round = TypeLookupRound {
            session,
            book,
            answers: &mut self.answers,
            until: clock::now() + self.round_max,
            calls: 0,
        };
        for encoding in encodings {
            let error = match round.encoding(&encoding).await {
                Ok(data_type) => {
                    round.book.learn_encoding(encoding, data_type);
                    continue;
                }
                Err(error) => error,
            };
            match &error {
                // The next connection will retry.
                TypeLookupError::Closed(_) => return,
                TypeLookupError::OutOfTime => {
                    self.rests_until = Some(clock::now() + self.rest);
                    component.warn_limited("structure", 1, || {
                        let text = node_id::text(&encoding);
                        format!("structures encoded as {text}, and perhaps others, are delivered as bytes (base64) for now: {error}; the server is queried again when their next values arrive")
                    });
                    return;
                }
                TypeLookupError::Never(why) => {
                    // Logged once per encoding, since the registry gives an encoding up only once.
                    tracing::warn!(
                        component = component.title(),
                        "structures encoded as {} are delivered as bytes (base64), because the server does not describe them: {why}",
                        node_id::text(&encoding)
                    );
                    round.book.give_up(encoding);
                }
                TypeLookupError::Unanswered(_) | TypeLookupError::NotNow(_) => {
                    let text = node_id::text(&encoding);
                    let pause = round.book.postpone(encoding);
                    component.warn_limited("structure", 1, || {
                        let seconds = pause.as_secs();
                        format!("structures encoded as {text} are delivered as bytes (base64) until the server describes them: {error}; the server is queried again in {seconds} s")
                    });
                }
            }
            // Values are waiting. The remaining encodings are looked up with the next values, when the server may be
            // less busy.
            if matches!(error, TypeLookupError::Unanswered(_)) {
                return;
            }
        }
    }
}

/// A round of look-ups, for which values wait.
struct TypeLookupRound<'a> {
    session: &'a Session,
    book: &'a mut StructureRegistry,
    answers: &'a mut TypeLookupCache,
    until: Instant,
    calls: usize,
}

impl TypeLookupRound<'_> {
    /// Called before each call. The first call is always made, so that even a slow server eventually gets all queries.
    fn begin_call(&mut self) -> Result<(), TypeLookupError> {
        if self.calls > 0 && clock::now() >= self.until {
            return Err(TypeLookupError::OutOfTime);
        }
        self.calls += 1;
        Ok(())
    }

    /// Returns the data type of an encoding; its structure is in the registry afterwards.
    async fn encoding(&mut self, encoding: &NodeId) -> Result<NodeId, TypeLookupError> {
        let data_type = self.inverse(encoding, ReferenceTypeId::HasEncoding).await?;
        let data_type =
            data_type.ok_or_else(|| TypeLookupError::Never("no data type refers to this encoding".to_owned()))?;
        self.structure(data_type.clone()).await?;
        Ok(data_type)
    }

    /// Learns a structure and all that it contains. All of them are registered or none, so a registered structure is
    /// always complete.
    async fn structure(&mut self, data_type: NodeId) -> Result<(), TypeLookupError> {
        let mut to_learn = vec![data_type];
        let mut learned = HashMap::new();
        while let Some(data_type) = to_learn.pop() {
            if self.book.structure(&data_type).is_some() || learned.contains_key(&data_type) {
                continue;
            }
            if learned.len() == STRUCTURES_MAX {
                let why = format!("it consists of more than {STRUCTURES_MAX} structures");
                return Err(TypeLookupError::Never(why));
            }
            let definition = self.definition(&data_type).await?;
            let structure = self.resolve(&data_type, &definition, &mut to_learn).await?;
            learned.insert(data_type, structure);
        }
        for (data_type, structure) in learned {
            self.answers.definitions.remove(&data_type);
            self.book.learn(data_type, structure);
        }
        Ok(())
    }

    /// Resolves the data types of fields to encodings; adds structures among the fields to `to_learn`.
    async fn resolve(
        &mut self,
        data_type: &NodeId,
        definition: &Definition,
        to_learn: &mut Vec<NodeId>,
    ) -> Result<Structure, TypeLookupError> {
        let mut fields = Vec::with_capacity(definition.fields.len());
        for field in &definition.fields {
            let mut element = self.element(&field.data_type).await?;
            if definition.subtyped && field.optional {
                // A field that may contain a subtype carries the actual type. One of the data type Structure may
                // contain any structure.
                element = match element {
                    FieldEncoding::Structure(_) | FieldEncoding::BuiltIn(types::EXTENSION_OBJECT) => {
                        FieldEncoding::BuiltIn(types::EXTENSION_OBJECT)
                    }
                    FieldEncoding::BuiltIn(_) => FieldEncoding::BuiltIn(types::VARIANT),
                };
            }
            if let FieldEncoding::Structure(data_type) = &element {
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
                    return Err(TypeLookupError::Never(why));
                }
            };
            let optional = field.optional && definition.kind == StructureKind::OptionalFields;
            fields.push(FieldLayout {
                name: field.name.clone(),
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

    /// Returns how values of a data type are encoded: follows its supertypes to a built-in type or a structure.
    async fn element(&mut self, data_type: &NodeId) -> Result<FieldEncoding, TypeLookupError> {
        let mut at = data_type.clone();
        for _ in 0..SUPERTYPES_MAX {
            if let Some(kind) = types::built_in(&at) {
                // Everything derived from Structure is a structure, under the data type that was requested.
                let is_structure = kind == types::EXTENSION_OBJECT && at != *data_type;
                return Ok(if is_structure {
                    FieldEncoding::Structure(data_type.clone())
                } else {
                    FieldEncoding::BuiltIn(kind)
                });
            }
            match self.inverse(&at, ReferenceTypeId::HasSubtype).await? {
                Some(parent) => at = parent,
                None => break,
            }
        }
        let why = format!(
            "the data type {} derives from no built-in type",
            node_id::text(data_type)
        );
        Err(TypeLookupError::Never(why))
    }

    /// Returns the first node that has such a reference to this one.
    async fn inverse(&mut self, node: &NodeId, reference: ReferenceTypeId) -> Result<Option<NodeId>, TypeLookupError> {
        if let Some(known) = self.answers.references(reference).get(node) {
            return Ok(Some(known.clone()));
        }
        self.begin_call()?;
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
        let result = result.ok_or_else(|| CallError::Unreadable("the server returned no browse result".to_owned()))?;
        if result.status_code.is_bad() {
            return Err(refused("the references", node, result.status_code.bits()));
        }
        let mut ids = result.references.into_iter().flatten().map(|sent| sent.node_id.node_id);
        let found = ids.find(|id| !id.is_null());
        if let Some(found) = &found {
            let bytes = node_id::heap_bytes(node) + node_id::heap_bytes(found);
            let known = self.answers.references(reference);
            known.insert(node.clone(), found.clone(), bytes);
        }
        Ok(found)
    }

    async fn definition(&mut self, data_type: &NodeId) -> Result<Arc<Definition>, TypeLookupError> {
        if let Some(known) = self.answers.definitions.get(data_type) {
            return Ok(known.clone());
        }
        self.begin_call()?;
        let wanted = vec![read_id(data_type.clone(), AttributeId::DataTypeDefinition)];
        let read = self
            .session
            .read(wanted, TimestampsToReturn::Neither, 0.0, &StructureRegistry::default())
            .await?;
        let value = read.into_iter().next();
        let value = value.ok_or_else(|| CallError::Unreadable("the server returned no read result".to_owned()))?;
        if status::is_bad(value.stamps.status) {
            return Err(refused("the DataTypeDefinition", data_type, value.stamps.status));
        }
        let definition = Definition::read(&value.content).map_err(|why| {
            let node = node_id::text(data_type);
            TypeLookupError::Never(format!("the DataTypeDefinition of {node} {why}"))
        })?;
        let definition = Arc::new(definition);
        let bytes = node_id::heap_bytes(data_type) + definition.memory_bytes();
        self.answers
            .definitions
            .insert(data_type.clone(), definition.clone(), bytes);
        Ok(definition)
    }
}

impl Default for TypeLookupCache {
    fn default() -> TypeLookupCache {
        TypeLookupCache {
            encoded: Remembered::within(REFERENCES),
            supertypes: Remembered::within(REFERENCES),
            definitions: Remembered::within(DEFINITIONS),
        }
    }
}

impl TypeLookupCache {
    fn references(&mut self, reference: ReferenceTypeId) -> &mut Remembered<NodeId, NodeId> {
        match reference {
            ReferenceTypeId::HasEncoding => &mut self.encoded,
            _ => &mut self.supertypes,
        }
    }
}

#[cfg(test)]
mod tests;
