//! Attributes of our nodes other than Value, for Read. An attribute that the node class does not have returns
//! BadAttributeIdInvalid, as the OPC UA specification requires.

use opcua::types::{
    AttributeId, ExtensionObject, LocalizedText, NodeClass, NodeId, QualifiedName, StatusCode, Variant,
};
use opcua_nodes::AccessLevel;

use super::types::point_definition;
use super::{NAMESPACE, Node, NodeRun, PlcAddressSpace};

const SCALAR: i32 = -1;

impl PlcAddressSpace {
    pub(crate) fn class(&self, node: Node) -> NodeClass {
        match node {
            Node::Item(..) | Node::Typed(_) => NodeClass::Variable,
            Node::PointType => NodeClass::DataType,
            _ => NodeClass::Object,
        }
    }

    /// Whether Read and CreateMonitoredItems refuse the node although Browse shows it.
    pub(crate) fn denied(&self, node: Node) -> bool {
        matches!(node, Node::Item(NodeRun::Bad, _)) || self.is_hidden(node)
    }

    pub(crate) fn qualified_name(&self, node: Node) -> QualifiedName {
        QualifiedName::new(self.browse_namespace(node), self.browse_name(node))
    }

    /// Properties and encodings have names from the standard, so those belong to namespace 0.
    pub(crate) fn browse_namespace(&self, node: Node) -> u16 {
        let standard = match node {
            Node::PointEncoding => true,
            Node::Typed(_) => self.definition(node) == Some(super::references::StandardNode::PropertyType),
            _ => false,
        };
        if standard { 0 } else { NAMESPACE }
    }

    pub(crate) fn attribute(&self, node: Node, attribute: AttributeId) -> Result<Variant, StatusCode> {
        match attribute {
            AttributeId::NodeId => Ok(self.id(node).into()),
            AttributeId::NodeClass => Ok(Variant::Int32(self.class(node) as i32)),
            AttributeId::BrowseName => Ok(self.qualified_name(node).into()),
            AttributeId::DisplayName => Ok(LocalizedText::new("en", &self.browse_name(node)).into()),
            AttributeId::Description => Ok(LocalizedText::new("en", self.description(node)).into()),
            AttributeId::WriteMask | AttributeId::UserWriteMask => Ok(Variant::UInt32(0)),
            _ => match self.class(node) {
                NodeClass::Variable => self.variable_attribute(node, attribute),
                NodeClass::DataType => data_type_attribute(attribute),
                _ => object_attribute(attribute),
            },
        }
    }

    fn description(&self, node: Node) -> &str {
        match node {
            Node::Item(run, _) => self.run(run).description(),
            Node::Root => "Simulated PLC",
            Node::Typed(_) => "Sample of a value type",
            _ => "Folder of the simulator",
        }
    }

    fn variable_attribute(&self, node: Node, attribute: AttributeId) -> Result<Variant, StatusCode> {
        match attribute {
            AttributeId::DataType => Ok(self.data_type(node).into()),
            AttributeId::ValueRank => Ok(Variant::Int32(self.value_rank(node))),
            AttributeId::ArrayDimensions => match self.dimensions(node) {
                [] => Err(StatusCode::BadAttributeIdInvalid),
                dimensions => Ok(Variant::from(dimensions.to_vec())),
            },
            AttributeId::AccessLevel | AttributeId::UserAccessLevel => {
                Ok(Variant::Byte(self.access_level(node).bits()))
            }
            AttributeId::AccessLevelEx => Ok(Variant::UInt32(u32::from(self.access_level(node).bits()))),
            AttributeId::MinimumSamplingInterval => Ok(Variant::Double(0.0)),
            AttributeId::Historizing => Ok(Variant::Boolean(false)),
            _ => Err(StatusCode::BadAttributeIdInvalid),
        }
    }

    pub(crate) fn data_type(&self, node: Node) -> NodeId {
        match node {
            Node::Item(run, _) => self.run(run).data_type().into(),
            Node::Typed(index) => {
                let node = self.types().and_then(|types| types.node(index));
                node.map_or_else(NodeId::null, |node| node.data_type.clone())
            }
            _ => NodeId::null(),
        }
    }

    fn value_rank(&self, node: Node) -> i32 {
        match node {
            Node::Typed(index) => self
                .types()
                .and_then(|types| types.node(index))
                .map_or(SCALAR, |node| node.value_rank),
            _ => SCALAR,
        }
    }

    fn dimensions(&self, node: Node) -> &[u32] {
        match node {
            Node::Typed(index) => self
                .types()
                .and_then(|types| types.node(index))
                .map_or(&[], |node| &node.dimensions),
            _ => &[],
        }
    }

    pub(crate) fn access_level(&self, node: Node) -> AccessLevel {
        let writable = match node {
            Node::Typed(index) => self
                .types()
                .and_then(|types| types.node(index))
                .is_some_and(|n| n.content.writable()),
            _ => false,
        };
        if writable {
            AccessLevel::CURRENT_READ | AccessLevel::CURRENT_WRITE
        } else {
            AccessLevel::CURRENT_READ
        }
    }
}

fn object_attribute(attribute: AttributeId) -> Result<Variant, StatusCode> {
    match attribute {
        AttributeId::EventNotifier => Ok(Variant::Byte(0)),
        _ => Err(StatusCode::BadAttributeIdInvalid),
    }
}

fn data_type_attribute(attribute: AttributeId) -> Result<Variant, StatusCode> {
    match attribute {
        AttributeId::IsAbstract => Ok(Variant::Boolean(false)),
        AttributeId::DataTypeDefinition => {
            let definition: ExtensionObject = point_definition().into_extension_object();
            Ok(definition.into())
        }
        _ => Err(StatusCode::BadAttributeIdInvalid),
    }
}
