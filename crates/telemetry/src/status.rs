//! The state that people look at: the running graph with its counts, told by whoever runs it, drawn by the console and
//! the terminal. Counts are totals since start; viewers derive rates from two looks.

use std::sync::Arc;

use parking_lot::RwLock;
use serde::Serialize;

/// One look at one flow.
#[derive(Clone, Debug, Serialize)]
pub struct FlowStatus {
    pub name: String,
    /// In the order of the stream: input, processors, output; children of a component follow it.
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
    /// Only of inputs and outputs: whether data can flow.
    pub connected: Option<bool>,
    /// Why not, in one sentence.
    pub not_ready: Option<String>,
    /// What the component itself wants to show.
    pub details: Vec<StatusDetail>,
}

/// One named figure or text of a component.
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

/// One look at a table of the lake.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TableStatus {
    pub name: String,
    pub rows: u64,
    pub files: u64,
    pub bytes: u64,
    pub version: i64,
    /// Rows accepted and not yet committed.
    pub buffered_rows: u64,
    pub last_commit_unix_ms: Option<i64>,
    /// Why the table takes no more data, if so.
    pub failed: Option<String>,
}

/// Whoever runs flows or keeps tables.
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

    /// One sentence for each thing that is wrong while data flows all the same.
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
