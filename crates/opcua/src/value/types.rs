//! The built-in types by number, and the structures that a server has described.
//!
//! During decoding, the registry maps encodings and data types to structures. It records each unknown encoding once, so
//! that the owner of the session can query the server and decode the same bytes again.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use opcua::types::{Identifier, NodeId};
use parking_lot::Mutex;
use thalweg_kit::backoff::Backoff;
use thalweg_kit::clock;
use thalweg_record::Text;

use crate::backoff::backoff_up_to;

pub(crate) const BOOLEAN: u8 = 1;
pub(crate) const SBYTE: u8 = 2;
pub(crate) const BYTE: u8 = 3;
pub(crate) const INT16: u8 = 4;
pub(crate) const UINT16: u8 = 5;
pub(crate) const INT32: u8 = 6;
pub(crate) const UINT32: u8 = 7;
pub(crate) const INT64: u8 = 8;
pub(crate) const UINT64: u8 = 9;
pub(crate) const FLOAT: u8 = 10;
pub(crate) const DOUBLE: u8 = 11;
pub(crate) const STRING: u8 = 12;
pub(crate) const DATE_TIME: u8 = 13;
pub(crate) const GUID: u8 = 14;
pub(crate) const BYTE_STRING: u8 = 15;
pub(crate) const XML_ELEMENT: u8 = 16;
pub(crate) const NODE_ID: u8 = 17;
pub(crate) const EXPANDED_NODE_ID: u8 = 18;
pub(crate) const STATUS_CODE: u8 = 19;
pub(crate) const QUALIFIED_NAME: u8 = 20;
pub(crate) const LOCALIZED_TEXT: u8 = 21;
pub(crate) const EXTENSION_OBJECT: u8 = 22;
pub(crate) const DATA_VALUE: u8 = 23;
pub(crate) const VARIANT: u8 = 24;
pub(crate) const DIAGNOSTIC_INFO: u8 = 25;

/// Maximum number of structures kept; more of them stay bytes.
const STRUCTURES_MAX: usize = 10_000;

/// How long a structure stays bytes after the server temporarily could not describe it: initially, and at most.
const PAUSE_FIRST: Duration = Duration::from_secs(5);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Layout of a structure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Structure {
    pub kind: StructureKind,
    pub fields: Vec<FieldLayout>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StructureKind {
    Plain,
    /// Starts with a mask of the optional fields that are present.
    OptionalFields,
    /// Starts with the number of the one field that is present.
    Union,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FieldLayout {
    pub name: Text,
    pub element: FieldEncoding,
    pub rank: Rank,
    pub optional: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FieldEncoding {
    BuiltIn(u8),
    /// The structure of this data type.
    Structure(NodeId),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    Scalar,
    Array,
    Matrix,
}

/// The known structures of one server.
#[derive(Debug, Default)]
pub(crate) struct StructureRegistry {
    structures: HashMap<NodeId, Structure>,
    /// From the id of a binary encoding to its data type.
    encodings: HashMap<NodeId, NodeId>,
    /// Encodings for which the server has no description.
    without: HashSet<NodeId>,
    /// Encodings whose look-up failed temporarily, with the time of the retry.
    postponed: HashMap<NodeId, PostponedLookup>,
    /// Unknown encodings to look up. A malicious server may invent one for each element of an array.
    missing: Mutex<HashSet<NodeId>>,
}

#[derive(Debug)]
struct PostponedLookup {
    until: Instant,
    pauses: Backoff,
}

impl StructureRegistry {
    /// Creates a registry with the structures of the specification.
    pub fn standard() -> StructureRegistry {
        let mut book = StructureRegistry::default();
        super::standard_types::add_to(&mut book);
        book
    }

    pub fn structure_of_encoding(&self, encoding: &NodeId) -> Option<&Structure> {
        if let Some(structure) = self
            .encodings
            .get(encoding)
            .and_then(|data_type| self.structures.get(data_type))
        {
            return Some(structure);
        }
        if !self.without.contains(encoding) && self.is_due(encoding, clock::now) {
            let known = self.structures.len().max(self.encodings.len()) + self.without.len() + self.postponed.len();
            let mut missing = self.missing.lock();
            if known + missing.len() < STRUCTURES_MAX && !missing.contains(encoding) {
                missing.insert(encoding.clone());
            }
        }
        None
    }

    fn is_due(&self, encoding: &NodeId, now: impl Fn() -> Instant) -> bool {
        self.postponed
            .get(encoding)
            .is_none_or(|postponed| postponed.until <= now())
    }

    pub fn structure(&self, data_type: &NodeId) -> Option<&Structure> {
        self.structures.get(data_type)
    }

    /// Returns the unknown encodings met since the last call, each once.
    pub fn take_missing(&self) -> Vec<NodeId> {
        std::mem::take(&mut *self.missing.lock()).into_iter().collect()
    }

    pub fn learn(&mut self, data_type: NodeId, structure: Structure) {
        self.structures.insert(data_type, structure);
    }

    pub fn learn_encoding(&mut self, encoding: NodeId, data_type: NodeId) {
        self.without.remove(&encoding);
        self.postponed.remove(&encoding);
        self.encodings.insert(encoding, data_type);
    }

    /// The server cannot describe this encoding.
    pub fn give_up(&mut self, encoding: NodeId) {
        self.postponed.remove(&encoding);
        self.without.insert(encoding);
    }

    /// The server could not describe the encoding now: it stays bytes for a pause that doubles each time. Returns the
    /// pause.
    pub fn postpone(&mut self, encoding: NodeId) -> Duration {
        let now = clock::now();
        let postponed = self.postponed.entry(encoding).or_insert_with(|| PostponedLookup {
            until: now,
            pauses: backoff_up_to(PAUSE_FIRST, PAUSE_MAX),
        });
        let pause = postponed.pauses.next_pause();
        postponed.until = now + pause;
        pause
    }

    /// Acts as if all pauses were over.
    #[cfg(test)]
    pub fn end_pauses(&mut self) {
        let now = clock::now();
        self.postponed.values_mut().for_each(|postponed| postponed.until = now);
    }
}

/// Returns the built-in type that encodes values of a data type of namespace 0; `None` for structures and for types of
/// other namespaces, whose supertypes must be queried.
pub(crate) fn built_in(data_type: &NodeId) -> Option<u8> {
    let (0, Identifier::Numeric(id)) = (data_type.namespace, &data_type.identifier) else {
        return None;
    };
    Some(match id {
        1..=25 => u8::try_from(*id).ok()?,
        // Abstract numbers are encoded as variants.
        26..=28 => VARIANT,
        29 => INT32,
        // Images.
        30 | 2000..=2003 => BYTE_STRING,
        290 => DOUBLE,
        294 | 293 => DATE_TIME,
        288 | 289 => UINT32,
        291 | 292 | 295 | 12877..=12881 => STRING,
        // ApplicationInstanceCertificate, ContinuationPoint, AudioDataType, EncodedTicket
        311 | 521 | 16307 => BYTE_STRING,
        388 => NODE_ID,
        // BitFieldMaskDataType
        11737 => UINT64,
        // PermissionType, AttributeWriteMask, AccessLevelExType
        94 | 347 | 15406 => UINT32,
        // AccessRestrictionType
        95 => UINT16,
        // AccessLevelType, EventNotifierType
        15031 | 15033 => BYTE,
        // NormalizedString, DecimalString, DurationString, TimeString, DateString, UriString …
        23751 | 24263 => STRING,
        20998 => UINT32,
        17588 => UINT32,
        _ => return None,
    })
}

/// Returns whether a data type of namespace 0 is numeric, so that a deadband makes sense.
pub(crate) fn is_numeric(data_type: &NodeId) -> bool {
    let (0, Identifier::Numeric(id)) = (data_type.namespace, &data_type.identifier) else {
        return false;
    };
    match id {
        // SByte to Double, and the abstract Number, Integer and UInteger.
        2..=11 | 26..=28 => true,
        // IntegerId, Counter, Duration.
        288..=290 => true,
        // Index, VersionTime.
        17588 | 20998 => true,
        // BitFieldMaskDataType; the access types of nodes, attributes and events.
        11737 | 94 | 95 | 347 | 15031 | 15033 | 15406 => true,
        _ => false,
    }
}

/// Returns the name of a data type in metadata.
pub(crate) fn metadata_name(data_type: &NodeId) -> String {
    let name = match (data_type.namespace, &data_type.identifier) {
        (0, Identifier::Numeric(id)) => match id {
            13 | 294 => "time.Time",
            1 => "bool",
            2 => "int8",
            3 => "byte",
            4 => "int16",
            5 => "uint16",
            6 => "int32",
            7 => "uint32",
            10 => "float32",
            11 => "float64",
            12 => "string",
            _ => return crate::node_id::text_with_namespace(data_type),
        },
        _ => return crate::node_id::text_with_namespace(data_type),
    };
    name.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_the_specification_may_have_a_deadband() {
        // Part 5 and Part 6, table of the standard data types: those below Number.
        let numbers = (2..=11).chain(26..=28).chain(288..=290);
        let derived = [17588, 20998, 11737, 94, 95, 347, 15031, 15033, 15406];
        for id in numbers.chain(derived) {
            assert!(is_numeric(&NodeId::new(0, id)), "{id}");
        }
        for id in [1u32, 12, 13, 15, 21, 29, 294, 884] {
            assert!(!is_numeric(&NodeId::new(0, id)), "{id}");
        }
        assert!(!is_numeric(&NodeId::new(2, 11u32)) && !is_numeric(&NodeId::new(0, "11")));
    }

    #[test]
    fn what_is_postponed_is_missing_again_after_ever_longer_pauses() {
        let mut book = StructureRegistry::default();
        let encoding = NodeId::new(3, 99u32);
        let is_missing = |book: &StructureRegistry| {
            assert!(book.structure_of_encoding(&encoding).is_none());
            !book.take_missing().is_empty()
        };
        assert!(is_missing(&book));
        let mut longest = Duration::ZERO;
        for _ in 0..20 {
            let pause = book.postpone(encoding.clone());
            assert!(!is_missing(&book) && pause <= PAUSE_MAX);
            let (asked, later) = (clock::now(), clock::now() + pause);
            assert!(!book.is_due(&encoding, || asked) && book.is_due(&encoding, || later));
            longest = longest.max(pause);
        }
        assert!(longest > PAUSE_MAX / 2);
        book.give_up(encoding.clone());
        assert!(!is_missing(&book));
    }

    #[test]
    fn encodings_without_end_are_not_all_asked_for() {
        let mut book = StructureRegistry::default();
        for id in 0..100_000u32 {
            assert!(book.structure_of_encoding(&NodeId::new(3, id)).is_none());
        }
        assert_eq!(book.take_missing().len(), STRUCTURES_MAX);
        // A server that keeps adding encodings to one data type.
        for id in 0..STRUCTURES_MAX as u32 {
            book.learn_encoding(NodeId::new(3, id), NodeId::new(3, "type"));
        }
        assert!(book.structure_of_encoding(&NodeId::new(3, u32::MAX)).is_none());
        assert!(book.take_missing().is_empty());
    }

    #[test]
    fn every_number_of_the_specification_is_decoded_by_its_built_in_type() {
        for (id, kind) in [
            (94u32, UINT32),
            (95, UINT16),
            (347, UINT32),
            (15031, BYTE),
            (15033, BYTE),
            (15406, UINT32),
            (11737, UINT64),
        ] {
            assert_eq!(built_in(&NodeId::new(0, id)), Some(kind), "{id}");
        }
    }
}
