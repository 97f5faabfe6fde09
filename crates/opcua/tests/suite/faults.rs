//! Servers that reject, lack or limit something, and flows that are full.

use thalweg_record::FilterReason;

use crate::harness::{Plant, SimulatorOptions, collect, is_unbroken, open};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_refuses_filters_is_filtered_here() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 60,
        refuse_filters: true,
        types: true,
        ..open()
    })
    .await;
    let fields = "subscribeEnabled: true, deadbandRules: [{pattern: \"*FastUInt5*\", type: absolute, value: 3}]";
    let collector = collect(&plant.endpoint(), fields).await;
    collector
        .until("values", |c| c.values_of("ns=3;s=FastUInt1").len() > 12)
        .await;
    // Values belong to the right tags, none is repeated, none is lost; those within the deadband are suppressed by the
    // client.
    assert!(is_unbroken(&collector.values_of("ns=3;s=FastUInt1")));
    let banded: Vec<u32> = collector
        .values_of("ns=3;s=FastUInt5")
        .iter()
        .map(|v| v.parse().unwrap())
        .collect();
    assert!(
        banded.len() >= 2 && banded.windows(2).all(|pair| pair[1] - pair[0] == 4),
        "{banded:?}"
    );
    assert!(collector.metric("values_suppressed_total") > 0.0);
    assert_eq!(collector.metric("items_failed"), 0.0);
    assert_eq!(collector.metric("items_monitored"), collector.metric("items_wanted"));
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_percent_deadband_is_of_the_nodes_range_also_here() {
    let plant = Plant::start(SimulatorOptions {
        types: true,
        refuse_filters: true,
        fast_rate: 0.05,
        ..open()
    })
    .await;
    let fields = "subscribeEnabled: true, nodeIDs: [\"ns=3;s=TypesAnalog\"], deadband: {type: percent, value: 10}, browse: {maxDepth: 0}";
    let collector = collect(&plant.endpoint(), fields).await;
    collector
        .until("steps of ten", |c| {
            let values: Vec<f64> = c
                .values_of("ns=3;s=TypesAnalog")
                .iter()
                .map(|v| v.parse().unwrap())
                .collect();
            // The range is 0 to 100 and each change adds 1, so the next value that passes is 11 higher.
            values
                .windows(2)
                .filter(|pair| (pair[1] - pair[0] - 11.0).abs() < 1e-9)
                .count()
                >= 3
        })
        .await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_nodes_among_good_ones_concern_only_themselves() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 50,
        bad_nodes: 7,
        ..open()
    })
    .await;
    for mode in ["subscribeEnabled: true", "pollRate: 100"] {
        let fields = format!("{mode}, nodeIDs: [\"ns=3;s=Nowhere\", \"ns=3;s=OpcPlc\", \"ns=9;i=1\"]");
        let collector = collect(&plant.endpoint(), &fields).await;
        collector.until_served(50).await;
        // Tags in creation temporarily count as failed, so the reason must be checked.
        collector
            .until("failures known", |c| {
                c.labelled("items_failed", "reason=\"node_id_unknown\"") == 9.0
            })
            .await;
        assert_eq!(collector.metric("items_failed"), 9.0);
        assert_eq!(collector.metric("items_wanted"), 59.0);
        collector.until("values", |c| c.latest().len() == 50).await;
        collector
            .until("more values", |c| c.values_of("ns=3;s=FastUInt50").len() > 5)
            .await;
        assert!(is_unbroken(&collector.values_of("ns=3;s=FastUInt50")) || mode.starts_with("poll"));
        collector.stop().await;
    }
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_any_good_node_it_says_so_and_goes_on_trying() {
    let plant = Plant::start(open()).await;
    let collector = collect(
        &plant.endpoint(),
        "subscribeEnabled: true, nodeIDs: [\"ns=3;s=Nowhere\"]",
    )
    .await;
    collector
        .until("the sentence", |c| {
            c.not_ready()
                .is_some_and(|why| why.starts_with("no valid nodes selected"))
        })
        .await;
    let why = collector.not_ready().unwrap();
    assert!(
        why.contains("ns=3;s=Nowhere") && why.contains("StatusBadNodeIdUnknown"),
        "{why}"
    );
    collector
        .until("another attempt", |c| c.metrics.total("input_connection_failed") >= 2.0)
        .await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn items_beyond_a_profiles_limit_are_polled() {
    let options = SimulatorOptions {
        fast_nodes: 1200,
        manufacturer: "Siemens AG".to_owned(),
        product: "SIMATIC S7-1200".to_owned(),
        ..open()
    };
    let plant = Plant::start(options).await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true, pollRate: 200").await;
    collector.until_served(1200).await;
    assert_eq!(
        (collector.metric("items_monitored"), collector.metric("items_polled")),
        (1000.0, 200.0)
    );
    collector.until("values", |c| c.latest().len() == 1200).await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_flow_stops_the_asking_and_what_the_server_loses_is_a_gap() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 4000,
        fast_rate: 0.05,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true, queueSize: 2").await;
    collector.until_served(4000).await;
    collector.until("values", |c| c.count() > 10_000).await;
    collector.gate.send(false).unwrap();
    collector
        .until("no request left", |c| c.metric("publish_in_flight") == 0.0)
        .await;
    let entered = collector.counts().entered;
    let overflows = |c: &crate::harness::Collector| c.labelled("gaps_total", "reason=\"overflow\"");
    let before = overflows(&collector);
    // The server continues; its queues of two values overflow.
    let changes = plant.fast_changes().await + 12;
    while plant.fast_changes().await < changes {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(collector.counts().entered, entered);
    collector.forget();
    collector.gate.send(true).unwrap();
    collector.until("overflows", |c| overflows(c) > before).await;
    let marked = collector
        .messages()
        .into_iter()
        .find(|m| crate::harness::meta(m, "opcua_gap") == "true")
        .unwrap();
    let (from, to) = (
        crate::harness::meta(&marked, "opcua_gap_from"),
        crate::harness::meta(&marked, "opcua_gap_to"),
    );
    assert!(from < to, "{from} {to}");
    collector.until("values again", |c| c.latest().len() == 4000).await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_poll_cycle_that_finds_the_last_one_running_is_skipped_and_counted() {
    // Each response takes longer than the period.
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 300,
        latency: 60,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "pollRate: 50").await;
    collector
        .until("skipped cycles", |c| c.metric("poll_overruns_total") >= 3.0)
        .await;
    collector
        .until("marked values", |c| {
            c.messages()
                .iter()
                .any(|m| crate::harness::meta(m, "opcua_gap") == "true")
        })
        .await;
    assert!(collector.labelled("gaps_total", "reason=\"poll_skipped\"") >= 1.0);
    let counts = collector.stop().await;
    assert_eq!(counts.filtered(FilterReason::NoValue), 0);
    plant.stop().await;
}

/// The displayed count follows within a second.
async fn subscriptions(collector: &crate::harness::Collector, count: &str) {
    collector
        .until("the subscriptions", |c| c.detail("subscriptions") == count)
        .await;
}

/// Limits on items per subscription and on subscriptions: the subscriptions are filled, and the remaining tags are
/// polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_beyond_what_all_subscriptions_hold_are_polled() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 200,
        max_items_per_subscription: 30,
        max_subscriptions: 4,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true, pollRate: 100").await;
    collector.until_served(200).await;
    assert_eq!(
        (collector.metric("items_monitored"), collector.metric("items_polled")),
        (120.0, 80.0)
    );
    subscriptions(&collector, "4").await;
    collector.until("values", |c| c.latest().len() == 200).await;
    assert_eq!(plant.monitored_items().await, 120);
    collector.stop().await;
    plant.stop().await;
}

/// If only the number of subscriptions is limited, the existing ones get more items than configured.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_subscriptions_take_more_items_each() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 200,
        max_subscriptions: 2,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true, itemsPerSubscription: 20").await;
    collector.until_served(200).await;
    assert_eq!(collector.metric("items_monitored"), 200.0);
    subscriptions(&collector, "2").await;
    collector.stop().await;
    plant.stop().await;
}

/// After its restart the server accepts fewer subscriptions: the remaining ones get the items of the others, or the
/// tags are polled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_with_room_for_fewer_subscriptions_than_before_serves_all_tags() {
    for (items_max, monitored, polled) in [(0, 60.0, 0.0), (20, 40.0, 20.0)] {
        let plant = Plant::start(SimulatorOptions {
            fast_nodes: 60,
            max_items_per_subscription: items_max,
            ..open()
        })
        .await;
        let fields = "subscribeEnabled: true, itemsPerSubscription: 20, pollRate: 100";
        let collector = collect(&plant.endpoint(), fields).await;
        collector.until_served(60).await;
        subscriptions(&collector, "3").await;
        let plant = plant.restart(|options| options.max_subscriptions = 2).await;
        collector
            .until("a connection again", |c| c.metric("reconnects_total") >= 1.0)
            .await;
        let served = |c: &crate::harness::Collector| (c.metric("items_monitored"), c.metric("items_polled"));
        collector
            .until("all tags served", |c| served(c) == (monitored, polled))
            .await;
        collector.forget();
        collector.until("values", |c| c.latest().len() == 60).await;
        subscriptions(&collector, "2").await;
        assert_eq!(plant.monitored_items().await as f64, monitored);
        assert_eq!(collector.metric("reconnects_total"), 1.0);
        collector.stop().await;
        plant.stop().await;
    }
}

/// Messages of ten thousand values each, from one subscription.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_items_in_one_subscription_lose_nothing() {
    const TAGS: usize = 10_000;
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: TAGS as u32,
        fast_rate: 1.0,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true, publishingInterval: 500").await;
    collector.until_served(TAGS).await;
    subscriptions(&collector, "1").await;
    let notifications = collector.metric("notifications_total");
    let values = collector.metric("values_total");
    collector
        .until("four rounds", |c| {
            c.metric("values_total") >= values + 4.0 * TAGS as f64
        })
        .await;
    let messages = collector.metric("notifications_total") - notifications;
    let each = (collector.metric("values_total") - values) / messages.max(1.0);
    assert!(each > 1000.0, "{each} values per message");
    let mut by_tag: std::collections::HashMap<String, Vec<String>> = std::collections::HashMap::new();
    for message in collector.messages() {
        let tag = crate::harness::meta(&message, "opcua_attr_nodeid");
        by_tag.entry(tag).or_default().push(crate::harness::payload(&message));
    }
    assert_eq!(by_tag.len(), TAGS);
    for (tag, values) in &by_tag {
        assert!(values.len() >= 4 && is_unbroken(values), "{tag}: {values:?}");
    }
    collector.stop().await;
    plant.stop().await;
}
