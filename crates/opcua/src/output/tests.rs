//! Writes to a server that behaves as a test defines; checks the requests it receives.

use std::collections::{HashMap, HashSet, VecDeque};

use opcua::core::{RequestMessage, ResponseMessage};
use opcua::types::{
    DataValue as UaDataValue, NodeId, ReadRequest, ReadResponse, StatusCode, Variant, WriteRequest, WriteResponse,
};
use std::time::Duration;

use thalweg_config::{Diagnostics, Node};
use thalweg_flow::{ParseContext, Rejection};
use thalweg_record::{DropReason, Ticks};

use super::*;
use crate::backoff::backoff_up_to;
use crate::fake_server::{FakeServer, component, fault, good, session};
use crate::profile;
use crate::server_facts::{OperationLimits, ServerFacts};

/// The server's values, its faults, and the requests it received.
#[derive(Default)]
struct Plant {
    values: HashMap<NodeId, Variant>,
    /// Statuses of the first writes to a node, before it accepts one.
    refusals: HashMap<NodeId, VecDeque<StatusCode>>,
    /// Nodes that accept every write and keep their value.
    stuck: HashSet<NodeId>,
    /// Calls with such a node are not answered.
    silent: HashSet<NodeId>,
    /// Number of reads of a node that still return the old value after a write.
    late: HashMap<NodeId, (usize, Variant)>,
    /// The server's namespaces, one list per query; empty means no response.
    namespaces: VecDeque<Vec<&'static str>>,
    /// Nodes per call; 0 means no limit.
    per_call_max: usize,
    /// Results per response; 0 means as many as operations in the call.
    results_max: usize,
    /// Responses to whole Writes, before any is executed.
    faults: VecDeque<Option<StatusCode>>,
    /// The executed Writes.
    writes: Vec<Vec<(NodeId, Variant)>>,
    reads: usize,
}

impl Plant {
    fn answer(&mut self, request: &RequestMessage) -> Option<ResponseMessage> {
        match request {
            RequestMessage::Write(request) => {
                let nodes = request.nodes_to_write.iter().flatten();
                let is_silent = nodes.into_iter().any(|write| self.silent.contains(&write.node_id));
                (!is_silent).then(|| self.write(request))
            }
            RequestMessage::Read(request) => Some(self.read(request)),
            _ => None,
        }
    }

    fn write(&mut self, request: &WriteRequest) -> ResponseMessage {
        let wanted = request.nodes_to_write.clone().unwrap_or_default();
        if self.per_call_max > 0 && wanted.len() > self.per_call_max {
            return fault(StatusCode::BadTooManyOperations);
        }
        if let Some(status) = self.faults.pop_front().flatten() {
            return fault(status);
        }
        let written = wanted
            .iter()
            .map(|write| (write.node_id.clone(), write.value.value.clone().unwrap()));
        self.writes.push(written.collect());
        let results = self.writes.last().cloned().unwrap_or_default().into_iter();
        let results = results.map(|(node, value)| {
            let refusal = self.refusals.get_mut(&node).and_then(VecDeque::pop_front);
            if refusal.is_none() && !self.stuck.contains(&node) {
                self.values.insert(node, value);
            }
            refusal.unwrap_or(StatusCode::Good)
        });
        WriteResponse {
            results: Some(short(results.collect(), self.results_max)),
            response_header: good(),
            diagnostic_infos: None,
        }
        .into()
    }

    fn read(&mut self, request: &ReadRequest) -> ResponseMessage {
        let wanted = request.nodes_to_read.clone().unwrap_or_default();
        let namespace_array = NodeId::new(0, 2255u32);
        if wanted.iter().any(|read| read.node_id == namespace_array) {
            let uris = self
                .namespaces
                .pop_front()
                .map(|uris| Variant::from(uris.into_iter().map(str::to_owned).collect::<Vec<String>>()));
            self.values.extend(uris.map(|uris| (namespace_array, uris)));
        } else {
            self.reads += 1;
        }
        let values = wanted.iter().map(|read| {
            let late = self.late.get_mut(&read.node_id).filter(|(reads, _)| *reads > 0);
            let value = match late {
                Some((reads, old)) => {
                    *reads -= 1;
                    Some(old.clone())
                }
                None => self.values.get(&read.node_id).cloned(),
            };
            UaDataValue {
                value,
                ..UaDataValue::default()
            }
        });
        ReadResponse {
            results: Some(short(values.collect(), self.results_max)),
            response_header: good(),
            diagnostic_infos: None,
        }
        .into()
    }
}

/// Truncates the results to `max`, if given.
fn short<T>(mut results: Vec<T>, max: usize) -> Vec<T> {
    if max > 0 {
        results.truncate(max);
    }
    results
}

/// Options of the output under test.
struct Options {
    /// The server's reported limit of nodes per call; 0 means none.
    limit: u32,
    /// The fields inside the braces of `handshake`.
    handshake: &'static str,
    /// Further fields.
    more: &'static str,
    pace: DispatchTiming,
    /// Timeout of a call.
    answer_within: Duration,
}

const UNCHECKED: &str = "enabled: false";

impl Default for Options {
    fn default() -> Options {
        Options {
            limit: 0,
            handshake: UNCHECKED,
            more: "",
            pace: DispatchTiming {
                backoff: backoff_up_to(Duration::from_millis(1), Duration::from_millis(10)),
                namespaces: Duration::ZERO,
                ..DispatchTiming::default()
            },
            answer_within: Duration::from_secs(10),
        }
    }
}

/// A handshake with this many attempts.
fn checked(attempts_max: usize) -> Options {
    let handshakes = [
        "readbackTimeoutMs: 200",
        "readbackTimeoutMs: 200, maxWriteAttempts: 2, timeBetweenRetriesMs: 1",
        "readbackTimeoutMs: 200, maxWriteAttempts: 3, timeBetweenRetriesMs: 1",
    ];
    Options {
        handshake: handshakes[attempts_max - 1],
        ..Options::default()
    }
}

/// A session on a server, and a dispatcher.
struct Setup {
    plant: Arc<Mutex<Plant>>,
    fake: FakeServer,
    facts: ServerFacts,
    answer_within: Duration,
    server: watch::Sender<Option<Arc<WriteSession>>>,
    jobs: mpsc::UnboundedSender<WriteJob>,
    component: thalweg_flow::Component,
    /// Why no write succeeds.
    stands: Arc<Mutex<Option<String>>>,
    _stop: DropGuard,
}

/// The result of a write in progress.
type Ending = oneshot::Receiver<Result<(), WriteError>>;

impl Setup {
    /// `mappings`: node and field of each.
    async fn new(plant: Plant, options: Options, mappings: &[(&str, &str)]) -> Setup {
        let plant = Arc::new(Mutex::new(plant));
        let answering = plant.clone();
        let fake = FakeServer::start(move |request| answering.lock().answer(request)).await;
        let facts = ServerFacts {
            limits: OperationLimits {
                nodes_per_write: options.limit,
                nodes_per_read: options.limit,
                ..OperationLimits::default()
            },
            product: None,
            namespaces: ["http://opcfoundation.org/UA/"].into(),
            start_time: Ticks::MISSING,
        };
        let (server, component, stop) = (watch::Sender::new(None), component(), CancellationToken::new());
        let stands: Arc<Mutex<Option<String>>> = Arc::default();
        let told = stands.clone();
        let report = HeldUpNodes::new(
            component.clone(),
            move |why| *told.lock() = Some(why.to_owned()),
            Arc::default(),
        );
        let (jobs, receiver) = mpsc::unbounded_channel();
        let dispatcher = WriteDispatcher::new(Arc::new(config(&options, mappings)), options.pace, report);
        tokio::spawn(dispatcher.run(receiver, server.subscribe(), stop.clone()));
        let setup = Setup {
            plant,
            fake,
            facts,
            answer_within: options.answer_within,
            server,
            jobs,
            component,
            stands,
            _stop: stop.drop_guard(),
        };
        setup.connect().await;
        setup
    }

    /// One mapping per member, to the node of the same name.
    async fn of_members(plant: Plant, options: Options, names: &[&str]) -> Setup {
        let nodes: Vec<String> = names.iter().map(|name| format!("ns=2;s={name}")).collect();
        let mappings: Vec<(&str, &str)> = nodes.iter().map(String::as_str).zip(names.iter().copied()).collect();
        Setup::new(plant, options, &mappings).await
    }

    /// Each message names its own node.
    async fn of_messages(plant: Plant, options: Options) -> Setup {
        Setup::new(plant, options, &[("${! json(\"node\") }", "v")]).await
    }

    /// Opens a new session in place of the previous one.
    async fn connect(&self) {
        let profile = profile::ProfileName::Auto.profile();
        let session = session(&self.fake.url).await;
        let server = WriteSession::new(session, self.facts.clone(), &profile, self.answer_within);
        self.server.send_replace(Some(Arc::new(server)));
    }

    fn begin(&self, messages: &[&str]) -> Ending {
        let messages: Vec<Message> = messages.iter().map(|text| Message::raw((*text).to_owned())).collect();
        let (done, ending) = oneshot::channel();
        let messages = Arc::new(messages);
        assert!(self.jobs.send(WriteJob { messages, done }).is_ok());
        ending
    }

    /// Returns the rejections.
    async fn write(&self, messages: &[&str]) -> Vec<Rejection> {
        rejections(self.begin(messages)).await
    }

    /// Returns the one rejection of a write.
    async fn refused(&self, messages: &[&str]) -> (usize, DropReason, String) {
        match self.write(messages).await.as_slice() {
            [
                Rejection {
                    index,
                    permanent: Some(reason),
                    error,
                },
            ] => (*index, *reason, error.clone()),
            other => panic!("{other:?}"),
        }
    }

    /// The values of each executed Write, in order.
    fn written(&self) -> Vec<Vec<i32>> {
        let plant = self.plant.lock();
        let value = |(_, value): &(NodeId, Variant)| match value {
            Variant::Int32(n) => *n,
            other => panic!("{other:?}"),
        };
        let writes = plant.writes.iter();
        writes.map(|write| write.iter().map(value).collect()).collect()
    }

    fn value(&self, name: &str) -> Option<Variant> {
        self.plant.lock().values.get(&node(name)).cloned()
    }

    async fn until(&self, holds: impl Fn(&Setup) -> bool) {
        for _ in 0..60_000 {
            if holds(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("it never came\n{}", self.component.metrics.text());
    }
}

async fn rejections(ending: Ending) -> Vec<Rejection> {
    match ending.await.unwrap() {
        Ok(()) => Vec::new(),
        Err(WriteError::Some(rejections)) => rejections,
        Err(other) => panic!("{other:?}"),
    }
}

fn config(options: &Options, mappings: &[(&str, &str)]) -> OutputConfig {
    let mut yaml = format!(
        "endpoint: opc.tcp://plc:4840\nhandshake: {{{}}}\n{}\nnodeMappings:\n",
        options.handshake, options.more
    );
    for (node, field) in mappings {
        yaml.push_str(&format!(
            "  - {{nodeId: '{node}', valueFrom: '{field}', dataType: Int32}}\n"
        ));
    }
    let diagnostics = Diagnostics::new("flow.yaml");
    let (registry, whole) = (ComponentRegistry::new(), thalweg_config::Config::default());
    let context = ParseContext::new(&diagnostics, &registry, &whole);
    let config = OutputConfig::parse(&Node::parse(&yaml).unwrap(), &context);
    config.unwrap_or_else(|| panic!("{yaml}\n{diagnostics}"))
}

fn node(name: &str) -> NodeId {
    NodeId::new(2, name)
}

/// Names of nodes, and a message with a value for each.
fn numbered(n: usize) -> (Vec<String>, String) {
    let names: Vec<String> = (0..n).map(|i| format!("N{i}")).collect();
    let members: Vec<String> = (0..n).map(|i| format!("\"N{i}\": {i}")).collect();
    (names, format!("{{{}}}", members.join(", ")))
}

/// A message with a value for one node.
fn to(name: &str, value: i32) -> String {
    format!(r#"{{"node": "ns=2;s={name}", "v": {value}}}"#)
}

fn refusing(name: &str, statuses: impl IntoIterator<Item = StatusCode>) -> Plant {
    Plant {
        refusals: HashMap::from([(node(name), statuses.into_iter().collect())]),
        ..Plant::default()
    }
}

/// A node that keeps this value whatever is written.
fn stuck(name: &str, value: Variant) -> Plant {
    Plant {
        stuck: HashSet::from([node(name)]),
        values: HashMap::from([(node(name), value)]),
        ..Plant::default()
    }
}

async fn five_nodes(plant: Plant, options: Options) -> Setup {
    let (names, message) = numbered(5);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let setup = Setup::of_members(plant, options, &names).await;
    assert!(setup.write(&[&message]).await.is_empty());
    setup
}

#[tokio::test]
async fn values_go_in_order_in_as_few_writes_as_the_server_takes() {
    let options = Options { limit: 2, ..checked(1) };
    let setup = five_nodes(Plant::default(), options).await;
    assert_eq!(setup.written(), [vec![0, 1], vec![2, 3], vec![4]]);
    assert_eq!(setup.plant.lock().reads, 3);
}

#[tokio::test]
async fn a_write_that_is_refused_as_too_large_is_halved_and_repeated() {
    let plant = Plant {
        per_call_max: 2,
        ..Plant::default()
    };
    let setup = five_nodes(plant, Options::default()).await;
    assert_eq!(setup.written(), [vec![0, 1], vec![2, 3], vec![4]]);
}

/// A value that was written without a response is written again: the same value, and before any later one of its node.
#[tokio::test]
async fn calls_that_are_not_answered_in_full_are_halved_and_repeated() {
    let plant = Plant {
        results_max: 2,
        ..Plant::default()
    };
    let setup = five_nodes(plant, checked(1)).await;
    assert_eq!(setup.written().last().map(Vec::len), Some(1));
    assert!(setup.written().iter().skip(2).all(|call| call.len() <= 2));
    let plant = Plant {
        results_max: 1,
        ..Plant::default()
    };
    let setup = Setup::of_members(plant, checked(1), &["A", "B", "C"]).await;
    for n in 1..=3 {
        let message = format!(r#"{{"A": {n}, "B": {n}, "C": {n}}}"#);
        assert!(setup.write(&[message.as_str()]).await.is_empty());
    }
    assert_eq!(setup.value("C"), Some(Variant::Int32(3)));
}

#[tokio::test]
async fn a_value_that_alone_is_too_large_is_refused_and_the_others_go_on() {
    let plant = Plant {
        faults: VecDeque::from([
            Some(StatusCode::BadRequestTooLarge),
            Some(StatusCode::BadRequestTooLarge),
        ]),
        ..Plant::default()
    };
    let setup = Setup::of_members(plant, Options::default(), &["A", "B"]).await;
    let (index, reason, _) = setup.refused(&[r#"{"A": 1, "B": 1}"#]).await;
    assert_eq!((index, reason), (0, DropReason::TooLarge));
    assert!(setup.write(&[r#"{"A": 2, "B": 3}"#]).await.is_empty());
    assert_eq!(setup.value("A"), Some(Variant::Int32(2)));
}

#[tokio::test]
async fn two_values_of_one_node_are_each_read_back_before_the_next() {
    let messages = [r#"{"A": 1, "B": 1}"#, r#"{"A": 2, "B": 2}"#, r#"{"A": 3, "B": 3}"#];
    // Also without the handshake: a server may execute the operations of one call in any order.
    for options in [checked(1), Options::default()] {
        let setup = Setup::of_members(Plant::default(), options, &["A", "B"]).await;
        assert!(setup.write(&messages).await.is_empty());
        assert_eq!(setup.written(), [[1, 1], [2, 2], [3, 3]]);
    }
}

#[tokio::test]
async fn a_value_that_shows_late_is_waited_for() {
    let plant = Plant {
        late: HashMap::from([(node("A"), (2, Variant::Int32(7)))]),
        ..Plant::default()
    };
    let setup = Setup::of_members(plant, checked(1), &["A", "B"]).await;
    assert!(setup.write(&[r#"{"A": 1, "B": 2}"#]).await.is_empty());
    assert_eq!((setup.written(), setup.plant.lock().reads), (vec![vec![1, 2]], 3));
}

#[tokio::test]
async fn a_value_that_never_shows_is_refused_after_its_attempts() {
    let plant = stuck("A", Variant::Int32(7));
    let setup = Setup::of_members(plant, checked(3), &["A", "B"]).await;
    let messages = [r#"{"A": 1, "B": 2}"#, r#"{"A": 7, "B": 3}"#];
    let (index, reason, error) = setup.refused(&messages).await;
    assert_eq!((index, reason), (0, DropReason::OutputRejected));
    assert!(
        error.starts_with("read-back value 7 does not match written value 1"),
        "{error}"
    );
    // The other node does not wait for it.
    assert_eq!(setup.written(), [vec![1, 2], vec![3], vec![1], vec![1], vec![7]]);
}

#[tokio::test]
async fn a_value_of_another_type_is_not_the_written_one() {
    let setup = Setup::of_members(stuck("A", Variant::Int16(1)), checked(1), &["A"]).await;
    let (.., error) = setup.refused(&[r#"{"A": 1}"#]).await;
    assert_eq!(
        error,
        "read-back value 1 does not match written value 1: ns=2;s=A has the type int16, not int32"
    );
}

#[tokio::test]
async fn what_the_server_refuses_for_good_is_not_tried_again_and_holds_nobody_up() {
    let plant = refusing("A", [StatusCode::BadTypeMismatch]);
    let setup = Setup::of_members(plant, checked(3), &["A"]).await;
    let (index, reason, error) = setup.refused(&[r#"{"A": 1}"#, r#"{"A": 2}"#]).await;
    assert_eq!((index, reason), (0, DropReason::OutputRejected));
    assert!(
        error.starts_with("ns=2;s=A does not accept the value 1: ") && error.contains("BadTypeMismatch"),
        "{error}"
    );
    assert_eq!(setup.written(), [[1], [2]]);
}

#[tokio::test]
async fn what_fails_for_now_is_tried_again_before_what_comes_after_it() {
    let busy = StatusCode::BadNoCommunication;
    // The attempts of the handshake are used up before the device is back.
    let setup = Setup::of_members(refusing("A", [busy; 3]), checked(2), &["A", "B"]).await;
    let messages = [r#"{"A": 1, "B": 1}"#, r#"{"A": 2, "B": 2}"#];
    assert!(setup.write(&messages).await.is_empty());
    let of_a = |plant: &Plant| {
        let writes = plant
            .writes
            .iter()
            .flatten()
            .filter(|(written, _)| *written == node("A"));
        writes.map(|(_, value)| value.clone()).collect::<Vec<_>>()
    };
    assert_eq!(of_a(&setup.plant.lock()), [1, 1, 1, 1, 2].map(Variant::Int32));
    let metrics = &setup.component.metrics;
    assert_eq!(
        metrics.total("thalweg_opcua_writes_repeated_total"),
        1.0,
        "{}",
        metrics.text()
    );
    assert!(
        metrics.text().contains("status=\"BadNoCommunication\""),
        "{}",
        metrics.text()
    );
}

#[tokio::test]
async fn a_node_that_takes_nothing_holds_up_only_its_own_values() {
    let dead = std::iter::repeat_n(StatusCode::BadNoCommunication, 100_000);
    let setup = Setup::of_messages(refusing("Dead", dead), checked(1)).await;
    let waiting = setup.begin(&[&to("Dead", 1), &to("Fine", 1)]);
    for value in 2..20 {
        assert!(setup.write(&[&to("Fine", value)]).await.is_empty());
    }
    assert_eq!(setup.value("Fine"), Some(Variant::Int32(19)));
    let metrics = &setup.component.metrics;
    setup
        .until(|_| metrics.total("thalweg_opcua_nodes_held_up") == 1.0)
        .await;
    let last = setup.begin(&[&to("Dead", 2)]);
    setup.plant.lock().refusals.clear();
    assert!(rejections(waiting).await.is_empty() && rejections(last).await.is_empty());
    assert_eq!(setup.value("Dead"), Some(Variant::Int32(2)));
    assert_eq!(metrics.total("thalweg_opcua_nodes_held_up"), 0.0);
    assert_eq!(*setup.stands.lock(), None);
}

#[tokio::test]
async fn a_node_of_which_the_server_says_nothing_holds_up_only_its_own_values() {
    let plant = Plant {
        silent: HashSet::from([node("Silent")]),
        ..Plant::default()
    };
    let mut options = Options {
        answer_within: Duration::from_millis(300),
        ..Options::default()
    };
    options.pace.patience = Duration::from_millis(20);
    let setup = Setup::of_messages(plant, options).await;
    // In one call at first.
    let waiting = setup.begin(&[&to("Silent", 1), &to("Beside", 1)]);
    assert!(setup.write(&[&to("Fine", 1)]).await.is_empty());
    // The neighbour is written when the call times out, and is then in another call.
    assert!(setup.write(&[&to("Beside", 2)]).await.is_empty());
    for value in 2..20 {
        assert!(
            setup
                .write(&[&to("Beside", value), &to("Fine", value)])
                .await
                .is_empty()
        );
    }
    setup.plant.lock().silent.clear();
    assert!(rejections(waiting).await.is_empty());
    assert_eq!(setup.value("Silent"), Some(Variant::Int32(1)));
    assert_eq!(setup.value("Beside"), Some(Variant::Int32(19)));
}

#[tokio::test]
async fn a_node_that_takes_nothing_for_too_long_is_given_up() {
    let dead = std::iter::repeat_n(StatusCode::BadDeviceFailure, 100_000);
    let options = Options {
        more: "giveUpAfterMs: 20",
        ..Options::default()
    };
    let setup = Setup::of_messages(refusing("Dead", dead), options).await;
    let (index, reason, error) = setup.refused(&[&to("Fine", 1), &to("Dead", 1)]).await;
    assert_eq!((index, reason), (1, DropReason::OutputRejected));
    assert!(
        error.starts_with("ns=2;s=Dead does not accept the value 1: ") && error.ends_with("; given up after 20 ms"),
        "{error}"
    );
    assert_eq!(setup.value("Fine"), Some(Variant::Int32(1)));
}

#[tokio::test]
async fn what_has_waited_as_long_behind_it_is_given_up_without_an_attempt() {
    let dead = std::iter::repeat_n(StatusCode::BadDeviceFailure, 100_000);
    let options = Options {
        more: "giveUpAfterMs: 20",
        ..Options::default()
    };
    let setup = Setup::of_messages(refusing("Dead", dead), options).await;
    let messages: Vec<String> = (1..=50).map(|value| to("Dead", value)).collect();
    let messages: Vec<&str> = messages.iter().map(String::as_str).collect();
    let refused = setup.write(&messages).await;
    assert_eq!(refused.len(), 50);
    for Rejection { index, error, .. } in refused {
        let is_behind = error
            .starts_with("an earlier value of the node was not accepted: ns=2;s=Dead does not accept the value 1: ");
        assert_eq!(is_behind, index > 0, "{error}");
        assert!(error.ends_with("; given up after 20 ms"), "{error}");
    }
    let written = setup.written().concat();
    assert!(written.iter().all(|value| *value == 1), "{written:?}");
    // Later values have their own deadline.
    setup.plant.lock().refusals.clear();
    assert!(setup.write(&[&to("Dead", 51)]).await.is_empty());
    assert_eq!(setup.value("Dead"), Some(Variant::Int32(51)));
}

#[tokio::test]
async fn a_node_of_a_namespace_that_cannot_be_looked_up_for_too_long_is_given_up() {
    let options = Options {
        more: "giveUpAfterMs: 20",
        ..Options::default()
    };
    let setup = Setup::of_messages(Plant::default(), options).await;
    let (index, reason, error) = setup
        .refused(&[&to("A", 7), r#"{"node": "nsu=urn:plant;s=A", "v": 1}"#])
        .await;
    assert_eq!((index, reason), (1, DropReason::OutputRejected));
    assert_eq!(
        error,
        "cannot write nsu=urn:plant;s=A: the server's namespaces cannot be read; given up after 20 ms"
    );
    assert_eq!(setup.value("A"), Some(Variant::Int32(7)));
}

#[tokio::test]
async fn an_output_of_which_nothing_gets_through_says_why() {
    let dead = std::iter::repeat_n(StatusCode::BadNoCommunication, 100_000);
    let mut options = Options::default();
    options.pace.standstill = Duration::from_millis(50);
    let setup = Setup::of_messages(refusing("Dead", dead), options).await;
    let _waiting = setup.begin(&[&to("Dead", 1)]);
    setup.until(|setup| setup.stands.lock().is_some()).await;
    let why = setup.stands.lock().clone().unwrap();
    assert!(
        why.contains("ns=2;s=Dead") && why.contains("BadNoCommunication"),
        "{why}"
    );
}

#[tokio::test]
async fn what_a_lost_session_leaves_open_is_written_in_the_next_one() {
    let plant = Plant {
        faults: VecDeque::from([None, Some(StatusCode::BadSessionIdInvalid)]),
        ..Plant::default()
    };
    let setup = Setup::of_members(plant, checked(3), &["A"]).await;
    let ending = setup.begin(&[r#"{"A": 1}"#, r#"{"A": 2}"#, r#"{"A": 3}"#]);
    let server = setup.server.borrow().clone().unwrap();
    // The supervisor notices, and opens another session.
    server.session.channel().closed().await;
    setup.server.send_replace(None);
    setup.connect().await;
    assert!(rejections(ending).await.is_empty());
    assert_eq!(setup.written(), [[1], [2], [3]]);
}

#[tokio::test]
async fn a_namespace_that_the_server_gets_later_is_found() {
    const UA: &str = "http://opcfoundation.org/UA/";
    let plant = Plant {
        namespaces: VecDeque::from([vec![UA, "urn:server"], vec![UA, "urn:server", "urn:plant"]]),
        ..Plant::default()
    };
    let setup = Setup::of_messages(plant, Options::default()).await;
    let message = r#"{"node": "nsu=urn:plant;s=A", "v": 1}"#;
    let (index, reason, error) = setup.refused(&[message, &to("A", 7)]).await;
    assert_eq!((index, reason), (0, DropReason::OutputRejected));
    assert_eq!(
        error,
        "cannot write nsu=urn:plant;s=A: the server has no namespace \"urn:plant\""
    );
    assert_eq!(setup.value("A"), Some(Variant::Int32(7)));
    assert!(setup.write(&[message]).await.is_empty());
    assert_eq!(setup.value("A"), Some(Variant::Int32(1)));
    // Known namespaces are not read again.
    assert!(setup.write(&[message]).await.is_empty());
    assert!(setup.plant.lock().namespaces.is_empty());
}

#[tokio::test]
async fn namespaces_are_asked_for_from_time_to_time_only() {
    const UA: &str = "http://opcfoundation.org/UA/";
    let plant = Plant {
        namespaces: VecDeque::from([vec![UA], vec![UA, "urn:server", "urn:plant"]]),
        ..Plant::default()
    };
    let mut options = Options::default();
    options.pace.namespaces = Duration::from_secs(1);
    let setup = Setup::of_messages(plant, options).await;
    let message = r#"{"node": "nsu=urn:plant;s=A", "v": 1}"#;
    for _ in 0..2 {
        let (.., error) = setup.refused(&[message]).await;
        assert!(error.ends_with("the server has no namespace \"urn:plant\""), "{error}");
    }
    assert_eq!(setup.plant.lock().namespaces.len(), 1);
}
