//! Bringing a table up to date with a newer browse of the same server, without changing what any index means.

use opcua::types::NodeId;

use super::{Class, Found, ItemState, NO_NODE, NodeIndex, NodeTable, chain_hash};

/// What a newer browse found to be different. All are variables.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Differences {
    pub added: Vec<NodeIndex>,
    pub removed: Vec<NodeIndex>,
}

impl NodeTable {
    /// Takes over nodes, parents and attributes of `newer`; nodes that it lacks stay in the table as removed.
    pub fn merge(&mut self, newer: &NodeTable) -> Differences {
        let mut differences = Differences::default();
        let before = self.len();
        let mut mapped: Vec<NodeIndex> = Vec::with_capacity(newer.len());
        for index in 0..newer.len() as NodeIndex {
            let id = newer.node_id(index);
            // Parents come before their children in the newer table.
            let parent = mapped.get(newer.parent(index) as usize).copied().unwrap_or(NO_NODE);
            let own = self.take_over(newer, index, &id, parent, &mut differences);
            mapped.push(own);
        }
        let mut kept = vec![false; self.len()];
        for own in mapped {
            if let Some(kept) = kept.get_mut(own as usize) {
                *kept = true;
            }
        }
        let gone = kept.into_iter().take(before).enumerate().filter(|(_, kept)| !kept);
        for (index, _) in gone {
            self.remove(index as NodeIndex, &mut differences);
        }
        differences
    }

    fn take_over(
        &mut self,
        newer: &NodeTable,
        index: NodeIndex,
        id: &NodeId,
        parent: NodeIndex,
        differences: &mut Differences,
    ) -> NodeIndex {
        let (name, class) = (newer.name(index), newer.class(index));
        let own = match self.find(id) {
            Some(own) => {
                self.update(own, name, class, parent, differences);
                own
            }
            None => {
                let Some(own) = self.add(&Found {
                    id,
                    name,
                    class,
                    parent,
                }) else {
                    return NO_NODE;
                };
                if class == Class::Variable {
                    differences.added.push(own);
                }
                own
            }
        };
        let (data_type, access_level, description) = newer.attributes(index);
        self.set_attributes(own, data_type, access_level, description);
        if newer.is_failed(index) {
            self.set_state(own, newer.state(index));
        }
        own
    }

    fn update(&mut self, own: NodeIndex, name: &str, class: Class, parent: NodeIndex, differences: &mut Differences) {
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
        self.variables += usize::from(class == Class::Variable);
        self.variables -= usize::from(was_class == Class::Variable);
        match (was_class == Class::Variable && !was_removed, class == Class::Variable) {
            (false, true) => {
                self.set_state(own, ItemState::Pending);
                differences.added.push(own);
            }
            (true, false) => {
                self.set_state(own, ItemState::NotWanted);
                differences.removed.push(own);
            }
            _ => {}
        }
    }

    fn remove(&mut self, index: NodeIndex, differences: &mut Differences) {
        let Some(entry) = self.entries.get_mut(index as usize) else {
            return;
        };
        if std::mem::replace(&mut entry.removed, true) {
            return;
        }
        if entry.class == Class::Variable {
            differences.removed.push(index);
        }
        self.set_state(index, ItemState::NotWanted);
    }
}
