//! Two wide nodes under one root, on a server that returns a few references at a time.

use std::sync::Arc;
use std::time::Duration;

use opcua::core::{RequestMessage, ResponseMessage};
use opcua::types::{BrowseNextResponse, Identifier};
use parking_lot::Mutex;

use super::test_context::{browse_response, connected, context, object};
use super::*;
use crate::fake_server::{FakeServer, good};
use crate::server_facts::OperationLimits;

/// Children of each wide node.
const WIDE: u32 = 200;

const PER_ANSWER: u32 = 10;

/// The server's state: how far each of the two wide nodes was read.
#[derive(Default)]
struct Plant {
    /// Continuation points that it can keep; 0 means no limit.
    points_max: usize,
    points: Vec<ByteString>,
    /// The last child of a wide node in each response, in the order of the responses.
    progress: Vec<(u32, u32)>,
    released: usize,
}

impl Plant {
    /// Returns references of a node from an offset. Node 0 leads to the wide ones, 1 and 2.
    fn references(&mut self, node: u32, from: u32) -> BrowseResult {
        let all: Vec<u32> = match node {
            0 => vec![1, 2],
            1 | 2 => (0..WIDE).map(|i| node * 1000 + i).collect(),
            _ => Vec::new(),
        };
        let rest = all.get(from as usize..).unwrap_or_default();
        let some = &rest[..rest.len().min(PER_ANSWER as usize)];
        let mut result = BrowseResult::default();
        if some.len() < rest.len() {
            if self.points_max > 0 && self.points.len() >= self.points_max {
                result.status_code = StatusCode::BadNoContinuationPoints;
                return result;
            }
            let point = [node.to_le_bytes(), (from + PER_ANSWER).to_le_bytes()].concat();
            self.points.push(ByteString::from(point.clone()));
            result.continuation_point = ByteString::from(point);
        }
        if matches!(node, 1 | 2) {
            self.progress.push((node, from + some.len() as u32));
        }
        result.references = Some(some.iter().map(|id| object(*id)).collect());
        result
    }

    fn answer(&mut self, request: &RequestMessage) -> Option<ResponseMessage> {
        match request {
            RequestMessage::Browse(request) => {
                let nodes = request.nodes_to_browse.iter().flatten();
                let ids = nodes.filter_map(|node| match node.node_id.identifier {
                    Identifier::Numeric(id) => Some(id),
                    _ => None,
                });
                // In reverse order: a server may give its continuation points to any node.
                let mut results: Vec<BrowseResult> = ids
                    .collect::<Vec<_>>()
                    .into_iter()
                    .rev()
                    .map(|id| self.references(id, 0))
                    .collect();
                results.reverse();
                Some(browse_response(results))
            }
            RequestMessage::BrowseNext(request) => {
                let points: Vec<ByteString> = request.continuation_points.clone().unwrap_or_default();
                self.points.retain(|point| !points.contains(point));
                let results = match request.release_continuation_points {
                    true => {
                        self.released += points.len();
                        points.iter().map(|_| BrowseResult::default()).collect()
                    }
                    false => points.iter().map(|point| self.go_on(point.as_ref())).collect(),
                };
                let response = BrowseNextResponse {
                    response_header: good(),
                    results: Some(results),
                    diagnostic_infos: None,
                };
                Some(response.into())
            }
            _ => None,
        }
    }

    fn go_on(&mut self, point: &[u8]) -> BrowseResult {
        let number = |at: usize| u32::from_le_bytes(point[at..at + 4].try_into().unwrap());
        self.references(number(0), number(4))
    }
}

/// Browses the plant with room for this many references, and returns the server's state.
async fn browsed(points_max: usize, waiting_max: usize) -> Plant {
    let plant = Arc::new(Mutex::new(Plant {
        points_max,
        ..Plant::default()
    }));
    let answering = plant.clone();
    let server = FakeServer::start(move |request| answering.lock().answer(request)).await;
    let connected = connected(&server.url, OperationLimits::default()).await;
    let (_sender, context) = context(&connected);
    let mut pass = BrowsePass::new(&context, &connected);
    pass.walk.waiting_max = waiting_max;
    tokio::time::timeout(Duration::from_secs(60), pass.run(&mut |_| {}))
        .await
        .expect("the browse ends");
    assert_eq!(context.table.read().len() as u32, 3 + 2 * WIDE);
    assert_eq!(context.failures.len(), 0);
    drop(server);
    std::mem::take(&mut *plant.lock())
}

/// How far the second wide node was read before the first was complete.
fn ahead(plant: &Plant) -> u32 {
    let before = plant
        .progress
        .iter()
        .take_while(|(node, far)| *node != 1 || *far < WIDE);
    before
        .filter(|(node, _)| *node == 2)
        .map(|(_, far)| *far)
        .max()
        .unwrap_or(0)
}

#[tokio::test]
async fn only_the_node_whose_turn_it_is_goes_on_while_there_is_no_room() {
    let plant = browsed(0, 20).await;
    assert!(ahead(&plant) <= 20 + PER_ANSWER, "{}", ahead(&plant));
    // With room, both are read concurrently.
    let plant = browsed(0, 10_000).await;
    assert!(ahead(&plant) > 100, "{}", ahead(&plant));
}

#[tokio::test]
async fn the_node_whose_turn_it_is_gets_the_last_place_that_the_server_has() {
    let plant = browsed(1, 5).await;
    assert!(plant.released > 0);
    assert!(ahead(&plant) <= PER_ANSWER, "{}", ahead(&plant));
}
