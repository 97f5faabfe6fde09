//! The state that people see: the running graph with its counts, reported by the components and drawn by the console
//! and the terminal. Counts are totals since the start; viewers derive rates from two snapshots.

use std::sync::Arc;

use parking_lot::RwLock;
use serde::Serialize;

/// A snapshot of a flow.
#[derive(Clone, Debug, Serialize)]
pub struct FlowStatus {
    pub name: String,
    /// In stream order: input, processors, output; children follow their component.
    pub nodes: Vec<NodeStatus>,
    pub balance: BalanceStatus,
    /// From entering the flow to the acknowledgement, in nanoseconds.
    pub latency_p50_ns: u64,
    pub latency_p99_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    Input,
    Buffer,
    Processor,
    Output,
    DeadLetter,
}

#[derive(Clone, Debug, Serialize)]
pub struct NodeStatus {
    pub kind: NodeKind,
    /// `opcua`, `tag_processor`, `lake`, …
    pub component: String,
    pub path: String,
    pub label: String,
    pub received: u64,
    pub sent: u64,
    pub errors: u64,
    /// For inputs and outputs only: whether data can flow.
    pub connected: Option<bool>,
    /// Why data cannot flow, in one sentence.
    pub not_ready: Option<String>,
    /// What the component itself wants to show.
    pub details: Vec<StatusDetail>,
}

/// A named number or text of a component.
#[derive(Clone, Debug, Serialize)]
pub struct StatusDetail {
    pub name: String,
    pub value: serde_json::Value,
}

impl StatusDetail {
    pub fn new(name: &str, value: impl Into<serde_json::Value>) -> StatusDetail {
        StatusDetail {
            name: name.to_owned(),
            value: value.into(),
        }
    }
}

/// `in = out + filtered + dropped + in_flight`
#[derive(Clone, Debug, Default, Serialize)]
pub struct BalanceStatus {
    #[serde(rename = "in")]
    pub entered: u64,
    pub expanded: u64,
    pub out: u64,
    pub filtered: u64,
    pub dropped: u64,
    pub in_flight: u64,
    pub adds_up: bool,
    /// Reasons with a count above zero.
    pub filtered_by: Vec<(String, u64)>,
    pub dropped_by: Vec<(String, u64)>,
}

/// A snapshot of a lake table.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TableStatus {
    pub name: String,
    pub rows: u64,
    pub files: u64,
    pub bytes: u64,
    pub version: i64,
    /// Rows that are accepted and not yet committed.
    pub buffered_rows: u64,
    pub last_commit_unix_ms: Option<i64>,
    /// Why the table accepts no more data, if it does not.
    pub failed: Option<String>,
}

/// Implemented by components that run flows or keep tables.
pub trait StatusSource: Send + Sync {
    fn flows(&self) -> Vec<FlowStatus> {
        Vec::new()
    }

    fn tables(&self) -> Vec<TableStatus> {
        Vec::new()
    }

    /// One sentence for each thing that keeps data from flowing; empty when ready.
    fn not_ready(&self) -> Vec<String> {
        Vec::new()
    }

    /// One sentence for each fault that does not stop the data.
    fn degraded(&self) -> Vec<String> {
        Vec::new()
    }
}

/// All sources of the process. Clones share one list.
#[derive(Clone, Default)]
pub struct StatusBoard {
    sources: Arc<RwLock<Vec<Arc<dyn StatusSource>>>>,
}

impl StatusBoard {
    pub fn add(&self, source: Arc<dyn StatusSource>) {
        self.sources.write().push(source);
    }

    pub fn flows(&self) -> Vec<FlowStatus> {
        self.sources.read().iter().flat_map(|source| source.flows()).collect()
    }

    pub fn tables(&self) -> Vec<TableStatus> {
        self.sources.read().iter().flat_map(|source| source.tables()).collect()
    }

    pub fn not_ready(&self) -> Vec<String> {
        self.sources
            .read()
            .iter()
            .flat_map(|source| source.not_ready())
            .collect()
    }

    pub fn degraded(&self) -> Vec<String> {
        self.sources
            .read()
            .iter()
            .flat_map(|source| source.degraded())
            .collect()
    }
}
