//! All nodes that a browse has found, flat: 64 bytes each plus their texts, so that a million fit in a few hundred
//! megabytes. Nodes are identified by index in the order of their discovery, which is breadth first; an index never
//! changes its meaning. Paths are not stored but derived from the parents.

use std::hash::BuildHasher as _;

use hashbrown::{DefaultHashBuilder, HashTable};
use opcua::types::{ByteString, Guid, Identifier, NodeId, UAString};

use crate::namespace_array::NamespaceArray;
use crate::text_arena::{TextArena, TextRef};

/// An index into the table.
pub(crate) type NodeIndex = u32;

mod data_types;
mod merge;
mod namespaces;

use data_types::{DataTypeTable, NO_TYPE};
pub(crate) use merge::{MergeUncertainty, NodeTableChanges};

/// The parent of roots.
pub(crate) const NO_NODE: NodeIndex = u32::MAX;

/// Maximum nodes of a table.
pub(crate) const NODES_MAX: usize = (u32::MAX - 1) as usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    /// Only walked.
    Object,
    /// A tag, and walked too.
    Variable,
}

/// The state of a variable. The order is that of the counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemState {
    /// Found; the outcome is not known yet.
    Pending,
    Monitored,
    Polled,
    Failed(FailureReason),
    /// An object, or no longer in the server.
    NotWanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureReason {
    NodeIdUnknown,
    NodeIdInvalid,
    FilterNotAllowed,
    FilterUnsupported,
    Other,
}

impl FailureReason {
    pub const ALL: [FailureReason; 5] = [
        FailureReason::NodeIdUnknown,
        FailureReason::NodeIdInvalid,
        FailureReason::FilterNotAllowed,
        FailureReason::FilterUnsupported,
        FailureReason::Other,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            FailureReason::NodeIdUnknown => "node_id_unknown",
            FailureReason::NodeIdInvalid => "node_id_invalid",
            FailureReason::FilterNotAllowed => "filter_not_allowed",
            FailureReason::FilterUnsupported => "filter_unsupported",
            FailureReason::Other => "other",
        }
    }

    pub fn of_status(status: u32) -> FailureReason {
        use opcua::types::StatusCode;
        match StatusCode::from(status & 0xFFFF_0000) {
            StatusCode::BadNodeIdUnknown => FailureReason::NodeIdUnknown,
            StatusCode::BadNodeIdInvalid => FailureReason::NodeIdInvalid,
            StatusCode::BadFilterNotAllowed => FailureReason::FilterNotAllowed,
            StatusCode::BadMonitoredItemFilterUnsupported => FailureReason::FilterUnsupported,
            _ => FailureReason::Other,
        }
    }
}

/// The identifier of a node, without its own allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CompactIdentifier {
    Numeric(u32),
    Text(TextRef),
    Guid(TextRef),
    Bytes(TextRef),
}

#[derive(Clone, Debug)]
struct NodeEntry {
    id: CompactIdentifier,
    name: TextRef,
    /// Unknown until it was read.
    description: TextRef,
    /// Hash of the path from the root, to find equal paths.
    path_hash: u64,
    parent: NodeIndex,
    namespace: u16,
    /// Index into the data types; `NO_TYPE` if unknown.
    data_type: u16,
    depth: u16,
    /// `None` until it was read.
    access_level: Option<u8>,
    class: NodeKind,
    state: ItemState,
    /// The last segment of the path is the NodeID, because another node has the same path.
    by_id: bool,
    removed: bool,
}

/// Access level of a variable whose attribute could not be read.
const NO_ACCESS_LEVEL: u8 = 0;

#[derive(Debug, Default)]
pub(crate) struct NodeTable {
    entries: Vec<NodeEntry>,
    texts: TextArena,
    by_id: HashTable<NodeIndex>,
    hasher: DefaultHashBuilder,
    data_types: DataTypeTable,
    variables: usize,
    counts: StateCounts,
    /// The server's namespace array, to which the indexes of all NodeIds here refer.
    namespaces: NamespaceArray,
    /// Configured nodes whose namespace the server does not have. Their text replaces the NodeID.
    unresolved: std::collections::BTreeSet<NodeIndex>,
}

/// The number of variables in each state; their sum is the number of wanted ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct StateCounts {
    pub pending: usize,
    pub monitored: usize,
    pub polled: usize,
    pub failed: [usize; FailureReason::ALL.len()],
}

impl StateCounts {
    pub fn wanted(&self) -> usize {
        self.pending + self.monitored + self.polled + self.failed_total()
    }

    pub fn failed_total(&self) -> usize {
        self.failed.iter().sum()
    }

    fn slot(&mut self, state: ItemState) -> Option<&mut usize> {
        match state {
            ItemState::Pending => Some(&mut self.pending),
            ItemState::Monitored => Some(&mut self.monitored),
            ItemState::Polled => Some(&mut self.polled),
            ItemState::Failed(reason) => self.failed.get_mut(reason as usize),
            ItemState::NotWanted => None,
        }
    }
}

/// A node as described by a reference to it.
pub(crate) struct DiscoveredNode<'a> {
    pub id: &'a NodeId,
    pub name: &'a str,
    pub class: NodeKind,
    pub parent: NodeIndex,
}

impl NodeTable {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn variables(&self) -> usize {
        self.variables
    }

    pub fn counts(&self) -> StateCounts {
        self.counts
    }

    /// Adds a node unless it is known or the table is full: the first path counts. A node that was removed and is found
    /// again is a new one, with its own index.
    pub fn add(&mut self, found: &DiscoveredNode<'_>) -> Option<NodeIndex> {
        let hash = self.hash(found.id);
        let known = self.find_hashed(found.id, hash);
        if known.is_some_and(|known| !self.is_removed(known)) || self.entries.len() >= NODES_MAX {
            return None;
        }
        let parent = self.entries.get(found.parent as usize);
        let (depth, parent_hash) = parent.map_or((0, 0), |parent| (parent.depth.saturating_add(1), parent.path_hash));
        let index = self.entries.len() as NodeIndex;
        let id = self.store_id(&found.id.identifier);
        let name = self.texts.add(found.name);
        let state = if found.class == NodeKind::Variable {
            ItemState::Pending
        } else {
            ItemState::NotWanted
        };
        self.entries.push(NodeEntry {
            id,
            name,
            description: TextRef::UNKNOWN,
            path_hash: chain_hash(parent_hash, found.name),
            parent: found.parent,
            namespace: found.id.namespace,
            data_type: NO_TYPE,
            depth,
            access_level: None,
            class: found.class,
            state,
            by_id: false,
            removed: false,
        });
        self.variables += usize::from(found.class == NodeKind::Variable);
        if let Some(count) = self.counts.slot(state) {
            *count += 1;
        }
        let NodeTable {
            entries,
            texts,
            by_id,
            hasher,
            ..
        } = self;
        if let Some(slot) = known.and_then(|known| by_id.find_mut(hash, |other| *other == known)) {
            *slot = index;
            return Some(index);
        }
        by_id.insert_unique(hash, index, |other| {
            entries
                .get(*other as usize)
                .map_or(0, |entry| hash_entry(hasher, texts, entry))
        });
        Some(index)
    }

    /// Adds a configured node that cannot be requested, because the server does not have its namespace. It is listed
    /// and counted as failed under its text.
    pub fn add_unresolved(&mut self, text: &str) -> Option<NodeIndex> {
        let index = self.add(&DiscoveredNode {
            id: &unresolved_id(text),
            name: text,
            class: NodeKind::Variable,
            parent: NO_NODE,
        })?;
        self.unresolved.insert(index);
        Some(index)
    }

    /// Finds the entry of a configured node without a namespace.
    pub fn find_unresolved(&self, text: &str) -> Option<NodeIndex> {
        self.find(&unresolved_id(text)).filter(|index| !self.is_removed(*index))
    }

    /// The NodeID as an operator knows it.
    pub fn label(&self, index: NodeIndex) -> String {
        match self.unresolved.contains(&index) {
            true => self.name(index).to_owned(),
            false => crate::node_id::text(&self.node_id(index)),
        }
    }

    /// Whether the entry is a configured node without a namespace.
    pub fn is_unresolved(&self, index: NodeIndex) -> bool {
        self.unresolved.contains(&index)
    }

    /// Whether the node is no longer in the server.
    pub fn is_removed(&self, index: NodeIndex) -> bool {
        self.entries.get(index as usize).is_none_or(|entry| entry.removed)
    }

    pub fn find(&self, id: &NodeId) -> Option<NodeIndex> {
        self.find_hashed(id, self.hash(id))
    }

    fn find_hashed(&self, id: &NodeId, hash: u64) -> Option<NodeIndex> {
        let same = |index: &NodeIndex| {
            self.entries
                .get(*index as usize)
                .is_some_and(|entry| self.is(entry, id))
        };
        self.by_id.find(hash, same).copied()
    }

    fn is(&self, entry: &NodeEntry, id: &NodeId) -> bool {
        entry.namespace == id.namespace
            && match (&entry.id, &id.identifier) {
                (CompactIdentifier::Numeric(a), Identifier::Numeric(b)) => a == b,
                (CompactIdentifier::Text(a), Identifier::String(b)) => self.texts.get(*a) == b.as_ref(),
                (CompactIdentifier::Guid(a), Identifier::Guid(b)) => self.texts.get(*a) == encoded(&b.to_bytes()),
                (CompactIdentifier::Bytes(a), Identifier::ByteString(b)) => self.texts.get(*a) == encoded(b.as_ref()),
                _ => false,
            }
    }

    fn store_id(&mut self, identifier: &Identifier) -> CompactIdentifier {
        match identifier {
            Identifier::Numeric(number) => CompactIdentifier::Numeric(*number),
            Identifier::String(text) => CompactIdentifier::Text(self.texts.add(text.as_ref())),
            Identifier::Guid(guid) => CompactIdentifier::Guid(self.texts.add(&encoded(&guid.to_bytes()))),
            Identifier::ByteString(bytes) => CompactIdentifier::Bytes(self.texts.add(&encoded(bytes.as_ref()))),
        }
    }

    fn hash(&self, id: &NodeId) -> u64 {
        match &id.identifier {
            Identifier::Numeric(number) => self.hasher.hash_one((id.namespace, *number)),
            Identifier::String(text) => self.hasher.hash_one((id.namespace, text.as_ref())),
            Identifier::Guid(guid) => self.hasher.hash_one((id.namespace, encoded(&guid.to_bytes()))),
            Identifier::ByteString(bytes) => self.hasher.hash_one((id.namespace, encoded(bytes.as_ref()))),
        }
    }

    pub fn node_id(&self, index: NodeIndex) -> NodeId {
        let Some(entry) = self.entries.get(index as usize) else {
            return NodeId::null();
        };
        let identifier = match entry.id {
            CompactIdentifier::Numeric(number) => Identifier::Numeric(number),
            CompactIdentifier::Text(text) => Identifier::String(UAString::from(self.texts.get(text))),
            CompactIdentifier::Guid(text) => {
                let bytes: [u8; 16] = decoded(self.texts.get(text)).try_into().unwrap_or_default();
                Identifier::Guid(Guid::from_bytes(bytes))
            }
            CompactIdentifier::Bytes(text) => Identifier::ByteString(ByteString::from(decoded(self.texts.get(text)))),
        };
        NodeId {
            namespace: entry.namespace,
            identifier,
        }
    }

    pub fn class(&self, index: NodeIndex) -> NodeKind {
        self.entries
            .get(index as usize)
            .map_or(NodeKind::Object, |entry| entry.class)
    }

    pub fn depth(&self, index: NodeIndex) -> u16 {
        self.entries.get(index as usize).map_or(0, |entry| entry.depth)
    }

    pub fn parent(&self, index: NodeIndex) -> NodeIndex {
        self.entries.get(index as usize).map_or(NO_NODE, |entry| entry.parent)
    }

    /// The raw browse name.
    pub fn name(&self, index: NodeIndex) -> &str {
        self.entries
            .get(index as usize)
            .map_or("", |entry| self.texts.get(entry.name))
    }

    /// Empty if the node has none or it could not be read.
    pub fn description(&self, index: NodeIndex) -> &str {
        self.entries
            .get(index as usize)
            .map_or("", |entry| self.texts.get(entry.description))
    }

    pub fn access_level(&self, index: NodeIndex) -> u8 {
        self.entries
            .get(index as usize)
            .and_then(|entry| entry.access_level)
            .unwrap_or(NO_ACCESS_LEVEL)
    }

    pub fn data_type(&self, index: NodeIndex) -> Option<&NodeId> {
        let entry = self.entries.get(index as usize)?;
        self.data_types.get(entry.data_type)
    }

    /// Whether the path's last segment is the NodeID.
    pub fn is_named_by_id(&self, index: NodeIndex) -> bool {
        self.entries.get(index as usize).is_some_and(|entry| entry.by_id)
    }

    pub fn state(&self, index: NodeIndex) -> ItemState {
        self.entries
            .get(index as usize)
            .map_or(ItemState::NotWanted, |entry| entry.state)
    }

    pub fn is_failed(&self, index: NodeIndex) -> bool {
        matches!(self.state(index), ItemState::Failed(_))
    }

    pub fn set_state(&mut self, index: NodeIndex, state: ItemState) {
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return;
        };
        // A connection may report a state after a browse has found the node gone, or to be an object.
        let is_tag = entry.class == NodeKind::Variable && !entry.removed;
        if !is_tag && state != ItemState::NotWanted {
            return;
        }
        let before = std::mem::replace(&mut entry.state, state);
        if let Some(count) = self.counts.slot(before) {
            *count -= 1;
        }
        if let Some(count) = self.counts.slot(state) {
            *count += 1;
        }
    }

    /// Stores the attributes of a node. Attributes that could not be read (`None`) keep their value: servers fail
    /// temporarily, and a forgotten data type would cost a tag its filter. Once the table takes `bytes_max`,
    /// descriptions are left out, and a data type that no other node has becomes unknown.
    pub fn set_attributes(
        &mut self,
        index: NodeIndex,
        data_type: Option<&NodeId>,
        access_level: Option<u8>,
        description: Option<&str>,
        bytes_max: usize,
    ) {
        let data_type = data_type.map(|data_type| match self.heap_bytes() < bytes_max {
            true => self.data_types.index_of(data_type),
            false => self.data_types.find(data_type).unwrap_or(NO_TYPE),
        });
        let description = description.filter(|_| self.heap_bytes() < bytes_max);
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return;
        };
        entry.data_type = data_type.unwrap_or(entry.data_type);
        entry.access_level = access_level.or(entry.access_level);
        // The arena frees nothing, so a repeated browse must not add the same texts again.
        let is_known = |text: &str| entry.description != TextRef::UNKNOWN && self.texts.get(entry.description) == text;
        if let Some(description) = description.filter(|text| !is_known(text)) {
            entry.description = self.texts.add(description);
        }
    }

    /// Returns the attributes of a node, for [`NodeTable::set_attributes`].
    pub fn attributes(&self, index: NodeIndex) -> (Option<&NodeId>, Option<u8>, Option<&str>) {
        let entry = self.entries.get(index as usize);
        let described = entry.filter(|entry| entry.description != TextRef::UNKNOWN);
        (
            self.data_type(index),
            entry.and_then(|entry| entry.access_level),
            described.map(|entry| self.texts.get(entry.description)),
        )
    }

    /// Sets name and class of a configured node that was unknown when it was added. A node that is served, and was only
    /// unreadable for a while, does not change.
    pub fn set_root(&mut self, index: NodeIndex, name: &str, class: NodeKind) {
        if !self.is_failed(index) {
            return;
        }
        let state = if class == NodeKind::Variable {
            ItemState::Pending
        } else {
            ItemState::NotWanted
        };
        self.set_state(index, state);
        let name_ref = self.texts.add(name);
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return;
        };
        self.variables += usize::from(class == NodeKind::Variable);
        self.variables -= usize::from(entry.class == NodeKind::Variable);
        entry.class = class;
        entry.name = name_ref;
        entry.path_hash = chain_hash(0, name);
    }

    /// Returns the nodes from the root to this one.
    pub fn chain(&self, index: NodeIndex) -> Vec<NodeIndex> {
        let mut chain = vec![index];
        let mut at = self.parent(index);
        // The parents form a tree, so this ends.
        while at != NO_NODE {
            chain.push(at);
            at = self.parent(at);
        }
        chain.reverse();
        chain
    }

    /// Gives every variable with a duplicate path the NodeID as its last segment. Returns their number.
    pub fn make_paths_unique(&mut self) -> usize {
        let mut hashed: Vec<(u64, NodeIndex)> = Vec::with_capacity(self.variables);
        for (index, entry) in self.entries.iter_mut().enumerate() {
            entry.by_id = false;
            if entry.class == NodeKind::Variable && !entry.removed {
                hashed.push((entry.path_hash, index as NodeIndex));
            }
        }
        hashed.sort_unstable();
        let mut renamed = 0;
        let mut rest = hashed.as_slice();
        while let Some((first, _)) = rest.first() {
            let same = rest.iter().take_while(|(hash, _)| hash == first).count();
            let (group, after) = rest.split_at(same);
            if group.len() > 1 {
                renamed += self.rename_equal(group);
            }
            rest = after;
        }
        renamed
    }

    /// Equal hashes almost always mean equal paths, so compare the paths.
    fn rename_equal(&mut self, group: &[(u64, NodeIndex)]) -> usize {
        let mut paths: Vec<(String, NodeIndex)> = group
            .iter()
            .map(|(_, index)| (crate::tag_path::plain(self, *index), *index))
            .collect();
        paths.sort();
        let mut renamed = 0;
        for (i, (path, index)) in paths.iter().enumerate() {
            let neighbour = |at: Option<usize>| at.and_then(|at| paths.get(at)).is_some_and(|(other, _)| other == path);
            if (neighbour(i.checked_sub(1)) || neighbour(i.checked_add(1)))
                && let Some(entry) = self.entries.get_mut(*index as usize)
            {
                entry.by_id = true;
                renamed += 1;
            }
        }
        renamed
    }

    /// The variables, in the order of their discovery.
    #[cfg(test)]
    pub fn variable_indexes(&self) -> impl Iterator<Item = NodeIndex> + '_ {
        (0..self.len() as NodeIndex).filter(|index| self.is_variable(*index))
    }

    /// Whether the node is a variable that the server has.
    pub fn is_variable(&self, index: NodeIndex) -> bool {
        self.entries
            .get(index as usize)
            .is_some_and(|entry| entry.class == NodeKind::Variable && !entry.removed)
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<NodeEntry>()
            + self.texts.heap_bytes()
            + self.by_id.capacity() * (size_of::<NodeIndex>() + 2)
            + self.data_types.heap_bytes()
    }
}

/// No server has such a node, because the text starts with `nsu=`, which is unresolved.
fn unresolved_id(text: &str) -> NodeId {
    NodeId::new(0, text)
}

fn hash_entry(hasher: &DefaultHashBuilder, texts: &TextArena, entry: &NodeEntry) -> u64 {
    match entry.id {
        CompactIdentifier::Numeric(number) => hasher.hash_one((entry.namespace, number)),
        CompactIdentifier::Text(text) | CompactIdentifier::Guid(text) | CompactIdentifier::Bytes(text) => {
            hasher.hash_one((entry.namespace, texts.get(text)))
        }
    }
}

/// The hash of a path from its parent's hash and its own segment, sanitized as in paths.
fn chain_hash(parent: u64, name: &str) -> u64 {
    let mut segment = String::with_capacity(name.len());
    crate::tag_path::sanitize(name, &mut segment);
    xxhash_rust::xxh3::xxh3_64_with_seed(segment.as_bytes(), parent.wrapping_add(1))
}

/// Encodes bytes as text for the arena; these identifiers are rare.
fn encoded(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

fn decoded(text: &str) -> Vec<u8> {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD
        .decode(text)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
