//! A page of the nodes of some inputs. The total comes from the counts by state, so a page costs only the scan up to
//! its end. The scan releases the lock between pieces, so that writers of the table are not blocked; an index never
//! changes its meaning.

use std::sync::Arc;

use serde::Serialize;

use super::{DirectoryEntry, PAGE_BYTES_MAX};
use crate::node_table::{ItemState, NodeIndex, NodeTable};
use crate::tag_path;
use crate::value::types;

/// Table entries scanned under one lock.
const PIECE: NodeIndex = 10_000;

/// Nodes returned under one lock; they are copied with their paths.
const SHOWN_PIECE: usize = 100;

#[derive(Debug, Serialize)]
pub(super) struct NodeView {
    pub input: String,
    pub node_id: String,
    pub path: String,
    pub browse_name: String,
    pub data_type: String,
    pub description: String,
    pub state: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
}

impl NodeView {
    fn bytes(&self) -> usize {
        let texts = [
            &self.node_id,
            &self.path,
            &self.browse_name,
            &self.data_type,
            &self.description,
        ];
        texts.into_iter().map(String::len).sum()
    }
}

/// Returns the number of nodes of these inputs in the state, or of all nodes, and those of the page.
pub(super) fn page(
    inputs: &[Arc<DirectoryEntry>],
    state: Option<&str>,
    offset: usize,
    limit: usize,
) -> (usize, Vec<NodeView>) {
    let (mut total, mut items, mut bytes) = (0, Vec::new(), 0);
    for listed in inputs {
        let count = count(&listed.table.read(), state);
        let skip = offset.saturating_sub(total);
        total += count;
        if skip >= count || items.len() >= limit || bytes >= PAGE_BYTES_MAX {
            continue;
        }
        let mut nodes = NodePageCursor {
            listed,
            state,
            next: 0,
            skip,
        };
        while items.len() < limit && bytes < PAGE_BYTES_MAX {
            let room = SHOWN_PIECE.min(limit - items.len());
            let Some(some) = nodes.piece(room, PAGE_BYTES_MAX - bytes) else {
                break;
            };
            bytes += some.iter().map(NodeView::bytes).sum::<usize>();
            items.extend(some);
        }
    }
    (total, items)
}

fn count(table: &NodeTable, state: Option<&str>) -> usize {
    let counts = table.counts();
    match state {
        None => table.variables(),
        Some("pending") => counts.pending,
        Some("monitored") => counts.monitored,
        Some("polled") => counts.polled,
        Some("failed") => counts.failed_total(),
        Some("not_wanted") => table.variables().saturating_sub(counts.wanted()),
        Some(_) => 0,
    }
}

fn state_name(state: ItemState) -> (&'static str, Option<&'static str>) {
    match state {
        ItemState::Pending => ("pending", None),
        ItemState::Monitored => ("monitored", None),
        ItemState::Polled => ("polled", None),
        ItemState::Failed(reason) => ("failed", Some(reason.as_str())),
        ItemState::NotWanted => ("not_wanted", None),
    }
}

/// The scan of an input's table.
pub(super) struct NodePageCursor<'a> {
    pub listed: &'a DirectoryEntry,
    pub state: Option<&'a str>,
    /// Where the scan continues.
    pub next: NodeIndex,
    /// Nodes that belong to earlier pages.
    pub skip: usize,
}

impl NodePageCursor<'_> {
    /// Returns what one pass under the lock finds, possibly nothing; `None` at the end of the table.
    pub fn piece(&mut self, room: usize, bytes_max: usize) -> Option<Vec<NodeView>> {
        let table = self.listed.table.read();
        let len = NodeIndex::try_from(table.len()).unwrap_or(NodeIndex::MAX);
        if self.next >= len {
            return None;
        }
        let end = self.next.saturating_add(PIECE).min(len);
        let (mut found, mut bytes) = (Vec::new(), 0);
        while self.next < end && found.len() < room && bytes < bytes_max {
            let node = self.next;
            self.next += 1;
            let is_wanted = |state: &str| state_name(table.state(node)).0 == state;
            if !table.is_variable(node) || !self.state.is_none_or(is_wanted) {
                continue;
            }
            if self.skip > 0 {
                self.skip -= 1;
                continue;
            }
            let view = node_view(&self.listed.input, &table, node);
            bytes += view.bytes();
            found.push(view);
        }
        Some(found)
    }
}

fn node_view(input: &str, table: &NodeTable, node: NodeIndex) -> NodeView {
    let (state, reason) = state_name(table.state(node));
    NodeView {
        input: input.to_owned(),
        node_id: table.label(node),
        path: tag_path::unique(table, node),
        browse_name: table.name(node).to_owned(),
        data_type: table.data_type(node).map(types::metadata_name).unwrap_or_default(),
        description: table.description(node).to_owned(),
        state,
        reason,
    }
}
