//! A server with endless nodes: the memory of the table is limited, and the browse ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use opcua::core::RequestMessage;
use opcua::types::{BrowseResult, QualifiedName};

use super::BrowsePass;
use super::test_context::{browse_response, connected, context, object};
use crate::directory::{DirectoryEntry, InputDirectory};
use crate::fake_server::FakeServer;
use crate::server_facts::OperationLimits;

/// Per response for one node.
const CHILDREN: u32 = 50;
const NAME_BYTES: usize = 1000;
const BYTES: usize = 8 << 20;

#[tokio::test]
async fn a_server_without_an_end_is_browsed_as_far_as_there_is_memory() {
    let next = AtomicU32::new(1);
    let server = FakeServer::start(move |request| match request {
        RequestMessage::Browse(request) => {
            let child = |_| {
                let id = next.fetch_add(1, Relaxed);
                let mut child = object(id);
                child.browse_name = QualifiedName::new(1, format!("{id:0>NAME_BYTES$}").as_str());
                child
            };
            let nodes = request.nodes_to_browse.iter().flatten();
            let results = nodes.map(|_| BrowseResult {
                references: Some((0..CHILDREN).map(child).collect()),
                ..BrowseResult::default()
            });
            Some(browse_response(results.collect()))
        }
        _ => None,
    })
    .await;
    let connected = {
        // This makes a response one chunk.
        let limits = OperationLimits {
            nodes_per_browse: 1,
            ..OperationLimits::default()
        };
        connected(&server.url, limits).await
    };
    let (_sender, mut context) = context(&connected);
    // Two inputs, with two tables each while they browse again.
    let directory = InputDirectory::new();
    directory.set_node_memory(4 * BYTES);
    for input in ["a", "b"] {
        directory.add(Arc::new(DirectoryEntry {
            input: input.to_owned(),
            endpoint: server.url.clone(),
            table: context.table.clone(),
            failures: context.failures.clone(),
        }));
    }
    context.memory = directory.memory();
    assert_eq!(context.memory.of_a_table(), BYTES);
    let pass = BrowsePass::new(&context, &connected);
    let ended = tokio::time::timeout(Duration::from_secs(60), pass.run(&mut |_| {})).await;
    let table = context.table.read();
    let (nodes, bytes) = (table.len(), table.heap_bytes());
    assert!(ended.is_ok(), "{nodes} nodes of {bytes} bytes, and it goes on");
    // The table grows by half its size at a time.
    assert!(
        (BYTES..2 * BYTES).contains(&bytes),
        "{bytes} bytes of {} nodes",
        table.len()
    );
    assert!(context.is_out_of_memory(&table));
}
