//! The order of a browse. Responses arrive in any order and in pieces; the walk applies them in breadth-first order, so
//! that the table is the same whatever the timing.
//!
//! Nodes are walked in the order of the table, so the frontier is a position in it, and there is no queue that could
//! fill up. References that arrive early wait in their slot, up to a limit. At the limit only the node next in order
//! continues: no further nodes are handed out, and no other node is continued.

use std::collections::VecDeque;

use opcua::types::ReferenceDescription;

use crate::node_table::NodeIndex;

/// Maximum references that wait for their turn, besides those of the calls in flight.
const WAITING_MAX: usize = 200_000;

/// The place of a browsed node in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

#[derive(Debug, Default)]
struct Slot {
    node: NodeIndex,
    references: Vec<ReferenceDescription>,
    finished: bool,
}

#[derive(Debug)]
pub(super) struct Walk {
    /// The next node of the table to hand out.
    next: NodeIndex,
    /// Nodes that were handed out and are unfinished, or wait for earlier ones.
    slots: VecDeque<Slot>,
    /// The ticket of the first slot.
    first: u64,
    waiting: usize,
    pub waiting_max: usize,
}

impl Default for Walk {
    fn default() -> Walk {
        Walk {
            next: 0,
            slots: VecDeque::new(),
            first: 0,
            waiting: 0,
            waiting_max: WAITING_MAX,
        }
    }
}

impl Walk {
    /// Starts a walk of a table whose first nodes were already walked.
    pub fn starting_at(next: NodeIndex) -> Walk {
        Walk {
            next,
            ..Walk::default()
        }
    }

    /// Hands out up to `max` nodes; `wanted` says whether a node's children are to be visited.
    pub fn hand_out(
        &mut self,
        table_len: usize,
        max: usize,
        wanted: impl Fn(NodeIndex) -> bool,
    ) -> Vec<(Ticket, NodeIndex)> {
        let mut handed = Vec::new();
        while handed.len() < max && (self.next as usize) < table_len && !self.is_full() {
            let node = self.next;
            self.next += 1;
            if wanted(node) {
                handed.push((self.enter(node), node));
            }
        }
        handed
    }

    /// Whether the waiting references have reached their limit.
    pub fn is_full(&self) -> bool {
        self.waiting >= self.waiting_max
    }

    /// Whether the node is the next in order.
    pub fn is_next(&self, ticket: Ticket) -> bool {
        ticket.0 == self.first
    }

    /// Takes up to `max` elements that may continue from a queue.
    pub fn take_allowed<T>(&self, queue: &mut VecDeque<T>, max: usize, ticket: impl Fn(&T) -> Ticket) -> Vec<T> {
        if !self.is_full() {
            return queue.drain(..max.min(queue.len())).collect();
        }
        let next = queue.iter().position(|one| self.is_next(ticket(one)));
        next.filter(|_| max > 0)
            .and_then(|at| queue.remove(at))
            .into_iter()
            .collect()
    }

    /// Enters a node out of order, for a retry.
    pub fn enter(&mut self, node: NodeIndex) -> Ticket {
        let ticket = Ticket(self.first + self.slots.len() as u64);
        self.slots.push_back(Slot {
            node,
            ..Slot::default()
        });
        ticket
    }

    /// Delivers references of a node, in the server's order. `finished` means that there are no more.
    pub fn deliver(&mut self, ticket: Ticket, references: Vec<ReferenceDescription>, finished: bool) {
        let first = self.first;
        let slot = ticket
            .0
            .checked_sub(first)
            .and_then(|at| self.slots.get_mut(usize::try_from(at).ok()?));
        if let Some(slot) = slot {
            self.waiting += references.len();
            slot.references.extend(references);
            slot.finished |= finished;
        }
    }

    /// Returns the next references in order, with their parent.
    pub fn take_turn(&mut self) -> Option<(NodeIndex, Vec<ReferenceDescription>)> {
        while let Some(slot) = self.slots.front_mut() {
            if !slot.references.is_empty() {
                self.waiting -= slot.references.len();
                return Some((slot.node, std::mem::take(&mut slot.references)));
            }
            if !slot.finished {
                return None;
            }
            self.slots.pop_front();
            self.first += 1;
        }
        None
    }

    /// Whether everything handed out is finished and applied. More may be handed out if the table has grown.
    pub fn is_idle(&self) -> bool {
        self.slots.is_empty()
    }

    /// The number of nodes that were not handed out yet.
    pub fn frontier(&self, table_len: usize) -> usize {
        table_len.saturating_sub(self.next as usize)
    }

    pub fn not_handed_out(&self, table_len: usize) -> std::ops::Range<NodeIndex> {
        self.next..NodeIndex::try_from(table_len).unwrap_or(NodeIndex::MAX)
    }
}

#[cfg(test)]
mod tests;
