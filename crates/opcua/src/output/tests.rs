//! Writes against a server that does what a test says, and checks what it was asked.

use std::collections::{HashMap, HashSet, VecDeque};

use opcua::core::{RequestMessage, ResponseMessage};
use opcua::types::{
    DataValue as UaDataValue, NodeId, ReadRequest, ReadResponse, StatusCode, Variant, WriteRequest, WriteResponse,
};
use thalweg_flow::Rejection;
use thalweg_record::{DropReason, Ticks};

use super::*;
use crate::config::{Handshake, NodeMapping, PerMessage};
use crate::fake_server::{FakeServer, fault, good, session};
use crate::node_id::NodeSpec;
use crate::profile;
use crate::server_facts::{OperationLimits, ServerFacts};

/// What the server holds, how it misbehaves, and what it was asked.
#[derive(Default)]
struct Plant {
    values: HashMap<NodeId, Variant>,
    /// Answers to writes of a node before it takes one.
    refusals: HashMap<NodeId, VecDeque<StatusCode>>,
    /// Takes every write and keeps its value.
    stuck: HashSet<NodeId>,
    /// Reads of a node that still give the old value after a write.
    late: HashMap<NodeId, (usize, Variant)>,
    /// Nodes per call; 0: any number.
    per_call_max: usize,
    /// Answers to whole Writes, before any is carried out.
    faults: VecDeque<Option<StatusCode>>,
    /// Each Write that was carried out.
    writes: Vec<Vec<(NodeId, Variant)>>,
    reads: usize,
}

impl Plant {
    fn answer(&mut self, request: &RequestMessage) -> Option<ResponseMessage> {
        match request {
            RequestMessage::Write(request) => Some(self.write(request)),
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
            results: Some(results.collect()),
            response_header: good(),
            diagnostic_infos: None,
        }
        .into()
    }

    fn read(&mut self, request: &ReadRequest) -> ResponseMessage {
        self.reads += 1;
        let wanted = request.nodes_to_read.clone().unwrap_or_default();
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
            results: Some(values.collect()),
            response_header: good(),
            diagnostic_infos: None,
        }
        .into()
    }
}

/// A server with a session on it.
struct Setup {
    plant: Arc<Mutex<Plant>>,
    _fake: FakeServer,
    server: Server,
}

impl Setup {
    async fn new(plant: Plant, limit: u32) -> Setup {
        let plant = Arc::new(Mutex::new(plant));
        let answering = plant.clone();
        let fake = FakeServer::start(move |request| answering.lock().answer(request)).await;
        let facts = ServerFacts {
            limits: OperationLimits {
                nodes_per_write: limit,
                nodes_per_read: limit,
                ..OperationLimits::default()
            },
            product: None,
            namespaces: Vec::new(),
            start_time: Ticks::MISSING,
        };
        let server = Server::new(session(&fake.url).await, facts, &profile::Name::Auto.profile());
        Setup {
            plant,
            _fake: fake,
            server,
        }
    }

    /// Writes messages whose members go to the nodes of the same name; returns what was not written.
    async fn write(&self, mappings: &[&str], messages: &[&str], handshake: Option<Handshake>) -> Vec<Rejection> {
        let mapping = |name: &&str| NodeMapping {
            node: PerMessage::Same(NodeSpec::parse(&format!("ns=2;s={name}")).unwrap()),
            value_from: Field::new((*name).to_owned()),
            data_type: PerMessage::Same(DataType::Int32),
        };
        let mappings: Vec<NodeMapping> = mappings.iter().map(mapping).collect();
        let messages: Vec<Message> = messages.iter().map(|text| Message::raw((*text).to_owned())).collect();
        let progress = prepare::prepare(&messages, &mappings, &self.server.namespaces).unwrap();
        match deliver::deliver(&self.server, handshake, progress).await {
            Ok(()) => Vec::new(),
            Err(WriteError::Some(rejections)) => rejections,
            Err(other) => panic!("{other:?}"),
        }
    }

    /// The values of each Write, in order.
    fn written(&self) -> Vec<Vec<i32>> {
        let plant = self.plant.lock();
        let value = |(_, value): &(NodeId, Variant)| match value {
            Variant::Int32(n) => *n,
            other => panic!("{other:?}"),
        };
        plant
            .writes
            .iter()
            .map(|write| write.iter().map(value).collect())
            .collect()
    }
}

fn node(name: &str) -> NodeId {
    NodeId::new(2, name)
}

fn handshake(attempts_max: u32) -> Option<Handshake> {
    Some(Handshake {
        readback_timeout: std::time::Duration::from_millis(200),
        attempts_max,
        pause: std::time::Duration::from_millis(1),
    })
}

fn numbered(n: usize) -> (Vec<String>, String) {
    let names: Vec<String> = (0..n).map(|i| format!("N{i}")).collect();
    let members: Vec<String> = (0..n).map(|i| format!("\"N{i}\": {i}")).collect();
    (names, format!("{{{}}}", members.join(", ")))
}

#[tokio::test]
async fn values_go_in_order_in_as_few_writes_as_the_server_takes() {
    let (names, message) = numbered(5);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let setup = Setup::new(Plant::default(), 2).await;
    assert!(setup.write(&names, &[&message], handshake(1)).await.is_empty());
    assert_eq!(setup.written(), [vec![0, 1], vec![2, 3], vec![4]]);
    assert_eq!(setup.plant.lock().reads, 3);
}

#[tokio::test]
async fn a_write_that_is_refused_as_too_large_is_halved_and_repeated() {
    let (names, message) = numbered(5);
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let plant = Plant {
        per_call_max: 2,
        ..Plant::default()
    };
    let setup = Setup::new(plant, 0).await;
    assert!(setup.write(&names, &[&message], None).await.is_empty());
    assert_eq!(setup.written().concat(), [0, 1, 2, 3, 4]);
    assert!(setup.written().iter().all(|write| write.len() <= 2));
}

#[tokio::test]
async fn a_value_too_large_by_itself_is_refused_and_the_others_are_written() {
    let plant = Plant {
        faults: VecDeque::from([
            Some(StatusCode::BadRequestTooLarge),
            Some(StatusCode::BadRequestTooLarge),
        ]),
        ..Plant::default()
    };
    let setup = Setup::new(plant, 0).await;
    let messages = [r#"{"A": 1, "B": 2}"#];
    let rejections = setup.write(&["A", "B"], &messages, None).await;
    assert_eq!(rejections.len(), 1);
    assert_eq!(rejections[0].permanent, Some(DropReason::TooLarge), "{rejections:?}");
    assert_eq!(setup.written(), [[2]]);
}

#[tokio::test]
async fn two_values_of_one_node_are_each_read_back_before_the_next() {
    let setup = Setup::new(Plant::default(), 0).await;
    let messages = [r#"{"A": 1, "B": 1}"#, r#"{"A": 2, "B": 2}"#, r#"{"A": 3, "B": 3}"#];
    assert!(setup.write(&["A", "B"], &messages, handshake(1)).await.is_empty());
    assert_eq!(setup.written(), [[1, 1], [2, 2], [3, 3]]);
    // Without the handshake, too: a server may carry out what is in one call in any order.
    assert!(setup.write(&["A"], &messages, None).await.is_empty());
    assert_eq!(setup.written()[3..], [[1], [2], [3]]);
}

#[tokio::test]
async fn a_value_that_shows_late_is_waited_for() {
    let plant = Plant {
        late: HashMap::from([(node("A"), (2, Variant::Int32(7)))]),
        ..Plant::default()
    };
    let setup = Setup::new(plant, 0).await;
    assert!(
        setup
            .write(&["A", "B"], &[r#"{"A": 1, "B": 2}"#], handshake(1))
            .await
            .is_empty()
    );
    assert_eq!((setup.written(), setup.plant.lock().reads), (vec![vec![1, 2]], 3));
}

#[tokio::test]
async fn a_value_that_never_shows_is_refused_after_its_attempts() {
    let plant = Plant {
        stuck: HashSet::from([node("A")]),
        values: HashMap::from([(node("A"), Variant::Int32(7))]),
        ..Plant::default()
    };
    let setup = Setup::new(plant, 0).await;
    let rejections = setup
        .write(
            &["A", "B"],
            &[r#"{"A": 1, "B": 2}"#, r#"{"A": 7, "B": 3}"#],
            handshake(3),
        )
        .await;
    let [rejection] = rejections.as_slice() else {
        panic!("{rejections:?}");
    };
    assert_eq!(
        (rejection.index, rejection.permanent),
        (0, Some(DropReason::OutputRejected))
    );
    assert!(
        rejection
            .error
            .starts_with("read-back value 7 does not match written value 1"),
        "{}",
        rejection.error
    );
    assert_eq!(setup.written(), [vec![1, 2], vec![1], vec![1], vec![7, 3]]);
}

#[tokio::test]
async fn a_value_of_another_type_is_not_the_written_one() {
    let plant = Plant {
        stuck: HashSet::from([node("A")]),
        values: HashMap::from([(node("A"), Variant::Int16(1))]),
        ..Plant::default()
    };
    let setup = Setup::new(plant, 0).await;
    let rejections = setup.write(&["A"], &[r#"{"A": 1}"#], handshake(1)).await;
    assert_eq!(
        rejections[0].error,
        "read-back value 1 does not match written value 1: ns=2;s=A has the type int16, not int32"
    );
}

#[tokio::test]
async fn what_the_server_refuses_for_good_is_not_tried_again_and_holds_nobody_up() {
    let plant = Plant {
        refusals: HashMap::from([(node("A"), VecDeque::from([StatusCode::BadTypeMismatch]))]),
        ..Plant::default()
    };
    let setup = Setup::new(plant, 0).await;
    let rejections = setup.write(&["A"], &[r#"{"A": 1}"#, r#"{"A": 2}"#], handshake(5)).await;
    let [rejection] = rejections.as_slice() else {
        panic!("{rejections:?}");
    };
    assert_eq!(
        (rejection.index, rejection.permanent),
        (0, Some(DropReason::OutputRejected))
    );
    assert!(
        rejection.error.starts_with("ns=2;s=A does not take the value 1: ")
            && rejection.error.contains("BadTypeMismatch"),
        "{}",
        rejection.error
    );
    assert_eq!(setup.written(), [[1], [2]]);
}

#[tokio::test]
async fn what_fails_for_now_is_tried_again_before_what_comes_behind_it() {
    let busy = StatusCode::BadNoCommunication;
    let plant = Plant {
        refusals: HashMap::from([(node("A"), VecDeque::from([busy, busy, busy]))]),
        ..Plant::default()
    };
    let setup = Setup::new(plant, 0).await;
    let messages = [r#"{"A": 1, "B": 1}"#, r#"{"A": 2, "B": 2}"#];
    // The attempts of the handshake are over before the device is back.
    let rejections = setup.write(&["A", "B"], &messages, handshake(2)).await;
    let indexes: Vec<usize> = rejections.iter().map(|rejection| rejection.index).collect();
    assert_eq!(indexes, [0, 1]);
    assert!(
        rejections.iter().all(|rejection| rejection.permanent.is_none()),
        "{rejections:?}"
    );
    assert_eq!(setup.written(), [vec![1, 1], vec![1]]);
    // As the runtime does it.
    assert!(setup.write(&["A", "B"], &messages, handshake(2)).await.is_empty());
    let plant = setup.plant.lock();
    assert_eq!(plant.values[&node("A")], Variant::Int32(2));
    assert_eq!(plant.values[&node("B")], Variant::Int32(2));
}

#[tokio::test]
async fn a_session_that_is_gone_leaves_what_was_confirmed_and_the_rest_for_later() {
    let plant = Plant {
        faults: VecDeque::from([None, Some(StatusCode::BadSessionIdInvalid)]),
        ..Plant::default()
    };
    let setup = Setup::new(plant, 0).await;
    let messages = [r#"{"A": 1}"#, r#"{"A": 2}"#, r#"{"A": 3}"#];
    let rejections = setup.write(&["A"], &messages, handshake(5)).await;
    let indexes: Vec<usize> = rejections.iter().map(|rejection| rejection.index).collect();
    assert_eq!(indexes, [1, 2]);
    assert!(
        rejections.iter().all(|rejection| rejection.permanent.is_none()),
        "{rejections:?}"
    );
    // Whoever keeps the session makes another one.
    assert!(setup.server.session.channel().is_closed());
}
