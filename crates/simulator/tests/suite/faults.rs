//! Faults on demand: refused filters, bad nodes, cut connections, latency, and what survives them.

use opcua::client::IdentityToken;
use opcua::types::{
    AttributeId, DataChangeFilter, ExtensionObject, MessageSecurityMode, StatusCode, TimestampsToReturn,
};
use thalweg_simulator::SimulatorOptions;

use crate::client::{Client, Login, fast_items, item, node, simulate, stats, until};

#[tokio::test(flavor = "multi_thread")]
async fn refused_filters_leave_items_without_filter_alone() {
    let simulator = simulate(SimulatorOptions {
        refuse_filters: true,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(100).await;
    let filter = || ExtensionObject::from_message(DataChangeFilter::default());
    let items = vec![
        item("FastUInt1", 1, 1, filter()),
        item("FastUInt1", 2, 1, ExtensionObject::null()),
        item("FastUInt2", 3, 1, filter()),
    ];
    let expected = [
        StatusCode::BadMonitoredItemFilterUnsupported,
        StatusCode::Good,
        StatusCode::BadFilterNotAllowed,
    ];
    assert_eq!(client.monitor(subscription, items).await, expected);
    assert_eq!(stats(&simulator).await.monitored_items, 1);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_nodes_are_shown_and_denied() {
    let simulator = simulate(SimulatorOptions {
        bad_nodes: 3,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let shown = client.children(&node("Bad")).await;
    assert_eq!(shown.len(), 3);
    let bad = shown[2].node_id.node_id.clone();
    for attribute in [AttributeId::Value, AttributeId::DataType, AttributeId::Description] {
        assert_eq!(
            client.read(&bad, attribute).await.status(),
            StatusCode::BadNodeIdUnknown
        );
    }
    assert!(client.children(&bad).await.is_empty());
    let subscription = client.subscribe(100).await;
    let items = vec![
        item("BadUInt1", 1, 1, ExtensionObject::null()),
        item("SlowUInt1", 2, 1, ExtensionObject::null()),
        item("NoSuchNode", 3, 1, ExtensionObject::null()),
    ];
    let expected = [
        StatusCode::BadNodeIdUnknown,
        StatusCode::Good,
        StatusCode::BadNodeIdUnknown,
    ];
    assert_eq!(client.monitor(subscription, items).await, expected);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_connection_comes_back_to_the_same_subscription() {
    let simulator = simulate(SimulatorOptions {
        fast_rate: 0.1,
        cuttable: true,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(50).await;
    client.monitor(subscription, fast_items(10, 100)).await;
    client.wait_for_values(10, 3).await;
    assert_eq!(simulator.cut_connections(), 1);
    let seen = client.counters().values().map(Vec::len).max().unwrap();
    client.wait_for_values(10, seen + 10).await;
    let front = stats(&simulator).await.front.unwrap();
    assert_eq!(front.cuts, 1);
    assert!(front.connections_accepted >= 2, "{front:?}");
    assert_eq!(
        stats(&simulator).await.sessions,
        1,
        "the session was activated again, not replaced"
    );
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_dropped_again_and_again() {
    let simulator = simulate(SimulatorOptions {
        drop_every: 0.5,
        ..SimulatorOptions::default()
    })
    .await;
    let _client = Client::connect(&simulator).await;
    until("three cuts and reconnects", || async {
        let front = stats(&simulator).await.front.unwrap();
        (front.cuts >= 3 && front.connections_accepted >= 3).then_some(())
    })
    .await;
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn latency_delays_and_loses_nothing() {
    let simulator = simulate(SimulatorOptions {
        latency: 30,
        fast_rate: 0.1,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    assert!(
        client
            .session
            .endpoint_info()
            .endpoint
            .endpoint_url
            .as_ref()
            .contains(":"),
        "the public port is announced"
    );
    let before = std::time::Instant::now();
    client.value("FastUInt1").await;
    assert!(
        before.elapsed() >= std::time::Duration::from_millis(60),
        "there and back"
    );
    let subscription = client.subscribe(50).await;
    client.monitor(subscription, fast_items(100, 100)).await;
    client.wait_for_values(100, 5).await;
    for values in client.counters().values() {
        assert!(values.windows(2).all(|pair| pair[1] == pair[0] + 1), "{values:?}");
    }
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transferred_subscription_keeps_its_values() {
    let user = ("operator".to_owned(), "secret".to_owned());
    let simulator = simulate(SimulatorOptions {
        user: Some(user),
        fast_rate: 0.1,
        ..SimulatorOptions::default()
    })
    .await;
    let pki = tempfile::tempdir().unwrap();
    let login = || Login {
        policy: "None",
        mode: MessageSecurityMode::None,
        identity: IdentityToken::UserName("operator".into(), "secret".into()),
        pki: pki.path(),
    };
    let first = Client::log_in(&simulator, login()).await.unwrap();
    let subscription = first.subscribe(50).await;
    first.monitor(subscription, fast_items(5, 100)).await;
    first.wait_for_values(5, 3).await;
    let second = Client::log_in(&simulator, login()).await.unwrap();
    let moved = second
        .session
        .transfer_subscriptions(&[subscription], false)
        .await
        .unwrap();
    assert_eq!(moved[0].status_code, StatusCode::Good);
    let before = stats(&simulator).await.groups.fast.counts;
    // The second client does not know the subscription, so only the statistics show that values still flow.
    let after = until("values after the transfer", || async {
        let counts = stats(&simulator).await.groups.fast.counts;
        (counts.queued >= before.queued + 25).then_some(counts)
    })
    .await;
    assert_eq!(after.discarded, 0);
    let id = [subscription];
    let read = second
        .session
        .read(&[node("FastUInt1").into()], TimestampsToReturn::Both, 0.0)
        .await
        .unwrap();
    assert_eq!(read[0].status(), StatusCode::Good);
    second.session.delete_subscriptions(&id).await.unwrap();
    simulator.shutdown().await;
}
