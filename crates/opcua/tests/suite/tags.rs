//! Which tags are found, their names and how they are served, and how HTTP and the console show them.

use opcua::types::ReadRequest;

use crate::harness::{Plant, SimulatorOptions, collect, meta, open};
use crate::proxy::{self, Proxy};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_tag_is_found_within_the_servers_limits() {
    // Continuation points, tiny calls, nested folders: the simulator enforces each limit.
    let options = SimulatorOptions {
        fast_nodes: 300,
        slow_nodes: 50,
        depth: 5,
        wide: 700,
        max_nodes_per_browse: 3,
        max_nodes_per_read: 7,
        max_items_per_call: 11,
        max_references_per_node: 9,
        ..open()
    };
    let plant = Plant::start(options).await;
    for mode in ["subscribeEnabled: true", "pollRate: 200"] {
        let collector = collect(&plant.endpoint(), mode).await;
        collector.until_served(1050).await;
        assert_eq!(collector.metric("browse_variables"), 1050.0);
        assert_eq!(collector.metric("items_wanted"), 1050.0);
        assert_eq!(collector.metric("items_failed"), 0.0);
        collector.until("a value of each", |c| c.latest().len() == 1050).await;
        collector.stop().await;
    }
    plant.stop().await;
}

/// Chunks are measured in operations as servers count them, also if several attributes of a node are read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_read_has_more_operations_than_the_profile_allows() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 400,
        ..open()
    })
    .await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    let collector = collect(&proxy.endpoint(), "profile: ignition, pollRate: 100").await;
    collector.until_served(400).await;
    let reads = proxy.seen(proxy::READ);
    let sizes = reads.iter().map(|read| {
        read.decoded::<ReadRequest>()
            .nodes_to_read
            .map_or(0, |nodes| nodes.len())
    });
    assert_eq!(sizes.max(), Some(100));
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn depth_globs_and_node_limits_prune_the_browse() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 20,
        wide: 30,
        ..open()
    })
    .await;
    for (fields, tags) in [
        ("browse: {maxDepth: 1}", 0),
        ("browse: {exclude: [\"OpcPlc.Wide\"]}", 20),
        ("browse: {include: [\"*.FastUInt1*\"]}", 11),
        ("browse: {include: [\"*.FastUInt1*\"], exclude: [\"*.FastUInt1\"]}", 10),
        ("browse: {maxNodes: 14}", 10),
        ("nodeIDs: [\"ns=3;s=FastUInt7\", \"ns=3;s=FastUInt7\"]", 1),
    ] {
        let collector = collect(&plant.endpoint(), &format!("subscribeEnabled: true, {fields}")).await;
        collector.until("browse", |c| c.metric("browse_done") == 1.0).await;
        assert_eq!(collector.metric("browse_variables"), f64::from(tags), "{fields}");
        if tags > 0 {
            collector.until_served(tags as usize).await;
        } else {
            collector
                .until("that", |c| c.not_ready().as_deref() == Some("no valid nodes selected"))
                .await;
        }
        collector.stop().await;
    }
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_connections_share_the_tags_and_lose_none() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 400,
        ..open()
    })
    .await;
    let collector = collect(
        &plant.endpoint(),
        "subscribeEnabled: true, connections: 4, itemsPerSubscription: 30",
    )
    .await;
    collector.until_served(400).await;
    collector.until("values", |c| c.latest().len() == 400).await;
    collector
        .until("as many subscriptions", |c| {
            c.detail("subscriptions").parse::<usize>().unwrap() >= 14
        })
        .await;
    for i in [1, 200, 400] {
        let values = collector.values_of(&format!("ns=3;s=FastUInt{i}"));
        assert!(crate::harness::is_unbroken(&values), "{values:?}");
    }
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_heartbeat_is_a_tag_of_its_own_or_a_marked_copy() {
    let plant = Plant::start(open()).await;
    let heartbeats = |c: &crate::harness::Collector| {
        c.messages()
            .iter()
            .filter(|m| meta(m, "opcua_tag_group") == "heartbeat")
            .count()
    };
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true, useHeartbeat: true").await;
    collector.until("heartbeats", |c| heartbeats(c) >= 2).await;
    let beat = collector.of("i=2258").pop().unwrap();
    assert_eq!(meta(&beat, "opcua_tag_name"), "CurrentTime");
    assert_eq!(
        collector.metric("items_wanted"),
        10.0,
        "the heartbeat is not a wanted tag"
    );
    collector.stop().await;

    let selected = "nodeIDs: [\"ns=3;s=OpcPlc\", \"i=2258\"], useHeartbeat: true";
    for mode in ["subscribeEnabled: true", "pollRate: 200"] {
        let collector = collect(&plant.endpoint(), &format!("{selected}, {mode}")).await;
        collector.until("heartbeats", |c| heartbeats(c) >= 3).await;
        let groups: Vec<String> = collector
            .of("i=2258")
            .iter()
            .map(|m| meta(m, "opcua_tag_group"))
            .collect();
        // Once both come from one item, each original is followed by its copy.
        let tail = &groups[groups.len() - 4..];
        let both = ["CurrentTime", "heartbeat"];
        assert!(
            tail.iter().all(|group| both.contains(&group.as_str())) && tail[0] != tail[1],
            "{groups:?}"
        );
        collector.stop().await;
    }
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http_lists_nodes_and_failures_page_by_page() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 25,
        bad_nodes: 3,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true").await;
    collector.until_served(25).await;
    let page = collector.get("/api/v1/opcua/nodes?offset=10&limit=5").await;
    assert_eq!(
        (page["total"].as_u64(), page["offset"].as_u64(), page["limit"].as_u64()),
        (Some(28), Some(10), Some(5))
    );
    assert_eq!(page["items"].as_array().unwrap().len(), 5);
    let first = collector.get("/api/v1/opcua/nodes?limit=1").await["items"][0].clone();
    assert_eq!(first["node_id"], "ns=3;s=FastUInt1");
    assert_eq!(first["path"], "OpcPlc.Fast.FastUInt1");
    assert_eq!(
        (&first["data_type"], &first["state"]),
        (&"uint32".into(), &"monitored".into())
    );
    let failed = collector.get("/api/v1/opcua/nodes?state=failed").await;
    assert_eq!(failed["total"], 3);
    assert_eq!(failed["items"][0]["reason"], "node_id_unknown");
    let failures = collector.get("/api/v1/opcua/failures").await;
    assert_eq!(failures["total"].as_u64(), Some(3));
    let one = &failures["items"][0];
    assert_eq!(one["what"], "monitored item");
    assert!(
        one["status"]
            .as_str()
            .unwrap()
            .ends_with("StatusBadNodeIdUnknown (0x80340000)")
    );
    assert!(one["retry_in_seconds"].as_u64().unwrap() <= 60);
    let nobody = collector.get("/api/v1/opcua/nodes?input=other").await;
    assert_eq!(nobody["total"], 0);
    collector.stop().await;
    plant.stop().await;
}
