//! The HTTP view of all OPC UA inputs of the process: their nodes and failures, page by page.

mod node_page;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use axum::Router;
use axum::extract::{Query, State};
use axum::response::{Json, Response};
use axum::routing::get;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use thalweg_kit::clock;
use thalweg_telemetry::{Access, HttpRoutes, Mount, aside};

use crate::failures::NodeFailures;
use crate::node_table::NodeTable;
use crate::tag_path;
use crate::value::status;

const NODES: &str = "/api/v1/opcua/nodes";
const FAILURES: &str = "/api/v1/opcua/failures";
/// Default and maximum entries of a page.
const LIMIT: usize = 100;
const LIMIT_MAX: usize = 10_000;
/// Ends a page before its limit of entries. Servers choose how long names and descriptions are, and each path repeats
/// its parents' names.
const PAGE_BYTES_MAX: usize = 16 << 20;

/// Maximum bytes of waiting values of one connection, however much memory there is.
const WAITING_BYTES_MAX: usize = 128 << 20;

/// The memory for the node tables of all inputs, in equal shares. Another quarter of it is for values that wait for
/// them.
#[derive(Debug)]
pub(crate) struct NodeMemory {
    bytes: AtomicUsize,
    inputs: AtomicUsize,
}

impl Default for NodeMemory {
    fn default() -> NodeMemory {
        NodeMemory {
            bytes: AtomicUsize::new(usize::MAX),
            inputs: AtomicUsize::new(1),
        }
    }
}

impl NodeMemory {
    /// Half of an input's share, because there are two tables while it browses again.
    pub fn of_a_table(&self) -> usize {
        self.of_an_input() / 2
    }

    /// A connection's share of the memory for values that arrive before their nodes have a path. `connections` is the
    /// number of its input.
    pub fn of_waiting_values(&self, connections: usize) -> usize {
        (self.of_an_input() / 4 / connections.max(1)).min(WAITING_BYTES_MAX)
    }

    fn of_an_input(&self) -> usize {
        self.bytes.load(Relaxed) / self.inputs.load(Relaxed).max(1)
    }
}

/// All inputs of the process. The assembly creates one and serves it; its routes also show inputs that are added later.
#[derive(Default)]
pub struct InputDirectory {
    inputs: Inputs,
    memory: Arc<NodeMemory>,
}

type Inputs = Arc<RwLock<Vec<Arc<DirectoryEntry>>>>;

/// One input.
pub(crate) struct DirectoryEntry {
    /// Its flow if the file has several, and its label or its path in the configuration.
    pub input: String,
    pub endpoint: String,
    pub table: Arc<RwLock<NodeTable>>,
    pub failures: Arc<NodeFailures>,
}

impl InputDirectory {
    pub fn new() -> Arc<InputDirectory> {
        Arc::default()
    }

    /// Sets the memory for the node tables of all inputs. An input without room stops browsing and logs it.
    pub fn set_node_memory(&self, bytes: usize) {
        self.memory.bytes.store(bytes, Relaxed);
    }

    pub(crate) fn memory(&self) -> Arc<NodeMemory> {
        self.memory.clone()
    }

    /// Replaces an earlier run of the same input.
    pub(crate) fn add(&self, listed: Arc<DirectoryEntry>) {
        let mut inputs = self.inputs.write();
        inputs.retain(|known| known.input != listed.input);
        inputs.push(listed);
        self.memory.inputs.store(inputs.len(), Relaxed);
    }

    fn chosen(&self, page: &PageQuery) -> Vec<Arc<DirectoryEntry>> {
        let inputs = self.inputs.read();
        let wanted = |listed: &&Arc<DirectoryEntry>| page.input.as_ref().is_none_or(|input| *input == listed.input);
        inputs.iter().filter(wanted).cloned().collect()
    }
}

/// The query parameters.
#[derive(Debug, Default, Deserialize)]
struct PageQuery {
    /// One input by its label or path; all if absent.
    input: Option<String>,
    offset: Option<usize>,
    limit: Option<usize>,
    /// `pending`, `monitored`, `polled` or `failed`.
    state: Option<String>,
}

impl PageQuery {
    fn bounds(&self) -> (usize, usize) {
        (self.offset.unwrap_or(0), self.limit.unwrap_or(LIMIT).min(LIMIT_MAX))
    }
}

#[derive(Debug, Serialize)]
struct PageAnswer<T> {
    total: usize,
    offset: usize,
    limit: usize,
    /// As many as the limit allows, fewer if they are long; the next page begins after them.
    items: Vec<T>,
}

#[derive(Debug, Serialize)]
struct FailureView {
    input: String,
    endpoint: String,
    node_id: String,
    path: String,
    /// `root`, `browse`, `monitored item` or `read`.
    what: &'static str,
    status: String,
    since: String,
    attempts: u32,
    retry_in_seconds: u64,
}

impl HttpRoutes for InputDirectory {
    fn mounts(&self) -> Vec<Mount> {
        let state = Arc::new(InputDirectory {
            inputs: self.inputs.clone(),
            memory: self.memory.clone(),
        });
        let router = Router::new()
            .route(NODES, get(nodes))
            .route(FAILURES, get(failures))
            .with_state(state);
        vec![Mount {
            router,
            access: Access::ReadWrite,
            under_root_path: false,
        }]
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        let page = "?input=, ?offset=, ?limit=";
        vec![
            (
                NODES.to_owned(),
                format!("The nodes of all OPC UA inputs and their states, page by page: {page}, ?state="),
            ),
            (
                FAILURES.to_owned(),
                format!("What OPC UA inputs failed on and when they try again, page by page: {page}"),
            ),
        ]
    }
}

/// Runs on a blocking thread: node tables may be large, and locked by the browse.
async fn nodes(State(directory): State<Arc<InputDirectory>>, Query(page): Query<PageQuery>) -> Response {
    let (offset, limit) = page.bounds();
    aside(move || {
        let inputs = directory.chosen(&page);
        let (total, items) = node_page::page(&inputs, page.state.as_deref(), offset, limit);
        Json(PageAnswer {
            total,
            offset,
            limit,
            items,
        })
    })
    .await
}

async fn failures(State(directory): State<Arc<InputDirectory>>, Query(page): Query<PageQuery>) -> Response {
    let (offset, limit) = page.bounds();
    aside(move || {
        let (total, items) = failure_page(&directory.chosen(&page), offset, limit);
        Json(PageAnswer {
            total,
            offset,
            limit,
            items,
        })
    })
    .await
}

fn failure_page(inputs: &[Arc<DirectoryEntry>], offset: usize, limit: usize) -> (usize, Vec<FailureView>) {
    let (mut total, mut items) = (0, Vec::new());
    let mut bytes = 0;
    let now = clock::now();
    for listed in inputs {
        let skip = offset.saturating_sub(total);
        let room = limit - items.len();
        for (what, node, failure) in listed.failures.page(skip, room) {
            if bytes >= PAGE_BYTES_MAX {
                break;
            }
            let table = listed.table.read();
            let view = FailureView {
                input: listed.input.clone(),
                endpoint: listed.endpoint.clone(),
                node_id: table.label(node),
                path: tag_path::unique(&table, node),
                what: what.as_str(),
                status: failure.text.unwrap_or_else(|| status::text(failure.status)),
                since: failure.since.to_string(),
                attempts: failure.attempts,
                retry_in_seconds: failure.retry_at.saturating_duration_since(now).as_secs(),
            };
            bytes += view.node_id.len() + view.path.len() + view.status.len();
            items.push(view);
        }
        total += listed.failures.len();
    }
    (total, items)
}

#[cfg(test)]
mod tests;
