//! Updates a table from a newer browse of the same server, without changing the meaning of any index.

use std::collections::BTreeSet;

use opcua::types::NodeId;

use super::{DiscoveredNode, ItemState, NO_NODE, NodeIndex, NodeKind, NodeTable, chain_hash};

/// The variables that a newer browse added or removed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeTableChanges {
    pub added: Vec<NodeIndex>,
    pub removed: Vec<NodeIndex>,
}

/// Additional knowledge, so that a node that only could not be queried is not taken for a removed one.
#[derive(Debug, Default)]
pub(crate) struct MergeUncertainty {
    /// Nodes of the newer table that could not be read or browsed: nothing is known about them or their descendants.
    pub unbrowsed: BTreeSet<NodeIndex>,
    /// Nodes of this table that were only a configured NodeID until now.
    pub unknown_roots: BTreeSet<NodeIndex>,
    /// The newer browse ended early, so any node that it lacks may be in the server.
    pub is_cut_short: bool,
}

impl NodeTable {
    /// Merges nodes, parents and attributes of `newer`. Nodes that it lacks stay in the table as removed, unless they
    /// were below one that could not be browsed, or the browse was cut short. Once this table takes `bytes_max`, new
    /// nodes, data types and descriptions are left out.
    pub fn merge(&mut self, newer: &NodeTable, unclear: &MergeUncertainty, bytes_max: usize) -> NodeTableChanges {
        let mut differences = NodeTableChanges::default();
        let before = self.len();
        let mut mapped: Vec<NodeIndex> = Vec::with_capacity(newer.len());
        let mut unbrowsed: BTreeSet<NodeIndex> = BTreeSet::new();
        for index in 0..newer.len() as NodeIndex {
            // Parents come before their children in the newer table.
            let parent = mapped.get(newer.parent(index) as usize).copied().unwrap_or(NO_NODE);
            let own = self.take_over(newer, index, parent, unclear, bytes_max, &mut differences);
            if unclear.unbrowsed.contains(&index) {
                unbrowsed.insert(own);
            }
            mapped.push(own);
        }
        if unclear.is_cut_short {
            return differences;
        }
        let mut kept = vec![false; self.len()];
        for own in mapped {
            if let Some(kept) = kept.get_mut(own as usize) {
                *kept = true;
            }
        }
        let gone: Vec<NodeIndex> = (0..before as NodeIndex)
            .filter(|index| !kept.get(*index as usize).is_some_and(|kept| *kept))
            .filter(|index| !self.is_below(*index, &unbrowsed, &kept))
            .collect();
        for index in gone {
            self.remove(index, &mut differences);
        }
        differences
    }

    /// Whether the first ancestor that the newer browse has found could not be browsed.
    fn is_below(&self, index: NodeIndex, unbrowsed: &BTreeSet<NodeIndex>, kept: &[bool]) -> bool {
        let mut at = self.parent(index);
        while at != NO_NODE {
            if unbrowsed.contains(&at) {
                return true;
            }
            if kept.get(at as usize).is_some_and(|kept| *kept) {
                return false;
            }
            at = self.parent(at);
        }
        false
    }

    fn take_over(
        &mut self,
        newer: &NodeTable,
        index: NodeIndex,
        parent: NodeIndex,
        unclear: &MergeUncertainty,
        bytes_max: usize,
        differences: &mut NodeTableChanges,
    ) -> NodeIndex {
        let (id, name, class) = (newer.node_id(index), newer.name(index), newer.class(index));
        let known = self.find(&id);
        if let Some(own) = known.filter(|own| newer.is_failed(index) && !self.is_removed(*own)) {
            // A configured node that cannot be read now keeps its entry.
            return own;
        }
        let own = match known {
            Some(own) => {
                let was_known = !unclear.unknown_roots.contains(&own);
                self.update(own, name, class, parent, was_known, differences);
                own
            }
            None if self.heap_bytes() >= bytes_max => return NO_NODE,
            None => {
                let Some(own) = self.add_newer(newer, index, &id, parent) else {
                    return NO_NODE;
                };
                if class == NodeKind::Variable {
                    differences.added.push(own);
                }
                own
            }
        };
        let (data_type, access_level, description) = newer.attributes(index);
        self.set_attributes(own, data_type, access_level, description, bytes_max);
        if newer.is_failed(index) {
            self.set_state(own, newer.state(index));
            // If it was added, it is the last one.
            differences.added.pop_if(|added| *added == own);
        }
        own
    }

    fn add_newer(&mut self, newer: &NodeTable, index: NodeIndex, id: &NodeId, parent: NodeIndex) -> Option<NodeIndex> {
        let (name, class) = (newer.name(index), newer.class(index));
        if newer.unresolved.contains(&index) {
            return self.add_unresolved(name);
        }
        self.add(&DiscoveredNode {
            id,
            name,
            class,
            parent,
        })
    }

    fn update(
        &mut self,
        own: NodeIndex,
        name: &str,
        class: NodeKind,
        parent: NodeIndex,
        was_known: bool,
        differences: &mut NodeTableChanges,
    ) {
        let (depth, parent_hash) = self
            .entries
            .get(parent as usize)
            .map_or((0, 0), |parent| (parent.depth.saturating_add(1), parent.path_hash));
        let same_name = self.name(own) == name;
        let name_ref = if same_name { None } else { Some(self.texts.add(name)) };
        let Some(entry) = self.entries.get_mut(own as usize) else {
            return;
        };
        entry.parent = parent;
        entry.depth = depth;
        entry.path_hash = chain_hash(parent_hash, name);
        if let Some(name) = name_ref {
            entry.name = name;
        }
        let (was_class, was_removed) = (entry.class, std::mem::take(&mut entry.removed));
        entry.class = class;
        self.variables += usize::from(class == NodeKind::Variable);
        self.variables -= usize::from(was_class == NodeKind::Variable && !was_removed);
        let was_served = was_class == NodeKind::Variable && !was_removed && was_known;
        match (was_served, class == NodeKind::Variable) {
            (false, true) => {
                self.set_state(own, ItemState::Pending);
                differences.added.push(own);
            }
            (true, false) => {
                self.set_state(own, ItemState::NotWanted);
                differences.removed.push(own);
            }
            // A configured node that turned out to be an object was counted as failed until now.
            (false, false) => self.set_state(own, ItemState::NotWanted),
            (true, true) => {}
        }
    }

    fn remove(&mut self, index: NodeIndex, differences: &mut NodeTableChanges) {
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return;
        };
        if std::mem::replace(&mut entry.removed, true) {
            return;
        }
        if entry.class == NodeKind::Variable {
            differences.removed.push(index);
            self.variables -= 1;
        }
        self.set_state(index, ItemState::NotWanted);
    }

    /// Removes the entry of a configured node without a NodeID, now that it has one.
    pub fn resolved(&mut self, index: NodeIndex) {
        if self.unresolved.remove(&index) {
            self.remove(index, &mut NodeTableChanges::default());
        }
    }
}
