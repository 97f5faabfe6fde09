//! The address space of namespace 3, computed instead of stored: a node is a small copyable value, and its identifier,
//! name, references and value follow from it. So 1,000,000 static nodes cost no memory, and Browse and Read need no
//! lock. The invariant: `find(id(node)) == node` for every node, and `find` returns nothing else.

mod attributes;
pub(crate) mod clock;
mod references;
mod series;
pub(crate) mod types;

use opcua::types::{DataValue, DateTime, Identifier, NodeId, Variant};
use parking_lot::RwLock;

use crate::{SimulatorOptions, ValueType};
use clock::{Clock, StartCell, StartTime};
use series::Series;
use types::{Content, OPAQUE_ENCODING, POINT_ENCODING, TypedNodeTable};

pub(crate) use references::{ReferenceEntry, ReferenceKind, ReferenceTarget};

/// Index of the simulator's namespace, fixed because clients' configurations name it.
pub(crate) const NAMESPACE: u16 = 3;
pub(crate) const NAMESPACE_URI: &str = "urn:thalweg:simulator:plc";
/// Namespace 2 is empty; it only reserves index 3 for the nodes.
pub(crate) const RESERVED_NAMESPACE_URI: &str = "urn:thalweg:simulator:reserved";

const ROOT: &str = "OpcPlc";
const WIDE: &str = "Wide";
const BAD: &str = "Bad";
const TYPES: &str = "Types";
const POINT_TYPE: &str = "TypesPointType";

/// Nodes that change together. The fixed nodes never change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    Slow = 0,
    Fast = 1,
    Types = 2,
    Fixed = 3,
}

pub(crate) const GROUPS: usize = 4;
/// The groups that have a clock.
pub(crate) const CHANGING: [Group; 3] = [Group::Slow, Group::Fast, Group::Types];

/// The four runs of numbered nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeRun {
    Slow = 0,
    Fast = 1,
    Wide = 2,
    Bad = 3,
}

const RUNS: [NodeRun; 4] = [NodeRun::Slow, NodeRun::Fast, NodeRun::Wide, NodeRun::Bad];

/// One node of the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Root,
    /// Folder at this level (from 1) above the changing nodes of `NodeRun::Slow` or `NodeRun::Fast`.
    Level(NodeRun, u32),
    WideFolder,
    BadFolder,
    TypesFolder,
    Item(NodeRun, u32),
    Typed(u16),
    PointType,
    PointEncoding,
}

/// The whole address space.
pub(crate) struct PlcAddressSpace {
    runs: [Series; 4],
    depth: u32,
    types: Option<TypedNodeTable>,
    clocks: [Clock; 3],
    epoch: StartCell,
    /// Nodes that requests currently do not find. There are few, and the list is searched only if it is not empty.
    hidden: RwLock<Vec<Node>>,
}

impl PlcAddressSpace {
    pub(crate) fn new(options: &SimulatorOptions) -> PlcAddressSpace {
        let changing = |group: &str, value_type: ValueType, count: u32, seconds: f64| {
            let text = format!("{group} changing node, adds 1 every {seconds} s");
            Series::new(group, value_type, count, options.seed, text)
        };
        let fixed = |group: &str, count: u32, text: &str| {
            Series::new(group, ValueType::UInt, count, options.seed, text.to_owned())
        };
        let epoch = if options.hold {
            StartCell::held()
        } else {
            StartCell::default()
        };
        let hidden = RwLock::default();
        let types = options.types.then(|| TypedNodeTable::new(DateTime::now()));
        let space = PlcAddressSpace {
            hidden,
            runs: [
                changing("Slow", options.slow_type, options.slow_nodes, options.slow_rate),
                changing("Fast", options.fast_type, options.fast_nodes, options.fast_rate),
                fixed("Wide", options.wide, "Static node"),
                fixed("Bad", options.bad_nodes, "Node that cannot be read"),
            ],
            depth: options.depth,
            types,
            clocks: [
                Clock::new(options.slow_rate),
                Clock::new(options.fast_rate),
                Clock::new(options.fast_rate),
            ],
            epoch,
        };
        for node in &options.hidden {
            space.hide(node, true);
        }
        space
    }

    /// Hides a node or shows it again; false if there is no such node.
    pub(crate) fn hide(&self, id: &str, hide: bool) -> bool {
        let Some(node) = id.parse().ok().and_then(|id| self.find(&id)) else {
            return false;
        };
        let mut hidden = self.hidden.write();
        hidden.retain(|known| *known != node);
        if hide {
            hidden.push(node);
        }
        true
    }

    pub(crate) fn is_hidden(&self, node: Node) -> bool {
        self.hidden.read().contains(&node)
    }

    /// Stores a value, a status or both in a writable node, and returns its identifier; `None` if there is no such node.
    pub(crate) fn put(&self, id: &str, value: &DataValue) -> Option<NodeId> {
        let id: NodeId = id.parse().ok()?;
        let Node::Typed(index) = self.find(&id)? else {
            return None;
        };
        let Content::Writable(cell) = &self.types()?.node(index)?.content else {
            return None;
        };
        *cell.write() = value.clone();
        Some(id)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.epoch.is_held()
    }

    /// See [`crate::Simulator::let_go`].
    pub(crate) fn let_go(&self) -> bool {
        self.epoch.let_go()
    }

    pub(crate) fn start(&self) -> StartTime {
        self.epoch.start()
    }

    pub(crate) fn clock(&self, group: Group) -> Option<&Clock> {
        self.clocks.get(group as usize)
    }

    fn run(&self, run: NodeRun) -> &Series {
        // `runs` has one element per `NodeRun`.
        &self.runs[run as usize]
    }

    pub(crate) fn types(&self) -> Option<&TypedNodeTable> {
        self.types.as_ref()
    }

    /// The number of nodes that change with the group's clock, or of all readable static ones for `Group::Fixed`.
    pub(crate) fn nodes(&self, group: Group) -> u32 {
        match group {
            Group::Slow => self.run(NodeRun::Slow).count(),
            Group::Fast => self.run(NodeRun::Fast).count(),
            Group::Types => self.types.as_ref().map_or(0, TypedNodeTable::changing),
            Group::Fixed => {
                let typed = self
                    .types
                    .as_ref()
                    .map_or(0, |types| types.members(true).chain(types.members(false)).count());
                self.run(NodeRun::Wide).count() + (typed as u32).saturating_sub(self.nodes(Group::Types))
            }
        }
    }

    /// Returns the node with this identifier.
    pub(crate) fn find(&self, id: &NodeId) -> Option<Node> {
        if id.namespace != NAMESPACE {
            return None;
        }
        match &id.identifier {
            Identifier::String(text) => self.find_name(text.as_ref()),
            Identifier::Numeric(POINT_ENCODING) if self.types.is_some() => Some(Node::PointEncoding),
            // Nothing describes the opaque structure, so its encoding has no node.
            Identifier::Numeric(OPAQUE_ENCODING | _) | Identifier::Guid(_) | Identifier::ByteString(_) => None,
        }
    }

    fn find_name(&self, name: &str) -> Option<Node> {
        for run in RUNS {
            if let Some(index) = self.run(run).index(name) {
                return Some(Node::Item(run, index));
            }
        }
        match name {
            ROOT => Some(Node::Root),
            WIDE => self.shown(Node::WideFolder),
            BAD => self.shown(Node::BadFolder),
            TYPES => self.shown(Node::TypesFolder),
            POINT_TYPE => self.shown(Node::PointType),
            _ => self.find_level(name).or_else(|| self.find_typed(name)),
        }
    }

    /// Returns the folder if the options enable it.
    fn shown(&self, node: Node) -> Option<Node> {
        let exists = match node {
            Node::WideFolder => self.run(NodeRun::Wide).count() > 0,
            Node::BadFolder => self.run(NodeRun::Bad).count() > 0,
            _ => self.types.is_some(),
        };
        exists.then_some(node)
    }

    fn find_level(&self, name: &str) -> Option<Node> {
        let (run, rest) = match name.strip_prefix("Slow") {
            Some(rest) => (NodeRun::Slow, rest),
            None => (NodeRun::Fast, name.strip_prefix("Fast")?),
        };
        if rest.is_empty() {
            return Some(Node::Level(run, 1));
        }
        let level: u32 = rest.strip_prefix("Level")?.parse().ok()?;
        let node = Node::Level(run, level);
        ((2..=self.depth).contains(&level) && self.name(node) == name).then_some(node)
    }

    fn find_typed(&self, name: &str) -> Option<Node> {
        let name = name.strip_prefix(TYPES)?;
        self.types.as_ref()?.find(name).map(Node::Typed)
    }

    pub(crate) fn id(&self, node: Node) -> NodeId {
        match node {
            Node::PointEncoding => NodeId::new(NAMESPACE, POINT_ENCODING),
            _ => NodeId::new(NAMESPACE, self.name(node)),
        }
    }

    /// The string part of the identifier, unique in the namespace.
    fn name(&self, node: Node) -> String {
        match node {
            Node::Root => ROOT.to_owned(),
            Node::Level(run, 1) => group_name(run).to_owned(),
            Node::Level(run, level) => format!("{}Level{level}", group_name(run)),
            Node::WideFolder => WIDE.to_owned(),
            Node::BadFolder => BAD.to_owned(),
            Node::TypesFolder => TYPES.to_owned(),
            Node::Item(run, index) => self.run(run).name(index),
            Node::Typed(index) => {
                let name = self
                    .types
                    .as_ref()
                    .and_then(|types| types.node(index))
                    .map_or("", |node| node.name);
                format!("{TYPES}{name}")
            }
            Node::PointType => POINT_TYPE.to_owned(),
            Node::PointEncoding => "Default Binary".to_owned(),
        }
    }

    /// The browse name, unique only among siblings.
    pub(crate) fn browse_name(&self, node: Node) -> String {
        match node {
            Node::Level(_, level) if level > 1 => format!("Level{level}"),
            Node::Typed(index) => self
                .types
                .as_ref()
                .and_then(|types| types.node(index))
                .map_or("", |node| node.name)
                .to_owned(),
            Node::PointType => "PointType".to_owned(),
            _ => self.name(node),
        }
    }

    /// The group whose clock changes a readable variable; `None` for folders and for the bad nodes.
    pub(crate) fn group(&self, node: Node) -> Option<Group> {
        match node {
            Node::Item(NodeRun::Slow, _) => Some(Group::Slow),
            Node::Item(NodeRun::Fast, _) => Some(Group::Fast),
            Node::Item(NodeRun::Wide, _) => Some(Group::Fixed),
            Node::Typed(index) => {
                let changes = self.types.as_ref()?.node(index)?.content.changes();
                Some(if changes { Group::Types } else { Group::Fixed })
            }
            _ => None,
        }
    }

    /// A readable variable's current value, with the count of changes it was computed from.
    pub(crate) fn value(&self, node: Node) -> Option<(DataValue, u64)> {
        let group = self.group(node)?;
        let changes = self.clock(group).map_or(0, Clock::changes);
        let changed = self
            .clock(group)
            .map_or_else(|| self.start().time(), |clock| clock.time(self.start(), changes));
        let value = match node {
            Node::Item(run, index) => DataValue {
                value: Some(self.run(run).value(index, changes)),
                source_timestamp: Some(changed),
                ..DataValue::default()
            },
            Node::Typed(index) => {
                self.types
                    .as_ref()?
                    .node(index)?
                    .content
                    .value(changes, changed, self.start().time())
            }
            _ => return None,
        };
        Some((value, changes))
    }

    /// The value of a changing node after this many changes; `index` counts within the group.
    pub(crate) fn changed_value(&self, group: Group, index: u32, changes: u64) -> Variant {
        match group {
            Group::Slow => self.run(NodeRun::Slow).value(index, changes),
            Group::Fast => self.run(NodeRun::Fast).value(index, changes),
            Group::Types | Group::Fixed => {
                let content = self
                    .types
                    .as_ref()
                    .and_then(|types| types.node(index as u16))
                    .map(|node| &node.content);
                content
                    .and_then(|content| content.value(changes, DateTime::null(), DateTime::null()).value)
                    .unwrap_or_default()
            }
        }
    }

    /// The value after this many changes, as the number that a deadband compares.
    pub(crate) fn changed_number(&self, group: Group, index: u32, changes: u64) -> f64 {
        match group {
            Group::Slow => self.run(NodeRun::Slow).number(index, changes),
            Group::Fast => self.run(NodeRun::Fast).number(index, changes),
            Group::Types | Group::Fixed => {
                let node = self.types.as_ref().and_then(|types| types.node(index as u16));
                node.map_or(0.0, |node| node.content.number(changes))
            }
        }
    }

    /// The value type of a group's nodes.
    pub(crate) fn value_type(&self, group: Group) -> ValueType {
        match group {
            Group::Slow => self.run(NodeRun::Slow).value_type(),
            Group::Fast => self.run(NodeRun::Fast).value_type(),
            Group::Types | Group::Fixed => ValueType::Double,
        }
    }

    /// The index of a variable within its group, for `changed_value`.
    pub(crate) fn index(&self, node: Node) -> u32 {
        match node {
            Node::Item(_, index) => index,
            Node::Typed(index) => u32::from(index),
            _ => 0,
        }
    }
}

fn group_name(run: NodeRun) -> &'static str {
    match run {
        NodeRun::Slow => "Slow",
        NodeRun::Fast => "Fast",
        NodeRun::Wide => WIDE,
        NodeRun::Bad => BAD,
    }
}

#[cfg(test)]
mod tests;
