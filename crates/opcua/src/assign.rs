//! Assigns tags to connections by the hash of their NodeID, so that a tag keeps its connection after every browse.

use std::sync::Arc;

use parking_lot::RwLock;
use thalweg_flow::Component;
use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_64;

use crate::node_id;
use crate::node_table::{NodeIndex, NodeTable};

/// What the browse sends to a connection.
#[derive(Debug)]
pub(crate) enum ConnectionCommand {
    /// Variables to serve from now on.
    Monitor(Vec<NodeIndex>),
    Poll(Vec<NodeIndex>),
    Remove(Vec<NodeIndex>),
    /// Paths are final, or have changed.
    PathsChanged,
}

/// Sending never blocks: the table bounds the queues.
#[derive(Clone)]
pub(crate) struct Assigner {
    table: Arc<RwLock<NodeTable>>,
    links: Vec<mpsc::UnboundedSender<ConnectionCommand>>,
    subscribe: bool,
    /// Which tags are monitored, if their number is limited; by index, one byte each.
    monitored: Vec<bool>,
    monitored_count: usize,
    component: Option<Component>,
}

impl Assigner {
    pub fn new(
        table: Arc<RwLock<NodeTable>>,
        links: Vec<mpsc::UnboundedSender<ConnectionCommand>>,
        subscribe: bool,
        component: Component,
    ) -> Assigner {
        Assigner {
            table,
            links,
            subscribe,
            monitored: Vec::new(),
            monitored_count: 0,
            component: Some(component),
        }
    }

    /// Returns an assigner for a browse whose results are only compared.
    pub fn nowhere() -> Assigner {
        Assigner {
            table: Arc::default(),
            links: Vec::new(),
            subscribe: false,
            monitored: Vec::new(),
            monitored_count: 0,
            component: None,
        }
    }

    /// Variables beyond `items_max` are polled.
    pub fn assign(&mut self, nodes: &[NodeIndex], items_max: Option<usize>) {
        if !self.subscribe {
            return self.send(nodes, ConnectionCommand::Poll);
        }
        let room = items_max.map_or(usize::MAX, |max| max.saturating_sub(self.monitored_count));
        let (monitor, poll) = nodes.split_at(room.min(nodes.len()));
        if items_max.is_some() {
            monitor.iter().for_each(|node| self.note(*node, true));
        }
        self.send(monitor, ConnectionCommand::Monitor);
        if let (false, Some(component), Some(max)) = (poll.is_empty(), &self.component, items_max) {
            component.warn_limited("items_max", poll.len() as u64, || {
                format!("the server's profile allows {max} monitored items; further tags are polled")
            });
            self.send(poll, ConnectionCommand::Poll);
        }
    }

    pub fn remove(&mut self, nodes: &[NodeIndex]) {
        nodes.iter().for_each(|node| self.note(*node, false));
        self.send(nodes, ConnectionCommand::Remove);
    }

    /// Counts monitored tags. Only the removal of a monitored tag makes room for another one.
    fn note(&mut self, node: NodeIndex, monitored: bool) {
        let at = node as usize;
        if monitored && self.monitored.len() <= at {
            self.monitored.resize(at + 1, false);
        }
        let Some(slot) = self.monitored.get_mut(at) else { return };
        let before = std::mem::replace(slot, monitored);
        self.monitored_count += usize::from(monitored);
        self.monitored_count -= usize::from(before);
    }

    /// Retries failed nodes that are due, each served as before.
    pub fn retry(&self, items: &[NodeIndex], reads: &[NodeIndex]) {
        self.send(items, ConnectionCommand::Monitor);
        self.send(reads, ConnectionCommand::Poll);
    }

    pub fn paths_changed(&self) {
        for link in &self.links {
            let _gone = link.send(ConnectionCommand::PathsChanged);
        }
    }

    fn send(&self, nodes: &[NodeIndex], command: impl Fn(Vec<NodeIndex>) -> ConnectionCommand) {
        if nodes.is_empty() {
            return;
        }
        if let [only] = self.links.as_slice() {
            let _gone = only.send(command(nodes.to_vec()));
            return;
        }
        let mut parts: Vec<Vec<NodeIndex>> = self.links.iter().map(|_| Vec::new()).collect();
        {
            let table = self.table.read();
            let mut text = String::new();
            for node in nodes {
                text.clear();
                // The hash excludes the namespace: its index may change, and the tag must keep its connection.
                node_id::write_identifier(&table.node_id(*node).identifier, &mut text);
                let link = xxh3_64(text.as_bytes()) % parts.len().max(1) as u64;
                if let Some(part) = parts.get_mut(link as usize) {
                    part.push(*node);
                }
            }
        }
        for (link, part) in self.links.iter().zip(parts).filter(|(_, part)| !part.is_empty()) {
            let _gone = link.send(command(part));
        }
    }
}

#[cfg(test)]
mod tests {
    use opcua::types::NodeId;

    use super::*;
    use crate::node_table::{DiscoveredNode, NO_NODE, NodeKind};

    fn with_links(links: usize) -> (Assigner, Vec<mpsc::UnboundedReceiver<ConnectionCommand>>) {
        let (senders, receivers) = (0..links).map(|_| mpsc::unbounded_channel()).unzip();
        let assigner = Assigner {
            links: senders,
            subscribe: true,
            ..Assigner::nowhere()
        };
        (assigner, receivers)
    }

    #[test]
    fn only_monitored_tags_that_go_make_room() {
        let (mut assigner, _receivers) = with_links(1);
        let nodes: Vec<NodeIndex> = (0..8).collect();
        assigner.assign(&nodes, Some(5));
        assert_eq!(assigner.monitored_count, 5);
        // Three polled tags are removed, which makes no room for others.
        assigner.remove(&[5, 6, 7]);
        assigner.assign(&[8, 9], Some(5));
        assert_eq!(assigner.monitored_count, 5);
        assigner.remove(&[0, 0, 9]);
        assigner.assign(&[10, 11], Some(5));
        assert_eq!(assigner.monitored_count, 5);
        assert!(assigner.monitored[10] && !assigner.monitored.get(11).copied().unwrap_or(false));
    }

    #[test]
    fn a_tag_stays_with_its_connection_when_its_namespace_moves() {
        let (mut assigner, mut receivers) = with_links(5);
        {
            let mut table = assigner.table.write();
            for namespace in [2, 3] {
                for i in 0..50 {
                    let id = NodeId::new(namespace, format!("Tag{i}").as_str());
                    let found = DiscoveredNode {
                        id: &id,
                        name: "Tag",
                        class: NodeKind::Variable,
                        parent: NO_NODE,
                    };
                    table.add(&found).unwrap();
                }
            }
        }
        assigner.assign(&(0..100).collect::<Vec<_>>(), None);
        let mut served = 0;
        for receiver in &mut receivers {
            if let Ok(ConnectionCommand::Monitor(nodes)) = receiver.try_recv() {
                served += nodes.len();
                assert!(nodes.iter().all(|node| nodes.contains(&((node + 50) % 100))));
            }
        }
        assert_eq!(served, 100);
    }
}
