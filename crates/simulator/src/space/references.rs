//! References: for each node a short list of single ones (type, parent, folders) followed by one run of children, so
//! that a continuation point is a number and a folder of 1,000,000 children is browsed without building a list.

use opcua::types::{NodeClass, NodeId, ObjectId, ObjectTypeId, ReferenceTypeId, VariableTypeId};

use super::types::Shape;
use super::{Node, NodeRun, PlcAddressSpace};

/// The reference types that the simulator uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceKind {
    Organizes = 0,
    HasComponent = 1,
    HasProperty = 2,
    HasTypeDefinition = 3,
    HasSubtype = 4,
    HasEncoding = 5,
}

impl ReferenceKind {
    pub(crate) const ALL: [ReferenceKind; 6] = [
        ReferenceKind::Organizes,
        ReferenceKind::HasComponent,
        ReferenceKind::HasProperty,
        ReferenceKind::HasTypeDefinition,
        ReferenceKind::HasSubtype,
        ReferenceKind::HasEncoding,
    ];

    pub(crate) fn id(self) -> NodeId {
        match self {
            ReferenceKind::Organizes => ReferenceTypeId::Organizes,
            ReferenceKind::HasComponent => ReferenceTypeId::HasComponent,
            ReferenceKind::HasProperty => ReferenceTypeId::HasProperty,
            ReferenceKind::HasTypeDefinition => ReferenceTypeId::HasTypeDefinition,
            ReferenceKind::HasSubtype => ReferenceTypeId::HasSubtype,
            ReferenceKind::HasEncoding => ReferenceTypeId::HasEncoding,
        }
        .into()
    }
}

/// A node of namespace 0 that one of ours refers to; the OPC UA specification fixes its description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StandardNode {
    Objects,
    Structure,
    FolderType,
    BaseDataVariableType,
    PropertyType,
    AnalogItemType,
    DataTypeEncodingType,
}

impl StandardNode {
    pub(crate) fn id(self) -> NodeId {
        match self {
            StandardNode::Objects => ObjectId::ObjectsFolder.into(),
            StandardNode::Structure => opcua::types::DataTypeId::Structure.into(),
            StandardNode::FolderType => ObjectTypeId::FolderType.into(),
            StandardNode::BaseDataVariableType => VariableTypeId::BaseDataVariableType.into(),
            StandardNode::PropertyType => VariableTypeId::PropertyType.into(),
            StandardNode::AnalogItemType => VariableTypeId::AnalogItemType.into(),
            StandardNode::DataTypeEncodingType => ObjectTypeId::DataTypeEncodingType.into(),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            StandardNode::Objects => "Objects",
            StandardNode::Structure => "Structure",
            StandardNode::FolderType => "FolderType",
            StandardNode::BaseDataVariableType => "BaseDataVariableType",
            StandardNode::PropertyType => "PropertyType",
            StandardNode::AnalogItemType => "AnalogItemType",
            StandardNode::DataTypeEncodingType => "DataTypeEncodingType",
        }
    }

    /// Only the Objects folder is an instance; the others are types, which have no type definition.
    pub(crate) fn definition(self) -> Option<NodeId> {
        (self == StandardNode::Objects).then(|| StandardNode::FolderType.id())
    }

    pub(crate) fn class(self) -> NodeClass {
        match self {
            StandardNode::Objects => NodeClass::Object,
            StandardNode::Structure => NodeClass::DataType,
            StandardNode::FolderType | StandardNode::DataTypeEncodingType => NodeClass::ObjectType,
            StandardNode::BaseDataVariableType | StandardNode::PropertyType | StandardNode::AnalogItemType => {
                NodeClass::VariableType
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReferenceTarget {
    Own(Node),
    Core(StandardNode),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReferenceEntry {
    pub(crate) kind: ReferenceKind,
    pub(crate) forward: bool,
    pub(crate) target: ReferenceTarget,
}

/// All references of one node, by position.
pub(crate) struct ReferenceList {
    single: Vec<ReferenceEntry>,
    /// Numbered variables, referenced by HasComponent.
    children: Option<(NodeRun, u32)>,
}

impl ReferenceList {
    pub(crate) fn len(&self) -> usize {
        self.single.len() + self.children.map_or(0, |(_, count)| count as usize)
    }

    pub(crate) fn get(&self, position: usize) -> Option<ReferenceEntry> {
        if let Some(link) = self.single.get(position) {
            return Some(*link);
        }
        let (run, count) = self.children?;
        let index = u32::try_from(position.checked_sub(self.single.len())?).ok()?;
        let target = ReferenceTarget::Own(Node::Item(run, index));
        (index < count).then_some(ReferenceEntry {
            kind: ReferenceKind::HasComponent,
            forward: true,
            target,
        })
    }

    pub(crate) fn singles(&self) -> &[ReferenceEntry] {
        &self.single
    }

    pub(crate) fn children(&self) -> Option<NodeRun> {
        self.children.map(|(run, _)| run)
    }
}

fn down(kind: ReferenceKind, node: Node) -> ReferenceEntry {
    ReferenceEntry {
        kind,
        forward: true,
        target: ReferenceTarget::Own(node),
    }
}

fn up(kind: ReferenceKind, target: ReferenceTarget) -> ReferenceEntry {
    ReferenceEntry {
        kind,
        forward: false,
        target,
    }
}

impl PlcAddressSpace {
    /// Returns the references of our node, or those from a node of namespace 0 to ours.
    pub(crate) fn links(&self, id: &NodeId) -> Option<ReferenceList> {
        if id.namespace == 0 {
            return self.foreign_links(id);
        }
        self.find(id).map(|node| self.own_links(node))
    }

    fn foreign_links(&self, id: &NodeId) -> Option<ReferenceList> {
        let single = if *id == StandardNode::Objects.id() {
            vec![down(ReferenceKind::Organizes, Node::Root)]
        } else if *id == StandardNode::Structure.id() && self.types.is_some() {
            vec![down(ReferenceKind::HasSubtype, Node::PointType)]
        } else {
            return None;
        };
        Some(ReferenceList { single, children: None })
    }

    fn own_links(&self, node: Node) -> ReferenceList {
        let mut single = Vec::with_capacity(8);
        if let Some(definition) = self.definition(node) {
            let target = ReferenceTarget::Core(definition);
            single.push(ReferenceEntry {
                kind: ReferenceKind::HasTypeDefinition,
                forward: true,
                target,
            });
        }
        single.push(self.parent(node));
        single.extend(self.folders(node));
        ReferenceList {
            single,
            children: self.run_below(node),
        }
    }

    /// The type definition; DataTypes have none.
    pub(crate) fn definition(&self, node: Node) -> Option<StandardNode> {
        match node {
            Node::Root | Node::Level(..) | Node::WideFolder | Node::BadFolder | Node::TypesFolder => {
                Some(StandardNode::FolderType)
            }
            Node::Item(..) => Some(StandardNode::BaseDataVariableType),
            Node::Typed(index) => Some(match self.shape(index) {
                Shape::Plain => StandardNode::BaseDataVariableType,
                Shape::Analog => StandardNode::AnalogItemType,
                Shape::Property => StandardNode::PropertyType,
            }),
            Node::PointEncoding => Some(StandardNode::DataTypeEncodingType),
            Node::PointType => None,
        }
    }

    fn shape(&self, index: u16) -> Shape {
        self.types()
            .and_then(|types| types.node(index))
            .map_or(Shape::Plain, |node| node.shape)
    }

    fn parent(&self, node: Node) -> ReferenceEntry {
        use ReferenceKind::{HasComponent, HasEncoding, HasProperty, HasSubtype, Organizes};
        let own = |kind, parent| up(kind, ReferenceTarget::Own(parent));
        match node {
            Node::Root => up(Organizes, ReferenceTarget::Core(StandardNode::Objects)),
            Node::Level(run, level) if level > 1 => own(Organizes, Node::Level(run, level - 1)),
            Node::Level(..) | Node::WideFolder | Node::BadFolder | Node::TypesFolder => own(Organizes, Node::Root),
            Node::Item(NodeRun::Wide, _) => own(HasComponent, Node::WideFolder),
            Node::Item(NodeRun::Bad, _) => own(HasComponent, Node::BadFolder),
            Node::Item(run, _) => own(HasComponent, Node::Level(run, self.depth)),
            Node::Typed(index) => match (self.shape(index), self.types().and_then(|types| types.analog())) {
                (Shape::Property, Some(analog)) => own(HasProperty, Node::Typed(analog)),
                _ => own(HasComponent, Node::TypesFolder),
            },
            Node::PointType => up(HasSubtype, ReferenceTarget::Core(StandardNode::Structure)),
            Node::PointEncoding => own(HasEncoding, Node::PointType),
        }
    }

    fn folders(&self, node: Node) -> Vec<ReferenceEntry> {
        use ReferenceKind::{HasComponent, HasEncoding, HasProperty, Organizes};
        match node {
            Node::Root => {
                let always = [Node::Level(NodeRun::Slow, 1), Node::Level(NodeRun::Fast, 1)];
                let chosen = [Node::WideFolder, Node::BadFolder, Node::TypesFolder];
                let chosen = chosen.into_iter().filter_map(|folder| self.shown(folder));
                always
                    .into_iter()
                    .chain(chosen)
                    .map(|folder| down(Organizes, folder))
                    .collect()
            }
            Node::Level(run, level) if level < self.depth => vec![down(Organizes, Node::Level(run, level + 1))],
            Node::TypesFolder => {
                let members = self.types().into_iter().flat_map(|types| types.members(false));
                members.map(|index| down(HasComponent, Node::Typed(index))).collect()
            }
            Node::Typed(index) if self.shape(index) == Shape::Analog => {
                let properties = self.types().into_iter().flat_map(|types| types.members(true));
                properties.map(|index| down(HasProperty, Node::Typed(index))).collect()
            }
            Node::PointType => vec![down(HasEncoding, Node::PointEncoding)],
            _ => Vec::new(),
        }
    }

    fn run_below(&self, node: Node) -> Option<(NodeRun, u32)> {
        let run = match node {
            Node::Level(run, level) if level == self.depth => run,
            Node::WideFolder => NodeRun::Wide,
            Node::BadFolder => NodeRun::Bad,
            _ => return None,
        };
        Some((run, self.run(run).count()))
    }

    /// Returns the numbered node of this run with this browse name, without walking the run.
    pub(crate) fn child(&self, run: NodeRun, name: &str) -> Option<Node> {
        self.run(run).index(name).map(|index| Node::Item(run, index))
    }
}
