//! The pending operations, in one queue per node: the values of a node are written one after the other in the order of
//! the messages, and a blocked queue delays no other.
//!
//! | operation | is | goes on to |
//! |---|---|---|
//! | queued | behind an earlier one of its node, or of a message that names a namespace which the server does not have | begun, at the head of its queue |
//! | begun | returned by [`NodeQueues::begin`] | ended |
//! | ended | written, rejected, or of a message that was rejected meanwhile | - |
//!
//! A message is done with the last of its operations, and rejected with the first permanent failure; then no more of
//! its operations are begun. A write is answered when none of its messages is open.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use opcua::types::NodeId;
use thalweg_flow::{Rejection, WriteError, all_but};
use thalweg_kit::clock;
use thalweg_record::{DropReason, Message, Value};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::prepare::PreparedWrite;
use super::write_session::WriteTarget;
use crate::namespace_array::NamespaceArray;
use crate::node_id::NodeSpec;

/// A write requested by the flow.
pub(super) struct WriteJob {
    pub messages: Arc<Vec<Message>>,
    pub done: oneshot::Sender<Result<(), WriteError>>,
}

/// The place of an operation in the order of the stream.
pub(super) type OperationId = u64;

struct Operation {
    write: u64,
    /// The index in the messages of the write.
    message: usize,
    /// The node as the configuration or the message names it.
    named: NodeSpec,
    /// `None` if the server has no such namespace, as far as is known.
    node: Option<NodeId>,
    value: Value,
    since: Instant,
    is_begun: bool,
}

impl Operation {
    fn line(&self) -> NodeSpec {
        match &self.node {
            Some(node) => NodeSpec::Indexed(node.clone()),
            None => self.named.clone(),
        }
    }

    fn has_waited(&self, at_least: Duration) -> bool {
        self.since.elapsed() >= at_least
    }
}

struct PendingWrite {
    /// `None` for a message that was written or rejected.
    messages: Vec<Option<OpenMessage>>,
    /// The number of open messages.
    open: usize,
    rejections: Vec<Rejection>,
    done: oneshot::Sender<Result<(), WriteError>>,
}

/// A message without a result yet.
struct OpenMessage {
    operations: Range<OperationId>,
    /// Operations that have not ended.
    left: usize,
    /// Operations on nodes whose namespace the server does not have.
    homeless: usize,
}

#[derive(Default)]
pub(super) struct NodeQueues {
    operations: BTreeMap<OperationId, Operation>,
    lines: HashMap<NodeSpec, VecDeque<OperationId>>,
    writes: HashMap<u64, PendingWrite>,
    /// Heads of queues that were not returned yet.
    heads: Vec<OperationId>,
    homeless: BTreeSet<OperationId>,
    next: OperationId,
    next_write: u64,
}

impl NodeQueues {
    /// Queues the operations of each message of a write.
    pub fn add(
        &mut self,
        done: oneshot::Sender<Result<(), WriteError>>,
        wanted: Vec<Result<Vec<PreparedWrite>, Rejection>>,
        namespaces: &NamespaceArray,
    ) {
        let (write, first, since) = (self.next_write, self.next, clock::tokio_now());
        self.next_write += 1;
        let (mut messages, mut rejections) = (Vec::with_capacity(wanted.len()), Vec::new());
        for (message, wanted) in wanted.into_iter().enumerate() {
            let start = self.next;
            match wanted {
                Ok(wanted) => self.keep(write, message, wanted, since),
                Err(rejection) => rejections.push(rejection),
            }
            let left = usize::try_from(self.next - start).unwrap_or(usize::MAX);
            let open = OpenMessage {
                operations: start..self.next,
                left,
                homeless: 0,
            };
            messages.push((left > 0).then_some(open));
        }
        let entry = PendingWrite {
            open: messages.iter().flatten().count(),
            messages,
            rejections,
            done,
        };
        self.writes.insert(write, entry);
        self.line_up(first..self.next, namespaces);
        self.answer_if_ended(write);
    }

    fn keep(&mut self, write: u64, message: usize, wanted: Vec<PreparedWrite>, since: Instant) {
        for PreparedWrite { node, value } in wanted {
            let operation = Operation {
                write,
                message,
                named: node,
                node: None,
                value,
                since,
                is_begun: false,
            };
            self.operations.insert(self.next, operation);
            self.next += 1;
        }
    }

    /// Starts everything over in a new session, in which nodes may have other indexes: the same values are written
    /// again.
    pub fn restart(&mut self, namespaces: &NamespaceArray) {
        self.lines.clear();
        self.heads.clear();
        self.homeless.clear();
        let open = self.writes.values_mut().flat_map(|write| write.messages.iter_mut());
        open.flatten().for_each(|open| open.homeless = 0);
        let all: Vec<OperationId> = self.operations.keys().copied().collect();
        for id in all {
            if !self.is_open(id) {
                self.operations.remove(&id);
            } else if let Some(operation) = self.operations.get_mut(&id) {
                operation.is_begun = false;
            }
        }
        self.line_up(0..self.next, namespaces);
    }

    fn line_up(&mut self, ids: Range<OperationId>, namespaces: &NamespaceArray) {
        let mut heads = Vec::new();
        for (id, operation) in self.operations.range_mut(ids) {
            operation.node = operation.named.resolve(namespaces).ok();
            let line = operation.line();
            if operation.node.is_none() {
                self.homeless.insert(*id);
                if let Some(open) = open_mut(&mut self.writes, operation.write, operation.message) {
                    open.homeless += 1;
                }
            }
            let waiting = self.lines.entry(line.clone()).or_default();
            waiting.push_back(*id);
            if waiting.len() == 1 {
                heads.push(line);
            }
        }
        heads.iter().for_each(|line| self.advance(line));
    }

    /// Returns the operations that may begin now and were not returned yet, in order.
    pub fn begin(&mut self) -> Vec<OperationId> {
        let mut heads = std::mem::take(&mut self.heads);
        // Some may have been rejected since, with their messages.
        heads.retain(|id| self.operations.contains_key(id));
        heads.sort_unstable();
        heads
    }

    /// The id of the next operation to be added.
    pub fn next_id(&self) -> OperationId {
        self.next
    }

    /// Whether the operation's message is still open.
    pub fn is_open(&self, id: OperationId) -> bool {
        let open = self.operations.get(&id).and_then(|operation| {
            let write = self.writes.get(&operation.write)?;
            write.messages.get(operation.message)?.as_ref()
        });
        open.is_some()
    }

    pub fn node(&self, id: OperationId) -> Option<&NodeId> {
        self.operations.get(&id)?.node.as_ref()
    }

    pub fn target(&self, id: OperationId) -> Option<WriteTarget> {
        let operation = self.operations.get(&id)?;
        Some(WriteTarget {
            node: operation.node.clone()?,
            value: operation.value.clone(),
        })
    }

    /// When the flow called the write.
    pub fn since(&self, id: OperationId) -> Option<Instant> {
        Some(self.operations.get(&id)?.since)
    }

    /// Returns the operations queued behind an operation that have waited for at least this long.
    pub fn waiting_behind(&self, id: OperationId, at_least: Duration) -> Vec<OperationId> {
        let line = self.operations.get(&id).map(Operation::line);
        let waiting = line.and_then(|line| self.lines.get(&line)).into_iter().flatten();
        let has_waited = |other: &OperationId| self.operations.get(other).is_some_and(|o| o.has_waited(at_least));
        waiting
            .copied()
            .filter(|other| *other != id && has_waited(other))
            .collect()
    }

    /// A begun operation was written.
    pub fn succeed(&mut self, id: OperationId) {
        let Some((write, message)) = self.place(id) else { return };
        if let Some(open) = open_mut(&mut self.writes, write, message) {
            open.left = open.left.saturating_sub(1);
            if open.left == 0 {
                self.close(write, message);
            }
        }
        self.leave(id);
        self.answer_if_ended(write);
    }

    /// Rejects the message of an operation, which leaves its queue. Returns the message's other begun operations, for
    /// which [`NodeQueues::leave`] must be called too.
    pub fn refuse(&mut self, id: OperationId, reason: DropReason, error: String) -> Vec<OperationId> {
        let Some((write, message)) = self.place(id) else {
            return Vec::new();
        };
        let open = self.close(write, message);
        if let Some((_, entry)) = open.as_ref().zip(self.writes.get_mut(&write)) {
            entry.rejections.push(Rejection::permanent(message, reason, error));
        }
        self.leave(id);
        let mut begun = Vec::new();
        for other in open.map(|open| open.operations).unwrap_or_default() {
            self.homeless.remove(&other);
            let Some(operation) = self.operations.get(&other) else {
                continue;
            };
            match operation.is_begun {
                true => begun.push(other),
                false => self.advance(&operation.line()),
            }
        }
        self.answer_if_ended(write);
        begun
    }

    /// A begun operation has ended: its queue continues.
    pub fn leave(&mut self, id: OperationId) {
        let Some(operation) = self.operations.remove(&id) else {
            return;
        };
        let line = operation.line();
        if let Some(waiting) = self.lines.get_mut(&line)
            && waiting.front() == Some(&id)
        {
            waiting.pop_front();
        }
        self.homeless.remove(&id);
        self.advance(&line);
    }

    /// Processes the head of a queue.
    fn advance(&mut self, line: &NodeSpec) {
        while let Some(&id) = self.lines.get(line).and_then(VecDeque::front) {
            let is_open = self.is_open(id);
            let Some(operation) = self.operations.get_mut(&id) else {
                self.step(line);
                continue;
            };
            match open_mut(&mut self.writes, operation.write, operation.message) {
                _ if operation.is_begun => return,
                Some(open) if open.homeless > 0 => return,
                _ if !is_open => {
                    self.operations.remove(&id);
                    self.step(line);
                }
                _ => {
                    operation.is_begun = true;
                    self.heads.push(id);
                    return;
                }
            }
        }
        self.lines.remove(line);
    }

    fn step(&mut self, line: &NodeSpec) {
        if let Some(waiting) = self.lines.get_mut(line) {
            waiting.pop_front();
        }
    }

    /// Whether a node is in a namespace that the server does not have, as far as is known.
    pub fn misses_namespaces(&self) -> bool {
        !self.homeless.is_empty()
    }

    /// Resolves nodes of missing namespaces again.
    pub fn look_up(&mut self, namespaces: &NamespaceArray) {
        for id in self.homeless.clone() {
            let Some(operation) = self.operations.get_mut(&id) else {
                continue;
            };
            let Ok(node) = operation.named.resolve(namespaces) else {
                continue;
            };
            let (write, message, before) = (operation.write, operation.message, operation.line());
            operation.node = Some(node);
            let line = operation.line();
            self.homeless.remove(&id);
            if let Some(waiting) = self.lines.get_mut(&before) {
                waiting.retain(|other| *other != id);
            }
            self.advance(&before);
            self.lines.entry(line).or_default().push_back(id);
            self.housed(write, message);
        }
    }

    /// One more node of a message is resolved; with the last one it may begin.
    fn housed(&mut self, write: u64, message: usize) {
        let Some(open) = open_mut(&mut self.writes, write, message) else {
            return;
        };
        open.homeless = open.homeless.saturating_sub(1);
        if open.homeless > 0 {
            return;
        }
        let operations = open.operations.clone();
        let lines: Vec<NodeSpec> = self.operations.range(operations).map(|(_, o)| o.line()).collect();
        lines.iter().for_each(|line| self.advance(line));
    }

    /// Rejects messages with nodes of namespaces that the server does not have; `is_certain` says for which operations
    /// and URIs this is known by now. Returns those URIs.
    pub fn refuse_homeless(&mut self, is_certain: impl Fn(OperationId, &str) -> bool) -> Vec<String> {
        let mut missing = Vec::new();
        self.refuse_some_homeless(|id, operation| {
            let (NodeSpec::ByUri { uri, .. }, Err(why)) =
                (&operation.named, operation.named.resolve(&NamespaceArray::default()))
            else {
                return None;
            };
            is_certain(id, uri).then(|| {
                missing.push(uri.clone());
                why
            })
        });
        missing
    }

    /// Rejects messages with nodes of apparently missing namespaces that have waited for at least this long.
    pub fn give_up_homeless(&mut self, at_least: Duration, why: &str) {
        self.refuse_some_homeless(|_, operation| operation.has_waited(at_least).then(|| why.to_owned()));
    }

    /// `why` returns `None` for operations that stay.
    fn refuse_some_homeless(&mut self, mut why: impl FnMut(OperationId, &Operation) -> Option<String>) {
        for id in self.homeless.clone() {
            let Some(operation) = self.operations.get(&id) else {
                continue;
            };
            let Some(why) = why(id, operation) else {
                continue;
            };
            let error = format!("cannot write {}: {why}", operation.named);
            // No operation of such a message was begun.
            let _none = self.refuse(id, DropReason::OutputRejected, error);
        }
    }

    fn place(&self, id: OperationId) -> Option<(u64, usize)> {
        let operation = self.operations.get(&id)?;
        Some((operation.write, operation.message))
    }

    /// Closes a message with its result. Returns its open state.
    fn close(&mut self, write: u64, message: usize) -> Option<OpenMessage> {
        let entry = self.writes.get_mut(&write)?;
        let open = entry.messages.get_mut(message)?.take()?;
        entry.open = entry.open.saturating_sub(1);
        Some(open)
    }

    fn answer_if_ended(&mut self, write: u64) {
        if self.writes.get(&write).is_some_and(|write| write.open == 0)
            && let Some(write) = self.writes.remove(&write)
        {
            // The caller may be gone.
            let _gone = write.done.send(all_but(write.rejections));
        }
    }
}

fn open_mut(writes: &mut HashMap<u64, PendingWrite>, write: u64, message: usize) -> Option<&mut OpenMessage> {
    writes.get_mut(&write)?.messages.get_mut(message)?.as_mut()
}

#[cfg(test)]
mod tests;
