//! Connections that break and servers that start again: what is kept, fetched, made anew, and marked.

use crate::harness::{Collector, Options, Plant, collect, is_unbroken, meta, open};

fn reconnects(collector: &Collector, how: &str) -> f64 {
    collector.labelled("reconnects_total", &format!("how=\"{how}\""))
}

/// After every hole in the numbers comes a value that is marked.
fn every_hole_is_marked(collector: &Collector, node: &str) -> bool {
    let messages = collector.of(node);
    let number = |i: usize| crate::harness::payload(&messages[i]).parse::<u32>().unwrap();
    (1..messages.len()).all(|i| number(i) == number(i - 1).wrapping_add(1) || meta(&messages[i], "opcua_gap") == "true")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_cut_the_session_goes_on_and_what_was_sent_meanwhile_is_fetched() {
    let plant = Plant::start(Options {
        fast_nodes: 200,
        cuttable: true,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true").await;
    collector.until_served(200).await;
    for round in 1..=3 {
        let before = collector.count();
        collector.until("values", |c| c.count() > before + 2000).await;
        plant.cut();
        collector
            .until("the session again", |c| {
                reconnects(c, "reactivated") >= f64::from(round)
            })
            .await;
    }
    let before = collector.count();
    collector.until("values", |c| c.count() > before + 2000).await;
    assert_eq!(reconnects(&collector, "recreated"), 0.0);
    // The server keeps what the cut connection swallowed, so nothing is missing: queues and republishing cover it.
    for i in [1, 77, 200] {
        let node = format!("ns=3;s=FastUInt{i}");
        assert!(is_unbroken(&collector.values_of(&node)) || every_hole_is_marked(&collector, &node));
    }
    assert_eq!(collector.metric("items_monitored"), 200.0);
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_of_the_server_everything_is_made_anew_and_marked() {
    let plant = Plant::start(Options {
        fast_nodes: 150,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true, itemsPerSubscription: 60").await;
    collector.until_served(150).await;
    collector.until("values", |c| c.latest().len() == 150).await;
    let plant = plant.restart(|_| {}).await;
    collector
        .until("items anew", |c| reconnects(c, "recreated") == 1.0)
        .await;
    collector.forget();
    collector.until_served(150).await;
    collector.until("values again", |c| c.latest().len() == 150).await;
    assert!(
        collector.labelled("gaps_total", "reason=\"recreated\"") >= 3.0,
        "one per subscription"
    );
    let gap = collector
        .of("ns=3;s=FastUInt1")
        .into_iter()
        .find(|m| meta(m, "opcua_gap") == "true");
    if let Some(marked) = gap {
        assert!(meta(&marked, "opcua_gap_from") < meta(&marked, "opcua_gap_to"));
    }
    let marks = collector
        .messages()
        .iter()
        .filter(|m| meta(m, "opcua_gap") == "true")
        .count();
    assert!(marks <= 150, "each tag marks the gap once: {marks}");
    assert!(collector.metrics.total("input_connection_lost") >= 1.0);
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_has_changed_is_browsed_again_and_only_the_differences_are_applied() {
    let plant = Plant::start(Options {
        fast_nodes: 40,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true").await;
    collector.until_served(40).await;
    let plant = plant.restart(|options| options.fast_nodes = 55).await;
    collector.until_served(55).await;
    collector
        .until("the new tags", |c| c.latest().contains_key("FastUInt55"))
        .await;
    let plant = plant.restart(|options| options.fast_nodes = 30).await;
    collector
        .until("the tags that are left", |c| {
            c.metric("items_wanted") == 30.0 && c.not_ready().is_none()
        })
        .await;
    assert_eq!(collector.metric("items_monitored"), 30.0);
    assert_eq!(collector.metric("items_failed"), 0.0);
    collector.forget();
    collector.until("values", |c| c.latest().len() == 30).await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn polling_goes_on_after_cuts_and_restarts() {
    let plant = Plant::start(Options {
        fast_nodes: 30,
        cuttable: true,
        ..open()
    })
    .await;
    let collector = collect(&plant.endpoint(), "pollRate: 100").await;
    collector.until_served(30).await;
    plant.cut();
    collector
        .until("the session again", |c| reconnects(c, "reactivated") >= 1.0)
        .await;
    collector.forget();
    collector.until("values", |c| c.latest().len() == 30).await;
    let plant = plant.restart(|_| {}).await;
    collector
        .until("a new session", |c| c.metric("reconnects_total") >= 2.0)
        .await;
    collector.forget();
    collector.until("values", |c| c.latest().len() == 30).await;
    collector.stop().await;
    plant.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cuts_while_browsing_and_creating_lose_and_double_nothing() {
    let options = Options {
        fast_nodes: 500,
        wide: 3000,
        drop_every: 0.35,
        latency: 3,
        ..open()
    };
    let plant = Plant::start(options).await;
    let collector = collect(&plant.endpoint(), "subscribeEnabled: true").await;
    collector
        .until("all items", |c| c.metric("items_monitored") == 3500.0)
        .await;
    assert_eq!(collector.metric("items_wanted"), 3500.0);
    collector.until("a value of each", |c| c.latest().len() == 3500).await;
    // No item exists twice: values of one tag never repeat without a mark that something happened in between.
    let mut doubled = 0;
    for i in (1..=500).step_by(50) {
        let messages = collector.of(&format!("ns=3;s=FastUInt{i}"));
        let pairs = messages.windows(2);
        doubled += pairs
            .filter(|pair| {
                crate::harness::payload(&pair[0]) == crate::harness::payload(&pair[1])
                    && meta(&pair[1], "opcua_gap").is_empty()
            })
            .count();
    }
    assert_eq!(doubled, 0);
    collector.stop().await;
    plant.stop().await;
}
