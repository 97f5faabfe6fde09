//! Finds the tags: breadth first from the configured nodes, with many nodes per call and many calls in flight.
//!
//! Only the browser adds nodes to the node table. It assigns variables as soon as their attributes are known, announces
//! when paths are final, retries failed nodes, and updates the table when the server may have changed.

mod attributes;
mod pass;
mod progress;
mod references;
mod roots;
mod walk;

use std::sync::Arc;
use std::time::{Duration, Instant};

use opcua::types::{NodeId, StatusCode};
use parking_lot::RwLock;
use thalweg_flow::{Component, Connection};
use thalweg_kit::backoff::Backoff;
use thalweg_kit::clock;
use tokio::sync::{Notify, watch};

use crate::assign::Assigner;
use crate::backoff::until;
use crate::config::BrowseConfig;
use crate::directory::NodeMemory;
use crate::failures::{NodeFailureKind, NodeFailures};
use crate::metrics::InputMetrics;
use crate::namespace_array::NamespaceArray;
use crate::node_id::{self, NodeSpec};
use crate::node_table::{
    DiscoveredNode, FailureReason, ItemState, MergeUncertainty, NO_NODE, NodeIndex, NodeKind, NodeTable,
    NodeTableChanges,
};
use crate::profile::Profile;
use crate::server_facts::ServerFacts;
use crate::session::Session;
use crate::tag_path;
use crate::value::status;

use pass::{BrowseExtent, BrowsePass, BrowseSeeds};
use progress::Progress;
use roots::Root;

/// Maximum interval of the checks for failed nodes that are due.
const RETRY_TICK_MAX: Duration = Duration::from_secs(5);

/// A usable session and the facts about its server. Clones are cheap.
#[derive(Clone)]
pub(crate) struct ConnectedServer {
    pub session: Session,
    pub facts: Arc<ServerFacts>,
    pub profile: Profile,
}

/// The shared state of a browse.
#[derive(Clone)]
pub(crate) struct BrowseContext {
    pub table: Arc<RwLock<NodeTable>>,
    pub browse: BrowseConfig,
    pub failures: Arc<NodeFailures>,
    pub metrics: Arc<InputMetrics>,
    pub memory: Arc<NodeMemory>,
    /// Whether this table is served, or only compared with the served one.
    pub is_served: bool,
    /// The primary connection, `None` while there is none.
    pub sessions: watch::Receiver<Option<ConnectedServer>>,
}

impl BrowseContext {
    /// Waits for a session whose connection is open.
    async fn connected(&self) -> ConnectedServer {
        let mut sessions = self.sessions.clone();
        let open = |connected: &Option<ConnectedServer>| {
            connected
                .as_ref()
                .is_some_and(|connected| !connected.session.channel().is_closed())
        };
        let found = sessions
            .wait_for(open)
            .await
            .ok()
            .and_then(|connected| connected.clone());
        match found {
            Some(connected) => connected,
            // The tasks that create connections are gone, and this task will end too.
            None => std::future::pending().await,
        }
    }

    fn namespaces(&self) -> NamespaceArray {
        self.sessions
            .borrow()
            .as_ref()
            .map(|connected| connected.facts.namespaces.clone())
            .unwrap_or_default()
    }

    fn is_full(&self) -> bool {
        self.is_full_with(&self.table.read())
    }

    fn is_full_with(&self, table: &NodeTable) -> bool {
        self.has_all_it_may(table) || self.is_out_of_memory(table)
    }

    /// Whether the table has reached the configured number of nodes.
    fn has_all_it_may(&self, table: &NodeTable) -> bool {
        self.browse.nodes_max != 0 && table.len() >= self.browse.nodes_max
    }

    fn is_out_of_memory(&self, table: &NodeTable) -> bool {
        table.heap_bytes() >= self.memory.of_a_table()
    }
}

pub(crate) struct Browser {
    pub context: BrowseContext,
    pub nodes: Vec<NodeSpec>,
    pub assigner: Assigner,
    pub component: Component,
    pub connection: Connection,
    pub backoff: Backoff,
    /// Notified when the server may have changed: browse again.
    pub changed: Arc<Notify>,
}

impl Browser {
    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let start = clock::now();
        self.add_roots_until_some_work().await;
        self.run_pass(None, start).await;
        self.paths_final();
        self.context.metrics.browse_done.set(1);
        self.backoff.reset();
        let tick = (self.context.failures.first_retry() / 4).clamp(Duration::from_millis(1), RETRY_TICK_MAX);
        let mut tick = tokio::time::interval(tick);
        let mut again = None;
        loop {
            tokio::select! {
                _ = tick.tick() => self.retry().await,
                () = self.changed.notified() => again = self.bring_up_to_date().await,
                () = until(again) => again = self.bring_up_to_date().await,
            }
        }
    }

    /// Runs one pass with progress in log and metrics, over everything or from some nodes.
    async fn run_pass(&mut self, nodes: Option<BrowseSeeds>, start: Instant) -> BrowseExtent {
        let context = self.context.clone();
        let connected = context.connected().await;
        let pass = match nodes {
            None => BrowsePass::new(&context, &connected),
            Some(nodes) => BrowsePass::again(&context, &connected, nodes),
        };
        let assigner = &mut self.assigner;
        let mut ready = |nodes: Vec<NodeIndex>| assigner.assign(&nodes, connected.profile.items_max);
        let progress = Progress::new(&context, &self.component, start);
        let reached = tokio::select! {
            reached = pass.run(&mut ready) => reached,
            never = progress.run() => match never {},
        };
        progress.done();
        self.tell_what_is_left_out(&context);
        reached
    }

    /// Logs why nodes are left out, if so.
    fn tell_what_is_left_out(&self, context: &BrowseContext) {
        let table = context.table.read();
        let depth_max = context.browse.depth_max;
        let nodes = 0..NodeIndex::try_from(table.len()).unwrap_or(NodeIndex::MAX);
        let lowest = nodes.filter(|node| table.depth(*node) >= depth_max && table.class(*node) == NodeKind::Object);
        let lowest = lowest.count();
        // With a depth of 0, no level is wanted.
        if lowest > 0 && depth_max > 0 {
            self.component.warn_limited("max_depth", 1, || {
                format!(
                    "{lowest} objects are {depth_max} levels below their root and are not browsed; raise browse.maxDepth to \
                     browse them"
                )
            });
        }
        if context.has_all_it_may(&table) {
            let limit = context.browse.nodes_max;
            self.component.warn_limited("max_nodes", 1, || {
                format!("browsing stopped at {limit} nodes; raise browse.maxNodes to find more")
            });
        } else if context.is_out_of_memory(&table) {
            let (nodes, bytes) = (table.len(), table.heap_bytes());
            self.component.warn_limited("node_memory", 1, || {
                format!(
                    "browsing stopped at {nodes} nodes, whose {bytes} bytes use up their share of memory; exclude some with \
                     browse.exclude or raise memory.limit"
                )
            });
        }
    }

    fn paths_final(&mut self) {
        let renamed = self.context.table.write().make_paths_unique();
        if renamed > 0 {
            tracing::info!(
                component = self.component.title(),
                "{renamed} tags share their path and are distinguished by NodeID"
            );
        }
        self.assigner.paths_changed();
    }

    /// Reads the configured nodes, and retries until one is usable.
    async fn add_roots_until_some_work(&mut self) {
        loop {
            match self.add_roots().await {
                Ok(()) => return,
                Err(why) => {
                    let wait = self.backoff.next_pause();
                    self.connection.failed(&why);
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    async fn add_roots(&mut self) -> Result<(), String> {
        let connected = self.context.connected().await;
        let resolved: Vec<(NodeSpec, Result<NodeId, String>)> = self
            .nodes
            .iter()
            .map(|spec| (spec.clone(), spec.resolve(&connected.facts.namespaces)))
            .collect();
        let ids: Vec<NodeId> = resolved
            .iter()
            .filter_map(|(_, id)| id.as_ref().ok().cloned())
            .collect();
        let chunk = match connected.facts.limits.nodes_per_read {
            0 => connected.profile.items_per_call,
            limit => connected.profile.items_per_call.min(limit as usize),
        };
        let read = roots::read(&connected.session, &ids, chunk).await;
        let read = read.map_err(|error| format!("the configured nodes cannot be read: {error}"))?;
        let usable = read.iter().filter(|root| matches!(root, Root::Usable { .. })).count();
        if usable == 0 {
            return Err(self.no_roots(&resolved, &ids, &read));
        }
        for (id, root) in ids.iter().zip(&read) {
            self.add_root(id, root);
        }
        for (spec, id) in &resolved {
            if let Err(why) = id {
                self.add_unresolved(spec, why);
            }
        }
        Ok(())
    }

    /// Adds a configured node whose namespace the server does not have: it counts as wanted and failed, and is retried
    /// like one that the server does not know.
    fn add_unresolved(&self, spec: &NodeSpec, why: &str) {
        let text = spec.to_string();
        let status = StatusCode::BadNodeIdUnknown.bits();
        let mut table = self.context.table.write();
        let added = table.add_unresolved(&text);
        let Some(index) = added.or_else(|| table.find_unresolved(&text)) else {
            return;
        };
        table.set_state(index, ItemState::Failed(FailureReason::of_status(status)));
        self.context
            .failures
            .add(NodeFailureKind::Root, index, status, Some(why.to_owned()));
        self.context.metrics.browse_error(status);
        self.component.warn_limited("root", 1, || {
            format!("the configured node {text} cannot be used: {why}")
        });
    }

    fn no_roots(&self, resolved: &[(NodeSpec, Result<NodeId, String>)], ids: &[NodeId], read: &[Root]) -> String {
        let unknown = resolved.iter().find_map(|(_, id)| id.as_ref().err().cloned());
        let refused = ids.iter().zip(read).find_map(|(id, root)| match root {
            Root::Unusable { status } => Some(format!("{}: {}", node_id::text(id), status::text(*status))),
            Root::Usable { .. } => None,
        });
        let why = unknown.or(refused).unwrap_or_default();
        format!(
            "no valid nodes selected: none of the {} nodeIDs is in the server ({why}); check nodeIDs",
            resolved.len()
        )
    }

    /// Returns the root's index if it is usable and new in the table.
    fn add_root(&self, id: &NodeId, root: &Root) -> Option<NodeIndex> {
        let mut table = self.context.table.write();
        let metrics = &self.context.metrics;
        match root {
            Root::Usable { class, name } => {
                let class = references::filter("", name, *class, &self.context.browse)?;
                let added = table.add(&DiscoveredNode {
                    id,
                    name,
                    class,
                    parent: NO_NODE,
                });
                metrics.browse_nodes.inc_by(u64::from(added.is_some()));
                added
            }
            Root::Unusable { status } => {
                // Counted as a wanted node that failed, with its NodeID as its name for now.
                let name = node_id::text(id);
                let found = DiscoveredNode {
                    id,
                    name: &name,
                    class: NodeKind::Variable,
                    parent: NO_NODE,
                };
                if let Some(index) = table.add(&found) {
                    table.set_state(index, ItemState::Failed(FailureReason::of_status(*status)));
                    self.context.failures.add(NodeFailureKind::Root, index, *status, None);
                    metrics.browse_error(*status);
                    self.component.warn_limited("root", 1, || {
                        format!("the configured node {name} cannot be used: {}", status::text(*status))
                    });
                }
                None
            }
        }
    }

    /// Retries failed nodes that are due.
    async fn retry(&mut self) {
        let now = clock::now();
        let failures = self.context.failures.clone();
        self.assigner.retry(
            &failures.due(NodeFailureKind::Item, now),
            &failures.due(NodeFailureKind::Read, now),
        );
        let mut again = self.retry_roots(failures.due(NodeFailureKind::Root, now)).await;
        again.browse.extend(failures.due(NodeFailureKind::Browse, now));
        if !again.browse.is_empty() {
            self.run_pass(Some(again), clock::now()).await;
            self.paths_final();
        }
    }

    /// Returns the roots that have become usable: all are browsed, and variables among them are tags.
    async fn retry_roots(&self, roots: Vec<NodeIndex>) -> BrowseSeeds {
        let mut again = BrowseSeeds::default();
        if roots.is_empty() {
            return again;
        }
        let connected = self.context.connected().await;
        let asked: Vec<(NodeIndex, NodeId)> = roots
            .into_iter()
            .filter_map(|index| Some((index, self.id_of_root(index, &connected.facts.namespaces)?)))
            .collect();
        let ids: Vec<NodeId> = asked.iter().map(|(_, id)| id.clone()).collect();
        let Ok(read) = roots::read(&connected.session, &ids, connected.profile.items_per_call).await else {
            return again;
        };
        for ((index, id), root) in asked.into_iter().zip(read) {
            let usable = match root {
                Root::Unusable { status } => {
                    self.context.failures.add(NodeFailureKind::Root, index, status, None);
                    continue;
                }
                Root::Usable { class, name } => self.root_usable(index, &id, class, name),
            };
            again.browse.extend(usable);
            let table = self.context.table.read();
            again
                .read
                .extend(usable.filter(|root| table.state(*root) == ItemState::Pending));
        }
        again
    }

    /// Returns the NodeID of a configured node; `None` while its namespace is unknown.
    fn id_of_root(&self, index: NodeIndex, namespaces: &NamespaceArray) -> Option<NodeId> {
        let (unresolved, label, id) = {
            let table = self.context.table.read();
            (table.is_unresolved(index), table.label(index), table.node_id(index))
        };
        if !unresolved {
            return Some(id);
        }
        let spec = self.nodes.iter().find(|spec| spec.to_string() == label)?;
        match spec.resolve(namespaces) {
            Ok(id) => Some(id),
            Err(why) => {
                let status = StatusCode::BadNodeIdUnknown.bits();
                self.context
                    .failures
                    .add(NodeFailureKind::Root, index, status, Some(why));
                None
            }
        }
    }

    /// A configured node that failed can be read now. Returns its index, which is a new one if it had no NodeID before.
    fn root_usable(&self, index: NodeIndex, id: &NodeId, class: NodeKind, name: String) -> Option<NodeIndex> {
        self.context.failures.remove(NodeFailureKind::Root, index);
        if self.context.table.read().is_unresolved(index) {
            self.context.table.write().resolved(index);
            return self.add_root(id, &Root::Usable { class, name });
        }
        let class = references::filter("", &name, class, &self.context.browse).unwrap_or(NodeKind::Object);
        self.context.table.write().set_root(index, &name, class);
        Some(index)
    }

    /// Browses the whole server again into a separate table, and applies the differences. If that fails, returns when
    /// to retry.
    async fn bring_up_to_date(&mut self) -> Option<Instant> {
        tracing::info!(
            component = self.component.title(),
            "the server may have changed; browsing again in the background"
        );
        let newer = Arc::new(RwLock::new(NodeTable::default()));
        let mut second = Browser {
            context: BrowseContext {
                table: newer.clone(),
                failures: Arc::default(),
                is_served: false,
                ..self.context.clone()
            },
            nodes: self.nodes.clone(),
            assigner: Assigner::nowhere(),
            component: self.component.clone(),
            connection: self.connection.clone(),
            backoff: self.backoff.clone(),
            changed: self.changed.clone(),
        };
        // A server that has lost all configured nodes is browsed again later; the table is kept.
        if let Err(why) = second.add_roots().await {
            self.component.warn_limited("no_roots", 1, || why);
            return Some(clock::now() + self.backoff.next_pause());
        }
        self.backoff.reset();
        let reached = Box::pin(second.run_pass(None, clock::now())).await;
        let unclear = self.unclear(&second.context, reached);
        let bytes_max = self.context.memory.of_a_table();
        let differences = self.context.table.write().merge(&newer.read(), &unclear, bytes_max);
        self.tell_what_is_left_out(&self.context);
        self.take_over_failures(&second.context, &differences, reached);
        tracing::info!(
            component = self.component.title(),
            "the server has {} new and {} removed variables",
            differences.added.len(),
            differences.removed.len()
        );
        self.assigner.remove(&differences.removed);
        let items_max = self.context.connected().await.profile.items_max;
        self.assigner.assign(&differences.added, items_max);
        self.paths_final();
        None
    }

    /// Collects what the newer browse could not find out, and what was unknown before it.
    fn unclear(&self, newer: &BrowseContext, reached: BrowseExtent) -> MergeUncertainty {
        let unbrowsed = [NodeFailureKind::Root, NodeFailureKind::Browse].into_iter();
        let table = self.context.table.read();
        let roots = self.context.failures.of_kind(NodeFailureKind::Root).into_iter();
        MergeUncertainty {
            unbrowsed: unbrowsed.flat_map(|what| newer.failures.of_kind(what)).collect(),
            // A root that is served is known, even if an earlier browse could not read it.
            unknown_roots: roots.filter(|root| table.is_failed(*root)).collect(),
            is_cut_short: reached == BrowseExtent::TheLimit,
        }
    }

    /// Replaces the failures of the earlier browse with those of the newer one, under this table's indexes. Removed
    /// tags are not retried; tags that the newer browse did not reach are.
    fn take_over_failures(&self, newer: &BrowseContext, differences: &NodeTableChanges, reached: BrowseExtent) {
        let (table, newer_table) = (self.context.table.read(), newer.table.read());
        let failures = newer.failures.page(0, usize::MAX).into_iter();
        let own = failures.filter_map(|(what, node, failure)| {
            let own = table.find(&newer_table.node_id(node))?;
            Some((what, own, failure))
        });
        let was_asked = |node: NodeIndex| {
            let is_found = newer_table.find(&table.node_id(node)).is_some();
            table.is_removed(node) || (is_found && reached == BrowseExtent::Everything)
        };
        self.context.failures.replace_browse(own.collect(), was_asked);
        self.context.failures.forget(&differences.removed);
    }
}

/// Describes a node for messages to the operator.
pub(crate) fn describe(table: &NodeTable, node: NodeIndex) -> String {
    format!("{} ({})", table.label(node), tag_path::unique(table, node))
}
