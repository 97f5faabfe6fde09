//! The folder `Types`: one node for every kind of value that a client may meet, with the edge cases (limits,
//! not-a-number, empty, null, bad status, matrix), two changing nodes and some writable ones. The table is built once
//! and never changes; only the values of writable nodes do.

mod point;
mod table;

use opcua::types::{DataValue, DateTime, NodeId, StatusCode, Variant};
use parking_lot::RwLock;

pub(crate) use point::{OPAQUE_ENCODING, POINT_ENCODING, point_definition};

/// The analog item counts from 0 to this and starts again.
const SAWTOOTH_TOP: u64 = 100;

/// One node of the table.
pub(crate) struct TypedNode {
    pub(crate) name: &'static str,
    pub(crate) data_type: NodeId,
    pub(crate) value_rank: i32,
    pub(crate) dimensions: Vec<u32>,
    pub(crate) content: Content,
    pub(crate) shape: Shape,
}

/// The place of a node in the tree.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Plain,
    /// An AnalogItemType, the parent of the properties.
    Analog,
    /// A property of the analog item.
    Property,
}

/// The source of a node's value.
pub(crate) enum Content {
    /// Never changes. Without `timed` there is no source timestamp.
    Fixed {
        value: Option<Variant>,
        status: Option<StatusCode>,
        timed: bool,
    },
    /// UInt32, the count of changes.
    Counter,
    /// Double, from 0 to 100 repeatedly.
    Sawtooth,
    Writable(RwLock<DataValue>),
    /// Answers every write with Good and keeps its value.
    Stuck(Variant),
}

/// The table, and the index of the analog item.
pub(crate) struct TypedNodeTable {
    nodes: Vec<TypedNode>,
    analog: Option<u16>,
}

impl TypedNodeTable {
    pub(crate) fn new(start: DateTime) -> TypedNodeTable {
        let nodes = table::nodes(start);
        let analog = nodes
            .iter()
            .position(|node| node.shape == Shape::Analog)
            .map(|at| at as u16);
        TypedNodeTable { nodes, analog }
    }

    pub(crate) fn node(&self, index: u16) -> Option<&TypedNode> {
        self.nodes.get(usize::from(index))
    }

    pub(crate) fn find(&self, name: &str) -> Option<u16> {
        self.nodes.iter().position(|node| node.name == name).map(|at| at as u16)
    }

    pub(crate) fn analog(&self) -> Option<u16> {
        self.analog
    }

    /// Nodes directly in the folder, or the analog item's properties.
    pub(crate) fn members(&self, properties: bool) -> impl Iterator<Item = u16> + '_ {
        self.nodes
            .iter()
            .enumerate()
            .filter(move |(_, node)| (node.shape == Shape::Property) == properties)
            .map(|(at, _)| at as u16)
    }

    /// The number of nodes that change with the clock.
    pub(crate) fn changing(&self) -> u32 {
        self.nodes.iter().filter(|node| node.content.changes()).count() as u32
    }
}

impl Content {
    pub(crate) fn changes(&self) -> bool {
        matches!(self, Content::Counter | Content::Sawtooth)
    }

    pub(crate) fn writable(&self) -> bool {
        matches!(self, Content::Writable(_) | Content::Stuck(_))
    }

    /// The number that a changing node has after this many changes.
    pub(crate) fn number(&self, changes: u64) -> f64 {
        match self {
            Content::Sawtooth => (changes % (SAWTOOTH_TOP + 1)) as f64,
            _ => f64::from(changes as u32),
        }
    }

    /// The value after this many changes; `changed` and `started` are the times of the last change and of the start.
    pub(crate) fn value(&self, changes: u64, changed: DateTime, started: DateTime) -> DataValue {
        match self {
            Content::Fixed { value, status, timed } => DataValue {
                value: value.clone(),
                status: *status,
                source_timestamp: timed.then_some(started),
                ..DataValue::default()
            },
            Content::Counter => stamped(Variant::UInt32(changes as u32), changed),
            Content::Sawtooth => stamped(Variant::Double(self.number(changes)), changed),
            Content::Writable(cell) => cell.read().clone(),
            Content::Stuck(value) => stamped(value.clone(), started),
        }
    }
}

fn stamped(value: Variant, source: DateTime) -> DataValue {
    DataValue {
        value: Some(value),
        source_timestamp: Some(source),
        ..DataValue::default()
    }
}
