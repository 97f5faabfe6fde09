//! The state of a flow for the console, the terminal, metrics and the final report.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use thalweg_record::{BalanceCounts, DropReason, FilterReason, FlowBalance};
use thalweg_telemetry::{
    BalanceStatus, FlowStatus, IntCounter, MetricFamilies, Metrics, NodeKind, NodeStatus, StatusDetail, StatusSource,
    Timing,
};
use tokio_util::sync::CancellationToken;

use crate::chain::StageMetrics;
use crate::component::Component;
use crate::connection::Connection;
use crate::metrics::{BUFFERED, DROPPED, EXPANDED, FILTERED, IN, IN_FLIGHT, OUT};
use crate::output_driver::OutputMetrics;

/// The details that a processor shows, set once.
pub(crate) type NodeDetails = Arc<OnceLock<Vec<StatusDetail>>>;

/// One component's place in the graph and its counters.
#[derive(Clone)]
pub(crate) struct NodeCounters {
    pub(crate) kind: NodeKind,
    component: Component,
    received: Option<IntCounter>,
    sent: IntCounter,
    errors: Option<IntCounter>,
    /// One per copy.
    connections: Vec<Connection>,
    /// Only for processors.
    details: NodeDetails,
    /// Whether the graph shows it. The log covers all components.
    shown: bool,
}

impl NodeCounters {
    pub(crate) fn input(component: &Component, received: IntCounter, connection: Connection) -> NodeCounters {
        let sent = received;
        NodeCounters {
            kind: NodeKind::Input,
            component: component.clone(),
            received: None,
            sent,
            errors: None,
            connections: vec![connection],
            details: NodeDetails::default(),
            shown: true,
        }
    }

    pub(crate) fn buffer(
        component: &Component,
        stored: &OutputMetrics,
        sent: IntCounter,
        connection: Connection,
    ) -> NodeCounters {
        NodeCounters {
            kind: NodeKind::Buffer,
            component: component.clone(),
            received: Some(stored.sent.clone()),
            sent,
            errors: Some(stored.error.clone()),
            connections: vec![connection],
            details: NodeDetails::default(),
            shown: true,
        }
    }

    pub(crate) fn processor(
        component: &Component,
        metrics: &StageMetrics,
        errors: IntCounter,
        details: NodeDetails,
    ) -> NodeCounters {
        let (received, sent) = (Some(metrics.received.clone()), metrics.sent.clone());
        NodeCounters {
            kind: NodeKind::Processor,
            component: component.clone(),
            received,
            sent,
            errors: Some(errors),
            connections: Vec::new(),
            details,
            shown: true,
        }
    }

    pub(crate) fn output(component: &Component, metrics: &OutputMetrics, connection: Connection) -> NodeCounters {
        let (sent, errors) = (metrics.sent.clone(), Some(metrics.error.clone()));
        NodeCounters {
            kind: NodeKind::Output,
            component: component.clone(),
            received: None,
            sent,
            errors,
            connections: vec![connection],
            details: NodeDetails::default(),
            shown: true,
        }
    }

    /// Logs held-back events, and ongoing outages unless it is the end (`all`).
    pub(crate) fn log_held_back(&self, all: bool) {
        self.component.log_held_back(all);
        if !all {
            self.connections.iter().for_each(Connection::remind);
        }
    }

    pub fn status(&self) -> NodeStatus {
        let sent = self.sent.get();
        NodeStatus {
            kind: self.kind,
            component: self.component.name.to_string(),
            path: self.component.id.path.clone(),
            label: self.component.id.label.clone(),
            received: self.received.as_ref().map_or(sent, IntCounter::get),
            sent,
            errors: self.errors.as_ref().map_or(0, IntCounter::get),
            connected: (!self.connections.is_empty()).then(|| self.connections.iter().all(Connection::is_up)),
            not_ready: self.connections.iter().find_map(Connection::why_not),
            details: match self.connections.first() {
                Some(connection) => connection.details(),
                None => self.details.get().cloned().unwrap_or_default(),
            },
        }
    }
}

/// The components of a flow in the order of their creation; nested components follow their parent.
#[derive(Clone, Default)]
pub(crate) struct GraphNodes {
    list: Arc<Mutex<Vec<NodeCounters>>>,
    hidden: bool,
}

impl GraphNodes {
    /// Returns the same list for nested components that are not a stage of the stream.
    pub fn hidden(&self) -> GraphNodes {
        GraphNodes {
            list: self.list.clone(),
            hidden: true,
        }
    }

    /// Adds a node. A path is in the graph once, however many threads or copies it has.
    pub fn add(&self, mut node: NodeCounters) {
        let mut nodes = self.list.lock();
        let known = nodes
            .iter_mut()
            .find(|known| known.component.id.path == node.component.id.path);
        match known {
            Some(known) => known.connections.append(&mut node.connections),
            None => {
                node.shown = !self.hidden;
                nodes.push(node);
            }
        }
    }

    /// Returns the component that was added for a path.
    pub fn component(&self, path: &str) -> Option<Component> {
        let nodes = self.list.lock();
        let known = nodes.iter().find(|known| known.component.id.path == path);
        known.map(|known| known.component.clone())
    }

    pub fn take(&self) -> Vec<NodeCounters> {
        std::mem::take(&mut *self.list.lock())
    }
}

/// Returns one sentence per disconnected component; `whose` names the flow or the dead letter.
pub(crate) fn troubles(nodes: &[NodeCounters], whose: &str) -> Vec<String> {
    let down = nodes.iter().filter_map(|node| {
        let why = node.connections.iter().find_map(Connection::told_here)?;
        let (name, title) = (&node.component.name, node.component.title());
        Some(format!("{whose}: {name} {title} is not connected: {why}"))
    });
    down.collect()
}

/// The state of a flow, while it runs and after it ended.
pub struct FlowHandle {
    pub name: String,
    pub(crate) balance: Arc<FlowBalance>,
    pub(crate) nodes: Vec<NodeCounters>,
    pub(crate) dead_letter: Option<Arc<[NodeCounters]>>,
    pub(crate) latency: Timing,
    pub(crate) failure: Mutex<Option<String>>,
    /// Stops the input.
    pub(crate) stop: CancellationToken,
    pub(crate) ended: CancellationToken,
}

/// How a flow ended.
#[derive(Clone, Debug)]
pub struct StopReport {
    pub flow: String,
    pub counts: BalanceCounts,
    /// Messages that were given up because the shutdown time was over or the flow failed, and messages with unknown
    /// outcome. Messages in a buffer do not count: the next start continues with them.
    pub unacknowledged: u64,
    /// Why the flow ended by itself, if it failed.
    pub failure: Option<String>,
}

impl FlowHandle {
    pub fn counts(&self) -> BalanceCounts {
        self.balance.snapshot()
    }

    pub fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    pub(crate) fn fail(&self, why: String) {
        tracing::error!(flow = self.name, "{why}");
        self.failure.lock().get_or_insert(why);
    }

    /// An essential part failed: stops the input and ends the flow.
    pub(crate) fn fault(&self, why: String) {
        self.fail(why);
        self.balance.stops();
        self.stop.cancel();
        self.ended.cancel();
    }

    pub(crate) fn log_held_back(&self, all: bool) {
        let dead_letter = self.dead_letter.iter().flat_map(|nodes| nodes.iter()).filter(|_| !all);
        self.nodes
            .iter()
            .chain(dead_letter)
            .for_each(|node| node.log_held_back(all));
    }

    /// Reports how the flow ended. Final once the flow and the dead letter have stopped: until then, failed messages
    /// may still be on their way to the dead letter.
    pub fn stop_report(&self) -> StopReport {
        let counts = self.counts();
        StopReport {
            flow: self.name.clone(),
            counts,
            unacknowledged: counts.dropped(DropReason::Shutdown) + counts.in_flight.saturating_sub(counts.buffered()),
            failure: self.failure(),
        }
    }

    pub fn status(&self) -> FlowStatus {
        let dead_letter = self.dead_letter.iter().flat_map(|nodes| nodes.iter());
        let shown = self.nodes.iter().chain(dead_letter).filter(|node| node.shown);
        FlowStatus {
            name: self.name.clone(),
            nodes: shown.map(NodeCounters::status).collect(),
            balance: balance_status(&self.counts()),
            latency_p50_ns: self.latency.quantile_ns(0.5),
            latency_p99_ns: self.latency.quantile_ns(0.99),
        }
    }

    pub(crate) fn register_metrics(self: &Arc<FlowHandle>, flow: Option<&str>, metrics: &Metrics) {
        let (balance, name) = (self.balance.clone(), flow.map(str::to_owned));
        metrics.tell_of(&IN, &flow_label(flow), move |to| {
            tell_balance(to, &flow_label(name.as_deref()), &balance.snapshot());
        });
    }
}

impl StatusSource for FlowHandle {
    fn flows(&self) -> Vec<FlowStatus> {
        vec![self.status()]
    }

    fn not_ready(&self) -> Vec<String> {
        let mut troubles = troubles(&self.nodes, &format!("flow {}", self.name));
        let failure = self.failure();
        troubles.extend(failure.map(|why| format!("flow {} has failed: {why}", self.name)));
        troubles
    }
}

fn balance_status(counts: &BalanceCounts) -> BalanceStatus {
    let named = |pairs: Vec<(&'static str, u64)>| {
        pairs
            .into_iter()
            .filter(|p| p.1 > 0)
            .map(|(k, v)| (k.to_owned(), v))
            .collect()
    };
    BalanceStatus {
        entered: counts.entered,
        expanded: counts.expanded,
        out: counts.out,
        filtered: counts.filtered_total(),
        dropped: counts.dropped_total(),
        in_flight: counts.in_flight,
        adds_up: counts.adds_up(),
        filtered_by: named(
            FilterReason::ALL
                .iter()
                .map(|r| (r.as_str(), counts.filtered(*r)))
                .collect(),
        ),
        dropped_by: named(
            DropReason::ALL
                .iter()
                .map(|r| (r.as_str(), counts.dropped(*r)))
                .collect(),
        ),
    }
}

/// The label `flow`; none if the file has one flow without a name.
fn flow_label(flow: Option<&str>) -> Vec<(&str, &str)> {
    flow.map(|flow| ("flow", flow)).into_iter().collect()
}

/// Exports a flow's balance. All values of one scrape come from one snapshot, so they add up.
fn tell_balance(to: &mut MetricFamilies, labels: &[(&str, &str)], counts: &BalanceCounts) {
    to.counter(&IN, labels, counts.entered);
    to.counter(&OUT, labels, counts.out);
    to.counter(&EXPANDED, labels, counts.expanded);
    to.gauge(&IN_FLIGHT, labels, counts.in_flight as f64);
    to.gauge(&BUFFERED, labels, counts.buffered() as f64);
    let with = |reason: &'static str| [labels, &[("reason", reason)][..]].concat();
    for reason in FilterReason::ALL {
        to.counter(&FILTERED, &with(reason.as_str()), counts.filtered(*reason));
    }
    for reason in DropReason::ALL {
        to.counter(&DROPPED, &with(reason.as_str()), counts.dropped(*reason));
    }
}
