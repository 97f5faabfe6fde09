//! Servers that always return another continuation point.

use std::time::Duration;

use opcua::core::RequestMessage;
use opcua::types::{BrowseNextResponse, Identifier};

use super::test_context::{browse_response, connected, context, object};
use super::*;
use crate::fake_server::{FakeServer, good};
use crate::server_facts::OperationLimits;

/// Children of the root; the first of them never ends.
const CHILDREN: u32 = 20;

/// A page of an endless response.
fn page(references: &[u32]) -> BrowseResult {
    BrowseResult {
        continuation_point: ByteString::from(vec![1, 2, 3]),
        references: Some(references.iter().map(|id| object(*id)).collect()),
        ..BrowseResult::default()
    }
}

/// Browses a plant in which one node repeats the same references endlessly. Returns how often it was continued.
async fn browsed(endless: Vec<u32>) -> usize {
    let server = FakeServer::start(move |request| match request {
        RequestMessage::Browse(request) => {
            let nodes = request.nodes_to_browse.iter().flatten();
            let results = nodes.map(|node| match node.node_id.identifier {
                Identifier::Numeric(0) => BrowseResult {
                    references: Some((1..=CHILDREN).map(object).collect()),
                    ..BrowseResult::default()
                },
                Identifier::Numeric(1) => page(&endless),
                _ => BrowseResult::default(),
            });
            Some(browse_response(results.collect()))
        }
        RequestMessage::BrowseNext(request) => {
            let points = request.continuation_points.iter().flatten();
            let response = BrowseNextResponse {
                response_header: good(),
                results: Some(points.map(|_| page(&endless)).collect()),
                diagnostic_infos: None,
            };
            Some(response.into())
        }
        _ => None,
    })
    .await;
    let connected = connected(&server.url, OperationLimits::default()).await;
    let (_sender, context) = context(&connected);
    let pass = BrowsePass::new(&context, &connected);
    tokio::time::timeout(Duration::from_secs(60), pass.run(&mut |_| {}))
        .await
        .expect("the browse ends");
    assert!(context.table.read().len() as u32 > CHILDREN, "all others are found");
    let failed = context.failures.page(0, 10);
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(failed[0].2.status, StatusCode::BadUnknownResponse.bits());
    server.count("BrowseNext")
}

#[tokio::test]
async fn a_node_that_is_continued_with_nothing_for_ever_fails_alone() {
    let asked = browsed(Vec::new()).await;
    assert_eq!(asked, FRUITLESS_MAX / EMPTY_ANSWER);
}

#[tokio::test]
async fn a_node_that_is_continued_with_what_is_known_for_ever_fails_alone() {
    const PER_ANSWER: usize = 500;
    let known: Vec<u32> = (1..=PER_ANSWER as u32).collect();
    let asked = browsed(known).await;
    let enough = FRUITLESS_MAX / PER_ANSWER;
    assert!((enough..enough + 5).contains(&asked), "{asked}");
}
