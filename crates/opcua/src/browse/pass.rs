//! One pass over a server's address space: calls in flight, their answers into the walk, variables out as soon as their
//! attributes are known.
//!
//! The pass outlives connections: what a lost one owed is asked again of the next, and nothing found is forgotten. It ends when
//! everything is found, or when the table is full; which of the two it was is its result.
//!
//! | work | comes from | ends as |
//! |---|---|---|
//! | nodes to browse | the walk, refused and lost calls | references in the walk, continuation points, or a failure |
//! | continuation points | browse answers | references in the walk; invalid ones: their node is browsed again, a few times |
//! | variables to read | references whose turn it was | variables handed out |

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use opcua::types::{
    BrowseNextRequest, BrowseRequest, BrowseResult, ByteString, StatusCode, TimestampsToReturn, ViewDescription,
};

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

/// After this long without an answer a call is made again.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// References per node and answer; a wider node is continued.
const REFERENCES_PER_ANSWER: u32 = 5_000;

/// How often a node is begun anew since the server has lost or refused a place in its references. After that it is asked
/// once more, for all references in one answer.
const STARTS_MAX: u8 = 5;

/// References of one node in a row that lead to no node that is not known. A node that is begun anew may have many of
/// them; beyond this the server answers in a circle.
const FRUITLESS_MAX: usize = 1_000_000;

/// An answer without a reference that is not the last one counts as so many.
const EMPTY_ANSWER: usize = 10_000;

/// How often a node that is asked for alone may be left unanswered before it has failed.
const SILENCES_MAX: u8 = 3;

/// Whoever owns the connection needs a moment to notice its loss.
const PAUSE_AFTER_LOSS: Duration = Duration::from_millis(100);

/// A server that does nothing at the moment is asked again after this time.
const PAUSE_AFTER_REFUSAL: Duration = Duration::from_secs(1);

/// A node being browsed, with its place in the order.
type Turn = (Ticket, NodeIndex);

/// What another pass begins with.
#[derive(Debug, Default)]
pub(super) struct BrowseSeeds {
    pub browse: Vec<NodeIndex>,
    /// Variables of which nothing is known but their NodeID.
    pub read: Vec<NodeIndex>,
}

/// How far a pass got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BrowseExtent {
    Everything,
    /// The table was full before: what it lacks may be in the server.
    TheLimit,
}

enum BrowseCallResult {
    Browsed(Vec<Turn>, Result<Vec<BrowseResult>, CallError>),
    Continued(Vec<(Turn, ByteString)>, Result<Vec<BrowseResult>, CallError>),
    Read(Vec<NodeIndex>, Result<Vec<DataValue>, CallError>),
    /// Continuation points were given back.
    Released {
        lost: bool,
    },
    /// A pause that takes the place of a call is over.
    Rested,
}

pub(super) struct BrowsePass<'a> {
    context: &'a BrowseContext,
    walk: Walk,
    again: VecDeque<Turn>,
    /// Nodes for which the server had no continuation point left; they wait until all are given back.
    starved: VecDeque<Turn>,
    /// Nodes whose references the server does not manage to divide; they are asked for alone and whole.
    whole: VecDeque<Turn>,
    /// A node is being asked for alone.
    alone: bool,
    /// How often each node was begun anew on this connection.
    starts: hashbrown::HashMap<NodeIndex, u8>,
    /// How often each was asked for alone and not answered.
    silences: hashbrown::HashMap<NodeIndex, u8>,
    /// How many references in a row have led nowhere.
    fruitless: hashbrown::HashMap<NodeIndex, usize>,
    points: VecDeque<(Turn, ByteString)>,
    points_in_flight: usize,
    points_max: usize,
    to_read: VecDeque<NodeIndex>,
    /// The table up to here has been looked through for variables.
    seen: NodeIndex,
    /// Something was left out, since the table was full at that moment. It may have room again, by an input that is gone.
    is_cut_short: bool,
    pace: ConcurrencyLimit,
    browse_chunk: CallSize,
    read_chunk: CallSize,
    call_timeout: Duration,
    calls: FuturesUnordered<BoxFuture<'static, (BrowseCallResult, Duration, usize)>>,
    references_per_answer: u32,
}

impl<'a> BrowsePass<'a> {
    /// A pass over the whole table as it is and grows.
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

    /// A pass over some nodes of a table that was walked before, and over whatever they lead to.
    pub fn again(context: &'a BrowseContext, connected: &ConnectedServer, nodes: BrowseSeeds) -> BrowsePass<'a> {
        let mut survey = BrowsePass::new(context, connected);
        let walked = context.table.read().len() as NodeIndex;
        survey.walk = Walk::starting_at(walked);
        survey.seen = walked;
        for node in nodes.browse {
            let turn = (survey.walk.enter(node), node);
            survey.again.push_back(turn);
        }
        survey.to_read.extend(nodes.read);
        survey
    }

    /// Runs to the end, over as many connections as it takes. `ready` gets variables whose attributes are known.
    pub async fn run(mut self, ready: &mut (dyn FnMut(Vec<NodeIndex>) + Send)) -> BrowseExtent {
        let mut connected = self.context.connected().await;
        loop {
            self.apply();
            self.issue(&connected.session);
            self.show();
            if self.calls.is_empty() && self.is_done() {
                return self.reached();
            }
            // With nothing in flight nothing could be issued: the connection is gone.
            let lost = match self.calls.next().await {
                Some((done, latency, operations)) => self.settle(done, latency, operations, ready),
                None => true,
            };
            if lost {
                // Places in a node's references may go with the connection, and answers do; that says nothing of the server.
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

    /// What was learnt of the limits of a server says nothing of the next one.
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

    /// Nodes that were not handed out may lead to others, and were left out then, too.
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

    /// Applies references whose turn it is, and finds the variables among the new nodes.
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
        // With nothing else on its way, what a node is refused is not taken by another.
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
        // Full calls while there is more to come, whatever is there at the end.
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
        let start = Instant::now();
        self.calls
            .push(Box::pin(async move { (call.await, start.elapsed(), operations) }));
    }

    /// Takes over one answer. True if the connection is gone.
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
            let text = "the server goes on without end with references that lead to no further node";
            self.failed(turn, StatusCode::BadUnknownResponse.bits(), Some(text.to_owned()));
        } else {
            self.points.push_back((turn, point));
        }
    }

    /// Whether a node is continued in vain for too long.
    fn leads_nowhere(&mut self, node: NodeIndex, is_empty: bool) -> bool {
        if is_empty {
            *self.fruitless.entry(node).or_insert(0) += EMPTY_ANSWER;
        }
        self.fruitless.get(&node).is_some_and(|count| *count > FRUITLESS_MAX)
    }

    /// The server has no place left to keep how far it got with this node, or has lost it: from the start, what is known
    /// is not added again.
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
            // One node whose answer is too large: fewer references at a time.
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

    /// What to do with the operations of a failed call, and how large and how many calls are from now on.
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

    /// A node that was asked for alone was not answered. True if it has been given enough time.
    fn is_silent_again(&mut self, node: NodeIndex) -> bool {
        let silences = self.silences.entry(node).or_insert(0);
        *silences += 1;
        let is_enough = *silences >= SILENCES_MAX;
        if is_enough {
            self.silences.remove(&node);
        }
        is_enough
    }

    /// One call fewer for a while.
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

    /// The node that all others wait for is refused a continuation point, and theirs are not followed: they give them
    /// back and begin anew when there is room for what they lead to.
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

    /// Gives back continuation points that nobody will follow. The answer is of no interest.
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

    /// The request that gives back all continuation points, with the nodes that held them; `None` if there are none.
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
    /// The same again, in smaller parts if calls are smaller now, on another connection if this one is lost.
    Again { lost: bool },
    /// No other division helps.
    Failed,
}

/// What a call was about.
struct BrowseCallScope {
    /// The only node of the call: it cannot be divided.
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

/// Whether fewer references of one node may be what the server can answer.
fn is_answer_too_large(error: &CallError) -> bool {
    error.is_too_large() && !matches!(error, CallError::WrongCount { .. })
}

fn browse_chunk(connected: &ConnectedServer) -> CallSize {
    let (limits, profile) = (connected.facts.limits, connected.profile);
    CallSize::new(limits.nodes_per_browse, profile.items_per_call, profile.adaptive)
}

/// Of attributes, as servers count them, not of nodes.
fn read_chunk(connected: &ConnectedServer) -> CallSize {
    let (limits, profile) = (connected.facts.limits, connected.profile);
    CallSize::new(limits.nodes_per_read, profile.items_per_call, profile.adaptive)
}

/// Continuation points that the server keeps for one client.
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
