//! Two structures of the simulator's own namespace: `Point`, whose description a client can read from the DataType
//! node, and `Opaque`, which nothing describes, so that a client must pass its bytes on.

use std::io::Write;

use opcua::types::{
    BinaryEncodable, Context, DataTypeDefinition, DataTypeId, EncodingResult, ExpandedMessageInfo, ExpandedNodeId,
    LocalizedText, NodeId, StructureDefinition, StructureField, StructureType,
};

use crate::space::NAMESPACE;

/// Identifiers of the binary encodings, `ns=3;i=5001` and `ns=3;i=5999`; the latter has no node.
pub(crate) const POINT_ENCODING: u32 = 5_001;
pub(crate) const OPAQUE_ENCODING: u32 = 5_999;
pub(crate) const POINT_TYPE_NAME: &str = "TypesPointType";

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) label: String,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Opaque(pub(super) Vec<u8>);

/// The DataTypeDefinition attribute of `Point`.
pub(crate) fn point_definition() -> DataTypeDefinition {
    let field = |name: &str, data_type: DataTypeId| StructureField {
        name: name.into(),
        description: LocalizedText::null(),
        data_type: data_type.into(),
        value_rank: -1,
        array_dimensions: None,
        max_string_length: 0,
        is_optional: false,
    };
    DataTypeDefinition::Structure(StructureDefinition {
        default_encoding_id: NodeId::new(NAMESPACE, POINT_ENCODING),
        base_data_type: DataTypeId::Structure.into(),
        structure_type: StructureType::Structure,
        fields: Some(vec![
            field("X", DataTypeId::Double),
            field("Y", DataTypeId::Double),
            field("Label", DataTypeId::String),
        ]),
    })
}

impl BinaryEncodable for Point {
    fn byte_len(&self, _: &Context<'_>) -> usize {
        8 + 8 + 4 + self.label.len()
    }

    fn encode<S: Write + ?Sized>(&self, stream: &mut S, _: &Context<'_>) -> EncodingResult<()> {
        stream.write_all(&self.x.to_le_bytes())?;
        stream.write_all(&self.y.to_le_bytes())?;
        stream.write_all(&(self.label.len() as i32).to_le_bytes())?;
        Ok(stream.write_all(self.label.as_bytes())?)
    }
}

impl BinaryEncodable for Opaque {
    fn byte_len(&self, _: &Context<'_>) -> usize {
        self.0.len()
    }

    fn encode<S: Write + ?Sized>(&self, stream: &mut S, _: &Context<'_>) -> EncodingResult<()> {
        Ok(stream.write_all(&self.0)?)
    }
}

fn numbered(id: u32) -> ExpandedNodeId {
    ExpandedNodeId::new(NodeId::new(NAMESPACE, id))
}

impl ExpandedMessageInfo for Point {
    fn full_type_id(&self) -> ExpandedNodeId {
        numbered(POINT_ENCODING)
    }

    fn full_json_type_id(&self) -> ExpandedNodeId {
        ExpandedNodeId::null()
    }

    fn full_xml_type_id(&self) -> ExpandedNodeId {
        ExpandedNodeId::null()
    }

    fn full_data_type_id(&self) -> ExpandedNodeId {
        ExpandedNodeId::new(NodeId::new(NAMESPACE, POINT_TYPE_NAME))
    }
}

impl ExpandedMessageInfo for Opaque {
    fn full_type_id(&self) -> ExpandedNodeId {
        numbered(OPAQUE_ENCODING)
    }

    fn full_json_type_id(&self) -> ExpandedNodeId {
        ExpandedNodeId::null()
    }

    fn full_xml_type_id(&self) -> ExpandedNodeId {
        ExpandedNodeId::null()
    }

    fn full_data_type_id(&self) -> ExpandedNodeId {
        DataTypeId::Structure.into()
    }
}
