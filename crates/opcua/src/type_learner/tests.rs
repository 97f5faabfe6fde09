use std::collections::HashMap;
use std::sync::Arc;

use opcua::core::{RequestMessage, ResponseMessage};
use opcua::types::{
    BrowseResponse, BrowseResult, DataValue as UaDataValue, ExpandedNodeId, ExtensionObject, ReadResponse,
    ReferenceDescription, StatusCode, StructureDefinition, StructureField, StructureType, Variant,
};
use parking_lot::Mutex;

use super::*;
use crate::fake_server::{self, FakeServer, fault, good};
use crate::test_log::Log;

/// How look-ups fail.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Nothing,
    /// Calls are rejected or get no response.
    Call(StatusCode),
    Browse(StatusCode),
    Read(StatusCode),
}

fn encoding() -> NodeId {
    NodeId::new(3, 99u32)
}

fn data_type() -> NodeId {
    NodeId::new(3, 50u32)
}

/// A server with one structure that consists of one Int32.
async fn server(trouble: Arc<Mutex<Trouble>>) -> FakeServer {
    FakeServer::start(move |request| {
        let trouble = *trouble.lock();
        match (request, trouble) {
            (RequestMessage::Browse(_) | RequestMessage::Read(_), Trouble::Call(status)) => Some(fault(status)),
            (RequestMessage::Browse(_), Trouble::Browse(status)) => Some(browsed(status, &data_type())),
            (RequestMessage::Browse(_), _) => Some(browsed(StatusCode::Good, &data_type())),
            (RequestMessage::Read(_), Trouble::Read(status)) => Some(read(UaDataValue {
                status: Some(status),
                ..UaDataValue::null()
            })),
            (RequestMessage::Read(_), _) => Some(read(UaDataValue::value_only(Variant::from(definition())))),
            _ => None,
        }
    })
    .await
}

fn browsed(status: StatusCode, node: &NodeId) -> ResponseMessage {
    let reference = ReferenceDescription {
        node_id: ExpandedNodeId::from(node),
        ..ReferenceDescription::default()
    };
    let result = BrowseResult {
        status_code: status,
        references: status.is_good().then(|| vec![reference]),
        ..BrowseResult::default()
    };
    BrowseResponse {
        response_header: good(),
        results: Some(vec![result]),
        diagnostic_infos: None,
    }
    .into()
}

fn read(value: UaDataValue) -> ResponseMessage {
    ReadResponse {
        response_header: good(),
        results: Some(vec![value]),
        diagnostic_infos: None,
    }
    .into()
}

fn definition() -> ExtensionObject {
    definition_of(&[("Speed", NodeId::new(0, 6u32))])
}

fn definition_of(fields: &[(&str, NodeId)]) -> ExtensionObject {
    let field = |(name, data_type): &(&str, NodeId)| StructureField {
        name: (*name).into(),
        data_type: data_type.clone(),
        value_rank: -1,
        ..StructureField::default()
    };
    ExtensionObject::from_message(StructureDefinition {
        structure_type: StructureType::Structure,
        fields: Some(fields.iter().map(field).collect()),
        ..StructureDefinition::default()
    })
}

fn motor() -> NodeId {
    NodeId::new(3, 51u32)
}

fn motor_encoding() -> NodeId {
    NodeId::new(3, 98u32)
}

fn state() -> NodeId {
    NodeId::new(3, 60u32)
}

/// A server with a line of two motors and a state of its own; a motor has two states, which are enumerations. The
/// server temporarily refuses to describe the nodes in `busy`.
async fn plant(busy: Arc<Mutex<Vec<NodeId>>>) -> FakeServer {
    let referrers = HashMap::from([
        (encoding(), data_type()),
        (motor_encoding(), motor()),
        (data_type(), NodeId::new(0, 22u32)),
        (motor(), NodeId::new(0, 22u32)),
        (state(), NodeId::new(0, 29u32)),
    ]);
    let definitions = HashMap::from([
        (
            data_type(),
            definition_of(&[("State", state()), ("First", motor()), ("Second", motor())]),
        ),
        (motor(), definition_of(&[("Wanted", state()), ("Actual", state())])),
    ]);
    FakeServer::start(move |request| match request {
        RequestMessage::Browse(browse) => {
            let node = &browse.nodes_to_browse.as_ref()?.first()?.node_id;
            Some(match busy.lock().contains(node) {
                true => browsed(StatusCode::BadTimeout, node),
                false => browsed(StatusCode::Good, referrers.get(node)?),
            })
        }
        RequestMessage::Read(wanted) => {
            let node = &wanted.nodes_to_read.as_ref()?.first()?.node_id;
            Some(read(UaDataValue::value_only(Variant::from(
                definitions.get(node)?.clone(),
            ))))
        }
        _ => None,
    })
    .await
}

/// Calls of all look-ups: one for the encoding, two for the data types motor and state, and two for definitions.
const CALLS: usize = 5;

fn calls(server: &FakeServer) -> usize {
    server.count("Browse") + server.count("Read")
}

/// A learner whose time is up after the first call.
fn hasty(rest: Duration) -> TypeLearner {
    TypeLearner {
        round_max: Duration::ZERO,
        rest,
        ..TypeLearner::new()
    }
}

/// Returns whether decoding such a structure now would request a look-up.
fn is_wanted(book: &StructureRegistry) -> bool {
    assert!(book.structure_of_encoding(&encoding()).is_none());
    book.take_missing() == [encoding()]
}

#[tokio::test]
async fn a_structure_that_cannot_be_described_for_the_moment_is_asked_for_again() {
    let component = fake_server::component();
    for first in [
        Trouble::Call(StatusCode::BadServerTooBusy),
        Trouble::Browse(StatusCode::BadTimeout),
        Trouble::Read(StatusCode::BadResourceUnavailable),
    ] {
        let trouble = Arc::new(Mutex::new(first));
        let server = server(trouble.clone()).await;
        let session = fake_server::session(&server.url).await;
        let (mut book, mut learner) = (StructureRegistry::default(), TypeLearner::new());
        for _ in 0..3 {
            assert!(is_wanted(&book), "{first:?}");
            learner.learn(&session, &mut book, vec![encoding()], &component).await;
            assert!(!is_wanted(&book), "{first:?}: there is a pause");
            book.end_pauses();
        }
        *trouble.lock() = Trouble::Nothing;
        learner.learn(&session, &mut book, vec![encoding()], &component).await;
        let structure = book.structure_of_encoding(&encoding()).unwrap();
        assert_eq!(structure.fields[0].name.as_str(), "Speed");
    }
}

#[tokio::test]
async fn a_structure_that_is_not_described_is_given_up_and_the_log_says_why() {
    let component = fake_server::component();
    for (trouble, why) in [
        (
            Trouble::Browse(StatusCode::BadNodeIdUnknown),
            "the references of ns=3;i=99",
        ),
        (
            Trouble::Read(StatusCode::BadAttributeIdInvalid),
            "the DataTypeDefinition of ns=3;i=50",
        ),
    ] {
        let server = server(Arc::new(Mutex::new(trouble))).await;
        let session = fake_server::session(&server.url).await;
        let (mut book, mut learner) = (StructureRegistry::default(), TypeLearner::new());
        let (log, _guard) = Log::record();
        learner.learn(&session, &mut book, vec![encoding()], &component).await;
        book.end_pauses();
        assert!(!is_wanted(&book), "{trouble:?}");
        let text = log.text();
        assert!(
            text.contains("encoded as ns=3;i=99 are delivered as bytes") && text.contains(why),
            "{text}"
        );
        assert_eq!(log.count("are delivered as bytes"), 1, "{text}");
    }
}

#[tokio::test]
async fn fields_that_may_hold_subtypes_say_which_one_they_hold() {
    let field = |(name, data_type): (&str, u32)| StructureField {
        name: name.into(),
        data_type: NodeId::new(0, data_type),
        value_rank: -1,
        is_optional: true,
        ..StructureField::default()
    };
    let definition = ExtensionObject::from_message(StructureDefinition {
        structure_type: StructureType::StructureWithSubtypedValues,
        fields: Some([("Structure", 22), ("Number", 26), ("Text", 12)].map(field).to_vec()),
        ..StructureDefinition::default()
    });
    let server = FakeServer::start(move |request| match request {
        RequestMessage::Browse(browse) => {
            let node = &browse.nodes_to_browse.as_ref()?.first()?.node_id;
            let referrer = if *node == encoding() {
                data_type()
            } else {
                NodeId::new(0, 22u32)
            };
            Some(browsed(StatusCode::Good, &referrer))
        }
        RequestMessage::Read(_) => Some(read(UaDataValue::value_only(Variant::from(definition.clone())))),
        _ => None,
    })
    .await;
    let session = fake_server::session(&server.url).await;
    let (mut book, component) = (StructureRegistry::default(), fake_server::component());
    TypeLearner::new()
        .learn(&session, &mut book, vec![encoding()], &component)
        .await;
    let fields = &book.structure_of_encoding(&encoding()).unwrap().fields;
    let elements: Vec<&FieldEncoding> = fields.iter().map(|field| &field.element).collect();
    let (structure, variant) = (
        FieldEncoding::BuiltIn(types::EXTENSION_OBJECT),
        FieldEncoding::BuiltIn(types::VARIANT),
    );
    assert_eq!(elements, [&structure, &variant, &variant]);
}

/// Each look-up may take as long as the call timeout while values wait.
#[tokio::test]
async fn a_server_that_refuses_one_look_up_is_not_asked_for_the_next_at_once() {
    let trouble = Arc::new(Mutex::new(Trouble::Call(StatusCode::BadServerTooBusy)));
    let server = server(trouble).await;
    let session = fake_server::session(&server.url).await;
    let mut book = StructureRegistry::default();
    let other = NodeId::new(3, 98u32);
    let encodings = vec![encoding(), other.clone()];
    TypeLearner::new()
        .learn(&session, &mut book, encodings, &fake_server::component())
        .await;
    assert_eq!(server.count("Browse"), 1);
    assert!(!is_wanted(&book));
    assert!(book.structure_of_encoding(&other).is_none());
    assert_eq!(book.take_missing(), [other]);
}

#[tokio::test]
async fn whatever_is_met_twice_is_asked_for_once() {
    let server = plant(Arc::default()).await;
    let session = fake_server::session(&server.url).await;
    let (mut book, component) = (StructureRegistry::default(), fake_server::component());
    TypeLearner::new()
        .learn(&session, &mut book, vec![encoding()], &component)
        .await;
    let line = book.structure_of_encoding(&encoding()).unwrap();
    assert_eq!(line.fields[0].element, FieldEncoding::BuiltIn(types::INT32));
    assert_eq!(line.fields[2].element, FieldEncoding::Structure(motor()));
    assert_eq!(book.structure(&motor()).unwrap().fields.len(), 2);
    assert_eq!(calls(&server), CALLS);
}

/// Values and publish requests wait during a round.
#[tokio::test]
async fn rounds_are_short_and_each_comes_further() {
    let server = plant(Arc::default()).await;
    let session = fake_server::session(&server.url).await;
    let (mut book, mut learner) = (StructureRegistry::default(), hasty(Duration::ZERO));
    for round in 1..CALLS {
        let encodings = vec![encoding(), motor_encoding()];
        let (log, _guard) = Log::record();
        learner
            .learn(&session, &mut book, encodings, &fake_server::component())
            .await;
        assert_eq!(calls(&server), round);
        assert!(is_wanted(&book), "asked for again without a pause of its own");
        let text = log.text();
        assert!(text.contains("encoded as ns=3;i=99, and perhaps others"), "{text}");
    }
    learner
        .learn(&session, &mut book, vec![encoding()], &fake_server::component())
        .await;
    assert!(book.structure_of_encoding(&encoding()).is_some());
    assert_eq!(calls(&server), CALLS);
}

#[tokio::test]
async fn values_do_not_wait_at_once_for_the_next_round() {
    let server = plant(Arc::default()).await;
    let session = fake_server::session(&server.url).await;
    let component = fake_server::component();
    for (mut learner, rests) in [(hasty(Duration::from_secs(3600)), true), (TypeLearner::new(), false)] {
        assert!(!learner.is_resting());
        let mut book = StructureRegistry::default();
        learner.learn(&session, &mut book, vec![encoding()], &component).await;
        assert_eq!(learner.is_resting(), rests);
    }
}

#[tokio::test]
async fn what_was_learned_before_a_failure_is_kept() {
    let busy = Arc::new(Mutex::new(vec![state()]));
    let server = plant(busy.clone()).await;
    let session = fake_server::session(&server.url).await;
    let component = fake_server::component();
    let (mut book, mut learner) = (StructureRegistry::default(), TypeLearner::new());
    learner.learn(&session, &mut book, vec![encoding()], &component).await;
    assert!(!is_wanted(&book), "there is a pause");
    assert_eq!(calls(&server), 3, "the encoding, the definition, and the state in vain");
    busy.lock().clear();
    book.end_pauses();
    learner.learn(&session, &mut book, vec![encoding()], &component).await;
    assert!(book.structure_of_encoding(&encoding()).is_some());
    assert_eq!(calls(&server), 1 + CALLS);
}

#[tokio::test]
async fn a_structure_of_very_many_fields_is_given_up() {
    for (count, is_learned) in [(definition::FIELDS_MAX, true), (definition::FIELDS_MAX + 1, false)] {
        let fields = vec![("Speed", NodeId::new(0, 6u32)); count];
        let server = FakeServer::start(move |request| match request {
            RequestMessage::Browse(_) => Some(browsed(StatusCode::Good, &data_type())),
            RequestMessage::Read(_) => Some(read(UaDataValue::value_only(Variant::from(definition_of(&fields))))),
            _ => None,
        })
        .await;
        let session = fake_server::session(&server.url).await;
        let (mut book, component) = (StructureRegistry::default(), fake_server::component());
        let (log, _guard) = Log::record();
        TypeLearner::new()
            .learn(&session, &mut book, vec![encoding()], &component)
            .await;
        assert_eq!(book.structure_of_encoding(&encoding()).is_some(), is_learned);
        let why = "the DataTypeDefinition of ns=3;i=50 has more than 1000 fields";
        assert_eq!(log.text().contains(why), !is_learned, "{}", log.text());
    }
}
