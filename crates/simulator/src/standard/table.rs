//! The table of standard nodes, `nodes.jsonl`: each line is a node of namespace 0 with its attributes and references.
//! `tests/python/standard_nodes.py` writes the table and describes it. What a line does not state has the usual value,
//! so a line becomes a complete node without another source. The content is that of the standard's node set (Copyright
//! (c) The OPC Foundation, Inc., OPC Foundation MIT License 1.00).

use opcua::types::{
    Argument, DataTypeDefinition, DataValue, DateTime, EnumDefinition, EnumField, EnumValueType, ExtensionObject,
    LocalizedText, NodeClass, NodeId, QualifiedName, ReferenceTypeId, StructureDefinition, StructureField,
    StructureType, Variant,
};
use opcua_nodes::{
    AccessLevel, Base, DataType, EventNotifier, ImportedItem, ImportedReference, Method, NodeType, Object, ObjectType,
    ReferenceType, Variable, VariableType,
};
use serde::Deserialize;

const TABLE: &str = include_str!("nodes.jsonl");
/// Why a line of the table cannot be malformed.
const TESTED: &str = "a test reads the whole table";
const SCALAR: i32 = -1;

/// A line of the table.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NodeRow {
    pub(super) id: u32,
    pub(super) class: RowClass,
    pub(super) name: String,
    refs: String,
    /// The description.
    about: Option<String>,
    /// The data type of a variable or variable type.
    pub(super) data: Option<u32>,
    #[serde(default = "scalar")]
    pub(super) rank: i32,
    pub(super) dims: Option<Vec<u32>>,
    /// The access level; no user may write.
    #[serde(default = "readable")]
    access: u8,
    /// The event notifier of an object.
    #[serde(default)]
    events: u8,
    #[serde(default, rename = "abstract")]
    is_abstract: bool,
    #[serde(default)]
    symmetric: bool,
    /// The inverse name of a reference type.
    inverse: Option<String>,
    pub(super) structure: Option<StructureRow>,
    pub(super) enumeration: Option<Vec<MemberRow>>,
    pub(super) value: Option<RowValue>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(super) enum RowClass {
    Object,
    Variable,
    Method,
    ObjectType,
    VariableType,
    ReferenceType,
    DataType,
}

/// The value of a variable, in the type that a client reads.
#[derive(Debug, Deserialize)]
pub(super) enum RowValue {
    Boolean(bool),
    UInt32(u32),
    String(String),
    /// As in RFC 3339.
    DateTime(String),
    /// Locale and text.
    LocalizedText(String, String),
    Int32s(Vec<i32>),
    Strings(Vec<String>),
    LocalizedTexts(Vec<String>),
    Arguments(Vec<FieldRow>),
    EnumValues(Vec<MemberRow>),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StructureRow {
    /// The node of the default binary encoding, or 0.
    pub(super) encoding: u32,
    pub(super) fields: Vec<FieldRow>,
}

/// A field of a structure, or an argument of a method.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FieldRow {
    name: String,
    pub(super) data: u32,
    #[serde(default = "scalar")]
    rank: i32,
    about: Option<String>,
}

/// A member of an enumeration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemberRow {
    value: i64,
    name: String,
    about: Option<String>,
}

/// A reference between the node of a line and another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowReference {
    /// The reference type.
    pub(super) kind: u32,
    pub(super) is_forward: bool,
    pub(super) other: u32,
}

/// Returns all nodes of the table, in the order of their ids.
pub(super) fn rows() -> impl Iterator<Item = NodeRow> {
    TABLE.lines().map(|line| serde_json::from_str(line).expect(TESTED))
}

fn scalar() -> i32 {
    SCALAR
}

fn readable() -> u8 {
    AccessLevel::CURRENT_READ.bits()
}

fn standard(id: u32) -> NodeId {
    NodeId::new(0, id)
}

fn text(text: Option<String>) -> LocalizedText {
    text.map_or_else(LocalizedText::null, LocalizedText::from)
}

impl NodeRow {
    pub(super) fn references(&self) -> impl Iterator<Item = RowReference> + '_ {
        let texts = self.refs.split(' ');
        texts.map(|text| RowReference::parse(text).expect(TESTED))
    }

    /// The node with its references; `now` is the time of its value.
    pub(super) fn item(self, now: DateTime) -> ImportedItem {
        let references = self.references().map(|reference| ImportedReference {
            target_id: standard(reference.other),
            type_id: standard(reference.kind),
            is_forward: reference.is_forward,
        });
        let references = references.collect();
        ImportedItem {
            node: self.node(now),
            references,
        }
    }

    fn node(self, now: DateTime) -> NodeType {
        let base = Base::new_full(
            standard(self.id),
            self.class.node_class(),
            QualifiedName::new(0, self.name.as_str()),
            LocalizedText::from(self.name),
            self.about.map(LocalizedText::from),
            Some(0),
            Some(0),
        );
        let data_type = self.data.map_or_else(NodeId::null, standard);
        match self.class {
            RowClass::Object => Object::new_full(base, EventNotifier::from_bits_truncate(self.events)).into(),
            RowClass::Method => Method::new_full(base, true, true).into(),
            RowClass::ObjectType => ObjectType::new_full(base, self.is_abstract).into(),
            RowClass::ReferenceType => {
                let inverse = self.inverse.map(LocalizedText::from);
                ReferenceType::new_full(base, self.symmetric, self.is_abstract, inverse).into()
            }
            RowClass::DataType => {
                let definition = definition(self.structure, self.enumeration);
                DataType::new_full(base, self.is_abstract, definition).into()
            }
            RowClass::VariableType => {
                let value = Some(DataValue::null());
                VariableType::new_full(base, data_type, self.is_abstract, self.rank, value, self.dims).into()
            }
            RowClass::Variable => {
                let value = self.value.map(|value| DataValue::new_at(value.variant(), now));
                let value = value.unwrap_or_else(DataValue::null);
                let (rank, access, dims) = (self.rank, self.access, self.dims);
                Variable::new_full(base, data_type, false, rank, value, access, readable(), dims, Some(0.0)).into()
            }
        }
    }
}

impl RowClass {
    pub(super) fn node_class(self) -> NodeClass {
        match self {
            RowClass::Object => NodeClass::Object,
            RowClass::Variable => NodeClass::Variable,
            RowClass::Method => NodeClass::Method,
            RowClass::ObjectType => NodeClass::ObjectType,
            RowClass::VariableType => NodeClass::VariableType,
            RowClass::ReferenceType => NodeClass::ReferenceType,
            RowClass::DataType => NodeClass::DataType,
        }
    }
}

fn definition(structure: Option<StructureRow>, enumeration: Option<Vec<MemberRow>>) -> Option<DataTypeDefinition> {
    let structure = structure.map(|row| DataTypeDefinition::Structure(row.definition()));
    structure.or_else(|| {
        let fields = enumeration?.into_iter().map(MemberRow::field).collect();
        Some(DataTypeDefinition::Enum(EnumDefinition { fields: Some(fields) }))
    })
}

impl StructureRow {
    fn definition(self) -> StructureDefinition {
        StructureDefinition {
            default_encoding_id: standard(self.encoding),
            base_data_type: NodeId::null(),
            structure_type: StructureType::Structure,
            fields: Some(self.fields.into_iter().map(FieldRow::field).collect()),
        }
    }
}

impl FieldRow {
    fn field(self) -> StructureField {
        StructureField {
            name: self.name.into(),
            description: text(self.about),
            data_type: standard(self.data),
            value_rank: self.rank,
            array_dimensions: None,
            max_string_length: 0,
            is_optional: false,
        }
    }

    fn argument(self) -> ExtensionObject {
        ExtensionObject::from_message(Argument {
            name: self.name.into(),
            data_type: standard(self.data),
            value_rank: self.rank,
            // As many as the rank, each of any length.
            array_dimensions: usize::try_from(self.rank).ok().map(|rank| vec![0; rank]),
            description: text(self.about),
        })
    }
}

impl MemberRow {
    fn field(self) -> EnumField {
        EnumField {
            value: self.value,
            display_name: LocalizedText::null(),
            description: text(self.about),
            name: self.name.into(),
        }
    }

    fn enum_value(self) -> ExtensionObject {
        ExtensionObject::from_message(EnumValueType {
            value: self.value,
            display_name: self.name.into(),
            description: text(self.about),
        })
    }
}

impl RowValue {
    pub(super) fn variant(self) -> Variant {
        match self {
            RowValue::Boolean(value) => value.into(),
            RowValue::UInt32(value) => value.into(),
            RowValue::String(value) => value.into(),
            RowValue::DateTime(value) => DateTime::parse_from_rfc3339(&value).expect(TESTED).into(),
            RowValue::LocalizedText(locale, text) => LocalizedText::new(&locale, &text).into(),
            RowValue::Int32s(values) => values.into(),
            RowValue::Strings(values) => values.into(),
            RowValue::LocalizedTexts(values) => {
                let texts: Vec<LocalizedText> = values.into_iter().map(LocalizedText::from).collect();
                texts.into()
            }
            RowValue::Arguments(rows) => objects(rows.into_iter().map(FieldRow::argument)),
            RowValue::EnumValues(rows) => objects(rows.into_iter().map(MemberRow::enum_value)),
        }
    }
}

fn objects(objects: impl Iterator<Item = ExtensionObject>) -> Variant {
    objects.collect::<Vec<ExtensionObject>>().into()
}

impl RowReference {
    /// Reads a letter, or a sign with the type and a colon, and the other node.
    pub(super) fn parse(text: &str) -> Option<RowReference> {
        let (sign, rest) = text.split_at_checked(1)?;
        let (kind, is_forward, other) = match sign {
            "t" => (ReferenceTypeId::HasTypeDefinition as u32, true, rest),
            "r" => (ReferenceTypeId::HasModellingRule as u32, true, rest),
            "s" => (ReferenceTypeId::HasSubtype as u32, false, rest),
            "p" => (ReferenceTypeId::HasProperty as u32, false, rest),
            "c" => (ReferenceTypeId::HasComponent as u32, false, rest),
            "o" => (ReferenceTypeId::Organizes as u32, false, rest),
            "e" => (ReferenceTypeId::HasEncoding as u32, false, rest),
            "+" | "-" => {
                let (kind, other) = rest.split_once(':')?;
                (kind.parse().ok()?, sign == "+", other)
            }
            _ => return None,
        };
        let other = other.parse().ok()?;
        Some(RowReference {
            kind,
            is_forward,
            other,
        })
    }
}
