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

/// What goes wrong with a look-up.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    Nothing,
    /// Calls are refused, or not answered.
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

/// A server with one structure, of one Int32.
async fn server(trouble: Arc<Mutex<Trouble>>) -> FakeServer {
    FakeServer::start(move |request| {
        let trouble = *trouble.lock();
        match (request, trouble) {
            (RequestMessage::Browse(_) | RequestMessage::Read(_), Trouble::Call(status)) => Some(fault(status)),
            (RequestMessage::Browse(_), Trouble::Browse(status)) => Some(browsed(status)),
            (RequestMessage::Browse(_), _) => Some(browsed(StatusCode::Good)),
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

fn browsed(status: StatusCode) -> ResponseMessage {
    let reference = ReferenceDescription {
        node_id: ExpandedNodeId::from(&data_type()),
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
    let field = StructureField {
        name: "Speed".into(),
        data_type: NodeId::new(0, 6u32),
        value_rank: -1,
        ..StructureField::default()
    };
    ExtensionObject::from_message(StructureDefinition {
        structure_type: StructureType::Structure,
        fields: Some(vec![field]),
        ..StructureDefinition::default()
    })
}

/// Whether whoever meets such a structure now would have it asked for.
fn is_wanted(book: &TypeBook) -> bool {
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
        let mut book = TypeBook::default();
        for _ in 0..3 {
            assert!(is_wanted(&book), "{first:?}");
            learn(&session, &mut book, vec![encoding()], &component).await;
            assert!(!is_wanted(&book), "{first:?}: there is a pause");
            book.end_pauses();
        }
        *trouble.lock() = Trouble::Nothing;
        learn(&session, &mut book, vec![encoding()], &component).await;
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
        let mut book = TypeBook::default();
        let (log, _guard) = Log::record();
        learn(&session, &mut book, vec![encoding()], &component).await;
        book.end_pauses();
        assert!(!is_wanted(&book), "{trouble:?}");
        let text = log.text();
        assert!(
            text.contains("encoded as ns=3;i=99 stay bytes") && text.contains(why),
            "{text}"
        );
        assert_eq!(log.count("stay bytes"), 1, "{text}");
    }
}

/// Each look-up may take as long as a call may; the values wait for it.
#[tokio::test]
async fn a_server_that_refuses_one_look_up_is_not_asked_for_the_next_at_once() {
    let trouble = Arc::new(Mutex::new(Trouble::Call(StatusCode::BadServerTooBusy)));
    let server = server(trouble).await;
    let session = fake_server::session(&server.url).await;
    let mut book = TypeBook::default();
    let other = NodeId::new(3, 98u32);
    let encodings = vec![encoding(), other.clone()];
    learn(&session, &mut book, encodings, &fake_server::component()).await;
    assert_eq!(server.count("Browse"), 1);
    assert!(!is_wanted(&book));
    assert!(book.structure_of_encoding(&other).is_none());
    assert_eq!(book.take_missing(), [other]);
}
