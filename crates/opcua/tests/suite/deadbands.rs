//! Deadbands by rule, percent and profile, applied by the server or the client. Every change of the simulator adds 1,
//! so the steps between values reveal the deadband.

use opcua::types::StatusCode;

use crate::harness::{Collector, Plant, SimulatorOptions, collect, is_unbroken, open};
use crate::proxy::{self, Proxy, Verdict};

const ANALOG: &str = "subscribeEnabled: true, nodeIDs: [\"ns=3;s=TypesAnalog\"], browse: {maxDepth: 0}";

async fn plant() -> Plant {
    Plant::start(SimulatorOptions {
        types: true,
        fast_rate: 0.05,
        ..open()
    })
    .await
}

/// Returns the steps between the values of a tag. The first may be shorter, since it starts at the initial value.
fn steps(collector: &Collector, node: &str) -> Vec<f64> {
    let values: Vec<f64> = collector
        .values_of(node)
        .iter()
        .map(|value| value.parse().unwrap())
        .collect();
    values.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

async fn until_steps(collector: &Collector, node: &str, step: f64) {
    collector
        .until("steps", |c| steps(c, node).iter().filter(|s| **s == step).count() >= 3)
        .await;
}

/// An item that was created before its path was known is filtered by the client until the server gets the filter.
async fn until_the_server_filters(collector: &Collector, node: &str, step: f64) {
    let count = |c: &Collector| steps(c, node).iter().filter(|s| **s == step).count();
    for _ in 0..20 {
        let (suppressed, seen) = (collector.metric("values_suppressed_total"), count(collector));
        collector.until("more steps", |c| count(c) >= seen + 3).await;
        if collector.metric("values_suppressed_total") == suppressed {
            return;
        }
    }
    panic!("values are still suppressed here");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rule_may_match_the_path_of_a_tag_and_is_asked_of_the_server() {
    let plant = plant().await;
    // No NodeID begins like this, and the first rule that matches wins.
    let rules = "deadbandRules: [{pattern: \"OpcPlc.*FastUInt5\", type: absolute, value: 3}, {pattern: \"*FastUInt5\", type: absolute, value: 7}]";
    let collector = collect(&plant.endpoint(), &format!("subscribeEnabled: true, {rules}")).await;
    until_steps(&collector, "ns=3;s=FastUInt5", 4.0).await;
    collector
        .until("another tag", |c| c.values_of("ns=3;s=FastUInt4").len() > 10)
        .await;
    assert!(is_unbroken(&collector.values_of("ns=3;s=FastUInt4")));
    until_the_server_filters(&collector, "ns=3;s=FastUInt5", 4.0).await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_percent_deadband_is_left_to_a_server_that_takes_it() {
    let plant = plant().await;
    let collector = collect(
        &plant.endpoint(),
        &format!("{ANALOG}, deadband: {{type: percent, value: 10}}"),
    )
    .await;
    // The range is 0 to 100.
    until_steps(&collector, "ns=3;s=TypesAnalog", 11.0).await;
    assert_eq!(collector.metric("values_suppressed_total"), 0.0);
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_percent_deadband_without_a_range_suppresses_only_repeats() {
    let plant = plant().await;
    let collector = collect(
        &plant.endpoint(),
        "subscribeEnabled: true, nodeIDs: [\"ns=3;s=FastUInt1\"], deadband: {type: percent, value: 10}",
    )
    .await;
    collector.until_served(1).await;
    collector
        .until("values", |c| c.values_of("ns=3;s=FastUInt1").len() > 20)
        .await;
    assert!(is_unbroken(&collector.values_of("ns=3;s=FastUInt1")));
    assert_eq!(collector.metric("items_failed"), 0.0);
    collector.stop().await;
    plant.stop().await;
}

/// The first read of the range fails temporarily.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_range_that_cannot_be_read_for_the_moment_is_asked_for_again() {
    let plant = plant().await;
    let proxy = Proxy::start(&plant.endpoint()).await;
    let mut refused = false;
    proxy.judge(move |request| match request.kind {
        proxy::TRANSLATE if !std::mem::replace(&mut refused, true) => Verdict::Refuse(StatusCode::BadServerTooBusy),
        _ => Verdict::Pass,
    });
    let fields = format!("{ANALOG}, deadband: {{type: percent, value: 10}}, profile: siemens-s7-1200");
    let collector = collect(&proxy.endpoint(), &fields).await;
    until_steps(&collector, "ns=3;s=TypesAnalog", 11.0).await;
    assert_eq!(proxy.seen(proxy::TRANSLATE).len(), 2);
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_profile_without_filters_sends_none_and_filters_here() {
    let plant = plant().await;
    let fields = format!("{ANALOG}, deadband: {{type: absolute, value: 4}}");
    for (profile, here) in [("siemens-s7-1200", true), ("siemens-s7-1500", false)] {
        let collector = collect(&plant.endpoint(), &format!("{fields}, profile: {profile}")).await;
        until_steps(&collector, "ns=3;s=TypesAnalog", 5.0).await;
        // The server sends every change if no filter was requested.
        assert_eq!(collector.metric("values_suppressed_total") > 0.0, here, "{profile}");
        collector.stop().await;
    }
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_beyond_the_item_limit_of_a_profile_are_polled() {
    let plant = Plant::start(SimulatorOptions {
        fast_nodes: 1010,
        ..open()
    })
    .await;
    let collector = collect(
        &plant.endpoint(),
        "subscribeEnabled: true, profile: siemens-s7-1200, pollRate: 200",
    )
    .await;
    collector.until_served(1010).await;
    assert_eq!(
        (collector.metric("items_monitored"), collector.metric("items_polled")),
        (1000.0, 10.0)
    );
    collector.until("all", |c| c.latest().len() == 1010).await;
    collector.stop().await;
    plant.stop().await;
}
