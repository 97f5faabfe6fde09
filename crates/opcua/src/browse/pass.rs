//! One pass over a server's address space: keeps calls in flight, feeds their responses into the walk, and emits
//! variables as soon as their attributes are known.
//!
//! The pass survives reconnects: calls of a lost connection are repeated on the next one, and results are kept. It ends
//! when everything is found or when the table is full, and returns which.
//!
//! | work | comes from | ends as |
//! |---|---|---|
//! | nodes to browse | the walk, failed and lost calls | references in the walk, continuation points, or a failure |
//! | continuation points | browse responses | references in the walk; after an invalid one, its node is browsed again, a few times |
//! | variables to read | references processed in order | variables handed out |

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use opcua::types::{
    BrowseNextRequest, BrowseRequest, BrowseResult, ByteString, StatusCode, TimestampsToReturn, ViewDescription,
};
use thalweg_kit::clock;

use super::walk::{Ticket, Walk};
use super::{attributes, references};
use crate::call_size::CallSize;
use crate::channel::{CallError, CallFailureKind};
use crate::concurrency_limit::ConcurrencyLimit;
use crate::failures::NodeFailureKind;
use crate::node_table::{NODES_MAX, NodeIndex, NodeKind};
use crate::session::Session;
use crate::value::{DataValue, StructureRegistry};

use super::{BrowseContext, ConnectedServer};

/// A call without a response is repeated after this time.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// References per node and response; a wider node is continued.
const REFERENCES_PER_ANSWER: u32 = 5_000;

/// Maximum restarts of a node after the server lost or refused a continuation point. After that it is browsed once
/// more, with all references in one response.
const STARTS_MAX: u8 = 5;

/// Maximum consecutive references of one node that lead to no new node. A restarted node may have many of them; beyond
/// this the server responds in a cycle.
const FRUITLESS_MAX: usize = 1_000_000;

/// A response without references that is not the last one counts as this many.
const EMPTY_ANSWER: usize = 10_000;

/// Maximum timeouts of a node that is browsed alone before it fails.
const SILENCES_MAX: u8 = 3;

/// The owner of the connection needs a moment to notice its loss.
const PAUSE_AFTER_LOSS: Duration = Duration::from_millis(100);

/// Pause after a server refused all work for the moment.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(1);

/// A node being browsed, with its place in the order.
type Turn = (Ticket, NodeIndex);

/// The nodes that another pass starts from.
#[derive(Debug, Default)]
pub(super) struct BrowseSeeds {
    pub browse: Vec<NodeIndex>,
    /// Variables of which only the NodeID is known.
    pub read: Vec<NodeIndex>,
}

/// How far a pass got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BrowseExtent {
    Everything,
    /// The table was full first: missing nodes may exist in the server.
    TheLimit,
}

enum BrowseCallResult {
    Browsed(Vec<Turn>, Result<Vec<BrowseResult>, CallError>),
    Continued(Vec<(Turn, ByteString)>, Result<Vec<BrowseResult>, CallError>),
    Read(Vec<NodeIndex>, Result<Vec<DataValue>, CallError>),
    /// Continuation points were released.
    Released {
        lost: bool,
    },
    /// A pause in place of a call is over.
    Rested,
}

pub(super) struct BrowsePass<'a> {
    context: &'a BrowseContext,
    walk: Walk,
    again: VecDeque<Turn>,
    /// Nodes for which the server had no continuation point left; they wait until all are released.
    starved: VecDeque<Turn>,
    /// Nodes whose references the server cannot split; they are browsed alone and in one response.
    whole: VecDeque<Turn>,
    /// Whether a node is being browsed alone.
    alone: bool,
    /// Restarts of each node on this connection.
    starts: hashbrown::HashMap<NodeIndex, u8>,
    /// Timeouts of each node that was browsed alone.
    silences: hashbrown::HashMap<NodeIndex, u8>,
    /// Consecutive references of each node that led to no new node.
    fruitless: hashbrown::HashMap<NodeIndex, usize>,
    points: VecDeque<(Turn, ByteString)>,
    points_in_flight: usize,
    points_max: usize,
    to_read: VecDeque<NodeIndex>,
    /// The table is scanned for variables up to this index.
    seen: NodeIndex,
    /// Whether something was left out because the table was full at the time. It may have room again when another input
    /// is removed.
    is_cut_short: bool,
    pace: ConcurrencyLimit,
    browse_chunk: CallSize,
    read_chunk: CallSize,
    call_timeout: Duration,
    calls: FuturesUnordered<BoxFuture<'static, (BrowseCallResult, Duration, usize)>>,
    references_per_answer: u32,
}

impl<'a> BrowsePass<'a> {
    /// Creates a pass over the whole table, including nodes added meanwhile.
    pub fn new(context: &'a BrowseContext, connected: &ConnectedServer) -> BrowsePass<'a> {
        BrowsePass {
            context,
            walk: Walk::default(),
            again: VecDeque::new(),
            starved: VecDeque::new(),
            whole: VecDeque::new(),
            alone: false,
            starts: hashbrown::HashMap::new(),
            silences: hashbrown::HashMap::new(),
            fruitless: hashbrown::HashMap::new(),
            points: VecDeque::new(),
            points_in_flight: 0,
            points_max: points_max(connected),
            to_read: VecDeque::new(),
            seen: 0,
            is_cut_short: false,
            pace: ConcurrencyLimit::rising_to(connected.profile.browse_in_flight),
            browse_chunk: browse_chunk(connected),
            read_chunk: read_chunk(connected),
            call_timeout: CALL_TIMEOUT,
            calls: FuturesUnordered::new(),
            references_per_answer: REFERENCES_PER_ANSWER,
        }
    }

    /// Creates a pass over some nodes of a table that was walked before, and over everything they lead to.
    pub fn again(context: &'a BrowseContext, connected: &ConnectedServer, nodes: BrowseSeeds) -> BrowsePass<'a> {
        let mut pass = BrowsePass::new(context, connected);
        let walked = context.table.read().len() as NodeIndex;
        pass.walk = Walk::starting_at(walked);
        pass.seen = walked;
        for node in nodes.browse {
            let turn = (pass.walk.enter(node), node);
            pass.again.push_back(turn);
        }
        pass.to_read.extend(nodes.read);
        pass
    }

    /// Runs to the end, over as many connections as needed. `ready` receives variables whose attributes are known.
    pub async fn run(mut self, ready: &mut (dyn FnMut(Vec<NodeIndex>) + Send)) -> BrowseExtent {
        let mut connected = self.context.connected().await;
        loop {
            self.apply();
            self.issue(&connected.session);
            self.show();
            if self.calls.is_empty() && self.is_done() {
                return self.reached();
            }
            // If nothing is in flight, nothing could be sent: the connection is gone.
            let lost = match self.calls.next().await {
                Some((done, latency, operations)) => self.settle(done, latency, operations, ready),
                None => true,
            };
            if lost {
                // Continuation points and responses may be lost with the connection, which is not the server's fault.
                self.starts.clear();
                self.silences.clear();
                tokio::time::sleep(PAUSE_AFTER_LOSS).await;
                let before = std::mem::replace(&mut connected, self.context.connected().await);
                if !Arc::ptr_eq(&before.facts, &connected.facts) {
                    self.begin_session(&connected);
                }
            }
        }
    }

    /// Forgets the learned limits, because the next server may have others.
    fn begin_session(&mut self, connected: &ConnectedServer) {
        self.points_max = points_max(connected);
        self.browse_chunk = browse_chunk(connected);
        self.read_chunk = read_chunk(connected);
        self.references_per_answer = REFERENCES_PER_ANSWER;
    }

    fn is_done(&self) -> bool {
        let len = self.context.table.read().len();
        let all_handed_out = self.walk.frontier(len) == 0 || self.context.is_full();
        self.walk.is_idle()
            && all_handed_out
            && self.to_read.is_empty()
            && self.again.is_empty()
            && self.starved.is_empty()
            && self.whole.is_empty()
    }

    /// Nodes that were not handed out may lead to others, so nodes are missing.
    fn reached(&self) -> BrowseExtent {
        let table = self.context.table.read();
        let depth_max = self.context.browse.depth_max;
        let mut left = self.walk.not_handed_out(table.len());
        let is_left = left.any(|node| table.depth(node) < depth_max && !table.is_failed(node));
        match self.is_cut_short || is_left || table.len() >= NODES_MAX {
            true => BrowseExtent::TheLimit,
            false => BrowseExtent::Everything,
        }
    }

    /// Applies references in order, and finds the variables among the new nodes.
    fn apply(&mut self) {
        let namespaces = self.context.namespaces();
        while let Some((parent, found)) = self.walk.take_turn() {
            let mut table = self.context.table.write();
            let applied = references::apply(&mut table, parent, &found, &self.context.browse, &namespaces, |table| {
                self.context.is_full_with(table)
            });
            drop(table);
            self.is_cut_short |= applied.is_cut_short;
            self.context.metrics.browse_nodes.inc_by(applied.added as u64);
            if applied.added == 0 {
                *self.fruitless.entry(parent).or_insert(0) += found.len();
            } else {
                self.fruitless.remove(&parent);
            }
        }
        let table = self.context.table.read();
        let new = self.seen..table.len() as NodeIndex;
        self.seen = new.end;
        self.to_read
            .extend(new.filter(|node| table.class(*node) == NodeKind::Variable && !table.is_failed(*node)));
    }

    fn issue(&mut self, session: &Session) {
        if session.channel().is_closed() {
            return;
        }
        while self.calls.len() < self.pace.get() {
            let issued = self.issue_points(session) || self.issue_reads(session) || self.issue_browse(session);
            if !issued {
                return;
            }
        }
    }

    fn issue_points(&mut self, session: &Session) -> bool {
        if self.context.is_full() {
            self.release_points(session);
        }
        self.make_way(session);
        let room = self
            .browse_chunk
            .get()
            .min(self.points_max.saturating_sub(self.points_in_flight).max(1));
        let some = self
            .walk
            .take_allowed(&mut self.points, room, |((ticket, _), _)| *ticket);
        if some.is_empty() {
            return false;
        }
        self.points_in_flight += some.len();
        let request = BrowseNextRequest {
            request_header: Default::default(),
            release_continuation_points: false,
            continuation_points: Some(some.iter().map(|(_, point)| point.clone()).collect()),
        };
        let (session, timeout) = (session.clone(), self.call_timeout);
        self.call(some.len(), async move {
            let answer = session.call_within(request, timeout).await;
            let wanted = some.len();
            BrowseCallResult::Continued(some, answer.and_then(|answer| complete(answer.results, wanted)))
        });
        true
    }

    fn issue_browse(&mut self, session: &Session) -> bool {
        if self.alone {
            return false;
        }
        let size = self.browse_chunk.get();
        let ticket = |(ticket, _): &Turn| *ticket;
        let mut some = self.walk.take_allowed(&mut self.again, size, ticket);
        let mut references_max = self.references_per_answer;
        // With nothing else in flight, no other node can take the continuation point that this node needs.
        if some.is_empty() && self.points.is_empty() && self.calls.is_empty() {
            some = self.walk.take_allowed(&mut self.starved, 1, ticket);
            if some.is_empty() {
                some = self.walk.take_allowed(&mut self.whole, 1, ticket);
                references_max = if some.is_empty() { references_max } else { 0 };
            }
            self.alone = !some.is_empty();
        }
        let table = self.context.table.read();
        if !self.alone && !self.context.is_full_with(&table) {
            let depth_max = self.context.browse.depth_max;
            let wanted = |node| table.depth(node) < depth_max && !table.is_failed(node);
            some.extend(self.walk.hand_out(table.len(), size - some.len(), wanted));
        }
        if some.is_empty() {
            return false;
        }
        let nodes = some
            .iter()
            .map(|(_, node)| references::description(table.node_id(*node)))
            .collect();
        drop(table);
        let request = BrowseRequest {
            request_header: Default::default(),
            view: ViewDescription::default(),
            requested_max_references_per_node: references_max,
            nodes_to_browse: Some(nodes),
        };
        let (session, timeout) = (session.clone(), self.call_timeout);
        self.call(some.len(), async move {
            let answer = session.call_within(request, timeout).await;
            let wanted = some.len();
            BrowseCallResult::Browsed(some, answer.and_then(|answer| complete(answer.results, wanted)))
        });
        true
    }

    fn issue_reads(&mut self, session: &Session) -> bool {
        let size = (self.read_chunk.get() / attributes::PER_NODE).max(1);
        // Sends full calls while more is expected, and the rest at the end.
        let more_to_come = !self.walk.is_idle() || !self.again.is_empty();
        if self.to_read.is_empty() || (self.to_read.len() < size && more_to_come && !self.calls.is_empty()) {
            return false;
        }
        let some: Vec<NodeIndex> = self.to_read.drain(..size.min(self.to_read.len())).collect();
        let table = self.context.table.read();
        let ids = some
            .iter()
            .flat_map(|node| attributes::request(&table.node_id(*node)))
            .collect();
        drop(table);
        let (session, timeout) = (session.clone(), self.call_timeout);
        self.call(some.len() * attributes::PER_NODE, async move {
            let types = StructureRegistry::default();
            let read = session
                .read_within(ids, TimestampsToReturn::Neither, 0.0, &types, timeout)
                .await;
            BrowseCallResult::Read(some, read)
        });
        true
    }

    fn call(&mut self, operations: usize, call: impl Future<Output = BrowseCallResult> + Send + 'static) {
        let start = clock::now();
        self.calls
            .push(Box::pin(async move { (call.await, start.elapsed(), operations) }));
    }

    /// Processes one response. Returns true if the connection is gone.
    fn settle(
        &mut self,
        done: BrowseCallResult,
        latency: Duration,
        operations: usize,
        ready: &mut (dyn FnMut(Vec<NodeIndex>) + Send),
    ) -> bool {
        match done {
            BrowseCallResult::Browsed(turns, Ok(results)) => {
                self.alone = false;
                self.pace.answered(latency, operations);
                self.browse_chunk.succeeded();
                turns
                    .into_iter()
                    .zip(results)
                    .for_each(|(turn, result)| self.browsed(turn, result));
            }
            BrowseCallResult::Continued(turns, Ok(results)) => {
                self.pace.answered(latency, operations);
                self.points_in_flight -= turns.len();
                turns
                    .into_iter()
                    .zip(results)
                    .for_each(|((turn, _), result)| self.browsed(turn, result));
            }
            BrowseCallResult::Read(nodes, Ok(values)) => {
                self.pace.answered(latency, operations);
                self.read_chunk.succeeded();
                let bytes_max = self.context.memory.of_a_table();
                attributes::apply(&mut self.context.table.write(), &nodes, &values, bytes_max);
                ready(nodes);
            }
            BrowseCallResult::Browsed(turns, Err(error)) => {
                self.alone = false;
                return self.browse_failed(turns, &error, latency);
            }
            BrowseCallResult::Continued(turns, Err(error)) => {
                self.points_in_flight -= turns.len();
                return self.points_failed(turns, &error, latency);
            }
            BrowseCallResult::Read(nodes, Err(error)) => return self.read_failed(nodes, &error, latency, ready),
            BrowseCallResult::Released { lost } => return lost,
            BrowseCallResult::Rested => {}
        }
        false
    }

    fn browsed(&mut self, turn: Turn, result: BrowseResult) {
        let (ticket, node) = turn;
        match result.status_code {
            status @ (StatusCode::BadNoContinuationPoints | StatusCode::BadContinuationPointInvalid) => {
                return self.start_over(turn, status);
            }
            status if status.is_bad() => return self.failed(turn, status.bits(), None),
            _ => {}
        }
        let point = result.continuation_point;
        let finished = point.is_null_or_empty();
        let references = result.references.unwrap_or_default();
        let is_empty = references.is_empty();
        self.walk.deliver(ticket, references, finished);
        if finished {
            self.fruitless.remove(&node);
            self.context.failures.remove(NodeFailureKind::Browse, node);
        } else if self.leads_nowhere(node, is_empty) {
            let text = "the server keeps sending references that lead to no new node";
            self.failed(turn, StatusCode::BadUnknownResponse.bits(), Some(text.to_owned()));
        } else {
            self.points.push_back((turn, point));
        }
    }

    /// Whether continuing a node has been fruitless for too long.
    fn leads_nowhere(&mut self, node: NodeIndex, is_empty: bool) -> bool {
        if is_empty {
            *self.fruitless.entry(node).or_insert(0) += EMPTY_ANSWER;
        }
        self.fruitless.get(&node).is_some_and(|count| *count > FRUITLESS_MAX)
    }

    /// The server has no continuation point left for this node, or lost it: restart the node. Known nodes are not added
    /// again.
    fn start_over(&mut self, turn: Turn, status: StatusCode) {
        let starts = self.starts.entry(turn.1).or_insert(0);
        *starts = starts.saturating_add(1);
        match (*starts).cmp(&STARTS_MAX) {
            Ordering::Less if status == StatusCode::BadNoContinuationPoints => self.starved.push_back(turn),
            Ordering::Less => self.again.push_back(turn),
            Ordering::Equal => self.whole.push_back(turn),
            Ordering::Greater => self.failed(turn, status.bits(), None),
        }
    }

    fn failed(&mut self, (ticket, node): Turn, status: u32, text: Option<String>) {
        self.walk.deliver(ticket, Vec::new(), true);
        self.context.metrics.browse_error(status);
        self.context.failures.add(NodeFailureKind::Browse, node, status, text);
    }

    fn browse_failed(&mut self, turns: Vec<Turn>, error: &CallError, lasted: Duration) -> bool {
        match self.verdict(error, lasted, BrowseCallScope::browsed(&turns, |(_, node)| *node)) {
            BrowseFailureAction::Again { lost } => {
                self.again.extend(turns);
                return lost;
            }
            // A single node whose response is too large: request fewer references at a time.
            BrowseFailureAction::Failed if is_answer_too_large(error) && self.references_per_answer > 1 => {
                self.references_per_answer /= 2;
                self.again.extend(turns);
            }
            BrowseFailureAction::Failed => {
                turns
                    .into_iter()
                    .for_each(|turn| self.failed(turn, error.nearest_status(), Some(error.to_string())));
            }
        }
        false
    }

    fn points_failed(&mut self, turns: Vec<(Turn, ByteString)>, error: &CallError, lasted: Duration) -> bool {
        match self.verdict(error, lasted, BrowseCallScope::browsed(&turns, |((_, node), _)| *node)) {
            BrowseFailureAction::Again { lost } => {
                self.points.extend(turns);
                return lost;
            }
            BrowseFailureAction::Failed => {
                turns
                    .into_iter()
                    .for_each(|(turn, _)| self.failed(turn, error.nearest_status(), Some(error.to_string())));
            }
        }
        false
    }

    fn read_failed(
        &mut self,
        nodes: Vec<NodeIndex>,
        error: &CallError,
        lasted: Duration,
        ready: &mut (dyn FnMut(Vec<NodeIndex>) + Send),
    ) -> bool {
        match self.verdict(error, lasted, BrowseCallScope::read(&nodes)) {
            BrowseFailureAction::Again { lost } => {
                self.to_read.extend(nodes);
                return lost;
            }
            // Unreadable attributes stay empty.
            BrowseFailureAction::Failed => ready(nodes),
        }
        false
    }

    /// Decides what happens to the operations of a failed call, and adjusts the size and number of later calls.
    fn verdict(&mut self, error: &CallError, lasted: Duration, part: BrowseCallScope) -> BrowseFailureAction {
        let failure = error.failure();
        if matches!(
            failure,
            CallFailureKind::TimedOut | CallFailureKind::Later | CallFailureKind::TooMany
        ) {
            self.pace.slow_down(lasted);
        }
        match failure {
            CallFailureKind::Lost => return BrowseFailureAction::Again { lost: true },
            CallFailureKind::TimedOut => match part.alone {
                Some(node) if self.is_silent_again(node) => return BrowseFailureAction::Failed,
                Some(_) => {}
                None => self.chunk_of(&part).timed_out(part.operations),
            },
            CallFailureKind::Later => self.rest(),
            CallFailureKind::TooMany | CallFailureKind::TooLarge | CallFailureKind::Other => {
                if part.alone.is_some() || !self.chunk_of(&part).refused(part.operations, error) {
                    return BrowseFailureAction::Failed;
                }
            }
        }
        BrowseFailureAction::Again { lost: false }
    }

    fn chunk_of(&mut self, part: &BrowseCallScope) -> &mut CallSize {
        match part.is_read {
            true => &mut self.read_chunk,
            false => &mut self.browse_chunk,
        }
    }

    /// Counts a timeout of a node that is browsed alone. Returns true if it has had enough attempts.
    fn is_silent_again(&mut self, node: NodeIndex) -> bool {
        let silences = self.silences.entry(node).or_insert(0);
        *silences += 1;
        let is_enough = *silences >= SILENCES_MAX;
        if is_enough {
            self.silences.remove(&node);
        }
        is_enough
    }

    /// Occupies one call slot for a while.
    fn rest(&mut self) {
        self.call(0, async {
            tokio::time::sleep(PAUSE_AFTER_REFUSAL).await;
            BrowseCallResult::Rested
        });
    }

    fn show(&self) {
        let metrics = &self.context.metrics;
        let len = self.context.table.read().len();
        let frontier =
            self.walk.frontier(len) + self.again.len() + self.starved.len() + self.whole.len() + self.points.len();
        let gauge = |value: usize| i64::try_from(value).unwrap_or(i64::MAX);
        metrics.browse_frontier.set(gauge(frontier));
        metrics.browse_in_flight.set(gauge(self.calls.len()));
    }

    /// If the node next in order is refused a continuation point while others hold theirs without being continued,
    /// release those; their nodes restart when there is room for their references.
    fn make_way(&mut self, session: &Session) {
        let mut alone = self.starved.iter().chain(&self.whole);
        let next_is_refused = alone.any(|(ticket, _)| self.walk.is_next(*ticket));
        if !next_is_refused || !self.walk.is_full() || !self.calls.is_empty() {
            return;
        }
        if let Some((turns, request)) = self.give_back() {
            self.starved.extend(turns);
            let session = session.clone();
            self.call(1, async move {
                let answer = session.call(request).await;
                BrowseCallResult::Released {
                    lost: matches!(answer, Err(CallError::Closed(_))),
                }
            });
        }
    }

    /// Releases continuation points that will not be used. The response does not matter.
    fn release_points(&mut self, session: &Session) {
        if let Some((turns, request)) = self.give_back() {
            self.is_cut_short = true;
            turns
                .iter()
                .for_each(|(ticket, _)| self.walk.deliver(*ticket, Vec::new(), true));
            let session = session.clone();
            tokio::spawn(async move { session.call(request).await });
        }
    }

    /// Returns the request that releases all continuation points, with their nodes; `None` if there are none.
    fn give_back(&mut self) -> Option<(Vec<Turn>, BrowseNextRequest)> {
        if self.points.is_empty() {
            return None;
        }
        let (turns, points): (Vec<Turn>, Vec<ByteString>) = self.points.drain(..).unzip();
        let request = BrowseNextRequest {
            request_header: Default::default(),
            release_continuation_points: true,
            continuation_points: Some(points),
        };
        Some((turns, request))
    }
}

enum BrowseFailureAction {
    /// Repeat, in smaller parts if calls have become smaller, on another connection if this one is lost.
    Again { lost: bool },
    /// Splitting does not help.
    Failed,
}

/// The subject of a call.
struct BrowseCallScope {
    /// The only node of the call, which cannot be split.
    alone: Option<NodeIndex>,
    /// As servers count them.
    operations: usize,
    is_read: bool,
}

impl BrowseCallScope {
    fn browsed<T>(turns: &[T], node: impl Fn(&T) -> NodeIndex) -> BrowseCallScope {
        BrowseCallScope {
            alone: match turns {
                [only] => Some(node(only)),
                _ => None,
            },
            operations: turns.len(),
            is_read: false,
        }
    }

    fn read(nodes: &[NodeIndex]) -> BrowseCallScope {
        BrowseCallScope {
            operations: nodes.len() * attributes::PER_NODE,
            is_read: true,
            ..BrowseCallScope::browsed(nodes, |node| *node)
        }
    }
}

/// Whether the server may be able to respond with fewer references of one node.
fn is_answer_too_large(error: &CallError) -> bool {
    error.is_too_large() && !matches!(error, CallError::WrongCount { .. })
}

fn browse_chunk(connected: &ConnectedServer) -> CallSize {
    let (limits, profile) = (connected.facts.limits, connected.profile);
    CallSize::new(limits.nodes_per_browse, profile.items_per_call, profile.adaptive)
}

/// Counts attributes, as servers do, not nodes.
fn read_chunk(connected: &ConnectedServer) -> CallSize {
    let (limits, profile) = (connected.facts.limits, connected.profile);
    CallSize::new(limits.nodes_per_read, profile.items_per_call, profile.adaptive)
}

/// The number of continuation points that the server keeps for one client.
fn points_max(connected: &ConnectedServer) -> usize {
    match connected.facts.limits.continuation_points {
        0 => usize::MAX,
        max => max as usize,
    }
}

fn complete(results: Option<Vec<BrowseResult>>, wanted: usize) -> Result<Vec<BrowseResult>, CallError> {
    let results = results.unwrap_or_default();
    CallError::check_count(results.len(), wanted, "browses")?;
    Ok(results)
}

#[cfg(test)]
mod circle_tests;
#[cfg(test)]
mod cut_short_tests;
#[cfg(test)]
mod endless_tests;
#[cfg(test)]
mod failing_tests;
#[cfg(test)]
mod test_context;
#[cfg(test)]
mod waiting_tests;
