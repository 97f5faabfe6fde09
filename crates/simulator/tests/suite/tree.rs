//! Browsing: the documented layout, pages, depth, and the operation limits.

use opcua::types::{AttributeId, NodeClass, NodeId, ObjectId, StatusCode, Variant};
use thalweg_simulator::{SimulatorOptions, ValueType};

use crate::client::{Client, hierarchical, node, simulate};

fn names(references: &[opcua::types::ReferenceDescription]) -> Vec<String> {
    references
        .iter()
        .map(|reference| reference.node_id.node_id.to_string())
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_root_hangs_below_objects_and_holds_slow_and_fast() {
    let options = SimulatorOptions {
        slow_nodes: 2,
        fast_nodes: 3,
        fast_type: ValueType::Double,
        ..SimulatorOptions::default()
    };
    let simulator = simulate(options).await;
    let client = Client::connect(&simulator).await;
    let objects = client.children(&ObjectId::ObjectsFolder.into()).await;
    assert!(
        names(&objects).contains(&"ns=3;s=OpcPlc".to_owned()),
        "{:?}",
        names(&objects)
    );
    assert_eq!(
        names(&client.children(&node("OpcPlc")).await),
        ["ns=3;s=Slow", "ns=3;s=Fast"]
    );
    assert_eq!(
        names(&client.children(&node("Slow")).await),
        ["ns=3;s=SlowUInt1", "ns=3;s=SlowUInt2"]
    );
    let fast = client.children(&node("Fast")).await;
    assert_eq!(
        names(&fast),
        ["ns=3;s=FastDouble1", "ns=3;s=FastDouble2", "ns=3;s=FastDouble3"]
    );
    assert!(
        fast.iter()
            .all(|child| child.node_class == NodeClass::Variable && child.browse_name.namespace_index == 3)
    );
    assert_eq!(fast[0].browse_name.name.as_ref(), "FastDouble1");
    assert_eq!(fast[0].type_definition.node_id, NodeId::new(0, 63u32));
    let array = client.read(&NodeId::new(0, 2_255u32), AttributeId::Value).await;
    let Some(Variant::Array(array)) = array.value else {
        panic!("no namespace array")
    };
    assert_eq!(array.values.len(), 4);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wide_folder_is_browsed_in_pages_without_loss() {
    let options = SimulatorOptions {
        wide: 5_000,
        max_references_per_node: 700,
        ..SimulatorOptions::default()
    };
    let simulator = simulate(options).await;
    let client = Client::connect(&simulator).await;
    let children = client.children(&node("Wide")).await;
    let expected: Vec<String> = (1..=5_000).map(|number| format!("ns=3;s=WideUInt{number}")).collect();
    assert_eq!(names(&children), expected);
    let value = client.value("WideUInt5000").await;
    assert_eq!(value.status(), StatusCode::Good);
    assert_eq!(
        client.value("WideUInt5000").await.value,
        value.value,
        "static nodes stay"
    );
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn depth_puts_folders_between() {
    let simulator = simulate(SimulatorOptions {
        depth: 4,
        slow_nodes: 1,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let mut at = node("Slow");
    for level in 2..=4 {
        let below = client.children(&at).await;
        assert_eq!(names(&below), [format!("ns=3;s=SlowLevel{level}")]);
        assert_eq!(below[0].node_class, NodeClass::Object);
        at = below[0].node_id.node_id.clone();
    }
    assert_eq!(names(&client.children(&at).await), ["ns=3;s=SlowUInt1"]);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_repeatable_by_seed() {
    let mut values = Vec::new();
    for seed in [5, 5, 6] {
        let simulator = simulate(SimulatorOptions {
            seed,
            slow_rate: 86_400.0,
            ..SimulatorOptions::default()
        })
        .await;
        let client = Client::connect(&simulator).await;
        let mut list = Vec::new();
        for number in 1..=20 {
            list.push(client.value(&format!("SlowUInt{number}")).await.value);
        }
        values.push(list);
        simulator.shutdown().await;
    }
    assert_eq!(values[0], values[1]);
    assert_ne!(values[0], values[2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn operation_limits_are_reported_and_enforced() {
    let limited = SimulatorOptions {
        max_nodes_per_browse: 3,
        max_nodes_per_read: 4,
        max_items_per_call: 5,
        ..SimulatorOptions::default()
    };
    for (options, expected) in [(limited, [4u32, 3, 5]), (SimulatorOptions::default(), [0, 0, 0])] {
        let simulator = simulate(options).await;
        let client = Client::connect(&simulator).await;
        for (id, limit) in [11_705u32, 11_710, 11_714].into_iter().zip(expected) {
            let value = client.read(&NodeId::new(0, id), AttributeId::Value).await;
            assert_eq!(value.value, Some(Variant::UInt32(limit)), "i={id}");
        }
        let subscription = client.subscribe(100).await;
        for (count, allowed) in [(3u32, true), (6, expected[0] == 0)] {
            let ids: Vec<NodeId> = (1..=count).map(|number| node(&format!("FastUInt{number}"))).collect();
            let browsed = client
                .session
                .browse(&ids.iter().map(hierarchical).collect::<Vec<_>>(), 0, None)
                .await;
            let reads: Vec<_> = ids.iter().cloned().map(Into::into).collect();
            let read = client
                .session
                .read(&reads, opcua::types::TimestampsToReturn::Both, 0.0)
                .await;
            let items = crate::client::fast_items(count, 1);
            let timestamps = opcua::types::TimestampsToReturn::Both;
            let created = client
                .session
                .create_monitored_items(subscription, timestamps, items)
                .await;
            let outcomes = [browsed.map(|_| ()), read.map(|_| ()), created.map(|_| ())];
            for outcome in outcomes {
                match outcome {
                    Ok(()) => assert!(allowed),
                    Err(error) => {
                        assert!(!allowed);
                        assert_eq!(error.status(), StatusCode::BadTooManyOperations);
                    }
                }
            }
        }
        simulator.shutdown().await;
    }
}
