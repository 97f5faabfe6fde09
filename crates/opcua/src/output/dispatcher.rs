//! Sends values to the server and, with the handshake, reads them back, for all writes of the flow together.
//!
//! Operations on different nodes are sent together, in as few calls as the server accepts: one Write and one Read at a
//! time, so that values stay in order. If the server is slow to respond to a call, the other operations stop waiting
//! for it, and its nodes use separate calls from then on. Temporary failures are retried here and not by the flow,
//! which would write nothing else meanwhile.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use opcua::types::NodeId;
use thalweg_flow::BoxFuture;
use thalweg_kit::backoff::Backoff;
use thalweg_kit::clock;
use thalweg_record::DropReason;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::held_up_nodes::HeldUpNodes;
use super::node_queues::{NodeQueues, OperationId, WriteJob};
use super::prepare::prepare;
use super::schedule::Schedule;
use super::slow::SlowNodes;
use super::write_failure::{WriteFailure, difference, refusal};
use super::write_session::{AttributeService, WriteSession, WriteTarget};
use crate::backoff::backoff_up_to;
use crate::channel::CallError;
use crate::config::OutputConfig;
use crate::namespace_array::NamespaceArray;
use crate::server_facts;
use crate::value::{DataValue, status};

/// Maximum concurrent calls for slow nodes.
const APART_MAX: usize = 8;

/// Maximum calls that nothing waits for any longer; with this many, the server is slow altogether.
const OVERDUE_MAX: usize = 8;

/// Maximum writes of the flow that are accepted together before anything is sent.
const JOBS_JOINED: usize = 256;

/// The intervals and timeouts of the dispatcher.
#[derive(Clone, Debug)]
pub(super) struct DispatchTiming {
    /// Between two reads of a value that does not equal the written one yet.
    pub look: Duration,
    /// After temporary failures: 100 ms doubling to 5 s, as everywhere.
    pub backoff: Backoff,
    /// How long others wait for a response before they continue without it.
    pub patience: Duration,
    /// Between two reads of the server's namespaces.
    pub namespaces: Duration,
    /// If no value was accepted for this long, the output is not ready.
    pub standstill: Duration,
}

impl Default for DispatchTiming {
    fn default() -> DispatchTiming {
        DispatchTiming {
            look: Duration::from_millis(50),
            backoff: backoff_up_to(Duration::from_millis(100), Duration::from_secs(5)),
            patience: Duration::from_secs(1),
            namespaces: Duration::from_secs(10),
            standstill: Duration::from_secs(10),
        }
    }
}

/// A request at the server.
struct Call {
    service: AttributeService,
    operations: Vec<OperationId>,
    targets: Arc<[WriteTarget]>,
    since: Instant,
    /// Whether it is for slow nodes.
    is_apart: bool,
    is_overdue: bool,
}

/// A response of the server, with its call.
enum DispatchAnswer {
    Written(u64, Result<Vec<u32>, CallError>),
    Read(u64, Result<Vec<DataValue>, CallError>),
    Namespaces(Result<NamespaceArray, CallError>),
}

/// What is known about the server's namespaces.
struct NamespaceCache {
    known: NamespaceArray,
    read_at: Instant,
    /// URIs that were not found in the last read.
    missing: HashSet<String>,
    /// Set while the namespaces are being read, for the operations before this one.
    asked_for: Option<OperationId>,
}

pub(super) struct WriteDispatcher {
    config: Arc<OutputConfig>,
    pace: DispatchTiming,
    report: HeldUpNodes,
    server: Option<Arc<WriteSession>>,
    namespaces: NamespaceCache,
    lines: NodeQueues,
    schedule: Schedule,
    slow: SlowNodes,
    calls: HashMap<u64, Call>,
    last_call: u64,
    answers: FuturesUnordered<BoxFuture<'static, DispatchAnswer>>,
}

impl WriteDispatcher {
    pub fn new(config: Arc<OutputConfig>, pace: DispatchTiming, report: HeldUpNodes) -> WriteDispatcher {
        WriteDispatcher {
            config,
            report,
            server: None,
            namespaces: NamespaceCache::new(NamespaceArray::default()),
            lines: NodeQueues::default(),
            schedule: Schedule::new(pace.backoff.clone()),
            slow: SlowNodes::new(pace.patience),
            calls: HashMap::new(),
            last_call: 0,
            answers: FuturesUnordered::new(),
            pace,
        }
    }

    /// Runs until the stop; writes that have not ended then get no result. Without a session, no message is rejected.
    pub async fn run(
        mut self,
        mut jobs: mpsc::UnboundedReceiver<WriteJob>,
        mut servers: watch::Receiver<Option<Arc<WriteSession>>>,
        stop: CancellationToken,
    ) {
        servers.mark_changed();
        loop {
            self.call();
            let next = self.next_due();
            let due = async {
                match next {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = servers.changed() => match changed {
                    Ok(()) => self.take_over(servers.borrow_and_update().clone()),
                    Err(_) => return,
                },
                Some(answer) = self.answers.next() => self.answered(answer),
                job = jobs.recv(), if self.server.is_some() => match job {
                    Some(job) => self.add(job, || jobs.try_recv().ok()),
                    None => return,
                },
                () = due => self.wake(clock::tokio_now()),
            }
        }
    }

    /// Switches to another session, or to none. Operations in progress in the previous one are repeated.
    fn take_over(&mut self, server: Option<Arc<WriteSession>>) {
        let patience = self.slow.patience();
        for call in self.calls.drain().map(|(_, call)| call) {
            // This call may have caused the loss of the session.
            if call.since.elapsed() >= patience {
                self.slow.unanswered(call.nodes());
            }
        }
        self.answers = FuturesUnordered::new();
        self.schedule.clear();
        self.slow.new_session();
        self.report.nothing_held_up();
        if let Some(server) = &server {
            self.report.taken();
            self.namespaces = NamespaceCache::new(server.namespaces.clone());
            self.lines.restart(&server.namespaces);
        }
        self.server = server;
    }

    fn add(&mut self, job: WriteJob, more: impl FnMut() -> Option<WriteJob>) {
        let jobs = std::iter::once(job).chain(std::iter::from_fn(more));
        for WriteJob { messages, done } in jobs.take(JOBS_JOINED) {
            let wanted = prepare(&messages, &self.config.mappings);
            self.lines.add(done, wanted, &self.namespaces.known);
        }
        // The namespaces are read again when due; until then the known ones are valid.
        if self.lines.misses_namespaces() && clock::tokio_now() < self.namespaces.read_at + self.pace.namespaces {
            let missing = &self.namespaces.missing;
            self.lines.refuse_homeless(|_, uri| missing.contains(uri));
        }
    }

    /// Returns the server, while it can be called.
    fn live(&self) -> Option<&Arc<WriteSession>> {
        self.server
            .as_ref()
            .filter(|server| !server.session.channel().is_closed())
    }

    fn next_due(&self) -> Option<Instant> {
        self.live()?;
        let patience = self.slow.patience();
        let waited_for = self.calls.values().filter(|call| call.is_waited_for());
        let overdue = waited_for.map(|call| call.since + patience);
        let namespaces = self
            .asks_for_namespaces()
            .then(|| self.namespaces.read_at + self.pace.namespaces);
        overdue.chain(namespaces).chain(self.schedule.next_due()).min()
    }

    fn wake(&mut self, now: Instant) {
        self.schedule.wake(now);
        let patience = self.slow.patience();
        for call in self.calls.values_mut() {
            if call.is_waited_for() && now >= call.since + patience {
                call.is_overdue = true;
                self.slow.unanswered(call.nodes());
            }
        }
    }

    /// Sends what can be sent now.
    fn call(&mut self) {
        let Some(server) = self.live().cloned() else { return };
        let now = clock::tokio_now();
        for id in self.lines.begin() {
            self.schedule.begin(id, now);
        }
        for service in [AttributeService::Write, AttributeService::Read] {
            let overdue = self.calls.values().filter(|call| call.is_overdue).count();
            let is_free = !self
                .calls
                .values()
                .any(|call| call.service == service && call.is_waited_for());
            if is_free && overdue < OVERDUE_MAX {
                self.send(&server, service, false);
            }
            while self.calls.values().filter(|call| call.is_apart).count() < APART_MAX
                && self.send(&server, service, true)
            {}
        }
        if self.asks_for_namespaces() && now >= self.namespaces.read_at + self.pace.namespaces {
            self.ask_for_namespaces(server);
        }
    }

    /// Returns false if there is nothing to send.
    fn send(&mut self, server: &Arc<WriteSession>, service: AttributeService, is_apart: bool) -> bool {
        let ready = self.schedule.ready(service);
        let candidates = ready.filter_map(|id| Some((id, self.lines.node(id)?)));
        let operations = self.slow.pick(candidates, server.per_call(service), is_apart);
        if operations.is_empty() {
            return false;
        }
        let targets: Arc<[WriteTarget]> = operations.iter().filter_map(|id| self.lines.target(*id)).collect();
        operations.iter().for_each(|id| self.schedule.in_call(*id));
        let call = Call {
            service,
            operations,
            targets: targets.clone(),
            since: clock::tokio_now(),
            is_apart,
            is_overdue: false,
        };
        self.last_call += 1;
        self.calls.insert(self.last_call, call);
        let (call, server) = (self.last_call, server.clone());
        self.answers.push(Box::pin(async move {
            match service {
                AttributeService::Write => DispatchAnswer::Written(call, server.write_some(&targets).await),
                AttributeService::Read => DispatchAnswer::Read(call, server.read_some(&targets).await),
            }
        }));
        true
    }

    fn answered(&mut self, answer: DispatchAnswer) {
        match answer {
            DispatchAnswer::Written(call, said) => {
                let Some((call, statuses)) = self.ended(call, said) else {
                    return;
                };
                let written = call.operations.iter().zip(call.targets.iter()).zip(statuses);
                written.for_each(|((id, target), status)| self.written(*id, refusal(target, status)));
            }
            DispatchAnswer::Read(call, said) => {
                let Some((call, values)) = self.ended(call, said) else {
                    return;
                };
                let read = call.operations.iter().zip(call.targets.iter()).zip(values);
                read.for_each(|((id, target), value)| self.looked_at(*id, call.since, difference(target, &value)));
            }
            DispatchAnswer::Namespaces(read) => self.namespaces_read(read),
        }
    }

    /// Returns a call with its results, which may cover only the first of its nodes.
    fn ended<T>(&mut self, call: u64, said: Result<Vec<T>, CallError>) -> Option<(Call, Vec<T>)> {
        let call = self.calls.remove(&call)?;
        match said {
            Ok(answers) => {
                self.slow.answered(call.nodes(), call.since.elapsed());
                for &id in call.operations.iter().skip(answers.len()) {
                    self.schedule.at_once(id, call.service);
                    self.pass_if_over(id);
                }
                Some((call, answers))
            }
            Err(error) => {
                if matches!(error, CallError::Timeout(_)) {
                    self.slow.unanswered(call.nodes());
                }
                self.call_failed(&call.operations, &error);
                None
            }
        }
    }

    fn written(&mut self, id: OperationId, failure: Option<WriteFailure>) {
        match (failure, self.config.handshake) {
            (Some(failure), _) => self.failed(id, failure),
            (None, Some(handshake)) => {
                self.schedule
                    .read_back(id, clock::tokio_now() + handshake.readback_timeout);
                self.pass_if_over(id);
            }
            (None, None) => self.succeeded(id),
        }
    }

    /// `asked_at` is the time before the value was read, so that it is read once more at the very end.
    fn looked_at(&mut self, id: OperationId, asked_at: Instant, failure: Option<WriteFailure>) {
        let until = self.schedule.read_until(id).unwrap_or(asked_at);
        match failure {
            None => self.succeeded(id),
            Some(failure) if !failure.again || asked_at >= until => self.failed(id, failure),
            Some(_) => {
                self.schedule
                    .look_again(id, until.min(clock::tokio_now() + self.pace.look));
                self.pass_if_over(id);
            }
        }
    }

    fn call_failed(&mut self, operations: &[OperationId], error: &CallError) {
        if let (Some(server), true) = (&self.server, error.status().is_some_and(status::says_session_gone)) {
            // This notifies the session supervisor.
            server.session.channel().close(&error.to_string());
        }
        if self.live().is_none() {
            // Everything starts over with the next session.
            return;
        }
        operations
            .iter()
            .for_each(|id| self.failed(*id, WriteFailure::of_call(error)));
    }

    fn failed(&mut self, id: OperationId, failure: WriteFailure) {
        if self.pass_if_over(id) {
            return;
        }
        let handshake = self.config.handshake;
        let (attempts_max, pause) = handshake.map_or((1, Duration::ZERO), |h| (h.attempts_max, h.pause));
        if failure.again && self.schedule.try_again(id, attempts_max, clock::tokio_now() + pause) {
            return;
        }
        match failure.permanent {
            Some(reason) => self.refuse(id, reason, failure.error),
            None => self.failed_for_now(id, failure),
        }
    }

    fn failed_for_now(&mut self, id: OperationId, failure: WriteFailure) {
        let since = self.lines.since(id);
        let limit = self
            .config
            .give_up_after
            .filter(|limit| since.is_some_and(|since| since.elapsed() >= *limit));
        if let Some(limit) = limit {
            return self.give_up(id, &failure.error, limit);
        }
        self.schedule.try_later(id, clock::tokio_now());
        self.report.held_up(id, failure, self.pace.standstill);
    }

    /// Rejects a value that was not accepted for this long, and the values that have waited as long behind it without
    /// an attempt: without a response, each would take the full timeout of a request, and the queue would only grow.
    fn give_up(&mut self, id: OperationId, why: &str, limit: Duration) {
        let behind = self.lines.waiting_behind(id, limit);
        let after = given_up_after(limit);
        self.refuse(id, DropReason::OutputRejected, format!("{why}; {after}"));
        for id in behind {
            let error = format!("an earlier value of the node was not accepted: {why}; {after}");
            self.refuse(id, DropReason::OutputRejected, error);
        }
    }

    /// Whether the message of an operation was rejected meanwhile: then the operation is removed.
    fn pass_if_over(&mut self, id: OperationId) -> bool {
        let is_over = !self.lines.is_open(id);
        if is_over {
            self.end(id);
            self.lines.leave(id);
        }
        is_over
    }

    fn succeeded(&mut self, id: OperationId) {
        self.end(id);
        self.report.taken();
        self.lines.succeed(id);
    }

    fn refuse(&mut self, id: OperationId, reason: DropReason, error: String) {
        self.end(id);
        self.report.taken();
        for other in self.lines.refuse(id, reason, error) {
            if self.schedule.cancel(other) {
                self.report.released(other);
                self.lines.leave(other);
            }
        }
    }

    fn end(&mut self, id: OperationId) {
        self.schedule.end(id);
        self.report.released(id);
    }

    fn asks_for_namespaces(&self) -> bool {
        self.namespaces.asked_for.is_none() && self.lines.misses_namespaces()
    }

    fn ask_for_namespaces(&mut self, server: Arc<WriteSession>) {
        self.namespaces.asked_for = Some(self.lines.next_id());
        self.answers.push(Box::pin(async move {
            DispatchAnswer::Namespaces(server_facts::namespaces(&server.session).await)
        }));
    }

    fn namespaces_read(&mut self, read: Result<NamespaceArray, CallError>) {
        let asked_for = self.namespaces.asked_for.take().unwrap_or_default();
        self.namespaces.read_at = clock::tokio_now();
        self.namespaces.missing.clear();
        match read {
            Ok(known) if !known.is_empty() => {
                self.lines.look_up(&known);
                let missing = self.lines.refuse_homeless(|id, _| id < asked_for);
                self.namespaces.missing.extend(missing);
                self.namespaces.known = known;
            }
            // Without a list of namespaces, no message is rejected until it has waited too long.
            _ => {
                self.report.no_namespaces();
                if let (Some(limit), true) = (self.config.give_up_after, self.live().is_some()) {
                    let why = format!("the server's namespaces cannot be read; {}", given_up_after(limit));
                    self.lines.give_up_homeless(limit, &why);
                }
            }
        }
    }
}

fn given_up_after(limit: Duration) -> String {
    format!("given up after {} ms", limit.as_millis())
}

impl Call {
    fn nodes(&self) -> impl ExactSizeIterator<Item = &NodeId> {
        self.targets.iter().map(|target| &target.node)
    }

    /// Whether later calls of its service wait for it.
    fn is_waited_for(&self) -> bool {
        !self.is_apart && !self.is_overdue
    }
}

impl NamespaceCache {
    fn new(known: NamespaceArray) -> NamespaceCache {
        NamespaceCache {
            known,
            read_at: clock::tokio_now(),
            missing: HashSet::new(),
            asked_for: None,
        }
    }
}
