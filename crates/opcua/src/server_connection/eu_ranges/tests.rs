use opcua::core::RequestMessage;
use opcua::types::{
    BrowsePathTarget, DataValue as UaDataValue, ExpandedNodeId, ExtensionObject, Range, ReadResponse,
    TranslateBrowsePathsToNodeIdsResponse, Variant,
};

use super::*;
use crate::fake_server::{self, FakeServer, good};

/// Nodes below 100 have a property with the same number, whose value has a status; for those from 100 on the browse
/// path query returns a status.
async fn server() -> FakeServer {
    FakeServer::start(|request| match request {
        RequestMessage::TranslateBrowsePathsToNodeIds(request) => {
            let paths = request.browse_paths.iter().flatten();
            let response = TranslateBrowsePathsToNodeIdsResponse {
                response_header: good(),
                results: Some(paths.map(|path| answer_of(&path.starting_node)).collect()),
                diagnostic_infos: None,
            };
            Some(response.into())
        }
        RequestMessage::Read(request) => {
            let reads = request.nodes_to_read.iter().flatten();
            let response = ReadResponse {
                response_header: good(),
                results: Some(reads.map(|read| range_of(&read.node_id)).collect()),
                diagnostic_infos: None,
            };
            Some(response.into())
        }
        _ => None,
    })
    .await
}

fn answer_of(node: &NodeId) -> BrowsePathResult {
    let status_code = match node.as_u32() {
        Some(100) => StatusCode::BadNoMatch,
        Some(101) => StatusCode::BadNodeIdUnknown,
        Some(102) => StatusCode::BadTimeout,
        _ => StatusCode::Good,
    };
    let target = BrowsePathTarget {
        target_id: ExpandedNodeId::from(node),
        remaining_path_index: u32::MAX,
    };
    BrowsePathResult {
        status_code,
        targets: status_code.is_good().then(|| vec![target]),
    }
}

fn range_of(node: &NodeId) -> UaDataValue {
    let status = match node.as_u32() {
        Some(1) => StatusCode::BadNotReadable,
        Some(2) => StatusCode::BadResourceUnavailable,
        Some(3) => return UaDataValue::value_only(Variant::from(7)),
        _ => {
            let range = Range { low: -50.0, high: 50.0 };
            return UaDataValue::value_only(Variant::from(ExtensionObject::from_message(range)));
        }
    };
    UaDataValue {
        status: Some(status),
        ..UaDataValue::null()
    }
}

#[tokio::test]
async fn only_a_node_that_is_known_to_have_no_range_is_said_to_have_none() {
    let server = server().await;
    let session = fake_server::session(&server.url).await;
    let nodes = [0u32, 1, 2, 3, 4, 100, 101, 102].map(|id| NodeId::new(2, id)).to_vec();
    let found = spans(&session, nodes).await.unwrap();
    let text = |code: StatusCode| status::text(code.bits());
    let expected = [
        Ok(100.0),
        Err(NoSpan::Never(text(StatusCode::BadNotReadable))),
        Err(NoSpan::NotNow(text(StatusCode::BadResourceUnavailable))),
        Err(NoSpan::Unusable),
        Ok(100.0),
        Err(NoSpan::Absent),
        Err(NoSpan::Never(text(StatusCode::BadNodeIdUnknown))),
        Err(NoSpan::NotNow(text(StatusCode::BadTimeout))),
    ];
    assert_eq!(found, expected);
    let busy = CallError::Refused(StatusCode::BadServerTooBusy.bits());
    assert!(matches!(NoSpan::of_call(&busy), NoSpan::NotNow(_)));
    assert!(matches!(
        NoSpan::of_call(&CallError::Timeout(Duration::from_secs(1))),
        NoSpan::NotNow(_)
    ));
}

#[test]
fn what_fails_for_the_moment_is_asked_for_a_few_times_ever_later() {
    let mut ranges = EuRangeLookups::new();
    let mut want = EuRangeRequest { item: 7, attempts: 0 };
    let mut now = Instant::now();
    let mut pauses = Vec::new();
    while ranges.postpone(want, now) {
        let pause = (0..1000).find(|seconds| {
            let wants = ranges.take(now + Duration::from_secs(*seconds));
            wants.first().inspect(|again| want = **again).is_some()
        });
        pauses.push(pause.unwrap());
        now += Duration::from_secs(pauses.last().copied().unwrap());
    }
    assert_eq!(pauses, [1, 2, 4, 8, 16, 32]);
    assert!(ranges.take(now + Duration::from_secs(1000)).is_empty());
}
