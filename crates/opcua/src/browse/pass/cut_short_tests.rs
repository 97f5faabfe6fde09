//! A pass that ended early says so, whatever ended it.

use std::sync::Arc;
use std::time::Duration;

use opcua::core::{RequestMessage, ResponseMessage};
use opcua::types::{BrowseNextResponse, BrowseResult, ByteString, Identifier};

use super::test_context::{browse_response, connected, context, object};
use super::*;
use crate::directory::{DirectoryEntry, InputDirectory};
use crate::fake_server::{FakeServer, good};
use crate::server_facts::OperationLimits;

/// Children of the root; the first of them has one child. With the root this makes `NODES`.
const CHILDREN: u32 = 9;
const NODES: usize = 11;

/// `is_divided`: the root's children come in two responses.
async fn plant(is_divided: bool) -> FakeServer {
    FakeServer::start(move |request| match request {
        RequestMessage::Browse(request) => {
            let nodes = request.nodes_to_browse.iter().flatten();
            let results = nodes.map(|node| match (&node.node_id.identifier, is_divided) {
                (Identifier::Numeric(0), false) => references(1..=CHILDREN),
                (Identifier::Numeric(0), true) => BrowseResult {
                    continuation_point: ByteString::from(vec![1]),
                    ..references(1..=CHILDREN - 1)
                },
                (Identifier::Numeric(1), _) => references(100..=100),
                _ => BrowseResult::default(),
            });
            Some(browse_response(results.collect()))
        }
        RequestMessage::BrowseNext(request) => Some(match request.release_continuation_points {
            true => browse_next_response(Vec::new()),
            false => browse_next_response(vec![references(CHILDREN..=CHILDREN)]),
        }),
        _ => None,
    })
    .await
}

fn references(ids: std::ops::RangeInclusive<u32>) -> BrowseResult {
    BrowseResult {
        references: Some(ids.map(object).collect()),
        ..BrowseResult::default()
    }
}

fn browse_next_response(results: Vec<BrowseResult>) -> ResponseMessage {
    let response = BrowseNextResponse {
        response_header: good(),
        results: Some(results),
        diagnostic_infos: None,
    };
    response.into()
}

/// Runs a pass with at most this many nodes; returns its result and the number of nodes found.
async fn browsed(is_divided: bool, nodes_max: usize) -> (BrowseExtent, usize) {
    let server = plant(is_divided).await;
    let connected = connected(&server.url, OperationLimits::default()).await;
    let (_sender, mut context) = context(&connected);
    context.browse.nodes_max = nodes_max;
    let pass = BrowsePass::new(&context, &connected);
    let reached = tokio::time::timeout(Duration::from_secs(60), pass.run(&mut |_| {}))
        .await
        .expect("the browse ends");
    let nodes = context.table.read().len();
    (reached, nodes)
}

#[tokio::test]
async fn a_pass_that_max_nodes_ends_says_that_it_was_cut_short() {
    for is_divided in [false, true] {
        for nodes_max in [0, NODES + 1] {
            assert_eq!(browsed(is_divided, nodes_max).await, (BrowseExtent::Everything, NODES));
        }
        // Within the root's references, after them, and before the last one.
        for nodes_max in [2, CHILDREN as usize, 1 + CHILDREN as usize, NODES - 1] {
            let (reached, nodes) = browsed(is_divided, nodes_max).await;
            assert_eq!((reached, nodes), (BrowseExtent::TheLimit, nodes_max));
        }
    }
}

/// The memory of an input changes with the number of inputs, so a full table may have room again at the end.
#[tokio::test]
async fn a_pass_that_memory_ends_says_that_it_was_cut_short() {
    let server = plant(false).await;
    let connected = connected(&server.url, OperationLimits::default()).await;
    let (_sender, mut context) = context(&connected);
    let directory = InputDirectory::new();
    directory.set_node_memory(1);
    directory.add(Arc::new(DirectoryEntry {
        input: "a".to_owned(),
        endpoint: server.url.clone(),
        table: context.table.clone(),
        failures: context.failures.clone(),
    }));
    context.memory = directory.memory();
    let mut pass = BrowsePass::new(&context, &connected);
    let ticket = pass.walk.hand_out(1, 1, |_| true)[0].0;
    pass.walk.deliver(ticket, (1..=CHILDREN).map(object).collect(), true);
    pass.apply();
    assert_eq!(context.table.read().len(), 1, "there is room for none");
    directory.set_node_memory(usize::MAX);
    let reached = tokio::time::timeout(Duration::from_secs(60), pass.run(&mut |_| {}))
        .await
        .expect("the browse ends");
    assert_eq!(reached, BrowseExtent::TheLimit);
}
