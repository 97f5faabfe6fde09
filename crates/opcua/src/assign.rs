//! Which connection serves which tag: by the hash of its NodeID, so that a tag stays where it was after every browse.

use std::sync::Arc;

use parking_lot::RwLock;
use thalweg_flow::Component;
use tokio::sync::mpsc;
use xxhash_rust::xxh3::xxh3_64;

use crate::node_id;
use crate::node_table::{NodeIndex, NodeTable};

/// What the browse tells a connection.
#[derive(Debug)]
pub(crate) enum Command {
    /// Variables to serve from now on.
    Monitor(Vec<NodeIndex>),
    Poll(Vec<NodeIndex>),
    Remove(Vec<NodeIndex>),
    /// Paths are final, or have become other ones.
    PathsChanged,
}

/// Never blocks: the table bounds what can be queued.
#[derive(Clone)]
pub(crate) struct Assigner {
    table: Arc<RwLock<NodeTable>>,
    links: Vec<mpsc::UnboundedSender<Command>>,
    subscribe: bool,
    /// Tags given out to be monitored.
    monitored: usize,
    component: Option<Component>,
}

impl Assigner {
    pub fn new(
        table: Arc<RwLock<NodeTable>>,
        links: Vec<mpsc::UnboundedSender<Command>>,
        subscribe: bool,
        component: Component,
    ) -> Assigner {
        Assigner {
            table,
            links,
            subscribe,
            monitored: 0,
            component: Some(component),
        }
    }

    /// For a browse whose results are only compared.
    pub fn nowhere() -> Assigner {
        Assigner {
            table: Arc::default(),
            links: Vec::new(),
            subscribe: false,
            monitored: 0,
            component: None,
        }
    }

    /// Variables beyond `items_max` are polled.
    pub fn assign(&mut self, nodes: &[NodeIndex], items_max: Option<usize>) {
        if !self.subscribe {
            return self.send(nodes, Command::Poll);
        }
        let room = items_max.map_or(usize::MAX, |max| max.saturating_sub(self.monitored));
        let (monitor, poll) = nodes.split_at(room.min(nodes.len()));
        self.monitored += monitor.len();
        self.send(monitor, Command::Monitor);
        if let (false, Some(component), Some(max)) = (poll.is_empty(), &self.component, items_max) {
            component.warn_limited("items_max", poll.len() as u64, || {
                format!("the server's profile allows {max} monitored items; further tags are polled")
            });
            self.send(poll, Command::Poll);
        }
    }

    pub fn remove(&mut self, nodes: &[NodeIndex]) {
        self.monitored = self.monitored.saturating_sub(nodes.len());
        self.send(nodes, Command::Remove);
    }

    /// Failed ones whose time has come, each served as before.
    pub fn retry(&self, items: &[NodeIndex], reads: &[NodeIndex]) {
        self.send(items, Command::Monitor);
        self.send(reads, Command::Poll);
    }

    pub fn paths_changed(&self) {
        for link in &self.links {
            let _gone = link.send(Command::PathsChanged);
        }
    }

    fn send(&self, nodes: &[NodeIndex], command: impl Fn(Vec<NodeIndex>) -> Command) {
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
                node_id::write(&table.node_id(*node), &mut text);
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
