//! Changing values: no gaps, one timestamp per change, and counts that agree with what the client received.

use std::collections::{HashMap, HashSet};

use opcua::types::{
    DataChangeFilter, DataChangeTrigger, DeadbandType, ExtensionObject, MonitoredItemModifyRequest, MonitoringMode,
    MonitoringParameters, StatusCode, TimestampsToReturn,
};
use thalweg_simulator::{Simulator, SimulatorOptions, SimulatorStats};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::client::{Client, fast_items, item, simulate, stats, until};

/// Waits for a moment in which everything queued has been received, and returns the statistics of that moment.
async fn agreement(simulator: &Simulator, client: &Client) -> SimulatorStats {
    until("the counts to agree", || async {
        let stats = stats(simulator).await;
        (stats.total.pending == 0 && stats.total.published == client.count()).then_some(stats)
    })
    .await
}

/// Returns the whole response to a request without a body.
async fn http(simulator: &Simulator, request: &str) -> String {
    let address = simulator.stats_url().strip_prefix("http://").unwrap();
    let address = address.strip_suffix("/sim/stats").unwrap();
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (line, headers) = request.split_once(" HTTP/1.1").unwrap_or((request, ""));
    let request = format!("{line} HTTP/1.1{headers}\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

fn assert_no_holes(counters: &HashMap<u32, Vec<u32>>, step: u32) {
    for (handle, values) in counters {
        for pair in values.windows(2) {
            assert_eq!(pair[1], pair[0] + step, "handle {handle}: {values:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_items_count_without_holes_and_the_figures_agree() {
    let simulator = simulate(SimulatorOptions {
        fast_nodes: 1_000,
        fast_rate: 0.2,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(50).await;
    let statuses = client.monitor(subscription, fast_items(1_000, 100)).await;
    assert!(statuses.iter().all(|status| status.is_good()));
    client.wait_for_values(1_000, 10).await;
    assert_no_holes(&client.counters(), 1);

    let times: HashSet<i64> = {
        let received = client.received.lock();
        let times = received
            .values()
            .flatten()
            .skip(1)
            .map(|value| value.source_timestamp.unwrap().ticks());
        times.collect()
    };
    let longest = client.counters().values().map(Vec::len).max().unwrap();
    assert!(
        times.len() <= longest + 1,
        "{} moments for {longest} changes",
        times.len()
    );

    let stats = agreement(&simulator, &client).await;
    assert_eq!(stats.groups.fast.monitored_items, 1_000);
    assert_eq!(stats.groups.fast.counts.lost_overflow, 0);
    assert_eq!(stats.groups.fast.counts.generated, stats.groups.fast.counter * 1_000);
    assert_eq!(
        (stats.sessions, stats.subscriptions, stats.monitored_items),
        (1, 1, 1_000)
    );
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_held_changes_from_the_moment_on_at_which_it_is_let_go() {
    let simulator = simulate(SimulatorOptions {
        fast_nodes: 10,
        fast_rate: 0.05,
        hold: true,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(50).await;
    client.monitor(subscription, fast_items(10, 100)).await;
    client.wait_for_values(10, 1).await;
    // Six changes are held back.
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    let held = stats(&simulator).await.groups.fast;
    assert_eq!((held.counter, held.counts.generated, client.count()), (0, 0, 10));
    assert_eq!(held.behind_seconds, 0.0);
    for (status, why) in [("204", "they are let go"), ("409", "which they were already")] {
        let answer = http(&simulator, "POST /sim/start").await;
        assert_eq!(answer.split(' ').nth(1), Some(status), "{why}");
    }
    let from_a_page = http(&simulator, "POST /sim/start HTTP/1.1\r\norigin: https://evil.example").await;
    assert_eq!(from_a_page.split(' ').nth(1), Some("403"), "{from_a_page}");
    client.wait_for_values(10, 5).await;
    assert_no_holes(&client.counters(), 1);
    assert!(
        stats(&simulator).await.groups.fast.late_changes <= 1,
        "what was held back is not made up for"
    );
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn items_created_while_values_change_miss_nothing() {
    let simulator = simulate(SimulatorOptions {
        fast_nodes: 2_000,
        fast_rate: 0.01,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(50).await;
    for chunk in fast_items(2_000, 1_000).chunks(100) {
        client.monitor(subscription, chunk.to_vec()).await;
    }
    client.wait_for_values(2_000, 20).await;
    assert_no_holes(&client.counters(), 1);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn read_shows_the_value_that_subscriptions_got() {
    let simulator = simulate(SimulatorOptions {
        fast_rate: 0.5,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(10).await;
    client.monitor(subscription, fast_items(1, 10)).await;
    client.wait_for_values(1, 3).await;
    until("a read between two changes", || async {
        let before = client.received.lock()[&1].last().unwrap().clone();
        let read = client.value("FastUInt1").await;
        (read.value == before.value && read.source_timestamp == before.source_timestamp).then_some(())
    })
    .await;
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_do_not_fit_into_a_queue_are_counted_as_lost() {
    let simulator = simulate(SimulatorOptions {
        fast_rate: 0.02,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(500).await;
    client.monitor(subscription, fast_items(10, 3)).await;
    client.wait_for_values(10, 12).await;
    // Once the items stop changing, nothing is in flight, and every value is accounted for.
    let ids: Vec<u32> = {
        let state = client.session.subscription_state().lock();
        state
            .get(subscription)
            .unwrap()
            .monitored_items()
            .map(|item| item.id())
            .collect()
    };
    client
        .session
        .set_monitoring_mode(subscription, MonitoringMode::Disabled, &ids)
        .await
        .unwrap();
    let stats = until("the queues to be deleted", || async {
        let stats = stats(&simulator).await;
        (stats.total.pending == 0 && stats.total.published == client.count()).then_some(stats)
    })
    .await;
    let counts = stats.groups.fast.counts;
    assert!(counts.lost_overflow > 100, "{counts:?}");
    assert_eq!(
        counts.queued,
        counts.published + counts.lost_overflow + counts.discarded
    );
    for values in client.counters().values() {
        assert!(
            values.windows(2).any(|pair| pair[1] > pair[0] + 1),
            "holes were expected: {values:?}"
        );
    }
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_stops_collecting_loses_exactly_what_is_counted_and_marked() {
    let simulator = simulate(SimulatorOptions {
        fast_rate: 0.02,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(50).await;
    client.monitor(subscription, fast_items(20, 50)).await;
    client.wait_for_values(20, 5).await;
    let pause = client.turn.lock().await;
    until("losses", || async {
        (stats(&simulator).await.total.lost_overflow > 1_000).then_some(())
    })
    .await;
    drop(pause);
    let stats = agreement(&simulator, &client).await;
    let mut lost = 0;
    for values in client.received.lock().values() {
        for pair in values.windows(2) {
            let number = |value: &opcua::types::DataValue| value.value.as_ref().unwrap().as_f64().unwrap() as u64;
            let hole = number(&pair[1]) - number(&pair[0]) - 1;
            assert_eq!(hole > 0, pair[1].status().overflow(), "{pair:?}");
            lost += hole;
        }
    }
    assert_eq!(stats.total.lost_overflow, lost);
    simulator.shutdown().await;
}

fn deadband(kind: DeadbandType, value: f64) -> ExtensionObject {
    let trigger = DataChangeTrigger::StatusValue;
    ExtensionObject::from_message(DataChangeFilter {
        trigger,
        deadband_type: kind as u32,
        deadband_value: value,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn deadbands_thin_out_values_and_the_counts_know() {
    let simulator = simulate(SimulatorOptions {
        fast_rate: 0.1,
        types: true,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(50).await;
    let items = vec![
        item("FastUInt1", 1, 100, deadband(DeadbandType::Absolute, 0.0)),
        item("FastUInt2", 2, 100, deadband(DeadbandType::Absolute, 2.5)),
        item("FastUInt3", 3, 100, ExtensionObject::null()),
        item("TypesString", 9, 100, deadband(DeadbandType::Absolute, 0.0)),
        item("TypesStringArray", 9, 100, deadband(DeadbandType::Absolute, 0.0)),
    ];
    let statuses = client.monitor(subscription, items).await;
    assert_eq!(statuses[..3], [StatusCode::Good; 3]);
    assert_eq!(
        statuses[3..],
        [StatusCode::BadFilterNotAllowed; 2],
        "text has no distance"
    );
    client.wait_for_values(3, 6).await;
    let counters = client.counters();
    assert_no_holes(
        &HashMap::from([(1, counters[&1].clone()), (3, counters[&3].clone())]),
        1,
    );
    assert_no_holes(&HashMap::from([(2, counters[&2].clone())]), 3);

    let analog = vec![
        item("TypesAnalog", 4, 100, deadband(DeadbandType::Percent, 4.5)),
        item("TypesCounter", 5, 100, deadband(DeadbandType::Percent, 4.5)),
    ];
    let statuses = client.monitor(subscription, analog).await;
    assert_eq!(
        statuses,
        [StatusCode::Good, StatusCode::BadDeadbandFilterInvalid],
        "only the analog item has a range"
    );
    client.wait_for_values(4, 5).await;
    let analog: Vec<f64> = client.received.lock()[&4]
        .iter()
        .map(|v| v.value.as_ref().unwrap().as_f64().unwrap())
        .collect();
    assert!(
        analog.windows(2).all(|pair| (pair[1] - pair[0]).abs() >= 5.0),
        "{analog:?}"
    );
    agreement(&simulator, &client).await;
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_sampling_takes_every_nth_value_at_its_true_time() {
    let simulator = simulate(SimulatorOptions {
        fast_rate: 0.1,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(20).await;
    let mut items = fast_items(20, 100);
    for item in &mut items {
        item.requested_parameters.sampling_interval = 250.0;
    }
    client.monitor(subscription, items).await;
    client.wait_for_values(20, 6).await;
    assert_no_holes(&client.counters(), 3);
    for values in client.received.lock().values() {
        let ticks: Vec<i64> = values
            .iter()
            .map(|value| value.source_timestamp.unwrap().ticks())
            .collect();
        assert!(ticks.windows(2).all(|pair| pair[1] - pair[0] == 3_000_000), "{ticks:?}");
    }
    agreement(&simulator, &client).await;
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn modified_items_are_counted_by_their_new_parameters() {
    let simulator = simulate(SimulatorOptions {
        fast_rate: 0.1,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(30).await;
    client.monitor(subscription, fast_items(5, 100)).await;
    client.wait_for_values(5, 3).await;
    let ids: Vec<(u32, u32)> = {
        let state = client.session.subscription_state().lock();
        let items = state.get(subscription).unwrap().monitored_items();
        items.map(|item| (item.id(), item.client_handle())).collect()
    };
    let changes: Vec<MonitoredItemModifyRequest> = ids
        .iter()
        .map(|(id, handle)| MonitoredItemModifyRequest {
            monitored_item_id: *id,
            requested_parameters: MonitoringParameters {
                client_handle: *handle,
                sampling_interval: 0.0,
                filter: deadband(DeadbandType::Absolute, 1.5),
                queue_size: 200,
                discard_oldest: true,
            },
        })
        .collect();
    client
        .session
        .modify_monitored_items(subscription, TimestampsToReturn::Both, &changes)
        .await
        .unwrap();
    let before = client.counters().values().map(Vec::len).max().unwrap();
    client.wait_for_values(5, before + 6).await;
    for values in client.counters().values() {
        let tail = &values[values.len() - 4..];
        assert!(tail.windows(2).all(|pair| pair[1] == pair[0] + 2), "{values:?}");
    }
    agreement(&simulator, &client).await;
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_items_leave_the_figures_consistent() {
    let simulator = simulate(SimulatorOptions {
        fast_rate: 0.05,
        ..SimulatorOptions::default()
    })
    .await;
    let client = Client::connect(&simulator).await;
    let subscription = client.subscribe(20).await;
    client.monitor(subscription, fast_items(50, 10)).await;
    client.wait_for_values(50, 3).await;
    client.session.delete_subscription(subscription).await.unwrap();
    let stats = until("the subscription to vanish", || async {
        let stats = stats(&simulator).await;
        (stats.subscriptions == 0 && stats.groups.fast.monitored_items == 0).then_some(stats)
    })
    .await;
    let counts = stats.total;
    assert_eq!(
        counts.queued,
        counts.published + counts.lost_overflow + counts.discarded
    );
    assert_eq!(counts.pending, 0);
    simulator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_figures_are_served_as_json() {
    let simulator = simulate(SimulatorOptions {
        fast_rate: 0.05,
        seed: 9,
        ..SimulatorOptions::default()
    })
    .await;
    until("a change", || async {
        (stats(&simulator).await.groups.fast.counter > 0).then_some(())
    })
    .await;
    let answer = http(&simulator, "GET /sim/stats").await;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let json: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(json["seed"], 9);
    let fast = &json["groups"]["fast"];
    for key in [
        "generated",
        "queued",
        "published",
        "pending",
        "lost_overflow",
        "discarded",
        "counter",
        "nodes",
    ] {
        assert!(fast[key].is_u64(), "{key}: {fast}");
        assert!(
            key == "counter" || key == "nodes" || json["total"][key].is_u64(),
            "{key}"
        );
    }
    assert_eq!(
        simulator.ready_line(),
        format!("listening {} stats {}", simulator.endpoint(), simulator.stats_url())
    );
    simulator.shutdown().await;
}
